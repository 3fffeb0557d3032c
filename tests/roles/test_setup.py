"""The roles of one setup: in a loop of a user's own they do what an agent does, in one process and as Ray actors."""

from __future__ import annotations

import ast
import dataclasses
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raypid
from raypid import roles
from raypid.errors import UserError
from raypid.plugins.registry import ALGORITHMS
from raypid.run.setup import _BY_HAND
from raypid.settings.config import type_hints

PACKAGE = Path(raypid.__file__).parent
SETTINGS: dict[str, Any] = {"seed": 3, "num_envs_per_worker": 2, "fragment_length": 32, "num_epochs": 2}


def by_agent(iterations: int) -> np.ndarray:
    """The weights of PPO on two workers after so many iterations."""
    with raypid.PPO("CartPole-v1", num_workers=2, backend="local", **SETTINGS) as agent:
        for _ in range(iterations):
            agent.train()
        return agent.get_weights().flat


def test_blas_has_one_thread_as_beside_an_agent() -> None:
    """With several, small products are slower and round otherwise. The test's own process has one already."""
    words = "import raypid, threadpoolctl as t; raypid.setup('PPO', 'CartPole-v1'); print({i['num_threads'] for i in t.threadpool_info()})"
    many = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", words], env=many, capture_output=True, text=True)
    assert done.stdout == "{1}\n", done


def test_ppo_by_hand_is_ppo() -> None:
    setup = raypid.setup("PPO", "CartPole-v1", **SETTINGS)
    rollouts = [roles.Rollout(setup, i) for i in range(2)]
    server, learner = roles.ParameterServer(setup), roles.Learner(setup)
    server.push(learner.weights())
    steps, reported = 0, []
    assert learner.metrics() == {}
    for _ in range(3):
        weights = server.pull()
        assert weights is not None
        collected = [rollout.collect(weights, steps) for rollout in rollouts]
        steps += sum(report.num_steps for report, _ in collected)
        metrics, weights = learner.update(steps, *(data for _, data in collected))
        server.push(weights)
        reported.append(metrics)
    means = {name: np.mean([metrics[name] for metrics in reported]) for name in reported[0]}
    assert "policy_loss" in means and learner.metrics() == pytest.approx(means) and learner.metrics() == {}
    newest = server.pull()
    assert newest is not None
    np.testing.assert_array_equal(newest.flat, by_agent(3))


def test_ppo_by_hand_on_ray_is_ppo(ray_session: Any) -> None:
    ray = ray_session
    setup = raypid.setup("PPO", "CartPole-v1", **SETTINGS)
    actor = ray.remote(num_cpus=0)
    rollouts = [actor(roles.Rollout).remote(setup, i) for i in range(2)]
    server, learner = actor(roles.ParameterServer).remote(setup), actor(roles.Learner).remote(setup)
    evaluator = actor(roles.Evaluator).remote(setup)
    weights, steps = learner.weights.remote(), 0
    for _ in range(3):
        server.push.remote(weights)
        pairs = [rollout.collect.options(num_returns=2).remote(server.pull.remote(), steps) for rollout in rollouts]
        steps += sum(report.num_steps for report in ray.get([report for report, _ in pairs]))
        _, weights = learner.update.options(num_returns=2).remote(steps, *(data for _, data in pairs))
    played = ray.get(evaluator.evaluate.remote(weights, 2))
    assert len(played.rewards) == 2
    np.testing.assert_array_equal(ray.get(weights).flat, by_agent(3))
    for one in [*rollouts, server, learner, evaluator]:
        ray.kill(one)


