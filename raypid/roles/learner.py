"""Learner: an algorithm and the fragments it is fed."""

from __future__ import annotations

import copy
import sys
from functools import reduce
from typing import Any

from raypid.algorithms.base import Algorithm
from raypid.errors import UserError
from raypid.nn.network_spec import NetworkSpec
from raypid.ops.normalizer import merge_moments
from raypid.registry import NETWORKS
from raypid.roles.actor import Program
from raypid.types import Update, Weights, concat_fitness, concat_trajectories


class Learner:
    """Holds the algorithm; joins fragments in the order given, which is the workers'.

    `program` may learn in place of the algorithm.

    `collective` (with `open` and `join`) is for one of several learners that update together; they meet before anything else.
    """

    def __init__(
        self,
        algorithm: type[Algorithm],
        config: Any,
        spec: NetworkSpec,
        seed: int,
        networks: dict[str, Any] | None = None,
        num_threads: int = 1,
        collective: Any = None,
        program: Program | None = None,
    ) -> None:
        for name, entry in (networks or {}).items():
            NETWORKS.register(name, entry)
        self.algorithm: Any = algorithm(config, spec, seed)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(num_threads)
        self.collective = collective
        self._learn = self.algorithm.update
        if program is not None:
            program = copy.copy(program)
            program.learner = self.algorithm
            self._learn = program.update

    def open(self) -> str:
        """Rank 0 of several: the address at which the others join."""
        return self.collective.open()

    def join(self, address: str) -> None:
        """Meet the other learners; from here on updates are made together."""
        self.collective.join(address)
        self.algorithm.meet(self.collective)

    def update(self, timesteps: int, *parts: Any) -> tuple[Update, Weights]:
        """Learn from trajectories of equal length, gradients or fitness; returns what was done and the new weights."""
        batch: Any = list(parts)
        if self.algorithm.collect != "gradients":  # those are applied one by one, or as the algorithm adds them up
            batch = concat_fitness(parts) if self.algorithm.collect == "fitness" else concat_trajectories(parts)
            moments = [part.moments for part in parts if part.moments is not None]
            if self.algorithm.collective is not None:
                moments = [m for part in self.algorithm.collective.gather(moments) for m in part]
            if moments:
                batch.moments = reduce(merge_moments, moments)
        update, weights = self._done(self._learn(batch, timesteps)), self.algorithm.weights()
        update.version = weights.version
        return update, weights

    def _done(self, update: Any) -> Update:
        if isinstance(update, Update):
            return update
        raise UserError(
            f"update() returned {update!r}; it returns an Update, as super().update(batch, timesteps) does."
        )

    def weights(self) -> Weights:
        return self.algorithm.weights()

    def set_weights(self, weights: Weights) -> None:
        self.algorithm.set_weights(weights)

    def state_dict(self) -> dict[str, Any]:
        return self.algorithm.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.algorithm.load_state_dict(state)

    def close(self) -> None:
        if self.collective is not None:
            self.collective.close()
