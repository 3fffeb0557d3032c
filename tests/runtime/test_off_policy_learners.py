"""Several learners with a replay buffer each learn what one would from the joined batches, noise included."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from member import SIZE, Member, Members
from patience import wait_until
from setups import learner_setup

from raypid.nn.catalog import build_spec
from raypid.ops.normalizer import moments_of
from raypid.ops.sum_tree import importance
from raypid.plugins.registry import ALGORITHMS
from raypid.replay.buffer import ReplaySpec
from raypid.roles.learner import Learner, interleave
from raypid.roles.parameter_server import SharedParameters
from raypid.run.agent import Agent
from raypid.run.events import Listener
from raypid.settings.config import ConfigError, ModelConfig
from raypid.types import Trajectory, Weights

T, B, UPDATES = 20, 2, 3
F = np.float32
BOX, DISCRETE = spaces.Box(-9, 9, (4,)), spaces.Discrete(3)
PRIORITIES = {"prioritized": True, "importance_exponent": 0.7}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn, prioritised": ("DQN", {**PRIORITIES, "max_grad_norm": 0.1, "normalize_observations": True}),
    "rainbow": ("Rainbow", {"v_min": -5.0, "v_max": 5.0}),
    "sqn": ("SQN", {}),
    "sac, normalised": ("SAC", {**PRIORITIES, "max_grad_norm": 0.5, "normalize_observations": True}),
    "sac, discrete": ("SAC", {"policy_delay": 1}),
    "crossq": ("SAC", {"critic_norm": "batch", "target_network": False, "policy_delay": 1}),
    "td3": ("TD3", {**PRIORITIES}),
}


def fragment(seed: int, discrete: bool) -> Trajectory:
    """Random rows, of which some are invalid and some end an episode."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((T, B)) < 0.1
    x = rng.normal(1, 2, (T + 1, B, 4)).astype(F)
    t = Trajectory(
        obs=x,
        first=np.concatenate([np.ones((1, B), bool), terminated]),
        action=rng.integers(3, size=(T, B)) if discrete else rng.uniform(-1, 1, (T, B, 2)).astype(F),
        reward=rng.normal(size=(T, B)).astype(F),
        terminated=terminated,
        truncated=np.zeros((T, B), bool),
        valid=rng.random((T, B)) < 0.9,
    )
    t.moments = moments_of(x[:-1][t.valid])
    return t


@pytest.mark.parametrize("name", CASES)
def test_learners_with_a_buffer_each_learn_what_one_does(members: Members, name: str) -> None:
    run, settings = CASES[name]
    algorithm = ALGORITHMS.get(run)
    discrete = run not in ("SAC", "TD3") or "discrete" in name
    model = ModelConfig(hidden=(16, 16), activation="relu")
    config = algorithm.Config(env="x", seed=0, batch_size=24, adam_eps=1e-5, model=model, **settings)
    space = DISCRETE if discrete else spaces.Box(-2, 2, (2,))
    spec = build_spec(BOX, space, model, normalize=bool(config.normalize_observations))
    rows = ReplaySpec(capacity=500 * SIZE, priority_exponent=0.6)
    setup = learner_setup(algorithm, config, algorithm.network_spec(config, spec), replay=rows)
    # four workers, three learners
    fragments = [[(w, fragment(10 * k + w, discrete)) for w in range(4)] for k in range(3)]
    seen = [[t.moments for _, t in new] for new in fragments]
    rounds = [
        [(moments, [f for f in new if f[0] % SIZE == r], UPDATES) for moments, new in zip(seen, fragments, strict=True)]
        for r in range(SIZE)
    ]
    together = members.call(Member.replay, *((setup, mine) for mine in rounds))

    alone = Learner(setup)
    one = alone.algorithm
    for k, new in enumerate(fragments):
        for _, t in new:
            one.merge(t.moments)
        joined = interleave([drawn[k] for drawn, *_ in together], UPDATES)
        assert len(joined.id) == UPDATES * config.batch_size
        joined.weight = importance(joined.probability, 1, one.config.beta_at(100 * k))
        update = one.update(joined, 100 * k)
        if config.prioritized:
            parts = update.priorities.reshape(UPDATES, SIZE, -1)
            for rank, (_, priorities, *_) in enumerate(together):
                np.testing.assert_allclose(priorities[k], parts[:, rank].ravel(), atol=1e-4)
    expected, metrics = alone.state_dict(), one.metrics()
    for _, _, theirs, state in together:
        assert_close(state, expected)
        assert_same(state, together[0][3])
        assert theirs["replay_rows"] > 0
        for key, number in metrics.items():
            assert theirs[key] == pytest.approx(number, rel=1e-3, abs=1e-5), key


