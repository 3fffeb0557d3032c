"""Wrappers of one Python environment."""

from __future__ import annotations

from typing import Any

import gymnasium

from raypid.envs.errors import EnvError
from raypid.envs.layout import ObservationError, ObservationLayout


class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes each action `num_repeats` times, or until the episode ends; the reward is the sum."""

    def __init__(self, env: gymnasium.Env[Any, Any], num_repeats: int) -> None:
        super().__init__(env)
        self.num_repeats = num_repeats

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.num_repeats):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises EnvError on observations that do not fit: within a process of its own nobody else sees them whole."""

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, stream: int) -> None:
        super().__init__(env)
        self._name, self._stream, self._num_steps = name, stream, 0
        self._layout = ObservationLayout(env.observation_space, name)
        self._arrays = self._layout.empty(1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._check(obs)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._check(obs)
        return obs, reward, terminated, truncated, info

    def _check(self, obs: Any) -> None:
        try:
            self._layout.write(self._arrays, 0, obs)
        except ObservationError as error:
            raise EnvError(
                f"Environment {self._name}, stream {self._stream}, step {self._num_steps}: {error}"
            ) from None