@pytest.mark.parametrize("prioritized", [False, True])
def test_replay_shards_by_hand(tmp_path: Path, prioritized: bool) -> None:
    setup = raypid.setup("DQN", "CartPole-v1", seed=0, start_steps=100, batch_size=32, prioritized=prioritized)
    setup = pickle.loads(pickle.dumps(setup))
    rollout, learner = roles.Rollout(setup), roles.Learner(setup)
    replays = [roles.Replay(setup, shard, num_shards=2) for shard in range(2)]
    weights, steps = learner.weights(), 0
    first = weights.flat.copy()
    for turn in range(100):
        report, fragment = rollout.collect(weights, steps)
        steps += report.num_steps
        learner.observe(report, fragment)
        replays[turn % 2].add(turn % 2, fragment)
    for _ in range(3):
        samples = [replay.sample(2 * 16, steps) for replay in replays]
        priorities, weights = learner.learn(steps, *samples)
        assert len(priorities) == (2 if prioritized else 0)
        for replay, sample, new in zip(replays, samples, priorities, strict=False):
            replay.set_priorities(sample, new)
    assert weights.version > 0 and (weights.flat != first).any()
    assert learner.metrics()["loss"] >= 0
    replays[0].save(str(tmp_path / "rows"))
    other = roles.Replay(setup, 0, num_shards=2)
    assert other.load(str(tmp_path / "rows")) == replays[0].num_rows() > 0
    np.testing.assert_array_equal(other.sample(8).id, replays[0].sample(8).id)
    state = learner.state_dict()
    again = roles.Learner(setup)
    again.load_state_dict(state)
    np.testing.assert_array_equal(again.weights().flat, weights.flat)
    with pytest.raises(UserError, match="multiple of batch_size"):
        learner.learn(steps, replays[0].sample(31))
    with pytest.raises(UserError, match="learns from samples"):
        learner.update(steps, fragment)


@pytest.mark.parametrize("run", ["A3C", "ES", "IMPALA"])
def test_what_workers_send_is_what_learners_take(run: str) -> None:
    setup = raypid.setup(run, "CartPole-v1", seed=0)
    rollout, learner = roles.Rollout(setup), roles.Learner(setup)
    before = learner.weights()
    report, data = rollout.collect(before)
    _, after = learner.update(report.num_steps, data)
    assert (after.flat != before.flat).any()
    with pytest.raises(UserError, match="has no replay buffer"):
        roles.Replay(setup)
    with pytest.raises(UserError, match="call update"):
        learner.learn(0)


def test_a_parameter_server_keeps_weights_on_disk(tmp_path: Path) -> None:
    setup = raypid.setup("PPO", "CartPole-v1", seed=0)
    server = roles.ParameterServer(setup)
    server.push(roles.Learner(setup).weights())
    server.save(str(tmp_path / "weights"))
    other = roles.ParameterServer(setup)
    assert other.restore(str(tmp_path / "weights")) == 0
    assert raypid.load_policy(tmp_path / "weights").act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    again = raypid.setup("PPO", "CartPole-v1", seed=1, init_from=str(tmp_path / "weights"))
    held = other.pull()
    assert held is not None
    np.testing.assert_array_equal(roles.Learner(again).weights().flat, held.flat)


SMALL = {"num_envs_per_worker": 2, "seed": 0}
REPLAYS: dict[str, Any] = {
    **SMALL,
    "fragment_length": 16,
    "batch_size": 8,
    "start_steps": 8,
    "normalize_rewards": False,
}
RESTORED: dict[str, tuple[str, dict[str, Any]]] = {
    # algorithm -> environment, settings
    "PPO": ("CartPole-v1", {**SMALL, "fragment_length": 16}),
    "DQN": ("CartPole-v1", {**REPLAYS, "normalize_observations": False}),
    "SAC": ("Pendulum-v1", {**REPLAYS, "normalize_observations": False}),
}


