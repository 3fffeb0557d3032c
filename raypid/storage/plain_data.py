"""JSON that others wrote: whatever it is, it becomes plain values or a ValueError with one line. Limits for YAML."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping

MAX_DEPTH, MAX_VALUES = 100, 1_000_000
"""How deep lists and mappings may lie in each other, and how many values they may have: what handles them later recurses."""


def parse_json(text: str | bytes) -> object:
    """Parse JSON of any size.

    Raises:
        ValueError: it is not JSON, has a number of thousands of digits, or is too deep for the parser.
    """
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError as error:
        if "int_max_str_digits" not in str(error):
            raise
        # Python's own words for it tell programmers what to do
        raise ValueError("it has a number of thousands of digits") from None
    return value


def read_json(text: str | bytes) -> object:
    """Parse JSON of bounded size and depth.

    Raises:
        ValueError: as `parse_json`, or it is too deep or too large.
    """
    value = parse_json(text)
    check_size(value)
    return value


def check_size(value: object) -> None:
    """Check a tree of mappings and lists, or of YAML's nodes; one that contains itself counts as too deep.

    An alias of YAML counts as what it stands for: merging (`<<: [*a, *a]`) writes it out.

    Raises:
        ValueError: it is too deep or too large.
    """
    level, count = [value], 0
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for inner in level:
            children = _children(inner)
            count += len(children)
            if count > MAX_VALUES:
                raise ValueError(f"it has more than {MAX_VALUES:,} values")
            below.extend(children)
        if not below:
            return
        level = below
    raise ValueError(f"lists and mappings lie in each other more than {MAX_DEPTH} deep")


def _children(value: object) -> Collection[object]:
    """The values in a mapping or a list; nothing of any other value."""
    inner = getattr(value, "value", value)  # a node of YAML has a list
    if isinstance(inner, dict):
        return inner.values()
    if not isinstance(inner, list | tuple):
        return ()
    return [part for _, part in inner] if getattr(value, "id", "") == "mapping" else inner


def texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) of all texts in nested mappings and lists."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from texts(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from texts(part, key)
