"""One paper, one file. Algorithms that share a file have a module's name too: `from raypid.algorithms import ddpg`."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

from raypid.plugins.registry import ALGORITHMS


def __getattr__(name: str) -> ModuleType | SimpleNamespace:
    """What belongs to an algorithm that has no file of its own: its class, DEFAULT_CONFIG and agent, by the names in a module."""
    run = {known.lower(): known for known in ALGORITHMS.names() if ALGORITHMS.is_own(known)}.get(name)
    if run is None:
        raise AttributeError(f"module 'raypid.algorithms' has no attribute {name!r}")
    from raypid.plugins.registry import import_string

    algorithm = ALGORITHMS.get(run)
    return SimpleNamespace(**{
        run: algorithm, "DEFAULT_CONFIG": algorithm.Config().to_dict(), f"{run}Agent": import_string(f"raypid:{run}Agent"),
    })  # fmt: skip
