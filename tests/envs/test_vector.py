"""Every vectoriser and autoreset mode gives one kind of trajectory; faults are contained or named."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import cases
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from raypid.envs import EnvError, EnvSpec, Step, VectorEnv, make_vector, python_vector, stream_seeds
from raypid.envs.python_vector import NUM_COMPARED_STEPS, NUM_TIMED_STEPS
from raypid.types import tree_leaves, tree_map

Episode = list[tuple[Any, float, bool, bool]]


def episodes(vector: VectorEnv, num_steps: int) -> list[list[Episode]]:
    """For each stream its episodes as (obs, reward, terminated, truncated) after each transition, by the one rule."""
    obs = vector.reset()
    done: list[list[Episode]] = [[[(tuple(o), 0.0, False, False)]] for o in obs]
    for _ in range(num_steps):
        step = vector.step(np.zeros(vector.num_envs, np.int64))
        final = {} if step.final is None else dict(zip(step.final[0].tolist(), step.final[1]))
        for b in range(vector.num_envs):
            ended = bool(step.terminated[b] or step.truncated[b])
            assert (b in step.infos) == ended
            if step.valid[b]:
                seen = final.get(b, step.obs[b])
                row = (tuple(seen), float(step.reward[b]), bool(step.terminated[b]), bool(step.truncated[b]))
                done[b][-1].append(row)
                if ended:
                    assert step.infos[b]["success"] == seen[0]
            else:
                assert step.first[b] and not ended and step.reward[b] == 0
            if step.first[b]:
                done[b].append([(tuple(step.obs[b]), 0.0, False, False)])
    vector.close()
    return [stream[:8] for stream in done]


def expected(stream: int) -> list[Episode]:
    rows: list[Episode] = []
    for episode in range(8):
        length = (3, 1, 2)[(episode + stream) % 3]
        rows.append([((episode, 0), 0.0, False, False)])
        for t in range(1, length + 1):
            end = t == length
            truncated = end and episode % 2 == 0
            rows[-1].append(((episode, t), float(10 * episode + t), end and not truncated, truncated))
    return rows


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_autoreset_modes_give_the_same_episodes(mode: str) -> None:
    vector = make_vector(EnvSpec(env=cases.counters, env_config={"mode": mode}, num_envs=3))
    assert vector.vectorizer == "native"
    assert episodes(vector, 40) == [expected(b) for b in range(3)]


@pytest.mark.parametrize("vectorizer", ["auto", "sync", "threads", "processes", "async"])
def test_python_environments_give_the_same_episodes(vectorizer: str) -> None:
    vector = make_vector(EnvSpec(env=cases.counter, num_envs=3, vectorizer=vectorizer, num_threads=2))
    assert episodes(vector, 40) == [expected(b) for b in range(3)]
    assert not multiprocessing.active_children()


def run(spec: EnvSpec, num_steps: int = 50, seeds: list[int] | None = None) -> list[tuple[Any, Any, Any]]:
    vector = make_vector(spec)
    rng = np.random.default_rng(0)
    out: list[tuple[Any, Any, Any]] = [(vector.reset(seeds), None, None)]
    for _ in range(num_steps):
        step = vector.step(rng.uniform(-1, 1, (spec.num_envs, *vector.action_space.shape)).astype(np.float32))
        out.append((step.obs, step.reward, step.first))
    vector.close()
    return out


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for one, two in zip(a, b) for x, y in zip(one, two) if x is not None)


def test_threads_and_processes_give_the_numbers_of_the_loop() -> None:
    loop = run(EnvSpec(env=cases.Walk, num_envs=3, vectorizer="sync", seed=3))
    assert loop[0][0].dtype == np.float32
    assert same(loop, run(EnvSpec(env=cases.Walk, num_envs=3, vectorizer="threads", seed=3)))
    assert same(loop, run(EnvSpec(env=cases.Walk, num_envs=3, vectorizer="async", seed=3)))
    assert same(loop, run(EnvSpec(env=cases.Walk, num_envs=3, vectorizer="processes", num_threads=3, seed=3)))


@pytest.mark.parametrize(
    ("env", "vectorizer"),
    [(cases.Walk, "sync"), ("Pendulum-v1", "auto"), ("envpool:LunarLanderContinuous-v3", "auto")],
)
def test_seeds_reproduce_and_streams_and_workers_differ(env: Any, vectorizer: str) -> None:
    if isinstance(env, str) and env.startswith("envpool"):
        pytest.importorskip("envpool")
    spec = EnvSpec(env=env, num_envs=2, vectorizer=vectorizer, seed=5)
    one = run(spec)
    assert same(one, run(spec)) and same(one, run(spec, seeds=stream_seeds(spec)))
    assert not np.array_equal(one[0][0][0], one[0][0][1])
    assert not same(one, run(EnvSpec(env=env, num_envs=2, vectorizer=vectorizer, seed=5, worker_index=1)))
    assert not same(one, run(spec, seeds=stream_seeds(spec, save_count=1)))


def test_auto_turns_to_threads_where_environments_wait() -> None:
    spec = EnvSpec(env="raypid/Wait-v0", env_config={"wait_s": 0.01}, num_envs=4)
    vector = make_vector(spec)
    vector.reset()
    assert vector.vectorizer == "sync"
    for _ in range(5):
        vector.step(np.ones(4, np.int64))
    assert vector.vectorizer == "threads"
    vector.close()
    computing = make_vector(EnvSpec(env=cases.Walk, num_envs=4))
    computing.reset()
    for _ in range(6):
        computing.step(np.zeros((4, 1), np.float32))
    assert computing.vectorizer == "sync"


def test_auto_tries_threads_where_mujoco_computes_and_the_numbers_stay_the_same() -> None:
    spec = EnvSpec(env="InvertedPendulum-v5", num_envs=5, seed=3)
    steps = 2 * NUM_COMPARED_STEPS + NUM_TIMED_STEPS + 10
    loop = run(replace(spec, vectorizer="sync"), steps)
    assert same(loop, run(replace(spec, num_threads=2), steps))
    tried: list[int] = []
    vector = make_vector(replace(spec, num_threads=2))
    vector.reset()
    for _ in range(steps):
        vector.step(np.zeros((5, 1), np.float32))
        tried.append(len(vector._parts))  # type: ignore[attr-defined]  # those of the next step
    compared, later = tried[NUM_TIMED_STEPS:][: 2 * NUM_COMPARED_STEPS - 1], tried[-10:]
    assert compared == [1] * NUM_COMPARED_STEPS + [2] * (NUM_COMPARED_STEPS - 1) and len(set(later)) == 1
    vector.close()


def test_auto_tries_processes_where_gymnasiums_environments_compute_and_the_numbers_stay_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(python_vector, "FORKS_FROM_S", 0.0)
    monkeypatch.setattr(python_vector, "can_fork", lambda: True)  # other tests have imported torch
    monkeypatch.setattr(python_vector, "waits", lambda wall_s, cpu_s: False)  # as on a busy machine
    spec = EnvSpec(env="LunarLanderContinuous-v3", num_envs=5, seed=3)
    steps = NUM_COMPARED_STEPS + NUM_TIMED_STEPS + 90  # some end
    loop = run(replace(spec, vectorizer="sync"), steps)
    for pays, vectorizer in ((math.inf, "processes"), (0.0, "sync")):
        monkeypatch.setattr(python_vector, "PAYS", pays)
        assert same(loop, run(replace(spec, num_threads=2), steps))
        vector = make_vector(replace(spec, num_threads=2))
        vector.reset()
        for _ in range(NUM_TIMED_STEPS + 1):
            vector.step(np.zeros((5, 2), np.float32))
        assert len(multiprocessing.active_children()) == 1
        for _ in range(NUM_COMPARED_STEPS):
            vector.step(np.zeros((5, 2), np.float32))
        assert vector.vectorizer == vectorizer
        assert len(multiprocessing.active_children()) == (vectorizer == "processes")
        vector.close()
        assert not multiprocessing.active_children()


def test_a_process_that_is_killed_leaves_its_environments_to_this_one() -> None:
    vector = make_vector(EnvSpec(env=cases.Walk, num_envs=5, vectorizer="processes", num_threads=3))
    vector.reset()
    action = np.zeros((5, 1), np.float32)
    assert vector.step(action).valid.all() and vector.vectorizer == "processes"
    os.kill(min(child.pid or 0 for child in multiprocessing.active_children()), signal.SIGKILL)
    step = vector.step(action)
    assert step.valid.tolist() == [True, False, False, True, True] == (~step.first).tolist()
    assert len(step.crashes) == 2 and "stream 1" in step.crashes[0] and "signal 9" in step.crashes[0]
    (other,) = multiprocessing.active_children()
    assert vector.step(action).valid.all() and vector.vectorizer == "processes"
    os.kill(other.pid or 0, signal.SIGKILL)
    assert vector.step(action).valid.tolist() == [True, True, True, False, False]
    assert vector.step(action).valid.all() and vector.vectorizer == "sync"
    vector.close()
    assert not multiprocessing.active_children()


def test_processes_need_cores() -> None:
    with pytest.raises(EnvError, match="'processes' needs two cores or more"):
        make_vector(EnvSpec(env=cases.counter, num_envs=2, vectorizer="processes"))


def test_arrays_may_be_kept() -> None:
    vector = make_vector(EnvSpec(env=cases.counter, num_envs=2))
    vector.reset()
    kept = [vector.step(np.zeros(2, np.int64)) for _ in range(3)]
    assert [int(s.obs[0][1]) for s in kept] == [1, 2, 3]


@pytest.mark.parametrize("vectorizer", ["sync", "threads", "async"])
def test_nested_spaces_both_ways(vectorizer: str) -> None:
    vector = make_vector(EnvSpec(env=cases.Nested, num_envs=2, vectorizer=vectorizer))
    obs = vector.reset()
    dtypes = {path: (leaf.dtype, leaf.shape) for path, leaf in tree_leaves(obs)}
    assert dtypes == {
        "a/0": (np.dtype(np.int64), (2,)),
        "a/1": (np.dtype(np.float64), (2, 2, 2)),
        "b": (np.dtype(np.int8), (2, 3)),
        "c": (np.dtype(np.int64), (2, 2)),
        "d": (np.dtype(np.uint8), (2, 4)),
    }
    action = {
        "x": {"0": np.array([0, 2]), "1": np.array([[0.5, 0.25], [-1, 0]], np.float32)},
        "y": np.array([[0, 1, 1], [1, 0, 0]], np.int8),
    }
    step = vector.step(action)
    vector.close()
    assert step.reward.tolist() == [0.75, -1.0] and step.reward.dtype == np.float32
    assert step.obs["a"]["0"].tolist() == [1, 3] and step.obs["b"].tolist() == action["y"].tolist()
    assert step.obs["d"][1].tolist() == [2, 2, 2, 2]


def step_until(vector: VectorEnv, num_steps: int) -> list[Step]:
    vector.reset()
    return [vector.step(np.zeros(vector.num_envs, np.int64)) for _ in range(num_steps)]


@pytest.mark.parametrize("vectorizer", ["sync", "threads", "processes"])
def test_a_crash_rebuilds_one_environment(vectorizer: str, tmp_path: Path) -> None:
    config = {"fault": "raise", "flag": str(tmp_path / "f")}
    vector = make_vector(EnvSpec(env=cases.Faulty, env_config=config, num_envs=3, vectorizer=vectorizer, num_threads=3))
    one, two, three = step_until(vector, 3)
    assert one.valid.all() and not one.crashes
    assert two.valid.tolist() == [True, False, True] and two.first.tolist() == [False, True, False]
    assert two.reward[1] == 0 and two.obs[1].tolist() == [0, 0] and two.obs[0].tolist() == [0, 2]
    assert len(two.crashes) == 1 and "stream 1, step 2" in two.crashes[0] and "boom" in two.crashes[0]
    assert three.valid.all() and three.obs[1].tolist() == [0, 1] and not three.crashes
    vector.close()


@pytest.mark.parametrize("fault", ["raise", "die"])
def test_a_crash_in_a_process_rebuilds_the_vector(fault: str, tmp_path: Path, capfd: Any) -> None:
    config = {"fault": fault, "flag": str(tmp_path / "f")}
    vector = make_vector(EnvSpec(env=cases.Faulty, env_config=config, num_envs=2, vectorizer="async"))
    _, two, three = step_until(vector, 3)
    assert not two.valid.any() and two.first.all() and len(two.crashes) == 1
    assert three.valid.all() and three.obs.tolist() == [[0, 1], [0, 1]]
    vector.close()
    vector.close()
    assert not multiprocessing.active_children()
    assert "Received the following error" not in capfd.readouterr().err


def test_a_crash_in_a_vector_rebuilds_it(tmp_path: Path) -> None:
    flag = str(tmp_path / "f")

    def create(num_envs: int) -> Any:
        return SyncVectorEnv([lambda i=i: cases.Faulty("raise", stream_index=i, flag=flag) for i in range(num_envs)])

    one, two, three = step_until(make_vector(EnvSpec(env=create, num_envs=2)), 3)
    assert one.valid.all() and not two.valid.any() and two.first.all() and "boom" in two.crashes[0]
    assert three.valid.all() and three.obs.tolist() == [[0, 1], [0, 1]] and not three.crashes


def test_an_environment_that_cannot_be_rebuilt_is_named(tmp_path: Path) -> None:
    config = {"fault": "unmakeable", "flag": str(tmp_path / "f")}
    vector = make_vector(EnvSpec(env=cases.Faulty, env_config=config, num_envs=2))
    with pytest.raises(
        EnvError, match=r"(?s)^Traceback.*no second time\nraypid: .*Faulty, stream 1, step 2: .*3 attempts"
    ) as error:
        step_until(vector, 3)
    assert str(error.value).count("Traceback") == 1


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("nan", r"not finite: nan at index \[0\]"),
        ("inf", r"not finite: inf at index \[1\]"),
        ("reward", "the reward is nan; it must be one finite number"),
        (
            "rich",
            r"the reward is 1e\+39; it must be one finite number, in float32 \(up to 3.4e\+38\) before reward_scale",
        ),
        ("shape", r"has shape \(3,\); its space Box.* asks for shape \(2,\)"),
        ("dtype", "has dtype <U1"),
        ("none", r"the observation is None; its space Box"),
        ("text", r"the observation is 'hello'; its space Box"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("vectorizer", ["sync", "async"])
def test_bad_observations_are_named(fault: str, text: str, vectorizer: str) -> None:
    vector = make_vector(EnvSpec(env=cases.Faulty, env_config={"fault": fault}, num_envs=2, vectorizer=vectorizer))
    with pytest.raises(EnvError, match=rf"Faulty, stream 1, step 2: .*{text}"):
        step_until(vector, 3)
    vector.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("vectorizer", ["sync", "async"])
def test_other_bad_steps_are_named(vectorizer: str) -> None:
    spec = EnvSpec(env=cases.Faulty, env_config={"fault": "old api"}, num_envs=2, vectorizer=vectorizer)
    with closing(make_vector(spec)) as vector, pytest.raises(EnvError, match=r"step\(\) must return .*a tuple of 4"):
        step_until(vector, 3)
    for fault, text in (
        ("terminated", "returned 'no' as terminated; it must be true or false"),
        ("truncated", "returned None as truncated"),
        ("info", "returned the info None; it must be a dict"),
    ):
        spec = EnvSpec(env=cases.Faulty, env_config={"fault": fault}, num_envs=2, vectorizer=vectorizer)
        with (
            closing(make_vector(spec)) as vector,
            pytest.raises(EnvError, match=f"Faulty, stream 1, step 2: .*{text}"),
        ):
            step_until(vector, 3)
    with pytest.raises(EnvError, match=r"outside its space Discrete\(3\): 3"):
        step_until(make_vector(EnvSpec(env=cases.OutOfRange, num_envs=2)), 1)


def telling(vectorizer: str, num_envs: int = 3, **given: Any) -> VectorEnv:
    if vectorizer in ("NextStep", "SameStep", "Disabled", "own async"):
        config = {"way": vectorizer.removeprefix("own "), **given}
        return make_vector(EnvSpec(env=cases.tellings, env_config=config, num_envs=num_envs))
    spec = EnvSpec(env=cases.telling, env_config=given, num_envs=num_envs, vectorizer=vectorizer, num_threads=2)
    return make_vector(spec)


@pytest.mark.parametrize(
    "vectorizer", ["sync", "threads", "processes", "async", "NextStep", "SameStep", "Disabled", "own async"]
)
def test_infos_of_any_kind_reach_callbacks_and_do_not_change_what_is_learnt_from(vectorizer: str) -> None:
    for kind in cases.Telling.INFOS:
        rows, num_steps = [], 0
        with closing(telling(vectorizer, info=kind)) as vector:
            vector.reset()
            while len(rows) < 12:
                step = vector.step(np.zeros(3, np.int64))
                num_steps += int(step.valid.sum())
                assert not step.crashes, step.crashes[0]
                rows += [(b, info) for b, info in step.infos.items()]
        for stream, info in rows:
            expected = cases.Telling.INFOS[kind](3 + stream, stream)
            assert type(info) is dict and repr(info) == repr(expected), (kind, stream)
        assert num_steps >= 3 * len(rows)


def test_what_cannot_cross_to_another_process_is_left_out_of_an_info_with_a_warning() -> None:
    for vectorizer in ("async", "processes"):
        with closing(telling(vectorizer, 2, info="secret")) as vector:
            vector.reset()
            with pytest.warns(RuntimeWarning, match=r"telling: of its info, 'lock' cannot be pickled"):
                infos = [vector.step(np.zeros(2, np.int64)).infos for _ in range(4)]
        assert infos[2] == {0: {"t": 3}} or vectorizer == "processes", infos
        assert infos[3] == {1: {"t": 4}}


NUMBER = "it must be one finite number, in float32 (up to 3.4e+38) before reward_scale."
SUM = f"{NUMBER} Sum the components, and keep the parts in info, where a callback makes metrics of them."
REWARDS: list[tuple[Any, float | str]] = [
    (np.float16(0.5), 0.5),
    (np.array(0.5), 0.5),
    (np.array([0.5]), 0.5),
    (np.array([[True]]), 1.0),
    ([0.5], 0.5),
    (True, 1.0),
    (np.True_, 1.0),
    (Decimal("0.5"), 0.5),
    (Fraction(1, 2), 0.5),
    (2**70, 2.0**70),
    (None, f"is None; {NUMBER}"),
    ("1", f"is '1'; {NUMBER}"),
    (1j, f"is 1j; {NUMBER}"),
    (np.array([1j]), f"is 1j; {NUMBER}"),
    ({"fuel": -0.1, "speed": 1.0}, f"is {{'fuel': -0.1, 'speed': 1.0}}; {SUM}"),
    ((1.0, 2.0), f"is (1.0, 2.0); {SUM}"),
    (np.array([1.0, 2.0]), f"is array([1., 2.]); {SUM}"),
    (np.zeros(0), f"is array([], dtype=float64); {SUM}"),
    (math.nan, f"is nan; {NUMBER}"),
    (np.array([-math.inf]), f"is -inf; {NUMBER}"),
    (Decimal("NaN"), f"is Decimal('NaN'); {NUMBER}"),
    (-1e39, f"is -1e+39; {NUMBER}"),
    (10**400, f"is 1000000000000000000000000000...00000000000000000000000000000; {NUMBER}"),
]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("vectorizer", ["sync", "threads", "processes", "async", "NextStep", "SameStep", "Disabled"])
def test_a_reward_is_taken_or_refused_alike_in_every_vector(vectorizer: str) -> None:
    quick = vectorizer not in ("processes", "async")
    for reward, expected in REWARDS if quick else REWARDS[:2] + REWARDS[9:15] + REWARDS[-3:]:
        for at in (1, 6) if quick else (1,):  # also after an episode has ended
            with closing(telling(vectorizer, 2, reward=reward, at=at)) as vector:
                vector.reset()
                steps = iter(lambda: vector.step(np.zeros(2, np.int64)), None)
                if isinstance(expected, float):
                    assert any((step.reward == expected).all() for step, _ in zip(steps, range(9))), reward
                else:
                    with pytest.raises(EnvError) as error:
                        assert not any(step.crashes for step, _ in zip(steps, range(9)))
                    text = re.sub(r"stream \d, step \d+", "here", str(error.value))
                    assert text == f"Environment {vector._name}, here: the reward {expected}"
                    assert at > 1 or "stream 0, step 1:" in str(error.value)


def test_repeated_actions_leave_a_reward_that_does_not_fit_to_the_vector() -> None:
    spec = EnvSpec(env=cases.telling, env_config={"reward": {"a": 1}}, num_envs=2, action_repeat=2, vectorizer="sync")
    with (
        closing(make_vector(spec)) as vector,
        pytest.raises(EnvError, match=r"stream 0, step 1: the reward is {'a': 1}"),
    ):
        step_until(vector, 1)


@pytest.mark.parametrize("yes", [1, np.int64(1), np.ones(1), np.ones((), bool), np.array([True])])
def test_flags_that_mean_true_or_false(yes: Any) -> None:
    class Odd(cases.Counter):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, yes if self.t == 2 else 0, yes * 0, info

    steps = step_until(make_vector(EnvSpec(env=lambda **_: Odd(lengths=(9,)), num_envs=2, vectorizer="sync")), 3)
    assert [step.terminated.tolist() for step in steps] == [[False] * 2, [True] * 2, [False] * 2]
    assert not any(step.truncated.any() for step in steps)


def test_time_limit_and_action_repeat() -> None:
    spec = EnvSpec(env=cases.Counter, env_config={"lengths": (100,)}, num_envs=2, time_limit=6, action_repeat=2)
    one, two, three, four = step_until(make_vector(spec), 4)
    assert one.reward.tolist() == [3, 3] and one.obs[0].tolist() == [0, 2]
    assert not two.truncated.any() and three.truncated.all() and not three.terminated.any()
    assert not four.valid.any() and four.first.all()
    for env, vectorizer in (("CartPole-v1", "native"), ("CartPole-v1", "sync"), (cases.Walk, "sync")):
        vector = make_vector(EnvSpec(env=env, num_envs=2, time_limit=3, vectorizer=vectorizer))
        vector.reset()
        action = np.zeros((2, *vector.action_space.shape), vector.action_space.dtype)
        assert [bool(vector.step(action).truncated.all()) for _ in range(8)] == [False, False, True, False] * 2


class Endless(gymnasium.Env[Any, Any]):
    """Observations without bounds, continuous actions; an episode terminates after an action above 0."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1.0, bool(action[0] > 0), False, {}


