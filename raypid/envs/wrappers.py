"""Wrappers of one Python environment."""

from __future__ import annotations

import math
from typing import Any, SupportsFloat

import gymnasium

from raypid.envs.errors import EnvError
from raypid.envs.observation_checks import ObservationError, ObservationLayout
from raypid.envs.vector import Info, PythonEnv


class ActionRepeat(gymnasium.Wrapper[object, object, object, object]):
    """Repeats each action `num_repeats` times, or until the episode ends; the reward is the sum."""

    def __init__(self, env: gymnasium.Env[object, object], num_repeats: int) -> None:
        super().__init__(env)
        self.num_repeats = num_repeats

    def step(self, action: object) -> tuple[object, SupportsFloat, bool, bool, Info]:
        total = 0.0
        for _ in range(self.num_repeats):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
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


class Checked(gymnasium.ObservationWrapper[object, object, object]):
    """Raises EnvError on observations that do not fit. In a process of its own, nothing else sees them whole."""

    def __init__(self, env: Any, name: str, stream: int) -> None:
        super().__init__(env)
        self._name, self._stream, self._num_steps = name, stream, 0
        self._layout = ObservationLayout(env.observation_space)

    def step(self, action: object) -> tuple[object, SupportsFloat, bool, bool, Info]:
        self._num_steps += 1
        return super().step(action)

    def observation(self, observation: object) -> object:
        try:
            self._layout.stack([observation])
        except ObservationError as error:
            raise EnvError(
                f"Environment {self._name}, stream {self._stream}, step {self._num_steps}: {error}"
            ) from None
        return observation
