"""Checkpoints and policy folders: written beside and renamed into place, checked before use, never a pickle.

    checkpoint_000123/                    policy/
        manifest.json                         policy.json
        state.safetensors                     policy.safetensors
        state/0.npy ...                       (the same format, self-contained)
        policy/ ...

The JSON file holds the format's version, the entries given, the state's structure with all that is no
array, and the size and SHA-256 of every other file; its own checksum is taken with the field filled
with zeros. Arrays lie in the safetensors file; those of a dtype that it cannot hold are .npy files.
One writer for each parent folder. Readers need nothing but NumPy and safetensors.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from raypid.errors import UserError
from raypid.state_tree import decode, encode, num_bytes
from raypid.types import Array

FORMAT_VERSION = 1
BEST = "best"
"""Where a run's folder has its best policy."""
OLD_BEST = "policy"
"""Where runs of earlier versions have it."""
_NAME = re.compile(r"checkpoint_(\d{6,})")
_STEM = {"manifest.json": "state", "policy.json": "policy"}
REPLAY = "replay"
"""Folder of the replay buffer inside a checkpoint. It has checksums of its own and stays with the newest checkpoint only."""
_KIND = {"manifest.json": "checkpoint", "policy.json": "policy"}
_ZEROS = "0" * 64
ExtraWriter: TypeAlias = Callable[[Path], None] | None


class CheckpointError(UserError):
    """A checkpoint or policy that is missing, damaged, of a newer format, or none at all."""


def checkpoint_name(training_iteration: int) -> str:
    """The folder's name: "checkpoint_000123"."""
    return f"checkpoint_{training_iteration:06d}"


def save_checkpoint(
    parent: Path | str,
    name: str,
    state: dict[str, Any],
    *,
    manifest: dict[str, Any],
    extra_writer: ExtraWriter = None,
) -> Path:
    """Write `parent/name` so that a crash at any point leaves either the old folder or the new one.

    Args:
        state: nested dicts (string keys) and lists of arrays and JSON values; floats may be nan or inf,
            integers of any size, a tuple becomes a list, a NumPy scalar a Python number.
        manifest: entries for manifest.json: config, counters, `score` (higher is better; None: unknown).
        extra_writer: called with the folder before it gets its name, to write more files (the policy).

    Raises:
        RuntimeError: the disk is full; nothing is left of the attempt.
        TypeError: a leaf that cannot be saved, named by its path.
    """
    target = Path(parent) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target.parent, "*")
    return _put_in_place(target, "manifest.json", state, manifest, extra_writer)


