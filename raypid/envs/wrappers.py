"""Wrappers of one Python environment."""

from __future__ import annotations

import math
from typing import Any, SupportsFloat

import gymnasium

from raypid.envs.infos import packed
from raypid.envs.observation_checks import ObservationLayout
from raypid.envs.results import checked_step, reset_obs
from raypid.envs.vector import PythonEnv


class ActionRepeat(gymnasium.Wrapper[object, object, object, object]):
    """Repeats each action `num_repeats` times, or until the episode ends; the reward is the sum."""

    def __init__(self, env: gymnasium.Env[object, object], num_repeats: int) -> None:
        super().__init__(env)
        self.num_repeats = num_repeats

    def step(self, action: object) -> tuple[object, SupportsFloat, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.num_repeats):
            obs, reward, terminated, truncated, info = checked_step(self.env.step, None, action)
            total += reward
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


def strip_limit(env: PythonEnv) -> tuple[PythonEnv, float]:
    """Remove Gymnasium's outermost TimeLimit and OrderEnforcing: the vector does both at a tenth of the cost.

    Returns:
        The environment and its limit in steps, infinite where there is none.
    """
    limit = math.inf
    inner: Any = env
    if type(inner) is gymnasium.wrappers.TimeLimit:
        limit, inner = inner._max_episode_steps, inner.env
    if type(inner) is gymnasium.wrappers.OrderEnforcing:
        inner = inner.env
    return inner, limit


class InProcess(gymnasium.Wrapper[object, object, object, object]):
    """An environment in a process of its own, where nothing else sees its results whole: what does not fit raises ObservationError.
    Only the info of an episode's last step is sent."""

    def __init__(self, env: PythonEnv) -> None:
        env, self._limit = strip_limit(env)
        super().__init__(env)
        self._elapsed = 0
        self._layout = ObservationLayout(env.observation_space)

    def step(self, action: object) -> tuple[object, SupportsFloat, bool, bool, Any]:
        obs, reward, terminated, truncated, info = checked_step(self.env.step, None, action)
        self._layout.stack([obs])
        self._elapsed += 1
        truncated = truncated or self._elapsed >= self._limit
        return obs, reward, terminated, truncated, packed(info) if terminated or truncated else {}

    def reset(self, **given: Any) -> tuple[object, dict[str, Any]]:
        self._elapsed = 0
        obs = reset_obs(self.env.reset(**given))
        self._layout.stack([obs])
        return obs, {}
