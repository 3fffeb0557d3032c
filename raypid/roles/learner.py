"""Learner: an algorithm, and what workers collect for it."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from raypid.algorithms.base import Algorithm, State
from raypid.errors import Diverged, UserError
from raypid.nn.network_spec import NetworkSpec
from raypid.ops.normalizer import Moments, merge_moments
from raypid.roles.acting import register_networks
from raypid.roles.actor import Program
from raypid.roles.divergence import check_update, is_sound
from raypid.runtime.calls import called
from raypid.settings.config import Config
from raypid.state_tree import fingerprint
from raypid.storage.checkpoint import CheckpointError, refusing
from raypid.types import (
    Collective,
    Fitness,
    Gradients,
    LearnerCopy,
    Trajectory,
    Update,
    Weights,
    concat_fitness,
    concat_trajectories,
    tree_leaves,
)

COPY_BYTES_PER_S = 5e8
"""At least so much of a state is pickled, sent and copied in a second; by it and by the clock the cost of a copy is bounded."""


class Meeting(Collective, Protocol):
    """A collective whose members have yet to meet."""

    def open(self) -> str: ...
    def join(self, address: str) -> None: ...
    def leave(self) -> None: ...


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
        self._began = 0
        """Environment steps before the batch that is learnt from now."""
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(num_threads)
        self.collective = collective
        self.diverged: Diverged | None = None
        """Why its weights are of no use, until it is given others."""
        self._whole = True
        self.num_updates = 0
        """Updates that its state has seen in this run, also before this process was built."""
        self._before: LearnerCopy | None = None
        """With several learners: the state before a recent update."""
        self._copy_at = 0.0
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

    def leave(self) -> None:
        """Leave the collective, some of whose members are lost, to join another one."""
        assert self.collective is not None
        self.collective.leave()

    @called(splits_after=0, progress=attrgetter("num_updates"))
    def update(self, *parts: Trajectory | Gradients | Fitness, timesteps: int) -> tuple[Update, Weights]:
        """Learn from trajectories of equal length, gradients or fitness; returns what was done and the new weights.

        Raises:
            UserError: a user's `update` did not return an Update.
            Diverged: the update, or the one before, left something that is not finite.
        """
        self.check_sound()
        with self._changing():
            batch = self._joined(parts)
            # the last batch of a run reaches beyond its end, where open schedules would be 0
            end = self.algorithm.run_end
            update = self._update(batch, timesteps if end is None or timesteps < end else self._began)
            self._began = timesteps
            if not isinstance(update, Update):
                raise UserError(
                    f"update() returned {update!r}; it returns an Update, as super().update(batch, timesteps) does."
                )
        self.check(update, batch, timesteps)
        weights = self.algorithm.weights()
        update.version = weights.version
        return update, weights

    def check(self, update: Update, batch: object, timesteps: int) -> None:
        """Check what an update has made, before anybody is given it.

        Raises:
            Diverged: something is not finite.
        """
        try:
            check_update(self.algorithm, update, batch, timesteps)
        except Diverged as error:
            self.diverged = error
            raise
        self.num_updates += update.num_updates

    def check_sound(self) -> None:
        """Refuse to go on with weights that are of no use.

        Raises:
            Diverged: an earlier update left something that is not finite.
        """
        if self.diverged is not None:
            raise self.diverged

    def _check_given(self, kind: type[UserError] = UserError) -> None:
        """Check the weights that were given from outside.

        Raises:
            UserError: they are not finite; of type `kind`.
        """
        self.diverged, self._whole = None, True
        if not is_sound(self.algorithm):
            raise kind(
                "The given weights are not finite: the run that wrote them had diverged. Take an earlier checkpoint."
            )

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

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """What is done inside changes the weights; if it raises, they are no longer to be saved. Numbers that are not finite are
        found afterwards (`check`), not by NumPy's warnings."""
        # another's loss would break the update off
        if self.collective is not None and time.monotonic() >= self._copy_at:
            first = self._before is None  # which takes longer than those that follow
            self._before = replace(copied := self.copied(), state=copy.deepcopy(copied.state))
            self._copy_at = 0.0 if first else time.monotonic() + 200 * copied.seconds
        self._whole = False
        with np.errstate(all="ignore"):
            yield
        self._whole = True

    def is_whole(self) -> bool:
        """Whether no update broke off half way."""
        return self._whole

    def copied(self) -> LearnerCopy:
        """The state as it is now.

        Raises:
            Diverged: it is of no use.
        """
        start = time.perf_counter()
        state, weights = self.state_dict(), self.algorithm.weights()
        num_bytes = sum(leaf.nbytes for _, leaf in tree_leaves(state) if isinstance(leaf, np.ndarray))
        way_s = (num_bytes + weights.flat.nbytes) / COPY_BYTES_PER_S
        return LearnerCopy(self.num_updates, state, weights, time.perf_counter() - start + way_s)

    def standing(self) -> int:
        """Number of updates that `newest_whole` has seen; -1 if there is no such state."""
        if self._whole and self.diverged is None:
            return self.num_updates
        return -1 if self._before is None else self._before.progress

    def newest_whole(self) -> LearnerCopy:
        """The state; if an update broke off half way, that of before, or of a little earlier.

        Raises:
            Diverged: there is no such state.
        """
        if self._before is None or (self._whole and self.diverged is None):
            return self.copied()
        return self._before

    def take_over(self, copied: LearnerCopy) -> None:
        """Go on from the state of another learner, or of one that was lost."""
        self.load_state_dict(copied.state)
        self.num_updates, self._before = copied.progress, None

    @called(to="first")
    def weights(self) -> Weights:
        """A copy of the current weights.

        Raises:
            Diverged: they are of no use.
        """
        self.check_sound()
        return self.algorithm.weights()

    @called(gives_state=True)
    def set_weights(self, weights: Weights) -> None:
        """Start from given weights."""
        self.algorithm.set_weights(weights)
        self._check_given()

    @called(to="first")
    def state_dict(self) -> State:
        """Everything that the next update depends on.

        Raises:
            Diverged: it is of no use, and not to be saved.
        """
        self.check_sound()
        if not is_sound(self.algorithm):
            raise Diverged("the weights are not finite")
        return self.algorithm.state_dict()

    def fingerprints(self) -> dict[str, str]:
        """A checksum of each part of `state_dict`, by name."""
        return {name: fingerprint(part) for name, part in self.state_dict().items()}

    def in_force(self) -> dict[str, object]:
        """The settings that the algorithm works with, by name."""
        return self.algorithm.in_force()

    @called(gives_state=True)
    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            CheckpointError: it is no such state.
            ConfigError: it is that of other networks.
        """
        with refusing("The learner's state in the checkpoint"):
            self.algorithm.load_state_dict(state)
        self._check_given(CheckpointError)

    @called(lasts=True)
    def end_schedules(self, steps: int, timesteps: int) -> None:
        """Let linear schedules whose end the settings leave open end at this environment step; `timesteps` were made before."""
        self.algorithm.run_end, self._began = steps, timesteps

    @called(lasts=True)
    def scale_lr(self, factor: float) -> None:
        """Learn at `factor` times the rates of the settings from here on."""
        self.algorithm.scale_lr(factor)


class KeptLearner:
    """Stands in for learners that are gone for good. It answers from the newest copy of their state, and cannot learn."""

    def __init__(self, kept: LearnerCopy) -> None:
        self.kept = kept

    def is_whole(self) -> bool:
        return True

    def standing(self) -> int:
        return self.kept.progress

    def weights(self) -> Weights:
        return self.kept.weights

    def state_dict(self) -> dict[str, Any]:
        return self.kept.state
