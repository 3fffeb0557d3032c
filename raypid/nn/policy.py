"""Acting: from raw observations to actions, with the pipeline inside. The same object acts in workers, evaluation and deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from raypid.nn.distributions import ActionDistribution
from raypid.nn.network_spec import ActionLeaf, NetworkSpec
from raypid.nn.numpy_cells import begun, initial_memory, join_state, split_state
from raypid.nn.numpy_mlp import SmallNetwork
from raypid.nn.pipeline import Inputs, Pipeline, nest
from raypid.nn.q_head import q_values
from raypid.types import Array, Moments, Trajectory, Tree, Weights, tree_leaves, tree_map


class Policy(Protocol):
    """What rollout workers and evaluators act with."""

    def initial_state(self, num_streams: int) -> Tree | None: ...

    def act(
        self, obs: Tree, state: Tree | None, first: Array, rng: np.random.Generator, *, explore: bool
    ) -> tuple[Tree, Tree | None, dict[str, Array]]:
        """obs [B, *] raw, first [B] -> (canonical action [B, *], next state, behaviour)."""

    def complete(self, trajectory: Trajectory, states: Sequence[Tree | None]) -> None:
        """Add what is cheaper for a whole fragment than step by step: log_prob and value. states: before each row and
        after the last one, T + 1 of them, where the policy has a memory."""

    def to_env(self, action: Tree) -> Tree:
        """Canonical actions [B, *] as the environment takes them."""

    def load(self, weights: Weights) -> None: ...


class ActionMap:
    """From canonical actions to the environment's: bounds, offsets, shapes."""

    def __init__(self, leaves: tuple[ActionLeaf, ...]) -> None:
        self.leaves = leaves
        self.joint = len(leaves) > 1 or bool(leaves[0].path)
        self._bounds = [_bounds(leaf) if leaf.low else None for leaf in leaves]

    def __call__(self, action: Any) -> Any:
        if not self.joint:
            return self._leaf(0, action)
        return nest({leaf.path: self._leaf(i, action[leaf.path]) for i, leaf in enumerate(self.leaves)})

    def _leaf(self, i: int, action: Array) -> Array:
        leaf, bounds = self.leaves[i], self._bounds[i]
        if leaf.kind == "categorical":
            return action + leaf.start[0] if leaf.start[0] else action
        if bounds is None:
            offset = np.asarray(leaf.start, np.int64) if leaf.start else 0
            return (action + offset).reshape(len(action), *leaf.shape).astype(leaf.dtype, copy=False)
        low, high, center, half = bounds
        out = np.clip(action * half + center, low, high)
        if np.issubdtype(np.dtype(leaf.dtype), np.integer):
            out = np.rint(out)
        return out.reshape(len(action), *leaf.shape).astype(leaf.dtype, copy=False)


def _bounds(leaf: ActionLeaf) -> tuple[Array, Array, Array, Array]:
    """low, high, centre and half range [A]; an element without both bounds is not scaled."""
    low, high = np.asarray(leaf.low, np.float64), np.asarray(leaf.high, np.float64)
    both = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        center = np.where(both, (low + high) / 2, 0.0)
        half = np.where(both, (high - low) / 2, 1.0)
    if leaf.dtype in ("float32", "float16"):  # bounds rounded to float32 may lie outside a finer space
        low, high = low.astype(np.float32), high.astype(np.float32)
    return low, high, center.astype(np.float32), half.astype(np.float32)


