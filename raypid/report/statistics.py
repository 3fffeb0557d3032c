"""Statistics over the seeds of runs: interquartile mean, bootstrap intervals, differences of groups.

Groups have values `[N_1], [N_2], ...` for each task (environment), one for each seed. Intervals of curves are percentiles of a bootstrap
(Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice", arXiv:2108.13264). They are too narrow for
few seeds: simulated with two groups that are equal, such an interval of the difference excludes 0 in 15 to 21% of the cases with 3 seeds
each, and in 6 to 7% with 5. Decisions are therefore made by Student's t: 1 to 5% with 3 to 10 seeds, whether returns are normal, skewed,
cut off at a maximum, or fail in 30% of the runs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = NDArray[np.float64]
Centre: TypeAlias = Literal["iqm", "median", "mean"]

MIN_SEEDS = 3
"""Runs of each group below which no difference is called sure. Two are often alike by chance."""
RESAMPLES = 2000
"""Draws of the bootstrap."""
MAX_SEEDS = 1000
"""Numbers of runs above which `seeds_needed` gives up."""


def iqm(values: Column) -> Column:
    """Interquartile mean along the first axis, [N, *] -> [*]: the mean without the lowest and the highest quarter.

    A quarter is rounded down to whole values, so up to 3 values this is the mean.
    """
    cut = len(values) // 4
    return np.asarray(np.sort(values, axis=0)[cut : len(values) - cut].mean(0))


CENTRES: dict[Centre, Callable[[Column], Column]] = {
    "iqm": iqm,
    "median": lambda values: np.asarray(np.median(values, axis=0)),
    "mean": lambda values: np.asarray(values.mean(0)),
}


def bootstrap_interval(values: Column, centre: Centre = "iqm") -> tuple[Column, Column]:
    """Compute the 95% percentile interval of the centre by a bootstrap over runs. Deterministic: the generator is seeded.

    Args:
        values: [N, *] of N runs. The axes after the first are points of a curve; a run is drawn whole.

    Returns:
        (low [*], high [*]). Both are NaN for a single run, which says nothing of others.
    """
    shape = values.shape[1:]
    if len(values) < 2:
        return np.full(shape, np.nan), np.full(shape, np.nan)
    draw = np.random.default_rng(0).integers(0, len(values), (len(values), RESAMPLES))
    points = values.reshape(len(values), -1).T  # one after the other, which bounds the memory
    bounds = np.array([np.percentile(CENTRES[centre](point[draw]), [2.5, 97.5]) for point in points])
    low, high = bounds.T.reshape(2, *shape)
    return low, high


class Difference(NamedTuple):
    """The mean of one group minus that of another, averaged over tasks."""

    estimate: float
    low: float
    """Lower end of the interval; NaN if a group has a single run in a task."""
    high: float
    p: float
    """Probability that equal groups differ by this much (two-sided); NaN where `low` is."""
    level: float
    is_sure: bool
    """Whether the interval excludes 0, and each group has `MIN_SEEDS` runs in each task."""


def difference(a: Sequence[Column], b: Sequence[Column], *, paired: bool = False, level: float = 0.95) -> Difference:
    """Estimate the difference of the means of two groups, a - b, with its interval.

    Welch's t, which does not assume equal variances; with several tasks the mean of the tasks' differences, whose degrees of freedom
    are Satterthwaite's (1946).

    Args:
        a, b: values [N_t] for each task t. Values of different tasks must have a common scale.
        paired: a[t][i] and b[t][i] have the same seed: the t-test of the differences. It is the sharper one only where the seed decides
            much of the return, since it has half the degrees of freedom.
    """
    estimate = float(np.mean([x.mean() - y.mean() for x, y in zip(a, b)]))
    parts = [x - y for x, y in zip(a, b)] if paired else [*a, *b]
    fewest = min(map(len, parts))
    if fewest < 2:
        return Difference(estimate, math.nan, math.nan, math.nan, level, False)
    variances = np.array([part.var(ddof=1) / len(part) for part in parts]) / len(a) ** 2
    total = float(variances.sum())
    scale = max(float(np.abs(part).max()) for part in [*a, *b])
    if total <= (1e-12 * scale) ** 2:  # no spread at all: how likely is it that the labels fall like this?
        ways = math.prod(_ways(len(x), len(y), paired) for x, y in zip(a, b))
        p = 1.0 if abs(estimate) <= 1e-12 * scale else min(1.0, 2 / ways)
        return Difference(estimate, estimate, estimate, p, level, fewest >= MIN_SEEDS and p <= 1 - level)
    freedom = total**2 / float(np.sum(variances**2 / np.array([len(part) - 1 for part in parts])))
    error = math.sqrt(total)
    half = t_quantile(level, freedom) * error
    sure = fewest >= MIN_SEEDS and abs(estimate) > half
    return Difference(estimate, estimate - half, estimate + half, t_tail(abs(estimate) / error, freedom), level, sure)


def _ways(a: int, b: int, paired: bool) -> int:
    """Number of ways to divide runs into two groups of these sizes, or to order each of `a` pairs."""
    return 2**a if paired else math.comb(a + b, a)


def mean_half_width(values: Column, level: float = 0.95) -> float:
    """Half the width of the interval of the mean of [N] values, by Student's t; NaN for a single value."""
    if len(values) < 2:
        return math.nan
    return t_quantile(level, len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))


