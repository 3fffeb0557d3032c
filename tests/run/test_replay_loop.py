"""The replay loop in one process and on Ray: its ratio, warm-up and exploration, saves and resumes, what is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import wait_until

from raypid.nn.policy import load_policy
from raypid.plugins.registry import ALGORITHMS
from raypid.replay.base import Replay
from raypid.replay.disk import ReplayDamaged
from raypid.run.agent import Agent
from raypid.run.events import Listener
from raypid.run.resolve import resolve_config
from raypid.runtime.supervisor import RolesFailed
from raypid.settings.config import ConfigError
from raypid.types import tree_map

SMALL = {
    "model": {"hidden": (16, 16)}, "batch_size": 16, "num_envs_per_worker": 2, "start_steps": 60, "start_episodes": 0, "buffer_size": 2000,
    "steps_per_iteration": 100, "seed": 3, "num_threads": 1, "samples_per_insert": 2.0, "evaluation_interval": 0, "fragment_length": 1,
}  # fmt: skip
DQN = {**SMALL, "env": "fragile:Fragile"}
SAC = {**SMALL, "env": "Pendulum-v1"}
SHARDED = {
    **DQN, "buffer_size": 8000, "num_workers": 2, "num_replay_shards": 2, "prioritized": True, "fragment_length": 8,
    "updates_per_call": 2, "num_cpus_per_worker": 0.1,
}  # fmt: skip
SKIPPED = (
    "time_",
    "timing/",
    "env_steps_per_s",
    "learner/samples_per_insert",
    "learner/a_l_ratio",
    "parameter_server/",
)
"""Clocks, and what counts since the process began."""


def history(agent: Agent, num: int) -> list[dict[str, Any]]:
    results = (agent.train() for _ in range(num))
    return [{k: v for k, v in r.items() if not k.startswith(SKIPPED)} for r in results]


def assert_equal(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> None:
    for one, other in zip(a, b, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_array_equal(one[key], other[key], err_msg=key)


def replay_of(agent: Agent) -> Any:
    """The buffer in this process."""
    return agent.context.learner.role.replay.buffer  # type: ignore[attr-defined]


def assert_same_replay(a: Any, b: Any) -> None:
    assert (a.count, a.num_ready, a.max_priority) == (b.count, b.num_ready, b.max_priority)
    ids = np.arange(a.oldest, a.count)
    tree_map(np.testing.assert_array_equal, a.rows(ids), b.rows(ids))
    if a.spec.priority_exponent:
        slots = ids % a.spec.capacity
        np.testing.assert_array_equal(a.tree.get(slots), b.tree.get(slots))


# -- the ratio ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_workers", "ratio"),
    [
        (0, 2.0),
        (0, 9.6),
        (3, 2.0),
        pytest.param(1, 9.6, marks=pytest.mark.ci_slow),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 2.0), (3, 9.6))),
    ],
)
def test_samples_per_insert_is_held(num_workers: int, ratio: float, ray_session: Any) -> None:
    more = {"num_workers": num_workers, "fragment_length": 4, "samples_per_insert": ratio, "steps_per_iteration": 400}
    with Agent("DQN", DQN, **more) as agent:
        for _ in range(3):
            result = agent.train()
        assert result["learner/samples_per_insert"] == pytest.approx(ratio, rel=0.05)
        assert result["learner/a_l_ratio"] == pytest.approx(16 / ratio, rel=0.06)
        steps = result["timesteps_total"] - 60
        assert result["learner_updates_total"] * 16 / steps == pytest.approx(ratio, rel=0.05)
        replay = replay_of(agent)
        assert result["learner/replay_rows"] == replay.num_ready
        assert replay.columns["valid"].sum() <= result["timesteps_total"]


def test_a_l_ratio_sets_the_same() -> None:
    with Agent("DQN", DQN, a_l_ratio=4.0) as agent:
        for _ in range(4):
            result = agent.train()
        assert result["learner/a_l_ratio"] == pytest.approx(4, rel=0.05)
        assert result["learner/samples_per_insert"] == pytest.approx(4, rel=0.05)


def test_local_with_workers_is_the_same_loop() -> None:
    with Agent("DQN", DQN, num_workers=2, backend="local") as agent:
        result = [agent.train() for _ in range(3)][-1]
        assert result["learner/samples_per_insert"] == pytest.approx(2, rel=0.05)
        assert set(replay_of(agent).tails) == {0, 1}


def test_the_seed_decides() -> None:
    with Agent("SAC", SAC) as a, Agent("SAC", SAC) as b, Agent("SAC", SAC, seed=4) as c:
        first, again, other = (history(agent, 2) for agent in (a, b, c))
    assert_equal(first, again)
    assert first[-1]["learner/critic_loss"] != other[-1]["learner/critic_loss"]


# -- exploration -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("run", "config"), [("SAC", SAC), ("TD3", SAC), ("DQN", DQN)])
def test_warm_up_acts_at_random_and_learns_nothing(run: str, config: dict[str, Any]) -> None:
    with Agent(run, config, start_steps=600, steps_per_iteration=590, num_envs_per_worker=4) as agent:
        before = agent.get_weights()
        result = agent.train()
        assert result["learner_updates_total"] == 0 and 590 <= result["timesteps_total"] < 600
        assert "learner/samples_per_insert" not in result and "learner/loss" not in result
        np.testing.assert_array_equal(agent.get_weights().flat, before.flat)
        replay = replay_of(agent)
        action = replay.columns["action/"][: replay.count]
        if run == "DQN":
            assert action.mean() == pytest.approx(0.5, abs=0.1)
        else:  # uniform over the range: 0.577 is its deviation
            assert action.mean() == pytest.approx(0, abs=0.12) and action.std() == pytest.approx(0.577, abs=0.06)
            assert np.abs(action).max() > 0.95
        result = agent.train()
        assert result["learner_updates_total"] > 0
        assert (agent.get_weights().flat != before.flat).any()


def test_epsilon_falls_in_a_line() -> None:
    config = resolve_config(
        "DQN", {**DQN, "epsilon_start": 0.9, "epsilon_end": 0.1, "epsilon_steps": 400, "start_steps": 100}
    )
    explore = ALGORITHMS.get("DQN").exploration
    assert explore(config, 99, 0) == {"random": True}
    found = [explore(config, t, 0)["epsilon"] for t in (100, 300, 500, 10_000)]
    assert found == pytest.approx([0.9, 0.5, 0.1, 0.1])
    noisy = resolve_config("Rainbow", {**DQN, "start_steps": 100})
    assert explore(noisy, 100, 0) == {}
    config = resolve_config("ApeX", {**SHARDED, "num_workers": 3, "num_replay_shards": 1, "start_steps": 0})
    streams = np.concatenate([ALGORITHMS.get("ApeX").exploration(config, 0, i)["epsilon"] for i in range(3)])
    np.testing.assert_allclose(streams, [0.4 ** (1 + 7 * i / 5) for i in range(6)], rtol=1e-5)
    td3 = resolve_config("TD3", {**SAC, "exploration_noise": 0.3})
    assert ALGORITHMS.get("TD3").exploration(td3, 60, 0) == {"noise": 0.3}


@pytest.mark.ci_slow
def test_each_stream_of_apex_has_its_epsilon(ray_session: Any) -> None:
    config = {**SHARDED, "num_workers": 3, "num_replay_shards": 1, "start_steps": 0}
    with Agent("ApeX", config) as agent:
        assert agent.context.replay is not None
        found = np.concatenate([agent.context.replay.exploration(0, i)["epsilon"] for i in range(3)])
        np.testing.assert_allclose(found, [0.4 ** (1 + 7 * i / 5) for i in range(6)], rtol=1e-5)
        np.testing.assert_array_equal(agent.context.replay.exploration(10**6, 2)["epsilon"], found[4:])
        agent.train()
        for i, handle in enumerate(agent.context.workers.handles):  # it travelled with the call
            actor = handle.actor  # type: ignore[attr-defined]
            told = ray_session.get(actor.__ray_call__.remote(lambda role: role.role.worker.policy.exploration))
            np.testing.assert_array_equal(told["epsilon"], found[2 * i : 2 * i + 2])


# -- saves and resumes -------------------------------------------------------------------------------------------------

EXACT: list[tuple[str, dict[str, Any]]] = [
    ("SAC", {**SAC, "prioritized": True, "n_step": 3, "normalize_observations": True}),
    ("SAC", {**SAC, "critic_norm": "batch", "target_network": False, "buffer_size": 150}),
    ("DQN", {**DQN, "fragment_length": 5, "samples_per_insert": 1.3}),
    ("Rainbow", {**DQN, "model": {"hidden": (8,)}}),
    ("SQN", {**DQN, "num_workers": 2, "backend": "local"}),
    ("TD3", {**SAC, "frame_stack": 3}),
    ("R2D2", {**DQN, "model": {"hidden": (8,), "memory_size": 8}, "sequence_length": 8, "burn_in": 2}),
]


@pytest.mark.parametrize(("run", "config"), EXACT, ids=[f"{run}-{i}" for i, (run, _) in enumerate(EXACT)])
def test_exact_resume(run: str, config: dict[str, Any], tmp_path: Path) -> None:
    with Agent(run, config, exact_resume=True) as whole:
        history(whole, 2)
        path = whole.save(tmp_path)
        expected = history(whole, 2)
        with Agent.from_checkpoint(path) as resumed:
            assert_equal(expected, history(resumed, 2))
            assert_same_replay(replay_of(whole), replay_of(resumed))
            np.testing.assert_array_equal(whole.get_weights().flat, resumed.get_weights().flat)
            again = resumed.save(tmp_path / "again")
            expected = history(resumed, 1)
        whole.restore(again)  # into an agent that has come further
        assert_equal(expected, history(whole, 1))


TWO = {"num_workers": 2, "num_cpus_per_worker": 0.1, "fragment_length": 4, "exact_resume": True}
ON_RAY: list[tuple[str, dict[str, Any]]] = [
    ("SAC", {**SAC, **TWO, "prioritized": True, "normalize_observations": True}),
    ("DQN", {**DQN, **TWO, "num_learners": 1, "parameter_server": True}),
    ("R2D2", {**EXACT[-1][1], **TWO}),
    ("TD3", {**SAC, **TWO, "num_learners": 2, "normalize_observations": True}),
    ("ApeX", {**SHARDED, **TWO, "normalize_observations": True}),
]


@pytest.mark.parametrize(
    ("run", "config"),
    [pytest.param(*case, id=case[0], marks=[pytest.mark.ci_slow] if i else []) for i, case in enumerate(ON_RAY)],
)
def test_exact_resume_on_ray(run: str, config: dict[str, Any], ray_session: Any, tmp_path: Path) -> None:
    with Agent(run, config) as whole:
        first = history(whole, 2)
        path = whole.save(tmp_path)
        expected = history(whole, 2)
        weights = whole.get_weights().flat
    with Agent.from_checkpoint(path) as resumed:
        assert_equal(expected, history(resumed, 2))
        np.testing.assert_array_equal(resumed.get_weights().flat, weights)
    if not config.get("num_learners") and not config.get("num_replay_shards"):
        beside = {name: value for name, value in config.items() if name != "num_cpus_per_worker"}
        for result in first + expected:
            del result["lost/fragments"], result["lost/nodes"]  # one process loses none
        with Agent(run, beside, backend="local") as local:
            assert_equal(first, history(local, 2))
            local.save(tmp_path / "local")
            assert_equal(expected, history(local, 2))
            np.testing.assert_array_equal(local.get_weights().flat, weights)


@pytest.mark.parametrize(
    ("run", "more"),
    [("SAC", {"num_learners": 2, "learner_sync": "asynchronous"}), ("A3C", {}), ("IMPALA", {}), ("ES", {})],
)
def test_exact_resume_is_refused_where_who_is_first_decides(run: str, more: dict[str, Any]) -> None:
    env = "Pendulum-v1" if run == "SAC" else "CartPole-v1"
    with pytest.raises(ConfigError, match="exact_resume has no effect .*asynchronous"):
        Agent(run, env=env, num_workers=2, exact_resume=True, **more)


def test_a_resume_during_warm_up_and_before_the_first_step(tmp_path: Path) -> None:
    for iterations in (0, 1):
        with Agent("DQN", DQN, exact_resume=True, start_steps=150) as whole:
            history(whole, iterations)
            path = whole.save(tmp_path)
            expected = history(whole, 3)
        with Agent.from_checkpoint(path) as resumed:
            assert_equal(expected, history(resumed, 3))


@pytest.mark.ci_slow
def test_resume_with_other_workers(ray_session: Any, tmp_path: Path) -> None:
    with Agent("DQN", DQN, prioritized=True, num_workers=2) as agent:
        agent.train()
        path = agent.save(tmp_path)
        weights, before = agent.get_weights(), agent.train()
        assert before["training_iteration"] == 2
    for num_workers in (0, 3):
        with Agent.from_checkpoint(path, num_workers=num_workers) as resumed:
            np.testing.assert_array_equal(resumed.get_weights().flat, weights.flat)
            replay = replay_of(resumed)
            count, old = replay.count, replay.rows(np.arange(replay.count))
            assert count >= 100 and replay.num_ready > 60
            result = resumed.train()
            assert result["training_iteration"] == 2 and result["learner_updates_total"] > 0
            assert replay.count > count
            for name in ("obs/", "action/", "reward"):
                np.testing.assert_array_equal(replay.rows(np.arange(count))[name], old[name])
            assert_rows_follow(replay)


def test_an_older_checkpoint_without_replay_fills_anew(tmp_path: Path) -> None:
    with Agent("DQN", DQN) as agent:
        history(agent, 2)
        first = agent.save(tmp_path)
        assert (first / "replay" / "index.json").exists()
        history(agent, 1)
        second = agent.save(tmp_path)
        assert (second / "replay").is_dir() and not (first / "replay").exists()  # only the newest keeps it
    with Agent.from_checkpoint(first) as resumed:
        assert resumed.notes == [f"{first} has no replay buffer: it fills up before learning goes on"]
        assert len(replay_of(resumed)) == 0
        result = resumed.train()
        assert result["training_iteration"] == 3 and 0 < result["learner/replay_rows"] < 120
        assert result["learner_updates_total"] > 0
    with Agent.from_checkpoint(second) as resumed:
        assert resumed.notes == [] and len(replay_of(resumed)) > 200


def test_a_restore_without_replay_into_a_used_agent(tmp_path: Path) -> None:
    """What it says is so there too."""
    with Agent("DQN", DQN, save_replay=False) as agent:
        agent.train()
        path = agent.save(tmp_path)
        assert not (path / "replay").exists()
        history(agent, 3)
        agent.restore(path)
        assert "fills up" in agent.notes[-1] and len(replay_of(agent)) == 0
        assert agent.train()["learner/replay_rows"] < 120


def test_two_saves_in_one_iteration(tmp_path: Path) -> None:
    with Agent("DQN", DQN) as agent:
        agent.train()
        assert agent.save(tmp_path) == (path := agent.save(tmp_path))
        rows = len(replay_of(agent))
    with Agent.from_checkpoint(path) as resumed:
        assert len(replay_of(resumed)) == rows and resumed.notes == []


def test_a_save_elsewhere_leaves_the_other_alone(tmp_path: Path) -> None:
    with Agent("DQN", DQN) as agent:
        agent.train()
        here = agent.save(tmp_path / "here")
        agent.train()
        there = agent.save(tmp_path / "there")
    for path in (here, there):
        with Agent.from_checkpoint(path) as resumed:
            assert len(replay_of(resumed)) > 60


def test_a_new_capacity_wins(tmp_path: Path) -> None:
    with Agent("DQN", DQN, buffer_size=200, prioritized=True) as agent:
        history(agent, 4)
        path = agent.save(tmp_path)
    for size in (100, 5000):
        with Agent.from_checkpoint(path, buffer_size=size, n_step=5) as resumed:
            assert len(replay_of(resumed)) > min(size, 200) * 0.6
            history(resumed, 2)
            assert_rows_follow(replay_of(resumed))


def test_a_damaged_buffer_is_named(tmp_path: Path) -> None:
    with Agent("DQN", DQN) as agent:
        agent.train()
        path = agent.save(tmp_path)
    file = next((path / "replay").glob("segment*"))
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises((ReplayDamaged, ValueError), match=r"segment_.*"):
        Agent.from_checkpoint(path)


@pytest.mark.parametrize(("run", "config"), [("DQN", DQN), ("Rainbow", DQN), ("SQN", DQN), ("SAC", SAC), ("TD3", SAC)])
def test_a_deployed_policy_acts_without_torch(run: str, config: dict[str, Any], tmp_path: Path) -> None:
    with Agent(run, config, normalize_observations=True) as agent:
        history(agent, 2)
        path = agent.save(tmp_path)
    size = 3 if config is SAC else 2
    obs = np.linspace(-1, 1, size).tolist()
    code = (
        "import sys, json, numpy as np, raypid\n"
        f"policy = raypid.load_policy({str(path)!r})\n"
        f"action = policy.act(np.array({obs}, np.float32))\n"
        "assert not {'torch', 'ray'} & set(sys.modules), 'heavy'\n"
        "print(json.dumps(np.asarray(action).tolist()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    expected = load_policy(path).act(np.array(obs, np.float32))
    np.testing.assert_allclose(json.loads(done.stdout), expected)
    if config is SAC:
        assert np.shape(expected) == (1,) and abs(expected[0]) <= 2
    else:
        assert expected in (0, 1)


# -- on Ray: what is lost ----------------------------------------------------------------------------------------------


def assert_rows_follow(replay: Any) -> None:
    """In `Fragile` the first number of an observation is the step / 10, the second the last action."""
    ids = np.arange(replay.oldest, replay.count)
    c = replay.rows(ids)
    ids = ids[(c["follow"] >= 0) & c["valid"] & ~c["truncated"]]
    assert len(ids) > 50
    here, after = replay.rows(ids), replay.rows(replay.rows(ids)["follow"])
    np.testing.assert_allclose(after["obs/"][:, 0], here["obs/"][:, 0] + 0.1, atol=1e-6)
    np.testing.assert_array_equal(after["obs/"][:, 1], here["action/"])


def kill(ray_session: Any, handle: Any) -> None:
    os.kill(ray_session.get(handle.actor.__ray_call__.remote(lambda role: os.getpid())), signal.SIGKILL)


@pytest.mark.ci_slow
def test_a_worker_killed_while_the_run_learns(ray_session: Any, tmp_path: Path) -> None:
    more = {"env_config": {"sleep_s": 0.002}, "vectorizer": "sync", "fragment_length": 10, "steps_per_iteration": 400}
    with Agent("DQN", {**DQN, **more}, num_workers=2, num_cpus_per_worker=0.1) as agent:
        agent.context.losses.errors.folder = tmp_path
        agent.train()
        threading.Timer(0.2, kill, (ray_session, agent.context.workers.handles[1])).start()
        for _ in range(30):
            result = agent.train()
            if result["lost/workers"]:
                break
        result = [agent.train() for _ in range(2)][-1]
        assert (result["lost/workers"], result["lost/timeouts"]) == (1, 0)
        assert result["learner/samples_per_insert"] == pytest.approx(2, rel=0.05)
        assert_rows_follow(replay_of(agent))
        assert (replay_of(agent).tails[1] > replay_of(agent).count - 200).all()  # the new one is at work
    assert "Worker 1 (fragile:Fragile) died in collect()" in (tmp_path / "errors.txt").read_text()


def test_going_on_after_an_error_leaves_no_gap(ray_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments that were on their way when the loop was left are stored by the next one."""
    with Agent("DQN", {**DQN, "fragment_length": 7}, num_workers=2) as agent:
        agent.train()
        plan = agent.context.replay
        assert plan is not None
        for _ in range(5):
            with monkeypatch.context() as patch:
                patch.setattr(plan.source, "learn", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    agent.train()
            agent.train()
        assert_rows_follow(replay_of(agent))


def shards_of(agent: Agent) -> Any:
    return agent.context.replay.source.buffers  # type: ignore[union-attr]


def test_sharded_replay(ray_session: Any) -> None:
    with Agent("DQN", SHARDED, steps_per_iteration=500) as agent:
        result = [agent.train() for _ in range(2)][-1]
        assert result["learner/samples_per_insert"] == pytest.approx(2, rel=0.05)
        assert np.isfinite(result["learner/loss"])
        assert result["learner/replay_rows"] > 700 and result["learner/replay_skipped_priorities"] == 0
        rows = [ray_session.get(s.submit(Replay.__len__)) for s in shards_of(agent)]
        assert min(rows) > 50  # workers may be unequally fast
        for shard, num in zip(shards_of(agent), rows, strict=True):
            total = ray_session.get(shard.actor.__ray_call__.remote(lambda role: role.role.buffer.tree.total))
            assert abs(total - num) > 1  # priorities came


@pytest.mark.ci_slow
def test_sharded_save_and_restore_with_any_number_of_shards(ray_session: Any, tmp_path: Path) -> None:
    with Agent("DQN", SHARDED) as agent:
        history(agent, 2)
        first = agent.save(tmp_path)
        assert sorted(p.name for p in (first / "replay").iterdir()) == ["shard_0", "shard_1"]
        result = agent.train()
        path = agent.save(tmp_path)
        assert not (first / "replay").exists()
        rows, weights = [ray_session.get(s.submit(Replay.__len__)) for s in shards_of(agent)], agent.get_weights()
    with Agent.from_checkpoint(path, num_workers=3) as resumed:
        assert [ray_session.get(s.submit(Replay.__len__)) for s in shards_of(resumed)] == rows
        np.testing.assert_array_equal(resumed.get_weights().flat, weights.flat)
        going_on = resumed.train()
        assert going_on["training_iteration"] == 4 and going_on["learner/replay_rows"] > sum(rows)
    # another number of shards takes what was saved
    for more in ({"num_replay_shards": 0, "num_workers": 0}, {"num_replay_shards": 1}):
        with Agent.from_checkpoint(path, **more) as resumed:
            assert all("from here" in note for note in resumed.notes)
            source: Any = resumed.context.replay.source  # type: ignore[union-attr]
            assert source.holds(int(0.9 * result["learner/replay_rows"]))
            assert resumed.train()["learner_updates_total"] > result["learner_updates_total"]


@pytest.mark.slow
@pytest.mark.parametrize("num_learners", [0, 1])
def test_a_shard_killed_once_too_often_ends_the_run_with_its_name(num_learners: int, ray_session: Any) -> None:
    with Agent("DQN", SHARDED, num_learners=num_learners, max_restarts=0) as agent:
        history(agent, 2)
        kill(ray_session, shards_of(agent)[1])
        with pytest.raises(RolesFailed, match=r"Replay shard 1 of 2 died in .*\(\)\. That is loss number 1"):
            history(agent, 5)


@pytest.mark.ci_slow
def test_a_killed_shard_is_filled_from_the_checkpoint(ray_session: Any, tmp_path: Path) -> None:
    with Agent("DQN", SHARDED) as agent:
        told: list[str] = []
        listener = Listener()
        listener.on_lost = told.append  # type: ignore[method-assign]
        agent.listen(listener)
        before = history(agent, 2)[-1]
        agent.save(tmp_path)
        kill(ray_session, shards_of(agent)[1])
        result: dict[str, float] = {}
        wait_until(lambda: result.update(agent.train()) or told)
        assert result["lost/shards"] == 1 and result["learner_updates_total"] > before["learner_updates_total"]
        assert told[0].startswith("Replay shard 1 of 2 died in ") and "It was filled from checkpoint_" in told[0]
        source: Any = agent.context.replay.source  # type: ignore[union-attr]
        wait_until(lambda: agent.train() and not source._refilling)
        path = agent.save(tmp_path)
        rows = [ray_session.get(s.submit(Replay.__len__)) for s in shards_of(agent)]
    with Agent.from_checkpoint(path) as resumed:
        assert [ray_session.get(s.submit(Replay.__len__)) for s in shards_of(resumed)] == rows


@pytest.mark.ci_slow
def test_the_only_shard_is_waited_for(ray_session: Any) -> None:
    """Where no other shard can take its place, no update is dropped: the loop goes on once it holds its rows again."""
    with Agent("DQN", SHARDED, num_replay_shards=1) as agent:
        before = history(agent, 3)[-1]
        kill(ray_session, shards_of(agent)[0])
        result: dict[str, float] = {}
        wait_until(lambda: result.update(agent.train()) or result["lost/shards"])
        result = history(agent, 3)[-1]
        steps, updates = (result[key] - before[key] for key in ("timesteps_total", "learner_updates_total"))
        assert updates == pytest.approx(steps * SHARDED["samples_per_insert"] / SHARDED["batch_size"], abs=10)
        assert result["lost/replay_rows"] == 0


@pytest.mark.ci_slow
def test_the_learner_in_an_actor(ray_session: Any, tmp_path: Path) -> None:
    with Agent("DQN", DQN, num_workers=2, num_learners=1, fragment_length=4) as agent:
        result = [agent.train() for _ in range(3)][-1]
        assert result["learner/samples_per_insert"] == pytest.approx(2, rel=0.1)
        path = agent.save(tmp_path)
    with Agent.from_checkpoint(path, num_learners=0, num_workers=0) as resumed:
        assert len(replay_of(resumed)) == pytest.approx(result["learner/replay_rows"], abs=40)
    shutil.rmtree(path)
