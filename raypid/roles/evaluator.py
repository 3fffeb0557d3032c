"""Evaluator: plays whole episodes with fixed weights and reports their mean with a 95% interval."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from raypid.envs import EnvSpec, VectorEnv, stream_seeds
from raypid.nn.policy import make_policy
from raypid.roles.acting import EnvironmentLoop, Episode, longest_episode
from raypid.roles.role import Role
from raypid.roles.setup import WorkerSetup
from raypid.types import Array, Weights

MAX_STREAMS = 10
EVALUATION_INDEX = 1_000_000
"""Index by which evaluation environments are seeded, so that their seeds differ from those of training."""
CONFIRM_EPISODES = 50
_CONFIRM_SEED = 500_000_000

Recorder: TypeAlias = Callable[[VectorEnv], object]


class Order(NamedTuple):
    """The episodes that `Evaluator.play` is to play."""

    num_episodes: int
    seed: int
    goal: float | None = None
    """A mean that reaches it is confirmed."""
    explore: bool = False
    limit_s: float = math.inf
    """Seconds after which episodes under way are cut and no others begin."""


@dataclass(slots=True)
class Evaluation:
    """Returns and lengths of the episodes, in stream order, with the version that played them."""

    rewards: Array
    lengths: Array
    version: int
    seconds: float
    confirms: bool = False
    """It was played to confirm an evaluation of the same weights that had reached the goal."""
    cut: int = 0
    """Episodes that did not end and were cut; they count with their returns and lengths so far."""
    overdue: int = 0
    """Those of them that were cut for the time that the evaluation took."""
    crashes: list[str] = field(default_factory=list)
    """Tracebacks of environments that raised and were rebuilt; their episodes are not among these."""

    def __post_init__(self) -> None:
        for array in (self.rewards, self.lengths):
            array.setflags(write=False)  # listeners see them

    def summary(self) -> dict[str, float]:
        """Summarise as metrics: mean, 95% interval's half width, std, min and max of returns; mean length; episodes; weights_version."""
        n = len(self.rewards)
        return {
            "episode_reward_mean": float(self.rewards.mean()),
            "episode_reward_ci95": ci95(self.rewards),
            "episode_reward_std": float(self.rewards.std(ddof=1)) if n > 1 else 0.0,
            "episode_reward_min": float(self.rewards.min()),
            "episode_reward_max": float(self.rewards.max()),
            "episode_len_mean": float(self.lengths.mean()),
            "episodes": n,
            "episodes_cut": self.cut,
            "weights_version": self.version,
        }


_Z95 = 1.9599639845400536
"""The standard normal's 97.5% quantile."""


def ci95(values: Array) -> float:
    """Compute the half width of the mean's 95% interval, by Student's t (Cornish-Fisher expansion of its quantile)."""
    n = len(values)
    if n < 2:
        return float("nan")
    z, v = _Z95, n - 1
    if v < 4:
        t = (12.706, 4.303, 3.182)[v - 1]
    else:
        t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return t * float(np.std(values, ddof=1)) / math.sqrt(n)


EVALUATION_METRICS = frozenset(Evaluation(np.zeros(1), np.zeros(1), 0, 0.0).summary())
"""Keys of `Evaluation.summary`."""


def cut_note(env: EnvSpec, cut: int, why: str = "did not end within {steps:,} steps", otherwise: str = "") -> str:
    """Say why evaluation episodes of an environment without a time limit were cut, and what helps."""
    episodes = "1 evaluation episode" if cut == 1 else f"{cut} evaluation episodes"
    why = why.format(steps=longest_episode())
    return f"{episodes} of {env.name} {why} and were cut: set time_limit, such as 1000, by which they end{otherwise}."


