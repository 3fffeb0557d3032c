"""A learner with a replay buffer in its own process: no sample crosses processes."""

from __future__ import annotations

import numpy as np

from raypid.ops.normalizer import inverse_deviation
from raypid.ops.sum_tree import importance
from raypid.roles.learner import Learner, Meeting
from raypid.roles.parameter_server import Learnt, Parameters
from raypid.roles.replay import Replay
from raypid.roles.setup import Setup
from raypid.runtime.calls import Called
from raypid.types import Weights


class ReplayLearner(Learner):
    """A learner that draws from a replay buffer of its own. Of several, each draws its part of every batch.

    Args:
        setup: as for `Learner`.
        shard: number of the buffer among those that share `buffer_size`.
        num_shards: how many there are.
        collective: as for `Learner`.
    """

    def __init__(self, setup: Setup, shard: int = 0, num_shards: int = 1, collective: Meeting | None = None) -> None:
        super().__init__(setup, collective)
        self.replay = Replay(setup, shard, num_shards)
        self.parts = (self.replay, *self.replay.parts)

    @Called(repeats=False, progress=int)
    def learn_from_replay(self, timesteps: int, num_updates: int) -> tuple[int, Weights]:
        """Draw rows for `num_updates` updates and make these; returns their number and the new weights.

        Raises:
            Diverged: these updates, or those before, left something that is not finite.
        """
        self.check_sound()
        algorithm, buffer = self._off_policy, self.replay.buffer
        beta = algorithm.config.beta_at(timesteps)
        sample = algorithm.sample_from(buffer, num_updates, beta)
        if algorithm.collective is not None:
            sample.weight = importance(sample.probability, 1, beta, algorithm.collective)
        algorithm.reward_factor = np.float32(inverse_deviation(self.returns))
        with self._changing():
            update = algorithm.update(sample, timesteps)
        self._check_update(update, sample, timesteps)
        if update.priorities is not None:
            buffer.set_priorities(sample.id, update.priorities)
        return update.num_updates, algorithm.weights()

    @Called(repeats=False, progress=int)
    def learn_from(self, newest: Parameters, timesteps: int, num_updates: int) -> tuple[int, Learnt]:
        """Make updates without the other learners, starting from the parameters that all share.

        Returns the number of updates, and the new weights with how far the parameters moved.
        """
        self.set_parameters(newest)
        num, weights = self.learn_from_replay(timesteps, num_updates)
        _, after = self.parameters()
        return num, (weights, {name: flat - newest[1][name] for name, flat in after.items()})

    def parameters(self) -> Parameters:
        """(version, all flat parameters by network)."""
        networks = self._off_policy.networks
        return self.algorithm.version, {name: network.numpy().copy() for name, network in networks.items()}

    def set_parameters(self, newest: Parameters) -> None:
        """Take over what `parameters` of another learner returned."""
        self.algorithm.version, parameters = newest
        for name, flat in parameters.items():
            self._off_policy.networks[name].load(flat)

    def metrics(self) -> dict[str, float]:
        """As `Learner.metrics`, and how full the buffers of all learners are."""
        here, collective = self.replay.buffer.metrics(), self.algorithm.collective
        everywhere = [here] if collective is None else collective.gather(here)
        return super().metrics() | {name: sum(m[name] for m in everywhere) for name in here}
