"""The sum tree against plain sums, and its draws against the probabilities that they should have."""

from __future__ import annotations

import numpy as np
import pytest

from raypid.ops.sum_tree import FAN, TOP, SumTree, cumulative_sums

CAPACITIES = [1, 2, FAN + 1, 1000, TOP - 1, TOP, TOP + 1, 40_000, TOP * FAN, TOP * FAN + 7, 1_000_000]


class Edge(np.random.Generator):
    """Its random numbers are the smallest, or the largest below 1."""

    def __init__(self, number: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.number = number

    def random(self, size):  # type: ignore[no-untyped-def, override]
        return np.full(size, self.number)


RANDOM = [np.random.default_rng(3), Edge(0.0), Edge(np.nextafter(1, 0))]


def priorities_of(tree: SumTree, capacity: int) -> np.ndarray:
    return tree.get(np.arange(capacity))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_sums_after_many_sets(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    tree, expected = SumTree(capacity), np.zeros(capacity)
    assert tree.total == 0
    for turn in range(30):
        slots = rng.integers(capacity, size=min(300, capacity))
        if turn % 3 == 0:  # rows that follow each other round the end of the ring, some of them twice
            slots = (slots[0] + np.arange(len(slots)) // (turn % 2 + 1)) % capacity
        values = rng.exponential(size=len(slots)) * (rng.random(len(slots)) < 0.8)
        tree.set(slots, values)
        for slot, value in zip(slots, values, strict=True):
            expected[slot] = value
        np.testing.assert_array_equal(priorities_of(tree, capacity), expected)
        assert tree.total == pytest.approx(expected.sum(), rel=1e-12)
        for below, level in zip(tree.levels, tree.levels[1:], strict=False):
            np.testing.assert_allclose(below.reshape(-1, FAN).sum(1), level[: len(below) // FAN], rtol=1e-12)


def test_of_a_slot_that_comes_twice_the_last_counts() -> None:
    tree = SumTree(100)
    tree.set(np.array([7, 50, 7, 7]), np.array([5.0, 1.0, 3.0, 2.0]))
    assert tree.get(np.array([7, 50])).tolist() == [2, 1]
    assert tree.total == 3


def test_no_rounding_stays_behind() -> None:
    """Sums are formed anew, so what was large and went leaves nothing."""
    tree = SumTree(5000)
    tree.set(np.arange(5000), np.full(5000, 1e-3))
    tree.set(np.array([17]), np.array([1e17]))
    tree.set(np.array([17]), np.array([0.0]))
    assert tree.total == pytest.approx(4.999, rel=1e-12)


@pytest.mark.parametrize("capacity", [1, 5, FAN, 100, TOP + 7])
def test_draws_are_proportional(capacity: int) -> None:
    rng = np.random.default_rng(1)
    tree = SumTree(capacity)
    priority = rng.exponential(size=capacity) * (rng.random(capacity) < 0.7)
    priority[capacity // 2] = 1.0
    tree.set(np.arange(capacity), priority)
    num, calls = 200, 500
    counts = np.bincount(np.concatenate([tree.sample(num, rng) for _ in range(calls)]), minlength=capacity)
    assert len(counts) == capacity and counts[priority == 0].sum() == 0
    expected = num * calls * priority / priority.sum()
    there = priority > 0
    chi_square = ((counts - expected)[there] ** 2 / expected[there]).sum()
    freedom = there.sum() - 1
    assert chi_square <= freedom + 4 * np.sqrt(2 * freedom)


def test_each_draw_has_its_own_part_of_the_total() -> None:
    tree = SumTree(64)
    tree.set(np.arange(64), np.ones(64))
    for seed in range(20):
        drawn = tree.sample(64, np.random.default_rng(seed))
        np.testing.assert_array_equal(np.sort(drawn), np.arange(64))
        assert np.abs(np.corrcoef(drawn, np.arange(64))[0, 1]) < 0.5  # several batches may be cut from it


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_draws_are_those_of_one_cumulative_sum(capacity: int) -> None:
    """Whole numbers, so that no sum is rounded; most of the priorities are 0."""
    rng = np.random.default_rng(capacity)
    tree, priority = SumTree(capacity), np.zeros(capacity)
    for num in (1, 2, 256, 1025):
        slots = rng.integers(capacity, size=capacity // 3 + 1)
        priority[slots] = rng.integers(1, 1000, len(slots)) * (rng.random(len(slots)) < 0.5)
        priority[slots[0]] = 7
        tree.set(slots, priority[slots])
        seed = int(rng.integers(1000))
        drawn, again = tree.sample(num, np.random.default_rng(seed)), np.random.default_rng(seed)
        part = again.permutation(num)
        x = (part + again.random(num)) * (priority.sum() / num)
        np.testing.assert_array_equal(drawn, np.searchsorted(priority.cumsum(), x, "right"))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_change_counts_in_the_next_draw(capacity: int) -> None:
    tree = SumTree(capacity)
    for slot in (0, capacity - 1, capacity // 2, 0):
        tree.set(np.array([slot]), np.ones(1))
        tree.set(np.empty(0, np.int64), np.empty(0))
        for rng in RANDOM:
            assert (tree.sample(5, rng) == slot).all()
        tree.set(np.array([slot]), np.zeros(1))
        assert tree.total == 0


@pytest.mark.parametrize("num", [1, 2, 3, 7, 64, 1025])
def test_cumulative_sums_of_a_node_never_fall(num: int) -> None:
    rng = np.random.default_rng(num)
    for _ in range(20):
        rows = 10.0 ** rng.uniform(-20, 20, (num, FAN)) * (rng.random((num, FAN)) < rng.random())
        sums = cumulative_sums(rows)
        steps = np.diff(sums, axis=1)
        assert (steps >= 0).all() and (steps[rows[:, 1:] == 0] == 0).all()
        np.testing.assert_allclose(sums, rows.cumsum(1), rtol=1e-14)


@pytest.mark.parametrize("capacity", [c for c in CAPACITIES if c > 2])
def test_nothing_without_priority_is_ever_drawn(capacity: int) -> None:
    """Priorities over thirty orders of magnitude, single slots at the ends, runs of zeros around them, and the smallest number."""
    rng = np.random.default_rng(2)
    tree = SumTree(capacity)
    for case in range(20):
        where = rng.integers(capacity, size=rng.choice([3, min(capacity, 2000)])) if case else np.array([capacity - 1])
        priority = 10.0 ** rng.uniform(-15, 15, len(where)) if case != 1 else np.full(len(where), 5e-324)
        tree.set(where, priority)
        for draws in RANDOM:
            for num in (500, 3):
                assert (tree.get(tree.sample(num, draws)) > 0).all()
        tree.set(where, np.zeros(len(where)))


@pytest.mark.parametrize("capacity", [1100, 6000, TOP * FAN + 110])
def test_the_largest_number_that_can_be_drawn_is_inside(capacity: int) -> None:
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), np.r_[np.full(capacity - 100, 0.1), np.zeros(100)])
    assert tree.sample(7, RANDOM[-1]).max() == capacity - 101


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("priority", [0.0, np.nan, np.inf])
def test_what_cannot_be_drawn_from_gives_slots_that_are_there(capacity: int, priority: float) -> None:
    tree = SumTree(capacity)
    tree.set(np.array([capacity // 2]), np.array([priority]))
    with np.errstate(invalid="ignore"):
        drawn = tree.sample(20, RANDOM[0])
    assert (drawn >= 0).all() and (drawn < capacity).all()
