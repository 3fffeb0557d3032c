"""Action distributions. The arithmetic is written once and serves NumPy arrays (acting) and torch tensors (learning).

Shapes: params [..., P], the network's outputs; log_std [A] for Gaussians, a weight that does not depend on the
observation; actions canonical: categorical int64 [...], all others [..., A]; log_prob and entropy [...].
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from raypid.nn.network_spec import ActionLeaf
from raypid.types import Array, ArrayT, Tensor, Tree, TreeOf, tree_leaves

_LOG_2PI = math.log(2 * math.pi)
MASKED = -1e8
_EDGE = 1 - 1e-6


def array_module(x: Array | Tensor) -> Any:
    """numpy or torch: what has the functions for `x`."""
    return np if isinstance(x, np.ndarray) else sys.modules["torch"]


def log_softmax(x: ArrayT, axis: int = -1) -> ArrayT:
    if not isinstance(x, np.ndarray):
        return x.log_softmax(axis)
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def _gather(x: ArrayT, index: ArrayT) -> ArrayT:
    """x[..., index]: [..., P] and [...] to [...]."""
    if isinstance(x, np.ndarray):
        return np.take_along_axis(x, index[..., None], -1)[..., 0]
    return x.gather(-1, index[..., None])[..., 0]


def _softplus(x: ArrayT) -> ArrayT:
    return np.logaddexp(0, x) if isinstance(x, np.ndarray) else sys.modules["torch"].nn.functional.softplus(x)


class Noise:
    """Noise of B streams, [B, A] for each step, that may be alike from step to step. That changes no step's distribution."""

    def __init__(self, kept: Array | None = None) -> None:
        self.kept = kept
        """[B] r, the correlation of a step's noise with the next one's. 0, or None for all: white noise."""
        self._last: Array | None = None

    def held(self, fresh: Array, rng: np.random.Generator) -> Array:
        """`fresh`, or in a part r^2 of all steps (so much of its variance does normal noise keep) what the stream had in the step before."""
        if self.kept is None:
            return fresh
        if self._last is not None:
            fresh = np.where((rng.random(len(fresh)) < self.kept**2)[:, None], self._last, fresh)
        self._last = fresh
        return fresh

    def normal(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Standard normal noise, float32: z' = r z + sqrt(1 - r^2) e (Eberhard et al. 2023 say why)."""
        fresh = rng.standard_normal(shape, dtype=np.float32)
        if self.kept is None:
            return fresh
        r = self.kept[:, None]
        self._last = fresh if self._last is None else r * self._last + np.sqrt(1 - r * r) * fresh
        return self._last


class ActionDistribution:
    """The base of all distributions over the action of one leaf. It has all probability at the network's output itself; subclasses spread it."""

    def __init__(self, leaf: ActionLeaf) -> None:
        self.leaf = leaf
        self.noise = Noise()
        """What actions are drawn by."""

    def sample(self, params: Array, log_std: Array | None, rng: np.random.Generator) -> Array:
        """A random action (NumPy)."""
        return self.mode(params)

    def uniform(self, num: int, mask: Array | None, rng: np.random.Generator) -> Array:
        """`num` actions that know nothing of the observation (NumPy): uniform over [-1, 1] here, over the allowed
        choices where these are discrete."""
        if self.noise.kept is None:
            return rng.uniform(-1, 1, (num, self.leaf.size)).astype(np.float32)
        z = self.noise.normal((num, self.leaf.size), rng)
        # 2 * Phi(z) - 1 to three digits (Hendrycks and Gimpel 2016)
        return np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z * z * z))

    def mode(self, params: Array) -> Array:
        """The most likely action: what a greedy policy does."""
        return params

    def log_prob(self, params: ArrayT, log_std: ArrayT | None, action: ArrayT) -> ArrayT:
        return params[..., 0] * 0

    def entropy(self, params: ArrayT, log_std: ArrayT | None) -> ArrayT:
        return params[..., 0] * 0


class Categorical(ActionDistribution):
    """One of n; params are logits."""

    def uniform(self, num: int, mask: Array | None, rng: np.random.Generator) -> Array:
        logits = np.zeros((num, self.leaf.num_params), np.float32)
        return self.sample(logits if mask is None else np.where(mask, logits, MASKED), None, rng)

    def sample(self, params: Array, log_std: Array | None, rng: np.random.Generator) -> Array:
        # argmax of logits + Gumbel noise; the negative log of an exponential is Gumbel
        noise = self.noise.held(rng.standard_exponential(params.shape, dtype=np.float32), rng)
        return self.mode(params - np.log(noise + 1e-20))

    def mode(self, params: Array) -> Array:
        return params.argmax(-1)

    def log_prob(self, params: ArrayT, log_std: ArrayT | None, action: ArrayT) -> ArrayT:
        return _gather(log_softmax(params), action)

    def entropy(self, params: ArrayT, log_std: ArrayT | None) -> ArrayT:
        log_p = log_softmax(params)
        return -(array_module(params).exp(log_p) * log_p).sum(-1)


