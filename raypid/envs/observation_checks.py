"""Between Gymnasium's spaces and trees of arrays: stacking and checking observations, taking actions apart.

Axes: B streams; * event shape of a part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from raypid.envs.errors import EnvError
from raypid.errors import shown
from raypid.spaces import Space, SpaceLeaf, is_nested, members, space_leaves
from raypid.types import Array, Tree


class ObservationError(EnvError):
    """An observation, or another result of an environment, that does not fit; the vector adds environment, stream and step."""

    def __init__(self, text: str, row: int | None = None, advice: str = "") -> None:
        super().__init__(f"{text} {advice}".rstrip())
        self.row, self.text, self.advice = row, text, advice
        """What is wrong, and what to do; the message has both."""


class ObservationPart:
    """One array of an observation: where it is found, and what may be in it."""

    def __init__(self, leaf: SpaceLeaf) -> None:
        self.leaf, self.keys, self.path, self.space = leaf, leaf.keys, leaf.path, leaf.space
        self.label = f"the observation's part {leaf.path!r}" if leaf.path else "the observation"
        self.shape, self.dtype = leaf.shape, leaf.dtype
        self.is_box, self.is_float = leaf.kind == "Box", self.dtype.kind == "f"
        if isinstance(leaf.space, spaces.Box):
            self.low, self.high = leaf.space.low, leaf.space.high
        else:
            self.low = np.reshape(leaf.start, leaf.shape) if leaf.start else np.zeros(leaf.shape, np.int8)
            self.high = self.low + (np.reshape(leaf.nvec, leaf.shape) - 1 if leaf.nvec else 1)

    def reach(self, obs: Any) -> object:
        """Take this part out of an observation as the environment gives it."""
        try:
            for key in self.keys:
                obs = obs[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ObservationError(f"{self.label} is missing; its space is {self.space}.") from error
        return obs

    def fit(self, value: object, shape: tuple[int, ...]) -> Array:
        """Convert `value` to an array of `shape` that may be assigned to this part's dtype.

        Raises:
            ObservationError: shape or kind of dtype differ.
        """
        try:
            array: Array = np.asarray(value)
        except ValueError:  # such as lists of several lengths
            array = np.array(None)
        kind, are_whole = array.dtype.kind, array.dtype.kind in "iu" and self.dtype.kind in "iu"
        if kind in "OUS" and array.ndim == 0:
            what = f"is {shown(value)}"
        elif array.shape != shape:
            what = f"has shape {array.shape}"
        elif kind not in "biuf" or (kind == "f" and not self.is_float):
            what = f"has dtype {array.dtype}"
        elif are_whole and array.dtype != self.dtype and (array.astype(self.dtype) != array).any():
            what = f"holds {array.min()} to {array.max()}"
        else:
            return array
        wanted = f"its space {self.space} asks for shape {shape} and dtype {self.dtype}"
        raise ObservationError(f"{self.label} {what}; {wanted}.")

    def beyond(self, array: Array) -> Array:
        """Mark the elements outside of the bounds; floats may leave them by a rounding error."""
        low, high = self.low, self.high
        if self.is_float:
            slack = 1e-4 * (1 + np.abs(array))
            low, high = low - slack, high + slack
        return (array < low) | (array > high)

    def check(self, array: Array) -> None:
        """Check values [B, *].

        Raises:
            ObservationError: an element is not finite, or not in its discrete space.
        """
        # one reduction without temporaries: NaN and inf survive a sum of squares; overflow, of which vdot says nothing, is
        # sorted out below
        if self.is_box and (not self.is_float or math.isfinite(np.vdot(array, array))):
            return
        bad = ~np.isfinite(array) if self.is_float else self.beyond(array)
        if bad.any():
            row, place, at = first_place(bad)
            what = "not finite" if self.is_float else f"outside its space {self.space}"
            text = f"{self.label} is {what}: {array[row][place]}{at}. Observation space: {self.space}."
            raise ObservationError(text, row)

    def beyond_bounds(self, array: Array) -> tuple[int, str] | None:
        """Row and text of the first element of [B, *] that is beyond the bounds of its Box; None if there is none."""
        if not self.is_box or not (bad := self.beyond(array)).any():
            return None
        row, place, at = first_place(bad)
        bounds = f"outside its bounds [{self.low[place]:.6g}, {self.high[place]:.6g}]"
        return row, f"{self.label} is {array[row][place]:.6g}{at}, {bounds}"


class ObservationLayout:
    """The parts of an observation as a list of [B, *] arrays, and back to a tree.

    Raises:
        SpaceError: a part of the space is not supported.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.parts = [ObservationPart(leaf) for leaf in space_leaves(space, "observation")]

    def tree(self, arrays: list[Array]) -> Tree:
        """Arrange the parts as the observation has them."""
        return _arrange(self.space, iter(arrays))

    def stack(self, observations: Sequence[object]) -> list[Array]:
        """Copy the observations of B environments into new arrays [B, *].

        Raises:
            ObservationError: one does not fit; its `row` says which.
        """
        arrays = [np.empty((len(observations), *part.shape), part.dtype) for part in self.parts]
        for part, array in zip(self.parts, arrays):
            dtype, shape, keys = part.dtype, part.shape, part.keys
            for row, value in enumerate(observations):
                try:
                    if keys:
                        value = part.reach(value)
                    # the usual case costs three comparisons; everything else is examined closely
                    if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                        value = part.fit(value, shape)
                except ObservationError as error:
                    error.row = row
                    raise
                array[row] = value
        return arrays

    def batch(self, obs: object, num_rows: int) -> list[Array]:
        """Copy a vector environment's stacked observations, [B, *] each.

        Raises:
            ObservationError: they do not fit.
        """
        values = [(part, part.fit(part.reach(obs), (num_rows, *part.shape))) for part in self.parts]
        return [np.array(value, dtype=part.dtype) for part, value in values]

    def check(self, arrays: list[Array], *, of_reset: bool = False) -> None:
        """Check the observations of a step or a reset. Bounds of a Box hold for those of a reset: on later steps many environments leave
        them a little, and still learn.

        Raises:
            ObservationError: an element is not finite, or not in its space.
        """
        for part, array in zip(self.parts, arrays):
            part.check(array)
            if of_reset and (found := part.beyond_bounds(array)):
                row, text = found
                raise ObservationError(f"after reset(), {text}; declare the bounds that hold, or infinite ones.", row)


