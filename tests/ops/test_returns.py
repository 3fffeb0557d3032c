"""The one rule for ends of episodes: golden numbers, both autoreset layouts, and a plain reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from raypid.ops.returns import gae, next_values

F = np.float32


def column(*values: Any, dtype: Any = F) -> Any:
    return np.array(values, dtype)[:, None]


def golden(terminated: Any = (0, 0, 0), truncated: Any = (0, 0, 0), valid: Any = (1, 1, 1), final: Any = ()) -> Any:
    """Advantages of rewards 1, 2, 3 and values 4, 2, 8, 6 with gamma = lambda = 1/2."""
    value = column(4, 2, 8, 6)
    flags = (column(*x, dtype=bool) for x in (terminated, truncated, valid))
    following = next_values(value, *final)
    return gae(column(1, 2, 3), value[:-1], following, *flags, 0.5, 0.5)[:, 0].tolist()


def test_golden_without_an_end() -> None:
    # deltas: 1 + 2/2 - 4 = -2, 2 + 8/2 - 2 = 4, 3 + 6/2 - 8 = -2
    assert golden() == [-2 + 3.5 / 4, 4 - 2 / 4, -2]


def test_golden_termination_does_not_bootstrap() -> None:
    assert golden(terminated=(0, 1, 0)) == [-2 + 0 / 4, 2 - 2, -2]


def test_golden_truncation_bootstraps_from_what_followed() -> None:
    assert golden(truncated=(0, 1, 0)) == [-2 + 4 / 4, 2 + 8 / 2 - 2, -2]


def test_golden_truncation_bootstraps_from_the_final_observation() -> None:
    final = (np.array([1]), np.array([0]), np.array([10], F))
    assert golden(truncated=(0, 1, 0), final=final) == [-2 + 5 / 4, 2 + 10 / 2 - 2, -2]


def test_golden_both_flags_count_as_termination() -> None:
    assert golden(terminated=(0, 1, 0), truncated=(0, 1, 0)) == golden(terminated=(0, 1, 0))


def test_golden_invalid_row() -> None:
    # row 1 was a crash: row 0 bootstraps from V(obs[1]), the trace stops before row 1
    assert golden(valid=(1, 0, 1)) == [-2, 0, -2]


def test_ends_on_first_and_last_row() -> None:
    assert golden(terminated=(1, 0, 0)) == [1 - 4, 3.5, -2]
    assert golden(terminated=(0, 0, 1)) == [-2 + (4 - 5 / 4) / 4, 4 - 5 / 4, 3 - 8]
    assert golden(truncated=(0, 0, 1)) == golden()


def test_next_values_leaves_the_values_alone() -> None:
    value = column(4, 2, 8, 6)
    before = value.copy()
    following = next_values(value, np.array([2]), np.array([0]), np.array([9], F))
    assert following[:, 0].tolist() == [2, 8, 9]
    np.testing.assert_array_equal(value, before)
    assert next_values(value, np.array([], int), np.array([], int), np.array([], F))[:, 0].tolist() == [2, 8, 6]


@dataclass
class Episode:
    reward: Any  # [L]
    value: Any  # [L+1], the last one of the true last observation
    end: str  # terminated, truncated or crash

    def delta(self, i: int, gamma: float) -> float:
        last = i == len(self.reward) - 1
        following = 0.0 if last and self.end == "terminated" else self.value[i + 1]
        return self.reward[i] + gamma * following - self.value[i]


def random_episodes(rng: np.random.Generator, ends: Any, num: int = 12) -> list[Episode]:
    episodes = []
    for k in range(num):
        length = 1 if k % 3 == 0 else int(rng.integers(1, 6))
        episodes.append(Episode(rng.normal(size=length), rng.normal(size=length + 1), str(rng.choice(ends))))
    return episodes


Row = tuple[int, int]


@dataclass
class Stream:
    """One stream as an environment with a given autoreset mode shows it."""

    rows: list[Row | None]  # (episode, step), or None: an invalid row
    reward: Any
    value: Any
    flags: Any  # [3, T] terminated, truncated, valid
    final: dict[int, float]


def layout(episodes: list[Episode], mode: str) -> Stream:
    rows: list[Row | None] = []
    reward, value, flags, final = [], [], [], {}
    for k, e in enumerate(episodes):
        last = len(e.reward) - 1
        for i, r in enumerate(e.reward):
            ends = (i == last and e.end == "terminated", i == last and e.end == "truncated", True)
            rows.append((k, i))
            reward.append(r)
            value.append(e.value[i])
            flags.append(ends)
        if mode == "next_step" or e.end == "crash":  # the row that resets; a crashed step looks the same
            rows.append(None)
            reward.append(0.0)
            value.append(e.value[-1])
            flags.append((False, False, False))
        else:
            final[len(rows) - 1] = e.value[-1]
    value.append(0.5)  # of the next episode's first observation
    return Stream(rows, np.array(reward, F), np.array(value, F), np.array(flags).T, final)


def advantage_of(s: Stream, start: int, stop: int, gamma: float, lambda_: float) -> Any:
    value = s.value[start : stop + 1, None]
    at = [t for t in s.final if start <= t < stop]
    final = np.array([t - start for t in at], int), np.zeros(len(at), int), np.array([s.final[t] for t in at], F)
    cut = slice(start, stop)
    flags = [f[cut, None] for f in s.flags]
    return gae(s.reward[cut, None], value[:-1], next_values(value, *final), *flags, gamma, lambda_)[:, 0]


def reference(episodes: list[Episode], s: Stream, start: int, stop: int, gamma: float, lambda_: float) -> list[float]:
    """The definition, a sum of TD errors up to the end of the episode or of the fragment, for each valid row."""
    result = []
    for t in range(start, stop):
        total, row = 0.0, s.rows[t]
        if row is not None:
            k, i = row
            for j in range(min(len(episodes[k].reward) - i, stop - t)):
                total += (gamma * lambda_) ** j * episodes[k].delta(i + j, gamma)
        result.append(total)
    return result


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("seed", range(4))
def test_every_fragment_equals_the_definition(mode: str, seed: int) -> None:
    """Fragments cut everywhere, so that ends lie on first and last rows; episodes of length 1; crashes."""
    rng = np.random.default_rng(seed)
    episodes = random_episodes(rng, ["terminated", "truncated", "crash"])
    s = layout(episodes, mode)
    for start in range(0, len(s.rows) - 1, 2):
        for stop in range(start + 1, len(s.rows) + 1, 3):
            expected = reference(episodes, s, start, stop, 0.9, 0.8)
            np.testing.assert_allclose(advantage_of(s, start, stop, 0.9, 0.8), expected, atol=2e-5)


@pytest.mark.parametrize("seed", range(5))
def test_both_layouts_give_the_same_advantages(seed: int) -> None:
    episodes = random_episodes(np.random.default_rng(seed), ["terminated", "truncated"])
    by_mode = []
    for mode in ("next_step", "same_step"):
        s = layout(episodes, mode)
        advantage = advantage_of(s, 0, len(s.rows), 0.97, 0.9)
        valid = s.flags[2]
        assert (advantage[~valid] == 0).all()
        by_mode.append(advantage[valid])
    assert len(by_mode[0]) < len(layout(episodes, "next_step").rows)
    np.testing.assert_array_equal(*by_mode)


@pytest.mark.parametrize("seed", range(3))
def test_lambda_one_is_the_n_step_return(seed: int) -> None:
    """With lambda = 1 advantage + value is the discounted sum of rewards up to the end, or to the fragment's end."""
    episodes = random_episodes(np.random.default_rng(seed), ["terminated", "truncated"])
    s = layout(episodes, "next_step")
    stop, gamma = len(s.rows) - 4, 0.95
    advantage = advantage_of(s, 0, stop, gamma, 1.0)
    for t, row in enumerate(s.rows[:stop]):
        if row is None:
            continue
        e, i = episodes[row[0]], row[1]
        n = min(len(e.reward) - i, stop - t)
        target = sum(gamma**j * e.reward[i + j] for j in range(n))
        if not (i + n == len(e.reward) and e.end == "terminated"):
            target += gamma**n * e.value[i + n]
        assert advantage[t] + s.value[t] == pytest.approx(target, abs=2e-5)


