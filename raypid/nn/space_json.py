"""Spaces as plain data, for what travels to workers and into policy folders."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """What `space_from_json` builds the space from: numbers, strings, lists and dicts.

    Raises:
        ValueError: a space that is none of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple.
    """
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "spaces": {k: space_to_json(part) for k, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    if isinstance(space, spaces.Box):
        bounds = {"low": _bound(space.low), "high": _bound(space.high)}
        return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": np.asarray(space.start).tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "shape": list(space.shape or ())}
    raise ValueError(f"{type(space).__name__} has no plain form here.")


def space_from_json(values: dict[str, Any]) -> spaces.Space[Any]:
    """Inverse of `space_to_json`, also after a trip through JSON."""
    v = values
    match v["kind"]:
        case "Dict":
            return spaces.Dict({k: space_from_json(part) for k, part in v["spaces"].items()})
        case "Tuple":
            return spaces.Tuple([space_from_json(part) for part in v["spaces"]])
        case "Box":
            shape, dtype = tuple(v["shape"]), np.dtype(v["dtype"])
            low, high = (_array(v[bound], shape, dtype) for bound in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(v["n"], start=v["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(np.array(v["nvec"]), start=np.array(v["start"]))
    return spaces.MultiBinary(v["shape"])


def _bound(values: Any) -> list[Any]:
    """One number where all are equal (images), else each; JSON has no infinity."""
    flat = values.ravel()
    some = flat[:1] if flat.size and (flat == flat[0]).all() else flat
    return [x if np.isfinite(x) else str(x) for x in some.tolist()]


def _array(values: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    some = np.array([float(x) if isinstance(x, str) else x for x in values], dtype)
    return some.reshape(shape) if some.size == np.prod(shape, dtype=int) else np.broadcast_to(some, shape).copy()