class NetworkPolicy:
    """What all policies over a network share: pipeline, weights, from canonical actions to the environment's."""

    def __init__(self, spec: NetworkSpec) -> None:
        self.spec = spec
        self.pipeline = Pipeline(spec.pipeline)
        self.distribution = ActionDistribution(spec.actions)
        self.to_env: Any = ActionMap(spec.actions)
        self.version = -1
        self.network: Any = None
        self.exploration: Mapping[str, Any] = {}
        """Numbers that came with the call: random (act without the network), epsilon (for all, or [B]), noise."""
        self.temperature: Any = None
        """Of a softmax over action values; it comes with the weights."""
        self.greedy = True
        """Where it does not explore, it takes its best action."""

    def initial_state(self, num_streams: int) -> Tree | None:
        memory = initial_memory(self.spec, num_streams) if self.spec.memory else None
        return join_state(self.pipeline.initial_state(num_streams), memory)

    def load(self, weights: Weights) -> None:
        """Take weights over (they are not copied for NumPy networks)."""
        if self.network is None:
            self.network = _acting_network(self.spec, weights)
        else:
            self.network.load(weights.flat)
        self._log_std = None if self.network.log_std is None else _as_numpy(self.network.log_std)
        if self.spec.pipeline.normalize:
            extra = weights.extra
            self.pipeline.load(Moments(np.float64(extra["obs_count"]), extra["obs_mean"], extra["obs_m2"]))
        self.temperature = weights.extra.get("temperature")
        self.version = weights.version

    def act(
        self, obs: Tree, state: Tree | None, first: Array, rng: np.random.Generator, *, explore: bool
    ) -> tuple[Tree, Tree | None, dict[str, Array]]:
        frames, memory = split_state(self.spec, state)
        inputs, frames = self.pipeline.step(obs, frames, first)
        if memory is not None:
            memory = begun(memory, first)
        if explore and self.exploration.get("random"):
            if memory is not None:  # it goes on seeing
                memory = self.outputs(inputs, memory)[2]
            return self.distribution.uniform(len(first), inputs.mask, rng), join_state(frames, memory), {}
        action, memory, behaviour = self.choose(inputs, memory, rng, explore)
        return action, join_state(frames, memory), behaviour

    def outputs(self, inputs: Inputs, memory: Array | None) -> tuple[Array, Array | None, Array | None]:
        """params [B, P], value [B] where it came along, and the memory [B, K, S] after this step."""
        if memory is not None:
            params, value, memory = self.network.recur(inputs, memory)
            return params, value, memory
        return (*self.network.policy(inputs), None)

    def choose(
        self, inputs: Inputs, memory: Array | None, rng: np.random.Generator, explore: bool
    ) -> tuple[Tree, Array | None, dict[str, Array]]:
        """Canonical actions [B, *] for inputs [B, *], the next memory, behaviour."""
        raise NotImplementedError

    def complete(self, trajectory: Trajectory, states: Sequence[Tree | None]) -> None:
        """Nothing to add: replay needs no behaviour."""


class ActorPolicy(NetworkPolicy):
    """A policy without a value: draws from its distribution, or adds noise where it has none."""

    def choose(
        self, inputs: Inputs, memory: Array | None, rng: np.random.Generator, explore: bool
    ) -> tuple[Tree, Array | None, dict[str, Array]]:
        params, _, memory = self.outputs(inputs, memory)
        params = self.distribution.masked(params, inputs.mask)
        if not explore:
            return self.distribution.mode(params), memory, {}
        action = self.distribution.sample(params, self._log_std, rng)
        if noise := self.exploration.get("noise"):
            action = tree_map(lambda a: np.clip(a + rng.normal(0, noise, a.shape), -1, 1).astype(a.dtype), action)
        return action, memory, {}


class QPolicy(NetworkPolicy):
    """Over action values: the best action, or epsilon-greedy, or (with a temperature) in proportion to exp(Q / temperature)."""

    def choose(
        self, inputs: Inputs, memory: Array | None, rng: np.random.Generator, explore: bool
    ) -> tuple[Tree, Array | None, dict[str, Array]]:
        if self.spec.noisy:
            self.network.perturb(rng if explore else None)
        params, value, memory = self.outputs(inputs, memory)
        if value is None and self.spec.dueling and self.spec.atoms:  # plain dueling needs no value to compare actions
            value = self.network.values(inputs)
        if self.spec.dueling and value is None:
            q = params
        else:
            q = q_values(self.spec, params, value)
        q = self.distribution.masked(q, inputs.mask)
        if not explore:
            return q.argmax(-1), memory, {}
        if self.temperature is not None:
            return self.distribution.sample(q / self.temperature, None, rng), memory, {}
        action = q.argmax(-1)
        chance = rng.random(len(action)) < self.exploration.get("epsilon", 0.0)
        if chance.any():
            action = np.where(chance, self.distribution.parts[0].uniform(len(action), inputs.mask, rng), action)
        return action, memory, {}


