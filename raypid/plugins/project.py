"""A project: a folder of the user's own environments, models and agents, which a command that runs in it finds by name.

`raypid init PROJECT` makes one, and so does a user who lays out the same files. Its folders `envs`, `models` and `agents` hold modules
whose classes register themselves; `options/custom_options.py` has `get_custom_args(parser)`, which declares command-line options
for all of them.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from raypid.errors import CodeError, UserError
from raypid.storage.ownership import MARKER, foreign_runs, project_of, run_folder_of

FOLDERS = ("envs", "models", "agents")
OPTIONS = "options/custom_options.py"
REGISTERS = re.compile(r"\bregister_(env|model|agent|network)\(\s*[\"']([^\"']+)")
"""A call in the text of a module that registers a class under a name."""

loaded: Path | None = None
"""The folder of the project that was loaded."""
get_custom_args: Callable[[argparse.ArgumentParser], object] | None = None
"""The function of the loaded project that declares options, if it has one."""


def load_project(place: Path | str = ".", *, trust: bool = False) -> Path:
    """Import the modules of the project that `place` lies in, so that what they register is known; returns its folder.

    Args:
        trust: import them though this user has not marked the project here: a copy, a clone, or somebody else's.

    Raises:
        UserError: `place` lies in no project, or in one that this user has not marked; a module has a syntax error, or another
            package hides it.
        CodeError: a module raised.
    """
    place = Path(place).resolve()
    root = project_of(place) or _nearest(place)
    if root is None:
        raise UserError(f"{place} lies in no project: `raypid init FOLDER` makes one.")
    if not (trust or root == project_of(place) or (root == place and _is_laid_out(place))):
        raise UserError(f"{not_imported(root)} trust=True imports it once.")
    _load(root)
    return root


def find_project(place: Path, arguments: Sequence[str] = ()) -> None:
    """Import the project that `place` lies in, if this user has marked it; or `place` itself, if it is laid out as a project.

    A folder without a mark is not imported beside a run that somebody else wrote: both may have come in one archive.

    Args:
        arguments: of the command, which may name runs.
    """
    root = project_of(place)
    if root is None and _is_laid_out(place) and not foreign_runs(arguments):
        root = place.resolve()
    if root is not None:
        _load(root)


def _is_laid_out(folder: Path) -> bool:
    """Return whether an unmarked folder has the layout of a project: a custom_*.py in one of FOLDERS that registers
    something."""
    if (folder / MARKER).exists() or run_folder_of(folder) is not None:
        return False
    return any(registered(file) for name in FOLDERS for file in (folder / name).glob("custom_*.py"))


def registered(file: Path) -> dict[str, str]:
    """Read from the text of a module what it registers: "env", "model", "agent" or "network" -> the first name."""
    text = file.read_text(errors="replace") if file.is_file() else ""
    return dict(reversed(REGISTERS.findall(text)))


def _load(root: Path) -> None:
    global loaded, get_custom_args
    if root == loaded:
        return
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    for folder in FOLDERS:
        for file in sorted((root / folder).glob("[!_]*.py")):
            _import(root, file)
    get_custom_args = None
    if (root / OPTIONS).is_file():
        get_custom_args = getattr(_import(root, root / OPTIONS), "get_custom_args", None)
    loaded = root


def foreign_project(place: Path) -> Path | None:
    """Return the project that contains `place` and was not imported, because this user has not marked it; None if there
    is none."""
    place = place.resolve()
    nearest = _nearest(place) if project_of(place) is None else None
    return nearest if nearest != loaded else None


def _nearest(place: Path) -> Path | None:
    return next((f for f in (place, *place.parents) if (f / MARKER).is_file() or _is_laid_out(f)), None)


def not_imported(project: Path) -> str:
    """Say that nothing of a `foreign_project` was imported, and what changes that."""
    return (
        f"Nothing of {project} was imported: it is a project without your mark (laid out by hand, a copy, a clone, or somebody else's). "
        f"Read its code, then `raypid init {shlex.quote(str(project))}` marks it."
    )


def _import(root: Path, file: Path) -> ModuleType:
    relative = file.relative_to(root)
    name = ".".join(relative.with_suffix("").parts)
    try:
        module = importlib.import_module(name)
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(f"{error.filename}:{error.lineno}: {error.msg}.") from None
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if Path(f.filename).is_relative_to(root)] or frames
        raise CodeError.after(own, error, f"{relative} of the project cannot be imported.") from None
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != file.resolve():
        raise UserError(f"{file} is hidden by another module of the name {name!r} ({found}): rename its folder.")
    return module
