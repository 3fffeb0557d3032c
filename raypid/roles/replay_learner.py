"""Learners that replay: with a buffer of their own, or with samples that come from shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raypid.ops.normalizer import Moments
from raypid.ops.sum_tree import importance
from raypid.replay.buffer import Replay, ReplaySpec
from raypid.roles.learner import Learner
from raypid.roles.parameter_server import Change
from raypid.types import Array, Sample, Trajectory, Transition, Weights, tree_map


class ReplayLearner(Learner):
    """A learner with a replay buffer of its own. Of several, each draws its part of every batch from its buffer."""

    def __init__(self, *args: Any, replay: ReplaySpec, rank: int = 0, **more: Any) -> None:
        Learner.__init__(self, *args, **more)
        self.replay = Replay(replay, rank)
        self._seen: list[tuple[int, Moments]] = []
        """(worker, moments of its fragment) that the other learners do not know of yet."""

    def insert(self, worker: int, fragment: Trajectory) -> int:
        """Store a fragment; returns the number of rows that can be drawn."""
        if self.algorithm.collective is None:
            self.algorithm.seen(fragment)
        elif fragment.moments is not None:
            self._seen.append((worker, fragment.moments))
        return self.replay.add(worker, fragment)

    def learn(self, timesteps: int, num_updates: int) -> tuple[int, Weights]:
        """Draw rows for `num_updates` updates and do these; returns their number and the new weights."""
        algorithm = self.algorithm
        self._share_moments()
        beta = algorithm.beta(timesteps)
        sample = algorithm.sample_from(self.replay, num_updates, beta)
        if algorithm.collective is not None:
            sample.weight = importance(sample.probability, 1, beta, algorithm.collective)
        update = algorithm.update(sample, timesteps)
        if update.priorities is not None:
            self.replay.set_priorities(sample.id, update.priorities)
        return update.num_updates, algorithm.weights()

    def learn_from(self, newest: tuple[int, dict[str, Array]], timesteps: int, num_updates: int) -> tuple[int, Change]:
        """Do updates from the parameters that all learners share, without the other learners; returns their number and the change."""
        self.set_parameters(newest)
        num, weights = self.learn(timesteps, num_updates)
        _, after = self.parameters()
        return num, Change({name: flat - newest[1][name] for name, flat in after.items()}, weights)

    def parameters(self) -> tuple[int, dict[str, Array]]:
        """(version, all flat parameters by network)."""
        networks = self.algorithm.networks
        return self.algorithm.version, {name: network.numpy().copy() for name, network in networks.items()}

    def set_parameters(self, newest: tuple[int, dict[str, Array]]) -> None:
        self.algorithm.version, parameters = newest
        for name, flat in parameters.items():
            self.algorithm.networks[name].load(flat)

    def _share_moments(self) -> None:
        """Tell the other learners what the workers of this one saw; all merge everything in worker order."""
        if self.algorithm.collective is None or self.algorithm.moments is None:
            return
        everywhere = self.algorithm.collective.gather(self._seen)
        self._seen = []
        for _, moments in sorted((seen for part in everywhere for seen in part), key=lambda seen: seen[0]):
            self.algorithm.merge(moments)

    def metrics(self) -> dict[str, float]:
        """Means since the last call, and how full the buffers are."""
        self._share_moments()
        here = self.replay.metrics()
        everywhere = [here] if self.algorithm.collective is None else self.algorithm.collective.gather(here)
        found: dict[str, float] = self.algorithm.metrics()
        return found | {name: sum(m[name] for m in everywhere) for name in here}

    def save_replay(self, folder: str, previous: str | None) -> None:
        """Write the buffer; what `previous` has already is linked."""
        self.replay.save(folder, previous)

    def load_replay(self, folders: str | Sequence[str], draws: bool = True) -> int:
        """Fill the buffer from one or more saves (`Replay.load`); returns the number of rows that can be drawn."""
        return self.replay.load(folders, draws)

    def clear_replay(self) -> int:
        """Empty the buffer."""
        return self.replay.clear()


class ShardLearner(Learner):
    """A learner whose replay buffers are elsewhere: samples come with the call."""

    def seen(self, fragment: Trajectory) -> None:
        self.algorithm.seen(fragment)

    def learn(self, timesteps: int, num_updates: int, *samples: Sample) -> tuple[int, Weights, list[Array | None]]:
        """Do `num_updates` updates with rows of every shard; returns their number, the new weights, and new
        priorities for each shard's sample (None if rows are drawn uniformly)."""
        algorithm, num = self.algorithm, num_updates
        sample = interleave(samples, num)
        sample.weight = importance(sample.probability, 1, algorithm.beta(timesteps), algorithm.collective)
        update = algorithm.update(sample, timesteps)
        priorities: list[Array | None] = [None] * len(samples)
        if update.priorities is not None:
            parts = update.priorities.reshape(num, len(samples), -1)
            priorities = [np.ascontiguousarray(parts[:, i]).ravel() for i in range(len(samples))]
        return update.num_updates, algorithm.weights(), priorities

    def metrics(self) -> dict[str, float]:
        """Means since the last call."""
        found: dict[str, float] = self.algorithm.metrics()
        return found


def interleave(samples: Sequence[Sample], num: int) -> Sample:
    """`num` batches after each other, each with an equal part of every sample's rows."""

    def join(*parts: Array) -> Array:
        cut = [p.reshape(num, -1, *p.shape[1:]) for p in parts]
        joined = np.concatenate(cut, 1)
        return joined.reshape(-1, *joined.shape[2:])

    names = ("obs", "action", "reward", "discount", "next_obs")
    data = Transition(*(tree_map(join, *(getattr(s.data, n) for s in samples)) for n in names))
    return Sample(data, *(join(*(getattr(s, n) for s in samples)) for n in ("id", "probability", "weight")))
