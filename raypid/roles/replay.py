"""Replay: the role that stores what rollouts collect, and draws samples from it."""

from __future__ import annotations

import os

import numpy as np

from raypid.algorithms.off_policy import OffPolicyConfig
from raypid.errors import UserError, reason
from raypid.roles.divergence import quiet
from raypid.roles.role import Role
from raypid.roles.setup import Setup, WorkerSetup
from raypid.storage.neighbours import nothing_at, refuse_file_name
from raypid.types import Array, Sample, Trajectory


class Replay(Role):
    """Stores trajectories and draws transitions from them, uniformly or (with the setting `prioritized`) by priority.

    Args:
        setup: what `raypid.setup(...)` returned.
        shard: number of this buffer, from 0, if several share `buffer_size`, each in a process of its own.
        num_shards: how many there are.

    Raises:
        UserError: the algorithm does not learn from replay, `setup` is no Setup, or there is no such shard.
    """

    def __init__(self, setup: WorkerSetup, shard: int = 0, num_shards: int = 1) -> None:
        super().__init__(setup, shard=shard, num_shards=num_shards)
        spec = setup.replay
        if spec is None or setup.buffer is None:
            raise UserError(f"{setup} has no replay buffer: give what rollouts collect to Learner.update.")
        if not shard < num_shards <= spec.capacity:
            raise UserError(
                f"Replay: shard {shard} must be below num_shards ({num_shards:,}), as shards are counted from 0, and num_shards at most "
                f"buffer_size ({spec.capacity:,}), as each holds a row."
            )
        self.setup = setup
        self.buffer = setup.buffer(spec.part(num_shards), shard)
        """The rows, and the way to draw from them."""
        self.parts = (self.buffer,)

    @quiet
    def add(self, worker_index: int, fragment: Trajectory) -> int:
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
        self.check("Replay.add", worker_index=worker_index, fragment=fragment)
        return self.buffer.add(worker_index, fragment)

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
        self.check("Replay.sample", num=num, timesteps=timesteps)
        assert isinstance(self.setup, Setup) and isinstance(self.setup.config, OffPolicyConfig)
        return self.buffer.sample(num, self.setup.config.beta_at(timesteps))

    def drawn(self, num: int, beta: float) -> tuple[int, Sample]:
        """The number of rows and a sample, given the exponent of the importance weights. Whoever passes the sample on can tell by the number
        that it is there."""
        return num, self.buffer.sample(num, beta)

    def set_priorities(self, sample: Sample, priorities: Array) -> None:
        """Give the rows of a sample the priorities with which they are drawn from now on. With `prioritized` only: a uniform buffer ignores them.

        Args:
            sample: what `sample` of this buffer returned. Rows that have been overwritten since are skipped.
            priorities: [N] above 0: the entry of this sample in the list that `Learner.learn` returned.

        Raises:
            UserError: `sample` is no Sample of this buffer, or `priorities` are not N finite numbers above 0.
        """
        if self.checks is not None:
            self.checks.check_rows("Replay.set_priorities", sample, priorities, self.buffer.count)
        self.buffer.set_priorities(sample.id, np.asarray(priorities))

    def num_rows(self) -> int:
        """The number of rows that can be drawn."""
        return self.buffer.num_ready

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write all rows and priorities into a folder, whose former save is replaced.

        Raises:
            UserError: it cannot be written.
        """
        self.check("Replay.save", folder=folder)
        refuse_file_name(folder, "Replay.save")
        try:
            self.buffer.save(os.fspath(folder))
        except OSError as error:
            raise UserError(f"Replay.save cannot write {folder}: {reason(error)}. Give another folder.") from error

    def load(self, folder: str | os.PathLike[str]) -> int:
        """Replace the contents by those that `save` wrote; returns the number of rows that can be drawn.

        Raises:
            UserError: there is no such folder.
            ReplayDamaged: a file is missing, cut short or altered.
            OtherTask: the rows come from another environment.
        """
        self.check("Replay.load", folder=folder)
        if not os.path.isdir(folder):
            raise UserError(f"Replay.load takes a folder that Replay.save wrote. {nothing_at(folder)}")
        return self.buffer.load(os.fspath(folder))
