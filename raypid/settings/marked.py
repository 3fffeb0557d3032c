"""A YAML or JSON file as plain values, with the line of each."""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from raypid.errors import ConfigError, reason, shown
from raypid.storage.neighbours import near
from raypid.storage.plain_data import check_events, check_size, read_json

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 10_000_000
"""Size of the largest file that is read."""
Keys = tuple[str | int, ...]
_FLOAT = re.compile(r"[-+]?((\d+(\.\d*)?|\.\d+)[eE][-+]?\d+|(\d+\.\d*|\.\d+))\Z")
"""What YAML 1.2 and JSON read as a number with a fraction or an exponent; YAML 1.1 takes 1e-3 for text."""


@dataclass(frozen=True, slots=True)
class Marked:
    """What a file holds, and where."""

    path: str
    values: dict[str, object]
    lines: Mapping[Keys, int] = field(default_factory=dict)
    """Keys from the outermost inwards -> line, from 1."""

    def line(self, keys: Keys) -> int:
        """The line of what lies at these keys, or of what is around it."""
        return next((self.lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in self.lines), 1)


def read_marked(path: str | Path) -> Marked:
    """Read a file whose outermost value is a mapping; a name that ends in .json is JSON, any other YAML.

    Raises:
        ConfigError: there is no such file (`check_file`), it cannot be read, is too large, or a key is no text or stands twice. The
            message begins with the file, and the line where one is known.
    """
    name = str(path)
    check_file(name)
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        text = raw.decode("utf-8-sig")
        marked = _read_json(name, text) if name.endswith(".json") else _read_yaml(name, text)
    except ConfigError:
        raise
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is no text file (byte {error.start:,} is not UTF-8): give YAML or JSON.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} cannot be read: {reason(error)}.") from None
    for keys, value in _leaves(marked.values, ()):
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{name}:{marked.line(keys)}: {keys[-1]} is not a number (NaN).")
        if not isinstance(value, str | int | float | None):
            raise ConfigError(
                f"{name}:{marked.line(keys)}: {keys[-1]} is a {type(value).__name__}: quote it to make it text."
            )
    return marked


def check_file(name: str) -> None:
    """Check that there is a file of this name that may hold settings.

    Raises:
        ConfigError: it is a web address, a folder, code, or there is none; the message has the nearest name in that folder.
    """
    given = shown(name)
    if re.match(r"\w+://", name):
        raise ConfigError(f"{given} is a web address, and files are read from this machine alone: download it first.")
    if os.path.isdir(name):
        raise ConfigError(f"{given} is a folder: name a file. {_in_folder(name)}")
    if not os.path.exists(name):
        raise ConfigError(f"There is no file {given}.{near(name, files=True)}")
    if not os.path.isfile(name):
        raise ConfigError(f"There is no file {given}: it is a device or a pipe.")
    if name.endswith((".py", ".ipynb")):
        raise ConfigError(f"{given} is code, not settings: run it with Python, or give a YAML or JSON file.")


def _in_folder(name: str) -> str:
    """What to do with a folder that was given in place of a file."""
    folder = Path(name)
    run = next((place for place in (folder, *folder.parents) if (place / "params.json").is_file()), None)
    if run is not None:
        return f"It is of a run: {run / 'params.json'} repeats that, resume={str(run)!r} goes on with it."
    if (folder / "experiment.json").is_file():
        return f"It holds an experiment: `raypid train --resume {folder}` goes on with it, the params.json of a trial repeats that one."
    if (folder / "best.json").is_file():
        return f"It holds a search: tuned={str(folder)!r} takes the settings that it has found."
    found = sorted(entry.name for entry in folder.glob("*") if entry.suffix in (".yaml", ".yml", ".json"))[:3]
    return f"In it there is {', '.join(found)}." if found else "No YAML or JSON file is in it."


def _leaves(value: object, keys: Keys) -> Iterator[tuple[Keys, object]]:
    """Yield (keys, value) of all that is neither a mapping nor a list."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, (*keys, key))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from _leaves(part, (*keys, i))
    else:
        yield keys, value


def _read_json(name: str, text: str) -> Marked:
    import yaml

    try:
        values = _mapping(name, read_json(text))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}:{error.lineno}: this is not JSON: {error.msg} (column {error.colno}).") from None
    try:  # JSON is nearly YAML, whose parser knows lines; a tab of JSON can only lie between values
        return Marked(name, values, _compose(name, text.replace("\t", " "))[1])
    except yaml.YAMLError:
        return Marked(name, values)


def _read_yaml(name: str, text: str) -> Marked:
    import yaml

    try:
        values, lines = _compose(name, text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        if "'\\t'" in problem:
            problem = "there is a tab, and YAML is indented by spaces"
        raise ConfigError(f"{name}:{mark.line + 1 if mark else 1}: this is not YAML: {problem}.") from None
    except yaml.YAMLError as error:  # a character that no text has
        raise ConfigError(f"{name} is not YAML: {reason(error)}.") from None
    return Marked(name, _mapping(name, values), lines)


def _mapping(name: str, values: object) -> dict[str, object]:
    if not isinstance(values, dict):
        kind = "holds a list" if isinstance(values, list) else "is no YAML or JSON of settings"
        what = "is empty" if values is None else kind
        raise ConfigError(f"{name} {what}; it must hold a mapping: {EXAMPLE}.")
    return values


EXAMPLE = (
    "{run: PPO, env: CartPole-v1, stop: {time_total_s: 60}, config: {lr: 0.001}}, or NAME: {...} for each of several"
)


def _compose(name: str, text: str) -> tuple[object, dict[Keys, int]]:
    """What YAML holds, and the lines."""
    check_events(text)
    lines: dict[Keys, int] = {}
    loader = _loader()(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, lines
        _check_keys(name, node, set())
        values: object = loader.construct_document(node)
    finally:
        loader.dispose()
    check_size(values)
    _mark(node, (), lines)
    return values, lines


@functools.cache
def _loader() -> type[yaml.SafeLoader]:
    """YAML's safe loader, but 1e-3 is a number, as in YAML 1.2, and a date is text."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
            for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("+-.0123456789"))
    return Loader


def _check_keys(name: str, node: yaml.Node, seen: set[int]) -> None:
    """Check that keys are text, and that none stands twice in one mapping: YAML would take the last.

    Raises:
        ConfigError: names the line, and for a key that stands twice both lines.
    """
    import yaml

    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for part in node.value:
            _check_keys(name, part, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.tag == _MERGE:
            _check_keys(name, value, seen)
            continue
        if key.tag != "tag:yaml.org,2002:str":
            raise ConfigError(
                f"{name}:{line}: a name is text, which {shown(key.value)} is not: quote it, or take another."
            )
        if key.value in first:
            raise ConfigError(f"{name}:{line}: {shown(key.value)} stands here twice, first in line {first[key.value]}.")
        first[key.value] = line
        _check_keys(name, value, seen)


_MERGE = "tag:yaml.org,2002:merge"


def _mark(node: yaml.Node, keys: Keys, lines: dict[Keys, int]) -> None:
    """Write down the lines of all that lies in `node`. What was merged (`<<`) has the line where it is written."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*keys, key.value)
            lines[place] = key.start_mark.line + 1
            _mark(value, place, lines)
    elif isinstance(node, yaml.SequenceNode):
        for i, part in enumerate(node.value):
            place = (*keys, i)
            lines[place] = part.start_mark.line + 1
            _mark(part, place, lines)
