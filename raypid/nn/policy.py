"""Policies made from a NetworkSpec, saved, loaded and deployed. The same object acts in workers, evaluation and deployment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raypid import names
from raypid.checkpoint import CheckpointError, find_policy, read_policy_and_origin, refusing, write_policy
from raypid.nn.network_policy import ActorCriticPolicy, ActorPolicy, NetworkPolicy, QPolicy
from raypid.nn.network_spec import NetworkSpec, check_weights
from raypid.nn.pipeline import nest
from raypid.nn.user_model import ModelPolicy
from raypid.registry import NETWORKS
from raypid.trust import check_names
from raypid.types import Array, Tree, Weights, as_tree, matching, tree_leaves, tree_map

_POLICIES: dict[str, type[NetworkPolicy]] = {"actor_critic": ActorCriticPolicy, "actor": ActorPolicy, "q": QPolicy}


def make_policy(spec: NetworkSpec, seed: int = 0) -> NetworkPolicy:
    """Make the policy for a network's head. `seed` is for a model that draws its own random numbers."""
    if spec.head == "model":
        return ModelPolicy(spec, int(seed))
    return _POLICIES[spec.head](spec)


class DeployedPolicy:
    """A trained policy by itself: `act(obs)` takes what the environment gives and returns what it takes.

    One observation or a batch with a leading axis; frame stacks and memories are kept between calls (`reset` clears them).
    """

    def __init__(self, policy: NetworkPolicy, seed: int | None = None) -> None:
        self.policy, self.rng = policy, np.random.default_rng(seed)
        self.reset()

    def __repr__(self) -> str:
        """The network, and the observations that it takes."""
        spec = self.policy.spec
        shapes = ", ".join(f"{leaf.path} {leaf.shape}".strip() for leaf in spec.pipeline.leaves)
        memory = f" with {spec.memory}" if spec.memory else ""
        return f"<DeployedPolicy: observation {shapes}, network {spec.network}{memory}>"

    if not TYPE_CHECKING:  # a type checker would accept any name, and so hide typos

        def __getattr__(self, name: str) -> object:
            raise names.missing_method(self, name)

    def reset(self, mask: Array | None = None) -> None:
        """Begin new episodes: in all streams, or where mask [B] bool is true."""
        if mask is None:
            self._state: Tree | None = None
            self._first: Array | None = None
        elif self._first is not None:
            self._first = self._first | np.asarray(mask, bool)

    def act(self, obs: object, *, explore: bool = False) -> Any:
        """Choose an environment action for obs [*], or actions for obs [B, *]; greedy unless `explore`.

        Raises:
            ValueError: the observation does not have the shape that the policy was trained with.
        """
        tree = tree_map(np.asarray, as_tree(obs))
        single = self._is_single(tree)
        batch = tree_map(lambda x: x[None], tree) if single else tree
        if self.policy.spec.head == "model":
            # networks are behind a pipeline that converts; a model sees the arrays themselves
            batch = _as_trained(batch, self.policy.spec)
        num = len(next(leaf for _, leaf in tree_leaves(batch)))
        if self._first is None or len(self._first) != num:
            self._state, self._first = self.policy.initial_state(num), np.ones(num, bool)
        acted = self.policy.act(batch, self._state, self._first, self.rng, explore=explore)
        self._state, self._first = acted.state, np.zeros(num, bool)
        env_action = self.policy.to_env(acted.action)
        return _with_tuples(tree_map(_scalar, env_action) if single else env_action)

    def _is_single(self, tree: Tree) -> bool:
        """Whether this is one observation, not a batch."""
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


def _as_trained(obs: Tree, spec: NetworkSpec) -> Tree:
    """Convert an observation to the dtypes that the environment has."""
    dtypes = {leaf.path: leaf.dtype for leaf in spec.pipeline.leaves}
    return nest({path: x.astype(dtypes.get(path, x.dtype), copy=False) for path, x in tree_leaves(obs)})


def _scalar(x: Array) -> object:
    return x[0].item() if x[0].ndim == 0 else x[0]