def ends(vector: VectorEnv, num_steps: int, terminates_at: int = -1) -> list[tuple[int, list[int], list[int]]]:
    """(step, streams whose episode ended, those of them that were cut) of each step with ends."""
    found = []
    for t in range(1, num_steps + 1):
        step = vector.step(np.full((vector.num_envs, 1), float(t == terminates_at), np.float32))
        found += [(t, list(step.infos), step.cut)] if step.infos else []
    return found


def test_streams_whose_episodes_never_terminate_end_at_different_times() -> None:
    spec = EnvSpec(env=Endless, num_envs=4, time_limit=8, vectorizer="sync", staggers=True)
    first = [(2, [3], [3]), (4, [2], [2]), (6, [1], [1]), (8, [0], [])]
    with closing(make_vector(spec)) as vector:
        for _ in range(2):  # also after all have been reset together
            vector.reset()
            # from then on an episode and its reset take nine rows
            assert ends(vector, 17) == [*first, (11, [3], []), (13, [2], []), (15, [1], []), (17, [0], [])]
        vector.reset()
        assert ends(vector, 17, terminates_at=1) == [(1, [0, 1, 2, 3], []), (10, [0, 1, 2, 3], [])]
    with closing(make_vector(replace(spec, staggers=False))) as vector:
        vector.reset()
        assert ends(vector, 8) == [(8, [0, 1, 2, 3], [])]


