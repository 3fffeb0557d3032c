"""The training loops: generators that yield once per iteration. Logging, checkpoints and evaluation stay outside."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np

from raypid.algorithms.off_policy import OffPolicyConfig
from raypid.errors import Halted
from raypid.loops.sources import ReplaySource
from raypid.ops.normalizer import inverse_deviation, merge_moments, zero_moments
from raypid.roles.learner import Learner
from raypid.roles.replay_learner import ReplayLearner
from raypid.roles.rollout import Rollout
from raypid.runtime.handle import ArgumentLost, Backend, Future, Handle
from raypid.runtime.learner_group import Together
from raypid.runtime.local import LocalFuture
from raypid.runtime.supervisor import Losses, WorkerGroup
from raypid.runtime.weight_sources import ByReference
from raypid.types import Array, Moments, Report, Trajectory, Update, Weights, means

Workers: TypeAlias = WorkerGroup[Report, Trajectory]


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

    def count_crashes(self, tracebacks: Sequence[str], where: str) -> None:
        """Count environments that raised and were rebuilt, and write their tracebacks to the run's folder."""
        self.num_crashes += len(tracebacks)
        for text in tracebacks:
            self.losses.errors.add(f"An environment of {where} raised and was rebuilt:\n{text}\n")


WINDOW = 20
"""Iterations over which the ratio of samples to inserts is reported, so that the backlog from before learning started drops out."""

ExplorationSchedule: TypeAlias = Callable[[int, int], Mapping[str, float | Array]]
"""(timesteps, worker index) -> the worker's exploration settings, such as its epsilon."""


