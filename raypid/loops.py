"""The ways to run an algorithm: generators of metrics. Logging, checkpoints and progress stay outside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from raypid.runtime.handle import Backend, Handle
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
    weights = ctx.learner.submit("weights")
    while True:
        start = clock()
        results = ctx.workers.call_all("collect", ctx.backend.put(weights), num_returns=2)
        collected = clock()
        reports: list[Report] = [report for report, _ in results]
        ctx.timesteps += sum(r.num_steps for r in reports)
        update, weights = ctx.learner.submit("update", ctx.timesteps, *(data for _, data in results), num_returns=2)
        done: Update = ctx.backend.get(update)
        yield Iteration(reports, done, {"collect": collected - start, "learner": clock() - collected})
