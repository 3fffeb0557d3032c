"""What evolution strategies compute: the shared noise table, rank shaping, sums of perturbations.

Axes: n pairs of antithetic perturbations; P weights.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from raypid.types import Array


@lru_cache(maxsize=1)
def noise_table(seed: int, size: int) -> Array:
    """Standard normal numbers [size] float32, read-only: a perturbation travels as an index into it (Salimans et al. 2017,
    section 2.1). In one process all who ask for it share it."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(4,)))
    table = rng.standard_normal(size, dtype=np.float32)
    table.flags.writeable = False
    return table


def centered_ranks(value: Array) -> Array:
    """Ranks of all elements of `value`, from -0.5 for the smallest to 0.5 for the largest, in its shape; equal ones share their mean."""
    _, which, count = np.unique(value, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count + 1) / 2
    return (rank[which] / max(1, value.size - 1) - 0.5).reshape(value.shape)


def weighted_sum(noise: Array, index: Array, weight: Array, size: int) -> Array:
    """sum_k weight[k] * noise[index[k] : index[k] + size], [size] float32. index [n], weight [n]."""
    total = np.zeros(size, np.float32)
    for i, w in zip(index.tolist(), weight.tolist(), strict=True):
        if w:
            total += np.float32(w) * noise[i : i + size]
    return total
