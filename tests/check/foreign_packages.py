"""Classes as other packages have them, so that these need not be installed: they are known by the names of their bases."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces


def _base(module: str, name: str) -> type:
    return type(name, (), {"__module__": module, "reset": lambda self: None, "step": lambda self, action: None})


class Parallel(_base("pettingzoo.utils.env", "ParallelEnv")):
    pass


class Turns(_base("pettingzoo.utils.env", "AECEnv")):
    pass


class Specs(_base("dm_env._environment", "Environment")):
    pass


class OldGym(_base("gym.core", "Env")):
    pass


class ByMethod(_base("mine", "Base")):
    """Several agents, without a base class that says so."""

    def __init__(self) -> None:
        self.agents = ["a", "b"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)


class ByMapping(_base("mine", "Base")):
    possible_agents = ["a", "b"]
    observation_space = {"a": spaces.Discrete(2), "b": spaces.Discrete(2)}


class ByList(ByMapping):
    observation_space = [spaces.Discrete(2), spaces.Discrete(2)]


def make_parallel() -> Any:
    return Parallel()


OldBox = type("Box", (spaces.Space,), {"__module__": "gym.spaces.box"})