class ActorCriticPolicy(NetworkPolicy):
    """A policy and a value: NumPy for fully connected networks, torch for the others."""

    def choose(
        self, inputs: Inputs, memory: Array | None, rng: np.random.Generator, explore: bool
    ) -> tuple[Tree, Array | None, dict[str, Array]]:
        params, value, memory = self.outputs(inputs, memory)
        params = self.distribution.masked(params, inputs.mask)
        action = self.distribution.sample(params, self._log_std, rng) if explore else self.distribution.mode(params)
        return action, memory, {"params": params} if value is None else {"params": params, "value": value}

    def complete(self, trajectory: Trajectory, states: Sequence[Tree | None]) -> None:
        """Fill behaviour: log_prob [T, B], value [T+1, B] and, where there are true last observations, final_value [K]."""
        t, behaviour = trajectory, trajectory.behaviour
        params = behaviour.pop("params")
        behaviour["log_prob"] = self.distribution.log_prob(params, self._log_std, t.action).astype(
            np.float32, copy=False
        )
        if self.spec.memory:
            self._recurrent_values(t, states)
            return
        inputs, stacks = self.pipeline.sequence(t.obs, t.state, t.first)
        if "value" in behaviour:  # came with the actions: only the row after the last is missing
            last = self.network.value(_row(inputs, -1))
            behaviour["value"] = np.concatenate([behaviour["value"], last[None]])
        else:
            behaviour["value"] = self.network.value(inputs.flatten()).reshape(t.first.shape)
        if t.final is not None:
            after = self.pipeline.after(t.final.obs, stacks, t.final.t, t.final.b)
            behaviour["final_value"] = self.network.value(after)

    def _recurrent_values(self, t: Trajectory, states: Sequence[Tree | None]) -> None:
        """Values of what follows the last row, and of the true last observations that a return bootstraps from (0 for
        the others): one step more from the state that was there."""

        def value(obs: Tree, state: Tree | None, first: Array) -> Array:
            frames, memory = split_state(self.spec, state)
            assert memory is not None
            _, found, _ = self.outputs(self.pipeline.step(obs, frames, first)[0], begun(memory, first))
            assert found is not None
            return found

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


_POLICIES: dict[str, type[NetworkPolicy]] = {"actor_critic": ActorCriticPolicy, "actor": ActorPolicy, "q": QPolicy}


def make_policy(spec: NetworkSpec, seed: int = 0) -> NetworkPolicy:
    """The policy for a network's head. `seed` is for a model that draws its own random numbers."""
    if spec.head == "model":
        from raypid.nn.user_model import ModelPolicy

        return ModelPolicy(spec, int(seed))
    return _POLICIES[spec.head](spec)


def _row(inputs: Inputs, t: int) -> Inputs:
    mask = None if inputs.mask is None else inputs.mask[t]
    return Inputs(inputs.vector[t], {k: v[t] for k, v in inputs.images.items()}, mask)


def _acting_network(spec: NetworkSpec, weights: Weights) -> Any:
    if spec.torch_free:
        return SmallNetwork(spec, weights.flat)
    from raypid.nn.networks import TorchNetwork

    network = TorchNetwork(spec)
    network.load(weights.flat)
    network.module.eval()  # no dropout
    return network


def _as_numpy(x: Any) -> Array:
    return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()


