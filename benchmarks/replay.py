"""The replay buffer in one process: rows inserted and drawn a second, beside plain NumPy moving the same bytes.

    python benchmarks/replay.py            # `--quick` only shows that it runs

A row is 24 floats: an observation of 17, an action of 6 and a reward, from 32 streams whose episodes end. The buffer holds
1,000,000 rows and is full. Inserting is bounded by a copy of the same rows into a plain ring. Drawing is bounded by a
gather of rows (and of the next observations) whose random indices are known beforehand. Numbers are medians of
repetitions in which all contestants take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flags import add_results_folder, positive, results_folder, whole
from reporting import markdown, save

from raypid.replay.base import Replay
from raypid.replay.buffer import ReplaySpec
from raypid.replay.prioritized import PrioritizedReplay
from raypid.replay.uniform import UniformReplay
from raypid.types import Trajectory

OBS, ACTION, STREAMS = 17, 6, 32
ROW = OBS + ACTION + 1


def fragment(rows: int, rng: np.random.Generator) -> Trajectory:
    """`rows` x STREAMS rows; one episode in a thousand rows ends. Any of them may follow any other."""
    shape = (rows, STREAMS)
    terminated = rng.random(shape) < 1e-3
    terminated[-1] = False
    first = np.zeros((rows + 1, STREAMS), bool)
    first[1:] = terminated
    return Trajectory(
        obs=rng.standard_normal((rows + 1, STREAMS, OBS), np.float32),
        first=first,
        action=rng.standard_normal((*shape, ACTION), np.float32),
        reward=rng.standard_normal(shape, np.float32),
        terminated=terminated,
        truncated=np.zeros(shape, bool),
        valid=np.ones(shape, bool),
    )


class Rates:
    """Rows a second of contestants that take turns."""

    def __init__(self) -> None:
        self.contestants: dict[str, tuple[int, Callable[[], Any]]] = {}
        self.found: dict[str, list[float]] = {}

    def add(self, name: str, rows: int, call: Callable[[], Any]) -> None:
        """`call` moves `rows` rows."""
        self.contestants[name] = rows, call

    def run(self, repetitions: int, seconds: float) -> None:
        """Windows of about `seconds` each, after one call that warms up."""
        num = {}
        for name, (_, call) in self.contestants.items():
            call()
            start = time.perf_counter()
            call()
            num[name] = max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))
        for _ in range(repetitions):
            for name, (rows, call) in self.contestants.items():
                start = time.perf_counter()
                for _ in range(num[name]):
                    call()
                self.found.setdefault(name, []).append(rows * num[name] / (time.perf_counter() - start))

    def median(self, name: str) -> float:
        return statistics.median(self.found[name])


def filled(capacity: int, fragments: list[Trajectory], **more: Any) -> Replay:
    spec = ReplaySpec(capacity=capacity, **more)
    buffer = PrioritizedReplay(spec) if spec.priority_exponent else UniformReplay(spec)
    turn = 0
    while buffer.count < capacity + 1:
        buffer.add(0, fragments[turn % len(fragments)])
        turn += 1
    return buffer


def insertion(rates: Rates, name: str, buffer: Replay, fragments: list[Trajectory]) -> None:
    """Fragments of one length go in by turns."""
    turn = [0]

    def insert() -> None:
        turn[0] += 1
        buffer.add(0, fragments[turn[0] % len(fragments)])

    rates.add(name, fragments[0].reward.size, insert)


def copying(rates: Rates, name: str, ring: np.ndarray, rows: int, rng: np.random.Generator) -> None:
    """The bound of inserting: the same bytes into a plain ring, blocks of `rows`."""
    blocks = [rng.standard_normal((rows, ROW), np.float32) for _ in range(8)]
    at = [0]

    def copy() -> None:
        start = at[0]
        ring[start : start + rows] = blocks[start // rows % 8]
        at[0] = start + rows if start + 2 * rows <= len(ring) else 0

    rates.add(name, rows, copy)


def gathering(rates: Rates, name: str, ring: np.ndarray, obs: np.ndarray, batch: int, rng: np.random.Generator) -> None:
    """The bound of drawing: `batch` known random rows, and the observations after them."""
    draws = [rng.integers(0, len(ring) - 1, batch) for _ in range(512)]
    turn = [0]

    def gather() -> None:
        turn[0] += 1
        ids = draws[turn[0] % len(draws)]
        ring[ids], obs[ids + 1]

    rates.add(name, batch, gather)


def drawing(rates: Rates, name: str, buffer: Replay, batch: int) -> None:
    rates.add(name, batch, lambda: buffer.sample(batch))


def drawing_by_priority(rates: Rates, name: str, buffer: Replay, batch: int, rng: np.random.Generator) -> None:
    """Draw, and write new priorities back as a learner does."""
    errors = [np.abs(rng.standard_normal(batch)).astype(np.float32) + 1e-6 for _ in range(64)]
    turn = [0]

    def draw() -> None:
        turn[0] += 1
        buffer.set_priorities(buffer.sample(batch, 0.4).id, errors[turn[0] % len(errors)])

    rates.add(name, batch, draw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=whole(), default=1_000_000)
    parser.add_argument("--repetitions", type=whole(), default=11)
    parser.add_argument("--seconds", type=positive, default=0.3, help="of one repetition of one contestant")
    add_results_folder(parser, "a small buffer, little time")
    args = parser.parse_args()
    if args.quick:
        args.capacity, args.repetitions, args.seconds = 100_000, 3, 0.02
    folder = results_folder(args)
    rng = np.random.default_rng(0)
    long, short = ([fragment(rows, rng) for _ in range(8)] for rows in (64, 1))
    plain, five, ranked = (
        filled(args.capacity, long, **spec) for spec in ({}, {"n_step": 5}, {"priority_exponent": 0.6})
    )
    ring = rng.standard_normal((args.capacity, ROW), np.float32)
    obs = np.ascontiguousarray(ring[:, :OBS])

    rates = Rates()
    rows: list[tuple[str, str, int]] = []  # contestant, its bound, rows of a call

    def compare(name: str, bound: str, size: int) -> None:
        rows.append((name, bound, size))

    for length, fragments in ((64, long), (1, short)):
        bound, size = f"copy {length} x {STREAMS}", length * STREAMS
        copying(rates, bound, ring, size, rng)
        for kind, buffer in (("uniform", plain), ("prioritised", ranked)):
            insertion(rates, name := f"insert fragments of {length} x {STREAMS}, {kind}", buffer, fragments)
            compare(name, bound, size)
    for batch in (256, 1024):
        gathering(rates, bound := f"gather {batch}", ring, obs, batch, rng)
        for n_step, buffer in ((1, plain), (5, five)):
            drawing(rates, name := f"draw {batch}, uniform, n_step {n_step}", buffer, batch)
            compare(name, bound, batch)
        drawing(rates, name := f"draw {batch}, prioritised", ranked, batch)
        compare(name, bound, batch)
        drawing_by_priority(rates, name := f"draw {batch}, prioritised, priorities written back", ranked, batch, rng)
        compare(name, bound, batch)
    rates.run(args.repetitions, args.seconds)

    header = ("replay", "rows/s", "µs a call", "plain NumPy, rows/s", "of the bound")
    lines, results = [], {}
    for name, bound, size in rows:
        rate, limit = rates.median(name), rates.median(bound)
        lines.append((name, f"{rate:,.0f}", f"{1e6 * size / rate:,.0f}", f"{limit:,.0f}", f"{rate / limit:.0%}"))
        results[name] = {
            "rows_per_s": rate, "us_per_call": 1e6 * size / rate, "bound_rows_per_s": limit, "of_bound": rate / limit,
            "repetitions": rates.found[name],
        }  # fmt: skip
    save("replay", markdown(header, lines), {"capacity": args.capacity, "row_bytes": 4 * ROW, "rows": results}, folder)


if __name__ == "__main__":
    main()
