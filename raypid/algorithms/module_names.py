"""What an algorithm's module has beside its classes, by the names that RLlib's modules use."""

from __future__ import annotations

import sys

from raypid.plugins.registry import ALGORITHMS, import_string


def offer_defaults(module: str, algorithm: str) -> None:
    """Give the module of one of raypid's algorithms DEFAULT_CONFIG, a new dict of its settings at every look, and its agents
    (`ppo.PPOAgent` is `raypid.PPOAgent`). Both are made when they are asked for. If a module has several algorithms, the settings are
    those of the first."""
    if not ALGORITHMS.is_own(algorithm) or ALGORITHMS.entry(algorithm) != f"{module}:{algorithm}":
        return

    def look_up(name: str) -> object:
        if name == "DEFAULT_CONFIG":
            return ALGORITHMS.get(algorithm).Config().to_dict()
        run = name.removesuffix("Agent")
        if run != name and ALGORITHMS.is_own(run) and str(ALGORITHMS.entry(run)).startswith(f"{module}:"):
            return import_string(f"raypid:{name}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    vars(sys.modules[module]).setdefault("__getattr__", look_up)