def first_place(bad: Array) -> tuple[int, tuple[int, ...], str]:
    """Find the first true element of [B, *]: its row, its indices within the row, and text for these."""
    row, *place = np.argwhere(bad)[0].tolist()
    return row, tuple(place), f" at index {place}" if place else ""


def _arrange(space: Space, arrays: Iterator[Array]) -> Tree:
    if is_nested(space):
        return {str(key): _arrange(part, arrays) for key, part in members(space)}
    return next(arrays)


def action_rows(space: Space, action: Tree, num: int) -> list[object]:
    """Split a tree of actions [B, *] into `num` = B actions for one environment each. Copies: environments may write into theirs."""
    batch = from_tree(space, action)
    return list(batch) if isinstance(batch, np.ndarray) else [row_of(batch, row) for row in range(num)]


def from_tree(space: Space, tree: Tree) -> object:
    """Copy a tree of arrays [*] or [B, *] into what an environment, or a vector, of this space takes: dicts, tuples, arrays."""
    if isinstance(tree, Mapping):
        parts = {key: from_tree(part, tree[str(key)]) for key, part in members(space)}
        return parts if isinstance(space, spaces.Dict) else tuple(parts.values())
    return np.array(tree, dtype=space.dtype)


def to_tree(space: Space, values: Sequence[Any]) -> Tree:
    """Stack B values of the space, as environments take or give them, into a tree of arrays [B, *]."""
    if is_nested(space):
        return {str(key): to_tree(part, [value[key] for value in values]) for key, part in members(space)}
    return np.array(values, dtype=space.dtype)


def row_of(batch: Any, row: int) -> object:
    """Take one row out of a batch: of an array (of objects too), or of a mapping or tuple of such."""
    if isinstance(batch, Mapping):
        return {key: row_of(value, row) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(row_of(value, row) for value in batch)
    return batch[row]
