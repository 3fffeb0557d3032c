"""Evaluation during training: when it is due, and whether it runs in the driver between iterations or in a process of its own."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from raypid.config import Config
from raypid.roles.evaluator import CONFIRM_EPISODES, MAX_STREAMS, Evaluation, Evaluator
from raypid.roles.learner import Learner
from raypid.roles.rollout import RolloutSpec
from raypid.run.loops import Context
from raypid.runtime.handle import ArgumentLost, Future
from raypid.runtime.supervisor import WorkerGroup
from raypid.types import Weights

EvaluatorGroup: TypeAlias = WorkerGroup[Evaluation, None]
NICENESS = 10
_POLL_S = 0.2


class _Interrupted(Exception):
    """Raised inside an evaluation whose result is no longer wanted."""


class Order(NamedTuple):
    """What `Evaluator.confirmed` is asked to play."""

    num_episodes: int
    seed: int
    goal: float | None = None


@dataclass(slots=True)
class Played:
    """An evaluation and what it evaluated."""

    evaluation: Evaluation
    weights: Future[Weights]
    """The weights that played. Training may have newer ones by now."""
    timesteps: int
    """Environment steps on which these weights were trained."""

    def summary(self) -> dict[str, float]:
        return {**self.evaluation.summary(), "timesteps_total": self.timesteps}


class Evaluations:
    """The evaluations of one training run."""

    def __init__(self, config: Config, context: Context, spec: RolloutSpec, *, parallel: bool) -> None:
        self.config, self.context = config, context
        self.evaluator = Evaluator(spec)
        """Evaluates in this process."""
        self.beside = Beside(config, context, spec) if parallel else None
        self.automatic = False
        """Without an evaluation_interval: evaluate beside training whenever the evaluator is free, inline in at most a tenth of the
        time."""
        self.every_steps = 0
        """Environment steps between evaluations, all of them inline. With 0, iterations or time decide. Set by `every`."""
        self.goal: float | None = None
        """An evaluation whose mean reaches this is repeated with CONFIRM_EPISODES episodes, which replace its numbers."""
        self.last: Played | None = None
        self._owed = False
        self._periods = 0
        self._ended = time.perf_counter()

    def every(self, steps: int) -> None:
        """Evaluate at each multiple of `steps` environment steps from here on; 0 turns this off."""
        self.every_steps = steps
        self._periods = self.context.timesteps // steps if steps else 0

    def turn(self, iteration: int, expected_s: float | None) -> Played | None:
        """Evaluate if it is due, and return an evaluation that has ended since the last call. Called after each iteration.

        expected_s: estimated seconds of a first evaluation; None if there is no estimate yet.
        """
        if self.every_steps:
            periods, self._periods = self._periods, self.context.timesteps // self.every_steps
            return self.now(iteration) if self._periods > periods else None
        played = self._result() if self.beside is not None else None
        if not self._is_due(iteration, expected_s):
            return played
        if self.beside is None:
            return self.now(iteration)
        if not self.beside.busy:
            self._start(self.beside, iteration)
        return played

    def now(self, iteration: int) -> Played:
        """Evaluate the current weights in this process."""
        weights, timesteps = self.context.learner.submit(Learner.weights), self.context.timesteps
        evaluation = self.evaluator.confirmed(self.context.backend.get(weights), *self._order(iteration))
        self._owed, self._ended = False, time.perf_counter()
        self.last = Played(evaluation, weights, timesteps)
        return self.last

    def newest(self, iteration: int, interrupted: Callable[[], bool]) -> Played | None:
        """Evaluate the current weights and wait for the result; None if interrupted or if the evaluator was lost."""
        if self.beside is None:
            return self.now(iteration)
        self._start(self.beside, iteration)
        return self.finish(math.inf, interrupted)

    def finish(self, patience_s: float, interrupted: Callable[[], bool]) -> Played | None:
        """Wait up to `patience_s` seconds for the evaluation that runs beside training; None if there is no result by then."""
        until = time.monotonic() + patience_s
        while self.beside is not None and self.beside.busy and not interrupted():
            played = self._result(min(_POLL_S, max(0.0, until - time.monotonic())))
            if played is not None or time.monotonic() >= until:
                return played
        return None

    def play(
        self, weights: Weights, num_episodes: int, seed: int, interrupted: Callable[[], bool]
    ) -> Evaluation | None:
        """Play episodes with given weights after training; None if interrupted or if the evaluator was lost."""
        if self.beside is not None:  # an environment that hangs there does not hang this process
            self.beside.start(self.context.backend.put(weights), self.context.timesteps, Order(num_episodes, seed))
            played = self.finish(math.inf, interrupted)
            return played.evaluation if played is not None else None

        def after_step(env: object) -> None:
            if interrupted():
                raise _Interrupted

        try:
            return self.evaluator.evaluate(weights, num_episodes, seed, record=after_step)
        except _Interrupted:
            return None

    def close(self) -> None:
        """Drop the running evaluation and end the evaluator's process and environments. The next evaluation builds them again."""
        self.evaluator.close()
        if self.beside is not None:
            self.beside.close()

    @property
    def lost(self) -> int:
        """Number of evaluators that died or hung so far."""
        return 0 if self.beside is None else sum(self.beside.losses.values())

    def _start(self, beside: Beside, iteration: int) -> None:
        self._owed = False
        beside.start(self.context.weights.for_evaluator(), self.context.timesteps, self._order(iteration))

    def _result(self, wait_s: float = 0.0) -> Played | None:
        assert self.beside is not None
        was_busy = self.beside.busy
        played = self.beside.result(wait_s)
        self.last = played or self.last
        self._owed |= was_busy and played is None and not self.beside.busy
        return played

    def _is_due(self, iteration: int, expected_s: float | None) -> bool:
        interval = self.config.evaluation_interval
        if interval is not None:
            self._owed |= interval > 0 and iteration % interval == 0
            return self._owed
        if not self.automatic or expected_s is None:
            return False
        if self.beside is not None:
            return True
        expected_s = self.last.evaluation.seconds if self.last is not None else expected_s
        return time.perf_counter() - self._ended > 10 * expected_s

    def _order(self, iteration: int) -> Order:
        return Order(self.config.evaluation_num_episodes, (self.config.seed or 0) + iteration, self.goal)


