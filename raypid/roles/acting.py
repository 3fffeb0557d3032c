"""The acting loop that rollouts, fitness workers and the evaluator share: choose actions, step, keep account of episodes.

Axes: B streams; * the event shape of one observation or action.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from raypid.callbacks import Callbacks
from raypid.envs import EnvError, EnvSpec, Step, make_vector
from raypid.envs.errors import HEAD
from raypid.errors import UserError
from raypid.nn.network_policy import Acted, NetworkPolicy
from raypid.nn.network_spec import NetworkSpec
from raypid.ops.normalizer import DiscountedReturns
from raypid.roles.divergence import check_action, quiet
from raypid.types import Array, Tree, tree_map

MAX_EPISODE_STEPS = 30_000
"""Steps after which an episode that has to end is given up: more than Atari's 27,000, and some seconds of CartPole."""
FORGIVING_STEPS = 1000
"""Valid steps that make up for one time that an environment raised."""


@dataclass(kw_only=True, slots=True)
class RolloutSpec:
    """The settings that a worker is built from: plain data, never an algorithm's Config."""

    env: EnvSpec
    network: NetworkSpec
    fragment_length: int
    seed: int
    observation_noise: float = 0.0
    action_noise: float = 0.0
    noise_persistence: float = 1.0
    max_crashes: int = 10
    """Number of times that environments may raise, beyond once in FORGIVING_STEPS valid steps."""
    callbacks: Callbacks | None = None
    record_memory: bool = False
    """Hand over the policy's memory before each row (behaviour "memory"), for replay of sequences."""
    returns: DiscountedReturns | None = None
    """Hand over the moments of discounted returns (`Report.returns`)."""
    networks: dict[str, type] = field(default_factory=dict)
    """Registered networks that the worker needs, by name."""


def longest_episode(time_limit: float = math.inf) -> float:
    """Steps after which an episode that has to end is given up: none, where a time limit ends it."""
    return math.inf if time_limit < math.inf else MAX_EPISODE_STEPS


@dataclass(slots=True)
class Episode:
    """An episode that has ended."""

    stream: int
    reward: float
    """Sum of its raw rewards."""
    length: int
    """Environment steps."""
    info: Mapping[str, object]
    """The environment's info of the last step."""


