"""Checkpoints and policy folders: written beside and renamed into place, verified before use, never a pickle.

    checkpoint_000123/                    policy/
        manifest.json                         policy.json
        state.safetensors                     policy.safetensors
        state/0.npy ...                       (the same format, self-contained)
        policy/ ...
        replay/ ...

The JSON file holds the format version, the caller's entries, the structure of the state with everything that is
not an array, and the size and SHA-256 of every other file. Its own checksum is computed with that field filled with
zeros. Its signature says who wrote the folder (`raypid.storage.ownership`): it is of the SHA-256 of the JSON text with zeros for
the checksum and an empty signature. Arrays are in the safetensors file; those of a dtype that it cannot hold are .npy
files. A parent folder has one writer at a time. Readers need only NumPy and safetensors.

A folder may come from anybody. What its files name lies within it, and whatever is wrong with it is a CheckpointError.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any, TypeAlias, TypedDict

import numpy as np

from raypid.errors import UserError, listed, shown
from raypid.state_tree import decode, encode, read_npy
from raypid.storage.changes import CHANGES, Change, as_it_was, read_changes
from raypid.storage.neighbours import refuse_file
from raypid.storage.outputs import Unwritten, is_disk_full, why_unwritten
from raypid.storage.ownership import is_signed, sign
from raypid.storage.plain_data import parse_json
from raypid.types import Array, as_tree, tree_leaves

FORMAT_VERSION = 2
"""From 2 on the files of the replay buffer are under the manifest's checksums too."""
MAX_JSON_BYTES = 1 << 28
"""Size of a JSON file beyond which it is not read."""
BEST = "best"
"""Folder of the best policy inside a run's folder."""
OLD_BEST = "policy"
"""Name of that folder in runs of earlier versions."""
_NAME = re.compile(r"checkpoint_(\d{6,})")
_STEM = {"manifest.json": "state", "policy.json": "policy"}
REPLAY = "replay"
"""Folder of the replay buffer inside a checkpoint. Only the newest checkpoint has it."""
_ROWS = re.compile(rf"{REPLAY}/(?:\w+/)?(?:links|segment_\d+_\d+)\.safetensors")
"""Large files of the replay buffer. They are verified by the checksums in its index when they are read."""
_KIND = {"manifest.json": "checkpoint", "policy.json": "policy"}
_ZEROS = "0" * 64
Entries: TypeAlias = Mapping[str, object]
"""The caller's part of the JSON file."""
ExtraWriter: TypeAlias = Callable[[Path], Mapping[str, str] | None] | None
"""Writes more files into a folder; may return the SHA-256 of some, by relative path, so that these are not read again."""


class CheckpointError(UserError):
    """A checkpoint or policy is missing, damaged or of a newer format, or the folder is something else."""


@contextlib.contextmanager
def refusing(
    what: str,
    kind: type[CheckpointError] = CheckpointError,
    passing: type[Exception] | tuple[type[Exception], ...] = UserError,
) -> Iterator[None]:
    """Turn whatever altered or crafted files make their readers raise into CheckpointError; `what` begins its message.

    Errors of the types `passing` say already what is wrong, or that it is something else, and pass.
    """
    try:
        yield
    except passing:
        raise
    except Exception as error:
        text = _reason(error)
        raise kind(f"{what} is damaged: {f'it lacks {text}' if isinstance(error, KeyError) else text}.") from error


def _reason(error: Exception) -> str:
    """Return the message of a reader of a damaged file for users, without the full stop."""
    if isinstance(error, (TypeError, AttributeError)):
        return "a value is of another kind than it must be"
    text = " ".join(str(error).split())[:500]
    if "int_max_str_digits" in text:
        return "it has a number of thousands of digits"
    return text.rstrip(".") or type(error).__name__


COUNTERS = ("timesteps_total", "iteration", "num_episodes", "num_updates", "time_total_s", "num_saves")
"""How far a run has come: the counters that every checkpoint of a run has."""


class Manifest(TypedDict, total=False):
    """The caller's entries in manifest.json."""

    algorithm: str
    program: str
    config: dict[str, object]
    counters: dict[str, float]
    score: float | None
    """Higher is better; None: unknown."""
    signed: bool
    """Whether this user's raypid wrote the checkpoint. The reader sets it, not the file."""
    gone_back: str
    """Which parts are older than the rest, because learners or replay buffers were lost, as text."""
    changes: list[Change]
    """Changes since the run began (`raypid.storage.changes`)."""
    format_version: int
    raypid_version: str


