"""What users give to a policy's `act`: one observation or a batch, in the structure, shapes and dtypes of the environment's.

Axes: B observations of a batch; * shape of one part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raypid.errors import UserError, shown
from raypid.nn.distributions import slices
from raypid.nn.network_spec import Leaf, NetworkSpec
from raypid.nn.pipeline import nest
from raypid.types import Array, Tree, to_numpy


def read_observation(spec: NetworkSpec, obs: object) -> tuple[Tree, int, bool]:
    """Read an observation for a policy with this network. What such a policy was not trained with is left out.

    Returns:
        Arrays [B, *] of the environment's dtypes as a tree; B; and whether it is one observation (then B is 1) and no batch.

    Raises:
        UserError: a part is missing, has another shape or dtype, or a value that the environment's space has not; or the
            parts are not all of one observation, or of batches of one size.
    """
    leaves = spec.pipeline.leaves
    arrays = {leaf.path: _array(leaf, _part(spec, obs, leaf.path)) for leaf in leaves}
    sizes = [None if arrays[leaf.path].shape == leaf.shape else len(arrays[leaf.path]) for leaf in leaves]
    if any(size != sizes[0] for size in sizes[1:]):
        each = ", ".join(f"{p!r} {'one' if n is None else f'a batch of {n}'}" for p, n in zip(arrays, sizes))
        raise UserError(
            f"Some parts of the observation are of one observation, others of more: {each}. Give all one leading axis, or none."
        )
    single, num = sizes[0] is None, 1 if sizes[0] is None else sizes[0]
    if spec.pipeline.mask_size:
        arrays["action_mask"] = _mask(spec, _part(spec, obs, "action_mask"), num, single)
    return nest({path: array[None] if single else array for path, array in arrays.items()}), num, single


def _part(spec: NetworkSpec, obs: object, path: str) -> object:
    """The part at `path` of an observation as the environment gives it: Dict as a mapping, Tuple as a tuple or list."""
    part = obs
    for key in path.split("/") if path else ():
        members = dict(enumerate(part)) if isinstance(part, (tuple, list)) else part
        named = {str(name): value for name, value in members.items()} if isinstance(members, Mapping) else {}
        if key not in named:
            shapes = {leaf.path: leaf.shape for leaf in spec.pipeline.leaves}
            shapes |= {"action_mask": (spec.pipeline.mask_size,)} if spec.pipeline.mask_size else {}
            takes = ", ".join(f"{name!r} of shape {shape}" for name, shape in shapes.items())
            raise UserError(f"The observation lacks {path!r}: it is {_kind(part)}. This policy takes {takes}.")
        part = named[key]
    return part


def _mask(spec: NetworkSpec, given: object, num: int, single: bool) -> Array:
    """The action mask [*] or [B, *], with one element for each choice of the actions in their order."""
    mask, size = _numbers(given), spec.pipeline.mask_size
    if mask.size != num * size or not (single or mask.shape[:1] == (num,)):
        takes = (size,) if single else (num, size)
        raise UserError(f"The action_mask has shape {mask.shape}; this policy takes {takes}, 1 where allowed.")
    rows = mask.reshape(num, size).astype(bool)
    for choices in slices([n for leaf in spec.actions for n in leaf.nvec]):
        if not rows[:, choices].any(-1).all():
            raise UserError(f"The action_mask allows none of elements {choices.start} to {choices.stop - 1}.")
    return mask


def _array(leaf: Leaf, given: object) -> Array:
    """Convert one part to an array of the leaf's shape and dtype, or a batch [B, *] of it.

    Raises:
        UserError: it is not one, or a value is not finite, not in a discrete space, or beyond its dtype.
    """
    array = _numbers(given)
    if array.dtype.kind not in "biuf":
        fault, takes = f"is {_kind(given)}, no array of numbers", f"shape {leaf.shape}, or a batch of it, {leaf.dtype}"
    elif array.shape != leaf.shape and array.shape[1:] != leaf.shape:
        fault, takes = f"has shape {array.shape}", f"{leaf.shape} or a batch of it"
    elif array.dtype.kind == "f" and np.dtype(leaf.dtype).kind != "f":
        fault, takes = f"has dtype {array.dtype}", f"{_range(leaf)}: round it, or see whether it was scaled"
    elif (bad := _beyond(leaf, array)).any():
        place = tuple(np.argwhere(bad)[0].tolist())
        fault, takes = f"is {array[place]}{f' at index {list(place)}' if place else ''}", _range(leaf)
    else:
        return array.astype(leaf.dtype, copy=False)
    raise UserError(f"The observation{f' {leaf.path!r}' if leaf.path else ''} {fault}; this policy takes {takes}.")


def _numbers(given: object) -> Array:
    """Convert to an array; to one that holds no number where NumPy cannot, as lists of several lengths."""
    try:
        return to_numpy(given)
    except (ValueError, TypeError, RuntimeError):
        return np.array(None)


def _beyond(leaf: Leaf, array: Array) -> Array:
    """Mark the values that are not finite, not in a discrete space, or beyond the leaf's dtype."""
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # 1e39 is a number, but not one of float32
            return ~np.isfinite(array.astype(leaf.dtype, copy=False))
    low, high = _limits(leaf)
    return (array < low) | (array > high)


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
    low, high = (shown(np.asarray(limit).tolist()) for limit in _limits(leaf))
    return f"integers from {low} to {high}"


def _kind(given: object) -> str:
    if isinstance(given, np.ndarray):
        return f"an array of shape {given.shape}, {given.dtype}"
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict):
        return "a tuple (observation, info), as reset() returns it"
    if isinstance(given, Mapping):
        return f"a dict of {', '.join(map(repr, given)) or 'nothing'}"
    return shown(given) if given is None or isinstance(given, (str, bytes, int, float)) else f"a {type(given).__name__}"
