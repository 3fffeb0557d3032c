"""The five roles of a run: plain classes that are made from a `Setup`, in one process or as Ray actors.

    setup = raypid.setup("SAC", "LunarLanderContinuous-v3")
    rollout = raypid.roles.Rollout(setup, worker_index=0)
    rollout = ray.remote(raypid.roles.Rollout).remote(setup, 0)

`Rollout`, `Replay`, `ParameterServer`, `Learner`, `Evaluator`, `Setup` and `Pace`, which counts for them, are public; the other names are internal.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raypid.roles.evaluator import Evaluator as Evaluator
    from raypid.roles.learner import Learner as Learner
    from raypid.roles.pace import Pace as Pace
    from raypid.roles.parameter_server import ParameterServer as ParameterServer
    from raypid.roles.replay import Replay as Replay
    from raypid.roles.rollout import Rollout as Rollout
    from raypid.roles.setup import Setup as Setup

_PUBLIC = ("Evaluator", "Learner", "Pace", "ParameterServer", "Replay", "Rollout", "Setup")

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public role when it is first used."""
        if name in _PUBLIC:
            file = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
            return getattr(import_module(f"raypid.roles.{file}"), name)
        raise AttributeError(f"module 'raypid.roles' has no attribute {name!r}")
