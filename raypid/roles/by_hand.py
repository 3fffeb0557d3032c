"""The five roles of a run, for loops of your own: Rollout, Replay, ParameterServer, Learner, Evaluator.

Each is a plain class that is made from a `Setup` (`raypid.setup` returns one), in one process or as a Ray actor:

    setup = raypid.setup("SAC", "LunarLanderContinuous-v3")
    rollout = raypid.roles.Rollout(setup, worker_index=0)
    rollout = ray.remote(raypid.roles.Rollout).remote(setup, 0)

raypid's own loops (`run/loops.py`) use the classes beneath, with supervision, resuming and metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from raypid.algorithms.custom_model import CustomModelConfig
from raypid.algorithms.off_policy import OffPolicy, OffPolicyConfig
from raypid.errors import UserError
from raypid.nn.user_agent import AgentSource, agent_class
from raypid.ops.normalizer import inverse_deviation, merge_moments, zero_moments
from raypid.replay.base import replay_factory
from raypid.roles.acting import RolloutSpec
from raypid.roles.evaluator import Evaluator as _Evaluator
from raypid.roles.fitness import FitnessRollout
from raypid.roles.gradient_rollout import GradientRollout, differentiating
from raypid.roles.learner import Learner as _Learner
from raypid.roles.parameter_server import ParameterServer as _ParameterServer
from raypid.roles.replay_learner import ShardLearner
from raypid.roles.rollout import Rollout as _Rollout
from raypid.roles.rollout import RolloutWorker
from raypid.types import Array, Fitness, Gradients, Report, Sample, Trajectory, Weights

if TYPE_CHECKING:
    from raypid.algorithms.base import Algorithm
    from raypid.config import Config
    from raypid.nn.network_spec import NetworkSpec
    from raypid.replay.buffer import ReplaySpec

Collected: TypeAlias = Trajectory | Gradients | Fitness
"""What workers of an algorithm send: most send trajectories, A3C gradients, ES and ARS fitness."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What the roles of one run have in common: plain data, which travels to other processes."""

    algorithm: type[Algorithm[Any]]
    config: Config
    """All settings."""
    spec: RolloutSpec
    """What a rollout worker is made from."""
    evaluation: RolloutSpec
    """The same for the evaluator, whose environment may be another."""
    replay: ReplaySpec | None
    """What a replay buffer is made from; None for algorithms that learn from what comes in."""
    num_threads: int
    """Threads of the learner."""
    initial: Weights | None = None
    """What the learner begins with: the weights of `init_from`."""

    @property
    def network(self) -> NetworkSpec:
        """The policy's network."""
        return self.spec.network


def rollout_factory(algorithm: type[Algorithm[Any]], config: Config, spec: RolloutSpec) -> Callable[..., RolloutWorker]:
    """What makes a rollout worker of an algorithm, given its index, its restarts and the algorithm's shared arrays."""
    if isinstance(config, CustomModelConfig):  # the user's agent and model compute the gradients
        return partial(GradientRollout, spec, partial(AgentSource, agent_class(config.agent), config.agent_config))
    if algorithm.collect == "gradients":  # the algorithm computes them, in the worker
        return partial(GradientRollout, spec, partial(differentiating, algorithm, config, spec))
    return partial(FitnessRollout if algorithm.collect == "fitness" else _Rollout, spec)


class Rollout:
    """Steps `num_envs_per_worker` environments with the policy it is given.

    Args:
        worker_index: from 0; chooses the worker's random numbers, and of some algorithms its exploration.
    """

    def __init__(self, setup: Setup, worker_index: int = 0) -> None:
        self.worker_index = worker_index
        self._explore = partial(setup.algorithm.exploration, setup.config)
        shared = setup.algorithm.shared(setup.config)
        self._worker: Any = rollout_factory(setup.algorithm, setup.config, setup.spec)(worker_index, 0, *shared)

    def collect(self, weights: Weights, timesteps: int = 0) -> tuple[Report, Collected]:
        """Act for `fragment_length` rows in each environment; episodes go on in the next call.

        Args:
            timesteps: environment steps of the whole run so far: exploration changes with them.

        Returns:
            A small report (steps, returns of the episodes that ended), and the data.

        Raises:
            EnvError: environments raised too often.
        """
        report, data = self._worker.collect(weights, self._explore(timesteps, self.worker_index))
        return report, data

    def close(self) -> None:
        """Close the environments."""
        self._worker.close()


