"""Saved buffers go into another number of buffers: transitions stay what they were, wherever they come to lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fragments import make_replay

from raypid.loops.sources import share_of_saves
from raypid.replay.base import Replay
from raypid.replay.buffer import ReplaySpec
from raypid.types import Trajectory

T, B = 10, 2


def fragment(worker: int, k: int) -> Trajectory:
    """Row t of stream b shows the number of its step in this worker's stream; the reward repeats it."""
    step = np.arange(k * T, (k + 1) * T + 1)[:, None] + np.array([0, 500]) + 1000 * worker
    no = np.zeros((T, B), bool)
    first = np.zeros((T + 1, B), bool)
    first[0] = k == 0
    x = step.astype(np.float32)
    return Trajectory(
        obs=x[..., None], first=first, action=np.zeros((T, B), np.int64), reward=x[:-1], terminated=no, truncated=no,
        valid=~no,
    )  # fmt: skip


def filled(folder: Path, part: int, capacity: int, num: int) -> Replay:
    replay = make_replay(ReplaySpec(capacity=capacity, n_step=3, gamma=1.0, priority_exponent=0.6), part)
    for k in range(num):
        replay.add(part, fragment(part, k))
    replay.set_priorities(np.arange(replay.oldest, replay.count), np.full(min(capacity, replay.count), 2.0 + part))
    replay.save(folder / f"learner_{part}")
    return replay


def check(replay: Replay) -> Any:
    """Every window of three steps is that of one stream."""
    data = replay.sample(300).data
    obs, following = data.obs[:, 0], data.next_obs[:, 0]
    np.testing.assert_array_equal(following, obs + 3)
    np.testing.assert_array_equal(data.reward, 3 * obs + 3)
    return set(np.unique(obs // 1000).astype(int))


def test_parts_are_dealt_out(tmp_path: Path) -> None:
    for name in ("learner_10", "learner_2", "learner_0"):
        (tmp_path / name).mkdir()
    a, b, c = (tmp_path / f"learner_{i}" for i in (0, 2, 10))
    assert share_of_saves(tmp_path, 2) == ([[a, c], [b]], False)
    assert share_of_saves(tmp_path, 3) == ([[a], [b], [c]], True)
    assert share_of_saves(tmp_path, 5) == ([[a], [b], [c], [a], [b]], False)
    (tmp_path / "index.json").touch()
    assert share_of_saves(tmp_path, 1) == ([[tmp_path]], True)


@pytest.mark.parametrize("capacity", [60, 100, 250])
def test_three_saved_parts_go_into_one_buffer(tmp_path: Path, capacity: int) -> None:
    parts = [filled(tmp_path, i, 80, num) for i, num in enumerate((7, 2, 1))]  # the first one has wrapped
    there = [len(p) for p in parts]
    folders, draws = share_of_saves(tmp_path, 1)
    one = make_replay(ReplaySpec(capacity=capacity, n_step=3, gamma=1.0, priority_exponent=0.6))
    one.add(9, fragment(9, 0))  # what was there goes
    assert one.load(*folders[0], draws=draws) == len(one)
    kept = {1, 2} if capacity == 60 else {0, 1, 2}  # the newest rows
    assert check(one) == kept
    if capacity >= 250:
        assert len(one) == sum(there)
        for part, other in enumerate(parts):
            rows = one.columns["obs/"][:, 0] // 1000 == part
            ready = rows & one.columns["ready"]
            assert ready.sum() == len(other)
            np.testing.assert_allclose(one.tree.get(np.flatnonzero(ready)), (2.0 + part) ** 0.6)
    before = len(one)
    one.add(2, fragment(2, 1))  # a stream goes on where its part ended
    assert check(one) == kept and (len(one) > before or capacity < 250)
    one.save(tmp_path / "again")
    again = make_replay(one.spec)
    again.load(tmp_path / "again")
    np.testing.assert_array_equal(again.sample(50).id, one.sample(50).id)


def test_several_buffers_take_the_newest_of_one_and_draw_by_themselves(tmp_path: Path) -> None:
    filled(tmp_path, 0, 200, 8)
    folders, draws = share_of_saves(tmp_path, 2)
    spec = ReplaySpec(capacity=80, n_step=3, gamma=1.0)
    two = [make_replay(spec, i) for i in range(2)]
    for replay, folder in zip(two, folders, strict=True):
        replay.load(*folder, draws=draws)
        assert check(replay) == {0} and replay.sample(100).data.obs.min() >= 40
    assert not np.array_equal(two[0].sample(30).id, two[1].sample(30).id)