def checkpoint_name(training_iteration: int) -> str:
    """The name of a checkpoint's folder, such as "checkpoint_000123"."""
    return f"checkpoint_{training_iteration:06d}"


def save_checkpoint(
    parent: Path | str, name: str, state: Entries, *, manifest: Entries, extra_writer: ExtraWriter = None
) -> Path:
    """Write `parent/name` so that a crash at any point leaves either the old folder or the new one.

    Args:
        state: nested dicts (string keys) and lists of arrays and JSON values; floats may be nan or inf,
            integers of any size, a tuple becomes a list, a NumPy scalar a Python number.
        manifest: entries of manifest.json, as in `Manifest`.
        extra_writer: called with the temporary folder before it is renamed, to write more files (the policy).

    Raises:
        Unwritten: the disk is full, or the place cannot be written to; nothing is left behind.
        TypeError: a leaf cannot be saved; the message has its path.
    """
    return _put_in_place(Path(parent) / name, "manifest.json", state, manifest, extra_writer)


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of which every size and checksum was verified, once. Its parts are read when they are asked for."""

    path: Path
    manifest: Manifest
    _entries: dict[str, Any]
    """The JSON file, with the structure of the state."""

    def policy(self) -> Mapping[str, Any]:
        """Read what the policy in it is, without its weights.

        Raises:
            CheckpointError: it is damaged.
        """
        with refusing(f"The checkpoint {self.path}"):
            spec: Mapping[str, Any] = decode(read_json(_current(self.path) / "policy" / "policy.json")["spec"], {}, {})
            return spec

    def state(self) -> dict[str, Any]:
        """Read the state.

        Raises:
            CheckpointError: it is damaged.
        """
        return _read_state(self.path, "manifest.json", self._entries)


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Find the checkpoint that `path` stands for (a checkpoint, or the newest one of a run or checkpoints folder), and verify it.

    Raises:
        CheckpointError: there is none, or it is damaged; the message then names the newest intact one.
    """
    chosen = _named(Path(path))
    try:
        entries = _verify(chosen, "manifest.json")
        with refusing(f"The checkpoint {chosen}"):
            return Checkpoint(chosen, _manifest(entries), entries)
    except CheckpointError as error:
        raise CheckpointError(f"{error} {_hint(chosen)}") from error


def read_manifest(path: Path | str) -> Manifest:
    """Read and verify the manifest alone; the other files are not opened.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    entries = _read_index(_current(Path(path)), "manifest.json")
    with refusing(f"The checkpoint {path}"):
        return _manifest(entries)


def list_checkpoints(parent: Path | str) -> list[Path]:
    """List the checkpoints in a folder, oldest first."""
    parent = Path(parent)
    if not parent.is_dir():
        return []
    names = {p.name.removeprefix(".old-") for p in parent.iterdir() if p.is_dir()}
    numbered = [(int(match[1]), name) for name in names if (match := _NAME.fullmatch(name))]
    return [parent / name for _, name in sorted(numbered)]


def latest(parent: Path | str) -> Path | None:
    """Return the checkpoint of the highest training iteration; None if the folder has no checkpoints."""
    return next(reversed(list_checkpoints(parent)), None)


def prune(parent: Path | str, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one: that with the highest score, the newest one of a tie.

    Checkpoints whose manifest cannot be read stay and do not count; one that cannot be removed (a disk that is read-only by now) stays too.
    """
    _sweep(Path(parent), "*")
    scores: dict[Path, float | None] = {}
    for path in list_checkpoints(parent):
        with contextlib.suppress(CheckpointError):
            scores[path] = read_manifest(path).get("score")
    known = {path: score for path, score in scores.items() if score is not None and not math.isnan(score)}
    best = max(reversed(known), key=known.__getitem__, default=None)
    for path in scores.keys() - {*list(scores)[-keep:], best}:
        _remove(_current(path), path.with_name(f".tmp-{path.name}-{os.getpid()}"))


def _remove(folder: Path, doomed: Path) -> None:
    """Remove a folder under another name, since an interrupted removal must not look like damage; if it can be."""
    with contextlib.suppress(OSError):
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def remove_replay(path: Path) -> None:
    """Remove the replay buffer of a checkpoint, which stays whole otherwise, also if it is interrupted."""
    _remove(path / REPLAY, path.with_name(f".tmp-{path.name}-{REPLAY}-{os.getpid()}"))


