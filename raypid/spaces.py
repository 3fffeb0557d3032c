"""The spaces that raypid supports: their parts, and spaces as plain data for workers and policy folders.

Supported are Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these, nested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from gymnasium import spaces

from raypid.errors import UserError
from raypid.types import Array

Space: TypeAlias = "spaces.Space[object]"
Key: TypeAlias = "str | int"
"""Key of a member of a Dict or Tuple space."""
Kind = Literal["Box", "Discrete", "MultiDiscrete", "MultiBinary"]


class SpaceError(UserError):
    """A space that raypid cannot handle."""


@dataclass(frozen=True, slots=True)
class SpaceLeaf:
    """One array of an observation or action, and the facts about its space."""

    keys: tuple[Key, ...]
    """Place in what the environment gives or takes: keys of Dict members, numbers of Tuple members."""
    space: Space
    kind: Kind
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Dtype in which raypid stores it: int64 for Discrete and MultiDiscrete, int8 for MultiBinary."""
    nvec: tuple[int, ...] = ()
    """Number of values of each discrete element, flattened; empty for the other kinds."""
    start: tuple[int, ...] = ()
    """Smallest value of each discrete element, flattened."""

    @property
    def path(self) -> str:
        """Place in a tree of arrays: the keys with "/" between them."""
        return "/".join(map(str, self.keys))


def members(space: Space) -> list[tuple[Key, Space]]:
    """List the members of a Dict or Tuple space by key; empty for other spaces."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def is_nested(space: Space) -> bool:
    return isinstance(space, (spaces.Dict, spaces.Tuple))


def space_leaves(space: Space, role: str) -> list[SpaceLeaf]:
    """List the leaves of a space, depth first.

    Args:
        role: for errors: observation or action.

    Raises:
        SpaceError: a leaf has an unsupported space, or there is none.
    """
    leaves = list(_walk(space, (), role))
    if not leaves:
        raise SpaceError(f"the {role} space {space} is empty; it needs at least one part.")
    return leaves


def _walk(space: Space, keys: tuple[Key, ...], role: str) -> Iterator[SpaceLeaf]:
    if is_nested(space):
        for key, part in members(space):
            yield from _walk(part, (*keys, key), role)
    elif isinstance(space, spaces.Box):
        yield SpaceLeaf(keys, space, "Box", tuple(space.shape), np.dtype(space.dtype))
    elif isinstance(space, spaces.Discrete):
        yield SpaceLeaf(keys, space, "Discrete", (), np.dtype(np.int64), (int(space.n),), (int(space.start),))
    elif isinstance(space, spaces.MultiDiscrete):
        nvec, start = _ints(space.nvec), _ints(np.broadcast_to(space.start, space.nvec.shape))
        yield SpaceLeaf(keys, space, "MultiDiscrete", tuple(space.nvec.shape), np.dtype(np.int64), nvec, start)
    elif isinstance(space, spaces.MultiBinary):
        yield SpaceLeaf(keys, space, "MultiBinary", tuple(space.shape), np.dtype(np.int8))
    else:
        at = f" at {'/'.join(map(str, keys))!r}" if keys else ""
        own = type(space).__module__.startswith("gymnasium.")
        kind = type(space).__name__ if own else f"{type(space).__module__}.{type(space).__name__}"
        raise SpaceError(
            f"the {role} space{at} is {kind}, which cannot be handled. "
            "Supported: Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these, all from gymnasium.spaces. "
            "Wrap the environment so that it encodes this part as one of them."
        )


def _ints(values: Array) -> tuple[int, ...]:
    return tuple(int(v) for v in values.ravel())


_NUMBERS = {"Discrete": ("n", "start"), "MultiDiscrete": ("nvec", "start"), "MultiBinary": ("shape",)}
"""Kind of a space -> its attributes that say everything about it."""


def space_to_json(space: Space) -> dict[str, object]:
    """Describe a space by numbers, strings, lists and dicts, from which `space_from_json` builds it.

    Raises:
        SpaceError: an unsupported space.
    """
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "spaces": {key: space_to_json(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    (leaf,) = space_leaves(space, "described")
    if isinstance(space, spaces.Box):
        bounds = {"low": _bound(space.low), "high": _bound(space.high)}
        return {"kind": "Box", "shape": list(leaf.shape), "dtype": str(leaf.dtype), **bounds}
    numbers = {name: np.asarray(getattr(space, name)).tolist() for name in _NUMBERS[leaf.kind]}
    return {"kind": leaf.kind, **numbers}


def space_from_json(values: Mapping[str, Any]) -> Space:
    """Invert `space_to_json`, also after a trip through JSON."""
    match values["kind"]:
        case "Dict":
            return spaces.Dict({key: space_from_json(part) for key, part in values["spaces"].items()})
        case "Tuple":
            return spaces.Tuple([space_from_json(part) for part in values["spaces"]])
        case "Box":
            shape, dtype = tuple(values["shape"]), np.dtype(values["dtype"])
            low, high = (_array(values[bound], shape, dtype) for bound in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(values["n"], start=values["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(np.array(values["nvec"]), start=np.array(values["start"]))
    return spaces.MultiBinary(values["shape"])


def _bound(values: Array) -> list[float | str]:
    """One number where all are equal (images), else each; JSON has no infinity."""
    flat = values.ravel()
    some = flat[:1] if flat.size and (flat == flat[0]).all() else flat
    return [x if np.isfinite(x) else str(x) for x in some.tolist()]


def _array(values: list[float | str], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    some = np.array([float(x) if isinstance(x, str) else x for x in values], dtype)
    return some.reshape(shape) if some.size == np.prod(shape, dtype=int) else np.broadcast_to(some, shape).copy()


def brief(space: Space) -> str:
    """A space in a few words: its kind, and the shape, the number of choices or the parts; bounds are left out."""
    kind = type(space).__name__
    if is_nested(space):
        return f"{kind}({', '.join(f'{key}: {brief(part)}' for key, part in members(space))})"
    n = getattr(space, "n", None)
    return f"{kind}({n})" if n is not None else f"{kind}{space.shape}"
