"""Running moments: parts equal the whole; the return scaler equals a plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raypid.ops.normalizer import (
    ReturnScaler,
    inverse_deviation,
    merge_moments,
    moments_of,
    scale_of,
    zero_moments,
)


def test_moments_by_hand() -> None:
    count, mean, m2 = moments_of(np.array([[1.0, 0.0], [3.0, 0.0], [5.0, 3.0]]))
    assert count == 3 and mean.tolist() == [3, 1] and m2.tolist() == [8, 6]
    mean, inverse = scale_of((count, mean, m2))
    np.testing.assert_allclose(inverse, [1 / np.sqrt(8 / 3), 1 / np.sqrt(2)], rtol=1e-5)
    assert mean.dtype == inverse.dtype == np.float32


@pytest.mark.parametrize("cuts", [[], [1], [0, 7, 7, 30], [10, 20, 39]])
def test_merged_parts_equal_the_whole(cuts: list[int]) -> None:
    rows = np.random.default_rng(0).normal(1000.0, 3.0, (40, 3))
    merged = zero_moments(3)
    for part in np.split(rows, cuts):
        merged = merge_moments(merged, moments_of(part))
    for a, b in zip(merged, moments_of(rows)):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    np.testing.assert_allclose(merged[1], rows.mean(0))
    np.testing.assert_allclose(merged[2] / merged[0], rows.var(0))


def test_nothing_merged_with_nothing() -> None:
    count, mean, m2 = merge_moments(zero_moments(2), moments_of(np.zeros((0, 2))))
    assert count == 0 and mean.tolist() == [0, 0] and m2.tolist() == [0, 0]


def test_nothing_seen_scales_nothing() -> None:
    for rows in (np.zeros((0, 2)), np.full((1, 2), 7.0)):
        mean, inverse = scale_of(moments_of(rows))
        assert mean.tolist() == [0, 0] and inverse.tolist() == [1, 1]


def test_float32_rows_keep_their_precision() -> None:
    rows = np.random.default_rng(0).normal(1e4, 1.0, (1000, 1)).astype(np.float32)
    _, inverse = scale_of(moments_of(rows))
    assert inverse[0] == pytest.approx(1 / rows.astype(np.float64).std(), rel=1e-4)


def naive_scaled(calls: list[tuple[Any, Any, Any]], gamma: float) -> list[Any]:
    """Scaled rewards of each call, stream by stream and step by step."""
    seen: list[float] = []
    running = [0.0] * calls[0][0].shape[1]
    scaled = []
    for reward, first, valid in calls:
        for b in range(reward.shape[1]):
            for t in range(len(reward)):
                if first[t, b]:
                    running[b] = 0.0
                running[b] = running[b] * gamma + float(reward[t, b])
                if valid[t, b]:
                    seen.append(running[b])
        scaled.append(reward / np.sqrt(np.var(seen) + 1e-8))
    return scaled


def random_calls(seed: int = 0) -> list[tuple[Any, Any, Any]]:
    rng = np.random.default_rng(seed)
    calls = []
    for _ in range(3):
        valid = rng.random((9, 4)) < 0.8
        reward = np.where(valid, rng.normal(3, 2, (9, 4)), 0).astype(np.float32)
        calls.append((reward, rng.random((10, 4)) < 0.3, valid))
    return calls


def test_return_scaler_equals_a_loop_across_calls() -> None:
    calls, scaler = random_calls(), ReturnScaler(0.9)
    for call, expected in zip(calls, naive_scaled(calls, 0.9)):
        scaled = scaler.scale(*call)
        np.testing.assert_allclose(scaled, expected, rtol=1e-4)
        assert scaled.dtype == np.float32


@pytest.mark.parametrize("ids", [[0, 1, 0, 1, 0], [2, 2, 2], [1, 0, 0]])
def test_fragments_of_one_stream_side_by_side_follow_each_other(ids: list[int]) -> None:
    rng = np.random.default_rng(0)
    joined, apart = ReturnScaler(0.9), ReturnScaler(0.9)
    for _ in range(4):
        reward = rng.normal(3, 2, (9, len(ids))).astype(np.float32)
        first, valid = rng.random((10, len(ids))) < 0.1, np.ones((9, len(ids)), bool)
        joined.scale(reward, first, valid, stream=np.array(ids))
        for k, stream in enumerate(ids):
            one = slice(k, k + 1)
            apart.scale(reward[:, one], first[:, one], valid[:, one], stream=np.array([stream]))
        np.testing.assert_allclose(joined.carry, apart.carry)
        for ours, theirs in zip(joined.moments, apart.moments, strict=True):
            np.testing.assert_allclose(ours, theirs)


def test_return_scaler_goes_on_from_its_state() -> None:
    calls, whole, part = random_calls(1), ReturnScaler(0.9), ReturnScaler(0.9)
    whole.scale(*calls[0])
    part.load_state_dict(ReturnScaler(0.9).state_dict())  # a fresh one has a state, too
    assert len(part.carry) == 0
    part.load_state_dict(whole.state_dict())
    np.testing.assert_array_equal(part.scale(*calls[1]), whole.scale(*calls[1]))


def test_return_scaler_survives_another_number_of_streams() -> None:
    scaler = ReturnScaler(0.9)
    for reward, first, valid in random_calls():
        scaler.scale(reward, first, valid)
    reward, first, valid = (x[:, :2] for x in random_calls()[0])
    assert np.isfinite(scaler.scale(reward, first, valid)).all()


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e6, 1e30])
def test_rewards_of_every_size_become_the_same(size: float) -> None:
    plain, scaler = ReturnScaler(0.9), ReturnScaler(0.9)
    for reward, first, valid in random_calls():
        scaled = scaler.scale(reward * np.float32(size), first, valid)
        np.testing.assert_allclose(scaled, plain.scale(reward, first, valid), rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "inverse"),
    [
        ([], 1.0), ([0.0, 0.0], 1.0), ([0.1] * 7, 10.0), ([-1e6, -1e6], 1e-6), ([1e6, 1e6 + 0.01], 1e-6),
        ([1e6 - 1, 1e6 + 1], 1.0), ([-1e-9, 1e-9], 1e9),
    ],
)  # fmt: skip
def test_returns_that_do_not_differ_are_divided_by_their_size(rows: list[float], inverse: float) -> None:
    assert inverse_deviation(moments_of(np.array(rows).reshape(-1, 1))) == pytest.approx(inverse, rel=1e-6)