def _named(path: Path) -> Path:
    """The checkpoint that a path stands for; nothing in it is read.

    Raises:
        CheckpointError: there is none.
    """
    is_named = _NAME.fullmatch(path.name) is not None and _current(path).is_dir()
    # Ray Tune's folders have names of this kind
    if (is_named and not list_checkpoints(path)) or os.path.isfile(_current(path) / "manifest.json"):
        return path
    refuse_file(path, CheckpointError)
    chosen = latest(path / "checkpoints" if (path / "checkpoints").is_dir() else path)
    if chosen is None:
        raise CheckpointError(f"{path} holds no checkpoint (a run has one after 10 s); found there: {_contents(path)}.")
    return chosen


def _hint(damaged: Path) -> str:
    for other in reversed(list_checkpoints(damaged.parent)):
        with contextlib.suppress(CheckpointError):
            _verify(other, "manifest.json")
            return f"The newest intact checkpoint beside it is {other}."
    return "No intact checkpoint lies beside it."


def write_policy(folder: Path | str, spec: Mapping[str, object], arrays: Mapping[str, Array]) -> Path:
    """Write a self-contained policy, policy.json and policy.safetensors, replacing what was at `folder`.

    Raises:
        Unwritten: the disk is full; the old folder is untouched.
    """
    return _put_in_place(Path(folder), "policy.json", arrays, {"spec": spec}, None)


def read_policy(folder: Path | str) -> tuple[dict[str, Any], dict[str, Array], bool]:
    """Read (spec, arrays, whether this user's raypid wrote them) of a policy folder, verified.

    Raises:
        CheckpointError: missing, truncated, altered, of a newer format, or not a policy.
    """
    entries = _verify(Path(folder), "policy.json")
    arrays = _read_state(Path(folder), "policy.json", entries)
    with refusing(f"The policy {folder}"):
        spec: dict[str, Any] = decode(entries["spec"], {}, {})
        if not isinstance(spec, dict) or not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("policy.json does not describe a policy")
        return spec, arrays, entries["signed"]


def _sweep(parent: Path, name: str) -> None:
    """Remove what killed writers left behind: unfinished folders, and old ones whose successor is in place."""
    stale = [old for old in parent.glob(f".old-{name}") if (parent / old.name.removeprefix(".old-")).exists()]
    for leftover in [*parent.glob(f".tmp-{name}-*"), *stale]:
        shutil.rmtree(leftover, ignore_errors=True)


def _put_in_place(target: Path, index: str, state: object, entries: Entries, extra_writer: ExtraWriter) -> Path:
    """Write a folder beside `target`, rename it, and remove what was there before."""
    temporary = target.with_name(f".tmp-{target.name}-{os.getpid()}")
    old = target.with_name(f".old-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent, "*" if index == "manifest.json" else target.name)
        temporary.mkdir()
        _write(temporary, index, state, entries, extra_writer)
        for root, _, names in os.walk(temporary, topdown=False):
            for name in [*names, ""]:
                _fsync(Path(root, name))
        if target.exists():
            if not target.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "a file is in its place")
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)  # until the next rename, readers find `old`: see _current
        temporary.rename(target)
        _fsync(target.parent)
    except BaseException as error:
        written = sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file())
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not target.exists():
            with contextlib.suppress(OSError):  # readers find `old`
                old.rename(target)
        cause = error.__cause__ if isinstance(error, Unwritten) else error  # a policy within a checkpoint
        if cause is None or not is_disk_full(cause):
            if isinstance(cause, OSError):
                raise Unwritten(why_unwritten(target, cause)) from cause
            raise
        there = next(parent for parent in target.absolute().parents if parent.is_dir())
        of_arrays = sum(getattr(leaf, "nbytes", 0) for _, leaf in tree_leaves(as_tree(state, lists=True)))
        needed, free = max(of_arrays, written), shutil.disk_usage(there).free
        raise Unwritten(f"The disk is full: {target} needs more than {needed:,} bytes, {free:,} are free.") from cause
    shutil.rmtree(old, ignore_errors=True)
    return target


