"""The training loops: generators that yield once per iteration. Logging, checkpoints and evaluation stay outside."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from raypid.algorithms.off_policy import OffPolicyConfig
from raypid.errors import Halted
from raypid.loops.sources import ReplaySource
from raypid.loops.weights import ByReference
from raypid.roles.learner import Learner
from raypid.roles.pace import Pace
from raypid.roles.rollout import Rollout
from raypid.runtime.handle import ArgumentLost, Backend, Future, Handle
from raypid.runtime.local import LocalFuture
from raypid.runtime.supervisor import Call, Group, Losses
from raypid.types import Array, Collected, Metrics, Report, Trajectory, Weights, means

Workers: TypeAlias = Group[Report, Any]
ExplorationSchedule: TypeAlias = Callable[[int, int], Mapping[str, float | Array]]
"""(timesteps, worker index) -> the worker's exploration settings, such as its epsilon."""
clock = time.perf_counter
WINDOW = 20
"""Iterations over which the ratio of samples to inserts is reported, so that the backlog from before learning started drops out."""
MAX_CALLS = 1000
"""Calls of each worker that one iteration takes at most, so that it ends though an agent makes gradient after gradient of one fragment."""
HALT_CHECK_S = 1.0
"""Seconds between looks whether to break an iteration off."""


@dataclass(slots=True)
class Context:
    """The roles of a run, and how far it has come."""

    backend: Backend
    workers: Workers
    learner: Handle
    weights: ByReference
    """Hands the newest weights to workers and evaluator."""
    replay: ReplayPlan | None = None
    """Settings and state of the replay loop; None for the other loops."""
    plan: AsynchronousPlan | None = None
    """Settings and state of the asynchronous loop; None for the other loops."""
    timesteps: int = 0
    """Valid environment steps so far."""
    fewest: int = 1
    """Fewest fragments of an update of the loop `sync`: one for each learner."""
    halted: Callable[[], bool] | None = None
    """Whether to break an iteration off; asked by the asynchronous loop, where calls of workers may take long."""
    num_crashes: int = 0
    """Environments that raised and were rebuilt, evaluations included."""

    @property
    def losses(self) -> Losses:
        """What was lost and rebuilt."""
        return self.workers.losses

    def update(self, fragments: Sequence[Future[Collected]]) -> tuple[Metrics, Future[Weights]] | None:
        """Let the learner learn from fragments, without those that are lost; None if there is not one left for each learner."""
        fragments = self.workers.reachable(fragments)
        while len(fragments) >= self.fewest:
            update, weights = self.learner.submit_parts(Learner.update, self.timesteps, *fragments)
            try:
                return self.backend.get(update), weights
            except ArgumentLost as error:
                fragments = self.workers.intact(fragments, error)
        return None

    def count_crashes(self, tracebacks: Sequence[str], where: str) -> None:
        """Count environments that raised and were rebuilt, and write their tracebacks to the run's folder."""
        self.num_crashes += len(tracebacks)
        for text in tracebacks:
            self.losses.errors.add(f"An environment of {where} raised and was rebuilt:\n{text}\n")


