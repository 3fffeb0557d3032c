"""Environments that misbehave, and vectors of every autoreset mode."""

from __future__ import annotations

import os
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv


class Counter(gymnasium.Env):
    """Observation [episode, step]; episode lengths go round; even episodes end truncated."""

    def __init__(self, lengths: tuple[int, ...] = (3, 1, 2), start: int = 0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.lengths, self.episode, self.start = lengths, -1, start

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        done = self.t >= self.lengths[(self.episode + self.start) % len(self.lengths)]
        truncated = done and self.episode % 2 == 0
        info = {"success": float(self.episode)} if done else {}
        return self._obs(), float(10 * self.episode + self.t), done and not truncated, truncated, info

    def _obs(self) -> Any:
        return np.array([self.episode, self.t], np.float32)


def counters(num_envs: int, mode: str) -> SyncVectorEnv:
    return SyncVectorEnv(
        [lambda i=i: Counter(start=i) for i in range(num_envs)],
        autoreset_mode=AutoresetMode(mode),
    )


def counter(stream_index: int) -> Counter:
    return Counter(start=stream_index)


class Faulty(Counter):
    """Does `fault` in step `at` of the first episode of stream `stream`."""

    def __init__(self, fault: str, at: int = 2, stream: int = 1, stream_index: int = 0, flag: str = "") -> None:
        super().__init__(lengths=(5,))
        self.fault, self.at = fault, at
        # a file remembers over rebuilds, in other processes too, that the fault has happened
        self.armed = stream_index == stream and not (flag and os.path.exists(flag))
        self.flag = flag
        if fault == "unmakeable" and flag and os.path.exists(flag) and stream_index == stream:
            raise RuntimeError("no second time")

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if not (self.armed and self.episode == 0 and self.t == self.at):
            return obs, reward, terminated, truncated, info
        if self.flag:
            open(self.flag, "w").close()
        if self.fault in ("raise", "unmakeable"):
            raise RuntimeError("boom")
        if self.fault == "die":
            os._exit(3)
        if self.fault == "old api":
            return obs, reward, terminated, info
        if self.fault == "reward":
            reward = float("nan")
        if self.fault == "rich":
            reward = 1e39
        if self.fault == "no reward":
            reward = None
        if self.fault in ("terminated", "truncated"):
            terminated, truncated = ("no", False) if self.fault == "terminated" else (False, None)
        if self.fault == "info":
            info = None
        obs = {
            "nan": np.array([np.nan, 0], np.float32),
            "inf": np.array([0, np.inf], np.float32),
            "shape": np.zeros(3, np.float32),
            "dtype": np.array(["a", "b"]),
            "none": None,
            "text": "hello",
        }.get(self.fault, obs)
        return obs, reward, terminated, truncated, info


class Nested(gymnasium.Env):
    """Echoes its action; observation and action are Dict and Tuple of all supported leaves."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "a": spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-9, 9, (2, 2), np.float64))),
                "b": spaces.MultiBinary(3),
                "c": spaces.MultiDiscrete([2, 5]),
                "d": spaces.Box(0, 255, (4,), np.uint8),
            }
        )
        self.action_space = spaces.Dict(
            {"x": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32))), "y": spaces.MultiBinary(3)}
        )
        self.seen: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._obs(0, np.zeros(2), np.zeros(3, np.int8)), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        (x0, x1), y = action["x"], action["y"]
        return self._obs(int(x0), x1, y), float(x1.sum()), False, False, {}

    def _obs(self, x0: int, x1: Any, y: Any) -> Any:
        box = np.full((2, 2), x1[0], np.float64)
        return {"a": (x0 + 1 if x0 < 3 else 3, box), "b": y, "c": np.array([1, x0]), "d": np.full(4, x0, np.uint8)}


class OutOfRange(gymnasium.Env):
    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return 3, 0.0, False, False, {}


class WithSpace(gymnasium.Env):
    """Nothing but a space that may be refused."""

    def __init__(self, space: Any, role: str = "observation") -> None:
        fine = spaces.Discrete(2)
        self.observation_space = space if role == "observation" else fine
        self.action_space = space if role == "action" else fine

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}


class Walk(gymnasium.Env):
    """A seeded random walk of 20 steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(size=3), 0
        return self.x, {}

    def step(self, action: Any) -> Any:
        self.x, self.t = self.x + self.np_random.normal(size=3) + action, self.t + 1
        return self.x, float(self.x[0]), bool(self.x[1] > 4), self.t == 20, {}


def secret(t: int, start: int) -> dict[str, Any]:
    return {"t": t, "lock": threading.Lock()}


class Telling(Counter):
    """Gives an info by name, and from step `at` on a reward; episodes of stream b have 3 + b steps."""

    INFOS = {
        "shapes": lambda t, start: {"hits": np.zeros(t), "grid": np.zeros((t, start + 1))},
        "types": lambda t, start: {"x": (1, 0.5, None, "no", 10**30)[(t + start) % 5], "y": None},
        "keys": lambda t, start: {("cell", 1): t, 7: start, None: 1, "score": t},
        "masks": lambda t, start: {"_episode": t, "episode": {"r": t, "_r": 2}, "_": 1, "env_id": t, "players": [1, 2, 3]},
        "final": lambda t, start: {"final_info": {"a": 1}, "final_obs": "mine", "score": t},
        "nested": lambda t, start: {"a": {"b": {"c": np.zeros(t)}} if t % 2 else t, 3: {4: [t] * t}},
        "objects": lambda t, start: {"o": np.array([None, {t}], object), "s": {t, start}, "list": [t] * (t + 1)},
        "alone": lambda t, start: {"only": t} if start else {},
    }  # fmt: skip

    def __init__(self, start: int = 0, info: str = "", reward: object = 1.0, at: int = 1) -> None:
        super().__init__((3 + start,), start)
        self.info, self.reward, self.at = self.INFOS.get(info, secret), reward, at

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, _ = super().reset(seed=seed)
        return obs, {"reset": np.zeros(self.episode % 3), 5: "reset"}

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, _ = super().step(action)
        now = 3 * self.episode + self.t
        return obs, self.reward if now >= self.at else 1.0, terminated, truncated, self.info(self.t, self.start)


def telling(stream_index: int, **given: Any) -> Telling:
    return Telling(stream_index, **given)


def tellings(num_envs: int, way: str, **given: Any) -> Any:
    """A vector as users make them; `way` is a mode of resets, or "async"."""
    makers = [lambda i=i: Telling(i, **given) for i in range(num_envs)]
    if way == "async":
        return AsyncVectorEnv(makers)
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode(way))