def _write(folder: Path, index: str, state: object, entries: Entries, extra_writer: ExtraWriter) -> None:
    stem = _STEM[index]
    tensors: dict[str, Array] = {}
    others: list[Array] = []
    structure = encode(state, "", tensors, others)
    if tensors:
        write_arrays(folder / f"{stem}.safetensors", tensors)
    for number, array in enumerate(others):
        (folder / stem).mkdir(exist_ok=True)
        buffer = io.BytesIO()  # np.save into a file hides the error number of a full disk
        np.save(buffer, array, allow_pickle=False)
        (folder / stem / f"{number}.npy").write_bytes(buffer.getbuffer())
    known = (extra_writer(folder) if extra_writer is not None else None) or {}
    head = {"format_version": FORMAT_VERSION, "raypid_version": _raypid_version(), "checksum": _ZEROS, "signature": ""}
    entries = {key: encode(value, key, None, None) for key, value in entries.items()}
    names = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {
        name: {"bytes": path.stat().st_size, "sha256": known.get(name) or sha256_of(path)}
        for name, path in names.items()
    }
    body = {**head, **entries, "files": files, "state": structure}
    text = json.dumps(body, indent=1, allow_nan=False)
    signature = sign(index, hashlib.sha256(text.encode()).hexdigest())
    text = text.replace('"signature": ""', f'"signature": "{signature}"', 1)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    (folder / index).write_text(text.replace(_ZEROS, checksum, 1), encoding="utf-8")


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a safetensors file of contiguous arrays."""
    from safetensors.numpy import save  # save_file makes files that only their owner may read, and hides error numbers

    path.write_bytes(save(dict(arrays)))


def _raypid_version() -> str:
    return str(sys.modules["raypid"].__version__)  # the package may not be imported from here


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _current(path: Path) -> Path:
    """`path`, or the folder that it replaces if a crash came between the two renames."""
    old = path.with_name(f".old-{path.name}") if path.name else path
    return old if os.path.isdir(old) and not os.path.exists(path) else path


def _read_state(path: Path, index: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Read the state that the `entries` of a verified JSON file describe."""
    from safetensors.numpy import load_file

    folder, stem = _current(path), _STEM[index]
    with refusing(f"The {_KIND[index]} {path}"):
        tensors = f"{stem}.safetensors"
        arrays: dict[str, Array] = load_file(folder / tensors) if tensors in entries["files"] else {}
        matches = [match for name in entries["files"] if (match := re.fullmatch(rf"{stem}/(\d{{1,9}})\.npy", name))]
        others = {int(match[1]): read_npy(folder / match[0]) for match in matches}
        state = decode(entries["state"], arrays, others)
        if not isinstance(state, dict):
            raise ValueError(f"the state in {index} is not a mapping")
        return state


def _manifest(saved: Mapping[str, Any]) -> Manifest:
    """Return the caller's entries of the JSON file, checked.

    Raises:
        ValueError: names one that is of the wrong type, or a counter that is missing or cannot be. (Larger ones than 2^53 would not be
            exact as results.)
    """
    entries: Any = decode({key: value for key, value in saved.items() if key != "state"}, {}, {})
    kinds: dict[str, tuple[type, ...]] = {
        "algorithm": (str,), "program": (str,), "config": (dict,), "counters": (dict,), "score": (int, float, type(None)),
        CHANGES: (list,),
    }  # fmt: skip
    for name, allowed in kinds.items():
        if name in entries and type(entries[name]) not in allowed:
            raise ValueError(f"{name} in manifest.json is {shown(entries[name])}")
    if (counters := entries.get("counters")) is not None:
        for name, value in {**dict.fromkeys(COUNTERS), **counters}.items():
            if type(value) not in (int, float) or not 0 <= value < 2**53:
                raise ValueError(f"the counter {name!r} in manifest.json is {shown(value)}")
    read_changes(entries.get(CHANGES))
    if "config" in entries:
        entries["config"] = as_it_was(entries["config"], entries.get("algorithm"))
    manifest: Manifest = entries
    return manifest


def confined(folder: Path, name: object) -> Path:
    """The file `name` in `folder`.

    Raises:
        ValueError: the name leads out of the folder, or is a link that does.
    """
    parts = PureWindowsPath(name) if isinstance(name, str) else PureWindowsPath("..")  # takes "/" and "\\" alike
    if not parts.name or parts.drive or parts.root or ".." in parts.parts:
        raise ValueError(f"{shown(name)} is not the name of a file in it")
    file = folder / str(name)
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name} is a link that leads out of it")
    return file