class Replay:
    """Stores fragments of trajectories and draws transitions from them, by the run's rule (uniform or prioritised).

    Args:
        shard: number of this buffer, from 0, where several share `buffer_size`, each in a process of its own.
        num_shards: how many there are.

    Raises:
        UserError: the algorithm does not replay.
    """

    def __init__(self, setup: Setup, shard: int = 0, num_shards: int = 1) -> None:
        spec = setup.replay
        if spec is None or not isinstance(setup.config, OffPolicyConfig) or not issubclass(setup.algorithm, OffPolicy):
            raise UserError(f"{setup.algorithm.__name__} learns from what comes in: it has no replay buffer.")
        self._beta_at = setup.config.beta_at
        self._buffer = replay_factory(setup.algorithm.replay_kind(setup.config), spec.part(num_shards))(shard)

    def add(self, worker_index: int, fragment: Collected) -> int:
        """Store a trajectory that a rollout worker has collected; returns the number of rows that can be drawn."""
        assert isinstance(fragment, Trajectory)
        return self._buffer.add(worker_index, fragment)

    def sample(self, num: int, timesteps: int = 0) -> Sample:
        """Draw `num` transitions, with replacement; importance weights follow the run's schedule.

        Raises:
            ValueError: nothing can be drawn yet.
        """
        return self._buffer.sample(num, self._beta_at(timesteps))

    def set_priorities(self, sample: Sample, priorities: Array) -> None:
        """Give the rows of a sample new priorities [N] > 0. A uniform buffer ignores them."""
        self._buffer.set_priorities_of(sample, priorities)

    def num_rows(self) -> int:
        """Rows that can be drawn."""
        return self._buffer.num_ready

    def save(self, folder: str) -> None:
        """Write all rows and priorities into a new folder."""
        self._buffer.save(folder, None)

    def load(self, folder: str) -> int:
        """Replace the contents by those that were saved; returns the number of rows that can be drawn.

        Raises:
            ReplayDamaged: a file is missing, cut short or altered.
        """
        return self._buffer.load(folder)


class ParameterServer(_ParameterServer):
    """Holds the newest weights: the learner pushes, rollouts and evaluator pull; `save` and `restore` keep them on disk."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup.network)


class Learner:
    """Holds the algorithm: networks, optimizers, counters. Workers need only its `weights`."""

    def __init__(self, setup: Setup) -> None:
        self._replays = setup.replay is not None
        kind = ShardLearner if self._replays else _Learner
        spec = setup.spec
        self._learner = kind(setup.algorithm, setup.config, setup.network, spec.seed, spec.networks, setup.num_threads)
        if setup.initial is not None:
            self._learner.set_weights(setup.initial)
        self._returns = zero_moments(1)
        self._name = setup.algorithm.__name__
        self._sums: dict[str, tuple[float, int]] = {}
        """Of updates without replay since the last call of `metrics`: name -> (sum, number of updates)."""

    def weights(self) -> Weights:
        """The newest weights, as workers act with them."""
        return self._learner.weights()

    def update(self, timesteps: int, *data: Collected) -> tuple[dict[str, float], Weights]:
        """Learn from what workers have collected with these or recent weights; returns metrics and the new weights.

        Args:
            timesteps: environment steps of the whole run so far, by which schedules go.

        Raises:
            UserError: the algorithm replays. Diverged: the update left something that is not finite.
        """
        if self._replays:
            raise UserError(f"{self._name} learns from samples of a Replay: call learn(timesteps, sample).")
        done, weights = self._learner.update(timesteps, *data)
        for name, x in done.metrics.items():
            total, num = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + float(x), num + 1
        return done.metrics, weights

    def observe(self, report: Report, fragment: Collected | None = None) -> None:
        """Take the moments of a fragment that goes to replay: of returns, by which rewards are divided (`normalize_rewards`),
        and of observations (`normalize_observations`)."""
        if report.returns is not None:
            self._returns = merge_moments(self._returns, report.returns)
        if isinstance(fragment, Trajectory) and isinstance(self._learner, ShardLearner):
            self._learner.seen(fragment)

    def learn(self, timesteps: int, *samples: Sample) -> tuple[list[Array], Weights]:
        """Update with samples of one or several Replays, of equal size; together a multiple of `batch_size` rows.

        Returns:
            New priorities, an array for each sample (none where rows are drawn uniformly); the new weights.

        Raises:
            UserError: the algorithm does not replay, or the rows are no whole number of batches. Diverged: as `update`.
        """
        if not isinstance(self._learner, ShardLearner):
            raise UserError(f"{self._name} learns from what workers collect: call update(timesteps, data).")
        size, rows = self._learner.algorithm.config.batch_size, [len(sample.id) for sample in samples]
        if len(set(rows)) != 1 or sum(rows) % size or size % len(rows):
            raise UserError(
                f"learn takes samples of equal size, together a multiple of batch_size ({size}); these have {rows} rows."
            )
        num, factor = sum(rows) // size, inverse_deviation(self._returns)
        (_, priorities), weights = self._learner.learn(timesteps, num, factor, *samples)
        return priorities, weights

    def metrics(self) -> dict[str, float]:
        """The means of the algorithm's metrics over the updates since the last call; {} if there was none."""
        if isinstance(self._learner, ShardLearner):
            return self._learner.metrics()
        sums, self._sums = self._sums, {}
        return {name: total / num for name, (total, num) in sums.items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on."""
        return {**self._learner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._learner.load_state_dict(state)

    def set_weights(self, weights: Weights) -> None:
        """Start from given weights."""
        self._learner.set_weights(weights)


class Evaluator(_Evaluator):
    """Plays whole episodes with the weights it is given: `evaluate(weights, num_episodes, seed).summary()`."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup.evaluation)
