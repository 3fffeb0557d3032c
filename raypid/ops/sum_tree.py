"""Drawing in proportion to changing priorities: a sum tree with wide nodes, vectorised over the draws."""

from __future__ import annotations

import numpy as np

from raypid.types import Array, Collective

FAN = 16
"""Children of a node. A draw looks at one row of FAN cumulative sums on each level."""
TOP = 4096
"""Most nodes of the top level, which is searched by bisection; a million leaves need two levels below it."""


class SumTree:
    """Priorities [capacity] >= 0 of slots, all 0 at first. Sums are always recomputed from below, so no error builds up."""

    def __init__(self, capacity: int) -> None:
        self.levels: list[Array] = []  # leaves first; every level but the last is a multiple of FAN long
        size = capacity
        while size > TOP:
            size = -(-size // FAN)
            self.levels.append(np.zeros(size * FAN))
        self.levels.append(np.zeros(size))

    @property
    def total(self) -> float:
        return float(self.levels[-1].sum())

    def get(self, slots: Array) -> Array:
        """Priorities [n] of slots [n]."""
        return self.levels[0][slots]

    def set(self, slots: Array, priorities: Array) -> None:
        """Set the priorities [n] of slots [n]. If a slot occurs twice, its last priority counts."""
        self.levels[0][slots] = priorities
        for below, level in zip(self.levels, self.levels[1:], strict=False):
            slots = slots // FAN
            level[slots] = below.reshape(-1, FAN)[slots].sum(1)

    def sample(self, num: int, rng: np.random.Generator) -> Array:
        """Draw slots [num] in proportion to their priorities, one from each of `num` equal parts of the total (Schaul et al. 2016,
        appendix B.2.1). They come in random order, so rows for several batches may be drawn at once."""
        top, draws, part = self.levels[-1], np.arange(num), rng.permutation(num)
        cumulative = top.cumsum()
        x = np.empty(num)
        x[part] = rng.random(num)
        x = (draws + x) * (cumulative[-1] / num)  # in order, so that neighbours read the same memory
        last = np.flatnonzero(top).max(initial=0)  # the last node with a priority above 0
        node = np.minimum(np.searchsorted(cumulative, x, "right"), last)
        x -= cumulative[node] - top[node]
        for level in self.levels[-2::-1]:
            rows = level.reshape(-1, FAN)[node]
            sums = rows.cumsum(1)
            # rounding must lead neither before the first child with a priority above 0 nor past the last
            x = np.minimum(np.maximum(x, 0), np.nextafter(sums[:, -1], 0))
            child = (sums > x[:, None]).argmax(1)
            x -= sums[draws, child] - rows[draws, child]
            node = node * FAN + child
        return node[part]


def importance(probability: Array, num_rows: int, beta: float, collective: Collective | None = None) -> Array:
    """Importance weights (N * P)^-beta / max [n] float32, for probabilities [n] (Schaul et al. 2016, section 3.4). With a
    collective, the maximum is that over all learners' rows."""
    if not beta:
        return np.ones(len(probability), np.float32)
    weight = (num_rows * probability) ** -beta
    largest = weight.max()
    if collective is not None:
        largest = max(collective.gather(float(largest)))
    return (weight / largest).astype(np.float32)
