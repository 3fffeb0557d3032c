"""What roles are made from, for tests that have no environment to look at."""

from __future__ import annotations

from typing import Any

from raypid.envs import EnvSpec
from raypid.nn.network_spec import NetworkSpec
from raypid.plugins.registry import REPLAYS
from raypid.roles.acting import RolloutSpec
from raypid.roles.setup import Setup, WorkerSetup


def learner_setup(
    algorithm: Any, config: Any, network: NetworkSpec, seed: int = 0, *, replay: Any = None, checks: bool = False
) -> Setup:
    """The setup of a learner; its environment is not made."""
    spec = RolloutSpec(env=EnvSpec(env="none"), network=network, fragment_length=1, seed=seed)
    return Setup(
        algorithm=algorithm, config=config, spec=spec, evaluation=spec, collect=algorithm.collect, replay=replay,
        buffer=replay and REPLAYS.get(algorithm.replay_kind(config)), num_threads=1, checks=checks,
    )  # fmt: skip


def worker_setup(spec: RolloutSpec) -> WorkerSetup:
    """The setup of a rollout or an evaluator with this spec."""
    return WorkerSetup(spec=spec, evaluation=spec, checks=False)
