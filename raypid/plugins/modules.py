"""Modules that users name: dotted, as they would be imported, or by their file ("reacher.py", "../envs/reacher.py")."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from raypid.errors import UserError
from raypid.storage.neighbours import near
from raypid.storage.ownership import run_folder_of


def names_file(name: object) -> bool:
    """Return whether a name is a file, "reacher.py", or something in one, "reacher.py:Reach"."""
    return isinstance(name, str) and apart(name)[0].endswith(".py")


def apart(name: str) -> tuple[str, str]:
    """Split "module:Name" or "path/file.py:Name" into module and name; the name is "" if there is none."""
    file, found, attribute = name.rpartition(".py:")
    if found:
        return f"{file}.py", attribute
    if name.endswith(".py"):  # a path may hold a colon, as on Windows
        return name, ""
    module, _, attribute = name.partition(":")
    return module, attribute


def located(name: object) -> object:
    """Return the name of a file, or of something in one, with its absolute path; other names unchanged."""
    if not isinstance(name, str) or not names_file(name):
        return name
    file, attribute = apart(name)
    whole = str(Path(file).expanduser().resolve())
    return f"{whole}:{attribute}" if attribute else whole


imported_files: dict[str, str] = {}
"""Modules that were imported by their file, under a name that no other process knows -> the file."""


moved: dict[str, str] = {}
"""Folders that came from another machine: their path there -> their path here."""


def here(place: str) -> str:
    """Return the local path of a file or folder that came from another machine; other paths unchanged."""
    for folder, new in sorted(moved.items(), key=lambda one: -len(one[0])):
        if place == folder or place.startswith(folder + os.sep):
            return new + place[len(folder) :]
    return place


def name_of(entry: object) -> str:
    """Return "module:name" or "/path/file.py:name", by which another process finds a class or function."""
    module = str(getattr(entry, "__module__", ""))
    qualname: str = getattr(entry, "__qualname__", type(entry).__qualname__)
    return f"{imported_files.get(module, module)}:{qualname}"


def entry_name(entry: object) -> str:
    """A class, function or object as "module:name"; a string as it is."""
    return entry if isinstance(entry, str) else name_of(entry)


def to_json(value: object) -> Any:
    """A value as JSON has it; classes and functions become "module:name"."""
    if isinstance(value, Mapping):
        return {str(key): to_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "tolist"):  # NumPy
        return to_json(value.tolist())
    return str(value) if isinstance(value, Path) else entry_name(value)


def import_named(name: str) -> ModuleType:
    """Import a module by its dotted name or by its file.

    Raises:
        UserError: there is no such file, or it lies in a run's folder. Whatever the module raises, and ImportError.
    """
    return _import_file(Path(name).expanduser().resolve()) if names_file(name) else importlib.import_module(name)


def _import_file(named: Path) -> ModuleType:
    file = Path(here(str(named)))
    if not file.is_file():
        raise UserError(f"There is no file {str(file)!r}.{near(file, files=True)}")
    if (folder := run_folder_of(file.parent)) is not None:
        raise UserError(f"{file} lies in a run's folder ({folder}), from which no code is imported: move it elsewhere.")
    import importlib.util

    known = importlib.util.find_spec(file.stem) if file.stem.isidentifier() and file.stem not in sys.modules else None
    loaded = sys.modules.get(file.stem)
    origin = getattr(loaded, "__file__", None) if loaded is not None else known.origin if known else None
    if origin is not None and Path(origin).resolve() == file:
        return importlib.import_module(file.stem)
    import hashlib

    # another module may have this name, or none can be found: the file's own module has a name that nothing else has
    name = f"{file.stem}_{hashlib.sha256(str(named).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # for what lies beside it; last, so that nothing installed is hidden
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    imported_files[name] = str(named)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def defined(module: ModuleType, accepts: Callable[[type], bool]) -> list[str]:
    """Names of the classes that a module itself defines, and `accepts`."""
    classes = inspect.getmembers(module, inspect.isclass)
    return [name for name, cls in classes if cls.__module__ == module.__name__ and name[0] != "_" and accepts(cls)]
