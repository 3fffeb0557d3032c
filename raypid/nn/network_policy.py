"""Acting with a network: from raw observations to actions, with the pipeline inside.

Axes: T rows of a fragment; B streams; A elements of an action; P distribution parameters; K memories of S numbers each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.random import Generator

from raypid.nn.distributions import JointDistribution
from raypid.nn.network_spec import ActionLeaf, NetworkSpec
from raypid.nn.numpy_cells import initial_memory, join_state, reset_memory, split_state
from raypid.nn.numpy_mlp import SmallNetwork
from raypid.nn.pipeline import Inputs, Pipeline, nest
from raypid.nn.q_head import q_values
from raypid.plugins.extras import need
from raypid.types import Array, Moments, Trajectory, Tree, Weights, to_numpy, tree_leaves, tree_map

if TYPE_CHECKING:
    from raypid.nn.networks import TorchNetwork

Exploration: TypeAlias = Mapping[str, "float | Array"]
"""How to explore during one call: random (act without the network), epsilon (for all streams, or [B]), noise."""


@dataclass(slots=True)
class Acted:
    """Actions that a policy chose for B streams."""

    action: Tree
    """[B, *] canonical: before scaling and clipping."""
    state: Tree | None = None
    """State of the policy before the next row; None where it keeps none."""
    behaviour: dict[str, Array] = field(default_factory=dict)
    """Arrays [B, *] for the learner, by name; they become the trajectory's `behaviour`."""
    params: Array | None = None
    """Distribution parameters [B, P]. Stacked to [T, B, P], `complete` makes the log-probabilities from them."""


def _bounds(leaf: ActionLeaf) -> tuple[Array, Array, Array, Array]:
    """Low, high, centre and half range [A]; an element without both bounds is not scaled."""
    low, high = np.asarray(leaf.low, np.float64), np.asarray(leaf.high, np.float64)
    both = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        center = np.where(both, (low + high) / 2, 0.0)
        half = np.where(both, (high - low) / 2, 1.0)
    if leaf.dtype in ("float32", "float16"):  # bounds rounded to float32 may lie outside a finer space
        low, high = low.astype(np.float32), high.astype(np.float32)
    return low, high, center.astype(np.float32), half.astype(np.float32)


class NetworkPolicy:
    """Base class of policies: pipeline, network, and the map from canonical actions to the environment's. Workers and
    evaluators act with it."""

    network: SmallNetwork | TorchNetwork
    """Built when the first weights are loaded."""

    def __init__(self, spec: NetworkSpec) -> None:
        self.spec = spec
        self.pipeline = Pipeline(spec.pipeline)
        self.distribution = JointDistribution(spec.actions)
        self._bounds = {leaf.path: _bounds(leaf) for leaf in spec.actions if leaf.low}
        self.version = -1
        self.exploration: Exploration = {}
        self.temperature: Array | None = None
        """Temperature of a softmax over action values; it comes with the weights."""
        self.greedy = True
        """Whether it takes its best action without exploration."""

    def to_env(self, action: Tree) -> Tree:
        """Map canonical actions [B, *] to what the environment takes: bounds, offsets, shapes."""
        if isinstance(action, np.ndarray):
            return self._leaf_to_env(self.spec.actions[0], action)
        leaves: Iterator[tuple[str, Array]] = tree_leaves(action)
        parts = dict(leaves)
        return nest({leaf.path: self._leaf_to_env(leaf, parts[leaf.path]) for leaf in self.spec.actions})

    def _leaf_to_env(self, leaf: ActionLeaf, action: Array) -> Array:
        if leaf.kind == "categorical":
            return action + leaf.start[0] if leaf.start[0] else action
        if not leaf.low:
            offset = np.asarray(leaf.start, np.int64) if leaf.start else 0
            return (action + offset).reshape(len(action), *leaf.shape).astype(leaf.dtype, copy=False)
        low, high, center, half = self._bounds[leaf.path]
        out = (action * half + center).clip(low, high)
        if np.dtype(leaf.dtype).kind in "iu":
            out = np.rint(out)
        return out.reshape(len(action), *leaf.shape).astype(leaf.dtype, copy=False)

    def initial_state(self, num_streams: int) -> Tree | None:
        """Return the state with which episodes begin, [B, *]; None where the policy keeps none."""
        memory = initial_memory(self.spec, num_streams) if self.spec.memory else None
        return join_state(self.pipeline.initial_state(num_streams), memory)

    def load(self, weights: Weights) -> None:
        """Load weights. NumPy networks keep the array without a copy."""
        if not hasattr(self, "network"):
            self.network = _acting_network(self.spec, weights.flat)
        self.network.load(weights.flat)
        self._log_std = None if self.network.log_std is None else to_numpy(self.network.log_std)
        if self.spec.pipeline.normalize:
            self.pipeline.load(Moments.from_arrays(weights.extra, "obs_"))
        self.temperature = weights.extra.get("temperature")
        self.version = weights.version

    def act(self, obs: Tree, state: Tree | None, first: Array, rng: np.random.Generator, *, explore: bool) -> Acted:
        """Choose actions for raw observations [B, *]; `first` [B] says where an episode begins."""
        frames, memory = split_state(self.spec, state)
        inputs, frames = self.pipeline.step(obs, frames, first)
        if memory is not None:
            memory = reset_memory(memory, first)
        if explore and self.exploration.get("random"):
            if memory is not None:  # the memory still follows what is seen
                memory = self.network.policy(inputs, memory)[2]
            return Acted(self.distribution.uniform(len(first), inputs.mask, rng), join_state(frames, memory))
        if self.spec.noisy:
            self.network.perturb(rng if explore else None)
        params, value, memory = self.network.policy(inputs, memory)
        acted = self.choose(params, value, inputs, rng if explore else None)
        acted.state = join_state(frames, memory)
        return acted

    def choose(self, params: Array, value: Array | None, inputs: Inputs, rng: Generator | None) -> Acted:
        """Choose actions from the network's outputs for inputs [B, *], greedily without `rng`. `act` adds the state."""
        params = self.distribution.masked(params, inputs.mask)
        action = self.distribution.sample(params, self._log_std, rng) if rng else self.distribution.mode(params)
        return Acted(action, behaviour={} if value is None else {"value": value}, params=params)

    def complete(self, trajectory: Trajectory, states: Sequence[Tree | None], params: Array | None) -> None:
        """Add to `trajectory.behaviour` what is cheaper to compute for a whole fragment than step by step.

        The base class adds nothing: replay needs no behaviour.

        Args:
            states: the policy's states before each row and after the last, T + 1 of them, where it has a memory.
            params: [T, B, P] from `Acted`, where it has them.
        """