class Evaluator(Role):
    """Plays whole episodes with the weights it is given, in environments of its own (`evaluation_env`).

    Each of at most `evaluation.env.num_envs` streams plays a quota of episodes: so short ones are not preferred.

    Args:
        setup: what `raypid.setup(...)` returned.

    Raises:
        UserError: `setup` is no Setup.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        super().__init__(setup)
        self.spec = setup.evaluation
        self.policy = make_policy(self.spec.network)
        self.loop: EnvironmentLoop | None = None
        if self.checks is not None:
            self.checks.know(self.policy)

    def evaluate(
        self,
        weights: Weights,
        num_episodes: int,
        seed: int = 0,
        *,
        explore: bool = False,
        record: Recorder | None = None,
    ) -> Evaluation:
        """Play `num_episodes` episodes.

        Args:
            weights: what to act with.
            num_episodes: how many episodes to play, in up to 10 environments at once.
            seed: the same seed gives the same episodes.
            explore: draw actions from the policy's distribution, instead of taking the best ones.
            record: called with the vector of environments after each step.

        Returns:
            An Evaluation: `rewards` and `lengths` of the episodes, and `summary()`: their mean (`episode_reward_mean`), its 95% interval
                and more. An episode that does not end is cut (`cut`), and its environment plays no more; set time_limit.

        Raises:
            ConfigError: the weights belong to another network.
            UserError: they are no Weights, or a number is not what it must be.
            EnvError: environments raised too often.
        """
        self.check("Evaluator.evaluate", weights=weights, num_episodes=num_episodes, seed=seed)
        return self.play(weights, Order(num_episodes, seed, explore=explore), record)

    def _evaluate(self, weights: Weights, order: Order, record: Recorder | None) -> Evaluation:
        num_episodes, seed, _, explore, limit_s = order
        start = time.perf_counter()
        num_streams = min(self.spec.env.num_envs, num_episodes)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(3,)))
        env = replace(self.spec.env, seed_index=EVALUATION_INDEX, num_envs=num_streams)
        self.close()
        self.loop = loop = EnvironmentLoop(env, self.policy, rng)
        self.policy.load(weights)
        loop.reset_streams(stream_seeds(replace(env, seed=seed)))
        quota = [num_episodes // num_streams + (b < num_episodes % num_streams) for b in range(num_streams)]
        episodes: list[list[Episode]] = [[] for _ in quota]
        longest, cut, overdue, steps = longest_episode(loop.time_limit), 0, 0, np.zeros(num_streams, np.int64)
        if loop.time_limit < math.inf:
            limit_s = math.inf
        crashes: list[str] = []
        while any(len(done) < wanted for done, wanted in zip(episodes, quota)):
            step = loop.step(loop.act(explore=explore).action)
            steps += step.valid
            for episode in loop.ended:
                if len(episodes[episode.stream]) < quota[episode.stream]:
                    episodes[episode.stream].append(episode)
                steps[episode.stream] = 0
            crashes += step.crashes
            loop.refuse_crashes(step.crashes, self.spec.max_crashes, "The environment", " during evaluation")
            is_over = time.perf_counter() - start > limit_s and (bool(steps.any()) or any(episodes))
            if is_over or steps.max() >= longest:
                for b in np.flatnonzero(steps >= (1 if is_over else longest)).tolist():
                    if len(episodes[b]) < quota[b]:
                        cut, overdue, quota[b] = cut + 1, overdue + is_over, len(episodes[b]) + 1
                        episodes[b].append(Episode(b, float(loop.episode_reward[b]), int(loop.episode_length[b]), {}))
                    steps[b] = 0
            if record is not None:
                record(loop.env)
            if is_over:
                break
        rewards = np.array([episode.reward for done in episodes for episode in done])
        lengths = np.array([episode.length for done in episodes for episode in done])
        seconds = time.perf_counter() - start
        return Evaluation(rewards, lengths, weights.version, seconds, cut=cut, overdue=overdue, crashes=crashes)

    def play(self, weights: Weights, order: Order, record: Recorder | None = None) -> Evaluation:
        """Play as many episodes as are ordered; the same seed gives the same episodes. `record(env)` is called after each step.

        A mean that reaches the goal is confirmed by CONFIRM_EPISODES more with other seeds, which replace the first. A stream in which
        no episode ends for `longest_episode` steps is cut and plays no more, so fewer may be played. The environments live as long as
        they are played with.

        Raises:
            EnvError: environments raised too often.
        """
        with closing(self):
            first = self._evaluate(weights, order, record)
            if order.goal is None or first.rewards.mean() < order.goal:
                return first
            more = Order(CONFIRM_EPISODES, order.seed + _CONFIRM_SEED, limit_s=max(order.limit_s, 10 * first.seconds))
            second = self._evaluate(weights, more, record)
        seconds, crashes = first.seconds + second.seconds, first.crashes + second.crashes
        cut, overdue = first.cut + second.cut, first.overdue + second.overdue
        return replace(second, seconds=seconds, confirms=True, cut=cut, overdue=overdue, crashes=crashes)

    def close(self) -> None:
        """Close the environments. Each evaluation makes new ones."""
        if self.loop is not None:
            self.loop.close()
            self.loop = None
