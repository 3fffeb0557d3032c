"""The five roles of a run, for loops of your own: Rollout, Replay, ParameterServer, Learner, Evaluator.

Each is a plain class that is made from a `Setup` (`raypid.setup` returns one), in one process or as a Ray actor:

    setup = raypid.setup("SAC", "LunarLanderContinuous-v3")
    rollout = raypid.roles.Rollout(setup, worker_index=0)
    rollout = ray.remote(raypid.roles.Rollout).remote(setup, 0)

raypid's own loops (`run/loops.py`) use the classes beneath, with supervision, resuming and metrics.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from raypid.algorithms.custom_model import CustomModelConfig
from raypid.algorithms.off_policy import OffPolicy, OffPolicyConfig
from raypid.errors import UserError, reason
from raypid.nn.user_agent import AgentSource, agent_class
from raypid.ops.normalizer import inverse_deviation, merge_moments, zero_moments
from raypid.plugins.registry import NETWORKS
from raypid.replay.base import replay_factory
from raypid.roles.acting import RolloutSpec
from raypid.roles.evaluator import Evaluation, Order, Recorder
from raypid.roles.evaluator import Evaluator as _Evaluator
from raypid.roles.fitness import FitnessRollout
from raypid.roles.given import (
    DataCheck,
    NetworkCheck,
    check_arrays,
    check_folder,
    check_priorities,
    check_timesteps,
    check_whole,
    check_worker,
    described,
)
from raypid.roles.gradient_rollout import GradientRollout, differentiating
from raypid.roles.learner import Learner as _Learner
from raypid.roles.pace import Pace as Pace
from raypid.roles.parameter_server import ParameterServer as _ParameterServer
from raypid.roles.replay_learner import ShardLearner
from raypid.roles.rollout import Rollout as _Rollout
from raypid.roles.rollout import RolloutWorker
from raypid.storage.checkpoint import CheckpointError, refusing
from raypid.storage.neighbours import nothing_at
from raypid.types import Array, Fitness, Gradients, Moments, Report, Sample, Trajectory, Weights

if TYPE_CHECKING:
    from raypid.algorithms.base import Algorithm
    from raypid.nn.network_spec import NetworkSpec
    from raypid.replay.buffer import ReplaySpec
    from raypid.settings.config import Config

Collected: TypeAlias = Trajectory | Gradients | Fitness
"""What workers of an algorithm send: most send trajectories, A3C gradients, ES and ARS fitness."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
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

    def __repr__(self) -> str:
        """Algorithm, environment, observations, actions, network."""
        widths = f" {list(self.network.hidden)}" if NETWORKS.is_own(self.network.network) else ""
        return f"<Setup: {self.algorithm.__name__} on {self.spec.env.name}, {self.network.brief()}{widths}>"


def rollout_factory(algorithm: type[Algorithm[Any]], config: Config, spec: RolloutSpec) -> Callable[..., RolloutWorker]:
    """What makes a rollout worker of an algorithm, given its index, its restarts and the algorithm's shared arrays."""
    if isinstance(config, CustomModelConfig):  # the user's agent and model compute the gradients
        return partial(GradientRollout, spec, partial(AgentSource, agent_class(config.agent), config.agent_config))
    if algorithm.collect == "gradients":  # the algorithm computes them, in the worker
        return partial(GradientRollout, spec, partial(differentiating, algorithm, config, spec))
    return partial(FitnessRollout if algorithm.collect == "fitness" else _Rollout, spec)


def _checked(setup: Setup, role: str) -> Setup:
    """Check what a role is to be made from.

    Raises:
        UserError: it is no Setup.
    """
    if isinstance(setup, Setup):
        return setup
    raise UserError(
        f"{role} is made from a setup, not from {described(setup)}: setup = raypid.setup(algorithm, env), then {role}(setup)."
    )


