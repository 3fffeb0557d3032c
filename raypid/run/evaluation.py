"""Evaluation during training: when it is due, and where it runs: in a worker's process between iterations, or in one of its own."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from raypid.loops.loops import Context
from raypid.phases import phase
from raypid.roles.evaluator import CONFIRM_EPISODES, Evaluation, Evaluator, Order, cut_note
from raypid.roles.learner import Learner
from raypid.roles.rollout import Rollout
from raypid.roles.setup import WorkerSetup
from raypid.runtime.handle import ArgumentLost, Future, places
from raypid.runtime.supervisor import Call, Group, Losses
from raypid.settings.config import Config
from raypid.types import Weights

LEAST_LIMIT_S, LIMIT = 3.0, 10
"""Evaluations whose times raypid chooses may take `LIMIT` times as long as an episode in each stream should, or `LEAST_LIMIT_S` seconds if that is
longer: episodes of a greedy policy that is stuck may be far longer than those of training. More than CONFIRM_EPISODES may take longer."""
_POLL_S = 0.2


class _Interrupted(Exception):
    """Raised inside an evaluation whose result is no longer wanted."""


Interrupted: TypeAlias = Callable[[], bool]


def never() -> bool:
    """Nobody interrupts."""
    return False


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

    def __init__(
        self, config: Config, context: Context, setup: WorkerSetup, *, parallel: bool, node: str | None = None
    ) -> None:
        self.config, self.context = config, context
        local = context.backend.name == "local"
        self.inline: Here | InWorker = Here(context, setup) if local else InWorker(config, context, setup)
        """Where evaluations are played that training waits for."""
        spec = setup.evaluation
        other = replace(spec, env=replace(spec.env, worker_index=spec.env.worker_index + 1))  # both may play
        next_to_it = replace(setup, evaluation=other)
        self.beside = Beside(config, context, next_to_it, node) if parallel else None
        self.plan()
        self.last: Played | None = None
        self.cut = self.overdue = 0
        """Episodes of all evaluations so far that did not end and were cut; those of them that took too long."""
        self.ended: Callable[[Played], None] = lambda played: None
        """Called with each evaluation of training that has ended."""
        self.env = spec.env
        self._owed = False
        self._expected_s = 0.0
        self._ended = time.perf_counter()

    def plan(self, *, in_run: bool = False, goal: float | None = None, every_steps: int = 0) -> None:
        """Say when training evaluates from here on, besides the settings.

        Args:
            in_run: by time, if the settings say nothing: beside training whenever the evaluator is free, inline in at most a tenth of
                the time.
            goal: an evaluation whose mean reaches this is repeated with CONFIRM_EPISODES episodes, which replace its numbers.
            every_steps: environment steps between evaluations, all of them inline; 0: as the settings say.
        """
        self.goal, self.every_steps = goal, every_steps
        self.automatic = in_run and self.config.evaluation_interval is None
        self._periods = self.context.timesteps // every_steps if every_steps else 0

    def forget(self) -> None:
        """Forget the newest evaluation, since training goes on from other weights."""
        self.last = None

    def turn(self, iteration: int, expected_s: float | None) -> Played | None:
        """Evaluate if it is due, and return an evaluation that has ended since the last call. Called after each iteration.

        expected_s: estimated seconds of a first evaluation; None if there is no estimate yet.
        """
        self._expected_s = expected_s or self._expected_s
        if self.every_steps:
            periods, self._periods = self._periods, self.context.timesteps // self.every_steps
            return self._now(iteration) if self._periods > periods or self._owed else None
        played = None
        if self.beside is not None:
            was_busy, played = self.beside.busy, self._noted(self.beside.result())
            self._owed |= was_busy and played is None and not self.beside.busy
        if not self._is_due(iteration, expected_s):
            return played
        if self.beside is None:
            return self._now(iteration)
        if not self.beside.busy:
            self._start(self.beside, iteration)
        return played

    def _now(self, iteration: int, interrupted: Interrupted = never) -> Played | None:
        """Evaluate the current weights while training waits. If the worker that plays is lost, the evaluation is owed."""
        weights, timesteps = self.context.learner.submit(Learner.weights), self.context.timesteps
        with phase("evaluation", "evaluating"):
            played = self.inline.play(weights, timesteps, self._order(iteration), interrupted)
        self._owed, self._ended = played is None, time.perf_counter()
        return self._noted(played)

    def newest(self, iteration: int, interrupted: Interrupted) -> Played | None:
        """Evaluate the current weights and wait for the result; None if interrupted or if the evaluator was lost."""
        if self.beside is None:
            return self._now(iteration, interrupted)
        self._start(self.beside, iteration)
        return self.finish(math.inf, interrupted)

    def finish(self, patience_s: float, interrupted: Interrupted) -> Played | None:
        """Wait up to `patience_s` seconds for the evaluation that runs beside training; None if there is no result by then."""
        if self.beside is None:
            return None
        with phase("evaluation", "waiting for the evaluation"):
            return self._noted(self.beside.wait(patience_s, interrupted))

    def play(self, weights: Weights, num_episodes: int, seed: int, interrupted: Interrupted) -> Evaluation | None:
        """Play episodes with given weights after training; None if interrupted or if the evaluator was lost."""
        order = Order(num_episodes, seed, limit_s=self._limit_s(num_episodes))
        place = self.beside or self.inline
        with phase("final episodes", f"playing {num_episodes} episodes with the best policy"):
            played = place.play(self.context.backend.put(weights), self.context.timesteps, order, interrupted)
        return self._counted(played.evaluation) if played is not None else None

    def _noted(self, played: Played | None) -> Played | None:
        if played is not None:
            self.last = played
            self._counted(played.evaluation)
            self.ended(played)
        return played

    def _counted(self, evaluation: Evaluation) -> Evaluation:
        self.cut += evaluation.cut
        self.overdue += evaluation.overdue
        self.context.count_crashes(evaluation.crashes, "an evaluation")
        return evaluation

    def ask(self, order: Order) -> Evaluation:
        """Evaluate the current weights at once, and again if the worker that plays is lost.

        Raises:
            RolesFailed: more workers were lost than max_restarts allows.
            Halted: there is none, and the run is to end.
        """
        while True:
            weights = self.context.learner.submit(Learner.weights)
            self.context.workers.wait_for_one()
            played = self.inline.play(weights, self.context.timesteps, order, never)
            if played is not None:
                return self._counted(played.evaluation)

    def close(self) -> None:
        """Drop the running evaluation and end the evaluator's process and environments. The next evaluation builds them again."""
        self.inline.close()
        if self.beside is not None:
            self.beside.close()

    @property
    def lost(self) -> int:
        """Number of evaluators in a process of their own that died or hung so far."""
        return 0 if self.beside is None else sum(self.beside.losses.counts.values())

    def _start(self, beside: Beside, iteration: int) -> None:
        self._owed = False
        beside.start(self.context.weights.for_evaluator(), self.context.timesteps, self._order(iteration))

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
        num = self.config.evaluation_num_episodes
        return Order(num, (self.config.seed or 0) + iteration, self.goal, limit_s=self._limit_s(num))

    def _limit_s(self, num_episodes: int) -> float:
        """Seconds that so many episodes may take."""
        if not self.automatic or self.every_steps:
            return math.inf
        limit_s = max(LEAST_LIMIT_S, LIMIT * self._expected_s) * max(1.0, num_episodes / CONFIRM_EPISODES)
        last = None if self.last is None else self.last.evaluation
        if last is not None and not last.cut:
            # none was stuck, so it says what episodes take by now
            limit_s = max(limit_s, 2 * num_episodes * last.seconds / len(last.rewards))
        return limit_s

    def cut_notes(self) -> dict[str, str]:
        """What to say of evaluation episodes that did not end and have been cut, by the cause."""
        notes = {}
        if self.cut > self.overdue:
            notes["steps"] = cut_note(self.env, self.cut - self.overdue)
        if self.overdue:
            why = f"took more than {LIMIT} times as long as those of training"
            notes["seconds"] = cut_note(self.env, self.overdue, why, ", or evaluation_interval, which lets them go on")
        return notes


