"""Learners that replay: with a buffer of their own, or with samples that come from shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from raypid.ops.normalizer import Moments
from raypid.ops.sum_tree import importance
from raypid.replay.base import Replay
from raypid.roles.divergence import quiet
from raypid.roles.learner import Learner
from raypid.roles.parameter_server import Learnt, Parameters
from raypid.runtime.calls import called
from raypid.types import Array, Sample, Trajectory, Transition, Weights, tree_map

if TYPE_CHECKING:
    from raypid.algorithms.off_policy import OffPolicy, OffPolicyConfig

Done: TypeAlias = tuple[int, list[Array]]
"""The number of updates, and new priorities for the rows of each sample (empty if rows have none)."""


_OF_REPLAY = "save load clear head saved_columns fingerprint begin_load take_rows end_load".split()
"""Methods of the buffer that its learner answers to as well."""


class ReplayLearner(Learner):
    """A learner with a replay buffer of its own. If there are several, each draws its part of every batch from its buffer.

    `replay` makes the buffer, given the learner's rank.
    """

    algorithm: OffPolicy[OffPolicyConfig]

    def __init__(self, *args: Any, replay: Callable[[int], Replay], rank: int = 0, **more: Any) -> None:
        super().__init__(*args, **more)
        self.replay = replay(rank)
        for name in _OF_REPLAY:
            setattr(self, name, getattr(self.replay, name))
        self._unshared: list[tuple[int, Moments]] = []
        """(worker, moments of its fragment) that the other learners have not been told of yet."""

    @quiet
    def add(self, worker: int, fragment: Trajectory) -> int:
        """Store a fragment; returns the number of rows that can be drawn."""
        if self.algorithm.collective is None:
            self.algorithm.merge(fragment.moments)
        elif fragment.moments is not None:
            self._unshared.append((worker, fragment.moments))
        return self.replay.add(worker, fragment)

    @called(repeats=False, progress=int)
    def learn(self, *, timesteps: int, num_updates: int, reward_factor: float = 1.0) -> tuple[int, Weights]:
        """Draw rows for `num_updates` updates and do these, with rewards times `reward_factor`; returns their number and the new weights.

        Raises:
            Diverged: these updates, or those before, left something that is not finite.
        """
        self.check_sound()
        algorithm = self.algorithm
        self._share_moments()
        algorithm.reward_factor = np.float32(reward_factor)
        beta = algorithm.config.beta_at(timesteps)
        sample = algorithm.sample_from(self.replay, num_updates, beta)
        if algorithm.collective is not None:
            sample.weight = importance(sample.probability, 1, beta, algorithm.collective)
        with self._changing():
            update = algorithm.update(sample, timesteps)
        self.check(update, sample, timesteps)
        if update.priorities is not None:
            self.replay.set_priorities(sample.id, update.priorities)
        return update.num_updates, algorithm.weights()

    @called(repeats=False, progress=int)
    def learn_from(
        self, newest: Parameters, *, timesteps: int, num_updates: int, reward_factor: float = 1.0
    ) -> tuple[int, Learnt]:
        """Do updates without the other learners, starting from the parameters that all share.

        Returns the number of updates, and the new weights with how far the parameters moved.
        """
        self.set_parameters(newest)
        num, weights = self.learn(timesteps=timesteps, num_updates=num_updates, reward_factor=reward_factor)
        _, after = self.parameters()
        return num, (weights, {name: flat - newest[1][name] for name, flat in after.items()})

    def parameters(self) -> Parameters:
        """(version, all flat parameters by network)."""
        networks = self.algorithm.networks
        return self.algorithm.version, {name: network.numpy().copy() for name, network in networks.items()}

    def set_parameters(self, newest: Parameters) -> None:
        """Take over what `parameters` of another learner returned."""
        self.algorithm.version, parameters = newest
        for name, flat in parameters.items():
            self.algorithm.networks[name].load(flat)

    def _share_moments(self) -> None:
        """Exchange what the workers saw with the other learners. All of them merge everything in worker order."""
        if self.algorithm.collective is None or self.algorithm.moments is None:
            return
        everywhere = self.algorithm.collective.gather(self._unshared)
        self._unshared = []
        for _, moments in sorted((seen for part in everywhere for seen in part), key=lambda seen: seen[0]):
            self.algorithm.merge(moments)

    def metrics(self) -> dict[str, float]:
        """Means since the last call, and how full the buffers of all learners are."""
        self._share_moments()
        here = self.replay.metrics()
        everywhere = [here] if self.algorithm.collective is None else self.algorithm.collective.gather(here)
        return self.algorithm.metrics() | {name: sum(m[name] for m in everywhere) for name in here}


class ShardLearner(Learner):
    """A learner whose replay buffers are elsewhere: samples come with the call."""

    algorithm: OffPolicy[OffPolicyConfig]

    @quiet
    def seen(self, fragment: Trajectory) -> None:
        """Take the observations of a new fragment into the normaliser."""
        self.algorithm.merge(fragment.moments)

    @called(splits_after=0, progress=itemgetter(0))
    def learn(self, *samples: Sample, timesteps: int, num_updates: int, reward_factor: float) -> tuple[Done, Weights]:
        """Do `num_updates` updates with rows of every shard and rewards times `reward_factor`.

        Returns what was done, and the new weights.

        Raises:
            Diverged: these updates, or those before, left something that is not finite.
        """
        self.check_sound()
        algorithm, num = self.algorithm, num_updates
        algorithm.reward_factor = np.float32(reward_factor)
        sample = interleave(samples, num)
        sample.weight = importance(sample.probability, 1, algorithm.config.beta_at(timesteps), algorithm.collective)
        with self._changing():
            update = algorithm.update(sample, timesteps)
        self.check(update, sample, timesteps)
        priorities: list[Array] = []
        if update.priorities is not None:
            parts = update.priorities.reshape(num, len(samples), -1)
            priorities = [np.ascontiguousarray(parts[:, i]).ravel() for i in range(len(samples))]
        return (update.num_updates, priorities), algorithm.weights()

    def metrics(self) -> dict[str, float]:
        """Means since the last call."""
        return self.algorithm.metrics()


def interleave(samples: Sequence[Sample], num: int) -> Sample:
    """Join samples into `num` batches after each other, each with an equal part of every sample's rows."""

    def join(*parts: Array) -> Array:
        cut = [p.reshape(num, -1, *p.shape[1:]) for p in parts]
        joined = np.concatenate(cut, 1)
        return joined.reshape(-1, *joined.shape[2:])

    data = Transition(
        obs=tree_map(join, *(s.data.obs for s in samples)),
        action=tree_map(join, *(s.data.action for s in samples)),
        reward=join(*(s.data.reward for s in samples)),
        discount=join(*(s.data.discount for s in samples)),
        next_obs=tree_map(join, *(s.data.next_obs for s in samples)),
    )
    return Sample(data, *(join(*(getattr(s, n) for s in samples)) for n in ("id", "probability", "weight")))
