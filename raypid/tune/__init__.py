"""Ray Tune: algorithms as Trainables, experiments with grids, and populations.

Importing this imports ray.tune, and registers every algorithm with it by name, so `ray.tune.run("PPO", ...)` works.
"""

from __future__ import annotations

from raypid.plugins.extras import need

# isort: off
try:
    import raypid.runtime.ray  # noqa: F401  # first: it sets what Ray reads when it is imported
    import ray
    from ray.tune import register_trainable
except ImportError:
    need({"tune": "raypid.tune"})
    raise

# isort: on
from raypid.plugins import registry
from raypid.plugins.registry import ALGORITHMS
from raypid.settings.variants import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    normal,
    qloguniform,
    qrandint,
    quniform,
    randint,
    uniform,
)
from raypid.sweep.board import Ended
from raypid.tune.experiments import run_experiments
from raypid.tune.exploit import ExploitError
from raypid.tune.trainable import AgentTrainable, trainable

__all__ = [
    "AgentTrainable", "Ended", "ExploitError", "choice", "grid_search", "lograndint", "loguniform", "normal", "qloguniform", "qrandint",
    "quniform", "randint", "run_experiments", "trainable", "uniform",
]  # fmt: skip


def _offer() -> None:
    """Register all algorithms with Tune, which keeps a copy of what else is registered in this process by then."""
    for name in ALGORITHMS.names():
        register_trainable(name, trainable(name))


_is_trial = ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
if not _is_trial:  # there they come from the driver
    _offer()
    registry.when_added.append(_offer)
