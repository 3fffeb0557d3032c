"""Running moments of observations and of discounted returns."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from raypid.types import Array, Collective, matching
from raypid.types import Moments as Moments  # others import it from here


def moments_of(rows: Array) -> Moments:
    """Moments of rows [N, D]."""
    rows = rows.astype(np.float64)
    mean = rows.mean(0) if len(rows) else np.zeros(rows.shape[1])
    return Moments(np.float64(len(rows)), mean, ((rows - mean) ** 2).sum(0))


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Moments of two samples together (Chan et al. 1979)."""
    count = a.num_rows + b.num_rows
    if count == 0:
        return a
    delta = b.mean - a.mean
    return Moments(
        count, a.mean + delta * (b.num_rows / count), a.m2 + b.m2 + delta**2 * (a.num_rows * b.num_rows / count)
    )


def zero_moments(size: int) -> Moments:
    return Moments(np.float64(0.0), np.zeros(size), np.zeros(size))


def scale_of(moments: Moments) -> tuple[Array, Array]:
    """(mean, 1 / standard deviation), float32 [D]; (0, 1) as long as fewer than two rows were counted."""
    count, mean, m2 = moments
    if count < 2:
        return np.zeros_like(mean, dtype=np.float32), np.ones_like(mean, dtype=np.float32)
    return mean.astype(np.float32), (1.0 / np.sqrt(m2 / count + 1e-8)).astype(np.float32)


class DiscountedReturns:
    """The discounted returns of a worker's running episodes, from its rewards as they are learnt from: scaled, then clipped."""

    def __init__(self, gamma: float, reward_scale: float = 1.0, reward_clip: float | None = None) -> None:
        self.gamma, self.reward_scale, self.reward_clip = gamma, reward_scale, reward_clip
        self._carry: Array = np.zeros(0)
        """[B] returns so far."""

    def moments(self, reward: Array, first: Array, valid: Array) -> Moments:
        """Moments of the returns [T, B] at the valid rows of the worker's next fragment.

        Args: as `ReturnScaler.scale`.
        """
        reward = reward * self.reward_scale
        if self.reward_clip is not None:
            reward = np.clip(reward, -self.reward_clip, self.reward_clip)
        carry = self._carry if len(self._carry) == reward.shape[1] else np.zeros(reward.shape[1])
        returns, self._carry = _discounted(reward, first, carry, self.gamma)
        return moments_of(returns[valid][:, None])


def _discounted(reward: Array, first: Array, carry: Array, gamma: float) -> tuple[Array, Array]:
    """Discounted returns so far [T, B] float64 of running episodes, and those after the last row [B].

    Args:
        reward: [T, B].
        first: [T+1, B] bool, row t starts an episode.
        carry: [B] the returns before row 0.
    """
    returns = reward.astype(np.float64)
    for row, passes in zip(returns, ~first[:-1] * gamma, strict=True):
        row += carry * passes
        carry = row
    return returns, carry


ROUNDING = 1e-7
"""Relative difference of float32 numbers below which they count as equal."""


def inverse_deviation(moments: Moments) -> float:
    """1 / standard deviation of moments of rows [N, 1], however small it is. As long as all rows were the same, 1 / their size, or 1 for 0."""
    count, mean, m2 = moments
    size = abs(float(mean[0]))
    deviation = float(np.sqrt(m2[0] / count)) if count else 0.0
    scale = deviation if deviation > ROUNDING * size else size
    return 1.0 / scale if 0.0 < scale < math.inf else 1.0


def _nth(items: Array) -> Array:
    """Number of earlier occurrences of each item [N]."""
    order = np.argsort(items, kind="stable")
    nth = np.empty(len(items), np.int64)
    nth[order] = np.arange(len(items)) - np.searchsorted(items[order], items[order])
    return nth


class ReturnScaler:
    """Divides rewards by the running standard deviation of the discounted return (Engstrom et al. 2020, section 3)."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.moments = zero_moments(1)
        self.elsewhere = zero_moments(1)
        """Moments of returns that other workers have seen, which count too."""
        self.carry = np.zeros(0)
        """[streams of all workers] discounted return of the running episode so far."""

    def scale(
        self,
        reward: Array,
        first: Array,
        valid: Array,
        collective: Collective | None = None,
        stream: Array | None = None,
    ) -> Array:
        """Merge a fragment into the moments, then return its rewards scaled by them, float32 [T, B].

        Args:
            reward: [T, B].
            first: [T+1, B] bool, row t starts an episode.
            valid: [T, B] bool.
            collective: the streams of all its learners, in rank order, count as one fragment. All learners end with
                the same state.
            stream: [B] numbers of these streams among those of all workers. A stream that has several fragments side
                by side, here or in other learners, is listed several times, its earliest fragment first. Default: all
                streams, in order.
        """
        part = (reward, first, valid, stream)
        parts = [part] if collective is None else collective.gather(part)  # a stream may have fragments in several
        rewards, firsts, valids, numbers = zip(*parts, strict=True)
        joint, starts = np.concatenate(rewards, axis=1), np.concatenate(firsts, axis=1)
        streams = np.arange(joint.shape[1]) if stream is None else np.concatenate(numbers)
        self.carry = np.pad(self.carry, (0, max(0, 1 + int(streams.max()) - len(self.carry))))
        returns = np.empty(joint.shape)
        nth = _nth(streams)
        for k in range(nth.max() + 1):  # the k-th fragment of each stream continues its (k-1)-th
            columns = np.flatnonzero(nth == k)
            at = streams[columns]
            found = _discounted(joint[:, columns], starts[:, columns], self.carry[at], self.gamma)
            returns[:, columns], self.carry[at] = found
        ends = np.cumsum([r.shape[1] for r in rewards])
        split = zip(np.split(returns, ends[:-1], axis=1), valids, strict=True)
        seen = reduce(merge_moments, [moments_of(own[real][:, None]) for own, real in split])
        self.moments = merge_moments(self.moments, seen)
        return (reward * inverse_deviation(merge_moments(self.elsewhere, self.moments))).astype(np.float32)

    def state_dict(self) -> dict[str, Array]:
        return {**self.moments.as_arrays(), "carry": self.carry.copy()}

    def load_state_dict(self, state: dict[str, Array]) -> None:
        self.moments = Moments.from_arrays(state, size=1)
        self.carry = matching(state["carry"], np.empty(len(state["carry"]))).copy()
