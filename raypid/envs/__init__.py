"""Environments: found, made, vectorised; their ends and resets made uniform.

`make_vector(EnvSpec(env="CartPole-v1", num_envs=8))` is the way in; `check(spec)` finds errors in a spec before anything
starts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar, overload

import gymnasium

from raypid.envs.creators import settings_of as settings_of
from raypid.envs.env_spec import EnvSpec as EnvSpec
from raypid.envs.env_spec import stream_seeds as stream_seeds
from raypid.envs.errors import EnvError as EnvError
from raypid.envs.make import check as check
from raypid.envs.make import make_vector as make_vector
from raypid.envs.make import sample as sample
from raypid.envs.make import sample_apart as sample_apart
from raypid.envs.make import spaces as spaces
from raypid.envs.resolve import list_envs as list_envs
from raypid.envs.resolve import portable as portable
from raypid.envs.resolve import resolve as resolve
from raypid.envs.vector import Step as Step
from raypid.envs.vector import VectorEnv as VectorEnv
from raypid.plugins.registry import ENVS, check_methods, check_name, within_remote

Creator = TypeVar("Creator")


for _name in ENVS.names():  # for gymnasium.make too, once raypid.envs is imported
    if _name.startswith("raypid/") and _name not in gymnasium.registry:
        gymnasium.register(_name, ENVS.entry(_name))


@overload
def register_env(name: str) -> Callable[[Creator], Creator]: ...


@overload
def register_env(name: str, creator: Creator) -> Creator: ...


def register_env(name: str, creator: object = None) -> object:
    """Give an environment a name: `register_env("Mine", Mine)`, or as a decorator `@register_env("Mine")`.

    Args:
        name: what `env` and `--env` (`--env_name`) will accept.
        creator: a gymnasium.Env class, a gymnasium.vector.VectorEnv class, a function that returns either, a class with
            `__init__(self, args)`, `reset()` and `step(action)` that return `raypid.OBSERVATION` (also one that is decorated with
            @ray.remote: the class inside is used), or a string "module:Name" that is imported when used.

    Returns:
        The creator; without one, a decorator.

    Raises:
        EnvError: the creator does not make environments.
        UserError: the name is one of raypid's own or that of other code, or a class lacks reset or step.
    """
    check_name(name, "register_env")
    if creator is None:
        return partial(register_env, name)
    inside = within_remote(creator)
    if not isinstance(inside, str):
        if isinstance(inside, type) and not issubclass(inside, gymnasium.vector.VectorEnv):
            check_methods("an environment", inside, ("reset", "step"))
        resolve(inside)
    ENVS.add(name, inside)
    return creator
