"""What is this user's own: signatures on what raypid wrote, the mark of a project, and which folders are a run's.

A signature is an HMAC-SHA256 with 32 random bytes that are made once in the user's data folder, never in a run. It says
that this user's raypid wrote a text, wherever the text lies now; it says nothing of what the code that it names does.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from raypid.errors import UserError, reason
from raypid.storage.neighbours import near
from raypid.storage.outputs import replacing

MARKER = ".raypid-project"
"""File in the folder of a project: code in that folder is its user's."""
_SECRET_BYTES = 32


def data_folder() -> Path:
    """The user's data folder for raypid; the environment variable RAYPID_DATA names another."""
    if named := os.environ.get("RAYPID_DATA"):
        return Path(named)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "raypid"


# -- signatures ----------------------------------------------------------------------------------------------------


def why_unsigned() -> str:
    """Why nothing can be signed here, for a message; "" if it can."""
    try:
        _secret(make=True)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: the user has no home
        return str(error)
    return ""


def sign(kind: str, text: str) -> str:
    """Sign `text`, which is of a `kind` such as "policy.json"; "" if there is no secret and none can be made."""
    return "" if why_unsigned() else _signature(_secret(make=False), kind, text)


def is_signed(kind: str, text: str, signature: object) -> bool:
    """Tell whether `signature` is what `sign` gave this user for `text`."""
    try:
        expected = _signature(_secret(make=False), kind, text)
    except (OSError, RuntimeError, ValueError):
        return False
    return isinstance(signature, str) and hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))


SIGNATURE = "signature"
"""Key of the signature in a file that holds a mapping."""


def with_signature(kind: str, values: Mapping[str, object]) -> dict[str, object]:
    """Add a signature to what a JSON file will hold; none if nothing can be signed here."""
    signature = sign(kind, _text_of(values))
    return {**values, SIGNATURE: signature} if signature else dict(values)


def has_signature(kind: str, values: Mapping[str, object]) -> bool:
    """Tell whether `with_signature` of this user's made what a file holds."""
    return is_signed(kind, _text_of(values), values.get(SIGNATURE))


def _text_of(values: Mapping[str, object]) -> str:
    return json.dumps({key: value for key, value in values.items() if key != SIGNATURE}, sort_keys=True)


def _signature(secret: bytes, kind: str, text: str) -> str:
    return hmac.new(secret, f"raypid {kind}\n{text}".encode(), hashlib.sha256).hexdigest()


def _secret(*, make: bool) -> bytes:
    """Read the user's secret, or `make` one if there is none. Raises OSError, or ValueError if the file is not a
    secret."""
    path = data_folder() / "secret"
    if make and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_name(f".secret-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # two processes may be first: the secret of one stays
                os.link(new, path)
        finally:
            new.unlink(missing_ok=True)
    secret = path.read_bytes()
    if len(secret) != _SECRET_BYTES:
        raise ValueError(f"{path} is not the secret that raypid made: remove it, then a new one is made")
    if os.name != "nt" and path.stat().st_mode & 0o077:
        raise ValueError(f"others may read {path}: remove it, then a new one is made")
    return secret


# -- projects ------------------------------------------------------------------------------------------------------


def mark_project(folder: Path | str) -> Path:
    """Write the marker that makes `folder` a project of this user's; returns the file.

    The mark holds for this place only: in a copy, a clone or a moved folder it must be made again.

    Raises:
        UserError: it cannot be signed or written.
    """
    marker = Path(folder).resolve() / MARKER
    if why := why_unsigned():
        raise UserError(f"{folder} cannot be marked as your project: {why}. RAYPID_DATA names another data folder.")
    try:
        with replacing(marker) as beside:
            beside.write_text(sign("project", str(marker.parent)) + "\n")
    except OSError as error:
        raise UserError(f"{folder} cannot be marked as your project: {reason(error)}.") from None
    return marker


def project_of(place: Path) -> Path | None:
    """Return the project that contains `place`: the nearest folder with a marker, if this user made the marker
    there."""
    place = place.resolve()
    marked = next((folder for folder in (place, *place.parents) if (folder / MARKER).is_file()), None)
    if marked is None:
        return None
    try:
        token = (marked / MARKER).read_text().strip()
    except (OSError, ValueError):
        return None
    return marked if is_signed("project", str(marked), token) else None


# -- runs' folders -------------------------------------------------------------------------------------------------


def run_folder_of(place: Path, named: Sequence[str] = ()) -> Path | None:
    """Return the folder of the run, checkpoint or policy that contains `place`; None if there is none.

    A run's folder is known by its params.json. One that lacks it counts if `named` has it, the arguments of a command.
    """
    place, given = place.resolve(), _paths(named)
    return next((f for f in (place, *place.parents) if is_run(f) or (f in given and _holds_run(f))), None)


def _paths(arguments: Sequence[str]) -> set[Path]:
    """Return the arguments of a command, such as `--out=DIR`, as paths."""
    paths = set()
    for argument in arguments:
        with contextlib.suppress(ValueError, OSError, RuntimeError):  # no file can be called that, or links in a circle
            paths.add(Path(argument.partition("=")[2] or argument).resolve())
    return paths


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run, a checkpoint or a policy."""
    keys = {"params.json": {"run", "env"}, "policy.json": {"checksum", "spec"}, "manifest.json": {"checksum", "state"}}
    return any(keys[name] <= set(_values(folder / name)) for name in keys)


def _values(path: Path) -> dict[str, object]:
    """Read a JSON file that holds a mapping; {} for any other file."""
    try:
        values = json.loads(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _holds_run(folder: Path) -> bool:
    patterns = ("best/policy.json", "policy/policy.json", "checkpoints/*/manifest.json", "*checkpoint_*/manifest.json")
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def foreign_runs(arguments: Sequence[str]) -> list[Path]:
    """The runs' folders that arguments of a command name, or lie in, and that this user's raypid did not write."""
    runs: set[Path] = set()
    for place in filter(os.path.exists, _paths(arguments)):
        inside = run_folder_of(place, arguments)
        of_experiment = (file.parent for file in place.glob("*/params.json"))
        runs.update(filter(is_run, of_experiment) if inside is None else [inside])
    return [run for run in runs if not _is_own_run(run)]


def _is_own_run(run: Path) -> bool:
    """Whether the params.json of a run, or of the run that a checkpoint or policy lies in, is signed."""
    records = [folder / "params.json" for folder in (run, *run.parents) if "env" in _values(folder / "params.json")]
    return bool(records) and has_signature("params.json", _values(records[0]))


_left_out: Path | None = None
"""Folder of the run that keeps the current folder off the path."""


def put_on_path(arguments: Sequence[str]) -> None:
    """Put the current folder first on the path of modules; not if it is or lies in a run's folder."""
    global _left_out
    here = os.getcwd()
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    _left_out = run_folder_of(Path(here), arguments)
    if _left_out is None:
        sys.path.insert(0, here)


def path_hint(module: str) -> str:
    """Say, for a module that was not found, which file here is nearly called so, or that the current folder was not looked at."""
    if _left_out is None:
        return near(f"{module.replace('.', '/')}.py", files=True)
    return f" The current folder is not looked at: {_left_out} is a run's folder: code is never imported from there."


@contextlib.contextmanager
def outside_of_runs() -> Iterator[None]:
    """Leave the current folder while processes are started, if it is a run's: they would import modules from it."""
    here = Path.cwd()
    if run_folder_of(here) is None:
        yield
        return
    os.chdir(data_folder() if data_folder().is_dir() else here.anchor)
    try:
        yield
    finally:
        os.chdir(here)