def read_json(file: Path) -> Any:
    """Parse a JSON file. Its values are as many as somebody saved, so only its bytes are bounded.

    Raises:
        ValueError: it is too large, nested too deep, or not JSON.
    """
    if (size := file.stat().st_size) > MAX_JSON_BYTES:
        raise ValueError(f"{file.name} has {size:,} bytes, more than {MAX_JSON_BYTES:,}")
    return parse_json(file.read_bytes())


def _verify(path: Path, index: str) -> dict[str, Any]:
    """Compare every file with the JSON file and return its entries; errors name the file and what is wrong with it."""
    folder = _current(path)
    entries = _read_index(folder, index)
    with refusing(f"The {_KIND[index]} {path}"):
        replay = [p.relative_to(folder).as_posix() for p in (folder / REPLAY).rglob("*") if not p.is_dir()]
        for name, expected in entries["files"].items():
            if replay or not name.startswith(f"{REPLAY}/"):  # when a newer checkpoint is there, the replay is removed
                _verify_file(folder, name, int(expected["bytes"]), expected["sha256"])
        unknown = set(replay) - entries["files"].keys()
        if unknown and entries["format_version"] >= 2:
            raise ValueError(f"{min(unknown)} is not in {index}")
    return entries


def _verify_file(folder: Path, name: str, saved_size: int, checksum: str) -> None:
    """Compare a file with its saved size and checksum.

    Raises:
        ValueError: it is missing, was cut short or altered, or does not lie in the folder.
    """
    file = confined(folder, name)
    if not file.is_file():
        raise ValueError(f"{name} is missing")
    size = file.stat().st_size
    if size < saved_size:
        raise ValueError(f"{name} is truncated, {size:,} of {saved_size:,} bytes")
    if size > saved_size or (not _ROWS.fullmatch(name) and sha256_of(file) != checksum):
        raise ValueError(f"{name} was altered (its checksum does not match)")


def _read_index(folder: Path, index: str) -> dict[str, Any]:
    """Parse the JSON file, refuse newer formats and verify its checksum; the state stays encoded."""
    kind = _KIND[index]
    damaged = f"The {kind} {folder} is damaged: {index}"
    if not folder.exists():
        raise CheckpointError(f"There is no {kind} at {folder}.")
    if not (folder / index).is_file():
        raise CheckpointError(f"{folder} is not a {kind}: it has no {index}; found there: {_contents(folder)}.")
    try:
        entries = read_json(confined(folder, index))
        text = (folder / index).read_bytes()
        version, checksum = entries["format_version"], entries["checksum"]
        if type(version) is not int or version < 1 or not re.fullmatch("[0-9a-f]{64}", checksum):
            raise ValueError(f"format {shown(version)}, checksum {shown(checksum)}")
        if not all(isinstance(expected, dict) for expected in entries["files"].values()):
            raise ValueError("it does not say which files there are")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{damaged} is truncated or altered, {_reason(error)}.") from error
    if version > FORMAT_VERSION:
        what = f"The {kind} {folder} has format {version}, written by raypid {entries.get('raypid_version', 'unknown')}"
        here = f"this is raypid {_raypid_version()}, which reads up to format {FORMAT_VERSION}"
        raise CheckpointError(f"{what}; {here}. Update raypid.")
    text = text.replace(checksum.encode(), _ZEROS.encode(), 1)
    if hashlib.sha256(text).hexdigest() != checksum:
        raise CheckpointError(f"{damaged} was altered (its checksum does not match).")
    signature = str(entries.get("signature", ""))  # none in folders of earlier versions
    unsigned = text.replace(signature.encode("utf-8", "replace"), b"", 1) if signature else text
    entries["signed"] = is_signed(index, hashlib.sha256(unsigned).hexdigest(), signature)
    return entries


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _contents(path: Path) -> str:
    if not path.is_dir():
        return "a file"
    return listed(sorted(p.name for p in path.iterdir())) or "nothing"


def find_policy(path: Path | str) -> Path:
    """Find the policy folder that `path` stands for: a policy folder, or the policy of a checkpoint or a run.

    A run's policy is its best one, or that of the newest checkpoint if there was no evaluation.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(path)
    for folder in (path, path / BEST, path / OLD_BEST):  # a checkpoint's own policy is called policy too
        if os.path.exists(folder / "policy.json"):
            return folder
    return open_checkpoint(path).path / "policy"