class Rollout:
    """Acts in `num_envs_per_worker` environments with the weights it is given.

    Args:
        setup: what `raypid.setup(...)` returned.
        worker_index: number of the worker, from 0. It chooses the worker's random numbers, and with some algorithms its exploration.

    Raises:
        UserError: `setup` is no Setup, or `worker_index` no whole number of at least 0.
    """

    def __init__(self, setup: Setup, worker_index: int = 0) -> None:
        setup = _checked(setup, "Rollout")
        self.worker_index = check_whole("Rollout", "worker_index", worker_index, 0)
        self._explore = partial(setup.algorithm.exploration, setup.config)
        shared = setup.algorithm.shared(setup.config)
        self._worker: Any = rollout_factory(setup.algorithm, setup.config, setup.spec)(self.worker_index, 0, *shared)
        self._network = NetworkCheck(setup.network, self._worker.policy)
        self._closed = False

    def collect(self, weights: Weights, timesteps: int = 0) -> tuple[Report, Collected]:
        """Act for `fragment_length` rows in each environment. Episodes go on in the next call.

        Args:
            weights: what to act with: of `Learner.weights()` or `ParameterServer.pull()`.
            timesteps: environment steps of the whole run so far. Exploration changes with them.

        Returns:
            A small report: `num_steps` that this call made, `episode_rewards` and `episode_lengths` of the episodes that ended,
                `worker_index`.
            The data, for `Learner.update` or `Replay.add`: a Trajectory of T = `fragment_length` rows and B =
                `num_envs_per_worker` streams; Gradients (A3C, CustomModel), or Fitness (ES, ARS).

        Raises:
            UserError: `weights` are no Weights, `timesteps` is no number of at least 0, or the rollout is closed.
            ConfigError: the weights belong to another network.
            EnvError: environments raised too often.
        """
        if self._closed:
            raise UserError("Rollout.collect: this rollout is closed. Make a new one: Rollout(setup, worker_index).")
        self._network.check("Rollout.collect", weights)
        check_timesteps("Rollout.collect", timesteps)
        report, data = self._worker.collect(weights, self._explore(timesteps, self.worker_index))
        return report, data

    def close(self) -> None:
        """Close the environments. The rollout cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            self._worker.close()


class Replay:
    """Stores trajectories and draws transitions from them, uniformly or (with the setting `prioritized`) by priority.

    Args:
        setup: what `raypid.setup(...)` returned.
        shard: number of this buffer, from 0, if several share `buffer_size`, each in a process of its own.
        num_shards: how many there are.

    Raises:
        UserError: the algorithm does not learn from replay, `setup` is no Setup, or there is no such shard.
    """

    def __init__(self, setup: Setup, shard: int = 0, num_shards: int = 1) -> None:
        spec, name = _checked(setup, "Replay").replay, setup.algorithm.__name__
        if spec is None or not isinstance(setup.config, OffPolicyConfig) or not issubclass(setup.algorithm, OffPolicy):
            raise UserError(
                f"{name} has no replay buffer: it learns from what comes in. Give what the rollouts collect to Learner.update."
            )
        num_shards = check_whole("Replay", "num_shards", num_shards, 1)
        if check_whole("Replay", "shard", shard, 0) >= num_shards:
            raise UserError(
                f"Replay: shard {shard} must be below num_shards ({num_shards}): shards are counted from 0."
            )
        if spec.capacity < num_shards:
            raise UserError(
                f"Replay: {num_shards:,} shards cannot share buffer_size {spec.capacity:,}: each needs a row. Raise buffer_size."
            )
        self._beta_at = setup.config.beta_at
        self._data = DataCheck(name, setup.algorithm.collect, setup.network)
        self._buffer = replay_factory(setup.algorithm.replay_kind(setup.config), spec.part(num_shards))(shard)

    def add(self, worker_index: int, fragment: Collected) -> int:
        """Store a trajectory.

        Args:
            worker_index: number of the worker that collected it (`report.worker_index`). The buffer joins a worker's fragments to
                streams, so give all fragments of a worker to the same buffer, in the order in which it collected them.
            fragment: the data that `Rollout.collect` returned.

        Returns:
            The number of rows that can be drawn now, as `num_rows`.

        Raises:
            UserError: `worker_index` is no whole number of at least 0; `fragment` is no Trajectory, comes from another
                environment, its arrays do not fit together, or it needs more rows than the buffer has. A fragment takes T * B rows, and one
                for each last observation of an episode that was truncated and reset within one step (`fragment.final`).
        """
        call = "Replay.add"
        worker_index = check_worker(call, worker_index)
        self._data.check(call, fragment)
        assert isinstance(fragment, Trajectory)
        return self._buffer.add(worker_index, fragment)

    def sample(self, num: int, timesteps: int = 0) -> Sample:
        """Draw `num` transitions, with replacement.

        Args:
            num: rows N. For `Learner.learn` they are a multiple of `batch_size`, over all shards together.
            timesteps: environment steps of the whole run so far. With `prioritized`, the exponent of the importance weights rises
                with them (`importance_steps`).

        Returns:
            A Sample: `data` are the transitions (observations, actions, n-step rewards, discounts, next observations: [N, *]
                each), `id` [N] the rows, `probability` [N] that of drawing each, `weight` [N] the importance weights.

        Raises:
            UserError: nothing can be drawn yet, `num` is no whole number of at least 1, or `timesteps` no number of at least 0.
        """
        num = check_whole("Replay.sample", "num", num, 1)
        check_timesteps("Replay.sample", timesteps)
        return self._buffer.sample(num, self._beta_at(timesteps))

    def set_priorities(self, sample: Sample, priorities: Array) -> None:
        """Give the rows of a sample the priorities with which they are drawn from now on. With `prioritized` only: a uniform buffer ignores them.

        Args:
            sample: what `sample` of this buffer returned. Rows that have been overwritten since are skipped.
            priorities: [N] above 0: the entry of this sample in the list that `Learner.learn` returned.

        Raises:
            UserError: `sample` is no Sample of this buffer, or `priorities` are not N finite numbers above 0.
        """
        call = "Replay.set_priorities"
        found = check_priorities(call, sample, priorities)
        if len(found) and sample.id.max() >= self._buffer.count:
            raise UserError(
                f"{call}: the sample has rows that were never in this buffer. Give it to the Replay that drew it."
            )
        self._buffer.set_priorities_of(sample, found)

    def num_rows(self) -> int:
        """The number of rows that can be drawn."""
        return self._buffer.num_ready

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write all rows and priorities into a folder, whose former save is replaced.

        Raises:
            UserError: it cannot be written.
        """
        folder = check_folder("Replay.save", folder)
        try:
            self._buffer.save(folder, None)
        except OSError as error:
            raise UserError(
                f"Replay.save: {folder} cannot be written: {reason(error)}. Give another folder."
            ) from error

    def load(self, folder: str | os.PathLike[str]) -> int:
        """Replace the contents by those that `save` wrote; returns the number of rows that can be drawn.

        Raises:
            UserError: there is no such folder.
            ReplayDamaged: a file is missing, cut short or altered.
            OtherTask: the rows come from another environment.
        """
        folder = check_folder("Replay.load", folder)
        if not os.path.isdir(folder):
            raise UserError(f"Replay.load takes a folder that Replay.save wrote. {nothing_at(folder)}")
        return self._buffer.load(folder)


