"""Settings that searches have found, under names of the user's: `--tuned NAME` on the command line, `tuned="NAME"` in Python.

Each is a JSON file in the user's data folder: algorithm, environment, settings, what they reached. The path of such a file, or of a
search's folder, does in place of a name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raypid.errors import UserError, shown
from raypid.plugins.registry import meant, suggest
from raypid.settings.marked import read_marked
from raypid.storage.neighbours import near
from raypid.storage.outputs import explained, write_whole
from raypid.storage.ownership import data_folder

BEST = "best.json"
"""The file in a search's folder."""
_KEYS = {"algorithm": str, "env": str, "settings": dict}
"""What every file has."""


def check_name(name: str) -> str:
    """Return a name that settings can be saved under.

    Raises:
        UserError: it has other characters than a file's name should.
    """
    if not re.fullmatch(r"\w[\w.-]{0,99}", name) or name.endswith(".json"):
        raise UserError(f"A name for settings has up to 100 letters, digits, _ . -, and no .json: not {shown(name)}.")
    return name


def free_name(wanted: str) -> str:
    """`wanted` without what a name cannot have; with a number if there are settings of that name."""
    plain = re.sub(r"[^\w.-]+", "-", wanted).strip("-.")[:90] or "settings"
    names = (plain if i == 1 else f"{plain}-{i}" for i in range(1, 10_000))
    return next(name for name in names if not _path(name).exists())


def save(name: str, entry: Mapping[str, object]) -> Path:
    """Save settings under a name, in place of earlier ones; returns the file.

    Raises:
        UserError: the name cannot be one.
        Unwritten: the file cannot be written.
    """
    path = _path(check_name(name))
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(entry, indent=2) + "\n")
    return path


def names() -> list[str]:
    """The names under which settings are saved."""
    return sorted(path.stem for path in _path("x").parent.glob("*.json"))


def load(name: str) -> dict[str, Any]:
    """The settings of a name, a file or a search's folder: a dict with algorithm, env, settings, and what else the search wrote.

    Raises:
        UserError: there are none, or the file cannot be read or does not hold any.
    """
    path, given = _path(name), Path(name)
    if name.endswith(".json") or "/" in name or (given.is_dir() and not path.is_file()):
        path = given / BEST if given.is_dir() else given
        if not path.is_file():
            raise UserError(f"There is no file {path}.{near(path)}")
    elif not path.is_file():
        there = f"{meant(suggest(name, names()))} `raypid list tuned` shows those that there are."
        raise UserError(f"There are no tuned settings called {name!r}.{there}")
    entry = read_marked(path).values
    if any(not isinstance(entry.get(key), kind) for key, kind in _KEYS.items()):
        raise UserError(f"{path} holds no tuned settings, which have algorithm, env and settings.")
    return entry


def settings_for(name: str, run: str, env: object) -> dict[str, object]:
    """The settings of a name or a file, for an algorithm and an environment.

    Raises:
        UserError: there are none, or they are for another algorithm or environment.
    """
    entry = load(name)
    if (entry["algorithm"], entry["env"]) != (run, env):
        theirs = f"{entry['algorithm']} on {entry['env']}"
        raise UserError(
            f"The settings {name!r} are for {theirs}, not for {run} on {shown(env)}. Try them there as config: "
            f"{json.dumps(entry['settings'])}."
        )
    return dict(entry["settings"])


def described(name: str, width: int = 0) -> str:
    """A line of `raypid list tuned`, with so many columns for the environment."""
    try:
        entry = load(name)
    except UserError as error:
        return str(error)
    return f"{entry['algorithm']:7} {entry['env']:{width}}  {entry.get('reached', 'no word of what they reached')}: --tuned {name}"


def _path(name: str) -> Path:
    return data_folder() / "tuned" / f"{name}.json"
