"""Evaluation while training goes on: when it is due; inline, between two iterations, or beside them in a process of its own."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from raypid.config import Config
from raypid.roles.evaluator import CONFIRM_EPISODES, MAX_STREAMS, Evaluation, Evaluator
from raypid.roles.learner import Learner
from raypid.roles.rollout import RolloutSpec
from raypid.run.loops import Context
from raypid.runtime.handle import ArgumentLost, WorkerLost
from raypid.runtime.supervisor import START_S, WorkerGroup

NICENESS = 10
_POLL_S = 0.2


class _InAHurry(Exception):
    """Nobody waits for these episodes any more."""


@dataclass(slots=True)
class Played:
    """An evaluation and what it evaluated."""

    evaluation: Evaluation
    weights: Any
    """Future of the weights that played: training may have newer ones by now."""
    timesteps: int
    """Environment steps that these weights had been trained on."""

    def summary(self) -> dict[str, float]:
        return {**self.evaluation.summary(), "timesteps_total": self.timesteps}


class Evaluations:
    """The evaluations of one training run."""

    def __init__(self, config: Config, context: Context, spec: RolloutSpec, *, parallel: bool) -> None:
        self.config, self.context = config, context
        self.evaluator = Evaluator(spec)
        """In this process."""
        self.beside = Beside(config, context, spec) if parallel else None
        self.automatic = False
        """Without an evaluation_interval: beside, whenever the evaluator is free; inline, in at most a tenth of the time."""
        self.every_steps = 0
        """Environment steps between evaluations, played inline; 0: they are due by iterations or by time. `every` sets it."""
        self.goal: float | None = None
        """An evaluation that reaches this mean is repeated with CONFIRM_EPISODES; those numbers replace it."""
        self.last: Played | None = None
        self._owed = False
        self._periods = 0
        self._ended = time.perf_counter()

    def every(self, steps: int) -> None:
        """Evaluate at each multiple of `steps` from here on."""
        self.every_steps = steps
        self._periods = self.context.timesteps // steps if steps else 0

    def turn(self, iteration: int, expected_s: float | None) -> Played | None:
        """Called after each iteration: evaluate if it is due, and return an evaluation that has ended since the last call.

        expected_s: seconds that a first evaluation would take; None while nothing is known about that.
        """
        if self.every_steps:
            periods, self._periods = self._periods, self.context.timesteps // self.every_steps
            return self.now(iteration) if self._periods > periods else None
        played = self._taken() if self.beside is not None else None
        if not self._is_due(iteration, expected_s):
            return played
        if self.beside is None:
            return self.now(iteration)
        if not self.beside.busy:
            self._ask(iteration)
        return played

    def now(self, iteration: int) -> Played:
        """Evaluate the current weights in this process."""
        weights, timesteps = self.context.learner.submit(Learner.weights), self.context.timesteps
        evaluation = self.evaluator.confirmed(self.context.backend.get(weights), *self._order(iteration))
        self._owed, self._ended = False, time.perf_counter()
        self.last = Played(evaluation, weights, timesteps)
        return self.last

    def newest(self, iteration: int, hurry: Callable[[], bool]) -> Played | None:
        """Evaluate the current weights, wherever that is done, and wait; None once there is a hurry or an evaluator was lost."""
        if self.beside is None:
            return self.now(iteration)
        if self.beside.busy:
            self.beside.close()
        self._ask(iteration)
        return self.finish(math.inf, hurry)

    def finish(self, patience_s: float, hurry: Callable[[], bool]) -> Played | None:
        """The evaluation that is going on beside, waited for `patience_s` seconds at most, and not once there is a hurry."""
        until = time.monotonic() + patience_s
        while self.beside is not None and self.beside.busy and not hurry():
            played = self._taken(min(_POLL_S, max(0.0, until - time.monotonic())))
            if played is not None or time.monotonic() >= until:
                return played
        return None

    def play(self, weights: Any, num_episodes: int, seed: int, hurry: Callable[[], bool]) -> Evaluation | None:
        """Episodes of given weights when training is over; None once there is a hurry, or if the evaluator beside was lost."""
        if self.beside is not None:  # where there is one, an environment that hangs does not hang this process
            if self.beside.busy:
                self.beside.close()
            self.beside.ask(weights, self.context.timesteps, (num_episodes, seed, None))
            played = self.finish(math.inf, hurry)
            return played.evaluation if played is not None else None

        def after_step(env: Any) -> None:
            if hurry():
                raise _InAHurry

        try:
            return self.evaluator.evaluate(weights, num_episodes, seed, record=after_step)
        except _InAHurry:
            return None

    def close(self) -> None:
        """Drop what is going on, end the process beside and the environments. What comes next builds them anew."""
        self.evaluator.close()
        if self.beside is not None:
            self.beside.close()

    @property
    def lost(self) -> int:
        """Evaluators that died or hung so far."""
        return 0 if self.beside is None else self.beside.lost

    def _ask(self, iteration: int) -> None:
        assert self.beside is not None
        self._owed = False
        self.beside.ask(self.context.weights.for_evaluator(), self.context.timesteps, self._order(iteration))

    def _taken(self, wait_s: float = 0.0) -> Played | None:
        assert self.beside is not None
        busy = self.beside.busy
        played = self.beside.take(wait_s)
        self.last = played or self.last
        self._owed |= busy and played is None and not self.beside.busy
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

    def _order(self, iteration: int) -> tuple[int, int, float | None]:
        """What `Evaluator.confirmed` plays: episodes, seed, goal."""
        c = self.config
        return c.evaluation_num_episodes, (c.seed or 0) + iteration, self.goal


class Beside:
    """An evaluator in a process of its own. It plays one evaluation at a time; the process starts with the first one."""

    def __init__(self, config: Config, context: Context, spec: RolloutSpec) -> None:
        self.config, self.context, self.spec = config, context, spec
        self._group: WorkerGroup[object, object] | None = None
        self._job: tuple[Any, Any, int] | None = None
        """(future of the Evaluation, future of its weights, their timesteps)"""
        self.lost = self._overdue = 0
        self._built = False
        self._limit_s = self._deadline = math.inf

    @property
    def busy(self) -> bool:
        return self._job is not None

    def ask(self, weights: Any, timesteps: int, order: tuple[int, int, float | None]) -> None:
        """Have `weights` evaluated; `take` hands the result out."""
        assert self._job is None
        group = self._started()
        played = group.handles[0].submit(Evaluator.confirmed, self.context.backend.put(weights), *order)
        self._job = played, weights, timesteps
        self._limit_s = self._time_for(order)
        patience_s = self._limit_s if self._built else max(START_S, self.config.worker_timeout_s)
        self._deadline = time.monotonic() + patience_s

    def take(self, wait_s: float = 0.0) -> Played | None:
        """The result, if it is there within `wait_s` seconds. An evaluator that died or is overdue is replaced, its task dropped.

        Raises:
            WorkersFailed: more evaluators were lost than max_restarts allows. Anything that the evaluation raised.
        """
        if self._job is None:
            return None
        group, backend = self._started(), self.context.backend
        future, weights, timesteps = self._job
        if not self._built and backend.wait([group.handles[0].ready], timeout=wait_s)[0]:
            self._built = True
            self._deadline = time.monotonic() + self._limit_s  # its start is not the evaluation's time
        error: Exception
        if backend.wait([future], timeout=wait_s)[0]:
            self._job = None
            try:
                return Played(backend.get(future), weights, timesteps)
            except WorkerLost as lost:
                if isinstance(lost, ArgumentLost) and self.context.weights.mend(None):
                    return None
                error = lost
        elif time.monotonic() < self._deadline:
            return None
        else:
            self._overdue += 1
            group.timeout_s = self._limit_s
            error = TimeoutError(f"No result within {self._limit_s:g} s.")
        self._job, self._built = None, False
        self.lost += 1
        group.replace(0, "evaluate()", error)
        return None

    def close(self) -> None:
        """End the process; at once where it is playing."""
        group, busy = self._group, self.busy
        self._group = self._job = None
        if group is not None and busy:
            self.context.backend.kill(group.handles[0])
        elif group is not None:
            group.close()

    def _time_for(self, order: tuple[int, int, float | None]) -> float:
        """Seconds: worker_timeout_s for each episode that a stream plays; twice as much after each evaluator that was overdue."""
        episodes, _, goal = order
        turns = math.ceil(episodes / MAX_STREAMS) + math.ceil(CONFIRM_EPISODES / MAX_STREAMS) * (goal is not None)
        return self.config.worker_timeout_s * turns * 2.0**self._overdue

    def _started(self) -> WorkerGroup[object, object]:
        if self._group is None:
            self._built = False
            self._group = WorkerGroup(
                self.context.backend,
                lambda index, restarts: partial(_niced, self.spec),
                1,
                num_cpus=0,
                timeout_s=self.config.worker_timeout_s,
                max_restarts=self.config.max_restarts,
                describe=self.context.workers.describe,
                kind="Evaluator",
            )
            self._group.folder = self.context.workers.folder
        return self._group


def _niced(spec: RolloutSpec) -> Evaluator:
    """Training goes first where the two share a core."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    return Evaluator(spec)
