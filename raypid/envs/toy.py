"""Small environments for tests, examples and docs."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from raypid.envs.infos import Info
from raypid.types import Array


class _Toy(gymnasium.Env[Array, Any]):
    """Counts the steps of an episode, in `_step`."""

    _step = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self._step = 0
        self._begin()
        return self._observe(), {}

    def _begin(self) -> None:
        """Draw what an episode depends on."""

    def _observe(self) -> Array:
        raise NotImplementedError


class Catch(_Toy):
    """A ball falls; the paddle in the lowest row catches it (+1) or not (-1). Episodes of rows - 1 steps.

    Observation uint8 [rows, columns], 1 where ball and paddle are; actions: left, stay, right.
    After bsuite's catch (Osband et al. 2019, "Behaviour Suite for Reinforcement Learning").
    """

    def __init__(self, rows: int = 10, columns: int = 5) -> None:
        self._rows, self._columns = rows, columns
        self.observation_space = spaces.Box(0, 1, (rows, columns), np.uint8)
        self.action_space = spaces.Discrete(3)

    def _begin(self) -> None:
        self._ball_x, self._paddle_x = int(self.np_random.integers(self._columns)), self._columns // 2

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, Info]:
        self._paddle_x = min(max(self._paddle_x + int(action) - 1, 0), self._columns - 1)
        self._step += 1
        if self._step < self._rows - 1:
            return self._observe(), 0.0, False, False, {}
        caught = self._paddle_x == self._ball_x
        return self._observe(), 1.0 if caught else -1.0, True, False, {"success": float(caught)}

    def _observe(self) -> Array:
        board = np.zeros((self._rows, self._columns), np.uint8)
        board[self._step, self._ball_x] = 1
        board[self._rows - 1, self._paddle_x] = 1
        return board


class _CartPole(gymnasium.ObservationWrapper[object, np.int64, Array]):
    """CartPole-v1, to observe it in other ways. `observation` has the cart's position and velocity, the pole's angle and velocity."""

    def __init__(self, max_episode_steps: int = 500) -> None:
        cartpole = CartPoleEnv()
        super().__init__(gymnasium.wrappers.TimeLimit(cartpole, max_episode_steps))
        box = cartpole.observation_space
        assert isinstance(box, spaces.Box)
        self.observation_space = _box(self.observation(box.low), self.observation(box.high))


def _box(low: Any, high: Any) -> spaces.Space[Any]:
    """The space of arrays, or of dicts of arrays, between two bounds."""
    if isinstance(low, dict):
        return spaces.Dict({part: _box(low[part], high[part]) for part in low})
    return spaces.Box(low, high)


class DictCartPole(_CartPole):
    """CartPole-v1 whose observation is {"position": [2], "velocity": [2]} (cart and pole)."""

    def observation(self, observation: Array) -> dict[str, Array]:
        return {"position": observation[[0, 2]], "velocity": observation[[1, 3]]}


class PositionCartPole(_CartPole):
    """CartPole-v1 without velocities: the observation is the cart's position and the pole's angle [2]. A single observation
    does not show which way the pole moves, so a policy needs a memory (or a frame stack)."""

    def observation(self, observation: Array) -> Array:
        return observation[[0, 2]]


class TMaze(_Toy):
    """A corridor that ends in a junction; the sign at its start tells which way to turn (Bakker 2001, "Reinforcement
    learning with long short-term memory", whose rewards are 4 and -0.1). 1 for the right turn, 0 for the wrong one.

    Observation [3] as in the paper: 011 or 110 at the start, 101 in the corridor, 010 at the junction. Actions: forward, left,
    right. Turns in the corridor and forward at the junction change nothing. Truncated after `max_episode_steps`.
    """

    def __init__(self, length: int = 10, max_episode_steps: int = 100) -> None:
        self._length, self._max_episode_steps = length, max_episode_steps
        self.observation_space = spaces.MultiBinary(3)
        self.action_space = spaces.Discrete(3)

    def _begin(self) -> None:
        self._goal, self._place = int(self.np_random.integers(1, 3)), 0

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, Info]:
        self._step += 1
        late = self._step == self._max_episode_steps
        if self._place == self._length and action != 0:
            right = float(action == self._goal)
            return self._observe(), right, True, False, {"success": right}
        if action == 0 and self._place < self._length:
            self._place += 1
        return self._observe(), 0.0, False, late, {"success": 0.0} if late else {}

    def _observe(self) -> Array:
        if self._place == self._length:
            return np.array([0, 1, 0], np.int8)
        if self._place:
            return np.array([1, 0, 1], np.int8)
        return np.array([[0, 1, 1], [1, 1, 0]][self._goal - 1], np.int8)


class RepeatFirst(_Toy):
    """Repeat in every step the value of the first (after popgym, Morad et al. 2023). Observation [value, 1 in the first
    step]; values of later steps are noise. The rewards of an episode add up to at most 1."""

    def __init__(self, num_values: int = 4, num_steps: int = 16) -> None:
        self.observation_space = spaces.MultiDiscrete([num_values, 2])
        self.action_space = spaces.Discrete(num_values)
        self._num_values, self._num_steps = num_values, num_steps

    def _begin(self) -> None:
        self._value = int(self.np_random.integers(self._num_values))

    def _observe(self) -> Array:
        return np.array([self.np_random.integers(self._num_values), 0] if self._step else [self._value, 1])

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, Info]:
        self._step += 1
        return self._observe(), float(action == self._value) / self._num_steps, self._step == self._num_steps, False, {}


class MultiMatch(_Toy):
    """Repeat the observation: the reward is the fraction of parts that match. 10 steps; the maximum is 10."""

    def __init__(self, num_values: int = 4, num_parts: int = 2, num_steps: int = 10) -> None:
        self.observation_space = spaces.MultiDiscrete([num_values] * num_parts)
        self.action_space = spaces.MultiDiscrete([num_values] * num_parts)
        self._num_values, self._num_parts, self._num_steps = num_values, num_parts, num_steps

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        reward = float(np.mean(np.asarray(action) == self._values))
        self._step += 1
        return self._observe(), reward, self._step == self._num_steps, False, {}

    def _observe(self) -> Array:
        self._values = self.np_random.integers(self._num_values, size=self._num_parts)
        return self._values


class Wait(_Toy):
    """Each step sleeps `wait_s` seconds, as with a robot or a game server. 20 steps; reward 1 for action 1.

    Observation [2]: the last action, the step in the episode.
    """

    def __init__(self, wait_s: float = 0.02, num_steps: int = 20) -> None:
        self.observation_space = spaces.Box(0, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._wait_s, self._num_steps = wait_s, num_steps

    def _observe(self, action: int = 0) -> Array:
        return np.array([action, self._step], np.float32)

    def step(self, action: Any) -> tuple[Array, float, bool, bool, Info]:
        time.sleep(self._wait_s)
        self._step += 1
        return self._observe(action), float(action), False, self._step == self._num_steps, {}