@dataclass(slots=True)
class Iteration:
    """What one turn of a loop did."""

    reports: list[Report]
    update: Metrics
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds of wall time in the driver: collect, learner."""


def sync(ctx: Context) -> Iterator[Iteration]:
    """Publish the weights, collect a fragment from every worker, update, repeat."""
    ctx.weights.start(ctx.learner.submit(Learner.weights))
    reports: list[Report] = []
    while True:
        start = clock()
        collected = ctx.workers.call_all_parts(Rollout.collect, ctx.weights, ctx.timesteps, {})
        collect_s = clock() - start
        reports += [report for report, _ in collected]
        ctx.timesteps += sum(report.num_steps for report, _ in collected)
        if (learnt := ctx.update([fragment for _, fragment in collected])) is None:
            continue
        update, weights = learnt
        ctx.weights.publish(weights)
        yield Iteration(reports, update, {"collect": collect_s, "learner": clock() - start - collect_s})
        reports = []


def replay(ctx: Context) -> Iterator[Iteration]:
    """Insert the fragments that are ready, update while updates are owed, otherwise wait. Workers start with the newest weights."""
    assert ctx.replay is not None
    plan = ctx.replay
    weights = published = ctx.learner.submit(Learner.weights)
    ctx.weights.start(weights)
    while True:
        until = plan.begin() + plan.config.steps_per_iteration
        while ctx.timesteps < until or not plan.pace.may_collect():
            for i in ctx.workers.idle if plan.pace.may_collect() else ():
                if weights is not published:
                    ctx.weights.publish(published := weights)
                ctx.workers.start(i, Rollout.collect, ctx.weights, ctx.timesteps, plan.explore(i))
            for i, (report, fragment) in ctx.workers.finished(*plan.patience(ctx)):
                plan.insert(ctx, i, report, fragment)
            if due := plan.due():
                start = clock()
                num, weights = plan.source.learn(due, ctx.timesteps)
                plan.count_updates(num, clock() - start)
        if weights is not published:  # an evaluation may follow
            ctx.weights.publish(published := weights)
        yield plan.iteration(ctx.backend.get(ctx.learner.submit(Learner.metrics)))


def asynchronous(ctx: Context) -> Iterator[Iteration]:
    """Update with the parts that are ready, except stale ones, and send workers out again with the newest weights.

    Workers do not wait for each other. A worker whose parts wait for the learner is held back, so the number of parts stays bounded.

    Raises:
        Halted: the context says so.
    """
    assert ctx.plan is not None
    first = ctx.backend.get(ctx.learner.submit(Learner.weights))
    ctx.weights.start(ctx.backend.put(first))
    queue = UpdateQueue(ctx, ctx.plan, first.version)
    try:
        while True:
            queue.begin()
            while not queue.is_over():
                for i in queue.free_workers():
                    explore = ctx.plan.exploration(ctx.timesteps, i)
                    ctx.workers.start(i, Rollout.collect, ctx.weights, ctx.timesteps, explore)
                    queue.num_calls[i] += 1
                for i, (report, data) in ctx.workers.finished(*queue.patience()):
                    queue.add(Part(i, report, data))
                queue.publish_finished()
                if parts := queue.next_parts():
                    queue.learn(parts)
            yield queue.iteration()
    finally:  # a new loop does not know of these parts
        ctx.plan.lost["stale"] += len(queue.waiting)


@dataclass(slots=True)
class ReplayPlan:
    """Settings and state of the replay loop."""

    config: OffPolicyConfig
    exploration: ExplorationSchedule
    source: ReplaySource
    pace: Pace
    in_order: bool = False
    """Whether all workers collect, and then the learner makes all updates that are owed: the same order on Ray as in one process."""
    filled: bool = False
    """Whether the buffer holds the rows that learning starts with."""
    rows_needed: int | None = None
    """Rows at which it is filled; None: those of the settings."""
    counted: deque[list[int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """[steps that called for updates, updates made] of the last iterations."""
    reports: list[Report] = field(default_factory=list)
    """Of this iteration."""
    began: float = 0.0
    """When this iteration began, by `clock`."""
    learner_s: float = 0.0
    """Seconds of this iteration in which the learner worked."""

    def begin(self) -> int:
        """Begin an iteration; returns the environment steps so far."""
        self.counted.append([0, 0])
        self.reports, self.began, self.learner_s = [], clock(), 0.0
        return self.pace.timesteps

    def patience(self, ctx: Context) -> tuple[float | None, Sequence[Future[object]], int]:
        """How long to wait for workers, for what else, and for how many: the arguments of `Group.finished`."""
        return 0.0 if self.due() else None, (), len(ctx.workers) if self.in_order else 1

    def insert(self, ctx: Context, worker: int, report: Report, fragment: Future[Trajectory]) -> None:
        """Store a fragment, unless it is lost. Once learning has started, add the updates that it calls for to those owed."""
        if not ctx.workers.reachable([fragment]):
            return
        self.reports.append(report)
        ctx.learner.submit(Learner.observe, report)
        self.source.insert(worker, fragment)
        if not self.filled:
            self.filled = self.source.holds(self.rows_needed or self.config.rows_to_start())
        ctx.timesteps = self.pace.count(report, self.filled)
        if self.filled and not self.pace.warms_up():
            self.counted[-1][0] += report.num_steps

    def explore(self, worker: int) -> Mapping[str, float | Array]:
        """The exploration settings of a worker."""
        return {"random": True} if self.pace.warms_up() else self.exploration(self.pace.timesteps, worker)

    def due(self) -> int:
        """The number of updates to make next. Once rows were lost, those owed are dropped and the buffer fills up first."""
        if self.source.emptied:
            self.source.emptied = self.filled = False
            self.pace.owed, self.rows_needed = 0.0, self.source.rows_to_go_on
        return self.pace.due()

    def count_updates(self, num: int, seconds: float) -> None:
        """Count updates that were made, and how long they took."""
        self.pace.owed -= num
        self.counted[-1][1] += num
        self.learner_s += seconds

    def iteration(self, metrics: Mapping[str, float]) -> Iteration:
        """What this iteration did, with the learner's metrics, the ratio of samples to steps over the last iterations, and the exploration
        settings of worker 0."""
        collect_s = clock() - self.began - self.learner_s
        more = {k: float(np.mean(v)) for k, v in self.explore(0).items() if k != "random"}
        steps, updates = (sum(counts) for counts in zip(*self.counted, strict=True))
        if steps and updates:
            more |= {"samples_per_insert": self.config.batch_size * updates / steps, "a_l_ratio": steps / updates}
        update = Metrics({**metrics, **more, **self.source.metrics()}, self.counted[-1][1])
        return Iteration(self.reports, update, {"collect": collect_s, "learner": self.learner_s})


@dataclass(slots=True)
class AsynchronousPlan:
    """Settings and state of the asynchronous loop. A part is what one call of a worker returns: a fragment, a gradient, fitness."""

    update_size: int
    """Size of one update, in the units of `Report.size`."""
    min_parts: int
    """Fewest parts of an update: one for each learner."""
    in_flight: int
    """Most calls of one worker that are running or whose parts wait for the learner."""
    steps_per_iteration: int | None
    """Environment steps of an iteration; None: it ends after one call per worker."""
    exploration: ExplorationSchedule
    max_staleness: int | None = None
    """Parts made with weights more than this many updates old are dropped; None keeps all."""
    lost: dict[str, int] = field(default_factory=lambda: {"stale": 0})
    """Number of parts dropped."""
    max_parts: int | None = None
    """Most parts at a time that are being collected, waiting or being learned from. None: bounded by `in_flight` alone."""
    max_steps: int | None = None
    """Environment steps after which an iteration ends in any case; None: no such limit."""
    storages: dict[str, int] = field(default_factory=dict)
    """Where max_parts is given, at the end of the last iteration: how many are free, filling (being collected) and full (waiting or
    being learned from)."""


@dataclass(slots=True)
class Part:
    """What one call of a worker returned."""

    worker: int
    report: Report
    data: Future[object]
    """Future of a fragment, a gradient or fitness."""


class UpdateQueue:
    """The parts that wait for the learner, the update that is running, and what this iteration has done so far."""

    def __init__(self, ctx: Context, plan: AsynchronousPlan, version: int) -> None:
        self.ctx, self.plan, self.version = ctx, plan, version
        self.waiting: list[Part] = []
        """In the order of arrival."""
        self.running: tuple[Future[Metrics], Future[Weights]] | None = None
        self.num_calls = [0] * len(ctx.workers)
        """Calls of each worker so far."""
        self._size = 1
        """`Report.size` of the newest part."""
        self._learning: list[Part] = []
        """Parts of the running update."""

    def begin(self) -> None:
        """Begin an iteration."""
        self._began, self._steps_before, self._learner_s = clock(), self.ctx.timesteps, 0.0
        self._reports: list[Report] = []
        self._num_collected = 0
        """Calls that collected: an agent may make several gradients of one fragment."""
        self._done: list[Metrics] = []
        """Updates that ended in this iteration."""
        self._staleness: list[int] = []

    def is_over(self) -> bool:
        """Whether the iteration has an update, and as many calls and environment steps as the plan says."""
        plan, num, steps = self.plan, len(self.num_calls), self.ctx.timesteps - self._steps_before
        if not self._done:
            return False
        if len(self._reports) >= MAX_CALLS * num or (plan.max_steps is not None and steps >= plan.max_steps):
            return True
        return self._num_collected >= num if plan.steps_per_iteration is None else steps >= plan.steps_per_iteration

    def iteration(self) -> Iteration:
        """What the iteration did: its updates as one, with the means of their metrics."""
        metrics = means(self._done)
        metrics["staleness"] = float(np.mean(self._staleness))
        update = Metrics(metrics, sum(update.num_updates for update in self._done))
        if self.plan.max_parts is not None:
            self.plan.storages = {"free": self.plan.max_parts - sum(self.held.values()), **self.held}
        collect_s = clock() - self._began - self._learner_s
        return Iteration(self._reports, update, {"collect": collect_s, "learner": self._learner_s})

    def _is_enough(self, parts: Sequence[Part], coming: int = 0) -> bool:
        """Whether `parts` and `coming` more, each as large as the newest, make an update."""
        size = sum(part.report.size for part in parts) + coming * self._size
        return size >= self.plan.update_size and len(parts) + coming >= self.plan.min_parts

    def free_workers(self) -> list[int]:
        """Workers to send out, each as often as it appears.

        A worker is free while its calls and waiting parts are fewer than `in_flight`, or while all that is waiting and running does
        not make an update. If max_parts leaves room for only some of them, those with the fewest calls come first.
        """
        workers, most = self.ctx.workers, self.plan.in_flight
        held = Counter(part.worker for part in self.waiting)
        running = [workers.running(i) for i in range(len(workers))]
        there = workers.present
        found = [i for k in range(most) for i in there if held[i] + running[i] + k < most]
        more = [i for i in there for _ in range(min(held[i], most - running[i]))]
        while more and not self._is_enough(self.waiting, sum(running) + len(found)):
            found.append(more.pop(0))
        if self.plan.max_parts is None:
            return found
        room = self.plan.max_parts - sum(self.held.values())
        return sorted(found, key=self.num_calls.__getitem__)[:room]

    @property
    def held(self) -> dict[str, int]:
        """Number of parts that are being collected (filling), and that wait or are being learned from (full)."""
        filling = sum(self.ctx.workers.running(i) for i in range(len(self.num_calls)))
        return {"filling": filling, "full": len(self.waiting) + len(self._learning)}

    def add(self, part: Part) -> None:
        """Take a part that a worker has made."""
        self.waiting.append(part)
        self._size = part.report.size
        self._reports.append(part.report)
        self._num_collected += part.report.num_steps > 0
        self.ctx.timesteps += part.report.num_steps

    def patience(self) -> tuple[float | None, list[Future[object]]]:
        """(seconds to wait for workers, futures that also end the waiting): the arguments of `Group.finished`.

        Raises:
            Halted: the iteration is to be broken off.
        """
        pending: list[Future[object]] = []
        wait_s: float | None = 0.0 if self.running is None and self._is_enough(self.waiting) else None
        if self.running is not None:
            update = self.running[0]
            pending = self._pending(update)
            wait_s = max(0.0, update.deadline - time.monotonic()) if isinstance(update, Call) and pending else 0.0
            wait_s = None if pending and not isinstance(update, Call) else wait_s
        if self.ctx.halted is not None:
            if self.ctx.halted():
                raise Halted
            wait_s = HALT_CHECK_S if wait_s is None else wait_s
        return wait_s, pending

    def _pending(self, update: Future[object]) -> list[Future[object]]:
        """The futures that the running update still waits for."""
        parts = update.parts if isinstance(update, LocalFuture) else [update]
        return [part for part in parts if not self.ctx.backend.wait([part], num=1, timeout=0)[0]]

    def next_parts(self) -> list[Part]:
        """The oldest parts, as many as one update takes; none if there are too few or an update is running. Drops stale parts."""
        if self.running is not None or not self._is_enough(self.waiting):
            return []
        if (oldest := self.plan.max_staleness) is not None:
            # a version above ours is of weights that were lost with a learner
            fresh = [part for part in self.waiting if 0 <= self.version - part.report.version <= oldest]
            self.plan.lost["stale"] += len(self.waiting) - len(fresh)
            self.waiting = fresh
        if self.ctx.workers.absent:
            there = self.ctx.workers.reachable([part.data for part in self.waiting])
            self.waiting = [part for part in self.waiting if part.data in there]
        if not self._is_enough(self.waiting):
            return []
        num = next(n for n in range(1, len(self.waiting) + 1) if self._is_enough(self.waiting[:n]))
        self._learning, self.waiting = self.waiting[:num], self.waiting[num:]
        return self._learning

    def learn(self, parts: Sequence[Part]) -> None:
        """Let the learner begin an update."""
        start = clock()
        self.running = self.ctx.learner.submit_parts(Learner.update, self.ctx.timesteps, *(part.data for part in parts))
        self.publish_finished()  # in one process it is done already
        self._learner_s += clock() - start

    def publish_finished(self) -> None:
        """Count the running update and publish its weights, if it is done."""
        if self.running is None or self._pending(self.running[0]):
            return
        update, weights = self.running
        parts, self.running, self._learning = self._learning, None, []
        try:
            self._done.append(done := self.ctx.backend.get(update))
        except ArgumentLost as error:  # it did not begin; what is there of its parts is learnt from with others
            kept = self.ctx.workers.intact([part.data for part in parts], error)
            self.waiting = [*(part for part in parts if part.data in kept), *self.waiting]
            return
        self._staleness += [self.version - part.report.version for part in parts]
        self.version = done.version
        self.ctx.weights.publish(weights)