class Here:
    """Evaluates in this process."""

    def __init__(self, context: Context, setup: WorkerSetup) -> None:
        self.context, self.evaluator = context, Evaluator(setup)

    def play(self, weights: Future[Weights], timesteps: int, order: Order, interrupted: Interrupted) -> Played | None:
        """Evaluate and wait for the result; None if interrupted."""

        def after_step(env: object) -> None:
            if interrupted():
                raise _Interrupted

        try:
            evaluation = self.evaluator.play(self.context.backend.get(weights), order, after_step)
        except _Interrupted:
            return None
        return Played(evaluation, weights, timesteps)

    def close(self) -> None:
        self.evaluator.close()


class Remote(ABC):
    """Evaluates in another process, one evaluation at a time."""

    _given: Future[Weights]
    """The weights of the newest evaluation, as they were given."""
    _weights: Future[Weights]
    """The same, where the other process finds them."""
    _timesteps = 0
    """Environment steps on which they were trained."""
    _call: Call[Any] | None = None
    """The evaluation under way."""

    def __init__(self, config: Config, context: Context, setup: WorkerSetup) -> None:
        self.config, self.context, self.setup = config, context, setup
        self._timeouts = 0
        """Evaluations so far that did not end in time."""

    @abstractmethod
    def _ask(self, order: Order, patience_s: float) -> Call[Any] | None:
        """Ask the other process, if it is there, to evaluate the weights."""

    @abstractmethod
    def close(self) -> None:
        """Drop what is being played. The next evaluation builds anew what was ended."""

    @property
    def busy(self) -> bool:
        """Whether an evaluation is under way."""
        return self._call is not None

    def start(self, weights: Future[Weights], timesteps: int, order: Order) -> None:
        """Start to evaluate `weights`; `result` returns the outcome. An evaluation that is still running is dropped."""
        if self.busy:
            self.close()
        self._given, self._weights, self._timesteps = weights, self.context.backend.put(weights), timesteps
        self._call = self._ask(order, self._time_for(order))

    def result(self, wait_s: float = 0.0) -> Played | None:
        """The evaluation, if it ends within `wait_s` seconds. A process that died or is overdue is replaced and its job dropped.

        Raises:
            RolesFailed: more processes were lost than max_restarts allows. Also anything that the evaluation itself raised.
        """
        if (call := self._call) is None:
            return None
        call.group.look()
        left_s = max(0.0, call.deadline - time.monotonic())
        ready, _ = self.context.backend.wait([call.passed()], timeout=min(wait_s, left_s))
        if not ready and left_s > wait_s:
            return None
        self._call = None
        try:
            if call.ended(call.deadline):
                return Played(call.result(), self._weights, self._timesteps)
            self._timeouts += not ready
        except ArgumentLost:
            self._mend_weights()
        return None

    def play(self, weights: Future[Weights], timesteps: int, order: Order, interrupted: Interrupted) -> Played | None:
        """Evaluate and wait for the result; None if interrupted, or if the process that played was lost."""
        self.start(weights, timesteps, order)
        played = self.wait(math.inf, interrupted)
        if self.busy:
            self.close()
        return played

    def wait(self, patience_s: float, interrupted: Interrupted) -> Played | None:
        """Wait up to `patience_s` seconds for the evaluation under way; None if interrupted or if there is no result by then."""
        until = time.monotonic() + patience_s
        while self.busy and not interrupted():
            played = self.result(min(_POLL_S, max(0.0, until - time.monotonic())))
            if played is not None or time.monotonic() >= until:
                return played
        return None

    def _mend_weights(self) -> None:
        """The weights that were to play are lost with their learner, which is built anew when it is asked."""
        self.context.backend.get(self._given)

    def _time_for(self, order: Order) -> float:
        """Seconds allowed: worker_timeout_s for each episode that a stream plays, doubled with each evaluation that was overdue."""
        turns = math.ceil(order.num_episodes / self.setup.evaluation.env.num_envs)
        if order.goal is not None:
            turns += math.ceil(CONFIRM_EPISODES / self.setup.evaluation.env.num_envs)
        return self.config.worker_timeout_s * turns * 2.0**self._timeouts


