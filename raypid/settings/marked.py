"""A YAML or JSON file as plain values, with the line of each."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raypid.errors import ConfigError, reason, shown
from raypid.storage.neighbours import near
from raypid.storage.plain_data import check_size, read_json

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 10_000_000
"""Size of the largest file that is read."""
Keys = tuple[str | int, ...]
EXAMPLE = (
    "{run: PPO, env: CartPole-v1, stop: {time_total_s: 60}, config: {lr: 0.001}}, or NAME: {...} for each of several"
)
_FLOAT = re.compile(r"[-+]?((\d+(\.\d*)?|\.\d+)[eE][-+]?\d+|(\d+\.\d*|\.\d+))\Z")
"""What YAML 1.2 and JSON read as a number with a fraction or an exponent; YAML 1.1 takes 1e-3 for text."""
_TAG = "tag:yaml.org,2002:"
_FOREIGN = {f"{_TAG}{name}" for name in ("timestamp", "binary", "set", "omap", "pairs")}
"""Types of YAML that JSON lacks. A date is text; the others are refused."""


@dataclass(frozen=True, slots=True)
class Marked:
    """What a file holds, and where."""

    path: str
    """Begins messages: the file, or what else the values were given by."""
    values: dict[str, Any]
    lines: Mapping[Keys, int] = field(default_factory=dict)
    """Keys from the outermost inwards -> line, from 1. Empty if lines are not known."""
    kind: Literal["file", "flag", "given"] = "file"
    """What the values were given by: a file, JSON text of a flag, or a dictionary in Python."""

    def at(self, keys: Keys) -> Any:
        """The value that lies at these keys."""
        value: Any = self.values
        for key in keys:
            value = value[key]
        return value

    def line(self, keys: Keys) -> int:
        """The line of what lies at these keys, or of what is around it."""
        return next((self.lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in self.lines), 1)

    def error(self, message: object, keys: Keys = ()) -> ConfigError:
        """An error about what lies at these keys; the message begins with the file, and the line where it is known."""
        place = f"{self.path}:{self.line(keys)}" if self.lines else self.path
        return ConfigError(f"{place}: {message}")


def read_marked(path: str | Path, instead: str = "") -> Marked:
    """Read a file whose outermost value is a mapping; a name that ends in .json is JSON, any other YAML.

    Args:
        instead: ends the message that there is no such file: what may be given in its place.

    Raises:
        ConfigError: there is no such file (the message has the nearest name in that folder), it cannot be read, is too large, or a key is
            no text or stands twice. The message begins with the file, and the line where one is known.
    """
    name = str(path)
    if os.path.isdir(name):
        raise ConfigError(f"{shown(name)} is a folder: name a YAML or JSON file, such as the params.json of a run.")
    if not os.path.isfile(name):
        raise ConfigError(f"There is no file {shown(name)}.{near(name, files=True)}{instead}")
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        return parse_marked(name, raw.decode("utf-8-sig"))
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} cannot be read: {reason(error)}.") from None


def parse_marked(name: str, text: str) -> Marked:
    """Parse the text of a file with this name.

    Raises:
        ConfigError: as `read_marked`.
        ValueError: it is too deep or too large.
    """
    import yaml

    lines: dict[Keys, int] = {}
    try:
        if name.endswith(".json"):
            values = read_json(text)
            with contextlib.suppress(yaml.YAMLError):  # nearly all JSON is YAML, whose parser knows lines
                _composed(name, text.replace("\t", " "), lines)  # a tab of JSON can only lie between values
        else:
            values = _composed(name, text, lines)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}:{error.lineno}: this is not JSON: {error.msg} (column {error.colno}).") from None
    except yaml.YAMLError as error:
        raise _no_yaml(name, error) from None
    if not isinstance(values, dict):
        what = "is empty" if values is None else f"holds {shown(values)}"
        raise ConfigError(f"{name} {what}; it must hold a mapping: {EXAMPLE}.")
    return Marked(name, values, lines)


def _no_yaml(name: str, error: yaml.YAMLError) -> ConfigError:
    """The message about a text that is not YAML."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:  # a character that no text has
        return ConfigError(f"{name} is not YAML: {reason(error)}.")
    problem = " ".join(str(error.problem or error.context).split())  # type: ignore[attr-defined]
    return ConfigError(f"{name}:{mark.line + 1}: this is not YAML: {problem}.")


def _composed(name: str, text: str, lines: dict[Keys, int]) -> object:
    """What YAML holds; its lines are added to `lines`."""
    loader = _loader()(text)
    loader.name = name
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        check_size(node)
        _mark(name, node, (), lines)
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    finally:
        loader.dispose()


@functools.cache
def _loader() -> Any:
    """YAML's safe loader, but 1e-3 is a number, as in YAML 1.2, and a date is text."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_constructors = {t: make for t, make in yaml.SafeLoader.yaml_constructors.items() if t not in _FOREIGN}
        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in found if tag not in _FOREIGN]
            for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("+-.0123456789"))
    return Loader


def _mark(name: str, node: yaml.Node, keys: Keys, lines: dict[Keys, int]) -> None:
    """Write down the lines of all that lies in `node`. What is merged (`<<`) has the line where it is written.

    Raises:
        ConfigError: a key is no text, or stands in a mapping twice.
    """
    import yaml

    parts: dict[str | int, tuple[int, yaml.Node]] = {}
    if isinstance(node, yaml.SequenceNode):
        parts = {i: (part.start_mark.line + 1, part) for i, part in enumerate(node.value)}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        line = key.start_mark.line + 1
        if key.tag == f"{_TAG}merge":
            for merged in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                _mark(name, merged, keys, lines)
            continue
        if key.tag != f"{_TAG}str":
            raise ConfigError(f"{name}:{line}: a name is text, which {shown(key.value)} is not: quote it.")
        if key.value in parts:
            raise ConfigError(
                f"{name}:{line}: {shown(key.value)} stands here twice, first in line {parts[key.value][0]}."
            )
        parts[key.value] = line, value
    for part, (line, value) in parts.items():
        inner = (*keys, part)
        lines[inner] = line
        _mark(name, value, inner, lines)
