"""Which settings of a search mattered, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raypid.settings.ranges import Choices
from raypid.sweep.space import SearchSpace

Column = NDArray[np.float64]
MIN_TRIALS = 12
"""Trials below which nothing is said."""
LEVEL = 0.95
_RESAMPLES = 500


class Importance(NamedTuple):
    """How much of the order of the trials a setting explains by itself."""

    setting: str
    share: float
    """Of the variance of the trials' ranks; adjusted for chance, so that it is 0 on average for what does nothing."""
    low: float
    high: float
    """95% interval of the share."""
    p: float
    """How often the greatest share of all settings would be as large if none mattered."""

    @property
    def is_sure(self) -> bool:
        return self.p < 1 - LEVEL

    def __str__(self) -> str:
        if not self.is_sure:
            return f"`{self.setting}`: cannot tell"
        return f"`{self.setting}` matters ({self.share:.2f} of the variance, 95% interval {self.low:.2f} to {self.high:.2f})"


def importances(space: SearchSpace, units: Sequence[Mapping[str, float]], order: Sequence[float]) -> list[Importance]:
    """Estimate for each setting the share of the variance of ranks that it explains by itself, largest first.

    A setting's effect is a parabola over the unit interval of its range, or one mean for each of a few choices: a best value
    may lie in the middle. Ranks take the place of scores, since the scores of bad settings have no bound. The interval is a bootstrap's over
    trials, moved by the bias that resampling adds. Whether a setting mattered at all is a permutation test against the
    greatest share of all settings (Westfall and Young 1993), so that one of many does not stand out by chance.

    A proposer that learns (Optuna) tries good values of several settings together, so they share their effect; what two
    settings do only together is not seen. Returns [] for fewer than MIN_TRIALS trials.

    Args:
        units: of each trial, setting -> place in the unit interval; absent where the setting had no effect.
        order: of each trial, how good it was; only the order counts, ties are averaged.
    """
    if len(order) < MIN_TRIALS:
        return []
    rng, rank = np.random.default_rng(0), _ranks(np.asarray(order, np.float64))
    places = {name: np.array([u.get(name, np.nan) for u in units]) for name in space}
    designs = {name: _design(space, name, place) for name, place in places.items()}
    designs = {name: design for name, design in designs.items() if design.shape[1]}
    if not designs or not np.ptp(rank):
        return []
    shares = {name: _share(design, rank) for name, design in designs.items()}
    by_chance = (rng.permutation(rank) for _ in range(_RESAMPLES))
    null = np.array([max(_share(design, order) for design in designs.values()) for order in by_chance])
    found = []
    for name, design in designs.items():
        picks = (rng.integers(0, len(rank), len(rank)) for _ in range(_RESAMPLES))
        drawn = np.array([_share(design[pick], rank[pick]) for pick in picks])
        low, high = np.percentile(drawn - (drawn.mean() - shares[name]), [2.5, 97.5])
        share, p = shares[name], float((1 + (null >= shares[name]).sum()) / (1 + len(null)))
        found.append(Importance(name, max(share, 0.0), float(np.clip(low, 0, 1)), float(np.clip(high, 0, 1)), p))
    return sorted(found, key=lambda one: -one.share)


def _design(space: SearchSpace, name: str, place: Column) -> Column:
    """Regressors [N, K] beside the constant. What had no effect in a trial is at the mean."""
    range_ = space[name]
    if isinstance(range_, Choices):
        chosen = [None if np.isnan(unit) else range_.at(float(unit)) for unit in place]
        which = [np.array([value == option for value in chosen]) for option in range_.options]
        columns = [w.astype(np.float64) for w in which[1:]]
    else:
        centred = np.where(np.isnan(place), 0.0, place - np.nanmean(place)) if not np.isnan(place).all() else place * 0
        columns = [centred, centred**2]
    kept = [column - column.mean() for column in columns if np.nan_to_num(column).std() > 1e-9]
    return np.stack(kept, 1) if kept else np.zeros((len(place), 0))


def _share(design: Column, rank: Column) -> float:
    """The adjusted share of the variance of `rank` [N] that a regression on `design` [N, K] explains (Ezekiel 1930)."""
    y = rank - rank.mean()
    x = design - design.mean(0)
    total = float(y @ y)
    if total <= 0:
        return 0.0
    coefficients, _, kind, _ = np.linalg.lstsq(x, y, rcond=None)
    rest = y - x @ coefficients
    freedom = len(y) - 1 - int(kind)
    return 1 - float(rest @ rest) / max(1, freedom) * (len(y) - 1) / total


def _ranks(order: Column) -> Column:
    """Ranks 0 to N - 1; of equal values their mean."""
    _, inverse, counts = np.unique(order, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[inverse])