class ActorPolicy(NetworkPolicy):
    """A policy without a value: draws from its distribution, or adds noise where it has none."""

    def choose(self, params: Array, value: Array | None, inputs: Inputs, rng: Generator | None) -> Acted:
        action, deviation = super().choose(params, value, inputs, rng).action, self.exploration.get("noise")
        if rng is not None and deviation:
            action = self.distribution.perturbed(action, deviation, rng)
        return Acted(action)


class QPolicy(NetworkPolicy):
    """A policy over action values: the best action, epsilon-greedy, or (with a temperature) a softmax of Q /
    temperature."""

    def choose(self, params: Array, value: Array | None, inputs: Inputs, rng: Generator | None) -> Acted:
        if value is None and self.spec.dueling and self.spec.atoms:  # plain dueling needs no value to compare actions
            value = self.network.values(inputs)
        q: Array = params if self.spec.dueling and value is None else q_values(self.spec, params, value)
        q = self.distribution.masked(q, inputs.mask)
        if rng is not None and self.temperature is not None:
            return Acted(self.distribution.sample(q / self.temperature, None, rng))
        action: Array = q.argmax(-1)
        if rng is not None:
            random = rng.random(len(action)) < self.exploration.get("epsilon", 0.0)
            if random.any():
                action = np.where(random, self.distribution.parts[0].uniform(len(action), inputs.mask, rng), action)
        return Acted(action)


class ActorCriticPolicy(NetworkPolicy):
    """A policy and a value: NumPy for fully connected networks, torch for the others."""

    def complete(self, trajectory: Trajectory, states: Sequence[Tree | None], params: Array | None) -> None:
        """Fill behaviour: log_prob [T, B], value [T+1, B] and, where there are true last observations, final_value [K]."""
        t, behaviour = trajectory, trajectory.behaviour
        assert params is not None
        log_prob = self.distribution.log_prob(params, self._log_std, t.action)
        behaviour["log_prob"] = log_prob.astype(np.float32, copy=False)
        if self.spec.memory:
            self._recurrent_values(t, states)
            return
        inputs, stacks = self.pipeline.sequence(t.obs, t.state, t.first)
        if "value" in behaviour:  # came with the actions: only the row after the last is missing
            last = self.network.value(inputs.take(-1))
            behaviour["value"] = np.concatenate([behaviour["value"], last[None]])
        else:
            behaviour["value"] = self.network.value(inputs.flatten()).reshape(t.first.shape)
        if t.final is not None:
            after = self.pipeline.after(t.final.obs, stacks, t.final.t, t.final.b)
            behaviour["final_value"] = self.network.value(after)

    def _recurrent_values(self, t: Trajectory, states: Sequence[Tree | None]) -> None:
        """Add the values that follow the last row, and those of true last observations, by one step more from the state
        that was there. Only truncated episodes bootstrap from a true last observation; the others get 0."""
        unused = np.random.default_rng(0)  # the best action needs no random numbers

        def value(obs: Tree, state: Tree | None, first: Array) -> Array:
            return self.act(obs, state, first, unused, explore=False).behaviour["value"]

        after = value(tree_map(lambda x: x[-1], t.obs), states[-1], t.first[-1])
        t.behaviour["value"] = np.concatenate([t.behaviour["value"], after[None]])
        if t.final is None:
            return
        t.behaviour["final_value"] = np.zeros(len(t.final.t), np.float32)
        needed = np.flatnonzero((t.truncated & ~t.terminated)[t.final.t, t.final.b])
        for row in np.unique(t.final.t[needed]):
            found = needed[t.final.t[needed] == row]
            state = tree_map(lambda x, b=t.final.b[found]: x[b], states[row + 1])
            obs = tree_map(lambda x, found=found: x[found], t.final.obs)
            t.behaviour["final_value"][found] = value(obs, state, np.zeros(len(found), bool))


def _acting_network(spec: NetworkSpec, flat: Array) -> SmallNetwork | TorchNetwork:
    if spec.torch_free:
        return SmallNetwork(spec, flat)
    need({"torch": f"A policy with the network {spec.network}"})
    from raypid.nn.networks import TorchNetwork

    network = TorchNetwork(spec)
    # no dropout
    network.module.eval()
    return network
