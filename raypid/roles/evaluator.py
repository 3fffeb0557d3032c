"""Evaluator: plays whole episodes with fixed weights and reports their mean with a 95% interval."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np

from raypid.envs import EnvError, make_vector, stream_seeds
from raypid.errors import UserError
from raypid.nn.policy import make_policy
from raypid.registry import NETWORKS
from raypid.roles.rollout import RolloutSpec
from raypid.types import Array, Weights

MAX_STREAMS = 10
MAX_EPISODE_STEPS = 200_000
EVALUATION_INDEX = 1_000_000
"""Worker index of evaluation environments: their seeds are no training seeds."""
CONFIRM_EPISODES = 50
_CONFIRM_SEED = 500_000_000


@dataclass(slots=True)
class Evaluation:
    """Returns and lengths of the episodes, in stream order, with the version that played them."""

    rewards: Array
    lengths: Array
    version: int
    seconds: float
    confirms: bool = False
    """It was played since an evaluation before it, of the same weights, had reached its goal."""

    metric_names: ClassVar[frozenset[str]] = frozenset(
        {
            "episode_reward_mean", "episode_reward_ci95", "episode_reward_std", "episode_reward_min", "episode_reward_max",
            "episode_len_mean", "episodes", "weights_version",
        }
    )  # fmt: skip
    """Keys of `summary`."""

    def summary(self) -> dict[str, float]:
        """episode_reward_mean, its 95% interval's half width, min, max, std, mean length, episodes, weights_version."""
        n = len(self.rewards)
        return {
            "episode_reward_mean": float(self.rewards.mean()),
            "episode_reward_ci95": ci95(self.rewards),
            "episode_reward_std": float(self.rewards.std(ddof=1)) if n > 1 else 0.0,
            "episode_reward_min": float(self.rewards.min()),
            "episode_reward_max": float(self.rewards.max()),
            "episode_len_mean": float(self.lengths.mean()),
            "episodes": n,
            "weights_version": self.version,
        }


def ci95(values: Array) -> float:
    """Half width of the 95% interval of the mean, by Student's t (Cornish-Fisher expansion of its quantile)."""
    n = len(values)
    if n < 2:
        return float("nan")
    z, v = NormalDist().inv_cdf(0.975), n - 1
    if v < 4:
        t = (12.706, 4.303, 3.182)[v - 1]
    else:
        t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return t * float(np.std(values, ddof=1)) / math.sqrt(n)


class Evaluator:
    """Environments and a policy of its own. Each stream plays a quota of episodes, so that short ones are not preferred."""

    def __init__(self, spec: RolloutSpec) -> None:
        for name, entry in spec.networks.items():
            NETWORKS.register(name, entry)
        self.spec = spec
        self.policy = make_policy(spec.network)
        self.env: Any = None

    def evaluate(
        self, weights: Weights, num_episodes: int, seed: int = 0, *, explore: bool = False, record: Any = None
    ) -> Evaluation:
        """Play `num_episodes` episodes; the same seed gives the same episodes. `record(env)` is called after each step."""
        start = time.perf_counter()
        num_streams = min(MAX_STREAMS, num_episodes)
        if self.env is None or self.env.num_envs != num_streams:
            self.close()
            self.env = make_vector(replace(self.spec.env, worker_index=EVALUATION_INDEX, num_envs=num_streams))
        self.policy.load(weights)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(3,)))
        obs = self.env.reset(
            stream_seeds(replace(self.spec.env, seed=seed, worker_index=EVALUATION_INDEX, num_envs=num_streams))
        )
        first, state = np.ones(num_streams, bool), self.policy.initial_state(num_streams)
        quota = np.full(num_streams, num_episodes // num_streams) + (
            np.arange(num_streams) < num_episodes % num_streams
        )
        reward, length = np.zeros(num_streams), np.zeros(num_streams, np.int64)
        done: list[list[tuple[float, int]]] = [[] for _ in range(num_streams)]
        crashes = 0
        while (quota > 0).any():
            if length.max() > MAX_EPISODE_STEPS:
                raise UserError(
                    f"An evaluation episode of {self.spec.env.env} did not end within {MAX_EPISODE_STEPS:,} steps: set time_limit."
                )
            action, state, _ = self.policy.act(obs, state, first, rng, explore=explore)
            step = self.env.step(self.policy.to_env(action))
            obs, first = step.obs, step.first
            reward += np.where(step.valid, step.reward, 0)
            length += step.valid
            ended = (step.terminated | step.truncated) & step.valid
            for b in np.flatnonzero(ended | (first & ~step.valid)):
                if ended[b] and quota[b] > 0:
                    done[b].append((float(reward[b]), int(length[b])))
                    quota[b] -= 1
                reward[b], length[b] = 0, 0
            crashes += len(step.crashes)
            if crashes > self.spec.max_crashes:
                raise EnvError(
                    f"The environment raised {crashes} times during evaluation. The last error:\n{step.crashes[-1]}"
                )
            if record is not None:
                record(self.env)
        flat = [episode for stream in done for episode in stream]
        rewards, lengths = (np.array(column) for column in zip(*flat, strict=True))
        return Evaluation(rewards, lengths, weights.version, time.perf_counter() - start)

    def confirmed(self, weights: Weights, num_episodes: int, seed: int, goal: float | None) -> Evaluation:
        """Evaluate; a mean that reaches `goal` only counts after CONFIRM_EPISODES more with other seeds, whose numbers replace it."""
        first = self.evaluate(weights, num_episodes, seed)
        if goal is None or first.rewards.mean() < goal:
            return first
        second = self.evaluate(weights, CONFIRM_EPISODES, seed + _CONFIRM_SEED)
        return replace(second, seconds=first.seconds + second.seconds, confirms=True)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
            self.env = None
