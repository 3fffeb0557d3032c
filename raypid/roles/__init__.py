"""The five roles of a run. `raypid.roles.Rollout`, `Replay`, `ParameterServer`, `Learner` and `Evaluator`, made from a `Setup`, are
public (`by_hand.py`); the other files are what raypid's own loops work with."""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raypid.roles.by_hand import Evaluator as Evaluator
    from raypid.roles.by_hand import Learner as Learner
    from raypid.roles.by_hand import ParameterServer as ParameterServer
    from raypid.roles.by_hand import Replay as Replay
    from raypid.roles.by_hand import Rollout as Rollout
    from raypid.roles.by_hand import Setup as Setup

_PUBLIC = ("Evaluator", "Learner", "ParameterServer", "Replay", "Rollout", "Setup")

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public role when it is first used."""
        if name in _PUBLIC:
            return getattr(import_module("raypid.roles.by_hand"), name)
        if name.startswith("_") or importlib.util.find_spec(f"raypid.roles.{name}") is not None:  # a module comes next
            raise AttributeError(f"module 'raypid.roles' has no attribute {name!r}")
        from raypid.names import ROLES
        from raypid.registry import suggest

        ours = ROLES.get(name) or next(iter(suggest(name, _PUBLIC, 1)), "")
        told = f"It is raypid.roles.{ours}, made from raypid.setup(...)" if name in ROLES else f"Did you mean {ours}?"
        told = told if ours else f"It has {', '.join(_PUBLIC)}"
        text = f"module 'raypid.roles' has no attribute {name!r}. {told}"
        # `from raypid.roles import` drops the text of an AttributeError
        if sys._getframe(1).f_code.co_name == "_handle_fromlist":
            raise ImportError(text)
        raise AttributeError(text, name=name)