def _with_tuples(action: object) -> object:
    """Turn mappings with the keys "0", "1", ... into the tuples that they stand for."""
    if not isinstance(action, Mapping):
        return action
    parts = {key: _with_tuples(part) for key, part in action.items()}
    return tuple(parts.values()) if list(parts) == [str(i) for i in range(len(parts))] else parts


def save_policy(folder: Path, spec: NetworkSpec, weights: Weights, info: Mapping[str, object] | None = None) -> None:
    """Write a self-contained policy: pipeline, normaliser, network and action scaling. `info` goes along (environment, scores)."""
    table = [[name, list(shape)] for name, shape in weights.table]
    arrays = {"flat": weights.flat, **{f"extra/{k}": np.asarray(v) for k, v in weights.extra.items()}}
    write_policy(
        folder,
        {"network": spec.to_dict(), "table": table, "version": weights.version, "info": dict(info or {})},
        arrays,
    )


def read_policy_weights(folder: Path) -> tuple[NetworkSpec, Weights, dict[str, Any]]:
    """Read what `save_policy` wrote: network, weights, info. Nothing is imported.

    Raises:
        CheckpointError: the folder holds no policy, or its parts do not fit together.
    """
    return read_saved_policy(folder)[:3]


def read_saved_policy(folder: Path) -> tuple[NetworkSpec, Weights, dict[str, Any], bool]:
    """Read network, weights, info, and whether this user's raypid wrote them (see `check_network_name`); errors as
    `read_policy_weights`."""
    values, arrays, signed = read_policy_and_origin(folder)
    with refusing(f"The policy {folder}", passing=CheckpointError):
        spec, info = NetworkSpec.from_dict(values["network"]), dict(values["info"])
        extra = {k.removeprefix("extra/"): v for k, v in arrays.items() if k.startswith("extra/")}
        table = tuple((str(name), tuple(map(int, shape))) for name, shape in values["table"])
        check_weights(spec, table, len(matching(arrays["flat"], np.empty(arrays["flat"].size))))
        return spec, Weights(int(values["version"]), arrays["flat"], table, extra), info, signed


def try_policy(folder: Path, spec: NetworkSpec, weights: Weights) -> NetworkPolicy:
    """Make the policy that `read_policy_weights` read, and let it act once on zeros, so that what does not fit together is
    found before it plays. (A model of the user's own is not asked.)

    Raises:
        CheckpointError: it cannot act. UserError: its network cannot be found.
    """
    with refusing(f"The policy {folder}"), np.errstate(all="ignore"):
        policy = make_policy(spec)
        policy.load(weights)
        if spec.head != "model":
            obs: dict[str, Array] = {
                leaf.path: np.reshape(leaf.start or np.zeros(leaf.shape), leaf.shape).astype(leaf.dtype)
                for leaf in spec.pipeline.leaves
            }
            if spec.pipeline.mask_size:
                obs["action_mask"] = np.ones(spec.pipeline.mask_size, np.int8)
            for explore in (False, True):
                DeployedPolicy(policy, 0).act(nest(obs), explore=explore)
    return policy


def check_network_name(path: str | Path, spec: NetworkSpec, *, trusted: bool) -> None:
    """Check that the network of the policy at `path` may be imported; `trusted` as for `check_names`.

    Raises:
        UntrustedError: it is a class that may not.
    """
    entry = spec.network if spec.network in NETWORKS or not spec.target else spec.target
    check_names(path, {"network": entry, "custom": spec.custom}, trusted=trusted)


def load_policy(path: str | Path, seed: int | None = None, *, trust: bool = False) -> DeployedPolicy:
    """Load the policy of a run folder, a checkpoint, or a policy folder. Fully connected networks need neither Ray nor torch.

    Args:
        trust: import a network class that only the folder names, though this user's raypid did not write the folder.

    Raises:
        ValueError: there is nothing to load, or it is damaged, or it names code and is not trusted.
    """
    folder = find_policy(Path(path))
    spec, weights, _, signed = read_saved_policy(folder)
    check_network_name(path, spec, trusted=trust or signed)
    return DeployedPolicy(try_policy(folder, spec, weights), seed)
