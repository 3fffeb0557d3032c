"""What lies near a path at which nothing is, and names of files where folders are meant: for the messages that say so."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from raypid.errors import UserError, listed, shown

MOST_NAMES = 1000
"""Most names of a folder that are compared."""
_MOST_TOLD = 5
_RUNS = Path("runs")
"""Folder of runs without --out."""
_MARKS = ("params.json", "result.json", "checkpoints", "experiment.json", "study.log")
"""Files that mark the folder of a run, an experiment or a search."""
_FILE_ENDINGS = frozenset(
    ".zip .pt .pth .pkl .pickle .ckpt .h5 .keras .onnx .npz .npy .safetensors .tar .gz .joblib .msgpack .json .yaml .yml".split()
)
"""Endings of files in which programs save models and settings."""


def nothing_at(path: str | os.PathLike[str]) -> str:
    """Say that nothing is at a path, and what lies near: another folder or file, or the runs beside it."""
    return f"There is nothing at {shown(str(path))}.{near(path)}"


def near(path: str | os.PathLike[str], *, files: bool = False) -> str:
    """The end of a message that nothing is at a path: what may be meant; "" if nothing lies near.

    Args:
        files: a file is looked for, so no folder is meant.
    """
    path = Path(path)
    try:
        if found := _meant(path, files) or _meant(_RUNS / path, files):
            return f" Did you mean {shown(str(found))}?"
        if path.parent.is_dir():
            return "" if files else _runs_in(path.parent) or _runs_in(_RUNS)
    except (OSError, ValueError):  # a name that no file can have
        return ""
    return f" There is no folder {shown(str(path.parent))} either."


def _meant(path: Path, files: bool) -> Path | None:
    """Find an existing path that is nearly this one; also its folders may be misspelt."""
    parent = path.parent if path.parent.is_dir() else _meant(path.parent, False) if path.name else None
    if parent is None:
        return None
    if not files and (parent / path.name).exists():
        return parent / path.name
    names = sorted(entry.name for entry in os.scandir(parent) if entry.is_file() or not files)[:MOST_NAMES]
    same = [name for name in names if name.lower() == path.name.lower() or os.path.splitext(name)[0] == path.stem]
    found = same or difflib.get_close_matches(path.name, names, 1, 0.75)
    return parent / found[0] if found else None


def _runs_in(folder: Path) -> str:
    """The end of a message that names the runs in a folder; "" if there are none."""
    entries = sorted(folder.iterdir())[:MOST_NAMES] if folder.is_dir() else []
    runs = [entry.name for entry in entries if any((entry / mark).exists() for mark in _MARKS)]
    return f" In {shown(str(folder))} there is {listed(runs, _MOST_TOLD)}." if runs else ""


def refuse_file(path: str | os.PathLike[str], kind: type[UserError] = UserError) -> None:
    """Refuse what is no folder where one of raypid is to be read: nothing, or a file, such as the model of another library.

    Raises:
        UserError: there is nothing, or it is a file; of this `kind`.
    """
    if not os.path.exists(path):
        raise kind(nothing_at(path))
    if os.path.isfile(path):
        folder, told = Path(path).parent, "Models of other libraries cannot be loaded."
        if any((folder / name).is_file() for name in ("policy.json", "manifest.json", "params.json")):
            told = f"Give the folder that it lies in: {shown(str(folder))}."
        raise kind(f"{shown(str(path))} is a file; runs, checkpoints and policies are folders. {told}")


def check_folder(call: str, folder: object) -> str:
    """Check the path of a folder; `call` begins the message.

    Raises:
        UserError: it is no path.
    """
    if isinstance(folder, (str, os.PathLike)) and isinstance(path := os.fspath(folder), str) and path:
        return path
    raise UserError(f"{call}: folder must be the path of a folder, not {shown(folder)}.")


def refuse_file_name(folder: str | os.PathLike[str], what: str) -> None:
    """Refuse the name of a file for a folder that will be written.

    Args:
        what: begins the message: what takes the folder.

    Raises:
        UserError: its ending is that of a file, and no such folder is there.
    """
    path = Path(folder)
    if path.suffix.lower() in _FILE_ENDINGS and not path.is_dir():
        given, meant = shown(str(path)), shown(str(path.with_suffix("")))
        raise UserError(f"{what}: {given} is the name of a file, and a folder will be written. Give {meant}.")