class DeployedPolicy:
    """A trained policy by itself: `act(obs)` takes what the environment gives and returns what it takes.

    One observation or a batch with a leading axis; frame stacks and memories are kept between calls (`reset` clears them).
    """

    def __init__(self, policy: NetworkPolicy, seed: int | None = None) -> None:
        self.policy, self.rng = policy, np.random.default_rng(seed)
        self.reset()

    def reset(self, mask: Array | None = None) -> None:
        """Begin new episodes: all of them, or where mask [B] bool is true."""
        if mask is None:
            self._state: Any = None
            self._first: Array | None = None
        elif self._first is not None:  # otherwise all begin anyway
            self._first = self._first | np.asarray(mask, bool)

    def act(self, obs: Any, *, explore: bool = False) -> Any:
        """Environment action for obs [*], or actions for obs [B, *]; greedy unless `explore`.

        Raises:
            ValueError: the observation does not have the shape that the policy was trained with.
        """
        tree = as_tree(obs)
        single = self._is_single(tree)
        batch = tree_map(lambda x: x[None], tree) if single else tree
        if self.policy.spec.head == "model":  # others encode what they are given
            batch = _as_trained(batch, self.policy.spec)
        num = len(next(leaf for _, leaf in tree_leaves(batch)))
        if self._first is None or len(self._first) != num:
            self._state, self._first = self.policy.initial_state(num), np.ones(num, bool)
        action, self._state, _ = self.policy.act(batch, self._state, self._first, self.rng, explore=explore)
        self._first = np.zeros(num, bool)
        env_action = self.policy.to_env(action)
        return _with_tuples(tree_map(_scalar, env_action) if single else env_action)

    def _is_single(self, tree: Any) -> bool:
        leaves = dict(tree_leaves(tree))
        for leaf in self.policy.spec.pipeline.leaves:
            if leaf.path not in leaves:
                raise ValueError(f"The observation lacks {leaf.path!r}; it has {sorted(leaves)}.")
            shape = leaves[leaf.path].shape
            if shape == leaf.shape:
                return True
            if shape[1:] != leaf.shape:
                name = f"observation {leaf.path!r}" if leaf.path else "observation"
                raise ValueError(f"The {name} has shape {shape}; this policy takes {leaf.shape} or a batch of it.")
        return False


def _as_trained(obs: Any, spec: NetworkSpec, path: str = "") -> Any:
    """In the dtypes that the environment has."""
    if isinstance(obs, Mapping):
        return {key: _as_trained(part, spec, f"{path}/{key}" if path else key) for key, part in obs.items()}
    dtype = {leaf.path: leaf.dtype for leaf in spec.pipeline.leaves}.get(path, obs.dtype)
    return obs.astype(dtype, copy=False)


def _scalar(x: Array) -> Any:
    return x[0].item() if x[0].ndim == 0 else x[0]


def _with_tuples(action: Any) -> Any:
    """Members "0", "1", ... as the tuple that they stand for."""
    if not isinstance(action, Mapping):
        return action
    parts = {key: _with_tuples(part) for key, part in action.items()}
    return tuple(parts.values()) if list(parts) == [str(i) for i in range(len(parts))] else parts


def as_tree(obs: Any) -> Any:
    if isinstance(obs, Mapping):
        return {k: as_tree(v) for k, v in obs.items()}
    if isinstance(obs, tuple):
        return {str(i): as_tree(v) for i, v in enumerate(obs)}
    return np.asarray(obs)


def save_policy(folder: Path, spec: NetworkSpec, weights: Weights, info: Mapping[str, Any] | None = None) -> None:
    """Write a self-contained policy: pipeline, normaliser, network and action scaling. `info` goes along (environment, scores)."""
    from raypid.checkpoint import write_policy

    table = [[name, list(shape)] for name, shape in weights.table]
    arrays = {"flat": weights.flat, **{f"extra/{k}": np.asarray(v) for k, v in weights.extra.items()}}
    write_policy(
        folder,
        {"network": spec.to_dict(), "table": table, "version": weights.version, "info": dict(info or {})},
        arrays,
    )


def read_policy_weights(folder: Path) -> tuple[NetworkSpec, Weights, dict[str, Any]]:
    """What `save_policy` wrote."""
    from raypid.checkpoint import read_policy

    values, arrays = read_policy(folder)
    spec = NetworkSpec.from_dict(values["network"])
    extra = {k.removeprefix("extra/"): v for k, v in arrays.items() if k.startswith("extra/")}
    table = tuple((name, tuple(shape)) for name, shape in values["table"])
    return spec, Weights(int(values["version"]), arrays["flat"], table, extra), values["info"]


def load_policy(path: str | Path, seed: int | None = None) -> DeployedPolicy:
    """The policy of a run folder, a checkpoint, or a policy folder. Needs neither Ray nor, for fully connected networks, torch.

    Raises:
        ValueError: nothing there that can be loaded, or it is damaged.
    """
    from raypid.checkpoint import find_policy

    spec, weights, _ = read_policy_weights(find_policy(Path(path)))
    policy = make_policy(spec)
    policy.load(weights)
    return DeployedPolicy(policy, seed)
