"""The five roles of a run. `raypid.roles.Rollout`, `Replay`, `ParameterServer`, `Learner` and `Evaluator`, made from a `Setup`, are
public (`by_hand.py`), and so is `Pace`, which counts for them; the other files are what raypid's own loops work with."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raypid.roles.by_hand import Evaluator as Evaluator
    from raypid.roles.by_hand import Learner as Learner
    from raypid.roles.by_hand import ParameterServer as ParameterServer
    from raypid.roles.by_hand import Replay as Replay
    from raypid.roles.by_hand import Rollout as Rollout
    from raypid.roles.by_hand import Setup as Setup
    from raypid.roles.pace import Pace as Pace

_PUBLIC = ("Evaluator", "Learner", "Pace", "ParameterServer", "Replay", "Rollout", "Setup")

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public role when it is first used."""
        if name in _PUBLIC:
            return getattr(import_module("raypid.roles.by_hand"), name)
        raise AttributeError(f"module 'raypid.roles' has no attribute {name!r}")
