"""Running moments of observations and of discounted returns."""

from __future__ import annotations

from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from raypid.types import Array, Collective

Moments: TypeAlias = tuple[Any, Array, Array]
"""count [], mean [D], M2 [D] (sum of squared deviations), float64."""


def moments_of(rows: Array) -> Moments:
    """Moments of rows [N, D]."""
    rows = rows.astype(np.float64)
    mean = rows.mean(0) if len(rows) else np.zeros(rows.shape[1])
    return np.float64(len(rows)), mean, ((rows - mean) ** 2).sum(0)


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Moments of both samples together (Chan et al. 1979)."""
    count = a[0] + b[0]
    if count == 0:
        return a
    delta = b[1] - a[1]
    return count, a[1] + delta * (b[0] / count), a[2] + b[2] + delta**2 * (a[0] * b[0] / count)


def zero_moments(size: int) -> Moments:
    return np.float64(0.0), np.zeros(size), np.zeros(size)


def scale_of(moments: Moments) -> tuple[Array, Array]:
    """(mean, 1 / deviation), float32 [D]; (0, 1) before anything was seen."""
    count, mean, m2 = moments
    if count < 2:
        return np.zeros_like(mean, dtype=np.float32), np.ones_like(mean, dtype=np.float32)
    return mean.astype(np.float32), (1.0 / np.sqrt(m2 / count + 1e-8)).astype(np.float32)


def _nth(items: Array) -> Array:
    """How often each [N] was there before."""
    order = np.argsort(items, kind="stable")
    nth = np.empty(len(items), np.int64)
    nth[order] = np.arange(len(items)) - np.searchsorted(items[order], items[order])
    return nth


class ReturnScaler:
    """Divides rewards by the running deviation of the discounted return (Engstrom et al. 2020, section 3)."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.moments = zero_moments(1)
        self.carry = np.zeros(0)
        """[streams of all workers] discounted return so far."""

    def scale(
        self,
        reward: Array,
        first: Array,
        valid: Array,
        collective: Collective | None = None,
        stream: Array | None = None,
    ) -> Array:
        """Scaled rewards [T, B]; takes the fragment into the moments first.

        reward [T, B], first [T+1, B] (row t begins an episode), valid [T, B]. stream [B]: which of all streams these are, one
        several times where its fragments lie side by side, the earliest first; without it, all of them in their order. With a
        `collective` the streams of its learners, in rank order, count as one fragment, and the state is the same in all of them.
        """
        num_rows, num_streams = reward.shape
        streams = [num_streams if stream is None else stream]
        if collective is not None:
            streams = collective.gather(streams[0])
        if stream is None:
            ends = np.cumsum([0, *streams])
            streams = [np.arange(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)]
        self._make_room(1 + max(int(s.max()) for s in streams))
        returns = np.empty((num_rows, num_streams))
        here = streams[0 if collective is None else collective.rank]
        nth = _nth(here)
        for k in range(nth.max() + 1):  # a stream whose next fragment is here too goes on there
            columns = np.flatnonzero(nth == k)
            passes, carry = ~first[:-1, columns] * self.gamma, self.carry[here[columns]]
            so_far = reward[:, columns].astype(np.float64)
            for t in range(num_rows):
                so_far[t] = carry = carry * passes[t] + so_far[t]
            returns[:, columns] = so_far
            self.carry[here[columns]] = carry
        seen = (self.carry[here], moments_of(returns[valid][:, None]))
        everywhere = [seen] if collective is None else collective.gather(seen)
        for of, (there, _) in zip(streams, everywhere, strict=True):
            self.carry[of] = there
        self.moments = merge_moments(self.moments, reduce(merge_moments, [m for _, m in everywhere]))
        _, inverse = scale_of(self.moments)
        return (reward * inverse[0]).astype(np.float32)

    def _make_room(self, num_streams: int) -> None:
        if len(self.carry) < num_streams:
            self.carry = np.concatenate([self.carry, np.zeros(num_streams - len(self.carry))])

    def state_dict(self) -> dict[str, Array]:
        count, mean, m2 = self.moments
        return {"count": np.asarray(count), "mean": mean, "m2": m2, "carry": self.carry.copy()}

    def load_state_dict(self, state: dict[str, Array]) -> None:
        self.moments = (np.float64(state["count"]), state["mean"].copy(), state["m2"].copy())
        self.carry = state["carry"].copy()
