"""One environment by itself, whatever it comes as: a vector is stepped as a vector of one."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import gymnasium

from raypid.envs import EnvSpec, VectorEnv, make_vector
from raypid.envs.creators import call, make_env, wrap
from raypid.envs.gym_vector import close_vector
from raypid.envs.make import check
from raypid.envs.observation_checks import from_tree, to_tree
from raypid.types import Tree, tree_map

_LIMIT = "_max_episode_steps"
"""Where Gymnasium's TimeLimit has its limit."""


def made_alone(spec: EnvSpec) -> Any:
    """Make one environment with the wrappers of `spec`, as a gymnasium.Env.

    Raises:
        EnvError: it cannot be made, or is none.
    """
    spec = replace(spec, num_envs=1)
    resolved, vectorizer = check(spec)
    if resolved.kind == "function":
        made = call(resolved.creator, spec, 0, num_envs=1)
        if not isinstance(made, gymnasium.vector.VectorEnv):
            return wrap(made, spec, resolved)
        close_vector(made)
        # a function without the parameter num_envs says how many
        spec, vectorizer = replace(spec, num_envs=made.num_envs), "native"
    elif resolved.kind == "gym" and vectorizer == "native":
        vectorizer = "auto"
    if vectorizer in ("native", "envpool"):
        return AsOne(make_vector(replace(spec, vectorizer=vectorizer)), spec.time_limit)
    return make_env(spec, resolved, 0)


class AsOne(gymnasium.Env[Any, Any]):
    """The first stream of a vector; others, if it cannot be made with one, do the same."""

    def __init__(self, vector: VectorEnv, time_limit: int | None) -> None:
        self.vector = vector
        if time_limit is None:
            with contextlib.suppress(AttributeError, TypeError):  # EnvPool has it
                time_limit = int(vector._env.spec.config.max_episode_steps)  # type: ignore[attr-defined]
        self._max_episode_steps = time_limit
        self.observation_space, self.action_space = vector.observation_space, vector.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._own(self.vector.reset(None if seed is None else [seed] * self.vector.num_envs)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = self.vector.step(to_tree(self.action_space, [action] * self.vector.num_envs))
        final = step.final if step.final is not None and 0 in step.final[0] else None
        obs = step.obs if final is None else final[1]
        info = dict(step.infos.get(0, {}))
        return self._own(obs), float(step.reward[0]), bool(step.terminated[0]), bool(step.truncated[0]), info

    def _own(self, obs: Tree) -> Any:
        return from_tree(self.observation_space, tree_map(lambda array: array[0], obs))

    def close(self) -> None:
        self.vector.close()


def time_limit_of(env: Any) -> int | None:
    """The steps after which a wrapper, or the vector around it, cuts episodes."""
    frames = (getattr(env.spec, "kwargs", None) or {}).get("max_num_frames_per_episode")
    if isinstance(frames, int):  # of ALE
        return frames // 4
    return env.get_wrapper_attr(_LIMIT) if env.has_wrapper_attr(_LIMIT) else None