def test_native_cartpole() -> None:
    vector = make_vector(EnvSpec(env="CartPole-v1", num_envs=16))
    assert vector.vectorizer == "native"
    vector.reset()
    ended = np.zeros(16, bool)
    for _ in range(60):
        step = vector.step(np.zeros(16, np.int64))
        assert np.array_equal(step.first, ended) and np.array_equal(step.valid, ~ended)
        assert (np.abs(step.obs[step.first]) <= 0.05).all()
        ended = step.terminated | step.truncated


@pytest.mark.parametrize("env", ["envpool:CartPole-v1", "envpool:Pong-v5", "envpool:HalfCheetah-v5", "ALE/Pong-v5"])
def test_envpool_and_ale(env: str) -> None:
    pytest.importorskip("ale_py" if env.startswith("ALE") else "envpool")
    spec = EnvSpec(env=env, num_envs=2, time_limit=5)
    vector = make_vector(spec)
    assert vector.vectorizer == ("ale" if env.startswith("ALE") else "envpool")
    if "Pong" in env:
        assert vector.observation_space.shape == (84, 84) and vector.observation_space.dtype == np.uint8
    obs = vector.reset()
    assert obs.shape == (2, *vector.observation_space.shape) and obs.dtype == vector.observation_space.dtype
    rows = []
    for _ in range(12):
        step = vector.step(np.zeros((2, *vector.action_space.shape), vector.action_space.dtype))
        rows.append((bool(step.truncated[0]), bool(step.valid[0]), bool(step.first[0])))
    end, reset, usual = (True, True, False), (False, False, True), (False, True, False)
    assert rows == [*[usual] * 4, end, reset, *[usual] * 4, end, reset]
    vector.close()