@pytest.mark.parametrize("how", ["set_weights", "init_from", "trained further"])
@pytest.mark.parametrize("run", RESTORED)
def test_who_restores_goes_on_from_the_restored_version(run: str, how: str, tmp_path: Path) -> None:
    env, settings = RESTORED[run]
    setup = raypid.setup(run, env, **settings)
    saved, server = roles.ParameterServer(setup), roles.ParameterServer(setup)
    saved.push(dataclasses.replace(roles.Learner(setup).weights(), version=1389))
    saved.save(tmp_path / "saved")
    assert server.restore(tmp_path / "saved") == 1389
    if how == "init_from":
        setup = raypid.setup(run, env, **settings, init_from=str(tmp_path / "saved"))
    learner, rollout = roles.Learner(setup), roles.Rollout(setup)
    restored = server.pull()
    assert restored is not None
    if (
        how == "trained further"
    ):  # the server then holds weights that are newer than those that the learner goes back to
        server.push(dataclasses.replace(restored, version=2000))
        learner.set_weights(dataclasses.replace(restored, version=2000))
    if how != "init_from":
        learner.set_weights(restored)
    before = learner.weights()
    assert before.version == (2001 if how == "trained further" else 1389)
    np.testing.assert_array_equal(before.flat, restored.flat)
    _, data = rollout.collect(restored)
    if setup.replay is None:
        _, weights = learner.update(32, data)
    else:
        replay = roles.Replay(setup)
        replay.add(0, data)
        _, weights = learner.learn(32, replay.sample(8))
    assert server.push(before) == before.version and server.push(weights) == weights.version == before.version + 1
    held = server.pull(newer_than=before.version)
    assert held is not None and server.metrics()["refused"] == 0
    np.testing.assert_array_equal(held.flat, weights.flat)


def test_a_refused_push_shows() -> None:
    setup = raypid.setup("PPO", "CartPole-v1", seed=0)
    server, weights = roles.ParameterServer(setup), roles.Learner(setup).weights()
    server.push(dataclasses.replace(weights, version=1389))
    with pytest.warns(
        UserWarning,
        match=r"refused weights of version 0, since version 1,389 is here.*learner.set_weights\(server.pull",
    ) as told:
        assert server.push(weights) == server.push(weights) == 1389
    assert len(told) == 1 and told[0].filename == __file__
    assert server.metrics()["refused"] == 2
    assert server.reset(weights) == 0


BY_HAND: dict[str, tuple[dict[str, Any], str]] = {
    "workers": ({"num_env_runners": 99}, r"num_workers belongs to an agent: by hand, make a Rollout\(setup, worker_index\) for each"),
    "learner": ({"num_learners": 1}, r"one Learner\(setup\) learns"),
    "server": ({"parameter_server": True}, r"make a ParameterServer\(setup\)"),
    "evaluation": ({"evaluation_interval": 5}, r"make an Evaluator\(setup\).*Leave it out"),
    "shards": ({"num_replay_shards": 3}, r"Replay\(setup, shard, num_shards=3\) yourself"),
    "two": ({"address": "auto", "num_workers": 2}, r"num_workers belongs .*address belongs"),
    "fit": ({"fit": True}, "fit belongs to an agent: by hand, your program starts or joins Ray"),
    "gpu": ({"gpu": "0"}, "gpu belongs to an agent: by hand, device, such as cuda:0"),
    "callbacks": ({"callbacks": raypid.Callbacks}, "callbacks belongs to an agent: by hand, read the reports"),
    "timeout": ({"worker_timeout_s": 5}, "ray.get"),
    "resume": ({"exact_resume": True}, "Learner.state_dict and Replay.save"),
    "divergence": ({"on_divergence": "rollback", "max_rollbacks": 1}, "on_divergence belongs .*Diverged.*max_rollbacks belongs"),
    "episodes": ({"evaluation_num_episodes": 3}, r"evaluate\(weights, num_episodes\)"),
    "iterations": ({"steps_per_iteration": 10}, "no iterations"),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND)
def test_setup_refuses_what_no_role_looks_at(case: str) -> None:
    settings, told = BY_HAND[case]
    with pytest.raises(UserError, match=told):
        raypid.setup("SAC", "Pendulum-v1", **settings)


def read_by_setup() -> str:
    """The source of the functions of run/ that `raypid.setup` calls, itself or through others."""
    bodies = [ast.parse((PACKAGE / "run" / name).read_text()).body for name in ("setup.py", "resolve.py")]
    functions = {node.name: node for body in bodies for node in body if isinstance(node, ast.FunctionDef)}
    found, todo = set(), {"resolve", "setup_of"}
    while todo:
        found |= todo
        named = {node.id for name in todo for node in ast.walk(functions[name]) if isinstance(node, ast.Name)}
        todo = named & functions.keys() - found
    return "\n".join(ast.unparse(functions[name]) for name in found)


