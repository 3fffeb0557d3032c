"""Toys with numbers that are out of the ordinary, which the default settings are to learn as they are.

    python tests/toys/toys.py                                  # every algorithm on every toy
    python tests/toys/toys.py --algorithms PPO,SAC --toys tiny,huge --seeds 0

Each toy comes with discrete and with continuous actions. `best` is the mean return of a perfect policy, `learnt` the one that counts:
most of the way there from what random actions earn.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import raypid
from raypid.plugins.registry import ALGORITHMS

Array = Any
PERIOD = 16
"""Steps of Follow after which its episode ends, or its target jumps."""


class Follow(gymnasium.Env[Array, Any]):
    """Move along a line to a target: the reward is `reward` times 1 - the distance.

    Place and target begin anywhere in [-1, 1]; a step is at most STEP long, so four of them bridge half the line. The observation is
    offset + scale * (place, target).

    Args:
        reward: what a step at the target earns.
        offset, scale: of the observation's elements.
        num_steps: of an episode; 0: it never ends, and the target jumps every PERIOD steps.
        bounded: whether the observation space says the bounds of its elements.
    """

    STEP = 0.25

    def __init__(
        self,
        continuous: bool = False,
        reward: float = 1.0,
        offset: tuple[float, float] = (0.0, 0.0),
        scale: tuple[float, float] = (1.0, 1.0),
        num_steps: int = PERIOD,
        bounded: bool = True,
    ) -> None:
        self._continuous, self._reward, self._num_steps = continuous, reward, num_steps
        self._offset, self._scale = np.array(offset), np.array(scale)
        low, high = self._offset - self._scale, self._offset + self._scale
        if not bounded:
            low, high = low - np.inf, high + np.inf
        self.observation_space = spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
        self.action_space: Any = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        self._place, self._target = self.np_random.uniform(-1, 1, 2)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        move = float(np.clip(action[0], -1, 1)) if self._continuous else int(action) - 1
        self._place = min(max(self._place + self.STEP * move, -1.0), 1.0)
        reward = self._reward * (1 - abs(self._place - self._target))
        self._step += 1
        if not self._num_steps and self._step % PERIOD == 0:
            self._target = self.np_random.uniform(-1, 1)
        return self._observe(), reward, False, self._step == self._num_steps, {}

    def _observe(self) -> Array:
        return (self._offset + self._scale * [self._place, self._target]).astype(np.float32)

    def best_action(self) -> Any:
        """What a perfect policy does now."""
        move = (self._target - self._place) / self.STEP
        return np.array([move], np.float32).clip(-1, 1) if self._continuous else int(np.clip(np.rint(move), -1, 1)) + 1


class Guess(gymnasium.Env[Array, Any]):
    """Episodes of one step: the observation is a number in [-1, 1]. Of discrete actions the one in whose third it lies earns 1, of
    continuous ones 1 - their distance from it."""

    def __init__(self, continuous: bool = False) -> None:
        self._continuous = continuous
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space: Any = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._number = float(self.np_random.uniform(-1, 1))
        return np.array([self._number], np.float32), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if self._continuous:
            reward = 1 - abs(float(action[0]) - self._number)
        else:
            reward = float(int(action) == self.best_action())
        return np.array([self._number], np.float32), reward, True, False, {}

    def best_action(self) -> Any:
        """What a perfect policy does now."""
        return np.array([self._number], np.float32) if self._continuous else min(int((self._number + 1) * 1.5), 2)


class Corner(gymnasium.Env[Array, Any]):
    """Name the quarter of a picture, or of a grid of symbols, that stands out: 1 a step, 10 steps. Its space says 0 to 255.

    Args:
        side: of the square, which has 3 channels.
        symbols: numbers up to 10, as kinds of objects; else numbers up to 200, as colours.
        channels_last: whether the shape is (side, side, 3) rather than (3, side, side).
    """

    def __init__(self, side: int, symbols: bool, dtype: str, channels_last: bool) -> None:
        self._side, self._symbols, self._dtype, self._last = side, symbols, dtype, channels_last
        shape = (side, side, 3) if channels_last else (3, side, side)
        self.observation_space: Any = spaces.Box(0, 255, shape, np.dtype(dtype).type)
        self.action_space: Any = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._step += 1
        reward = float(action == self._right)
        return self._observe(), reward, False, self._step == 10, {}

    def _observe(self) -> Array:
        dim, bright = (4, 10) if self._symbols else (60, 200)
        image = self.np_random.integers(0, dim, (self._side, self._side, 3)).astype(self._dtype)
        self._right = int(self.np_random.integers(4))
        (row, column), half, edge = divmod(self._right, 2), self._side // 2, max(1, self._side // 8)
        down, across = (slice(half * place + edge, half * (place + 1) - edge) for place in (row, column))
        image[down, across] = bright
        return image if self._last else np.moveaxis(image, -1, 0)


@dataclass(frozen=True, kw_only=True)
class Toy:
    """A kind of environment. Returns are those of an episode, or of PERIOD steps of one that does not end, with (discrete,
    continuous) actions."""

    env: type[gymnasium.Env[Array, Any]] = Follow
    env_config: dict[str, Any] = field(default_factory=dict)
    random: tuple[float, float]
    """What random actions earn."""
    best: tuple[float, float]
    share: float = 0.8
    """How far from the one to the other counts as learnt."""
    ends: bool = True

    def learnt(self, continuous: bool) -> float:
        """The return that counts as learnt."""
        random, best = self.random[continuous], self.best[continuous]
        return random + self.share * (best - random)


FOLLOW = {"random": (4.7, 4.9), "best": (14.1, 14.9)}


def times(factor: float) -> dict[str, tuple[float, float]]:
    """The returns of Follow with rewards that are larger by this factor."""
    return {name: (a * factor, b * factor) for name, (a, b) in FOLLOW.items()}


FAR = 1e5
TOYS = {
    "plain": Toy(**times(1)),
    "tiny": Toy(env_config={"reward": 1e-6}, **times(1e-6)),
    "huge": Toy(env_config={"reward": 1e6}, **times(1e6)),
    # evolution strategies tell weights apart by a single step here
    "one step": Toy(env=Guess, random=(1 / 3, 1 / 3), best=(1.0, 1.0), share=0.7),
    "endless": Toy(env_config={"num_steps": 0}, ends=False, **times(1)),
    "offset": Toy(env_config={"offset": (FAR, FAR), "bounded": False}, **times(1)),
    "scale": Toy(env_config={"scale": (FAR, FAR), "bounded": False}, **times(1)),
    "one far": Toy(env_config={"scale": (FAR, 1.0), "bounded": False}, **times(1)),
    "bounds": Toy(env_config={"offset": (FAR, 0.0), "scale": (1.0, FAR)}, **times(1)),
}  # fmt: skip
BEYOND_FLOAT32 = {"reward": 1e39}
"""Of Follow: rewards that no learner takes."""


def earned(env: Any, choose: Any, num_steps: int, seed: int) -> float:
    """The mean reward of a step, by what `choose(obs)` does."""
    obs, _ = env.reset(seed=seed)
    total = 0.0
    for _ in range(num_steps):
        obs, reward, terminated, truncated, _ = env.step(choose(obs))
        total += reward
        if terminated or truncated:
            obs, _ = env.reset()
    return total / num_steps


DISCRETE = ("PPO", "A2C", "A3C", "IMPALA", "APPO", "DQN", "Rainbow", "SQN", "R2D2", "SAC", "ES", "ARS")
CONTINUOUS = ("PPO", "A2C", "A3C", "IMPALA", "APPO", "SAC", "TD3", "DDPG", "ES", "ARS")
ON_RAY = ("ApeX",)


def most_steps(algorithm: str) -> int:
    """Environment steps within which a toy is learnt."""
    flow, collect = ALGORITHMS.get(algorithm).flow, ALGORITHMS.get(algorithm).collect
    return (
        {"Rainbow": 40_000}.get(algorithm, 20_000) if flow == "replay" else 400_000 if collect == "fitness" else 200_000
    )


def train(algorithm: str, name: str, continuous: bool, seed: int, **settings: Any) -> tuple[float, int]:
    """Train with the default settings until the toy is learnt or `most_steps` are over: the best return of the evaluations, each of 50
    episodes, and the steps."""
    toy, most, best, steps = TOYS[name], most_steps(algorithm), -np.inf, 0
    config = {"env": toy.env, "env_config": {"continuous": continuous, **toy.env_config}, "seed": seed, **settings}
    every = most // 40
    due = every
    with getattr(raypid, algorithm)(config=config) as agent:
        while steps < most and best < toy.learnt(continuous):
            steps = int(agent.train()["timesteps_total"])
            if steps >= due:
                due = steps + every
                best = max(best, _evaluated(agent, toy, continuous))
    return best, steps


def _evaluated(agent: Any, toy: Toy, continuous: bool) -> float:
    if toy.ends:
        return float(agent.eval(50)["episode_reward_mean"])
    return PERIOD * earned(toy.env(continuous=continuous, **toy.env_config), agent.act, 50 * PERIOD, seed=12345)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*dict.fromkeys((*DISCRETE, *CONTINUOUS, *ON_RAY))]
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=every)
    parser.add_argument("--toys", type=lambda text: text.split(","), default=list(TOYS))
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 2])
    args = parser.parse_args()
    for algorithm in args.algorithms:
        for name in args.toys:
            for continuous, those in ((False, (*DISCRETE, *ON_RAY)), (True, CONTINUOUS)):
                if algorithm not in those:
                    continue
                goal = TOYS[name].learnt(continuous)
                parts = []
                for seed in args.seeds:
                    start = time.perf_counter()
                    try:
                        best, steps = train(algorithm, name, continuous, seed, **ray_settings(algorithm))
                        found = f"{'yes' if best >= goal else 'NO'} {best:.3g} at {steps:,} ({time.perf_counter() - start:.1f} s)"
                    except Exception as error:
                        found = f"NO {type(error).__name__}: {str(error)[:150]}"
                    parts.append(found)
                kind = "continuous" if continuous else "discrete"
                print(f"{algorithm:8} {name:9} {kind:10} {goal:8.3g} | {' | '.join(parts)}", flush=True)


def ray_settings(algorithm: str) -> dict[str, Any]:
    """What an algorithm that needs Ray is given, so that it fits two cores."""
    return {"num_workers": 2, "num_cpus_per_worker": 0.5} if algorithm in ON_RAY else {}


if __name__ == "__main__":
    main()
