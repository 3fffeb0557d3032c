"""How each worker makes environments of its own when a whole vector of them was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from raypid.envs.creators import call, parameters
from raypid.envs.env_spec import EnvSpec
from raypid.envs.errors import EnvError
from raypid.envs.gym_vector import close_vector
from raypid.envs.resolve import resolve


@dataclass(frozen=True, slots=True)
class Entry:
    """An environment as the settings accept it."""

    env: object
    num_envs: int | None = None
    """How many environments a vector holds; None: any number."""
    shared: bool = False
    """`num_envs` counts all workers together: it comes from a vector that already exists."""
    config: dict[str, object] = field(default_factory=dict)
    """Keyword arguments that the environment was made with."""


def entry_of(env: object, env_config: Mapping[str, object]) -> Entry:
    """Find out how to make what `env` is or names.

    Args:
        env: what `resolve` accepts, a gymnasium.vector.VectorEnv, or a function that makes one.

    Raises:
        EnvError: a vector that cannot be made again; what resolve raises.
    """
    if isinstance(env, gymnasium.vector.VectorEnv):
        return _entry_of_vector(env)
    resolved = resolve(env)
    if resolved.kind != "function" or "num_envs" in parameters(resolved.creator):
        return Entry(env)
    # only a call shows whether the function makes one environment or a vector
    made = call(resolved.creator, EnvSpec(env=env, env_config=env_config), 0)
    if not isinstance(made, gymnasium.vector.VectorEnv):
        made.close()
        return Entry(env)
    try:
        return replace(_entry_of_vector(made), shared=False)
    finally:
        close_vector(made)


def _entry_of_vector(vector: gymnasium.vector.VectorEnv[Any, Any, Any]) -> Entry:
    if isinstance(vector, (SyncVectorEnv, AsyncVectorEnv)):
        makers = tuple(vector.env_fns)

        def make(stream_index: int) -> object:
            return makers[stream_index % len(makers)]()

        make.__name__ = make.__qualname__ = vector.spec.id if vector.spec is not None else "vector"
        return Entry(make, vector.num_envs, shared=True)
    if vector.unwrapped is vector and vector.spec is not None:
        made_with = {k: v for k, v in vector.spec.kwargs.items() if k not in ("num_envs", "vectorization_mode")}
        return Entry(vector.spec.id, vector.num_envs, shared=True, config=made_with)
    raise EnvError(
        f"A {type(vector).__name__} that already exists does not say how it was made: give a function with a parameter num_envs "
        "that makes one, so that every worker can make its own."
    )
