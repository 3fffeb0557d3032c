"""What users give to a policy's `act`: one observation or a batch, in the structure, shapes and dtypes of the environment's.

Axes: B observations of a batch; * shape of one part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raypid.errors import UserError, reason, shown
from raypid.nn.network_spec import Leaf, NetworkSpec
from raypid.nn.pipeline import nest
from raypid.types import Array, Tree, to_numpy


class GivenObservation:
    """Reads observations for policies of one network. What such a policy was not trained with is left out."""

    def __init__(self, spec: NetworkSpec) -> None:
        self.leaves = spec.pipeline.leaves
        self.actions = spec.actions
        self.mask_size = spec.pipeline.mask_size
        self.paths = [leaf.path for leaf in self.leaves] + (["action_mask"] if self.mask_size else [])

    def read(self, obs: object) -> tuple[Tree, int, bool]:
        """Return arrays [B, *] of the environment's dtypes as a tree, B, and whether it is one observation (then B is 1) and no batch.

        Raises:
            UserError: a part is missing, has another shape or dtype, or a value that the environment's space has not; or the
                parts are not all of one observation, or of batches of one size.
        """
        arrays = {leaf.path: _array(leaf, self._part(obs, leaf.path)) for leaf in self.leaves}
        sizes = [None if arrays[leaf.path].shape == leaf.shape else len(arrays[leaf.path]) for leaf in self.leaves]
        if any(size != sizes[0] for size in sizes[1:]):
            each = ", ".join(f"{p!r} {'one' if n is None else f'a batch of {n}'}" for p, n in zip(self.paths, sizes))
            raise UserError(
                f"Some parts of the observation are of one observation and others of more: {each}. Give all parts of one, "
                "or of each part an array with the same leading axis."
            )
        single, num = sizes[0] is None, 1 if sizes[0] is None else sizes[0]
        for leaf in self.leaves:
            batch = arrays[leaf.path][None] if single else arrays[leaf.path]
            _check_values(leaf, batch)
            arrays[leaf.path] = batch.astype(leaf.dtype, copy=False)
        if self.mask_size:
            arrays["action_mask"] = self._mask(self._part(obs, "action_mask"), num, single)
        return nest(arrays), num, single

    def _part(self, obs: Any, path: str) -> object:
        """The part at `path` of an observation as the environment gives it: Dict as a mapping, Tuple as a tuple or list."""
        part = obs
        for key in path.split("/") if path else ():
            names = list(map(str, part)) if isinstance(part, Mapping) else []
            if isinstance(part, (tuple, list)) and key.isdecimal() and int(key) < len(part):
                part = part[int(key)]
            elif isinstance(part, Mapping) and key in names:
                part = next(value for name, value in part.items() if str(name) == key)
            else:
                raise UserError(self._lacking(obs, path, names))
        return part

    def _lacking(self, obs: object, path: str, names: list[str]) -> str:
        nothing = "it is empty" if isinstance(obs, Mapping) else f"it is {_kind(obs)}"
        given = f"it has {', '.join(map(repr, names))}" if names else nothing
        parts = [f"{leaf.path!r} of shape {leaf.shape}" for leaf in self.leaves]
        wanted = ", ".join(parts + ([f"'action_mask' of shape ({self.mask_size},)"] if self.mask_size else []))
        return f"The observation lacks {path!r}: {given}. This policy takes {wanted}."

    def _mask(self, given: object, num: int, single: bool) -> Array:
        """The action mask [B, *], with one element for each choice of the actions in their order."""
        mask = _as_array("action_mask", given, f"{self.mask_size} elements, 1 where a choice is allowed")
        if mask.size != num * self.mask_size or not (single or mask.shape[:1] == (num,)):
            takes = f"{self.mask_size} elements" if single else f"shape {(num, self.mask_size)} for {num} observations"
            raise UserError(
                f"The action_mask has shape {mask.shape}; this policy takes {takes}, 1 where a choice is allowed."
            )
        rows, begin = mask.reshape(num, self.mask_size).astype(bool), 0
        for choices in (n for leaf in self.actions for n in leaf.nvec):
            if not rows[:, begin : begin + choices].any(-1).all():
                last = begin + choices - 1
                raise UserError(
                    f"The action_mask allows none of elements {begin} to {last}: at least one choice must be 1."
                )
            begin += choices
        return mask[None] if single else mask


def _array(leaf: Leaf, given: object) -> Array:
    """Convert one part to an array of the leaf's shape, or a batch [B, *] of it.

    Raises:
        UserError: it is not one, or its dtype is of another kind.
    """
    name = f"observation {leaf.path!r}" if leaf.path else "observation"
    wanted = f"shape {leaf.shape}, or a batch of it, {leaf.dtype}"
    if _is_reset(given):
        raise UserError(f"The {name} is {_kind(given)}: give the first of the two.")
    array = given if type(given) is np.ndarray else _as_array(name, given, wanted)
    kind = array.dtype.kind
    if kind not in "biuf":
        raise UserError(f"The {name} is {_kind(given)}; this policy takes {wanted}.")
    if array.shape != leaf.shape and array.shape[1:] != leaf.shape:
        raise UserError(f"The {name} has shape {array.shape}; this policy takes {leaf.shape} or a batch of it.")
    if kind == "f" and np.dtype(leaf.dtype).kind != "f":
        raise UserError(
            f"The {name} has dtype {array.dtype}; this policy takes {_range(leaf)}: round it, or see whether it was scaled."
        )
    return array


def _as_array(name: str, given: object, wanted: str) -> Array:
    try:
        return to_numpy(given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"The {name} is no array of numbers ({reason(error)}); this policy takes {wanted}.") from None


def _check_values(leaf: Leaf, array: Array) -> None:
    """Check the values of a batch [B, *].

    Raises:
        UserError: one is not finite, or not in a discrete space, or beyond its dtype.
    """
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # 1e39 is a number, but not one of float32
            bad = ~np.isfinite(array.astype(leaf.dtype, copy=False))
    else:
        if not leaf.nvec and (array.dtype == leaf.dtype or np.dtype(leaf.dtype).kind == "f"):
            return
        low, high = _limits(leaf)
        bad = (array < low) | (array > high)
    if bad.any():
        place = tuple(np.argwhere(bad)[0].tolist())
        at = f" at index {list(place)}" if array.size > 1 else ""
        name = f"observation {leaf.path!r}" if leaf.path else "observation"
        raise UserError(f"The {name} is {array[place]}{at}; this policy takes {_range(leaf)}.")


def _limits(leaf: Leaf) -> tuple[Any, Any]:
    """The smallest and the largest value [*] of each element."""
    if leaf.nvec:
        low = np.reshape(leaf.start, leaf.shape) if leaf.start else np.zeros(leaf.shape, np.int64)
        return low, low + np.reshape(leaf.nvec, leaf.shape) - 1
    kind = np.dtype(leaf.dtype)
    if kind.kind in "iu":
        return np.iinfo(kind).min, np.iinfo(kind).max
    return (0, 1) if kind.kind == "b" else (-np.inf, np.inf)


def _range(leaf: Leaf) -> str:
    if np.dtype(leaf.dtype).kind == "f":
        return f"finite numbers ({leaf.dtype})"
    low, high = (np.unique(limit) for limit in _limits(leaf))
    if len(low) == len(high) == 1:
        return f"integers from {low[0]} to {high[0]}"
    return "integers of its MultiDiscrete space"


def _is_reset(given: object) -> bool:
    """Whether this is (observation, info): what an environment's reset() returns."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)


def _kind(given: object) -> str:
    if isinstance(given, np.ndarray):
        return f"an array of shape {given.shape}, {given.dtype}"
    if _is_reset(given):
        return "a tuple (observation, info), as reset() returns it"
    return shown(given) if given is None or isinstance(given, (str, bytes, int, float)) else f"a {type(given).__name__}"
