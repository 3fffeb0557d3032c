"""One environment by itself, whatever it comes as: a vector is stepped as a vector of one."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import gymnasium

from raypid.envs import EnvSpec, VectorEnv, make_vector, resolve
from raypid.envs.observation_checks import from_tree, to_tree
from raypid.envs.python_vector import PythonVector
from raypid.types import Tree, tree_map


def made_alone(spec: EnvSpec) -> tuple[Any, float]:
    """Make one environment with the wrappers of `spec`, as a gymnasium.Env whose outermost time limit is taken off.

    Returns:
        The environment and its limit in steps, infinite where there is none.

    Raises:
        EnvError: it cannot be made, is none, or has a space that is not supported.
    """
    own = resolve(spec.env).kind in ("function", "envpool", "vector_class")
    vector = make_vector(replace(spec, num_envs=1, vectorizer="auto" if own else "sync"))
    if isinstance(vector, PythonVector):
        return vector.envs[0], vector.time_limit
    return AsOne(vector, spec.time_limit), math.inf


class AsOne(gymnasium.Env[Any, Any]):
    """A vector of one stream."""

    def __init__(self, vector: VectorEnv, time_limit: int | None) -> None:
        self.vector = vector
        if time_limit is None:
            with contextlib.suppress(AttributeError, TypeError):  # EnvPool has it
                time_limit = int(vector._env.spec.config.max_episode_steps)  # type: ignore[attr-defined]
        self._max_episode_steps = time_limit
        self.observation_space, self.action_space = vector.observation_space, vector.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._own(self.vector.reset(None if seed is None else [seed])), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = self.vector.step(to_tree(self.action_space, [action]))
        obs = step.obs if step.final is None else step.final[1]
        info = dict(step.infos.get(0, {}))
        return self._own(obs), float(step.reward[0]), bool(step.terminated[0]), bool(step.truncated[0]), info

    def _own(self, obs: Tree) -> Any:
        return from_tree(self.observation_space, tree_map(lambda array: array[0], obs))

    def close(self) -> None:
        self.vector.close()


def inner_limit(env: Any) -> int | None:
    """The steps after which a wrapper inside, or the vector around it, cuts episodes."""
    frames = (getattr(env.spec, "kwargs", None) or {}).get("max_num_frames_per_episode")
    if isinstance(frames, int):  # of ALE
        return frames // 4
    return env.get_wrapper_attr("_max_episode_steps") if env.has_wrapper_attr("_max_episode_steps") else None