class PoliteEvaluator:
    """The role of an evaluator whose process yields to training where the two share a core."""

    def __init__(self, spec: RolloutSpec) -> None:
        if hasattr(os, "nice"):
            os.nice(NICENESS)
        self.evaluator = Evaluator(spec)

    def evaluate(self, weights: Weights, order: Order) -> tuple[Evaluation, None]:
        """The evaluation, as the report of a WorkerGroup's call without data."""
        return self.evaluator.confirmed(weights, *order), None

    def close(self) -> None:
        self.evaluator.close()


class Beside:
    """An evaluator in a process of its own, which plays one evaluation at a time. The first evaluation starts the process."""

    def __init__(self, config: Config, context: Context, spec: RolloutSpec) -> None:
        self.config, self.context, self.spec = config, context, spec
        self._group: EvaluatorGroup | None = None
        self.losses = {"workers": 0, "timeouts": 0}
        """Evaluators that died or hung so far, in all groups."""
        self._weights: Future[Weights]
        """Those that play in the newest evaluation."""
        self._timesteps = 0
        """Environment steps on which they were trained."""

    @property
    def busy(self) -> bool:
        return self._group is not None and self._group.running(0) > 0

    def start(self, weights: Future[Weights], timesteps: int, order: Order) -> None:
        """Start to evaluate `weights`; `result` returns the outcome. An evaluation that is still running is dropped."""
        if self.busy:
            self.close()
        group = self._workers()
        group.timeout_s = self._time_for(order)
        group.start(0, PoliteEvaluator.evaluate, self.context.backend.put(weights), order)
        self._weights, self._timesteps = weights, timesteps

    def result(self, wait_s: float = 0.0) -> Played | None:
        """The evaluation, if it ends within `wait_s` seconds. An evaluator that died or is overdue is replaced and its job dropped.

        Raises:
            WorkersFailed: more evaluators were lost than max_restarts allows. Also anything that the evaluation itself raised.
        """
        group = self._group
        if group is None:
            return None
        try:
            for _, (evaluation, _) in group.finished(wait_s):
                return Played(evaluation, self._weights, self._timesteps)
        except ArgumentLost as error:
            if not self.context.weights.mend(None):
                group.replace(0, "evaluate()", error)
        return None

    def close(self) -> None:
        """End the process, without waiting for a running evaluation."""
        group, busy = self._group, self.busy
        self._group = None
        if group is not None and busy:
            self.context.backend.kill(group.handles[0])
        elif group is not None:
            group.close()

    def _time_for(self, order: Order) -> float:
        """Seconds allowed: worker_timeout_s for each episode that a stream plays, doubled with each evaluator that was overdue."""
        turns = math.ceil(order.num_episodes / MAX_STREAMS)
        if order.goal is not None:
            turns += math.ceil(CONFIRM_EPISODES / MAX_STREAMS)
        return self.config.worker_timeout_s * turns * 2.0 ** self.losses["timeouts"]

    def _workers(self) -> EvaluatorGroup:
        """The group of one evaluator, built if there is none."""
        if self._group is None:
            self._group = WorkerGroup(
                self.context.backend,
                lambda index, restarts: partial(PoliteEvaluator, self.spec),
                1,
                num_cpus=0,
                timeout_s=self.config.worker_timeout_s,
                max_restarts=self.config.max_restarts,
                describe=self.context.workers.describe,
                kind="Evaluator",
            )
            self._group.folder, self._group.lost = self.context.workers.folder, self.losses
        return self._group
