"""Modules under the paths that other programs and earlier versions know them by: `import raypid.ppo` gives raypid.algorithms.ppo."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_NOW_IN = {
    "algorithms": ("a3c", "dqn", "es", "ppo"),
    "plugins": ("arguments", "extras", "modules", "project", "registry", "trust"),
    "run": ("deploy",),
    "settings": ("address", "config", "marked", "stops"),
    "storage": ("changes", "checkpoint", "neighbours", "outputs", "ownership", "plain_data"),
}
"""Package -> modules that lay in raypid itself before, or do so in RLlib, under the same name."""
MOVED = {
    **{f"raypid.{name}": f"raypid.{package}.{name}" for package, names in _NOW_IN.items() for name in names},
    # RLlib's first edition, with raypid in place of ray or of ray.rllib
    "raypid.rllib": "raypid",
    "raypid.agent": "raypid.agents",
    "raypid.models": "raypid.nn.model_catalog",
    "raypid.tune.registry": "raypid",
    "raypid.tune.tune": "raypid.tune",
    "raypid.tune.variant_generator": "raypid.tune",
    # earlier versions of raypid: what users import, and what params.json and checkpoints name
    "raypid.tunable": "raypid.settings.ranges",
    "raypid.run_file": "raypid.settings.files",
    "raypid.saved_settings": "raypid.settings.saved",
    "raypid.tuned": "raypid.settings.tuned",
    "raypid.run.loops": "raypid.loops.loops",
    "raypid.replay.sources": "raypid.loops.sources",
    "raypid.reporting": "raypid.report",
    "raypid.envcheck": "raypid.check",
    "raypid.experiments": "raypid.sweep",
    "raypid.experiments.variants": "raypid.settings.variants",
    "raypid.sweep.variants": "raypid.settings.variants",
}
"""Path of a module or a package -> where it is."""


def current(path: str) -> str:
    """Where a module is, given by any of its paths. What lies in a package has moved with it."""
    for old in sorted(MOVED, key=len, reverse=True):
        if path == old or path.startswith(f"{old}."):
            return MOVED[old] + path[len(old) :]
    return path


class MovedModules:
    """Finds and loads modules by their former paths. A module is one object, whatever it is imported by.

    Stands before Python's own finders: within a moved package, these would load a module a second time.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("raypid.") or (found := current(name)) == name:
            return None
        return ModuleSpec(name, MovedModules, origin=found)  # type: ignore[arg-type]  # a class serves as the loader

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Let Python make an empty module, whose place the real one takes."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(current(module.__name__))


def install() -> None:
    """Let former paths be imported in this process."""
    sys.meta_path.insert(0, MovedModules)