def assert_close(state: dict[str, Any], expected: dict[str, Any]) -> None:
    """Every network, optimizer and normaliser, to rounding; random generators and counts exactly."""
    assert state.keys() == expected.keys()
    assert (state["rng"], state["num_updates"]) == (expected["rng"], expected["num_updates"])
    np.testing.assert_array_equal(state["generator"], expected["generator"])
    for key, flat in expected["networks"].items():
        print(key, "differs by at most", np.abs(state["networks"][key] - flat).max())
        np.testing.assert_allclose(state["networks"][key], flat, atol=1e-5, err_msg=key)
    for key, optimizer in expected["optimizers"].items():
        np.testing.assert_allclose(state["optimizers"][key]["m"], optimizer["m"], atol=1e-5, err_msg=key)
        assert state["optimizers"][key]["steps"] == optimizer["steps"] > 0
    for part in ("moments", "statistics"):
        for key, array in expected.get(part, {}).items():
            np.testing.assert_allclose(state[part][key], array, rtol=1e-5, atol=1e-6, err_msg=key)


def assert_same(state: Any, expected: Any) -> None:
    """Nobody drifts: the bits are the same."""
    if isinstance(state, dict):
        for key in expected:
            assert_same(state[key], expected[key])
    else:
        np.testing.assert_array_equal(state, expected)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 31}, "batch_size 31 must be a multiple of 2: num_learners"),
        ({"batch_size": 34, "num_replay_shards": 2}, "multiple of 4: num_learners . num_replay_shards"),
        ({"critic_norm": "batch", "target_network": False, "th_compile": True}, "cannot be compiled"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ALGORITHMS.get("SAC").Config(env="x", num_workers=2, num_learners=2, **settings).validate()


SMALL: dict[str, Any] = {
    "env": "Pendulum-v1",
    "num_workers": 2,
    "num_cpus_per_worker": 0.5,
    "num_envs_per_worker": 2,
    "fragment_length": 16,
    "batch_size": 16,
    "model": {"hidden": (16,)},
    "buffer_size": 400,
    "start_steps": 128,
    "steps_per_iteration": 128,
    "a_l_ratio": 8,
    "seed": 0,
}


@pytest.mark.parametrize(
    "run", [pytest.param("SAC", marks=pytest.mark.ci_slow), pytest.param("ApeX", marks=pytest.mark.slow)]
)
def test_a_run_with_two_learners_is_saved_and_goes_on_with_one_or_two(
    ray_session: Any, tmp_path: Path, run: str
) -> None:
    settings = SMALL | ({"env": "CartPole-v1"} if run == "ApeX" else {"prioritized": True})
    with Agent(run, settings, num_learners=2, normalize_observations=True, out=tmp_path) as agent:
        agent.train(1000)
        result = agent.train()
        rows = result["learner/replay_rows"]
        assert result["learner_updates_total"] > 50 and 300 < rows <= 400
        assert result["learner/samples_per_insert"] == pytest.approx(2.0, rel=0.2)
        learners: Any = agent.context.learner
        one, two = (agent.backend.get(h.submit(Learner.state_dict)) for h in learners.handles)
        assert_same(two, one)
        path = agent.save()
        agent.train()
        agent.save()
        again = agent.save()  # the same again; it links what the save before has
        kind = "shard" if run == "ApeX" else "learner"
        parts = sorted(p.name for p in (again / "replay").iterdir())
        assert parts == [f"{kind}_0", f"{kind}_1"] and not (path / "replay").exists()
        seen = agent.get_weights().extra["obs_count"]
        assert 1000 < seen <= agent.context.timesteps  # without rows that are no transitions
    for more in (
        {"num_learners": 2},
        {"num_learners": 0, "num_replay_shards": 0, "num_workers": 0, "backend": "local"},
    ):
        with Agent.from_checkpoint(again, more) as agent:
            result = agent.train()
            np.testing.assert_allclose(result["learner/replay_rows"], rows, atol=80)  # nothing was lost: it is full
            assert result["timesteps_total"] > 1000 and all("from here" in note for note in agent.notes)


# -- learners that do not wait for each other --------------------------------------------------------------------------


def test_changes_of_all_learners_add_up() -> None:
    shared = SharedParameters(0.5)
    start = {"acting": np.zeros(3, F), "critics": np.ones(2, F)}
    shared.hold((7, start))
    version, parameters = shared.newest()
    assert version == 7
    parameters["acting"] += 9  # a learner works on its own copy
    given = Weights(0, np.zeros(3, F), (("w", (3,)),), {"temperature": np.array(2.0, F)})
    shared.add((given, {"acting": np.full(3, 2, F), "critics": np.full(2, -1, F)}))
    weights = shared.add((given, {"acting": np.full(3, 4, F), "critics": np.full(2, -1, F)}))
    assert weights.version == 9 and weights.extra["temperature"] == 2 and weights.table == given.table
    np.testing.assert_array_equal(weights.flat, [3, 3, 3])
    np.testing.assert_array_equal(shared.newest()[1]["critics"], [0, 0])
    assert not start["acting"].any()


@pytest.mark.slow
def test_learners_that_do_not_wait_hold_the_ratio_and_agree_at_the_end(ray_session: Any, tmp_path: Path) -> None:
    settings = SMALL | {"num_learners": 2, "learner_sync": "asynchronous", "prioritized": True}
    with Agent("SAC", settings, out=tmp_path) as agent:
        before = agent.get_weights().flat
        agent.train(4000)  # the ratio is that of the last 20 iterations, without the start
        result = agent.train()
        assert result["learner/samples_per_insert"] == pytest.approx(2.0, rel=0.2)
        learners: Any = agent.context.learner
        one, two = (agent.backend.get(h.submit(Learner.state_dict))["networks"] for h in learners.handles)
        assert_same(two, one)
        assert not np.array_equal(agent.get_weights().flat, before)
        path = agent.save()
    with Agent.from_checkpoint(path) as agent:
        np.testing.assert_array_equal(agent.get_weights().flat, one["acting"])
        version = agent.get_weights().version
        assert agent.train()["learner_updates_total"] > result["learner_updates_total"]
        assert agent.get_weights().version > version


@pytest.mark.parametrize(
    ("run", "more"),
    [
        ("SAC", {"normalize_observations": True}),
        ("SAC", {"critic_norm": "batch", "target_network": False}),
        ("ApeX", {}),
    ],
)
def test_what_is_no_parameter_is_refused(run: str, more: dict[str, Any]) -> None:
    settings = {"num_workers": 2, "num_learners": 2, "learner_sync": "asynchronous", **more}
    with pytest.raises(ConfigError, match="learner_sync"):
        ALGORITHMS.get(run).Config(env="x", **settings).validate()


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["all_reduce", "asynchronous"])
def test_a_learner_that_dies_goes_on_with_the_others_state(ray_session: Any, sync: str, tmp_path: Path) -> None:
    with Agent("SAC", SMALL, num_learners=2, learner_sync=sync) as agent:
        told: list[str] = []
        listener = Listener()
        listener.on_lost = told.append  # type: ignore[method-assign]
        agent.listen(listener)
        agent.train(300)
        agent.save(tmp_path)
        victim = agent.context.learner.handles[1].actor  # type: ignore[attr-defined]
        pid = ray_session.get(victim.__ray_call__.remote(lambda role: os.getpid()))
        os.kill(pid, signal.SIGKILL)
        result: dict[str, float] = {}
        wait_until(lambda: result.update(agent.train(200)) or result["lost/learners"])
        assert re.match(r"Learner 1 of 2 died in \w+\(\)\. .* buffer is gone: it was filled from checkpoint_", told[0])
        before = result["learner_updates_total"]
        assert agent.train(400)["learner_updates_total"] > before


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sync", ["all_reduce", "asynchronous"])
def test_two_learners_learn_cartpole(ray_session: Any, sync: str) -> None:
    settings = {"num_workers": 2, "num_learners": 2, "num_cpus_per_worker": 0.5, "learner_sync": sync, "seed": 0}
    more = {"num_envs_per_worker": 4, "fragment_length": 16, "start_steps": 500, "epsilon_steps": 5_000, "lr": 1e-3}
    with Agent("DQN", settings | more, env="CartPole-v1") as agent:
        for _ in range(40):
            result = agent.train()
            if result["timesteps_total"] > 8_000 and agent.eval(10)["episode_reward_mean"] > 300:
                return
    raise AssertionError(result)
