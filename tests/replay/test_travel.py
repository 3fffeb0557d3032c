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
from raypid.replay.base import NOT_SEEN, Replay
from raypid.replay.buffer import ReplaySpec
from raypid.replay.prioritized import PrioritizedReplay
from raypid.runtime.handle import OTHER, Place, WorkerLost
from raypid.runtime.local import LocalBackend, LocalHandle, Value
from raypid.runtime.supervisor import Losses
from raypid.storage.outputs import Unwritten

SPEC = ReplaySpec(capacity=90, n_step=3, priority_exponent=0.6)


class Blind(PrioritizedReplay):
    """In a process that sees nothing of the driver's disk."""

    asked: list[tuple[int, int]]

    def sees(self, proof: Any) -> bool:
        return not proof

    def saved_columns(self, start: int, stop: int, changing: bool) -> Any:
        if not changing:
            self.__dict__.setdefault("asked", []).append((start, stop))
        return super().saved_columns(start, stop, changing)


class Elsewhere(PrioritizedReplay):
    """In a process with another current folder."""

    def save(self, *args: Any) -> bool:
        before = os.getcwd()
        os.chdir("/")
        try:
            return super().save(*args)
        finally:
            os.chdir(before)


class Forgetful(PrioritizedReplay):
    """It saves nothing, and says that it has."""

    def save(self, *args: Any) -> bool:
        return True


class Lines:
    """Worker i feeds shard i."""

    def __init__(self, num: int) -> None:
        self.num = num

    def place(self, kind: Any, index: int) -> Place:
        return OTHER

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
    source, worlds = source_of(2, Blind), worlds_of(2)
    before, said, stops = None, [0, 0], [0, 0]
    for turns in (8, 3, 20):  # the last time the ring has gone round
        fill(source, worlds, turns)
        folder = tmp_path / f"{turns}" / "replay"
        source.save(folder, before)
        for i, replay in enumerate(replays(source)):
            replay.save(
                str(tmp_path / f"{turns}" / "own" / f"shard_{i}"), before and str(before.parent / "own" / f"shard_{i}")
            )
            assert replay.asked[said[i]][0] == max(replay.oldest, stops[i])  # only rows that are new
            said[i] = len(replay.asked)
        assert files_of(folder) == files_of(folder.parent / "own")
        assert len(list((folder / "shard_0").glob("segment*"))) > 2
        if before is not None and turns == 3:
            old = next(iter(sorted((before / "shard_1").glob("segment*"))))
            assert os.path.samefile(old, folder / "shard_1" / old.name)  # linked in the driver
        before, stops = folder, [replay.count for replay in replays(source)]
    assert not [name for name in files_of(folder) if ".seen" in name]


@pytest.mark.parametrize("num", [1, 2, 3])
def test_any_number_of_buffers_loads_what_travels(num: int, tmp_path: Path, small_pieces: None) -> None:
    source, worlds = source_of(2, Blind), worlds_of(2)
    fill(source, worlds, 30)
    source.save(tmp_path, None)
    saved = fingerprints(source)
    blind, seeing = source_of(num, Blind), source_of(num, PrioritizedReplay)
    fill(blind, worlds_of(num), 3)  # what was there goes
    for loading in (blind, seeing):
        loading.load(tmp_path)
    assert fingerprints(blind) == fingerprints(seeing) and (num != 2 or fingerprints(blind) == saved)
    assert [r.num_ready for r in replays(blind)] == blind._held and min(blind._held) > 20


def test_a_relative_folder_is_that_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = source_of(2, Elsewhere)
    fill(source, worlds_of(2), 3)
    for name, before in (("a", None), ("b", Path("runs/a"))):
        source.save(Path("runs", name), before)
        assert (tmp_path / "runs" / name / "shard_1" / "index.json").is_file()
    other = source_of(2, Elsewhere)
    other.load(Path("runs/b"))
    assert fingerprints(other) == fingerprints(source)


def test_a_save_of_which_a_part_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unwritten, match=r"The replay buffer was not saved: .*shard_0/index\.json is not there"):
        source_of(2, Forgetful).save(tmp_path, None)


def test_a_folder_of_the_same_name_on_another_disk_is_not_taken_for_it(tmp_path: Path) -> None:
    replay = PrioritizedReplay(SPEC)
    replay.save(str(tmp_path / "a"), None)
    proof = disk.proof_of([str(tmp_path / "a")])
    assert replay.load(str(tmp_path / "a"), proof=proof) == 0
    (tmp_path / "a" / "index.json").write_text("{}")
    assert replay.load(str(tmp_path / "a"), proof=proof) == NOT_SEEN
    with disk.shown_to_all(tmp_path) as proof:
        next(tmp_path.glob(".seen*")).write_text("")
        assert not replay.save(str(tmp_path / "b"), None, proof) and not (tmp_path / "b").exists()


class Steps(LocalBackend):
    """Futures have a value when this says so."""

    ready = True

    def wait(self, futures: Any, num: int = 1, timeout: float | None = None) -> Any:
        return super().wait(futures, num) if self.ready or timeout != 0 else ([], list(futures))


def lose(source: Any, index: int) -> None:
    source.shards.lose(index, "sample()", WorkerLost("gone"))


@pytest.mark.parametrize("kind", [Blind, PrioritizedReplay])
def test_a_lost_shard_gets_its_save_and_then_what_came_meanwhile(kind: Any, tmp_path: Path, small_pieces: None) -> None:
    backend = Steps()
    source, worlds = source_of(2, kind, backend), worlds_of(2)
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
    assert said.startswith("Replay shard 1 of 2 died in sample(). It was filled from checkpoint_000003; rows lost: 0")


def test_a_save_that_is_gone_is_not_called_damaged(tmp_path: Path) -> None:
    source = source_of(2, Blind)
    fill(source, worlds_of(2), 4)
    source.note_save(tmp_path / "checkpoint_000003" / "replay")
    lose(source, 1)
    source.settle([1])
    (said,) = source.losses.told
    assert f"Its save cannot be read (There is no replay buffer in {source.saved}.)" in said and "damaged" not in said
    assert source.losses.counts["replay_rows"] > 0 and replays(source)[1].count == 0
