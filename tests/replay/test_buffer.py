"""The replay buffer against a reference that goes row by row, on fragments of invented episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fragments import ENDS, Observations, Worker, World, assert_same, make_replay
from gymnasium import spaces

from raypid.nn.catalog import build_spec
from raypid.nn.pipeline import Pipeline
from raypid.ops.sum_tree import importance
from raypid.replay.base import Replay
from raypid.replay.buffer import ReplaySpec
from raypid.settings.config import ModelConfig
from raypid.types import Final, Trajectory, tree_map

F = np.float32
MODES = ["next_step", "same_step"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("capacity", [43, 90, 5000])
def test_every_transition_equals_the_definition(mode: str, n_step: int, capacity: int) -> None:
    """Fragments of 1 to 7 rows of three workers, which are replaced now and then; a ring that goes round many times."""
    for seed in range(2):
        world = World(ReplaySpec(capacity=capacity, n_step=n_step, gamma=0.9), mode, seed)
        for _ in range(40 if capacity < 5000 else 12):
            world.turn()
            assert_same(world.replay, world.naive)
        assert world.naive.oldest > 0 or capacity == 5000


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ENDS)
def test_one_kind_of_end(mode: str, end: str) -> None:
    world = World(ReplaySpec(capacity=200, n_step=3), mode, ends=[end], restarts=0)
    world.turns(60)
    assert_same(world.replay, world.naive)
    t = world.replay.transitions(np.array(world.naive.drawable()))
    assert (t.discount == 0).any() == (end in ("terminated", "both"))
    assert {round(float(d), 6) for d in t.discount} <= {0.0, 0.99, round(0.99**2, 6), round(0.99**3, 6)}


def one_stream(reward: Any, terminated: Any = (), truncated: Any = (), valid: Any = None, first: Any = (0,)) -> Any:
    """A fragment of one stream whose observations count up from 0; ends and firsts by row."""
    num = len(reward)

    def flags(rows: Any, size: int = num) -> Any:
        return np.isin(np.arange(size), rows)[:, None]

    valid = flags(range(num)) if valid is None else np.array(valid, bool)[:, None]
    obs = np.arange(num + 1, dtype=F)[:, None, None]
    action = np.zeros((num, 1, 1), F)
    reward = np.array(reward, F)[:, None]
    return Trajectory(obs, flags(first, num + 1), action, reward, flags(terminated), flags(truncated), valid)


def drawn(replay: Replay) -> dict[int, tuple[float, float, float]]:
    """id -> (reward, discount, next_obs)"""
    ids = np.flatnonzero(replay.columns["ready"])
    t = replay.transitions(ids)
    columns = zip(ids, t.reward, t.discount, t.next_obs[:, 0], strict=True)
    return {int(i): (float(r), float(d), float(o)) for i, r, d, o in columns}


def test_golden_three_steps() -> None:
    """Rewards 1, 2, 4, ... and gamma 1/2; row 3 terminates, row 4 is its reset row."""
    replay = make_replay(ReplaySpec(capacity=100, n_step=3, gamma=0.5))
    rewards = [1, 2, 4, 8, 0, 16, 32]
    replay.add(0, one_stream(rewards, terminated=[3], valid=[1, 1, 1, 1, 0, 1, 1], first=[0, 5]))
    assert drawn(replay) == {0: (3, 0.125, 3), 1: (6, 0, 4), 2: (8, 0, 4), 3: (8, 0, 4)}
    replay.add(0, one_stream([64], first=[]))
    assert drawn(replay) == {0: (3, 0.125, 3), 1: (6, 0, 4), 2: (8, 0, 4), 3: (8, 0, 4)}
    replay.add(0, one_stream([0], first=[]))
    assert drawn(replay)[5] == (16 + 16 + 16, 0.125, 0)  # the next observation is the newest row's


def test_golden_truncation_bootstraps_from_the_true_last_observation() -> None:
    fragment = one_stream([1, 2, 4, 8], truncated=[1], first=[0, 2])
    fragment.final = Final(np.array([1]), np.array([0]), np.array([[77]], F))
    replay = make_replay(ReplaySpec(capacity=100, n_step=3, gamma=0.5))
    replay.add(0, fragment)
    assert replay.count == 5  # the last observation is a row of its own
    assert drawn(replay) == {0: (2, 0.25, 77), 1: (2, 0.5, 77)}


def test_golden_crash() -> None:
    """A row that crashed is no part of any window: what was seen before it is bootstrapped from."""
    replay = make_replay(ReplaySpec(capacity=100, n_step=3, gamma=0.5))
    replay.add(0, one_stream([1, 2, 4, 8, 16, 32, 64], valid=[1, 1, 0, 1, 1, 1, 1], first=[0, 3]))
    assert drawn(replay) == {0: (2, 0.25, 2), 1: (2, 0.5, 2), 3: (8 + 8 + 8, 0.125, 6)}


@pytest.mark.parametrize("mode", MODES)
def test_rewards_are_scaled_and_clipped_before_they_are_folded(mode: str) -> None:
    spec = ReplaySpec(capacity=500, n_step=3, reward_scale=0.5, reward_clip=0.7)
    world = World(spec, mode)
    world.turns(30)
    assert_same(world.replay, world.naive)
    t = world.replay.transitions(np.array(world.naive.drawable()))
    assert 0.7 < np.abs(t.reward).max() <= 0.7 * 3
    assert world.replay.columns["reward"].max() > 1.4  # kept raw


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("capacity", [60, 5000])
@pytest.mark.parametrize("obs", ["vector", "dict"])
def test_stacks(mode: str, capacity: int, obs: str) -> None:
    world = World(ReplaySpec(capacity=capacity, n_step=2, frame_stack=3), mode, obs=obs)
    for turn in range(30):
        world.turn()
        if turn % 4 == 1:
            assert_same(world.replay, world.naive)
    t = world.replay.sample(32).data
    if obs == "dict":
        assert isinstance(t.obs, dict) and isinstance(t.next_obs, dict)
        assert t.obs["image"].shape == (32, 3, 2, 2) and t.obs["image"].dtype == np.uint8
        assert t.obs["inner"]["x"].shape == (32, 3, 1)
        assert t.next_obs["action_mask"].shape == (32, 3) and t.next_obs["action_mask"].dtype == np.int8
        assert world.replay.columns["obs/image"].dtype == np.uint8  # each frame once
        assert world.replay.columns["obs/image"].shape == (capacity, 2, 2)


@pytest.mark.parametrize("mode", MODES)
def test_stacks_are_those_that_were_acted_on(mode: str) -> None:
    """What the pipeline stacks while acting is what is learnt from, over the borders of fragments too."""
    rng = np.random.default_rng(0)
    space = spaces.Dict(
        image=spaces.Box(0, 255, (2, 2), np.uint8),
        inner=spaces.Dict(x=spaces.Box(-np.inf, np.inf, (1,), F)),
        action_mask=spaces.MultiBinary(3),
    )
    spec = build_spec(space, spaces.Discrete(3), ModelConfig(), frame_stack=3).pipeline
    pipeline = Pipeline(spec)
    replay = make_replay(ReplaySpec(capacity=5000, frame_stack=3))
    worker, state = Worker(rng, mode, 2, Observations("dict")), pipeline.initial_state(2)
    acted: dict[int, Any] = {}
    for length in (3, 1, 7, 2, 5, 6, 1, 1, 4, 7):
        start, (fragment, _) = replay.count, worker.fragment(length)
        for t in range(length):
            inputs, state = pipeline.step(tree_map(lambda x, t=t: x[t], fragment.obs), state, fragment.first[t])
            acted |= {start + 2 * t + b: inputs.take(np.array([b])) for b in range(2)}
        replay.add(0, fragment)
    ids = np.flatnonzero(replay.columns["ready"])
    inputs = pipeline.batch(replay.transitions(ids).obs)
    assert len(ids) > 30
    for n, id in enumerate(ids):
        expected = acted[int(id)]
        np.testing.assert_array_equal(inputs.vector[n], expected.vector[0])
        np.testing.assert_array_equal(inputs.mask[n], expected.mask[0])  # type: ignore[index]
        for path, images in inputs.images.items():
            np.testing.assert_array_equal(images[n], expected.images[path][0])


@pytest.mark.parametrize("mode", MODES)
def test_dict_observations_and_dict_actions(mode: str) -> None:
    world = World(ReplaySpec(capacity=300, n_step=3), mode, obs="dict")
    world.turns(40)
    assert_same(world.replay, world.naive)
    replay, worker = (
        make_replay(ReplaySpec(capacity=300)),
        Worker(world.rng, mode, 2, Observations("dict"), ["truncated"]),
    )
    fragment, rows = worker.fragment(5)
    fragment.action = {"a": fragment.action, "b": np.arange(10).reshape(5, 2)}
    replay.add(0, fragment)
    sample = replay.sample(8)
    assert isinstance(sample.data.action, dict) and sample.data.action["b"].dtype == np.int64
    flat = [row for line in rows for row in line]
    for n, id in enumerate(sample.id):
        np.testing.assert_array_equal(sample.data.action["a"][n], flat[id].action)
        if id < 10:
            assert sample.data.action["b"][n] == id


def test_a_replaced_worker_with_another_number_of_streams() -> None:
    """The rows that waited for more are complete where the invalid one stands; a terminated one needs nothing."""
    for streams in (1, 2):
        replay = make_replay(ReplaySpec(capacity=100, n_step=3, gamma=0.5))
        replay.add(0, one_stream([1, 2, 4, 8]))
        assert sorted(drawn(replay)) == [0]
        other = one_stream([16, 32])
        if streams == 2:
            other = Trajectory(**{
                name: np.concatenate([getattr(other, name)] * 2, 1)
                for name in ("obs", "first", "action", "reward", "terminated", "truncated", "valid")
            })  # fmt: skip
        replay.add(0, other)
        assert drawn(replay) == {0: (3, 0.125, 3), 1: (4, 0.25, 3), 2: (4, 0.5, 3)}
        ended = make_replay(ReplaySpec(capacity=100))
        ended.add(0, one_stream([1, 2], terminated=[1]))
        ended.add(0, other)
        assert drawn(ended)[1][:2] == (2, 0)


def test_a_sample_draws_what_is_ready_and_nothing_else() -> None:
    for exponent in (0.0, 0.7):
        world = World(ReplaySpec(capacity=120, n_step=3, priority_exponent=exponent, seed=5), "next_step")
        for _ in range(40):
            world.turn()
            ids = set(world.naive.drawable())
            if ids:
                sample = world.replay.sample(16)
                assert set(sample.id.tolist()) <= ids
        sample = world.replay.sample(4000)
        counts = np.array([(sample.id == i).sum() for i in sorted(ids)])
        assert (counts > 0).all() and counts.max() < 5 * counts.mean()
        np.testing.assert_allclose(sample.probability, 1 / len(ids))
        np.testing.assert_array_equal(sample.weight, 1)


def test_the_seed_decides_and_shards_differ() -> None:
    def ids(seed: int, shard: int) -> Any:
        replay = make_replay(ReplaySpec(capacity=100, seed=seed), shard)
        replay.add(0, one_stream(np.ones(50)))
        return replay.sample(30).id.tolist()

    assert ids(1, 0) == ids(1, 0)
    assert len({str(ids(*x)) for x in ((1, 0), (1, 1), (2, 0))}) == 3


def test_nothing_to_draw_yet() -> None:
    replay = make_replay(ReplaySpec(capacity=100, n_step=3))
    with pytest.raises(ValueError, match="no complete transition"):
        replay.sample(1)
    replay.add(0, one_stream([1, 2, 3]))
    with pytest.raises(ValueError, match="no complete transition"):
        replay.sample(1)
    with pytest.raises(ValueError, match="holds no 2 sequences of 3 rows yet; it has 3 rows"):
        replay.sample_sequences(2, 3)


def test_a_fragment_that_does_not_fit() -> None:
    replay = make_replay(ReplaySpec(capacity=10))
    with pytest.raises(ValueError, match="A fragment of 11 rows does not fit a replay buffer of 10"):
        replay.add(0, one_stream(np.ones(11)))
    replay.add(0, one_stream(np.ones(10)))
    assert len(replay) == 9
    fragment = one_stream(np.ones(10), truncated=[4], first=[5])
    fragment.final = Final(np.array([4]), np.array([0]), np.ones((1, 1), F))
    with pytest.raises(ValueError, match="11 rows"):  # the last observation takes a row too
        replay.add(0, fragment)


def test_ids_only_grow_and_a_row_is_where_its_id_says() -> None:
    world = World(ReplaySpec(capacity=50), "same_step", restarts=0)
    before = -1
    for _ in range(60):
        start = world.replay.count
        _, fragment = world.turn()
        assert start > before
        before = start
        ids = start + np.arange(fragment.reward.size)
        np.testing.assert_array_equal(world.replay.columns["reward"][world.replay.slots(ids)], fragment.reward.ravel())
        sample_ids = [i for i in world.naive.drawable() if i >= start]
        if sample_ids:
            t = world.replay.transitions(np.array(sample_ids))
            np.testing.assert_array_equal(t.reward, fragment.reward.ravel()[np.array(sample_ids) - start])


def test_the_fragment_is_copied() -> None:
    replay, fragment = make_replay(ReplaySpec(capacity=50)), one_stream([1, 2, 3])
    replay.add(0, fragment)
    fragment.obs[:], fragment.reward[:] = -1, -1  # type: ignore[index]
    assert drawn(replay) == {0: (1, F(0.99), 1), 1: (2, F(0.99), 2)}


# -- priorities --------------------------------------------------------------------------------------------------------


def test_priorities_follow_their_rows() -> None:
    """New rows at the largest priority so far; overwritten and invalid rows have none; late ones are counted."""
    spec = ReplaySpec(capacity=80, n_step=3, priority_exponent=0.6)
    world, rng = World(spec, "next_step", seed=3), np.random.default_rng(0)
    largest, skipped, expected = 1.0, 0, dict[int, float]()
    for _ in range(120):
        world.turn()
        ids = world.naive.drawable()
        expected = {i: expected.get(i, largest**0.6) for i in ids}
        alive = np.arange(world.replay.oldest, world.replay.count)
        np.testing.assert_allclose(
            world.replay.tree.get(alive % 80), [expected.get(int(i), 0.0) for i in alive], rtol=1e-9
        )
        assert world.replay.tree.total == pytest.approx(sum(expected.values()))
        if ids:
            low = max(0, world.replay.oldest - 30)
            given = np.unique(rng.integers(low, world.replay.count, 20))
            new = rng.exponential(2, len(given)).astype(F)
            world.replay.set_priorities(given, new)
            there = np.isin(given, ids)
            skipped += int((~there).sum())
            if there.any():
                largest = max(largest, float(new[there].max()))
            expected |= {int(i): float(p) ** 0.6 for i, p in zip(given[there], new[there], strict=True)}
    assert world.replay.num_skipped == skipped > 0
    metrics = world.replay.metrics()
    assert metrics == {"replay_rows": len(ids), "replay_skipped_priorities": skipped}


def test_rows_are_drawn_in_proportion_and_weighted() -> None:
    spec = ReplaySpec(capacity=64, priority_exponent=0.5, num_shards=2)
    replay, rng = make_replay(spec), np.random.default_rng(0)
    for _ in range(4):
        replay.add(0, one_stream(np.arange(20), first=[]))
    ids = np.flatnonzero(replay.columns["ready"])  # slots
    newest = replay.count - 1
    ids = newest - (newest - ids) % 64
    priority = rng.exponential(size=len(ids)) + 0.01
    replay.set_priorities(ids, priority)
    share = dict(zip(ids.tolist(), priority**0.5 / (priority**0.5).sum(), strict=True))
    sample = replay.sample(30_000, beta=0.7)
    np.testing.assert_allclose(sample.probability, [share[int(i)] / 2 for i in sample.id], rtol=1e-6)
    for i, p in share.items():
        assert (sample.id == i).mean() == pytest.approx(p, abs=5 * np.sqrt(p / 30_000))
    weight = (len(ids) * np.array([share[int(i)] for i in sample.id])) ** -0.7
    np.testing.assert_allclose(sample.weight, weight / weight.max(), rtol=1e-5)
    assert sample.weight.max() == 1 and sample.weight.dtype == F


def test_importance_by_hand() -> None:
    p = np.array([0.5, 0.25, 0.125])
    assert importance(p, 8, 0.0).tolist() == [1, 1, 1]
    assert importance(p, 8, 1.0).tolist() == [0.25, 0.5, 1]
    np.testing.assert_allclose(importance(p, 8, 0.5), np.sqrt([0.25, 0.5, 1]), rtol=1e-6)


# -- sequences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_sequences_are_rows_of_one_stream(mode: str) -> None:
    world = World(ReplaySpec(capacity=150, reward_scale=0.5), mode, restarts=0.4)
    crossed = 0
    for _ in range(40):
        world.turn()
        if world.replay.count < 100:
            continue
        s = world.replay.sample_sequences(6, length=3, burn_in=2)
        assert s.burn_in == 2 and s.reward.shape == s.valid.shape == (5, 6)
        assert len(s.obs) == len(s.first) == 6  # type: ignore[arg-type]
        for n in range(6):
            row = world.naive.rows[int(s.id[n])]
            for t in range(6):
                np.testing.assert_array_equal(s.obs[t, n], row.obs)  # type: ignore[call-overload, index]
                assert s.first[t, n] == row.first
                if t < 5:
                    assert (s.terminated[t, n], s.truncated[t, n]) == (row.terminated, row.truncated)
                    assert (s.valid[t, n], s.reward[t, n]) == (row.valid, F(row.reward) * F(0.5))
                    np.testing.assert_array_equal(s.action[t, n], row.action)  # type: ignore[call-overload, index]
                    if row.after is None:  # a replaced worker: a new episode, after a row that is over
                        assert row.ended or not row.valid
                        crossed += 1
                        following = tuple(s.obs[t + 1, n])  # type: ignore[call-overload, index]
                        row = next(r for r in world.naive.rows.values() if tuple(r.obs) == following)  # type: ignore[arg-type]
                        assert row.first
                    else:
                        row = row.after
    assert crossed
