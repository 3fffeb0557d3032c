"""What crosses to a worker: a description of environments, made into a VectorEnv there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raypid.plugins.modules import name_of

VECTORIZERS = ("auto", "native", "envpool", "ale", "sync", "threads", "processes", "async")


@dataclass(kw_only=True, frozen=True, slots=True)
class EnvSpec:
    """Plain data, as far as `env`, `wrappers` and `env_config` are: classes of a script need cloudpickle."""

    env: object
    """Gymnasium id, "envpool:Task-v5", "module:Name", registered name, class, or function that returns an environment."""
    env_config: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    args: Mapping[str, object] = field(default_factory=dict)
    """Values that a class with a parameter `args` gets beside env_config; other classes get those that they name as parameters."""
    vectorizer: str = "auto"
    """One of VECTORIZERS; auto chooses the fastest that fits."""
    num_envs: int = 1
    """Streams B of the vector."""
    time_limit: int | None = None
    """Episodes are truncated after this many of the environment's own steps (each repeat counts). None: its own limit."""
    action_repeat: int = 1
    """Each action is repeated this many times; rewards are summed."""
    atari: bool | None = None
    """Atari preprocessing (gray 84x84, frame skip 4, max of two frames, up to 30 no-ops). None: for "ALE/..." ids."""
    wrappers: Sequence[Callable[[Any], object]] = ()
    """Applied to each Python environment, innermost first."""
    num_threads: int = 1
    """Cores that one vector may use: threads of ALE and EnvPool, parts of a vector of Python environments."""
    staggers: bool = False
    """Whether streams whose episodes only end at a limit shall end at different times (`PythonVector`)."""
    seed: int = 0
    worker_index: int = 0
    """Number of the worker, which the environment gets if it names it as a parameter."""
    seed_index: int | None = None
    """Number from which seeds are drawn in place of `worker_index`, for evaluations."""

    @property
    def name(self) -> str:
        """The environment for messages: "module:name" of a class or function."""
        return self.env if isinstance(self.env, str) else name_of(self.env)


def stream_seeds(spec: EnvSpec, save_count: int | None = None) -> list[int]:
    """Draw one seed below 2^30 for each stream, from SeedSequence(seed, spawn_key=(seed_index, stream_index[, save_count])).

    Below 2^30, so that environments may add stream numbers to it and still hold an int32.
    """
    extra = () if save_count is None else (save_count,)
    return [_seed(spec, stream, *extra) for stream in range(spec.num_envs)]


def rebuild_seed(spec: EnvSpec, stream: int, num_rebuilds: int) -> int:
    """Draw the seed of a stream whose environment is replaced for the `num_rebuilds`-th time."""
    return _seed(spec, stream, 0, num_rebuilds)


def _seed(spec: EnvSpec, *more: int) -> int:
    index = spec.worker_index if spec.seed_index is None else spec.seed_index
    return int(np.random.SeedSequence(spec.seed, spawn_key=(index, *more)).generate_state(1)[0]) & 0x3FFFFFFF
