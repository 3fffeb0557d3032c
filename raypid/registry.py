"""Names for what can be plugged in. An entry is an object or a string "module:attribute" that is imported when used."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any

from raypid.errors import UserError


def suggest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The names in `known` nearest to `name`, best first; upper and lower case are the same."""
    by_lower = {k.lower(): k for k in known}
    return [by_lower[m] for m in difflib.get_close_matches(name.lower(), list(by_lower), n=count, cutoff=0.5)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Text " Did you mean 'x'?" or the whole list, to end an error message with."""
    known = list(known)
    near = suggest(name, known)
    if near:
        return f" Did you mean {' or '.join(repr(n) for n in near)}?"
    return f" Known: {', '.join(sorted(known))}."


def import_string(entry: str) -> Any:
    """Import "module:attribute".

    Raises:
        UserError: the module or the attribute is not there.
    """
    module_name, _, attribute = entry.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.split(".")[0] == error.name.split(".")[0]:
            raise UserError(
                f"{entry!r}: there is no module {error.name!r} on the path: run from its folder, or install it."
            ) from error
        raise
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise UserError(f"{entry!r}: module {module_name!r} has no {attribute!r}.") from error


class Registry:
    """A table from names to objects, filled by users and resolved when used."""

    def __init__(self, kind: str, entries: dict[str, Any] | None = None, hint: str = "") -> None:
        self.kind, self.hint = kind, hint
        self._entries: dict[str, Any] = dict(entries or {})
        self._own = frozenset(self._entries)

    def register(self, name: str, entry: Any) -> None:
        """Add or replace an entry: an object, or a string "module:attribute"."""
        self._entries[name] = entry

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def is_own(self, name: str) -> bool:
        """Tell whether raypid itself brings the entry."""
        return name in self._own

    def names(self) -> list[str]:
        return sorted(self._entries)

    def suggest(self, name: str) -> list[str]:
        return suggest(name, self._entries)

    def entry(self, name: str) -> Any:
        """What was registered, not imported."""
        return self._entries[name]

    def find(self, name: str, target: str) -> Any:
        """The object behind `name`; where that was not registered here, what `target` ("module:attribute", or "") imports."""
        return self.get(target if target and name not in self._entries else name)

    def get(self, name: str) -> Any:
        """The object behind `name`, or behind a "module:attribute" that was never registered.

        Raises:
            UserError: unknown name, with the nearest known ones.
        """
        if name not in self._entries and ":" in name:
            return import_string(name)
        if name not in self._entries:
            raise UserError(f"Unknown {self.kind} {name!r}.{did_you_mean(name, self._entries)}{self.hint}")
        entry = self._entries[name]
        return import_string(entry) if isinstance(entry, str) else entry


ENVS = Registry("environment", {
    "raypid/Catch-v0": "raypid.envs.toy:Catch",
    "raypid/DictCartPole-v0": "raypid.envs.toy:DictCartPole",
    "raypid/MultiMatch-v0": "raypid.envs.toy:MultiMatch",
    "raypid/PositionCartPole-v0": "raypid.envs.toy:PositionCartPole",
    "raypid/RepeatFirst-v0": "raypid.envs.toy:RepeatFirst",
    "raypid/TMaze-v0": "raypid.envs.toy:TMaze",
    "raypid/Wait-v0": "raypid.envs.toy:Wait",
})  # fmt: skip
NETWORKS = Registry("network", {
    "mlp": "raypid.nn.networks:TwinMLP",
    "cnn": "raypid.nn.networks:NatureCNN",
    "resnet": "raypid.nn.networks:ImpalaResNet",
    "lstm": "raypid.nn.networks:TwinMLP",
    "gru": "raypid.nn.networks:TwinMLP",
}, " One of your own is 'module:Class'; what a script or another process registered is not known here.")  # fmt: skip
ALGORITHMS = Registry("algorithm", {
    "PPO": "raypid.algorithms.ppo:PPO",
    "A2C": "raypid.algorithms.a2c:A2C",
    "A3C": "raypid.algorithms.a3c:A3C",
    "IMPALA": "raypid.algorithms.impala:IMPALA",
    "APPO": "raypid.algorithms.impala:APPO",
    "DQN": "raypid.algorithms.dqn:DQN",
    "Rainbow": "raypid.algorithms.dqn:Rainbow",
    "ApeX": "raypid.algorithms.dqn:ApeX",
    "R2D2": "raypid.algorithms.r2d2:R2D2",
    "SQN": "raypid.algorithms.sqn:SQN",
    "SAC": "raypid.algorithms.sac:SAC",
    "TD3": "raypid.algorithms.td3:TD3",
    "DDPG": "raypid.algorithms.td3:DDPG",
    "CustomModel": "raypid.algorithms.custom_model:CustomModel",
    "ES": "raypid.algorithms.es:ES",
    "ARS": "raypid.algorithms.es:ARS",
})  # fmt: skip
REPLAYS = Registry("replay", {
    "uniform": "raypid.replay.uniform:UniformReplay",
    "prioritized": "raypid.replay.prioritized:PrioritizedReplay",
})  # fmt: skip
INTRINSIC_REWARDS = Registry("intrinsic reward", {
    "rnd": "raypid.algorithms.intrinsic:RandomNetworkDistillation",
})  # fmt: skip