class InWorker(Remote):
    """Evaluates in the process of the first rollout worker that is there, after what that has under way.

    So an environment that dies or hangs does not take the driver with it, and takes no CPU of its own."""

    def _ask(self, order: Order, patience_s: float) -> Call[Any] | None:
        workers = self.context.workers
        if not workers.present:
            return None
        return workers.ask(workers.present[0], Rollout.evaluate, self._weights, order, patience_s=patience_s)

    def close(self) -> None:
        call, self._call = self._call, None
        if call is not None and call.is_current:  # whoever calls the worker next would wait for it
            self.context.workers.renew(call.indices[0])


class Beside(Remote):
    """An evaluator in a process of its own, which plays one evaluation at a time. The first evaluation starts the process."""

    def __init__(self, config: Config, context: Context, setup: WorkerSetup, node: str | None = None) -> None:
        super().__init__(config, context, setup)
        self.places = places("evaluator", node=node)
        """Where its process is to be, as long as that node is alive."""
        self._group: Group[Any, Any] | None = None
        self.losses = Losses(config.max_restarts)
        """Evaluators that died or hung so far, in all groups."""

    def _ask(self, order: Order, patience_s: float) -> Call[Any] | None:
        if self._group is None:
            self.losses.errors, self.losses.tell = self.context.losses.errors, self.context.losses.tell
            self._group = Group(
                self.context.backend,
                lambda index, restarts: partial(Evaluator, self.setup),
                self.places,
                timeout_s=self.config.worker_timeout_s,
                losses=self.losses,
                describe=self.context.workers.describe,
            )
        return self._group.ask(0, Evaluator.play, self._weights, order, patience_s=patience_s)

    def _mend_weights(self) -> None:
        if not self.context.weights.mend(None):
            super()._mend_weights()

    def close(self) -> None:
        """End the process, without waiting for a running evaluation."""
        group, busy = self._group, self.busy
        self._group = self._call = None
        if group is not None:
            group.close(interrupt=busy)
