"""How often two groups of runs from the same distribution are told apart: by `raypid compare`'s test, and by bootstrap intervals.

    python benchmarks/comparison_errors.py

Returns of a run are normal; capped (normal around 480 with deviation 30, at most 500); or of runs of which 30% fail (100 in place of 400).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from raypid.report.statistics import bootstrap_interval, difference

CASES, BOOTSTRAPS = 4_000, 400
Draw = Callable[[np.random.Generator, int], np.ndarray]
KINDS: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(0, 1, n),
    "capped": lambda rng, n: np.minimum(rng.normal(480, 30, n), 500.0),
    "30% fail": lambda rng, n: np.where(rng.random(n) < 0.3, 100.0, 400.0) + rng.normal(0, 20, n),
}


def welch(draw: Draw, seeds: int) -> float:
    """The part of the cases in which one group is called better."""
    rng, wrong = np.random.default_rng(seeds), 0
    for _ in range(CASES):
        wrong += difference([draw(rng, seeds)], [draw(rng, seeds)]).is_sure
    return wrong / CASES


def bootstrap(seeds: int) -> float:
    """The part in which 0 lies outside the interval of the interquartile mean of normal returns around 0."""
    rng, wrong = np.random.default_rng(seeds), 0
    for _ in range(BOOTSTRAPS):
        low, high = bootstrap_interval(KINDS["normal"](rng, seeds))
        wrong += bool(low > 0 or high < 0)
    return wrong / BOOTSTRAPS


if __name__ == "__main__":
    print(f"| seeds of each | {' | '.join(KINDS)} | bootstrap interval of the IQM misses the mean: normal |")
    for number in (3, 5, 10):
        print(
            f"| {number} | {' | '.join(f'{welch(draw, number):.1%}' for draw in KINDS.values())} | {bootstrap(number):.1%} |"
        )
