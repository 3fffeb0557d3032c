"""Environments with one thing wrong each."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Fine(gymnasium.Env):
    """A random walk of 30 steps, with nothing wrong."""

    observation_space: Any = spaces.Box(-10, 10, (2,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.x = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.x.copy(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.x = np.clip(self.x + self.np_random.normal(0, 0.1, 2), -10, 10).astype(np.float32)
        return self.x.copy(), float(self.x[0]), False, self.t >= 30, {}


class Fault(Fine):
    """Does what `fault` says in its steps from the tenth on."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.t < 10:
            return obs, reward, terminated, truncated, info
        match self.fault:
            case "four":
                return obs, reward, truncated, info
            case "raise":
                raise IndexError("no such cell")
            case "sys.exit":
                sys.exit(4)
            case "exit":
                os._exit(3)
            case "segfault":
                ctypes.string_at(0)
            case "hang":
                while True:
                    time.sleep(0.01)
            case "print":
                while True:
                    print("looking for a way out")
        reward = {
            "no reward": None,
            "text reward": "1",
            "two rewards": np.ones(2),
            "parts of a reward": {"speed": 2.0, "fuel": 1.0},
            "vast reward": 10**400,
            "large reward": 1e39,
        }.get(self.fault, reward)
        return obs, reward, terminated, truncated, info


class ManyFaults(Fine):
    """Each part of its observation is wrong in another way, and so are its reward, a flag and its info."""

    observation_space: Any = spaces.Dict(
        nan=spaces.Box(-10, 10, (2,), np.float32),
        inf=spaces.Tuple((spaces.Discrete(2), spaces.Box(-10, 10, (2,), np.float32))),
        shape=spaces.Box(-10, 10, (2,), np.float32),
        text=spaces.Box(-10, 10, (2,), np.float32),
        dtype=spaces.Box(0, 255, (2,), np.uint8),
        choice=spaces.Discrete(3),
        beyond=spaces.Box(-10, 10, (2,), np.float32),
        missing=spaces.Discrete(3),
    )

    def _observed(self, x: Any) -> Any:
        nan, inf = np.array([0, np.nan], np.float32), np.array([np.inf, 0], np.float32)
        wrong = {
            "nan": nan,
            "inf": (0, inf),
            "shape": np.zeros(3, np.float32),
            "text": "hello",
            "dtype": x,
            "choice": 3,
        }
        return {**wrong, "beyond": np.array([77, 0], np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._observed(super().reset(seed=seed)[0]), {}

    def step(self, action: Any) -> Any:
        x, *_ = super().step(action)
        return self._observed(x), np.nan, "no", self.t >= 30, None


class Untidy(Fine):
    """Much that does little harm."""

    action_space: Any = spaces.Box(-1, np.array([1, np.inf], np.float32), (2,), np.float32)

    def step(self, action: Any) -> Any:
        print("step", self.t)
        obs, reward, _, truncated, _ = super().step(action)
        obs[1] = 50 if self.t >= 10 else obs[1]
        return obs.astype(np.float64), np.array([reward]), 0, truncated, {"image": np.zeros((99, 99))}

    def close(self) -> None:
        raise RuntimeError("not now")


class OldGym(Fine):
    """As Gym's environments were before 0.26."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()[0]

    def step(self, action: Any) -> Any:
        obs, reward, _, ended, info = super().step(action)
        return obs, reward, ended, info


class HangingClose(Fine):
    def close(self) -> None:
        while True:
            time.sleep(0.01)


class HangingConstructor(Fine):
    def __init__(self) -> None:
        while True:
            time.sleep(0.01)


class RaisingConstructor(Fine):
    def __init__(self) -> None:
        raise RuntimeError("no licence")


class HangingReset(Fine):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        while True:
            time.sleep(0.01)


class FourValues(Fine):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class OnlyObservation(Fine):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class Text(Fine):
    observation_space: Any = spaces.Text(5)


class GlobalRandom(Fine):
    """Takes a seed and leaves it alone."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset()
        self.x = np.random.uniform(-1, 1, 2).astype(np.float32)
        return self.x.copy(), {}


class Unseeded(Fine):
    """Its steps draw from a generator that no seed reaches."""

    rng = np.random.default_rng()
    observation_space: Any = spaces.Box(-10, 10, (20,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        return np.tile(obs, 10), info

    def step(self, action: Any) -> Any:
        obs, *others = super().step(action)
        return np.clip(np.tile(obs, 10) + self.rng.normal(size=20), -10, 10).astype(np.float32), *others


class FixedSeed(Fine):
    """The same episode again and again, unless somebody gives a seed."""

    def reset(self, *, seed: int | None = 3, options: Any = None) -> Any:
        return super().reset(seed=seed)


class Leak(Fine):
    """What steps have added is still there after a reset."""

    added = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        return np.clip(obs + self.added, -10, 10).astype(np.float32), info

    def step(self, action: Any) -> Any:
        self.added += 0.01
        return super().step(action)


class NeverSetBack(Fine):
    """Its counter of steps goes on over a reset."""

    count = 0

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        self.count += 1
        return obs, reward, self.count > 20, False, {}


class Endless(Fine):
    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, False, False, {}


class Aliased(Fine):
    """Fills one array again and again."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.x, {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.x += 0.01
        return self.x, 1.0, False, self.t >= 30, {}


class Declared(Fine):
    def __init__(self, args: Any) -> None:
        self.length = args.length

    @staticmethod
    def add_args(parser: Any) -> None:
        parser.add_argument("--length", type=int, default=5, help="steps of an episode")

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, False, self.t >= self.length, {}


class NoSeed:
    """Without Gymnasium's interface, and without a seed."""

    observation_space: Any = spaces.Discrete(2)
    action_space: Any = spaces.Discrete(2)

    def reset(self) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return 1, 0.0, True, False, {}


class OnlyOne(Fine):
    """Two of them cannot live in one process."""

    num = 0

    def __init__(self) -> None:
        type(self).num += 1
        if self.num > 1:
            raise OSError("the port is taken")


class Grows(Fine):
    """Remembers what nobody asks for."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def step(self, action: Any) -> Any:
        self.seen.append(np.ones(2_000))
        return super().step(action)


class Nothing:
    def reset(self) -> int:
        return 0

    def step(self, action: Any) -> int:
        return 0


def number() -> int:
    return 7


def two(num_envs: int = 2) -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs)


class Waits(Fine):
    """Steps wait, every fifth for longer, and resets wait longest."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        time.sleep(0.02)
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        time.sleep(0.01 if self.__dict__.get("t", 0) % 5 == 4 else 0.001)
        obs, reward, *_ = super().step(action)
        return obs, reward, False, self.t >= 10, {}


class ArrayReward(Fine):
    def step(self, action: Any) -> Any:
        obs, reward, *others = super().step(action)
        return obs, np.array([reward]), *others
