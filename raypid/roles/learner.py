"""Learner: an algorithm, and what workers collect for it."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from functools import reduce
from typing import Any, Protocol

from raypid.algorithms.base import Algorithm, State
from raypid.checkpoint import refusing
from raypid.config import Config
from raypid.errors import UserError
from raypid.nn.network_spec import NetworkSpec
from raypid.ops.normalizer import Moments, merge_moments
from raypid.roles.acting import register_networks
from raypid.roles.actor import Program
from raypid.types import (
    Collective,
    Fitness,
    Gradients,
    Trajectory,
    Update,
    Weights,
    concat_fitness,
    concat_trajectories,
)


class Meeting(Collective, Protocol):
    """A collective whose members have yet to meet."""

    def open(self) -> str: ...
    def join(self, address: str) -> None: ...
    def close(self) -> None: ...


class Learner:
    """Holds the algorithm, and joins what it learns from in the order given, which is the workers'.

    Args:
        algorithm: the class itself: names that the user has registered are not known in every process.
        networks: registered networks by name, for the same reason.
        collective: the other learners of the run, if there are several. They meet (`open`, `join`) before anything else.
        program: learns in place of the algorithm, if it is given.
    """

    algorithm: Algorithm[Any]

    def __init__(
        self,
        algorithm: type[Algorithm[Config]],
        config: Config,
        spec: NetworkSpec,
        seed: int,
        networks: Mapping[str, type] | None = None,
        num_threads: int = 1,
        collective: Meeting | None = None,
        program: Program | None = None,
    ) -> None:
        register_networks(networks or {})
        self.algorithm = algorithm(config, spec, seed)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(num_threads)
        self.collective = collective
        self._update = self.algorithm.update
        if program is not None:
            program = copy.copy(program)
            program.algorithm_instance = self.algorithm
            self._update = program.update

    def open(self) -> str:
        """Open the collective, on rank 0; returns the address at which the other learners join."""
        assert self.collective is not None
        return self.collective.open()

    def join(self, address: str) -> None:
        """Meet the other learners. From here on updates are made together."""
        assert self.collective is not None
        self.collective.join(address)
        self.algorithm.meet(self.collective)

    def update(self, timesteps: int, *parts: Trajectory | Gradients | Fitness) -> tuple[Update, Weights]:
        """Learn from trajectories of equal length, gradients or fitness; returns what was done and the new weights.

        Raises:
            UserError: a user's `update` did not return an Update.
        """
        update = self._update(self._joined(parts), timesteps)
        if not isinstance(update, Update):
            raise UserError(
                f"update() returned {update!r}; it returns an Update, as super().update(batch, timesteps) does."
            )
        weights = self.algorithm.weights()
        update.version = weights.version
        return update, weights

    def _joined(
        self, parts: tuple[Trajectory | Gradients | Fitness, ...]
    ) -> Trajectory | Fitness | list[Trajectory | Gradients | Fitness]:
        """One batch of all parts, with the moments of what all workers saw, those of other learners included. Gradients stay
        apart: the algorithm says how they add up."""
        if self.algorithm.collect == "gradients":
            return list(parts)
        fitness = [part for part in parts if isinstance(part, Fitness)]
        trajectories = [part for part in parts if isinstance(part, Trajectory)]
        batch: Trajectory | Fitness = concat_fitness(fitness) if fitness else concat_trajectories(trajectories)
        moments: list[Moments] = [part.moments for part in parts if part.moments is not None]
        if self.algorithm.collective is not None:
            moments = [m for found in self.algorithm.collective.gather(moments) for m in found]
        if moments:
            batch.moments = reduce(merge_moments, moments)
        return batch

    def weights(self) -> Weights:
        """A copy of the current weights."""
        return self.algorithm.weights()

    def set_weights(self, weights: Weights) -> None:
        """Start from given weights."""
        self.algorithm.set_weights(weights)

    def state_dict(self) -> State:
        """Everything that the next update depends on."""
        return self.algorithm.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            CheckpointError: it is no such state. ConfigError: it is that of other networks.
        """
        with refusing("The learner's state in the checkpoint"):
            self.algorithm.load_state_dict(state)

    def close(self) -> None:
        """Leave the other learners."""
        if self.collective is not None:
            self.collective.close()