def load_checkpoint(path: Path | str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read (state, manifest); every size and checksum is verified before anything is used.

    Raises:
        CheckpointError: missing, truncated, altered, of a newer format, or no checkpoint.
    """
    return _read(Path(path), "manifest.json")


def read_manifest(path: Path | str) -> dict[str, Any]:
    """The manifest alone (without the state), itself verified; the other files are not looked at.

    Raises:
        CheckpointError: as `load_checkpoint`.
    """
    manifest = _read_index(_standing(Path(path)), "manifest.json")
    del manifest["state"]
    return dict(decode(manifest, {}, Path(path)))


def list_checkpoints(parent: Path | str) -> list[Path]:
    """The checkpoints of a folder, oldest first; empty where there is none."""
    parent = Path(parent)
    if not parent.is_dir():
        return []
    names = {p.name.removeprefix(".old-") for p in parent.iterdir() if p.is_dir()}
    numbered = [(int(match[1]), name) for name in names if (match := _NAME.fullmatch(name))]
    return [parent / name for _, name in sorted(numbered)]


def latest(parent: Path | str) -> Path | None:
    """The checkpoint of the highest training iteration."""
    return next(reversed(list_checkpoints(parent)), None)


def best(parent: Path | str) -> Path | None:
    """The checkpoint of the highest score, of equal ones the newest; None where no score is known."""
    return _best(_readable(parent))


def prune(parent: Path | str, keep: int) -> list[Path]:
    """Remove all but the newest `keep` checkpoints and the best; those with an unreadable manifest stay, uncounted.

    Returns:
        The folders that were removed.
    """
    if keep < 1:
        raise ValueError(f"keep must be 1 or more, not {keep}.")
    _sweep(Path(parent), "*")
    readable = _readable(parent)
    kept = {*list(readable)[-keep:], _best(readable)}
    removed = [path for path in readable if path not in kept]
    for path in removed:
        doomed = path.with_name(f".tmp-{path.name}-{os.getpid()}")
        _standing(path).rename(doomed)  # half a removal must not look like a damaged checkpoint
        shutil.rmtree(doomed, ignore_errors=True)
    return removed


def find(path: Path | str) -> Path:
    """The checkpoint meant by a run folder or a folder of checkpoints (its newest one) or a checkpoint, verified.

    Raises:
        CheckpointError: there is none, or it is damaged; the message then names the newest intact one.
    """
    path = Path(path)
    is_named = _NAME.fullmatch(path.name) is not None and _standing(path).is_dir()
    if is_named or (_standing(path) / "manifest.json").is_file():
        chosen = path
    elif not path.exists():
        raise CheckpointError(f"There is nothing at {path}.")
    else:
        parent = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        newest = latest(parent)
        if newest is None:
            raise CheckpointError(
                f"{path} holds no checkpoint (a run writes its first after about a minute); found there: {_found(path)}."
            )
        chosen = newest
    try:
        _verify(chosen, "manifest.json")
    except CheckpointError as error:
        raise CheckpointError(f"{error} {_hint(chosen)}") from error
    return chosen


def _hint(damaged: Path) -> str:
    for other in reversed(list_checkpoints(damaged.parent)):
        with contextlib.suppress(CheckpointError):
            _verify(other, "manifest.json")
            return f"The newest intact checkpoint beside it is {other}."
    return "No intact checkpoint lies beside it."


def _readable(parent: Path | str) -> dict[Path, dict[str, Any]]:
    manifests = {}
    for path in list_checkpoints(parent):
        with contextlib.suppress(CheckpointError):
            manifests[path] = read_manifest(path)
    return manifests


def _best(manifests: dict[Path, dict[str, Any]]) -> Path | None:
    scores = {path: m["score"] for path, m in manifests.items() if m.get("score") is not None}
    scores = {path: score for path, score in scores.items() if not math.isnan(score)}
    return max(reversed(scores), key=scores.__getitem__, default=None)


def write_policy(folder: Path | str, spec: dict[str, Any], arrays: dict[str, Array]) -> Path:
    """Write one self-contained policy, policy.json and policy.safetensors, in place of what was at `folder`.

    Raises:
        RuntimeError: the disk is full; the old folder is untouched.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent, folder.name)
    return _put_in_place(folder, "policy.json", arrays, {"spec": spec}, None)