def probability_of_improvement(a: Sequence[Column], b: Sequence[Column], *, paired: bool = False) -> float:
    """Return the fraction of pairs in which the run of `a` is above that of `b`; a tie counts half. Mean over tasks (Agarwal et al. 2021, eq. 1).

    Args:
        paired: only a[t][i] and b[t][i] are a pair.
    """
    gaps = [x - y if paired else x[:, None] - y for x, y in zip(a, b)]
    return float(np.mean([((gap > 0).mean() + (gap >= 0).mean()) / 2 for gap in gaps]))


def seeds_needed(
    a: Sequence[Column], b: Sequence[Column], *, paired: bool = False, level: float = 0.95, power: float = 0.8
) -> int | None:
    """Runs of each group with which a difference like this one, if real, would be called sure with probability `power`.

    Normal approximation with Student's quantiles. None if that takes more than MAX_SEEDS, or a group has a single run in a task.
    """
    if min(map(len, [*a, *b])) < 2:
        return None
    estimate = difference(a, b, paired=paired, level=level).estimate
    parts = [x - y for x, y in zip(a, b)] if paired else [*a, *b]
    spread = float(sum(part.var(ddof=1) for part in parts)) / len(a) ** 2

    def is_enough(count: int) -> bool:
        if spread <= (1e-12 * estimate) ** 2:  # decided by counting, as in `difference`
            return 2 / _ways(count, count, paired) ** len(a) <= 1 - level
        freedom = len(parts) * (count - 1)
        need = t_quantile(level, freedom) + t_quantile(2 * power - 1, freedom)
        return need**2 * spread <= count * estimate**2

    counts = range(MIN_SEEDS, MAX_SEEDS + 1)
    place = bisect_left(counts, True, key=is_enough) if estimate else len(counts)
    return counts[place] if place < len(counts) else None


def t_tail(t: float, freedom: float) -> float:
    """Probability that |T| exceeds `t` >= 0 for Student's T with `freedom` >= 1 degrees of freedom (they need not be whole)."""
    # With T = sqrt(freedom) * tan(angle), the density of the angle is proportional to cos(angle)^(freedom - 1).
    freedom = min(freedom, 1e4)
    first = math.atan(t / math.sqrt(freedom))
    last = min(math.pi / 2, first + 12 / math.sqrt(freedom))  # the density beyond is nothing
    angles = np.linspace(first, last, 2_001)
    density = np.maximum(np.cos(angles), 0.0) ** (freedom - 1)
    area = float(((density[1:] + density[:-1]) / 2).sum()) * float(angles[1] - angles[0])
    whole = math.sqrt(math.pi) / 2 * math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    return min(1.0, area / whole)


def t_quantile(level: float, freedom: float) -> float:
    """The t with P(|T| <= t) = `level` for Student's T with `freedom` >= 1 degrees of freedom."""
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > 1 - level:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 1 - level else (low, middle)
    return (low + high) / 2
