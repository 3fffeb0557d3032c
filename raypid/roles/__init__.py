"""The five roles of a run: plain classes that are made from a `Setup`, in one process or as Ray actors.

    setup = raypid.setup("SAC", "LunarLanderContinuous-v3")
    rollout = raypid.roles.Rollout(setup, worker_index=0)
    rollout = ray.remote(raypid.roles.Rollout).remote(setup, 0)

`Rollout`, `Replay`, `ParameterServer`, `Learner`, `Evaluator` and `Setup` are public; the other names are internal.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raypid.roles.evaluator import Evaluator as Evaluator
    from raypid.roles.learner import Learner as Learner
    from raypid.roles.parameter_server import ParameterServer as ParameterServer
    from raypid.roles.replay import Replay as Replay
    from raypid.roles.rollout import Rollout as Rollout
    from raypid.roles.setup import Setup as Setup

_FILES = {
    "Evaluator": "evaluator",
    "Learner": "learner",
    "ParameterServer": "parameter_server",
    "Replay": "replay",
    "Rollout": "rollout",
    "Setup": "setup",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public role when it is first used."""
        if name in _FILES:
            return getattr(import_module(f"raypid.roles.{_FILES[name]}"), name)
        raise AttributeError(f"module 'raypid.roles' has no attribute {name!r}")
