"""From raw observations to network inputs: flatten, one-hot, normalise, stack frames. Workers, learner and deployment share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import numpy as np

from raypid.nn.network_spec import Leaf, PipelineSpec
from raypid.ops.normalizer import Moments, scale_of, zero_moments
from raypid.types import Array, ArrayT, Tensor, Tree, tree_leaves, tree_map, tree_stack

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(eq=False)
class InputsOf(Generic[ArrayT]):
    """Network inputs as arrays or tensors: vector [N, D] float32, images {path: [N, C, H, W]}, mask [N, A] bool or None.
    N may be [T, B]."""

    vector: ArrayT
    images: dict[str, ArrayT]
    mask: ArrayT | None = None

    def map(self, function: Callable[..., ArrayT], *others: InputsOf[ArrayT]) -> Self:
        """Apply `function` to each array, together with the same array of `others`."""
        mapped = object.__new__(type(self))
        mapped.vector = function(self.vector, *(o.vector for o in others))
        mapped.images = {k: function(v, *(o.images[k] for o in others)) for k, v in self.images.items()}
        mapped.mask = None if self.mask is None else function(self.mask, *(o.mask for o in others))
        return mapped

    def take(self, rows: Array | Tensor | int | slice | tuple[slice, Array | slice]) -> Self:
        """Select rows; a single number drops the leading axis."""
        return self.map(lambda x: x[rows])

    def flatten(self) -> Self:
        """[T, B, *] to [T * B, *]."""
        return self.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]))


class Inputs(InputsOf[Array]):
    """Network inputs as NumPy arrays."""


class Pipeline:
    """Applies a PipelineSpec. Its moments come with the weights (`load`) and stay fixed until the next ones."""

    def __init__(self, spec: PipelineSpec) -> None:
        self.spec = spec
        self._images = [leaf for leaf in spec.leaves if leaf.kind == "image"]
        self._rest = [leaf for leaf in spec.leaves if leaf.kind != "image"]
        self.normalized_size = sum(leaf.width for leaf in self._rest if leaf.kind == "vector")
        self.load(zero_moments(self.normalized_size))
        only = spec.leaves[0]
        is_single = (len(spec.leaves), spec.frame_stack, spec.mask_size) == (1, 1, 0)
        self._is_plain = is_single and (only.kind, only.path, only.scale) == ("vector", "", 1)
        """Whether observations are one vector: the usual case, in which a step costs few calls."""

    def load(self, moments: Moments) -> None:
        """Normalise by these moments from now on."""
        self._mean, self._scale = scale_of(moments)

    # -- one frame -----------------------------------------------------------------------------------------------

    def _parts(self, obs: Tree) -> tuple[dict[str, Array], tuple[int, ...]]:
        """The arrays of an observation by path, and their leading axes."""
        parts: dict[str, Array] = dict(tree_leaves(obs))
        x = parts[self.spec.leaves[0].path]
        return parts, x.shape[: x.ndim - len(self.spec.leaves[0].shape)]

    def _vector(self, parts: Mapping[str, Array], leaf: Leaf, lead: tuple[int, ...]) -> Array:
        x = np.asarray(parts[leaf.path])
        if leaf.kind == "vector":
            x = x.reshape(*lead, leaf.width).astype(np.float32, copy=False)
            return x if leaf.scale == 1 else x * np.float32(leaf.scale)
        index = x.reshape(*lead, len(leaf.nvec)) - np.asarray(leaf.start)
        index = index + np.concatenate([[0], np.cumsum(leaf.nvec)[:-1]]).astype(np.int64)
        encoded = np.zeros((*lead, leaf.width), np.float32)
        np.put_along_axis(encoded, index, 1.0, -1)
        return encoded

    def raw_vector(self, obs: Tree) -> Array:
        """Extract the elements that will be normalised, before that happens: [..., D]."""
        parts, lead = self._parts(obs)
        vectors = [self._vector(parts, leaf, lead) for leaf in self._rest if leaf.kind == "vector"]
        return vectors[0] if len(vectors) == 1 else np.concatenate([*vectors, np.zeros((*lead, 0), np.float32)], -1)

    def _normalized(self, x: Array) -> Array:
        x = (x - self._mean) * self._scale
        return x.clip(-self.spec.clip, self.spec.clip, out=x)

    def _frame(self, obs: Tree) -> tuple[Array, dict[str, Array]]:
        """Encode single frames: vector [..., D] (normalised elements first) and images [..., C, H, W]."""
        parts, lead = self._parts(obs)
        x = self.raw_vector(obs)
        if self.spec.normalize and self.normalized_size:
            x = self._normalized(x)
        encoded = [self._vector(parts, leaf, lead) for leaf in self._rest if leaf.kind != "vector"]
        if encoded:
            x = np.concatenate([x, *encoded], -1)
        images = {}
        for leaf in self._images:
            image = parts[leaf.path]
            if leaf.channels_last:
                image = np.moveaxis(image, -1, -3)
            images[leaf.path] = image.reshape(*lead, *leaf.image_shape)
        return x, images

    # -- frame stacks --------------------------------------------------------------------------------------------

    def initial_state(self, num_streams: int) -> Tree | None:
        """Zeros for the earlier frames [B, k - 1, *] of every leaf, or None without stacking."""
        if self.spec.frame_stack == 1:
            return None
        lead = (num_streams, self.spec.frame_stack - 1)
        return nest({leaf.path: np.zeros((*lead, *leaf.shape), leaf.dtype) for leaf in self.spec.leaves})

    def push(self, obs: Tree, state: Tree, first: Array) -> Tree:
        """Append obs [B, *] to the frames in `state`: stacks [B, k, *], oldest first. Where `first` [B], obs fills the stack."""

        def one(old: Array, x: Array) -> Array:
            stack = np.concatenate([old, x[:, None].astype(old.dtype, copy=False)], 1)
            if first.any():
                stack[first] = x[first][:, None]
            return stack

        return tree_map(one, state, obs)  # all parts but the action mask, of which there are no earlier frames

    # -- what policies and learners call ------------------------------------------------------------------------

    def step(self, obs: Tree, state: Tree | None, first: Array) -> tuple[Inputs, Tree | None]:
        """Compute inputs [B, *] for one step of B streams, and the next state."""
        if self._is_plain:
            assert isinstance(obs, np.ndarray)
            x = obs.reshape(len(obs), -1).astype(np.float32, copy=False)
            return Inputs(self._normalized(x) if self.spec.normalize else x, {}), None
        if state is None:
            return self.batch(obs), None
        stack = self.push(obs, state, first)
        return self._inputs(stack, obs), tree_map(lambda s: s[:, 1:], stack)

    def sequence(self, obs: Tree, state: Tree | None, first: Array) -> tuple[Inputs, Tree | None]:
        """Compute inputs [T, B, *] for a fragment with obs [T, B, *] and first [T, B], and its stacks [T, B, k, *] or None."""
        if state is None:
            return self.batch(obs), None
        stacks = []
        for t in range(len(first)):
            stack = self.push(tree_map(lambda x, t=t: x[t], obs), state, first[t])
            state = tree_map(lambda s: s[:, 1:], stack)
            stacks.append(stack)
        stacked = tree_stack(stacks)
        return self._inputs(stacked, obs), stacked

    def after(self, obs: Tree, stacks: Tree | None, t: Array, b: Array) -> Inputs:
        """Compute inputs [K, *] for true last observations [K, *] that follow rows (t, b) of `stacks` (from `sequence`)."""
        if stacks is None:
            return self.batch(obs)
        previous = tree_map(lambda s: s[t, b][:, 1:], stacks)
        return self._inputs(self.push(obs, previous, np.zeros(len(t), bool)), obs)

    def batch(self, obs: Tree) -> Inputs:
        """Compute inputs [N, *] for observations [N, *], or stacks [N, k, *], of a replay buffer."""
        return self._inputs(obs, obs)

    def _inputs(self, frames: Tree, obs: Tree) -> Inputs:
        """Encode single frames or stacks; the mask is that of the newest observations."""
        vector, images = self._frame(frames)
        if self.spec.frame_stack > 1:
            # [..., k, D], [..., k, C, H, W]
            vector = vector.reshape(*vector.shape[:-2], -1)
            images = {p: x.reshape(*x.shape[:-4], -1, *x.shape[-2:]) for p, x in images.items()}
        mask = None
        if self.spec.mask_size:
            assert not isinstance(obs, np.ndarray)
            mask = np.asarray(obs["action_mask"]).astype(bool).reshape(*vector.shape[:-1], self.spec.mask_size)
        return Inputs(vector, images, mask)


def nest(flat: Mapping[str, Array]) -> Tree:
    """Build the tree behind {path: array}; the inverse of `tree_leaves`."""
    if list(flat) == [""]:
        return flat[""]
    parts: dict[str, dict[str, Array]] = {}
    for path, array in flat.items():
        key, _, rest = path.partition("/")
        parts.setdefault(key, {})[rest] = array
    return {key: nest(part) for key, part in parts.items()}