class ParameterServer(_ParameterServer):
    """Holds the newest weights: the learner pushes, rollouts and evaluator pull; `save` and `restore` keep them on disk.

    Args:
        setup: what `raypid.setup(...)` returned.

    Raises:
        UserError: `setup` is no Setup.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(_checked(setup, "ParameterServer").network)


class Learner:
    """Holds the algorithm: its networks, optimizers, and the moments that observations and rewards are normalised by.

    Algorithms that learn from what comes in have `update`. Algorithms with replay have `observe` and `learn`.

    Args:
        setup: what `raypid.setup(...)` returned.

    Raises:
        UserError: `setup` is no Setup.
    """

    def __init__(self, setup: Setup) -> None:
        kind = ShardLearner if _checked(setup, "Learner").replay is not None else _Learner
        spec = setup.spec
        self._learner = kind(setup.algorithm, setup.config, setup.network, spec.seed, spec.networks, setup.num_threads)
        if setup.initial is not None:
            self._learner.set_weights(setup.initial)
        self._returns = zero_moments(1)
        self._scales_rewards = spec.returns is not None
        self._name = setup.algorithm.__name__
        self._network = NetworkCheck(setup.network)
        self._data = DataCheck(self._name, setup.algorithm.collect, setup.network, P=len(self._learner.weights().flat))
        self._sums: dict[str, tuple[float, int]] = {}
        """Of updates without replay since the last call of `metrics`: name -> (sum, number of updates)."""

    def weights(self) -> Weights:
        """A copy of the newest weights, for `Rollout.collect`, `ParameterServer.push` and `Evaluator.evaluate`.

        Returns:
            The weights: `version` (updates so far), `flat` [P] float32, `table` (name and shape of each part of `flat`), `extra` (arrays
                that are not trained, such as the moments of observations).

        Raises:
            Diverged: an update left something that is not finite.
        """
        return self._learner.weights()

    def update(self, timesteps: int, *data: Collected) -> tuple[dict[str, float], Weights]:
        """Make one update from what workers have collected with these or recent weights. For algorithms without replay.

        Args:
            timesteps: environment steps of the whole run so far. Schedules go by them.
            data: what each worker collected, in the order of the workers if the run is to be repeatable. All of it is one batch.

        Returns:
            The metrics of this update by name. The algorithm's page explains them under `learner/NAME`.
            The new weights.

        Raises:
            UserError: the algorithm has a replay buffer, or `data` is not what a Rollout of this setup collects.
            Diverged: the update left something that is not finite.
        """
        if isinstance(self._learner, ShardLearner):
            raise UserError(f"{self._name} learns from samples of a Replay: call learn(timesteps, *samples).")
        check_timesteps("Learner.update", timesteps)
        self._data.check_parts("Learner.update", data)
        done, weights = self._learner.update(*data, timesteps=timesteps)
        for name, x in done.metrics.items():
            total, num = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + float(x), num + 1
        return done.metrics, weights

    def observe(self, report: Report, fragment: Collected | None = None) -> None:
        """Take in the moments of a fragment that goes into a Replay. For algorithms with replay.

        Call it once for each call of `Rollout.collect`, before `learn`. It may be left out if both `normalize_rewards` and
        `normalize_observations` are off; `learn` refuses to go on without it otherwise.

        Args:
            report: has the moments of discounted returns, by which `normalize_rewards` divides rewards.
            fragment: has the moments of observations. It may be left out if `normalize_observations` is off.

        Raises:
            UserError: the algorithm has no replay buffer, or this is not what a Rollout of this setup collects.
        """
        if not isinstance(self._learner, ShardLearner):
            raise UserError(
                f"{self._name} needs no observe: update(timesteps, *data) takes in the moments of the data."
            )
        if not isinstance(report, Report):
            raise UserError(
                f"Learner.observe takes the report of Rollout.collect and then its data, observe(report, fragment), not {described(report)}."
            )
        check_arrays("Learner.observe", report)
        if fragment is not None:
            self._data.check("Learner.observe", fragment)
            assert isinstance(fragment, Trajectory)
            self._learner.seen(fragment)
        if report.returns is not None:
            self._returns = merge_moments(self._returns, report.returns)

    def learn(self, timesteps: int, *samples: Sample) -> tuple[list[Array], Weights]:
        """Make updates from samples of one or several Replays: one for each `batch_size` rows. For algorithms with replay.

        Args:
            timesteps: environment steps of the whole run so far. Schedules go by them.
            samples: one of each Replay, all of the same size. Their rows together are a multiple of `batch_size`: with
                `updates_per_call * batch_size` rows, one call makes `updates_per_call` updates. Each update takes as many rows of every sample.

        Returns:
            New priorities for `Replay.set_priorities`: a list with an array [N] for each sample, in their order. It is empty unless
                `prioritized`.
            The new weights. (The metrics of these updates come with `metrics`.)

        Raises:
            UserError: the algorithm has no replay buffer, the samples are of another environment, their rows are no whole number of
                batches, or `observe` was left out though settings need it.
            Diverged: an update left something that is not finite.
        """
        if not isinstance(self._learner, ShardLearner):
            raise UserError(f"{self._name} learns from what workers collect: call update(timesteps, *data).")
        check_timesteps("Learner.learn", timesteps)
        for sample in samples:
            self._data.check_sample("Learner.learn", sample)
        size, rows = self._learner.algorithm.config.batch_size, [len(sample.id) for sample in samples]
        if not samples:
            raise UserError(
                f"Learner.learn takes one sample of each replay after timesteps; there is none: "
                f"learn(timesteps, replay.sample({size}, timesteps))."
            )
        if len(set(rows)) != 1 or sum(rows) % size or size % len(rows):
            raise UserError(
                "Learner.learn takes samples of equal size, together a multiple of "
                f"batch_size ({size}), whose number divides {size}; these have {rows} rows."
            )
        moments = self._learner.algorithm.moments
        idle = {
            "normalize_rewards": self._scales_rewards and not self._returns.num_rows,
            "normalize_observations": moments is not None and not moments.num_rows,
        }
        if needs := [name for name, is_idle in idle.items() if is_idle]:
            raise UserError(
                f"Learner.learn: {' and '.join(needs)} had nothing to go by. Call observe(report, fragment) for each fragment that goes "
                f"into a Replay, or set {' and '.join(needs)} to false."
            )
        num, factor = sum(rows) // size, inverse_deviation(self._returns)
        done, weights = self._learner.learn(*samples, timesteps=timesteps, num_updates=num, reward_factor=factor)
        return done[1], weights

    def metrics(self) -> dict[str, float]:
        """The mean of each of the algorithm's metrics over the updates since the last call; {} if there was none.

        The algorithm's page explains them under `learner/NAME`.
        """
        if isinstance(self._learner, ShardLearner):
            return self._learner.metrics()
        sums, self._sums = self._sums, {}
        return {name: total / num for name, (total, num) in sums.items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on apart from its data: networks, optimizers, moments, random numbers, counters.

        Raises:
            Diverged: an update left something that is not finite.
        """
        return {**self._learner.state_dict(), "returns": self._returns.as_arrays()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            UserError: it is no such state.
            ConfigError: it is that of another network.
        """
        if not isinstance(state, Mapping):
            raise UserError(f"Learner.load_state_dict takes what state_dict() returned, not {described(state)}.")
        try:
            with refusing("The state of rewards"):
                returns = Moments.from_arrays(state["returns"]) if "returns" in state else self._returns
            self._learner.load_state_dict({name: part for name, part in state.items() if name != "returns"})
            self._returns = returns
        except CheckpointError as error:
            raise CheckpointError(
                f"Learner.load_state_dict takes what state_dict() of a Learner of {self._name} returned: {error}"
            ) from error

    def set_weights(self, weights: Weights) -> None:
        """Start from given weights, with optimizers as they are. Their version goes on, unless the learner's own is newer.

        Raises:
            ConfigError: they belong to another network.
            UserError: they are no Weights, or not finite.
        """
        self._network.check("Learner.set_weights", weights)
        self._learner.set_weights(weights)


class Evaluator(_Evaluator):
    """Plays whole episodes with the weights it is given, in environments of its own (`evaluation_env`).

    Args:
        setup: what `raypid.setup(...)` returned.

    Raises:
        UserError: `setup` is no Setup.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(_checked(setup, "Evaluator").evaluation)
        self._check = NetworkCheck(setup.network, self.policy)

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
        call = "Evaluator.evaluate"
        self._check.check(call, weights)
        num_episodes = check_whole(call, "num_episodes", num_episodes, 1)
        seed = check_whole(call, "seed", seed, 0)
        if record is not None and not callable(record):
            raise UserError(
                f"{call}: record must be a function of the environments, record(env), not {described(record)}."
            )
        return self.play(weights, Order(num_episodes, seed, explore=explore), record)
