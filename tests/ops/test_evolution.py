"""Rank shaping, the noise table and sums from it."""

from __future__ import annotations

import numpy as np
import pytest

from raypid.ops.evolution import centered_ranks, noise_table, weighted_sum


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([[1.0, 5.0], [3.0, -2.0]], [[-1 / 6, 0.5], [1 / 6, -0.5]]),
        ([[4.0, 4.0], [4.0, 4.0]], [[0, 0], [0, 0]]),
        ([[0.0, 7.0], [7.0, 9.0]], [[-0.5, 0], [0, 0.5]]),
        ([[2.0, 1e9]], [[-0.5, 0.5]]),
    ],
)
def test_centered_ranks_by_hand(value: list[list[float]], expected: list[list[float]]) -> None:
    np.testing.assert_allclose(centered_ranks(np.array(value)), expected, atol=1e-12)


def test_ranks_sum_to_zero_and_follow_the_order() -> None:
    value = np.random.default_rng(0).normal(size=(50, 2)).round(1)  # with equal ones
    ranks = centered_ranks(value)
    assert abs(ranks.sum()) < 1e-9 and ranks.min() >= -0.5 and ranks.max() <= 0.5
    order = np.argsort(value.ravel())
    assert (np.diff(ranks.ravel()[order]) >= 0).all()
    np.testing.assert_allclose(ranks, centered_ranks(np.exp(value)))


def test_the_table_is_standard_normal_and_its_own_by_seed() -> None:
    table = noise_table(3, 100_000)
    assert table.dtype == np.float32 and table.shape == (100_000,)
    assert abs(table.mean()) < 0.02 and abs(table.std() - 1) < 0.02
    np.testing.assert_array_equal(table[:10], noise_table(3, 100_000)[:10])
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1


def test_weighted_sum_is_a_product_with_the_gathered_rows() -> None:
    rng = np.random.default_rng(0)
    noise, index, weight = noise_table(0, 1_000), rng.integers(900, size=20), rng.normal(size=20)
    weight[3] = 0
    rows = np.stack([noise[i : i + 100] for i in index])
    np.testing.assert_allclose(weighted_sum(noise, index, weight, 100), weight @ rows, rtol=1e-4, atol=1e-5)
