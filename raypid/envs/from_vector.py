"""What each worker makes its environments from, where a whole vector of them was given."""

from __future__ import annotations

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
    """An environment as the settings take it."""

    env: Any
    num_envs: int | None = None
    """How many a vector holds; None: as many as one likes."""
    shared: bool = False
    """The number is of all workers together: it is a vector's that was made already."""
    config: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments that the environment was made with."""


def entry_of(env: Any, env_config: dict[str, Any]) -> Entry:
    """How to make what `env` is or names: as `resolve` takes it, a gymnasium.vector.VectorEnv, or a function that makes one.

    Raises:
        EnvError: a vector that cannot be made again; what resolve raises.
    """
    if isinstance(env, gymnasium.vector.VectorEnv):
        return _entry_of_vector(env)
    resolved = resolve(env)
    if resolved.kind != "function" or "num_envs" in parameters(resolved.target):
        return Entry(env)
    made = call(resolved.target, EnvSpec(env=env, env_config=env_config), 0)  # what it makes shows only now
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

        def make(stream_index: int) -> Any:
            return makers[stream_index % len(makers)]()

        make.__name__ = make.__qualname__ = vector.spec.id if vector.spec is not None else "vector"
        return Entry(make, vector.num_envs, shared=True)
    if vector.unwrapped is vector and vector.spec is not None:
        made_with = {k: v for k, v in vector.spec.kwargs.items() if k not in ("num_envs", "vectorization_mode")}
        return Entry(vector.spec.id, vector.num_envs, shared=True, config=made_with)
    raise EnvError(
        f"A {type(vector).__name__} that is made already does not say how: give a function with a parameter num_envs that makes "
        "one, so that every worker can make its own."
    )