class EnvironmentLoop:
    """B streams of one environment, and the policy that acts in them.

    `act` and `step` alternate, after `reset_streams`. Noise is Gaussian: on observations before the policy sees them, on
    canonical actions before the environment does.
    """

    def __init__(
        self,
        env_spec: EnvSpec,
        policy: NetworkPolicy,
        rng: np.random.Generator,
        *,
        observation_noise: float = 0.0,
        action_noise: float = 0.0,
    ) -> None:
        self.env_spec, self.env = env_spec, make_vector(env_spec)
        self.policy, self.rng = policy, rng
        self._observation_noise, self._action_noise = observation_noise, action_noise
        self.num_crashes = 0
        """Number of times that an environment has raised."""
        self.crash_debt = 0.0
        """The same, less one for each FORGIVING_STEPS valid steps since."""
        self.ended: list[Episode] = []
        """Episodes that ended in the last step, by stream; but not those that were cut (`Step.cut`)."""
        self.reset_timing()

    def reset_timing(self) -> None:
        """Set the clocks that `timing` reads to zero."""
        self._env_s = self._inference_s = 0.0
        self._started = time.perf_counter()

    def timing(self) -> dict[str, float]:
        """Seconds since `reset_timing`: env, inference, total."""
        return {"env": self._env_s, "inference": self._inference_s, "total": time.perf_counter() - self._started}

    def reset_streams(self, seeds: list[int] | None) -> None:
        """Begin new episodes in all streams; unfinished ones count for nothing.

        Args:
            seeds: one for each stream; None: the environments draw on from their own generators.
        """
        num_envs = self.env.num_envs
        self.obs = self._noisy(self.env.reset(seeds), self._observation_noise)
        self.first: Array = np.ones(num_envs, bool)
        self.state = self.policy.initial_state(num_envs)
        self.episode_reward: Array = np.zeros(num_envs)
        self.episode_length: Array = np.zeros(num_envs, np.int64)

    @quiet
    def act(self, *, explore: bool = True) -> Acted:
        """Ask the policy what to do next. It changes nothing but random numbers and `acted`; `step` makes the state after it the streams'."""
        before = time.perf_counter()
        self.acted = self.policy.act(self.obs, self.state, self.first, self.rng, explore=explore)
        self._inference_s += time.perf_counter() - before
        return self.acted

    def step(self, action: Tree) -> Step:
        """Step all environments with canonical actions [B, *], after `act`; `ended` then has the episodes that this step ended.

        Raises:
            Diverged: an action is not finite. No environment has seen it.
        """
        before = time.perf_counter()
        discrete = isinstance(action, np.ndarray) and action.dtype.kind != "f"
        env_action = self.policy.to_env(action) if discrete else self._to_env(action)
        acted = time.perf_counter()
        step = self.env.step(env_action)
        self._env_s += time.perf_counter() - acted
        self._inference_s += acted - before
        self.obs, self.first = self._noisy(step.obs, self._observation_noise), step.first
        self.state = self.acted.state
        if step.final is not None:
            step.final = (step.final[0], self._noisy(step.final[1], self._observation_noise))
        self._account(step)
        return step

    @quiet
    def _to_env(self, action: Tree) -> Tree:
        check_action(action, self.obs, self.policy.version)
        return self.policy.to_env(self._noisy(action, self._action_noise, np.float32))

    def _account(self, step: Step) -> None:
        """Add a step to the episodes under way."""
        self.episode_reward += step.reward
        self.episode_length += step.valid
        self.ended = []
        for b, info in step.infos.items():
            if b not in step.cut:
                self.ended.append(Episode(b, float(self.episode_reward[b]), int(self.episode_length[b]), info))
            self.episode_reward[b], self.episode_length[b] = 0.0, 0
        if self.crash_debt:
            self.crash_debt = max(0.0, self.crash_debt - np.count_nonzero(step.valid) / FORGIVING_STEPS)
        if step.crashes:
            self.num_crashes += len(step.crashes)
            self.crash_debt += len(step.crashes)
            again = step.first & ~step.valid
            self.episode_reward[again], self.episode_length[again] = 0.0, 0

    def refuse_crashes(self, crashes: list[str], most: int, who: str, when: str = "") -> None:
        """Refuse environments that raise again and again.

        Raises:
            EnvError: they have raised more than `most` times beyond once in FORGIVING_STEPS valid steps; its text ends with the
                last of `crashes`.
        """
        if crashes and self.crash_debt > most:
            where, _, text = crashes[-1].partition(":\n")
            raise EnvError(
                f"{HEAD}{text}\nraypid: {who} raised {self.num_crashes} times in so few steps{when}; max_restarts={most} allows {most}, and one more "
                f"every {FORGIVING_STEPS:,} steps. The last was {where[0].lower()}{where[1:]}."
            )

    @property
    def time_limit(self) -> float:
        """Steps after which episodes are truncated; infinite where none are known."""
        return self.env_spec.time_limit or self.env.time_limit

    def check_lengths(self, streams: Array | slice = slice(None)) -> None:
        """Refuse episodes of these streams that do not end.

        Raises:
            UserError: an episode has more than `longest_episode` steps, and no time limit.
        """
        if self.episode_length[streams].max() > (longest := longest_episode(self.time_limit)):
            raise UserError(f"An episode of {self.env_spec.name} did not end within {longest:,} steps: set time_limit.")

    def _noisy(self, tree: Tree, deviation: float, draw: type[np.float32] | type[np.float64] = np.float64) -> Tree:
        """Add Gaussian noise, drawn in the precision `draw`, to the floating-point leaves."""
        if not deviation:
            return tree

        def add(x: Array) -> Array:
            if not np.issubdtype(x.dtype, np.floating):
                return x
            noise: Array = self.rng.standard_normal(x.shape, dtype=draw)
            return x + (draw(deviation) * noise).astype(x.dtype)

        return tree_map(add, tree)

    def close(self) -> None:
        self.env.close()
