"""The arithmetic of evolution strategies: shared noise table, rank shaping, weighted sums of perturbations.

Axes: n pairs of antithetic perturbations; P weights.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from raypid.types import Array


@lru_cache(maxsize=1)
def noise_table(seed: int, size: int) -> Array:
    """Standard normal numbers, float32 [size], read-only.

    A perturbation is sent as an index into this table (Salimans et al. 2017, section 2.1). All callers in one process
    share one copy.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(4,)))
    table = rng.standard_normal(size, dtype=np.float32)
    table.flags.writeable = False
    return table


def centered_ranks(value: Array) -> Array:
    """Ranks of the elements of `value`, in its shape, from -0.5 (smallest) to 0.5 (largest). Ties get their mean rank."""
    _, which, count = np.unique(value, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count + 1) / 2
    return (rank[which] / max(1, value.size - 1) - 0.5).reshape(value.shape)


def weighted_sum(noise: Array, index: Array, weight: Array, size: int) -> Array:
    """Sum over k of weight[k] * noise[index[k] : index[k] + size], float32 [size]. index [n], weight [n]."""
    total = np.zeros(size, np.float32)
    for i, w in zip(index.tolist(), weight.tolist(), strict=True):
        if w:
            total += np.float32(w) * noise[i : i + size]
    return total
