"""Intrinsic rewards: what the learner gives in place of the task's rewards, to explore where the task says nothing."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from raypid.algorithms.base import State
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.numpy_mlp import orthogonal
from raypid.nn.pipeline import Inputs, Pipeline
from raypid.ops.normalizer import (
    ReturnScaler,
    merge_moments,
    moments_of,
    scale_of,
    zero_moments,
)
from raypid.ops.optim import Adam
from raypid.ops.returns import next_values
from raypid.plugins.registry import INTRINSIC_REWARDS
from raypid.settings.config import ConfigError
from raypid.types import Array, Collective, Moments, Trajectory, flat_views, matching, tree_map


class IntrinsicReward(ABC):
    """Base class of rewards that the learner computes in place of the task's, such as novelty, and learns to compute.

    A subclass writes `__init__`, `reward`, `state_dict` and `load_state_dict`. Give the class as the setting `intrinsic_reward`.

    Args:
        spec: the policy's network; its pipeline says how observations become numbers.
        gamma: discount.
        seed: seed of all random numbers.
    """

    metric_names: ClassVar[frozenset[str] | None] = None
    """Names of all metrics that `metrics` returns (learner/NAME). It is not inherited: a class that does not set it may return any."""
    several_learners: ClassVar[bool] = False
    """Whether `reward` uses `collective`. If it does not, num_learners above 1 is refused."""
    collective: Collective | None = None
    """Communication with the other learners of the run, each of which gets its own workers' trajectories; None for a single learner."""

    @abstractmethod
    def __init__(self, spec: NetworkSpec, gamma: float, seed: int) -> None: ...

    @abstractmethod
    def reward(self, trajectory: Trajectory) -> Array:
        """Return rewards [T, B] float32 for a trajectory, and learn from it. Called once for each trajectory."""

    @abstractmethod
    def state_dict(self) -> State:
        """Return everything that the next rewards depend on."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of the last trajectory, by name."""
        return {}


def intrinsic_class(entry: object) -> Any:
    """Return the IntrinsicReward class that a setting names.

    Raises:
        ConfigError: `entry` is not an IntrinsicReward.
        UserError: an unknown name.
    """
    found = INTRINSIC_REWARDS.get(entry) if isinstance(entry, str) else entry
    if not (inspect.isclass(found) and issubclass(found, IntrinsicReward)):
        raise ConfigError(f"intrinsic_reward takes rnd, an IntrinsicReward class or 'module:Name', not {entry!r}.")
    return found


EMBEDDING = 64
HIDDEN = 128
LR = 1e-3
CLIP = 5.0
"""Normalised observations are clipped to [-CLIP, CLIP] (section 2.4)."""