def test_atari_in_python_looks_alike() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    vector = make_vector(EnvSpec(env="ALE/Pong-v5", num_envs=1, vectorizer="sync"))
    assert vector.observation_space.shape == (84, 84)
    assert vector.reset().shape == (1, 84, 84)
    plain = make_vector(EnvSpec(env="ALE/Pong-v5", num_envs=1, atari=False))
    assert plain.vectorizer == "sync" and plain.observation_space.shape == (210, 160, 3)


def test_mujoco_writes_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    make_vector(EnvSpec(env="HalfCheetah-v5", num_envs=1)).close()
    assert os.listdir(tmp_path) == [] and "settotalmass" not in capfd.readouterr().err


def test_toys() -> None:
    for env in ("raypid/Catch-v0", "raypid/DictCartPole-v0", "raypid/MultiMatch-v0"):
        vector = make_vector(EnvSpec(env=env, num_envs=2))
        obs = vector.reset()
        assert tree_map(lambda leaf: leaf.shape[0] == 2, obs)
        total = 0.0
        for _ in range(10):
            if env == "raypid/MultiMatch-v0":
                action = obs
            elif env == "raypid/Catch-v0":
                ball, paddle = obs[:, :9].sum(1).argmax(1), obs[:, 9].argmax(1)
                action = np.sign(ball - paddle) + 1
            else:
                action = np.zeros(2, np.int64)
            step = vector.step(action)
            obs, total = step.obs, total + float(step.reward[0])
        assert total == (1 if "Catch" in env else 10 if "Match" in env else total)


def test_infos_of_a_wrapped_vector_are_those_that_gymnasium_merges() -> None:
    def create(num_envs: int) -> Any:
        return RecordEpisodeStatistics(cases.counters(num_envs, "NextStep"))

    with closing(make_vector(EnvSpec(env=create, num_envs=2))) as vector:
        infos = [step.infos for step in step_until(vector, 3)]
    assert [(stream, info["episode"]["l"], info["success"]) for step in infos for stream, info in step.items()] == [
        (1, 1, 0.0),
        (0, 3, 0.0),
    ]
