"""A project: a folder of the user's own environments, models and agents, which a command that runs in it finds by name.

`raypid init PROJECT` makes one. Its folders `envs`, `models` and `agents` hold modules whose classes register themselves;
`options/custom_options.py` has `get_custom_args(parser)`, which declares command-line options for all of them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from raypid.errors import CodeError, UserError
from raypid.ownership import MARKER, project_of

FOLDERS = ("envs", "models", "agents")
OPTIONS = "options/custom_options.py"

_loaded: Path | None = None
get_custom_args: Callable[[argparse.ArgumentParser], object] | None = None
"""Of the project that was loaded, if it has one."""


def load_project(place: Path | str = ".", *, trust: bool = False) -> Path:
    """Import the modules of the project that `place` lies in, so that what they register is known; returns its folder.

    Args:
        trust: import them though this user has not made the project here: a copy, a clone, or somebody else's.

    Raises:
        UserError: `place` lies in no project, or in one that this user has not made; a module has a syntax error, or another
            package hides it.
        CodeError: a module raised.
    """
    root = foreign_project(Path(place)) if trust else None
    root = root or project_of(Path(place))
    if root is None:
        foreign = foreign_project(Path(place))
        if foreign is None:
            raise UserError(f"{place} lies in no project: `raypid init FOLDER` makes one.")
        raise UserError(
            f"{foreign} is a project that you have not made here (a copy, a clone, or somebody else's): `raypid init {foreign}` makes it "
            "yours, trust=True imports it once."
        )
    _load(root)
    return root


def find_project(place: Path) -> None:
    """Import the project that `place` lies in, if it lies in one that this user has made."""
    root = project_of(place)
    if root is not None:
        _load(root)


def _load(root: Path) -> None:
    global _loaded, get_custom_args
    if root == _loaded:
        return
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    for folder in FOLDERS:
        for file in sorted((root / folder).glob("[!_]*.py")):
            _import(root, file)
    get_custom_args = None
    if (root / OPTIONS).is_file():
        get_custom_args = getattr(_import(root, root / OPTIONS), "get_custom_args", None)
    _loaded = root


def loaded() -> Path | None:
    """The folder of the project that was loaded."""
    return _loaded


def foreign_project(place: Path) -> Path | None:
    """A project's folder that `place` lies in and that this user has not made, if there is one."""
    place = place.resolve()
    if project_of(place) is not None:
        return None
    return next((folder for folder in (place, *place.parents) if (folder / MARKER).is_file()), None)


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
        raise UserError(
            f"{file} is hidden by another module of the name {name!r} ({found}): rename the folder or uninstall that package."
        )
    return module
