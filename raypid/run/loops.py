"""The ways to run an algorithm: generators of metrics. Logging, checkpoints and progress stay outside."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raypid.replay.sources import ReplaySource
from raypid.roles.learner import Learner
from raypid.roles.replay_learner import ReplayLearner
from raypid.roles.rollout import Rollout
from raypid.runtime.handle import Backend, Future, Handle
from raypid.runtime.local import LocalFuture
from raypid.runtime.supervisor import WorkerGroup
from raypid.runtime.weight_sources import ByReference
from raypid.types import Report, Update, Weights, means


@dataclass(slots=True)
class Context:
    """The roles of a run and how far it has come."""

    backend: Backend
    workers: WorkerGroup[Report, Any]
    learner: Handle
    timesteps: int = 0
    """Valid environment steps so far."""
    replay: ReplayPlan | None = None
    """How a replay loop runs; None for the others."""
    plan: AsynchronousPlan | None = None
    """How an asynchronous loop runs; None for the others."""
    weights: Any = None
    """How the newest weights come to workers and evaluator: `ByReference` where nothing else is said."""

    def __post_init__(self) -> None:
        if self.weights is None:
            self.weights = ByReference(self.backend, self.learner)


WINDOW = 20
"""Iterations over which the ratio is reported: what was owed as learning started, and stays on its way, does not count."""

Exploration = Callable[[int, int], Mapping[str, Any]]
"""(timesteps, worker index) -> what the worker explores by."""


@dataclass(slots=True)
class ReplayPlan:
    """What a replay loop holds to, and where it stands."""

    batch_size: int
    updates_per_step: float
    start_steps: int
    """Steps before learning starts, and"""
    start_rows: int
    """rows that the buffer holds by then."""
    updates_per_call: int
    steps_per_iteration: int
    exploration: Exploration
    source: ReplaySource
    slack: float = 0.0
    """Updates that may be owed while workers are still sent out: none in one process, a round of fragments on Ray."""
    owed: float = 0.0
    """Updates that the steps so far call for and that are not done yet."""
    filled: bool = False
    """The buffer holds what learning starts with."""
    counted: deque[list[int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """[steps that called for updates, updates done] of the last iterations."""

    def metrics(self, timesteps: int) -> dict[str, float]:
        """samples_per_insert and a_l_ratio as they were held over the last iterations, and what worker 0 explores by."""
        explored = {k: float(np.mean(v)) for k, v in self.exploration(timesteps, 0).items() if k != "random"}
        steps, updates = (sum(column) for column in zip(*self.counted, strict=True))
        if not steps or not updates:
            return explored
        return {"samples_per_insert": self.batch_size * updates / steps, "a_l_ratio": steps / updates, **explored}


@dataclass(slots=True)
class AsynchronousPlan:
    """What an asynchronous loop holds to, and what it has dropped."""

    update_size: int
    """What one update takes, in the units of `Report.size`."""
    min_parts: int
    """Least number of parts (fragments, gradients, ...) of an update: each learner gets one."""
    in_flight: int
    """Most calls of a worker that are under way or whose data wait for the learner."""
    steps_per_iteration: int | None
    """Environment steps; None: as many calls as there are workers."""
    exploration: Exploration
    max_staleness: int | None = None
    """Most updates that the data's weights may lie back; None: any number."""
    lost: dict[str, int] = field(default_factory=lambda: {"stale": 0})
    """Parts that were dropped."""
    max_parts: int | None = None
    """Most parts there are at once: being collected, waiting, being learnt from. None: as many as `in_flight` lets there be."""
    storages: dict[str, int] = field(default_factory=dict)
    """Of max_parts: free, filling (being collected) and full (waiting or being learnt from), at the end of the last iteration."""

    def is_over(self, rounds: float, steps: int) -> bool:
        """Has an iteration had enough, after so many calls of each worker and steps?"""
        return rounds >= 1 if self.steps_per_iteration is None else steps >= self.steps_per_iteration


