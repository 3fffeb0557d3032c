"""Rows of buffers whose processes do not see the driver's disk: what is saved and loaded is the same, byte for byte."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fragments import World

from raypid.loops.sources import ShardedReplay
from raypid.plugins.registry import ALGORITHMS
from raypid.replay import disk
from raypid.replay.base import Replay
from raypid.replay.buffer import ReplaySpec
from raypid.replay.prioritized import PrioritizedReplay
from raypid.runtime.handle import Place, WorkerLost
from raypid.runtime.local import LocalBackend, LocalHandle, Value
from raypid.runtime.supervisor import Losses

SPEC = ReplaySpec(capacity=90, n_step=3, priority_exponent=0.6)


class Asked(PrioritizedReplay):
    """Notes which rows it is asked for."""

    asked: list[tuple[int, int]]

    def saved_columns(self, start: int, stop: int, changing: bool) -> Any:
        if not changing:
            self.__dict__.setdefault("asked", []).append((start, stop))
        return super().saved_columns(start, stop, changing)


class Lines:
    """Worker i feeds shard i."""

    def __init__(self, num: int) -> None:
        self.num = num

    def place(self, kind: Any, index: int) -> Place:
        return Place("shard", index)

    def feeds(self) -> list[int]:
        return list(range(self.num))


def source_of(num: int, kind: Callable[..., Replay], backend: Any = None) -> Any:
    config = ALGORITHMS.get("DQN").Config(
        env="x", num_replay_shards=num, num_workers=num, batch_size=num * 8, updates_per_call=1, buffer_size=num * 90,
        prioritized=True, fragment_length=4, num_envs_per_worker=1,
    )  # fmt: skip
    build = lambda index: partial(kind, SPEC, index)  # noqa: E731
    learner = LocalHandle(lambda: None)
    source: Any = ShardedReplay(backend or LocalBackend(), learner, config, Losses(5), build, Lines(num), most_kept=99)  # type: ignore[arg-type]
    source.losses.told = []
    source.losses.tell = source.losses.told.append
    return source


def replays(source: Any) -> list[Any]:
    return [handle.role for handle in source.buffers]


def fill(source: Any, worlds: list[World], turns: int) -> None:
    for worker, world in enumerate(worlds):
        for _ in range(turns):
            source.insert(worker, Value(world.turn()[1]))
    for worker, replay in enumerate(replays(source)):
        ids = np.arange(replay.oldest, replay.count)
        replay.set_priorities(ids, np.random.default_rng(worker).exponential(size=len(ids)))


def worlds_of(num: int) -> list[World]:
    return [World(SPEC, "same_step", seed, restarts=0, sizes=(2,)) for seed in range(num)]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def fingerprints(source: Any) -> list[str]:
    return [replay.fingerprint() for replay in replays(source)]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "PIECE_BYTES", 700)
    monkeypatch.setattr(disk, "_LINK_ROWS", 7)


def test_what_travels_is_written_as_its_own_process_would(tmp_path: Path, small_pieces: None) -> None:
    source, worlds = source_of(2, Asked), worlds_of(2)
    before, asked, stops = None, [0, 0], [0, 0]
    for turns in (8, 3, 20):  # the last time the ring has gone round
        fill(source, worlds, turns)
        folder = tmp_path / f"{turns}" / "replay"
        source.save(folder, before)
        for i, replay in enumerate(replays(source)):
            replay.save(folder.parent / "own" / f"shard_{i}", before and before.parent / "own" / f"shard_{i}")
            assert replay.asked[asked[i]][0] == max(replay.oldest, stops[i])  # only rows that are new
            asked[i] = len(replay.asked)
        assert files_of(folder) == files_of(folder.parent / "own")
        assert len(list((folder / "shard_0").glob("segment*"))) > 2
        if before is not None and turns == 3:
            old = next(iter(sorted((before / "shard_1").glob("segment*"))))
            assert os.path.samefile(old, folder / "shard_1" / old.name)  # linked
        before, stops = folder, [replay.count for replay in replays(source)]


@pytest.mark.parametrize("num", [1, 2, 3])
def test_any_number_of_buffers_loads_what_travels(num: int, tmp_path: Path, small_pieces: None) -> None:
    source, worlds = source_of(2, PrioritizedReplay), worlds_of(2)
    fill(source, worlds, 30)
    source.save(tmp_path, None)
    other = source_of(num, PrioritizedReplay)
    fill(other, worlds_of(num), 3)  # what was there goes
    other.load(tmp_path)
    assert num != 2 or fingerprints(other) == fingerprints(source)
    assert [r.num_ready for r in replays(other)] == other._held and min(other._held) > 20


class Steps(LocalBackend):
    """Futures have a value when this says so."""

    ready = True

    def wait(self, futures: Any, num: int = 1, timeout: float | None = None) -> Any:
        return super().wait(futures, num) if self.ready or timeout != 0 else ([], list(futures))


def lose(source: Any, index: int) -> None:
    source.shards.lose(index, "sample()", WorkerLost("gone"))


def test_a_lost_shard_gets_its_save_and_then_what_came_since(tmp_path: Path, small_pieces: None) -> None:
    backend = Steps()
    source, worlds = source_of(2, PrioritizedReplay, backend), worlds_of(2)
    fill(source, worlds, 8)
    saved = tmp_path / "checkpoint_000003" / "replay"
    source.save(saved, None)
    source.note_save(saved)
    like = copy.deepcopy(replays(source)[1])
    held = source._rows(1)
    backend.ready = False
    lose(source, 1)
    came = [worlds[1].turn()[1] for _ in range(3)]
    for fragment in came:
        source.insert(1, Value(fragment))
        assert replays(source)[1].count == 0
    before = files_of(saved / "shard_1")
    source.save(tmp_path / "next", saved)  # nobody waits for the shard: its part is that of the last save
    assert files_of(tmp_path / "next" / "shard_1") == before
    backend.ready = True
    while source._loading:
        source.holds(1)
    for fragment in came:
        like.add(1, fragment)
    newest = replays(source)[1]
    assert (newest.count, newest.num_ready) == (like.count, like.num_ready)
    assert held > 0 and source.losses.counts == {"shards": 1, "replay_rows": 0}
    (said,) = source.losses.told
    assert said.startswith(
        "Replay shard 1 of 2 died in sample(). It was filled from checkpoint_000003 and what was collected since; rows lost: 0."
    )


def test_a_save_that_is_gone_is_not_called_damaged(tmp_path: Path) -> None:
    source = source_of(2, PrioritizedReplay)
    fill(source, worlds_of(2), 4)
    source.note_save(tmp_path / "checkpoint_000003" / "replay")
    lose(source, 1)
    source.settle([1])
    (said,) = source.losses.told
    assert f"Its save cannot be read (There is no replay buffer in {source.saved}.)" in said and "damaged" not in said
    assert source.losses.counts["replay_rows"] > 0 and replays(source)[1].count == 0