def test_lambda_zero_is_the_td_error() -> None:
    episodes = random_episodes(np.random.default_rng(0), ["terminated", "truncated"])
    s = layout(episodes, "same_step")
    expected = [episodes[k].delta(i, 0.9) for k, i in s.rows]  # type: ignore[misc]
    np.testing.assert_allclose(advantage_of(s, 0, len(s.rows), 0.9, 0.0), expected, atol=1e-5)


def test_a_batch_equals_its_streams_one_by_one() -> None:
    rng = np.random.default_rng(0)
    t, b = 20, 5
    reward, value, following = (rng.normal(size=(t, b)).astype(F) for _ in range(3))
    terminated, truncated, valid = (rng.random((t, b)) < p for p in (0.15, 0.15, 0.8))
    columns = (reward, value, following, terminated, truncated, valid)
    whole = gae(*columns, 0.99, 0.95)
    parts = [gae(*(c[:, i : i + 1] for c in columns), 0.99, 0.95) for i in range(b)]
    np.testing.assert_array_equal(whole, np.concatenate(parts, 1))
    assert whole.dtype == F and whole.shape == (t, b)


def test_arguments_are_not_written() -> None:
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=(6, 2)).astype(F) for _ in range(3)] + [rng.random((6, 2)) < 0.5 for _ in range(3)]
    before = [c.copy() for c in columns]
    gae(*columns, 0.99, 0.95)
    for a, b in zip(columns, before):
        np.testing.assert_array_equal(a, b)
