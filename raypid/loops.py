"""The ways to run an algorithm: generators of metrics. Logging, checkpoints and progress stay outside."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raypid.runtime.handle import Backend, Handle
from raypid.runtime.publish import ByReference
from raypid.runtime.replay_sources import ReplaySource
from raypid.runtime.supervisor import WorkerGroup
from raypid.types import Report, Update


@dataclass(slots=True)
class Context:
    """The roles of a run and how far it has come."""

    backend: Backend
    workers: WorkerGroup
    learner: Handle
    timesteps: int = 0
    """Valid environment steps so far."""
    replay: ReplayPlan | None = None
    """How a replay loop runs; None for the others."""
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
    """Steps before learning starts."""
    updates_per_call: int
    steps_per_iteration: int
    exploration: Exploration
    source: ReplaySource
    slack: float = 0.0
    """Updates that may be owed while workers are still sent out: none in one process, a round of fragments on Ray."""
    owed: float = 0.0
    """Updates that the steps so far call for and that are not done yet."""
    filled: bool = False
    """The buffer holds a batch."""
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
class Iteration:
    """What one turn of a loop did."""

    reports: list[Report]
    update: Update
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds: collect, learner (wall time of the driver)."""


def sync(ctx: Context) -> Iterator[Iteration]:
    """Publish weights, collect a fragment from every worker, learn; then again. Lost shares are collected anew."""
    clock = time.perf_counter
    ctx.weights.start(ctx.learner.submit("weights"))
    while True:
        start = clock()
        results = ctx.workers.call_all("collect", ctx.weights, num_returns=2)
        collected = clock()
        reports: list[Report] = [report for report, _ in results]
        ctx.timesteps += sum(r.num_steps for r in reports)
        update, weights = ctx.learner.submit("update", ctx.timesteps, *(data for _, data in results), num_returns=2)
        done: Update = ctx.backend.get(update)
        ctx.weights.publish(weights)
        yield Iteration(reports, done, {"collect": collected - start, "learner": clock() - collected})


def replay(ctx: Context) -> Iterator[Iteration]:
    """Insert what is ready; learn while updates are owed; else wait. Workers set out with the newest weights."""
    assert ctx.replay is not None
    plan, clock = ctx.replay, time.perf_counter
    weights = published = ctx.learner.submit("weights")
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
                    ctx.workers.start(i, "collect", ctx.weights, plan.exploration(ctx.timesteps, i), num_returns=2)
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
        metrics: dict[str, float] = ctx.backend.get(ctx.learner.submit("metrics"))
        if weights is not published:  # an evaluation may come now
            ctx.weights.publish(published := weights)
        update = Update(metrics | plan.metrics(ctx.timesteps) | plan.source.metrics(), num_updates)
        yield Iteration(reports, update, {"collect": waited, "learner": learnt})


def _insert(ctx: Context, plan: ReplayPlan, worker: int, report: Report, fragment: Any) -> None:
    """Store a fragment, and count what it calls for once learning has started."""
    ctx.timesteps += report.num_steps
    plan.source.insert(worker, fragment)
    if not plan.filled:
        plan.filled = plan.source.holds(plan.batch_size)
    if plan.filled and ctx.timesteps >= plan.start_steps:
        plan.owed += report.num_steps * plan.updates_per_step
        plan.counted[-1][0] += report.num_steps