class RandomNetworkDistillation(IntrinsicReward):
    """Novelty: the squared error of a predictor of what a fixed random network says of the next observation (Burda et al. 2018,
    arXiv:1810.12894). It falls where one has often been.

    Observations are normalised by their running moments and clipped to 5, rewards divided by the running deviation of their
    discounted return (section 2.4). The predictor has a layer more than the target and takes a step of Adam a trajectory. Several
    learners make the steps that one would with all rows. Images count pixel by pixel; of frame stacks the newest frame.
    """

    several_learners = True
    metric_names = frozenset({"novelty"})

    def __init__(self, spec: NetworkSpec, gamma: float, seed: int) -> None:
        self.pipeline = Pipeline(replace(spec.pipeline, normalize=False, frame_stack=1))
        leaves = spec.pipeline.leaves
        size = sum(int(np.prod(x.image_shape)) if x.kind == "image" else x.width for x in leaves)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(4,)))
        self.target = _Network((size, HIDDEN, EMBEDDING), rng)
        self.predictor = _Network((size, HIDDEN, HIDDEN, EMBEDDING), rng)
        self.optimizer = Adam(self.predictor.flat, eps=1e-8)
        self.moments = zero_moments(size)
        self.scaler = ReturnScaler(gamma)
        self.mean = float("nan")
        """Mean novelty of the last trajectory, before scaling."""

    def novelty(self, inputs: Array) -> tuple[Array, Array, list[Array]]:
        """Compute the mean squared error [N], the error [N, E] and the predictor's layers for inputs [N, D]."""
        mean, inverse = scale_of(self.moments)
        x = np.clip((inputs - mean) * inverse, -CLIP, CLIP)
        layers = self.predictor.forward(x)
        error = layers[-1] - self.target.forward(x)[-1]
        return np.mean(error * error, -1), error, layers

    def reward(self, trajectory: Trajectory) -> Array:
        t = trajectory
        inputs = self._next_inputs(t)
        rows = inputs[t.valid]
        seen = moments_of(rows)
        everywhere = [seen] if self.collective is None else self.collective.gather(seen)
        self.moments = reduce(merge_moments, everywhere, self.moments)
        novelty = np.zeros(t.valid.shape, np.float32)
        novelty[t.valid], error, layers = self.novelty(rows)
        gradient = self.predictor.backward(layers, error * np.float32(2 / EMBEDDING))
        total, count = np.array([novelty.sum(), len(rows)], np.float64)
        if self.collective is not None:
            self.collective.sum(gradient)
            total, count = self.collective.sum(np.array([total, count]))
        if count:
            self.mean = total / count
            self.optimizer.step(gradient / np.float32(count), LR)
        return self.scaler.scale(novelty, t.first, t.valid, self.collective, t.stream)

    def _next_inputs(self, t: Trajectory) -> Array:
        """[T, B, D] of the observations that the actions led to."""
        if t.final is None:
            obs = tree_map(next_values, t.obs)
        else:
            ends = t.final.t, t.final.b
            obs = tree_map(lambda x, last: next_values(x, *ends, last), t.obs, t.final.obs)
        return _flat(self.pipeline.sequence(obs, None, t.first[1:])[0])

    def metrics(self) -> dict[str, float]:
        return {"novelty": self.mean}

    def state_dict(self) -> State:
        return {
            "target": self.target.flat.copy(),
            "predictor": self.predictor.flat.copy(),
            "optimizer": self.optimizer.state_dict(),
            "moments": self.moments.as_arrays(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.target.flat[:] = matching(state["target"], self.target.flat)
        self.predictor.flat[:] = matching(state["predictor"], self.predictor.flat)
        self.optimizer.load_state_dict(state["optimizer"])
        self.moments = Moments.from_arrays(state["moments"], size=len(self.moments.mean))
        self.scaler.load_state_dict(state["scaler"])


class _Network:
    """Fully connected layers with ReLU between them, on one flat buffer."""

    def __init__(self, sizes: tuple[int, ...], rng: np.random.Generator) -> None:
        pairs = list(zip(sizes[:-1], sizes[1:], strict=True))
        self.table = tuple(
            (f"{i}.{part}", shape) for i, (a, b) in enumerate(pairs) for part, shape in (("w", (a, b)), ("b", (b,)))
        )
        self.flat = np.zeros(sum(int(np.prod(shape)) for _, shape in self.table), np.float32)
        self.views = flat_views(self.flat, self.table)
        self.num_layers = len(pairs)
        for i, pair in enumerate(pairs):
            self.views[f"{i}.w"][:] = orthogonal(rng, pair, np.sqrt(2))

    def forward(self, x: Array) -> list[Array]:
        """Return the inputs [N, D] and the outputs of each layer."""
        layers = [x.astype(np.float32, copy=False)]
        for i in range(self.num_layers):
            x = layers[-1] @ self.views[f"{i}.w"] + self.views[f"{i}.b"]
            layers.append(np.maximum(x, 0, out=x) if i < self.num_layers - 1 else x)
        return layers

    def backward(self, layers: list[Array], d: Array) -> Array:
        """Return the gradient [P], summed over rows, from the gradient d [N, E] of the outputs."""
        gradient = np.zeros_like(self.flat)
        parts = flat_views(gradient, self.table)
        for i in reversed(range(self.num_layers)):
            parts[f"{i}.w"][:] = layers[i].T @ d
            parts[f"{i}.b"][:] = d.sum(0)
            d = (d @ self.views[f"{i}.w"].T) * (layers[i] > 0)
        return gradient


def _flat(inputs: Inputs) -> Array:
    """[T, B, D]: vector and images side by side."""
    lead = inputs.vector.shape[:2]
    images = [x.reshape(*lead, -1).astype(np.float32) for x in inputs.images.values()]
    return np.concatenate([inputs.vector, *images], -1) if images else inputs.vector