class MultiCategorical(Categorical):
    """Several categoricals side by side."""

    def _parts(self, x: ArrayT) -> list[ArrayT]:
        return [x[..., columns] for columns in slices(self.leaf.nvec)]

    def mode(self, params: Array) -> Array:
        return np.stack([p.argmax(-1) for p in self._parts(params)], -1)

    def log_prob(self, params: ArrayT, log_std: ArrayT | None, action: ArrayT) -> ArrayT:
        parts = [_gather(log_softmax(p), action[..., i]) for i, p in enumerate(self._parts(params))]
        return sum(parts[1:], parts[0])

    def entropy(self, params: ArrayT, log_std: ArrayT | None) -> ArrayT:
        parts = [Categorical.entropy(self, p, None) for p in self._parts(params)]
        return sum(parts[1:], parts[0])


class Bernoulli(ActionDistribution):
    """Independent bits; params are logits."""

    def uniform(self, num: int, mask: Array | None, rng: np.random.Generator) -> Array:
        return self.sample(np.zeros((num, self.leaf.size), np.float32), None, rng)

    def sample(self, params: Array, log_std: Array | None, rng: np.random.Generator) -> Array:
        noise = self.noise.held(rng.random(params.shape, dtype=np.float32), rng)
        return (noise < 1 / (1 + np.exp(-params))).astype(np.int64)

    def mode(self, params: Array) -> Array:
        return (params > 0).astype(np.int64)

    def log_prob(self, params: ArrayT, log_std: ArrayT | None, action: ArrayT) -> ArrayT:
        return -_softplus((1 - 2 * action) * params).sum(-1)

    def entropy(self, params: ArrayT, log_std: ArrayT | None) -> ArrayT:
        p = 1 / (1 + array_module(params).exp(-params))
        return (_softplus(params) - p * params).sum(-1)


class DiagGaussian(ActionDistribution):
    """Independent normals; params are means, log_std is a weight."""

    def sample(self, params: Array, log_std: Array | None, rng: np.random.Generator) -> Array:
        assert log_std is not None
        return params + np.exp(log_std) * self.noise.normal(params.shape, rng)

    def log_prob(self, params: ArrayT, log_std: ArrayT | None, action: ArrayT) -> ArrayT:
        assert log_std is not None
        z = (action - params) * array_module(params).exp(-log_std)
        return -0.5 * (z * z).sum(-1) - log_std.sum() - 0.5 * _LOG_2PI * self.leaf.size

    def entropy(self, params: ArrayT, log_std: ArrayT | None) -> ArrayT:
        assert log_std is not None
        return params[..., 0] * 0 + (log_std.sum() + 0.5 * (1 + _LOG_2PI) * self.leaf.size)


class SquashedGaussian(ActionDistribution):
    """tanh of a normal: actions in (-1, 1); params are means and raw log deviations (Haarnoja et al. 2018, appendix C)."""

    def _split(self, params: ArrayT) -> tuple[ArrayT, ArrayT]:
        n = self.leaf.size
        return params[..., :n], -5 + 3.5 * (array_module(params).tanh(params[..., n:]) + 1)  # log deviation in (-5, 2)

    def sample(self, params: Array, log_std: Array | None, rng: np.random.Generator) -> Array:
        mean, log_deviation = self._split(params)
        u = mean + np.exp(log_deviation) * self.noise.normal(mean.shape, rng)
        return np.clip(np.tanh(u), -_EDGE, _EDGE)

    def mode(self, params: Array) -> Array:
        return np.tanh(params[..., : self.leaf.size])

    def log_prob(self, params: ArrayT, log_std: ArrayT | None, action: ArrayT) -> ArrayT:
        xp = array_module(params)
        mean, log_deviation = self._split(params)
        action = xp.clip(action, -_EDGE, _EDGE)
        u = 0.5 * (xp.log1p(action) - xp.log1p(-action))
        z = (u - mean) * xp.exp(-log_deviation)
        return (-0.5 * z * z - log_deviation - 0.5 * _LOG_2PI - xp.log(1 - action * action)).sum(-1)

    def entropy(self, params: ArrayT, log_std: ArrayT | None) -> ArrayT:
        """The normal's entropy with the squashing's log slope at the mean: exact only for small deviations."""
        mean, log_deviation = self._split(params)
        log_slope = 2 * (math.log(2) - mean - _softplus(-2 * mean))
        return (log_deviation + 0.5 * (1 + _LOG_2PI) + log_slope).sum(-1)