@dataclass(slots=True)
class ReplayPlan:
    """Settings and state of the replay loop."""

    config: OffPolicyConfig
    exploration: ExplorationSchedule
    source: ReplaySource
    slack: float = 0.0
    """Updates that may be owed while workers are still sent out: none in one process and in order, else one round of fragments."""
    in_order: bool = False
    """Whether all workers collect, and then the learner makes all updates that are owed: the same order on Ray as in one process."""
    owed: float = 0.0
    """Updates that the steps so far call for and that have not been made yet."""
    filled: bool = False
    """Whether the buffer holds the rows that learning starts with."""
    rows_needed: int | None = None
    """Rows at which it is filled; None: those of the settings."""
    returns: Moments = field(default_factory=partial(zero_moments, 1))
    """Of the discounted returns of all workers so far, where rewards are divided by their deviation."""
    episodes: int = 0
    """Episodes that have ended so far."""
    counted: deque[list[int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """[steps that called for updates, updates made] of the last iterations."""

    def insert(self, ctx: Context, worker: int, report: Report, fragment: Future[Trajectory]) -> None:
        """Store a fragment. Once learning has started, add the updates that it calls for to those owed."""
        ctx.timesteps += report.num_steps
        if report.returns is not None:
            self.returns = merge_moments(self.returns, report.returns)
        self.episodes += len(report.episode_rewards)
        self.source.insert(worker, fragment)
        if not self.filled:
            self.filled = self.source.holds(self.rows_needed or self.config.rows_to_start())
        if self.filled and not self.warms_up(ctx.timesteps):
            self.owed += report.num_steps * self.config.updates_per_step
            self.counted[-1][0] += report.num_steps

    def warms_up(self, timesteps: int) -> bool:
        """Whether workers still act at random, and nothing is learnt."""
        return timesteps < self.config.warm_up_steps(self.episodes)

    def explore(self, timesteps: int, worker: int) -> Mapping[str, float | Array]:
        """The exploration settings of a worker."""
        return {"random": True} if self.warms_up(timesteps) else self.exploration(timesteps, worker)

    @property
    def reward_factor(self) -> float:
        """What the rewards of replay are multiplied by."""
        return inverse_deviation(self.returns)

    def is_due(self) -> bool:
        """Whether updates are owed for which there are rows. Once rows were lost, those owed are dropped and the buffer fills up first."""
        if self.source.emptied:
            self.source.emptied = self.filled = False
            self.owed, self.rows_needed = 0.0, self.source.rows_to_go_on
        return self.owed >= self.source.chunk

    def metrics(self, timesteps: int) -> dict[str, float]:
        """samples_per_insert and a_l_ratio over the last iterations, and the exploration settings of worker 0."""
        explored = {k: float(np.mean(v)) for k, v in self.explore(timesteps, 0).items() if k != "random"}
        if self.config.normalize_rewards:
            explored["reward_factor"] = self.reward_factor
        steps, updates = (sum(counts) for counts in zip(*self.counted, strict=True))
        if not steps or not updates:
            return explored
        samples = self.config.batch_size * updates
        return {"samples_per_insert": samples / steps, "a_l_ratio": steps / updates, **explored}


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

    def is_over(self, rounds: float, steps: int) -> bool:
        """Whether an iteration ends after this many calls per worker and environment steps."""
        if self.max_steps is not None and steps >= self.max_steps:
            return True
        return rounds >= 1 if self.steps_per_iteration is None else steps >= self.steps_per_iteration


@dataclass(slots=True)
class Iteration:
    """What one turn of a loop did."""

    reports: list[Report]
    update: Update
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds of wall time in the driver: collect, learner."""


def sync(ctx: Context) -> Iterator[Iteration]:
    """Publish the weights, collect a fragment from every worker, update, repeat. A lost worker's fragment is collected again; those
    that were lost with a node after they were collected are left out.

    Raises:
        Halted, WorkersFailed: there is no worker (`WorkerGroup.wait_for_one`).
    """
    clock = time.perf_counter
    ctx.weights.start(ctx.learner.submit(Learner.weights))
    reports: list[Report] = []
    kept: list[Future[Trajectory]] = []
    while True:
        start = clock()
        results = ctx.workers.call_all_parts(Rollout.collect, ctx.weights)
        collected = clock()
        reports += [report for report, _ in results]
        ctx.timesteps += sum(report.num_steps for report, _ in results)
        fragments = [*kept, *ctx.workers.reachable([fragment for _, fragment in results])]
        while len(fragments) >= ctx.fewest:
            update, weights = ctx.learner.submit_parts(Learner.update, *fragments, timesteps=ctx.timesteps)
            try:
                done = ctx.backend.get(update)
                break
            except ArgumentLost:
                all_of_them, fragments = fragments, ctx.workers.intact(fragments)
                if len(fragments) == len(all_of_them):
                    raise
        else:  # too little is left to learn from: collect more with the same weights
            kept = fragments
            continue
        ctx.weights.publish(weights)
        yield Iteration(reports, done, {"collect": collected - start, "learner": clock() - collected})
        reports, kept = [], []


def replay(ctx: Context) -> Iterator[Iteration]:
    """Insert the fragments that are ready, update while updates are owed, otherwise wait. Workers start with the newest weights."""
    assert ctx.replay is not None
    plan, clock = ctx.replay, time.perf_counter
    weights = published = ctx.learner.submit(Learner.weights)
    ctx.weights.start(weights)
    while True:
        plan.counted.append([0, 0])
        reports: list[Report] = []
        num_updates, collect_s, learner_s = 0, 0.0, 0.0
        until = ctx.timesteps + plan.config.steps_per_iteration
        while ctx.timesteps < until or plan.owed >= plan.source.chunk + plan.slack:
            before = clock()
            if plan.owed < plan.source.chunk + plan.slack:
                for i in ctx.workers.idle:
                    if weights is not published:
                        ctx.weights.publish(published := weights)
                    ctx.workers.start(i, Rollout.collect, ctx.weights, plan.explore(ctx.timesteps, i))
            num_awaited = len(ctx.workers) if plan.in_order else 1
            for i, (report, fragment) in ctx.workers.finished(0.0 if plan.is_due() else None, num=num_awaited):
                if ctx.workers.reachable([fragment]):
                    reports.append(report)
                    plan.insert(ctx, i, report, fragment)
            inserted = clock()
            if plan.is_due():
                most = min(int(plan.owed), plan.config.updates_per_call)
                num, weights = plan.source.learn(most, ctx.timesteps, plan.reward_factor)
                plan.owed -= num
                plan.counted[-1][1] += num
                num_updates += num
            collect_s, learner_s = collect_s + inserted - before, learner_s + clock() - inserted
        metrics = ctx.backend.get(ctx.learner.submit(ReplayLearner.metrics))
        if weights is not published:  # an evaluation may follow
            ctx.weights.publish(published := weights)
        update = Update(metrics | plan.metrics(ctx.timesteps) | plan.source.metrics(), num_updates)
        yield Iteration(reports, update, {"collect": collect_s, "learner": learner_s})


MAX_CALLS = 1000
"""Calls of each worker that one iteration takes at most, so that it ends though an agent makes gradient after gradient of one fragment."""


HALT_CHECK_S = 1.0
"""Seconds between looks whether to break an iteration off."""


def asynchronous(ctx: Context) -> Iterator[Iteration]:
    """Update with the parts that are ready, except stale ones, and send workers out again with the newest weights.

    Workers do not wait for each other. A worker whose parts wait for the learner is held back, so the number of parts stays bounded.

    Raises:
        Halted: the context says so.
    """
    assert ctx.plan is not None
    plan, clock = ctx.plan, time.perf_counter
    first = ctx.backend.get(ctx.learner.submit(Learner.weights))
    ctx.weights.start(ctx.backend.put(first))
    queue = UpdateQueue(ctx, plan, first.version)
    try:
        while True:
            start, steps_before, learner_s, reports = clock(), ctx.timesteps, 0.0, list[Report]()
            calls = 0  # those that collected: an agent may make several gradients of one fragment
            most = MAX_CALLS * len(ctx.workers)
            while not queue.done or not (
                len(reports) >= most or plan.is_over(calls / len(ctx.workers), ctx.timesteps - steps_before)
            ):
                for i in queue.free_workers():
                    ctx.workers.start(i, Rollout.collect, ctx.weights, plan.exploration(ctx.timesteps, i))
                    queue.num_calls[i] += 1
                wait_s, others = queue.patience()
                if ctx.halted is not None:
                    if ctx.halted():
                        raise Halted
                    wait_s = HALT_CHECK_S if wait_s is None else wait_s
                for i, (report, data) in ctx.workers.finished(wait_s, others):
                    reports.append(report)
                    calls += report.num_steps > 0
                    ctx.timesteps += report.num_steps
                    queue.add(Part(i, report, data))
                queue.publish_finished()
                if parts := queue.next_parts():
                    before, batch = clock(), [part.data for part in parts]
                    queue.running = ctx.learner.submit_parts(Learner.update, *batch, timesteps=ctx.timesteps)
                    queue.publish_finished()  # in one process it is done already
                    learner_s += clock() - before
            update = queue.summary()
            if plan.max_parts is not None:
                plan.storages = {"free": plan.max_parts - sum(queue.held.values()), **queue.held}
            yield Iteration(reports, update, {"collect": clock() - start - learner_s, "learner": learner_s})
    finally:  # a new loop does not know of these parts
        plan.lost["stale"] += len(queue.waiting)


@dataclass(slots=True)
class Part:
    """What one call of a worker returned."""

    worker: int
    report: Report
    data: Future[object]
    """Future of a fragment, a gradient or fitness."""


class UpdateQueue:
    """The parts that wait for the learner, and the update that is running."""

    def __init__(self, ctx: Context, plan: AsynchronousPlan, version: int) -> None:
        self.ctx, self.plan, self.version = ctx, plan, version
        self.waiting: list[Part] = []
        """In the order of arrival."""
        self.running: tuple[Future[Update], Future[Weights]] | None = None
        self.done: list[Update] = []
        """Updates that ended in this iteration."""
        self.num_calls = [0] * len(ctx.workers)
        """Calls of each worker so far."""
        self._size = 1
        """`Report.size` of the newest part."""
        self._learning: list[Part] = []
        """Parts of the running update."""
        self._staleness: list[int] = []

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
        self.waiting.append(part)
        self._size = part.report.size

    def patience(self) -> tuple[float | None, list[Future[object]]]:
        """(seconds to wait for workers, futures that also end the waiting)."""
        if self.running is not None:
            update = self.running[0]
            pending = self._pending(update)
            left_s = max(0.0, update.deadline - time.monotonic()) if isinstance(update, Together) else None
            return (left_s if pending else 0.0), pending
        return (0.0 if self._is_enough(self.waiting) else None), []

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
            if not self._is_enough(fresh):
                return []
        if self.ctx.workers.absent:
            there = self.ctx.workers.reachable([part.data for part in self.waiting])
            self.waiting = [part for part in self.waiting if part.data in there]
            if not self._is_enough(self.waiting):
                return []
        num = next(n for n in range(1, len(self.waiting) + 1) if self._is_enough(self.waiting[:n]))
        self._learning, self.waiting = self.waiting[:num], self.waiting[num:]
        return self._learning

    def publish_finished(self) -> None:
        """Count the running update and publish its weights, if it is done."""
        if self.running is None or self._pending(self.running[0]):
            return
        update, weights = self.running
        parts, self.running, self._learning = self._learning, None, []
        try:
            self.done.append(done := self.ctx.backend.get(update))
        except ArgumentLost:  # it did not begin; what is there of its parts is learnt from with others
            kept = self.ctx.workers.intact([part.data for part in parts])
            if len(kept) == len(parts):
                raise
            self.waiting = [*(part for part in parts if part.data in kept), *self.waiting]
            return
        self._staleness += [self.version - part.report.version for part in parts]
        self.version = done.version
        self.ctx.weights.publish(weights)

    def summary(self) -> Update:
        """The updates of this iteration as one, with the means of their metrics; starts counting anew."""
        metrics = means([update.metrics for update in self.done])
        metrics["staleness"] = float(np.mean(self._staleness))
        summary = Update(metrics, sum(update.num_updates for update in self.done))
        self.done, self._staleness = [], []
        return summary
