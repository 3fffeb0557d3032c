"""JSON that others wrote: whatever it is, it becomes plain values or a ValueError with one line."""

from __future__ import annotations

import json

MAX_DEPTH, MAX_VALUES = 100, 1_000_000
"""How deep lists and mappings may lie in each other, and how many values they may have: what handles them later recurses."""


def read_json(text: str | bytes) -> object:
    """Parse JSON.

    Raises:
        ValueError: it is not JSON, has a number of thousands of digits, is too deep or too large.
    """
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    check_size(value)
    return value


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
                raise ValueError(f"it has more than {MAX_VALUES:,} values")
            below.extend(children)
        if not below:
            return
        level = below
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"lists and mappings lie in each other more than {MAX_DEPTH} deep"