class Deterministic(ActionDistribution):
    """The network's output itself."""


class SquashedDeterministic(Deterministic):
    """tanh of the network's output: actions in (-1, 1)."""

    def mode(self, params: Array) -> Array:
        return array_module(params).tanh(params)


_KINDS: dict[str, type[ActionDistribution]] = {
    "categorical": Categorical,
    "multi_categorical": MultiCategorical,
    "bernoulli": Bernoulli,
    "gaussian": DiagGaussian,
    "squashed_gaussian": SquashedGaussian,
    "deterministic": Deterministic,
    "squashed_deterministic": SquashedDeterministic,
}


class JointDistribution:
    """The distribution over a whole action: of one leaf, or the product over the leaves of a nested action (joint).

    A joint action is {path: canonical leaf}. `mask` [..., A] bool allows choices of the discrete leaves, in their order.
    """

    def __init__(self, leaves: tuple[ActionLeaf, ...]) -> None:
        self.leaves = leaves
        self.parts = [_KINDS[leaf.kind](leaf) for leaf in leaves]
        self._only = self.parts[0] if len(leaves) == 1 and not leaves[0].path else None
        self._params = slices([leaf.num_params for leaf in leaves])
        self._log_std = slices([leaf.size if leaf.kind == "gaussian" else 0 for leaf in leaves])
        self._masks = slices([leaf.mask_size for leaf in leaves])

    def masked(self, params: ArrayT, mask: ArrayT | None) -> ArrayT:
        """Logits of forbidden choices at -1e8, so that their probability and gradient are 0."""
        if mask is None:
            return params
        xp, columns = array_module(params), []
        for leaf, where, allowed in zip(self.leaves, self._params, self._masks, strict=True):
            part = params[..., where]
            columns.append(xp.where(mask[..., allowed], part, MASKED) if leaf.mask_size else part)
        return columns[0] if len(columns) == 1 else xp.concatenate(columns, -1)

    def _each(self, params: ArrayT, log_std: ArrayT | None) -> list[tuple[ActionDistribution, ArrayT, ArrayT | None]]:
        if len(self.parts) == 1:
            return [(self.parts[0], params, log_std)]
        scales = [None if log_std is None else log_std[s] for s in self._log_std]
        return [(d, params[..., s], scale) for d, s, scale in zip(self.parts, self._params, scales, strict=True)]

    def sample(self, params: Array, log_std: Array | None, rng: np.random.Generator) -> Tree:
        if self._only is not None:
            return self._only.sample(params, log_std, rng)
        return _whole({d.leaf.path: d.sample(p, s, rng) for d, p, s in self._each(params, log_std)})

    def draw_by(self, kept: Array | None) -> None:
        """Draw actions from new noise with this correlation for each stream (`Noise.kept`)."""
        for part in self.parts:
            part.noise = Noise(kept)

    def uniform(self, num: int, mask: Array | None, rng: np.random.Generator) -> Tree:
        """Actions [num, *] at random, without regard to the observation; only what `mask` allows."""
        masks = [None if mask is None else mask[..., columns] for columns in self._masks]
        return _whole({d.leaf.path: d.uniform(num, m, rng) for d, m in zip(self.parts, masks, strict=True)})

    def perturbed(self, action: Tree, deviation: float | Array, rng: np.random.Generator) -> Tree:
        """Continuous actions with noise of this deviation, clipped to [-1, 1]."""
        actions: dict[str, Array] = dict(tree_leaves(action))
        added = {d.leaf.path: deviation * d.noise.normal(actions[d.leaf.path].shape, rng) for d in self.parts}
        return _whole({path: np.clip(actions[path] + noise, -1, 1, dtype=np.float32) for path, noise in added.items()})

    def mode(self, params: Array) -> Tree:
        return _whole({d.leaf.path: d.mode(p) for d, p, _ in self._each(params, None)})

    def log_prob(self, params: ArrayT, log_std: ArrayT | None, action: TreeOf[ArrayT]) -> ArrayT:
        parts: dict[str, ArrayT] = dict(tree_leaves(action))
        terms = [d.log_prob(p, s, parts[d.leaf.path]) for d, p, s in self._each(params, log_std)]
        return sum(terms[1:], terms[0])

    def entropy(self, params: ArrayT, log_std: ArrayT | None) -> ArrayT:
        terms = [d.entropy(p, s) for d, p, s in self._each(params, log_std)]
        return sum(terms[1:], terms[0])


def _whole(parts: dict[str, Array]) -> Tree:
    """Return the action that these parts make: the only part of an action that is one array, else all by path."""
    return parts.get("", parts)


def slices(sizes: Sequence[int]) -> list[slice]:
    """The columns of parts of these sizes, side by side."""
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
