"""Wrappers of one Python environment."""

from __future__ import annotations

import math
from typing import Any, SupportsFloat

import gymnasium

from raypid.envs.errors import EnvError
from raypid.envs.observation_checks import ObservationError, ObservationLayout
from raypid.envs.results import RESET, STEP, fits, misfit_text
from raypid.envs.vector import Info, PythonEnv


class ActionRepeat(gymnasium.Wrapper[object, object, object, object]):
    """Repeats each action `num_repeats` times, or until the episode ends; the reward is the sum."""

    def __init__(self, env: gymnasium.Env[object, object], num_repeats: int) -> None:
        super().__init__(env)
        self.num_repeats = num_repeats

    def step(self, action: object) -> tuple[object, SupportsFloat, bool, bool, Info]:
        total = 0.0
        for _ in range(self.num_repeats):
            result = self.env.step(action)
            if not fits(result, STEP):
                return result  # whoever steps this says what is wrong
            obs, reward, terminated, truncated, info = result
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


def checked(env: PythonEnv, name: str, stream: int) -> PythonEnv:
    """Put `Checked` around an environment, below what takes its results apart: limits and repeated actions."""
    around: Any = None
    inner: Any = env
    while isinstance(inner, (gymnasium.wrappers.TimeLimit, gymnasium.wrappers.OrderEnforcing, ActionRepeat)):
        around, inner = inner, inner.env
    if around is None:
        return Checked(inner, name, stream)
    around.env = Checked(inner, name, stream)
    return env


class Checked(gymnasium.Wrapper[object, object, object, object]):
    """Raises EnvError on results and observations that do not fit. In a process of its own, nothing else sees them whole."""

    def __init__(self, env: Any, name: str, stream: int) -> None:
        super().__init__(env)
        self._name, self._stream, self._num_steps = name, stream, 0
        self._layout = ObservationLayout(env.observation_space)

    def step(self, action: object) -> tuple[object, SupportsFloat, bool, bool, Info]:
        self._num_steps += 1
        result: Any = self._whole(self.env.step(action), STEP)
        return result

    def reset(self, **given: Any) -> tuple[object, dict[str, Any]]:
        result: Any = self._whole(self.env.reset(**given), RESET)
        return result

    def _whole(self, result: Any, count: int) -> object:
        """The result of reset() (`RESET`) or step() (`STEP`), if it is what it must be."""
        try:
            if fits(result, count):
                self._layout.stack([result[0]])
                return result
            said = misfit_text(result, count)
        except ObservationError as error:
            said = str(error)
        raise EnvError(f"Environment {self._name}, stream {self._stream}, step {self._num_steps}: {said}")
