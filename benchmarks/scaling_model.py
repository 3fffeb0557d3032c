"""The constants behind docs/scaling.md: what a call, weights and a fragment cost the driver, and what 1,000 workers come to.

    python benchmarks/scaling_model.py

Driver: the asynchronous loop itself, with a learner that does nothing, over 16 to 1,000 workers whose calls only sleep; many of
them live in one actor (each call in a thread of its own), so that 1,000 fit here. CPU seconds of the driver's process, all threads.
Weights and fragments: wall seconds through Ray's object store on one machine, medians. Written to
benchmarks/results/scaling_model.md and .json.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from flags import positive, several, whole
from reporting import markdown, save

from raypid.loops.loops import AsynchronousPlan, Context, asynchronous
from raypid.loops.weights import ByReference
from raypid.runtime.handle import places
from raypid.runtime.ray import RayBackend, RayHandle, _Role, ray
from raypid.runtime.ray_parcel import Carried
from raypid.runtime.supervisor import Group, Losses
from raypid.types import Report, Trajectory, Update, Weights, concat_trajectories

NUM_ACTORS = 4
KINDS: dict[str, tuple[tuple[int, ...], type, int, int]] = {
    "CartPole-like: 4 float32": ((4,), np.float32, 128, 8),
    "MuJoCo-like: 17 float32": ((17,), np.float32, 128, 8),
    "Atari-like: 84x84 uint8": ((84, 84), np.uint8, 32, 8),
}
"""Observation, dtype, rows and streams of a fragment."""


class Sleeper:
    """A worker whose calls sleep and report one step."""

    def __init__(self, index: int = 0, seconds: float = 0.3) -> None:
        self.index, self.seconds = index, seconds

    def collect(self, weights: Weights, exploration: Mapping[str, Any] | None = None) -> tuple[Report, Any]:
        time.sleep(self.seconds)
        timing = {"env": self.seconds, "inference": 0.0, "total": self.seconds}
        return Report(self.index, 64, weights.version, timing=timing), np.zeros(8)

    def fragment(self, kind: str) -> Trajectory:
        """A fragment of one of the KINDS."""
        return fragment_of(kind)

    def take(self, value: Any) -> int:
        """Something that came through the store."""
        return 0


class NoLearner:
    """Counts versions."""

    def __init__(self) -> None:
        self._weights = Weights(0, np.zeros(10_000, np.float32), ())

    def weights(self) -> Weights:
        return self._weights

    def update(self, *parts: Any, timesteps: int) -> tuple[Update, Weights]:
        self._weights = Weights(self._weights.version + 1, self._weights.flat, ())
        return Update({}, 1), self._weights


class Crowded(RayBackend):
    """A backend that puts many roles into few actors, each call in a thread of its own."""

    crowd: list[Any] | None = None
    _spawned = 0

    def spawn(self, factory: Callable[[], Any], *place: Any, **options: Any) -> Any:
        if self.crowd is None:
            actor = ray.remote(num_cpus=0, max_concurrency=600)(_Role)
            self.crowd = [actor.remote([ray.put(Carried(factory))], 0) for _ in range(NUM_ACTORS)]
        self._spawned += 1
        return RayHandle(self.crowd[self._spawned % NUM_ACTORS])


def fragment_of(kind: str) -> Trajectory:
    shape, dtype, rows, streams = KINDS[kind]
    row, flag = np.zeros((rows, streams), np.float32), np.zeros((rows, streams), bool)
    return Trajectory(
        obs=np.zeros((rows + 1, streams, *shape), dtype),
        first=np.zeros((rows + 1, streams), bool),
        action=np.zeros((rows, streams), np.int64),
        reward=row,
        terminated=flag,
        truncated=flag,
        valid=~flag,
        behaviour={"log_prob": row, "value": np.zeros((rows + 1, streams), np.float32)},
        stream=np.arange(streams),
    )


def driver_of(backend: Any, num_workers: int, seconds: float, fragment_s: float) -> dict[str, float]:
    """CPU and wall seconds of the driver for each call, with `num_workers`; an update takes 8 calls, or an eighth of all."""
    workers = Group(
        backend,
        lambda i, _: partial(Sleeper, i, fragment_s),
        places("worker", num_workers),
        timeout_s=300,
        losses=Losses(0),
    )
    plan = AsynchronousPlan(max(8, num_workers // 8), 1, 2, 64 * num_workers, lambda steps, index: {})
    learner = backend.here(NoLearner)
    loop = asynchronous(Context(backend, workers, learner, ByReference(backend, learner), plan=plan))
    next(loop)
    start, cpu, calls, updates = time.perf_counter(), time.process_time(), 0, 0
    while time.perf_counter() - start < seconds:
        turn = next(loop)
        calls, updates = calls + len(turn.reports), updates + turn.update.num_updates
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    loop.close()
    workers.drop()
    return {"cpu_ms": 1e3 * cpu / calls, "calls_per_s": calls / wall, "driver": cpu / wall, "updates": updates / wall}


def median_of(call: Callable[[], Any], num: int = 30) -> float:
    """Seconds of a call."""
    times = []
    for _ in range(num):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(seconds: float, fragment_s: float, counts: list[int]) -> dict[str, Any]:
    backend = Crowded(num_cpus=2)
    try:
        driver = {n: driver_of(backend, n, seconds, fragment_s) for n in counts}
        handle = RayBackend.spawn(backend, Sleeper)
        ray.get(handle.ready)
        versions = {n: Weights(0, np.zeros(n, np.float32), ()) for n in (10_000, 1_000_000, 10_000_000)}
        weights = {n: median_of(partial(ray.put, version), 10) for n, version in versions.items()}
        held = {n: ray.put(version) for n, version in versions.items()}
        taken = {num: median_of(lambda ref=ref: ray.get(handle.submit("take", ref))) for num, ref in held.items()}
        fragments = {}
        for kind in KINDS:
            fragment = fragment_of(kind)
            there = median_of(lambda kind=kind: ray.get(handle.submit("fragment", kind)))
            joined = median_of(lambda fragment=fragment: concat_trajectories([fragment] * 8), 10)
            built = median_of(lambda kind=kind: fragment_of(kind))
            size = len(pickle.dumps(fragment, 5))
            fragments[kind] = {
                "bytes": size,
                "rows": fragment.valid.size,
                "through_s": there - built,
                "join_s": joined / 8,
            }
        none = median_of(lambda: ray.get(handle.submit("take", None)))
        report = Report(0, 1024, 0, episode_rewards=[200.0] * 5, episode_lengths=[200] * 5)
        report.timing = {"env": 0.1, "inference": 0.1, "total": 0.2}
        return {
            "driver": driver, "put_s": weights, "take_s": taken, "fragments": fragments, "empty_call_s": none,
            "report_bytes": len(pickle.dumps(report, 5)),
        }  # fmt: skip
    finally:
        backend.shutdown()


def table_of(found: dict[str, Any]) -> str:
    """The constants, and what they come to for 1,000 workers."""
    rows = [
        (n, f"{d['cpu_ms']:.2f}", f"{d['calls_per_s']:,.0f}", f"{d['driver']:.0%}", f"{1e3 / d['cpu_ms']:,.0f}")
        for n, d in found["driver"].items()
    ]
    header = ("workers that sleep", "driver, CPU ms a call", "calls/s held", "driver's CPU", "calls/s of a whole core")
    tables = [markdown(header, rows)]
    rows = [
        (f"{n:,}", f"{4 * n / 1e6:.2f}", f"{1e3 * found['put_s'][n]:.2f}", f"{1e3 * found['take_s'][n]:.2f}")
        for n in found["put_s"]
    ]
    tables.append(markdown(("weights", "MB", "put, ms", "a call with them on the same node, ms"), rows))
    rows = [
        (kind, f["rows"], f"{f['bytes']:,}", f"{f['bytes'] / f['rows']:.0f}", f"{1e3 * f['through_s']:.2f}", f"{1e3 * f['join_s']:.2f}")
        for kind, f in found["fragments"].items()
    ]  # fmt: skip
    header = ("fragment", "rows", "bytes", "bytes a row", "from worker to driver, ms", "its part of joining 8, ms")
    tables.append(markdown(header, rows))
    tables.append(
        f"An empty call and its answer: {1e3 * found['empty_call_s']:.2f} ms. A report: {found['report_bytes']} bytes.\n"
    )
    call = found["driver"][max(found["driver"])]["cpu_ms"] / 1e3
    rows = []
    for length in (0.05, 0.1, 0.3, 1.0, 3.0):
        calls = 1000 / length
        rows.append((f"{length:g}", f"{calls:,.0f}", f"{calls * call:.2f}", f"{0.8 * length / call:,.0f}"))
    header = ("seconds of a call", "calls/s of 1,000 workers", "driver, cores", "workers that keep it at 80% of a core")
    tables.append(markdown(header, rows))
    return "\n".join(tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=positive, default=8)
    parser.add_argument("--fragment", type=positive, default=0.3, help="seconds that a call sleeps")
    parser.add_argument("--workers", type=several(whole()), default=[16, 64, 256, 1000])
    args = parser.parse_args()
    found = measure(args.seconds, args.fragment, args.workers)
    save("scaling_model", table_of(found), found)


if __name__ == "__main__":
    main()
