"""Rollout: acts in environments with the weights that it is given, and returns what was collected."""

from __future__ import annotations

from raypid.errors import UserError
from raypid.nn.network_policy import Exploration
from raypid.roles.evaluator import Evaluation, Evaluator, Order
from raypid.roles.role import Role
from raypid.roles.setup import Setup, WorkerSetup
from raypid.roles.worker import RolloutWorker, TrajectoryWorker, WorkerState
from raypid.types import Array, Collected, Report, Weights


class Rollout(Role):
    """Acts in `num_envs_per_worker` environments with the weights it is given.

    Args:
        setup: what `raypid.setup(...)` returned.
        worker_index: number of the worker, from 0. It chooses the worker's random numbers, and with some algorithms its exploration.
        restarts: how often this worker was rebuilt, which chooses its random numbers too.
        shared: the algorithm's `shared` arrays. Default: they are made here.

    Raises:
        UserError: `setup` is no Setup, or `worker_index` no whole number of at least 0.
    """

    def __init__(self, setup: WorkerSetup, worker_index: int = 0, restarts: int = 0, *shared: Array) -> None:
        super().__init__(setup, worker_index=worker_index)
        self.setup, self.worker_index = setup, worker_index
        if not shared and isinstance(setup, Setup):
            shared = setup.algorithm.shared(setup.config)
        self.worker = _worker(setup, worker_index, restarts, *shared)
        if self.checks is not None:
            self.checks.know(self.worker.policy)
        self._closed = False

    def collect(
        self, weights: Weights, timesteps: int = 0, exploration: Exploration | None = None
    ) -> tuple[Report, Collected]:
        """Act for `fragment_length` rows in each environment. Episodes go on in the next call.

        Args:
            weights: what to act with: of `Learner.weights()` or `ParameterServer.pull()`.
            timesteps: environment steps of the whole run so far. Exploration changes with them.
            exploration: exploration settings, such as an epsilon. Default: those of the algorithm after `timesteps`.

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
        self.check("Rollout.collect", weights=weights, timesteps=timesteps, exploration=exploration)
        if self._closed:
            raise UserError("Rollout.collect: this rollout is closed. Make a new one: Rollout(setup, worker_index).")
        if exploration is None:
            assert isinstance(self.setup, Setup)
            exploration = self.setup.algorithm.exploration(self.setup.config, timesteps, self.worker_index)
        return self.worker.collect(weights, exploration)

    def evaluate(self, weights: Weights, order: Order) -> Evaluation:
        """Evaluate in this process, with environments and a policy of the evaluation's own."""
        return Evaluator(self.setup).play(weights, order)

    def ready(self) -> int:
        """Return the worker's index. A call that returns shows that the worker is up."""
        return self.worker_index

    def boundary(self, save_count: int) -> None:
        """Restart all streams with new seeds: how an exact save cuts a run. Unfinished episodes do not count."""
        self.worker.boundary(save_count)

    def state_dict(self) -> WorkerState:
        """The states of random numbers and exploration noise. Environments cannot be saved (see `boundary`)."""
        return self.worker.state_dict()

    def load_state_dict(self, state: WorkerState) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            CheckpointError: it is no such state.
        """
        self.worker.load_state_dict(state)

    def close(self) -> None:
        """Close the environments. The rollout cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            self.worker.close()


def _worker(setup: WorkerSetup, worker_index: int, restarts: int, *shared: Array) -> RolloutWorker:
    """The worker that collects what the algorithm learns from. What others would need is not imported."""
    spec = setup.spec
    if setup.program is not None:
        from raypid.roles.program_worker import ProgramWorker

        return ProgramWorker(spec, setup.program, worker_index, restarts)
    if setup.source is not None:
        from raypid.roles.gradient_worker import GradientWorker

        return GradientWorker(spec, setup.source, worker_index, restarts)
    if setup.collect == "fitness":
        from raypid.roles.fitness_worker import FitnessWorker

        return FitnessWorker(spec, worker_index, restarts, *shared)
    return TrajectoryWorker(spec, worker_index, restarts)
