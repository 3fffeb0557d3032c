"""Between Gymnasium's spaces and trees of arrays: stacking and checking observations, taking actions apart.

Axes: B streams; * event shape of a leaf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from raypid.envs.errors import EnvError
from raypid.types import Array, Tree, tree_map

LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ObservationError(Exception):
    """An observation that does not fit its space; the vector adds environment, stream and step."""

    row = 0
    """Which observation of those given."""


def check_space(space: Any, role: str, name: str) -> None:
    """Refuse spaces that cannot be trees of arrays.

    Raises:
        EnvError: names the environment, the leaf's path and its space.
    """
    leaves = list(_walk(space, (), ""))
    for _, path, leaf in leaves:
        if not isinstance(leaf, LEAVES):
            kind = type(leaf).__name__
            at = f" at {path!r}" if path else ""
            raise EnvError(
                f"Environment {name}: the {role} space{at} is {kind}, which cannot be handled. "
                "Supported: Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these. "
                "Wrap the environment so that it encodes this part as one of them."
            )
    if not leaves:
        raise EnvError(f"Environment {name}: the {role} space {space} is empty; it needs at least one part.")


def _walk(space: Any, keys: tuple[Any, ...], path: str) -> Iterator[tuple[tuple[Any, ...], str, Any]]:
    if isinstance(space, spaces.Dict):
        parts: Any = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
    else:
        yield keys, path, space
        return
    for key, part in parts:
        yield from _walk(part, (*keys, key), f"{path}/{key}" if path else str(key))


class Leaf:
    """One array of an observation."""

    __slots__ = ("dtype", "high", "is_float", "keys", "low", "path", "shape", "space")

    def __init__(self, keys: tuple[Any, ...], path: str, space: Any) -> None:
        self.keys, self.path, self.space = keys, path, space
        self.shape: tuple[int, ...] = tuple(space.shape)
        self.low: Any = None
        self.high: Any = None
        if isinstance(space, spaces.Box):
            self.dtype = np.dtype(space.dtype)
        elif isinstance(space, spaces.MultiBinary):
            self.dtype, self.low, self.high = np.dtype(np.int8), 0, 1
        elif isinstance(space, spaces.Discrete):
            self.dtype, self.low, self.high = np.dtype(np.int64), int(space.start), int(space.start + space.n - 1)
        else:
            self.dtype, self.low, self.high = np.dtype(np.int64), space.start, space.start + space.nvec - 1
        self.is_float = self.dtype.kind == "f"

    def reach(self, obs: Any) -> Any:
        """This leaf's part of an observation as the environment gives it."""
        try:
            for key in self.keys:
                obs = obs[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ObservationError(f"{self.label} is missing; its space is {self.space}.") from error
        return obs

    def fit(self, value: Any, shape: tuple[int, ...]) -> Array:
        """`value` as an array of `shape` that may be assigned to this leaf's dtype.

        Raises:
            ObservationError: shape or kind of dtype differ.
        """
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ObservationError(f"{self.label} is no array ({error}); {self.wanted(shape)}.") from error
        if array.shape != shape:
            raise ObservationError(f"{self.label} has shape {array.shape}; {self.wanted(shape)}.")
        kind = array.dtype.kind
        if kind not in "biuf" or (kind == "f" and not self.is_float):
            raise ObservationError(f"{self.label} has dtype {array.dtype}; {self.wanted(shape)}.")
        if kind in "iu" and self.dtype.kind in "iu" and array.dtype != self.dtype and array.size:
            limits = np.iinfo(self.dtype)
            if array.min() < limits.min or array.max() > limits.max:
                raise ObservationError(f"{self.label} holds {array.min()} to {array.max()}; {self.wanted(shape)}.")
        return array

    @property
    def label(self) -> str:
        return f"the observation's part {self.path!r}" if self.path else "the observation"

    def wanted(self, shape: tuple[int, ...]) -> str:
        return f"its space {self.space} asks for shape {shape} and dtype {self.dtype}"


class ObservationLayout:
    """Where the leaves of an observation go: a list of [B, *] arrays and back to a tree.

    Raises:
        EnvError: a part of the space cannot be handled.
    """

    def __init__(self, space: Any, name: str) -> None:
        check_space(space, "observation", name)
        self.leaves = [Leaf(*entry) for entry in _walk(space, (), "")]
        self._template = _template(space, iter(range(len(self.leaves))))

    def empty(self, num_rows: int) -> list[Array]:
        return [np.empty((num_rows, *leaf.shape), leaf.dtype) for leaf in self.leaves]

    def tree(self, arrays: list[Array]) -> Tree:
        if isinstance(self._template, int):
            return arrays[0]
        return tree_map(arrays.__getitem__, self._template)

    def stack(self, observations: Sequence[Any]) -> list[Array]:
        """The observations of B environments as fresh [B, *] arrays.

        Raises:
            ObservationError: one does not fit; its `row` says which.
        """
        arrays = self.empty(len(observations))
        for leaf, array in zip(self.leaves, arrays):
            dtype, shape, keys = leaf.dtype, leaf.shape, leaf.keys
            for row, value in enumerate(observations):
                try:
                    if keys:
                        value = leaf.reach(value)
                    # the usual case costs three comparisons; everything else is looked at closely
                    if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                        value = leaf.fit(value, shape)
                except ObservationError as error:
                    error.row = row
                    raise
                array[row] = value
        return arrays

    def batch(self, obs: Any, num_rows: int) -> list[Array]:
        """Copies of a vector environment's stacked observations, [B, *] each."""
        arrays = []
        for leaf in self.leaves:
            value = leaf.fit(leaf.reach(obs), (num_rows, *leaf.shape))
            arrays.append(np.array(value, dtype=leaf.dtype))
        return arrays

    def outside(self, arrays: list[Array]) -> tuple[int, str] | None:
        """(row, text) of the first observation beyond the bounds of its Box.

        For the observations of a reset: on later steps many environments leave their bounds a little, and still learn.
        """
        for leaf, array in zip(self.leaves, arrays):
            if not isinstance(leaf.space, spaces.Box):
                continue
            slack = 1e-4 * (1 + np.abs(array)) if leaf.is_float else 0
            bad = (array < leaf.space.low - slack) | (array > leaf.space.high + slack)
            if bad.any():
                place = tuple(int(i) for i in np.argwhere(bad)[0])
                at = f" at index {list(place[1:])}" if len(place) > 1 else ""
                low, high = (np.broadcast_to(b, leaf.shape)[place[1:]] for b in (leaf.space.low, leaf.space.high))
                bounds = f"outside its bounds [{low}, {high}]; declare the bounds that hold, or infinite ones"
                return place[0], f"{leaf.label} of reset() is {array[place]}{at}, {bounds}"
        return None

    def find_problem(self, arrays: list[Array]) -> tuple[int, str] | None:
        """(row, text) of the first observation that is not finite or not in its Discrete space."""
        for leaf, array in zip(self.leaves, arrays):
            if leaf.is_float:
                flat = array.reshape(-1)
                # one reduction without temporaries: NaN and inf survive a sum of squares; overflow is sorted out below
                if math.isfinite(flat.dot(flat)):
                    continue
                bad = ~np.isfinite(array)
                what = "is not finite"
            elif leaf.low is not None:
                bad = (array < leaf.low) | (array > leaf.high)
                what = f"is outside its space {leaf.space}"
            else:
                continue
            if bad.any():
                place = tuple(int(i) for i in np.argwhere(bad)[0])
                at = f" at index {list(place[1:])}" if len(place) > 1 else ""
                return place[0], f"{leaf.label} {what}: {array[place]}{at}"
        return None


def _template(space: Any, numbers: Iterator[int]) -> Any:
    if isinstance(space, spaces.Dict):
        return {str(key): _template(part, numbers) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(key): _template(part, numbers) for key, part in enumerate(space.spaces)}
    return next(numbers)


def action_rows(space: Any, action: Any) -> list[Any]:
    """A tree of actions [B, *] as B actions that one environment takes. Copies: environments may write into theirs."""
    if isinstance(space, spaces.Dict):
        columns = {key: action_rows(part, action[str(key)]) for key, part in space.spaces.items()}
        return [dict(zip(columns, row)) for row in zip(*columns.values())]
    if isinstance(space, spaces.Tuple):
        return list(zip(*(action_rows(part, action[str(i)]) for i, part in enumerate(space.spaces))))
    return list(np.array(action, dtype=space.dtype))


def action_batch(space: Any, action: Any) -> Any:
    """A tree of actions [B, *] as a vector environment takes it: Dict -> dict, Tuple -> tuple of arrays."""
    if isinstance(space, spaces.Dict):
        return {key: action_batch(part, action[str(key)]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(action_batch(part, action[str(i)]) for i, part in enumerate(space.spaces))
    return np.array(action, dtype=space.dtype)
