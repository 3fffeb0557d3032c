"""Ray Tune: algorithms as Trainables, experiments with grids, and populations.

Importing this imports ray.tune, and registers every algorithm with it by name, so `ray.tune.run("PPO", ...)` works.
"""

from __future__ import annotations

import ray
from ray.tune import register_trainable

import raypid.runtime.ray  # noqa: F401  # settings that Ray reads when it is imported
from raypid import registry
from raypid.registry import ALGORITHMS
from raypid.tune.exploit import ExploitError
from raypid.tune.trainable import AgentTrainable, trainable

__all__ = ["AgentTrainable", "ExploitError", "trainable"]


def _offer() -> None:
    """Register all algorithms with Tune, which keeps a copy of what else is registered in this process by then."""
    for name in ALGORITHMS.names():
        register_trainable(name, trainable(name))


if not (
    ray.is_initialized() and ray.get_runtime_context().get_actor_id()
):  # in a trial's process they come from the driver
    _offer()
    registry.when_added.append(_offer)
