"""Statistics over seeds, against numbers worked out elsewhere (SciPy 1.17, tables) and by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from raypid.report.statistics import (
    Column,
    bootstrap_interval,
    difference,
    iqm,
    mean_half_width,
    probability_of_improvement,
    seeds_needed,
    t_quantile,
    t_tail,
)

X, Y = np.array([27.5, 21.0, 19.0, 23.6, 17.0, 17.9]), np.array([27.1, 22.0, 20.8, 23.4, 30.5])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 9.0], 4.0),  # a quarter of 3 is no whole value
        ([9.0, 1.0, 3.0, 2.0], 2.5),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 800.0], 4.5),
        ([0.0, 10.0, 20.0, 30.0, 400.0], 20.0),
    ],
)
def test_interquartile_mean_by_hand(values: list[float], expected: float) -> None:
    assert iqm(np.array(values)) == pytest.approx(expected)
    np.testing.assert_allclose(iqm(np.array([values, values]).T), [expected, expected])


@pytest.mark.parametrize(
    ("level", "freedom", "expected"),
    [
        (0.95, 1, 12.7062),
        (0.95, 2, 4.30265),
        (0.95, 4, 2.77645),
        (0.99, 10, 3.16927),
        (0.95, 1000, 1.96234),
        (0.999, 1, 636.619),
    ],
)
def test_students_t_as_in_tables(level: float, freedom: float, expected: float) -> None:
    assert t_quantile(level, freedom) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("t", [0.0, 0.3, 2.0, 50.0])
def test_students_t_where_it_has_a_formula(t: float) -> None:
    assert t_tail(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-6)
    assert t_tail(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-6)


def test_difference_is_welchs() -> None:
    found = difference([X], [Y])  # scipy.stats.ttest_ind(X, Y, equal_var=False)
    assert found.p == pytest.approx(0.1543359528735125, abs=1e-5) and not found.is_sure
    assert (found.low, found.high) == pytest.approx((-9.24400481518028, 1.724004815180277), rel=1e-4)
    assert found.estimate == pytest.approx(21.0 - 24.76)


def test_paired_difference() -> None:
    found = difference([X[:5]], [Y], paired=True)  # scipy.stats.ttest_rel
    assert found.p == pytest.approx(0.2970407457143668, abs=1e-5)
    assert (found.low, found.high) == pytest.approx((-10.417040904886111, 4.137040904886111), rel=1e-4)


def test_tasks_are_averaged_and_their_errors_add_up() -> None:
    one, two = difference([X], [Y]), difference([X, X], [Y, Y])
    assert two.estimate == pytest.approx(one.estimate)
    half = t_quantile(0.95, 2 * 8.624669089042927) * (one.high - one.estimate) / t_quantile(0.95, 8.624669089042927)
    assert two.high - two.estimate == pytest.approx(half / math.sqrt(2), rel=1e-3)


def test_few_runs_are_never_sure() -> None:
    single = difference([np.array([500.0])], [np.array([10.0, 11.0, 12.0])])
    assert single.estimate == 489 and math.isnan(single.low) and math.isnan(single.p) and not single.is_sure
    assert not difference([np.array([500.0, 500.1])], [np.array([10.0, 10.1])]).is_sure
    assert difference([np.array([500.0, 501.0, 502.0])], [np.array([10.0, 11.0, 12.0])]).is_sure


def test_no_spread_at_all_is_decided_by_counting() -> None:
    """Three of one side above three of the other come by chance once in ten, four above four once in 35."""
    for count, sure in ((3, False), (4, True)):
        found = difference([np.full(count, 5.0)], [np.full(count, 4.0)])
        assert found.p == pytest.approx(2 / math.comb(2 * count, count)) and found.is_sure is sure
    assert seeds_needed([np.full(3, 5.0)], [np.full(3, 4.0)]) == 4
    alike = difference([np.full(9, 5.0)], [np.full(9, 5.0)])
    assert alike.p == 1 and not alike.is_sure


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Column:
    return rng.normal(size=shape)


def failing(rng: np.random.Generator, shape: tuple[int, ...]) -> Column:
    return np.where(rng.random(shape) < 0.3, 50.0, 500.0) + 10 * rng.normal(size=shape)


def capped(rng: np.random.Generator, shape: tuple[int, ...]) -> Column:
    return np.minimum(500.0, 480 + 40 * rng.normal(size=shape))


@pytest.mark.parametrize(("draw", "count"), [(normal, 3), (normal, 5), (failing, 5), (capped, 3)])
def test_equal_groups_are_seldom_told_apart(draw: Callable[..., Column], count: int) -> None:
    """The rate is 1 to 5%; 400 pairs of a fixed generator show at most 7.5%. A bootstrap of 3 seeds would show about 20%."""
    rng = np.random.default_rng(3)
    pairs = draw(rng, (400, 2, count))
    assert np.mean([difference([a], [b]).is_sure for a, b in pairs]) <= 0.075


def test_bootstrap_of_two_runs_reaches_from_one_to_the_other() -> None:
    low, high = bootstrap_interval(np.array([3.0, 8.0]), "mean")
    assert (low, high) == (3.0, 8.0)
    assert np.isnan(bootstrap_interval(np.array([3.0]))).all()


def test_bootstrap_of_many_runs_is_as_the_normal_approximation() -> None:
    values = np.random.default_rng(0).normal(10.0, 2.0, 400)
    low, high = bootstrap_interval(values, "mean")
    half = 1.96 * values.std() / math.sqrt(400)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)


def test_bootstrap_is_deterministic_and_draws_runs_whole() -> None:
    curve = np.random.default_rng(1).normal(size=(6, 3))
    low, high = bootstrap_interval(np.concatenate([curve, curve], axis=1))
    np.testing.assert_array_equal(low[:3], low[3:])
    again = bootstrap_interval(np.concatenate([curve, curve], axis=1))
    np.testing.assert_array_equal((low, high), again)


def test_probability_of_improvement_by_hand() -> None:
    a, b = np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.0])
    # pairs: 1>0, 2=2, 2>0, 3>2, 3>0 of 6
    assert probability_of_improvement([a], [b]) == pytest.approx(4.5 / 6)
    assert probability_of_improvement([a, b], [b, a]) == pytest.approx(0.5)
    assert probability_of_improvement([X], [Y]) == pytest.approx(0.26666666666666666)  # scipy.stats.mannwhitneyu / 30


@pytest.mark.parametrize(("gap", "count"), [(1.0, 17), (0.5, 64), (0.8, 26), (0.02, None)])
def test_seeds_needed_as_in_tables(gap: float, count: int | None) -> None:
    """Cohen (1988), two-sided 5%, power 80%; the normal approximation may be off by one."""
    unit = np.array([-1.0, 0.0, 1.0])  # variance 1
    found = seeds_needed([unit + gap], [unit])
    assert found == count if count is None or found is None else abs(found - count) <= 1
    assert seeds_needed([unit], [unit]) is None and seeds_needed([unit[:1]], [unit]) is None


def test_half_width_of_a_mean() -> None:
    assert mean_half_width(np.array([1.0, 2.0, 3.0])) == pytest.approx(4.30265 / math.sqrt(3), rel=1e-4)
    assert math.isnan(mean_half_width(np.array([1.0])))
