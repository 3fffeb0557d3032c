"""A replay buffer that went to disk and came back goes on as if nothing had happened."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fragments import World, assert_same, make_replay, ready_ids

from raypid.replay.base import Replay
from raypid.replay.buffer import ReplaySpec
from raypid.replay.disk import ReplayDamaged
from raypid.types import tree_map

SPECS = {
    "uniform": ReplaySpec(capacity=400, n_step=3),
    "prioritized": ReplaySpec(capacity=400, n_step=3, priority_exponent=0.6),
    "wrapped": ReplaySpec(capacity=90, n_step=2, priority_exponent=0.6, frame_stack=3),
}


def grown(spec: ReplaySpec, turns: int = 40, obs: str = "dict", seed: int = 0) -> World:
    world = World(spec, "same_step", seed, obs=obs)
    world.turns(turns)
    shake(world.replay, seed)
    return world


def shake(replay: Replay, seed: int) -> None:
    """Other priorities, some of them for rows that are gone."""
    ids = np.arange(max(0, replay.oldest - 20), replay.count)
    replay.set_priorities(ids, np.random.default_rng(seed).exponential(size=len(ids)))


def save_replay(replay: Replay, folder: Path, previous: Path | None = None) -> None:
    replay.save(folder, previous)


def loaded(spec: ReplaySpec, folder: Path) -> Replay:
    replay = make_replay(spec)
    replay.load(folder)
    return replay


def assert_same_future(a: Replay, b: Replay, num: int = 5) -> None:
    """The same next samples, bit for bit."""
    assert (a.count, a.num_ready, a.num_skipped, a.max_priority) == (
        b.count,
        b.num_ready,
        b.num_skipped,
        b.max_priority,
    )
    for _ in range(num):
        one, other = a.sample(20, 0.5), b.sample(20, 0.5)
        for name in ("id", "probability", "weight"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        for name in ("obs", "action", "reward", "discount", "next_obs"):
            tree_map(np.testing.assert_array_equal, getattr(one.data, name), getattr(other.data, name))
        if a.spec.priority_exponent:
            for replay in (a, b):
                replay.set_priorities(one.id, np.linspace(0.1, 3, 20))


@pytest.mark.parametrize("name", SPECS)
def test_a_round_trip(name: str, tmp_path: Path) -> None:
    world = grown(SPECS[name])
    world.replay.save(tmp_path)
    other = make_replay(SPECS[name])
    assert other.load(tmp_path) == world.replay.num_ready
    assert_same(other, world.naive)
    assert {k: v.dtype for k, v in other.columns.items()} == {k: v.dtype for k, v in world.replay.columns.items()}
    assert_same_future(world.replay, other)


@pytest.mark.parametrize("name", SPECS)
def test_workers_go_on_where_they_were(name: str, tmp_path: Path) -> None:
    """Rows that waited for what follows are completed by fragments that come after the load."""
    world = grown(SPECS[name])
    save_replay(world.replay, tmp_path)
    other = loaded(SPECS[name], tmp_path)
    for turn in range(30):
        worker, fragment = world.turn()
        other.add(worker, fragment)
        assert ready_ids(other) == world.naive.drawable()
        if turn % 6 == 5:
            assert_same(other, world.naive)
            assert_same_future(world.replay, other, 1)


@pytest.mark.parametrize("name", SPECS)
def test_saved_again_and_again(name: str, tmp_path: Path) -> None:
    """Each save links what the one before has, and writes what is new; a load at any time gives the whole."""
    world, before = grown(SPECS[name]), None
    written: dict[str, int] = {}
    for i in range(6):
        folder = tmp_path / str(i)
        save_replay(world.replay, folder, before)
        index = json.loads((folder / "index.json").read_text())
        here = {s["file"]: (folder / s["file"]).stat().st_ino for s in index["segments"]}
        assert set(here) == {p.name for p in folder.glob("segment*")}
        assert all(written[file] == inode for file, inode in here.items() if file in written)
        new = set(here) - set(written)
        assert len(new) == (1 if i != 3 else 0)
        stops = [s["stop"] for s in index["segments"]]
        assert stops == sorted(stops) and stops[-1] == world.replay.count
        assert index["segments"][0]["stop"] > world.replay.oldest  # what was overwritten is not kept
        written |= here
        assert_same_future(copy.deepcopy(world.replay), loaded(SPECS[name], folder))
        if before is not None and i % 2:  # the folder before may go
            for file in before.iterdir():
                file.unlink()
            assert_same_future(copy.deepcopy(world.replay), loaded(SPECS[name], folder))
        before = folder
        if i != 2:  # nothing new: a save without a segment of its own
            world.turns(5)
        shake(world.replay, i)


def test_a_buffer_that_was_loaded_links_too(tmp_path: Path) -> None:
    world = grown(SPECS["prioritized"])
    save_replay(world.replay, tmp_path / "a")
    other = loaded(SPECS["prioritized"], tmp_path / "a")
    worker, fragment = world.turn()
    other.add(worker, fragment)
    save_replay(other, tmp_path / "b", tmp_path / "a")
    assert len(list((tmp_path / "b").glob("segment*"))) == 2
    assert_same_future(other, loaded(SPECS["prioritized"], tmp_path / "b"))


def test_segments_of_another_run_are_not_linked(tmp_path: Path) -> None:
    save_replay(grown(SPECS["uniform"], 60).replay, tmp_path / "a")
    world = grown(SPECS["uniform"], 20, seed=1)
    save_replay(world.replay, tmp_path / "b", tmp_path / "a")
    assert_same_future(world.replay, loaded(SPECS["uniform"], tmp_path / "b"))


@pytest.mark.parametrize("capacity", [40, 200, 1000])
@pytest.mark.parametrize("exponent", [0.0, 0.6])
@pytest.mark.parametrize("turns", [8, 60])
def test_another_capacity(capacity: int, exponent: float, turns: int, tmp_path: Path) -> None:
    """Of more rows than it holds the newest; a larger one has room, and goes on as if it had been as large."""
    spec = ReplaySpec(capacity=150, n_step=3, priority_exponent=exponent)
    world = grown(spec, turns)
    save_replay(world.replay, tmp_path / "a")
    spec = replace(spec, capacity=capacity)
    other = loaded(spec, tmp_path / "a")
    rows = {i for i in world.naive.drawable() if i >= other.oldest}
    assert other.oldest >= world.replay.count - min(150, capacity)
    assert set(ready_ids(other)) == rows and other.num_ready == len(rows)
    if rows:
        assert set(other.sample(200).id.tolist()) <= rows
    # what is saved from it can be loaded again, and its ring goes round
    world.naive.spec = replace(spec, capacity=10**6)
    for i in range(12):
        worker, fragment = world.turn(2)
        other.add(worker, fragment)
        if i == 5:
            save_replay(other, tmp_path / "b", tmp_path / "a")
            assert_same_future(copy.deepcopy(other), loaded(spec, tmp_path / "b"))
    ids = [i for i in world.naive.drawable() if i >= other.oldest]
    assert ready_ids(other) == ids
    t, expected = other.transitions(np.array(ids)), [world.naive.transition(i) for i in ids]
    np.testing.assert_allclose(t.reward, [e["reward"] for e in expected], atol=1e-5)
    np.testing.assert_allclose(t.discount, [e["discount"] for e in expected], atol=1e-6)


@pytest.mark.parametrize("n_step", [1, 5])
def test_another_number_of_steps(n_step: int, tmp_path: Path) -> None:
    for seed in range(8):
        world = World(SPECS["prioritized"], "next_step", seed, restarts=0.02)
        world.turns(40)
        save_replay(world.replay, tmp_path / str(seed))
        other = loaded(replace(SPECS["prioritized"], n_step=n_step), tmp_path / str(seed))
        world.naive.spec = replace(world.naive.spec, n_step=n_step)
        assert_same(other, world.naive)
        for _ in range(10):
            worker, fragment = world.turn()
            other.add(worker, fragment)
            assert ready_ids(other) == world.naive.drawable()
        assert_same(other, world.naive)


def test_priorities_switched_on_or_off(tmp_path: Path) -> None:
    for before, after in (("uniform", "prioritized"), ("prioritized", "uniform")):
        world = grown(SPECS[before])
        save_replay(world.replay, tmp_path / before)
        other = loaded(SPECS[after], tmp_path / before)
        assert_same(other, world.naive)
        sample = other.sample(50)
        np.testing.assert_allclose(sample.probability, 1 / other.num_ready)


@pytest.mark.parametrize("name", ["uniform", "prioritized"])
def test_a_save_of_an_earlier_version(name: str, tmp_path: Path) -> None:
    """It was written, and drawn from afterwards, before the buffer, its kinds and its files were taken apart."""
    spec = ReplaySpec(capacity=60, n_step=2)
    if name == "prioritized":
        spec = ReplaySpec(capacity=60, n_step=3, priority_exponent=0.6, frame_stack=2)
    folder = Path(__file__).parent / "saved" / name
    replay = loaded(spec, folder)
    save_replay(replay, tmp_path, folder)
    for file in ("index.json", "links.safetensors"):
        assert (tmp_path / file).read_bytes() == (folder / file).read_bytes()
    expected = np.load(folder / "expected.npz")
    sample, sequences = replay.sample(40, 0.5), replay.sample_sequences(4, 3, 1, 0.5)
    found = {"id": sample.id, "probability": sample.probability, "weight": sample.weight}
    found |= {column: getattr(sample.data, column) for column in ("obs", "reward", "discount", "next_obs")}
    found |= {f"sequence_{column}": getattr(sequences, column) for column in ("id", "probability", "obs", "reward")}
    assert set(found) == set(expected.files)
    for column, values in found.items():
        # a tree of another shape adds in another order; weights are float32
        rounding = 1e-6 if column == "weight" else 1e-14 if column.endswith("probability") else 0
        np.testing.assert_allclose(values, expected[column], rtol=rounding, atol=0, err_msg=column)


def test_an_empty_buffer(tmp_path: Path) -> None:
    save_replay(make_replay(SPECS["prioritized"]), tmp_path)
    other = loaded(SPECS["prioritized"], tmp_path)
    assert other.count == len(other) == 0
    world = World(SPECS["prioritized"], "same_step", restarts=0)
    worker, fragment = world.turn()
    other.add(worker, fragment)
    assert_same(other, world.naive)


def test_a_load_into_a_used_buffer_leaves_nothing_of_before(tmp_path: Path) -> None:
    for name, spec in SPECS.items():
        world = grown(spec)
        save_replay(world.replay, tmp_path / name)
        for used in (grown(spec, 3, seed=4).replay, grown(spec, 60, seed=5).replay):
            used.load(tmp_path / name)
            assert_same(used, world.naive)
            assert_same_future(copy.deepcopy(world.replay), used)


# -- damage ------------------------------------------------------------------------------------------------------------


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def _alter(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(bytes(data))


def _half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("damage", [_cut, _alter, _half, Path.unlink])
@pytest.mark.parametrize("pattern", ["segment*", "links*", "index.json"])
def test_damaged_files(pattern: str, damage: Callable[[Path], Any], tmp_path: Path) -> None:
    if pattern == "index.json" and damage in (_cut, _alter):
        damage = _half  # a digit that is another is still JSON
    save_replay(grown(SPECS["prioritized"]).replay, tmp_path)
    file = next(tmp_path.glob(pattern))
    damage(file)
    with pytest.raises(ReplayDamaged, match="(The|There is no) replay buffer in") as error:
        loaded(SPECS["prioritized"], tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)
    if pattern != "index.json":
        assert file.name in str(error.value)