def read_policy(folder: Path | str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read (spec, arrays) of a policy folder, verified.

    Raises:
        CheckpointError: missing, truncated, altered, of a newer format, or no policy.
    """
    arrays, entries = _read(Path(folder), "policy.json")
    return entries["spec"], arrays


def _sweep(parent: Path, name: str) -> None:
    """Remove what killed writers left: unfinished folders, and replaced ones whose successor is in place."""
    stale = [old for old in parent.glob(f".old-{name}") if (parent / old.name.removeprefix(".old-")).exists()]
    for leftover in [*parent.glob(f".tmp-{name}-*"), *stale]:
        shutil.rmtree(leftover, ignore_errors=True)


def _put_in_place(target: Path, index: str, state: Any, entries: dict[str, Any], extra_writer: ExtraWriter) -> Path:
    """Write a folder beside `target`, then give it the name; what stood there goes last."""
    temporary = target.with_name(f".tmp-{target.name}-{os.getpid()}")
    old = target.with_name(f".old-{target.name}")
    try:
        temporary.mkdir()
        _write(temporary, index, state, entries, extra_writer)
        for root, _, names in os.walk(temporary, topdown=False):
            for name in [*names, ""]:
                _fsync(Path(root, name))
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)  # from here to the next line readers take `old`, see _standing
        temporary.rename(target)
        _fsync(target.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not target.exists():
            old.rename(target)
        if not _is_disk_full(error):
            raise
        needed, free = num_bytes(state), shutil.disk_usage(target.parent).free
        raise RuntimeError(f"The disk is full: {target} needs about {needed:,} bytes, {free:,} are free.") from error
    shutil.rmtree(old, ignore_errors=True)
    return target


def _write(folder: Path, index: str, state: Any, entries: dict[str, Any], extra_writer: ExtraWriter) -> None:
    from safetensors.numpy import save_file

    stem = _STEM[index]
    tensors: dict[str, Array] = {}
    others: list[Array] = []
    structure = encode(state, "", tensors, others)
    if tensors:
        save_file(tensors, folder / f"{stem}.safetensors")
    for number, array in enumerate(others):
        (folder / stem).mkdir(exist_ok=True)
        buffer = io.BytesIO()  # np.save to a file hides the error number of a full disk
        np.save(buffer, array, allow_pickle=False)
        (folder / stem / f"{number}.npy").write_bytes(buffer.getbuffer())
    if extra_writer is not None:
        extra_writer(folder)
    head = {"format_version": FORMAT_VERSION, "raypid_version": _raypid_version(), "checksum": _ZEROS}
    assert not {"format_version", "checksum", "files", "state"} & set(entries)
    entries = {key: encode(value, key, None, None) for key, value in entries.items()}
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] != REPLAY
    }
    body = {**head, **entries, "files": files, "state": structure}
    text = json.dumps(body, indent=1, allow_nan=False)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    (folder / index).write_text(text.replace(_ZEROS, checksum, 1), encoding="utf-8")


def _raypid_version() -> str:
    try:
        return importlib.metadata.version("raypid")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _is_disk_full(error: BaseException) -> bool:
    # safetensors writes in Rust and raises its own error, with the number in the text
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return type(error).__name__ == "SafetensorError" and any(f"os error {n})" in str(error) for n in (28, 122))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _standing(path: Path) -> Path:
    """`path`, or the old folder where a crash fell between the two renames of a replacement."""
    old = path.with_name(f".old-{path.name}") if path.name else path
    return old if old.is_dir() and not path.exists() else path


def _read(path: Path, index: str) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors.numpy import load_file

    folder = _standing(path)
    manifest = _verify(path, index)
    tensors = folder / f"{_STEM[index]}.safetensors"
    arrays = load_file(tensors) if tensors.name in manifest["files"] else {}
    state = decode(manifest.pop("state"), arrays, folder / _STEM[index])
    return state, decode(manifest, {}, folder)


def _verify(path: Path, index: str) -> dict[str, Any]:
    """Compare every file with the index; the error names the file and what is wrong with it."""
    folder, kind = _standing(path), _KIND[index]
    manifest = _read_index(folder, index)
    for name, expected in manifest["files"].items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"The {kind} {path} is damaged: {name} is missing.")
        size = file.stat().st_size
        if size < expected["bytes"]:
            message = f"{name} is truncated, {size:,} of {expected['bytes']:,} bytes"
            raise CheckpointError(f"The {kind} {path} is damaged: {message}.")
        if size > expected["bytes"] or sha256_of(file) != expected["sha256"]:
            raise CheckpointError(f"The {kind} {path} is damaged: {name} was altered (its checksum does not match).")
    return manifest


def _read_index(folder: Path, index: str) -> dict[str, Any]:
    """Parse the JSON file, refuse newer formats, verify its own checksum; the state stays encoded."""
    kind = _KIND[index]
    if not folder.exists():
        raise CheckpointError(f"There is no {kind} at {folder}.")
    if not (folder / index).is_file():
        raise CheckpointError(f"{folder} is no {kind}: it has no {index}; found there: {_found(folder)}.")
    text = (folder / index).read_bytes()
    try:
        manifest = json.loads(text)
        version, checksum = int(manifest["format_version"]), str(manifest["checksum"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"The {kind} {folder} is damaged: {index} is truncated or altered, {error}.") from error
    if version > FORMAT_VERSION:
        writer = manifest.get("raypid_version", "unknown")
        raise CheckpointError(
            f"The {kind} {folder} has format {version}, written by raypid {writer}; "
            f"this is raypid {_raypid_version()}, which reads up to format {FORMAT_VERSION}. Update raypid."
        )
    if hashlib.sha256(text.replace(checksum.encode(), _ZEROS.encode(), 1)).hexdigest() != checksum:
        raise CheckpointError(f"The {kind} {folder} is damaged: {index} was altered (its checksum does not match).")
    return dict(manifest)


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _found(path: Path) -> str:
    if not path.is_dir():
        return "a file"
    names = sorted(p.name for p in path.iterdir())
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "nothing"


def find_policy(path: Path | str) -> Path:
    """The policy folder meant by a run folder (its best policy, else its newest checkpoint's), a checkpoint or a policy folder.

    Raises:
        CheckpointError: nothing of the kind is there.
    """
    path = Path(path)
    if (path / "policy.json").exists():
        return path
    for name in (BEST, OLD_BEST):  # a checkpoint's own is called policy too
        if (path / name / "policy.json").exists():
            return path / name
    return find(path) / "policy"