def test_setup_refuses_all_that_no_role_looks_at() -> None:
    """A new setting that only agents read belongs to the table."""
    layers = ("roles", "algorithms", "nn", "envs", "replay", "ops")
    texts = [file.read_text() for layer in layers for file in (PACKAGE / layer).rglob("*.py")]
    seen = {
        name
        for text in [*texts, read_by_setup()]
        for name in re.findall(r"\b(?:config|settled|self|c)(?=\.(\w+))", text)
    }
    configs = [ALGORITHMS.get(run).Config for run in ALGORITHMS.names() if ALGORITHMS.is_own(run)]
    settings = {name for config in configs for name in type_hints(config)}
    assert settings - seen <= _BY_HAND.keys() <= settings


def test_stale_data_are_the_loops_business() -> None:
    with pytest.raises(UserError, match="max_staleness belongs to an agent: by hand, compare the version"):
        raypid.setup("IMPALA", "CartPole-v1", max_staleness=0)


def test_rows_of_another_task_are_no_damage(tmp_path: Path) -> None:
    setup = raypid.setup("SAC", "Pendulum-v1", seed=0)
    rollout, replay = roles.Rollout(setup), roles.Replay(setup)
    replay.add(0, rollout.collect(roles.Learner(setup).weights())[1])
    replay.save(tmp_path)
    mountain = raypid.setup("SAC", "MountainCarContinuous-v0", seed=0)
    other, acting = roles.Replay(mountain), roles.Rollout(mountain)
    weights = roles.Learner(mountain).weights()
    for _ in range(8):
        other.add(0, acting.collect(weights)[1])
    rows, before = other.num_rows(), other.sample(8).data.obs
    with pytest.raises(
        UserError, match=r"another task. observations: shape \[3\] there, shape \[2\] in this run. Load"
    ) as error:
        other.load(tmp_path)
    assert str(tmp_path) in str(error.value) and "damaged" not in str(error.value)
    assert other.num_rows() == rows > 0 and np.shape(before) == np.shape(other.sample(8).data.obs)
    other = roles.Replay(raypid.setup("DQN", "CartPole-v1", seed=0))
    with pytest.raises(UserError, match=r"actions: shape \[1\] there, shape \[\] in this run; observations: "):
        other.load(tmp_path)


def test_a_setup_says_in_a_line_what_it_is_of() -> None:
    setup = raypid.setup("SAC", "Pendulum-v1", seed=0)
    assert (
        repr(setup) == "<Setup: SAC on Pendulum-v1, observation (3,), action squashed_gaussian, network mlp [64, 64]>"
    )


def test_setup_takes_workers_that_share_exploration() -> None:
    explore = [raypid.setup("ApeX", "CartPole-v1", num_workers=n, start_steps=0, noisy=0).config for n in (2, 8)]
    low = [raypid.algorithms.dqn.ApeX.exploration(c, 1, 1)["epsilon"].min() for c in explore]  # type: ignore[attr-defined]
    assert low[0] < low[1]


def test_setup_takes_the_algorithm_by_name_and_knows_the_order() -> None:
    assert raypid.setup(algorithm="PPO", env="CartPole-v1").algorithm.__name__ == "PPO"
    with pytest.raises(UserError, match=r'raypid.setup\("PPO", "CartPole-v1"\)'):
        raypid.setup("CartPole-v1", "PPO")
    with pytest.raises(UserError, match="one algorithm: 'PPO' or 'SAC'"):
        raypid.setup("PPO", "CartPole-v1", algorithm="SAC")
    with pytest.raises(UserError, match="An algorithm is a name or a class"):
        raypid.setup(env="CartPole-v1")


def test_setup_refuses_what_it_cannot_do() -> None:
    with pytest.raises(UserError, match="R2D2 replays sequences"):
        raypid.setup("R2D2", "CartPole-v1")
    with pytest.raises(UserError, match="Did you mean"):
        raypid.setup("PPO", "CartPole-v1", lrr=1)
    with pytest.raises(UserError, match="Name the environment"):
        raypid.setup("PPO")
