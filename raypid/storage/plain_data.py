"""JSON and YAML that others wrote: whatever it is, it becomes plain values or a ValueError with one line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

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


def check_events(text: str) -> None:
    """Check depth and size of YAML before anything is built, because both cost the parser more than their length.

    An alias counts as what it stands for: merging (`<<: [*a, *a]`) writes it out.

    Raises:
        ValueError: it is too deep or too large.
        yaml.YAMLError: it is not YAML.
    """
    import yaml

    anchored: dict[str | None, int] = {}
    """Anchor -> number of values in what it names; those that are not closed yet are missing."""
    names: list[str | None] = []
    counts = [0]
    """Number of values in each collection that is open, outermost first."""
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            names.append(event.anchor)
            counts.append(1)
        elif isinstance(event, yaml.CollectionEndEvent):
            count = counts.pop()
            counts[-1] += count
            if (name := names.pop()) is not None:
                anchored[name] = count
        elif isinstance(event, yaml.AliasEvent):
            counts[-1] += anchored.get(event.anchor, 1)
        else:
            counts[-1] += 1
        if len(names) > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        if counts[-1] > MAX_VALUES:
            raise ValueError(_TOO_LARGE)


def check_size(value: object) -> None:
    """Check a tree of mappings and lists; one that contains itself counts as too deep.

    Raises:
        ValueError: it is too deep or too large.
    """
    level, count = [value], 0
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for inner in level:
            children = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list | tuple) else ()
            count += len(children)
            if count > MAX_VALUES:
                raise ValueError(_TOO_LARGE)
            below.extend(children)
        if not below:
            return
        level = below
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"lists and mappings lie in each other more than {MAX_DEPTH} deep"
_TOO_LARGE = f"it has more than {MAX_VALUES:,} values"


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
