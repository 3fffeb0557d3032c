"""Learner: an algorithm, and what workers collect for it."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from raypid.algorithms.base import Algorithm, State
from raypid.errors import Diverged, UserError
from raypid.ops.normalizer import Moments, inverse_deviation, merge_moments, zero_moments
from raypid.ops.sum_tree import importance
from raypid.roles.divergence import check_update, is_sound, quiet
from raypid.roles.role import Role
from raypid.roles.setup import Setup
from raypid.runtime.calls import Called
from raypid.state_tree import fingerprint
from raypid.storage.checkpoint import CheckpointError, refusing
from raypid.types import (
    Array,
    Collected,
    Collective,
    Fitness,
    LearnerCopy,
    Metrics,
    Priorities,
    Report,
    Sample,
    Trajectory,
    Transition,
    Update,
    Weights,
    concat_fitness,
    concat_trajectories,
    tree_leaves,
    tree_map,
)

if TYPE_CHECKING:
    from raypid.algorithms.off_policy import OffPolicy, OffPolicyConfig

COPY_BYTES_PER_S = 5e8
"""At least so much of a state is pickled, sent and copied in a second; by it and by the clock the cost of a copy is bounded."""


class Meeting(Collective, Protocol):
    """A collective whose members have yet to meet."""

    def open(self) -> str: ...
    def join(self, address: str) -> None: ...
    def leave(self) -> None: ...


def num_updates_of(value: Metrics | Priorities) -> int:
    """The number of updates that a call to learn has made."""
    return value.num_updates


class Learner(Role):
    """Holds the algorithm: its networks, optimizers, and the moments that observations and rewards are normalised by.

    Algorithms that learn from what comes in have `update`. Algorithms with replay have `observe` and `learn`.

    Args:
        setup: what `raypid.setup(...)` returned.
        collective: the other learners of the run, if there are several. They meet (`open`, `join`) before anything else.

    Raises:
        UserError: `setup` is no Setup.
    """

    def __init__(self, setup: Setup, collective: Meeting | None = None) -> None:
        super().__init__(setup)
        self.setup = setup
        self.algorithm: Algorithm[Any] = setup.algorithm(setup.config, setup.network, setup.spec.seed)
        self.returns = zero_moments(1)
        """Moments of the discounted returns of all workers, where rewards from replay are divided by their deviation."""
        self._sums: dict[str, tuple[float, int]] = {}
        """Of updates without replay since the last call of `metrics`: name -> (sum, number of updates)."""
        self._began = 0
        """Environment steps before the batch that is learnt from now."""
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(setup.num_threads)
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
        if setup.program is not None:
            program = copy.copy(setup.program)
            program.algorithm_instance = self.algorithm
            self._update = program.update
        if self.checks is not None:
            self.checks.table = self.algorithm.network.table
        if setup.initial is not None:
            self.set_weights(setup.initial)

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

    @Called(splits_after=1, progress=num_updates_of)
    def update(self, timesteps: int, *data: Collected) -> tuple[Metrics, Weights]:
        """Make one update from what workers have collected with these or recent weights. For algorithms without replay.

        Args:
            timesteps: environment steps of the whole run so far. Schedules go by them.
            data: what each worker collected, in the order of the workers if the run is to be repeatable. All of it is one batch.

        Returns:
            The metrics of this update by name. The algorithm's page explains them under `learner/NAME`.
            The new weights.

        Raises:
            UserError: the algorithm has a replay buffer, or `data` is not what a Rollout of this setup collects.
            Diverged: the update, or the one before, left something that is not finite.
        """
        self.check("Learner.update", timesteps=timesteps, data=data)
        self.check_sound()
        with self._changing():
            batch = self._joined(data)
            # the last batch of a run reaches beyond its end, where open schedules would be 0
            end = self.algorithm.run_end
            update = self._update(batch, timesteps if end is None or timesteps < end else self._began)
            self._began = timesteps
            if not isinstance(update, Update):
                raise UserError(
                    f"update() returned {update!r}; it returns an Update, as super().update(batch, timesteps) does."
                )
        self._check_update(update, batch, timesteps)
        for name, x in update.metrics.items():
            total, num = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + x, num + 1
        weights = self.algorithm.weights()
        return Metrics(update.metrics, update.num_updates, weights.version), weights

    @quiet
    def observe(self, report: Report, fragment: Collected | None = None) -> None:
        """Take in what rewards and observations are normalised by. For algorithms with replay.

        Call it once for each call of `Rollout.collect`, before `learn`. It may be left out if both `normalize_rewards` and
        `normalize_observations` are off; `learn` refuses to go on without it otherwise.

        Args:
            report: has the moments of discounted returns, by which `normalize_rewards` divides rewards, and those of observations.
            fragment: has the moments of observations too. It is looked at if a report of your own has none.

        Raises:
            UserError: the algorithm has no replay buffer, or this is not what a Rollout of this setup collects.
        """
        self.check("Learner.observe", report=report, fragment=fragment)
        if report.returns is not None:
            self.returns = merge_moments(self.returns, report.returns)
        self.algorithm.merge(getattr(fragment, "moments", None) if report.moments is None else report.moments)

    @Called(splits_after=1, progress=num_updates_of)
    def learn(self, timesteps: int, *samples: Sample) -> tuple[Priorities, Weights]:
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
            Diverged: an update, or one before, left something that is not finite.
        """
        self.check("Learner.learn", timesteps=timesteps, samples=samples)
        self.check_sound()
        algorithm, rows = self._off_policy, sum(len(sample.id) for sample in samples)
        if self.checks is not None:
            self._check_observed()
        sample = interleave(samples, rows // algorithm.rows)
        sample.weight = importance(sample.probability, 1, algorithm.config.beta_at(timesteps), algorithm.collective)
        algorithm.reward_factor = np.float32(inverse_deviation(self.returns))
        with self._changing():
            update = algorithm.update(sample, timesteps)
        self._check_update(update, sample, timesteps)
        parts: list[Array] = []
        if update.priorities is not None:
            by_sample = update.priorities.reshape(update.num_updates, len(samples), -1)
            parts = [np.ascontiguousarray(by_sample[:, i]).ravel() for i in range(len(samples))]
        return Priorities(parts, update.num_updates), algorithm.weights()

    @property
    def _off_policy(self) -> OffPolicy[OffPolicyConfig]:
        """The algorithm, which learns from replay."""
        return cast("OffPolicy[OffPolicyConfig]", self.algorithm)

    def _check_observed(self) -> None:
        """Check that there is something to normalise by.

        Raises:
            UserError: `observe` was left out.
        """
        moments = self.algorithm.moments
        idle = {
            "normalize_rewards": self.setup.spec.returns is not None and not self.returns.num_rows,
            "normalize_observations": moments is not None and not moments.num_rows,
        }
        if needs := [name for name, is_idle in idle.items() if is_idle]:
            raise UserError(
                f"Learner.learn: {' and '.join(needs)} had nothing to go by. Call observe(report) for each fragment that goes "
                f"into a Replay, or set {' and '.join(needs)} to false."
            )

    def metrics(self) -> dict[str, float]:
        """The mean of each of the algorithm's metrics over the updates since the last call; {} if there was none. With
        `normalize_rewards` and replay, also `reward_factor`, by which rewards are multiplied.

        The algorithm's page explains them under `learner/NAME`.
        """
        if self.setup.replay is None:
            sums, self._sums = self._sums, {}
            return {name: total / num for name, (total, num) in sums.items()}
        factor = {} if self.setup.spec.returns is None else {"reward_factor": inverse_deviation(self.returns)}
        return self._off_policy.metrics() | factor

    def _check_update(self, update: Update, batch: object, timesteps: int) -> None:
        """Check what an update has made, before anybody is given it, and count it.

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
            raise kind("The given weights are not finite, since their run had diverged. Take an earlier checkpoint.")

    def _joined(self, parts: tuple[Collected, ...]) -> Trajectory | Fitness | list[Collected]:
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

    @Called(to="first")
    def weights(self) -> Weights:
        """A copy of the newest weights, for `Rollout.collect`, `ParameterServer.push` and `Evaluator.evaluate`.

        Returns:
            The weights: `version` (updates so far), `flat` [P] float32, `table` (name and shape of each part of `flat`), `extra` (arrays
                that are not trained, such as the moments of observations).

        Raises:
            Diverged: an update left something that is not finite.
        """
        self.check_sound()
        return self.algorithm.weights()

    @Called(gives_state=True)
    def set_weights(self, weights: Weights) -> None:
        """Start from given weights, with optimizers as they are. Their version goes on, unless the learner's own is newer.

        Raises:
            ConfigError: they belong to another network.
            UserError: they are no Weights, or not finite.
        """
        self.check("Learner.set_weights", weights=weights)
        self.algorithm.set_weights(weights)
        self._check_given()

    @Called(to="first")
    def state_dict(self) -> State:
        """Everything that the next update depends on apart from its data: networks, optimizers, moments, random numbers, counters.

        Raises:
            Diverged: an update left something that is not finite.
        """
        self.check_sound()
        if not is_sound(self.algorithm):
            raise Diverged("the weights are not finite")
        state = self.algorithm.state_dict()
        return state if self.setup.replay is None else {**state, "returns": self.returns.as_arrays()}

    def fingerprints(self) -> dict[str, str]:
        """A checksum of each part of `state_dict`, by name."""
        return {name: fingerprint(part) for name, part in self.state_dict().items()}

    def in_force(self) -> dict[str, object]:
        """The settings that the algorithm works with, by name."""
        return self.algorithm.in_force()

    @Called(gives_state=True)
    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            CheckpointError: it is no such state.
            ConfigError: it is that of another network.
        """
        with refusing("The learner's state in the checkpoint"):
            returns = Moments.from_arrays(state["returns"], size=1) if "returns" in state else self.returns
            self.algorithm.load_state_dict({name: part for name, part in state.items() if name != "returns"})
            self.returns = returns
        self._check_given(CheckpointError)

    @Called(lasts=True)
    def end_schedules(self, steps: int, timesteps: int) -> None:
        """Let linear schedules whose end the settings leave open end at this environment step; `timesteps` were made before."""
        self.algorithm.run_end, self._began = steps, timesteps

    @Called(lasts=True)
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
