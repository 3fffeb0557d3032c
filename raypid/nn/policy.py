"""Policies made from a NetworkSpec, saved, loaded and deployed. The same object acts in workers, evaluation and deployment."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raypid.errors import UserError
from raypid.nn.network_policy import ActorCriticPolicy, ActorPolicy, NetworkPolicy, QPolicy
from raypid.nn.network_spec import NetworkSpec, check_weights
from raypid.nn.pipeline import nest
from raypid.nn.user_model import ModelPolicy
from raypid.plugins.registry import NETWORKS
from raypid.storage.checkpoint import CheckpointError, find_policy, read_policy, refusing, write_policy
from raypid.types import Array, Tree, Weights, matching, tree_map

_POLICIES: dict[str, type[NetworkPolicy]] = {"actor_critic": ActorCriticPolicy, "actor": ActorPolicy, "q": QPolicy}


def make_policy(spec: NetworkSpec, seed: int = 0) -> NetworkPolicy:
    """Make the policy for a network's head. `seed` is for a model that draws its own random numbers."""
    if spec.head == "model":
        return ModelPolicy(spec, int(seed))
    return _POLICIES[spec.head](spec)


class DeployedPolicy:
    """A trained policy by itself: `act(obs)` takes what the environment gives and returns what it takes.

    One observation or a batch with a leading axis. Frame stacks and memories are kept between calls, and `reset` clears them: so
    a policy that has any plays for one client. Each further one is given a `session` of its own.
    """

    def __init__(self, policy: NetworkPolicy, seed: int | None = None) -> None:
        self.policy, self.rng = policy, np.random.default_rng(seed)
        self.info: Mapping[str, object] = {}
        """Origin of a loaded policy: algorithm, env (its name), timesteps_total."""
        self.remembers = policy.initial_state(1) is not None
        """Whether an action depends on earlier observations too: the network has a memory, or frames are stacked."""
        from raypid.nn.given_observation import read_observation  # training does without

        self._read = partial(read_observation, policy.spec)
        self._lock = threading.Lock()  # networks keep intermediate results, and the noise of noisy layers
        self._is_session = False
        self.reset()

    def session(self, seed: int | None = None) -> DeployedPolicy:
        """Make a policy for one more client: with the same weights, and frame stacks, memory and random numbers of its own.

        Sessions may act at the same time in different threads. (A model of the user's own is built anew for each session.)
        """
        policy = self.policy.copy() if isinstance(self.policy, ModelPolicy) else self.policy
        session = DeployedPolicy(policy, seed)
        session._is_session, session.info = True, self.info
        if policy is self.policy:
            session._lock = self._lock
        return session

    def __repr__(self) -> str:
        """Name the algorithm, the environment, the observations, the actions and the network."""
        origin = " on ".join(str(part) for part in (self.info.get("algorithm"), self.info.get("env")) if part)
        steps = self.info.get("timesteps_total")
        parts = (origin, self.policy.spec.brief(), f"{steps:,} steps" if isinstance(steps, int) else "")
        return f"<DeployedPolicy: {', '.join(filter(None, parts))}>"

    def reset(self, mask: Array | None = None) -> None:
        """Begin new episodes: in all streams, or where mask [B] bool is true.

        Raises:
            ValueError: the mask has not one element for each observation of the last batch.
        """
        if mask is None:
            self._state: Tree | None = None
            self._first: Array | None = None
            self._thread: threading.Thread | None = None
        elif self._first is not None:
            mask = np.asarray(mask, bool)
            if mask.shape != self._first.shape:
                raise UserError(
                    f"reset() takes a mask of the last batch's shape {self._first.shape}, not {mask.shape}."
                )
            self._first = self._first | mask

    def act(self, obs: object, *, explore: bool = False) -> Any:
        """Choose an environment action for obs [*], or actions for obs [B, *]; greedy unless `explore`.

        Raises:
            ValueError: the observation is not one that the policy was trained with; or episodes under way are mixed with others,
                by a batch of another size or by another thread.
        """
        batch, num, single = self._read(obs)
        with self._lock:
            self._check_client(num)
            if self._first is None or len(self._first) != num:
                self._state, self._first = self.policy.initial_state(num), np.ones(num, bool)
            acted = self.policy.act(batch, self._state, self._first, self.rng, explore=explore)
            self._state, self._first = acted.state, np.zeros(num, bool)
        env_action = self.policy.to_env(acted.action)
        return _with_tuples(tree_map(_scalar, env_action) if single else env_action)

    def _check_client(self, num: int) -> None:
        """Check that what the policy remembers belongs to these `num` observations, as far as can be seen.

        Raises:
            UserError: the batch had another size before, or another thread has begun the episodes.
        """
        begun_by, here = self._thread, threading.current_thread()
        if not self.remembers:
            return
        if self._first is not None and len(self._first) != num:
            other = f"in a batch of {len(self._first)}, and a batch of {num} was given"
        elif begun_by not in (None, here) and not self._is_session:
            other = "that another thread has begun"
        else:
            self._thread = begun_by or here
            return
        raise UserError(
            f"This policy remembers episodes {other}. Call reset() to begin new ones, or give each client a session with a memory of its own: "
            "policy.session()."
        )

    def __getstate__(self) -> dict[str, object]:
        """Return the state of a copy or pickle, without the lock."""
        return {**self.__dict__, "_lock": None, "_thread": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


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
    described = {"network": spec.to_dict(), "table": table, "version": weights.version, "info": dict(info or {})}
    write_policy(folder, described, arrays)


def read_policy_weights(folder: Path) -> tuple[NetworkSpec, Weights, dict[str, Any], bool]:
    """Read what `save_policy` wrote: network, weights, info, and whether this user's raypid wrote them (see
    `check_network_name`). Nothing is imported.

    Raises:
        CheckpointError: the folder holds no policy, or its parts do not fit together.
    """
    values, arrays, signed = read_policy(folder)
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
        CheckpointError: it cannot act.
        UserError: its network cannot be found.
    """
    with refusing(f"The policy {folder}", passing=(UserError, ModuleNotFoundError)), np.errstate(all="ignore"):
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
    from raypid.plugins.trust import check_names  # not for workers, which load no folders

    entry = spec.network if spec.network in NETWORKS or not spec.target else spec.target
    check_names(path, {"network": entry, "custom": spec.custom}, trusted=trusted)


def load_policy(path: str | Path, seed: int | None = None, *, trust: bool = False) -> DeployedPolicy:
    """Load the policy of a run folder, a checkpoint, or a policy folder.

    Fully connected networks, also with an LSTM or a GRU, need NumPy and safetensors and no other package.

    Args:
        path: the folder. Of a run folder, the best policy is loaded, or the newest where none was evaluated.
        seed: seed of the random numbers with which `act(obs, explore=True)` draws actions; None draws a seed.
        trust: import a network class that only the folder names, though this user's raypid did not write the folder.

    Raises:
        ValueError: there is nothing to load, or it is damaged, or it names code and is not trusted.
    """
    folder = find_policy(Path(path))
    spec, weights, info, signed = read_policy_weights(folder)
    check_network_name(path, spec, trusted=trust or signed)
    policy = DeployedPolicy(try_policy(folder, spec, weights), seed)
    env = info.get("env")
    name = env.get("env") if isinstance(env, Mapping) else None
    policy.info = {"algorithm": info.get("algorithm"), "env": name, "timesteps_total": info.get("timesteps_total")}
    return policy