@dataclass(slots=True)
class Iteration:
    """What one turn of a loop did."""

    reports: list[Report]
    update: Update
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds: collect, learner (wall time of the driver)."""


def sync(ctx: Context) -> Iterator[Iteration]:
    """Publish weights, collect a fragment from every worker, learn; then again. Lost shares are collected anew."""
    clock = time.perf_counter
    ctx.weights.start(ctx.learner.submit(Learner.weights))
    while True:
        start = clock()
        results = ctx.workers.call_all_parts(Rollout.collect, ctx.weights)
        collected = clock()
        reports: list[Report] = [report for report, _ in results]
        ctx.timesteps += sum(r.num_steps for r in reports)
        update, weights = ctx.learner.submit_parts(Learner.update, ctx.timesteps, *(data for _, data in results))
        done: Update = ctx.backend.get(update)
        ctx.weights.publish(weights)
        yield Iteration(reports, done, {"collect": collected - start, "learner": clock() - collected})


def replay(ctx: Context) -> Iterator[Iteration]:
    """Insert what is ready; learn while updates are owed; else wait. Workers set out with the newest weights."""
    assert ctx.replay is not None
    plan, clock = ctx.replay, time.perf_counter
    weights = published = ctx.learner.submit(Learner.weights)
    ctx.weights.start(weights)
    while True:
        plan.counted.append([0, 0])
        reports: list[Report] = []
        num_updates, waited, learnt = 0, 0.0, 0.0
        until = ctx.timesteps + plan.steps_per_iteration
        while ctx.timesteps < until or plan.owed >= plan.source.chunk + plan.slack:
            before = clock()
            if plan.owed < plan.source.chunk + plan.slack:
                for i in ctx.workers.idle:
                    if weights is not published:
                        ctx.weights.publish(published := weights)
                    ctx.workers.start(i, Rollout.collect, ctx.weights, plan.exploration(ctx.timesteps, i))
            for i, (report, fragment) in ctx.workers.finished(0.0 if plan.owed >= plan.source.chunk else None):
                reports.append(report)
                _insert(ctx, plan, i, report, fragment)
            inserted = clock()
            if plan.owed >= plan.source.chunk:
                num, weights = plan.source.learn(min(int(plan.owed), plan.updates_per_call), ctx.timesteps)
                plan.owed -= num
                plan.counted[-1][1] += num
                num_updates += num
            waited, learnt = waited + inserted - before, learnt + clock() - inserted
        metrics: dict[str, float] = ctx.backend.get(ctx.learner.submit(ReplayLearner.metrics))
        if weights is not published:  # an evaluation may come now
            ctx.weights.publish(published := weights)
        update = Update(metrics | plan.metrics(ctx.timesteps) | plan.source.metrics(), num_updates)
        yield Iteration(reports, update, {"collect": waited, "learner": learnt})


def asynchronous(ctx: Context) -> Iterator[Iteration]:
    """Take what is ready, drop and count what is too stale, learn, send workers out with the newest weights. None waits for
    another; one whose data wait for the learner waits too, so what is held stays bounded."""
    assert ctx.plan is not None
    plan, clock = ctx.plan, time.perf_counter
    first = ctx.backend.get(ctx.learner.submit(Learner.weights))
    ctx.weights.start(ctx.backend.put(first))
    learning = Learning(ctx, first.version)
    try:
        while True:
            start, began, reports = clock(), ctx.timesteps, list[Report]()
            while not learning.done or not plan.is_over(len(reports) / len(ctx.workers), ctx.timesteps - began):
                for i in learning.free():
                    ctx.workers.start(i, Rollout.collect, ctx.weights, plan.exploration(ctx.timesteps, i))
                    learning.sent[i] += 1
                for i, (report, data) in ctx.workers.finished(*learning.patience()):
                    reports.append(report)
                    ctx.timesteps += report.num_steps
                    learning.take(i, report, data)
                learning.advance()
            update, learnt = learning.summary()
            if plan.max_parts is not None:
                plan.storages = {"free": plan.max_parts - sum(learning.held.values()), **learning.held}
            yield Iteration(reports, update, {"collect": clock() - start - learnt, "learner": learnt})
    finally:  # another loop takes over, which knows nothing of them
        plan.lost["stale"] += len(learning.waiting)


class Learning:
    """What an asynchronous loop has for its learner: parts that wait, and the update under way."""

    def __init__(self, ctx: Context, version: int) -> None:
        assert ctx.plan is not None
        self.ctx, self.plan, self.version = ctx, ctx.plan, version
        self.waiting: list[tuple[int, Report, Any]] = []
        """(worker, report, future of the data), in the order of arrival."""
        self.under_way: tuple[Future[Update], Future[Weights]] | None = None
        """The update in another process, and the weights that it makes."""
        self.size = 1
        """Of the part that came last."""
        self.done: list[Update] = []
        """Updates of this iteration."""
        self.sent = [0] * len(ctx.workers)
        """Calls of each worker so far."""
        self._learning: list[tuple[int, Report, Any]] = []
        """What the update under way learns from."""
        self._staleness: list[int] = []
        self._seconds = 0.0

    @property
    def _enough(self) -> bool:
        return self._is_enough(self.waiting)

    def _is_enough(self, parts: Sequence[tuple[int, Report, Any]], coming: int = 0) -> bool:
        """For an update: these parts, and as many as are still coming (each as large as the last)."""
        size = sum(report.size for _, report, _ in parts) + coming * self.size
        return size >= self.plan.update_size and len(parts) + coming >= self.plan.min_parts

    def free(self) -> list[int]:
        """Workers to send out, each as often as it may be: its calls and its waiting data are few, or what waits and what is under
        way is no update. Where there may be too few parts for all, who was sent least."""
        workers, most = self.ctx.workers, self.plan.in_flight
        held = Counter(i for i, _, _ in self.waiting)
        running = [workers.running(i) for i in range(len(workers))]
        found = [i for k in range(most) for i, num in enumerate(running) if held[i] + num + k < most]
        more = [i for i, num in enumerate(running) for _ in range(min(held[i], most - num))]
        while more and not self._is_enough(self.waiting, sum(running) + len(found)):
            found.append(more.pop(0))
        if self.plan.max_parts is None:
            return found
        room = self.plan.max_parts - sum(self.held.values())
        return sorted(found, key=self.sent.__getitem__)[:room]

    @property
    def held(self) -> dict[str, int]:
        """Parts that are being collected (filling), and that wait or are learnt from (full)."""
        filling = sum(self.ctx.workers.running(i) for i in range(len(self.sent)))
        return {"filling": filling, "full": len(self.waiting) + len(self._learning)}

    def take(self, worker: int, report: Report, data: Any) -> None:
        self.waiting.append((worker, report, data))
        self.size = report.size

    def patience(self) -> tuple[float | None, list[Any]]:
        """(seconds to wait for workers, what else ends the waiting)."""
        if self.under_way is not None:
            pending = self._pending()
            return (None if pending else 0.0), pending
        return (0.0 if self._enough else None), []

    def _pending(self) -> list[Any]:
        """What the update under way still waits for."""
        assert self.under_way is not None
        update, wait = self.under_way[0], self.ctx.backend.wait
        parts = update.parts if isinstance(update, LocalFuture) else [update]
        return [part for part in parts if not wait([part], num=1, timeout=0)[0]]

    def advance(self) -> None:
        """Take what the learner has done; give it what waits."""
        if self.under_way is not None and not self._pending():
            self._finish()
        if self.under_way is None and self._enough:
            self._drop_stale()
            if self._enough:
                self._begin()

    def _drop_stale(self) -> None:
        if (oldest := self.plan.max_staleness) is None:
            return
        fresh = [part for part in self.waiting if self.version - part[1].version <= oldest]
        self.plan.lost["stale"] += len(self.waiting) - len(fresh)
        self.waiting = fresh

    def _begin(self) -> None:
        """Learn from what has waited longest, as much as one update takes."""
        num = next(n for n in range(1, len(self.waiting) + 1) if self._is_enough(self.waiting[:n]))
        parts, self.waiting = self.waiting[:num], self.waiting[num:]
        self._learning = parts
        before = time.perf_counter()
        data = (future for _, _, future in parts)
        self.under_way = self.ctx.learner.submit_parts(Learner.update, self.ctx.timesteps, *data)
        if not self._pending():
            self._finish()
        self._seconds += time.perf_counter() - before

    def _finish(self) -> None:
        assert self.under_way is not None
        update, weights = self.under_way
        parts, self.under_way, self._learning = self._learning, None, []
        self.done.append(done := self.ctx.backend.get(update))
        self._staleness += [self.version - report.version for _, report, _ in parts]
        self.version = done.version
        self.ctx.weights.publish(weights)

    def summary(self) -> tuple[Update, float]:
        """The updates of this iteration as one, with means of their metrics; and the driver's seconds in them."""
        metrics = means([update.metrics for update in self.done])
        metrics["staleness"] = float(np.mean(self._staleness))
        update, seconds = Update(metrics, sum(u.num_updates for u in self.done)), self._seconds
        self.done, self._staleness, self._seconds = [], [], 0.0
        return update, seconds


def _insert(ctx: Context, plan: ReplayPlan, worker: int, report: Report, fragment: Any) -> None:
    """Store a fragment, and count what it calls for once learning has started."""
    ctx.timesteps += report.num_steps
    plan.source.insert(worker, fragment)
    if not plan.filled:
        plan.filled = plan.source.holds(plan.start_rows)
    if plan.filled and ctx.timesteps >= plan.start_steps:
        plan.owed += report.num_steps * plan.updates_per_step
        plan.counted[-1][0] += report.num_steps
