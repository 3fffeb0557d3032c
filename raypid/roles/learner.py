"""Learner: an algorithm and the fragments it is fed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from raypid.nn.spec import NetworkSpec
from raypid.ops.normalizer import merge_moments
from raypid.registry import ALGORITHMS, NETWORKS
from raypid.roles.replay import Replay, ReplaySpec, importance
from raypid.types import Array, Sample, Trajectory, Transition, Update, Weights, concat_trajectories, tree_map


class Learner:
    """Holds the algorithm; joins fragments in the order given, which is the workers'."""

    def __init__(
        self,
        algorithm: str,
        config: Any,
        spec: NetworkSpec,
        seed: int,
        networks: dict[str, Any] | None = None,
        num_threads: int = 1,
    ) -> None:
        for name, entry in (networks or {}).items():
            NETWORKS.register(name, entry)
        self.algorithm = ALGORITHMS.get(algorithm)(config, spec, seed)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(num_threads)

    def update(self, timesteps: int, *fragments: Trajectory) -> tuple[Update, Weights]:
        """Learn from fragments of equal length; returns what was done and the new weights."""
        batch = concat_trajectories(fragments)
        moments = [f.moments for f in fragments if f.moments is not None]
        if moments:
            batch.moments = moments[0]
            for delta in moments[1:]:
                batch.moments = merge_moments(batch.moments, delta)
        return self.algorithm.update(batch, timesteps), self.algorithm.weights()

    def weights(self) -> Weights:
        return self.algorithm.weights()

    def set_weights(self, weights: Weights) -> None:
        self.algorithm.set_weights(weights)

    def state_dict(self) -> dict[str, Any]:
        return self.algorithm.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.algorithm.load_state_dict(state)

    def close(self) -> None:
        pass


class ReplayLearner(Learner):
    """A learner with a replay buffer of its own."""

    def __init__(self, *args: Any, replay: ReplaySpec, **more: Any) -> None:
        Learner.__init__(self, *args, **more)
        self.replay = Replay(replay)

    def insert(self, worker: int, fragment: Trajectory) -> int:
        """Store a fragment; returns the number of rows that can be drawn."""
        self.algorithm.seen(fragment)
        return self.replay.add(worker, fragment)

    def learn(self, timesteps: int, num_updates: int) -> tuple[int, Weights]:
        """Draw rows for `num_updates` updates and do these; returns their number and the new weights."""
        algorithm = self.algorithm
        sample = self.replay.sample(num_updates * algorithm.config.batch_size, algorithm.beta(timesteps))
        update = algorithm.update(sample, timesteps)
        if update.priorities is not None:
            self.replay.set_priorities(sample.id, update.priorities)
        return update.num_updates, algorithm.weights()

    def metrics(self) -> dict[str, float]:
        """Means since the last call, and how full the buffer is."""
        return self.algorithm.metrics() | self.replay.metrics()

    def save_replay(self, folder: str, previous: str | None) -> None:
        """Write the buffer; what `previous` has already is linked."""
        self.replay.save(folder, previous)

    def load_replay(self, folder: str) -> int:
        """Fill the empty buffer; returns the number of rows that can be drawn."""
        return self.replay.load(folder)


class ShardLearner(Learner):
    """A learner whose replay buffers are elsewhere: samples come with the call."""

    def seen(self, fragment: Trajectory) -> None:
        self.algorithm.seen(fragment)

    def learn(self, timesteps: int, num_updates: int, *samples: Sample) -> tuple[Any, ...]:
        """Do `num_updates` updates with rows of every shard; returns their number, the new weights, and new
        priorities for each shard's sample (None where rows are drawn uniformly)."""
        algorithm, num = self.algorithm, num_updates
        sample = interleave(samples, num)
        sample.weight = importance(sample.probability, 1, algorithm.beta(timesteps))
        update = algorithm.update(sample, timesteps)
        priorities: Any = [None] * len(samples)
        if update.priorities is not None:
            parts = update.priorities.reshape(num, len(samples), -1)
            priorities = [np.ascontiguousarray(parts[:, i]).ravel() for i in range(len(samples))]
        return (update.num_updates, algorithm.weights(), *priorities)

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
