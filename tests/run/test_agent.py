"""Agent: the same numbers on both backends, whole and exact resumes, errors before anything starts."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import fragile
import numpy as np
import pytest

import raypid
from raypid.envs import EnvError
from raypid.report.logger import read_params, read_results
from raypid.roles.learner import Learner
from raypid.roles.rollout import Rollout
from raypid.run.agent import Agent
from raypid.run.events import Listener
from raypid.runtime.resources import ResourceError
from raypid.runtime.supervisor import RolesFailed
from raypid.settings.config import ConfigError
from raypid.storage import checkpoint

SMALL = {"num_envs_per_worker": 4, "fragment_length": 32, "batch_size": 64, "seed": 3, "num_threads": 1}
STATE = {"normalize_observations": True, "normalize_rewards": True, "observation_noise": 0.01}
CLOCKS = ("time_", "timing/", "env_steps_per_s")


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on a clock, nor on where roles are: on Ray there is more to lose."""
    assert not any(v for k, v in result.items() if k.startswith("lost/"))
    return {k: v for k, v in result.items() if not k.startswith((*CLOCKS, "lost/"))}


def history(agent: Agent, num: int) -> list[dict[str, Any]]:
    return [numbers(agent.train()) for _ in range(num)]


def assert_equal(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> None:
    for one, other in zip(a, b, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_array_equal(one[key], other[key], err_msg=key)


def assert_equal_weights(a: Agent, b: Agent) -> None:
    one, other = a.get_weights(), b.get_weights()
    assert one.version == other.version
    np.testing.assert_array_equal(one.flat, other.flat)
    assert one.extra.keys() == other.extra.keys()
    for key, array in one.extra.items():
        np.testing.assert_array_equal(array, other.extra[key], err_msg=key)


# -- backends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "env"),
    [
        pytest.param(
            "PPO", "CartPole-v1", marks=pytest.mark.ci_slow
        ),  # the next test has it with a learner in an actor
        pytest.param("A2C", "Pendulum-v1", marks=pytest.mark.slow),
        pytest.param("A2C", "CartPole-v1", marks=pytest.mark.slow),
        pytest.param("PPO", "Pendulum-v1", marks=pytest.mark.slow),
    ],
)
def test_local_and_ray_give_the_same_numbers(ray_session: Any, run: str, env: str) -> None:
    config = {**SMALL, **STATE, "env": env, "num_workers": 2}
    with Agent(run, config, backend="local") as here, Agent(run, config) as there:
        assert (here.backend.name, there.backend.name) == ("local", "ray")
        assert_equal(history(here, 3), history(there, 3))
        assert_equal_weights(here, there)
        assert here.context.timesteps > 2 * 4 * 32 * 2
        evaluations = [agent.eval(8, seed=5) for agent in (here, there)]
        assert evaluations[0] == evaluations[1]


def test_a_learner_in_an_actor_gives_the_same_numbers(ray_session: Any) -> None:
    config = {**SMALL, **STATE, "env": "CartPole-v1", "num_workers": 2}
    with Agent("PPO", config, backend="local") as here, Agent("PPO", config, num_learners=1) as there:
        assert not hasattr(there.context.learner, "role")
        assert_equal(history(here, 3), history(there, 3))
        assert_equal_weights(here, there)


@pytest.mark.parametrize(
    "kernel",
    [pytest.param("numpy", marks=pytest.mark.ci_slow), pytest.param("torch", marks=pytest.mark.slow)],
)
def test_several_learners_give_the_numbers_of_one(ray_session: Any, tmp_path: Path, kernel: str) -> None:
    config = {**SMALL, **STATE, "env": "CartPole-v1", "num_workers": 3, "target_kl": 0.02, "kernel": kernel}
    with Agent("PPO", config, backend="local") as here, Agent("PPO", config, num_learners=2) as there:
        assert len(there.context.learner) == 2  # type: ignore[arg-type]
        for one, other in zip(history(here, 3), history(there, 3)):
            assert one.keys() == other.keys()
            for key, number in one.items():
                assert other[key] == pytest.approx(number, rel=1e-3, abs=1e-5), key
        a, b = here.get_weights(), there.get_weights()
        np.testing.assert_allclose(b.flat, a.flat, atol=1e-5)
        for key, array in a.extra.items():
            np.testing.assert_allclose(b.extra[key], array, rtol=1e-9)
        path = there.save(tmp_path / "two")
    with Agent.from_checkpoint(path, num_learners=0, backend="local") as resumed:
        np.testing.assert_array_equal(resumed.get_weights().flat, b.flat)
        assert resumed.train()["training_iteration"] == 4


@pytest.mark.slow  # the test above goes on with none, test_off_policy_learners with one or two
def test_restore_with_any_number_of_learners(ray_session: Any, tmp_path: Path) -> None:
    config = {**SMALL, **STATE, "env": "CartPole-v1", "num_workers": 3, "exact_resume": True}
    with Agent("PPO", config, num_learners=3) as agent:
        agent.train()
        path = agent.save(tmp_path)
        expected = agent.train()
        flat = agent.get_weights().flat
    for num, backend in ((0, "local"), (2, "auto")):
        with Agent.from_checkpoint(path, num_learners=num, backend=backend) as resumed:
            assert resumed.train()["timesteps_total"] == expected["timesteps_total"]
            np.testing.assert_allclose(resumed.get_weights().flat, flat, atol=1e-5)


def test_an_algorithm_that_learns_in_one_place_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raypid.algorithms.a2c.A2C.several_learners", False, raising=False)
    with pytest.raises(ConfigError, match="A2C does not support several learners: num_learners must be 0 or 1, got 2"):
        Agent("A2C", env="CartPole-v1", num_workers=2, num_learners=2)


@pytest.mark.ci_slow
def test_a_lost_learner_of_two_is_rebuilt_until_too_many_are(ray_session: Any, tmp_path: Path) -> None:
    settings = {**SMALL, "num_workers": 2, "num_learners": 2, "max_restarts": 1}
    with raypid.PPO(config=settings, env="CartPole-v1", out=tmp_path) as agent:
        told: list[str] = []
        listener = Listener()
        listener.on_lost = told.append  # type: ignore[method-assign]
        agent.listen(listener)
        result = agent.train()
        path = agent.save()
        learners: Any = agent.context.learner
        kill(ray_session, learners.handles[1])
        result = agent.train()
        assert result["training_iteration"] == 2 and result["lost/learners"] == 1 and result["lost/updates"] == 0
        assert [line.partition(".")[0] for line in told] == [
            "Learner 1 of 2 died in update(): its process was killed, or crashed"
        ]
        one, two = (agent.backend.get(handle.submit(Learner.weights)) for handle in learners.handles)
        assert (one.flat == two.flat).all() and one.version == 2
        kill(ray_session, learners.handles[0])
        start = time.monotonic()
        with pytest.raises(RolesFailed, match=r"Learner 0 of 2 died in update\(\).*\. That is loss number 2"):
            agent.train()
        with pytest.raises(RolesFailed):
            agent.get_weights()
        assert time.monotonic() - start < 20
    with Agent.from_checkpoint(path, num_learners=0) as resumed:
        assert resumed.train()["training_iteration"] == 2


def kill(ray: Any, handle: Any) -> None:
    os.kill(ray.get(handle.actor.__ray_call__.remote(lambda role: os.getpid())), signal.SIGKILL)


def test_the_seed_decides(ray_session: Any) -> None:
    config = {**SMALL, "env": "CartPole-v1"}
    with Agent("PPO", config) as a, Agent("PPO", config) as b, Agent("PPO", {**config, "seed": 4}) as c:
        first, again, other = (history(agent, 2) for agent in (a, b, c))
        assert_equal(first, again)
        assert first[1]["learner/policy_loss"] != other[1]["learner/policy_loss"]
        assert first[0]["episode_len_mean"] != other[0]["episode_len_mean"]


@pytest.mark.parametrize("backend", ["local", "ray"])
def test_every_method_of_the_roles(backend: str, request: pytest.FixtureRequest) -> None:
    if backend == "ray":
        request.getfixturevalue("ray_session")
    learners = int(backend == "ray")
    with Agent(
        "PPO", {**SMALL, **STATE}, env="CartPole-v1", num_workers=2, backend=backend, num_learners=learners
    ) as a:
        get, workers, learner = a.backend.get, a.context.workers, a.context.learner
        weights = get(learner.submit(Learner.weights))
        (report, data), (report1, data1) = workers.call_all_parts(Rollout.collect, a.backend.put(weights), 0, {})
        assert (report.worker_index, report1.worker_index) == (0, 1)
        update, new = learner.submit_parts(Learner.update, report.num_steps, data, data1)
        assert get(update).num_updates > 0 and get(new).version == weights.version + 1
        get(learner.submit(Learner.set_weights, weights))
        np.testing.assert_array_equal(get(learner.submit(Learner.weights)).flat, weights.flat)
        state = get(learner.submit(Learner.state_dict))
        get(learner.submit(Learner.load_state_dict, state))
        states = workers.call_all(Rollout.state_dict)
        assert states[0] != states[1]
        get(workers.handles[0].submit(Rollout.load_state_dict, states[1]))
        assert workers.call_all(Rollout.state_dict) == [states[1], states[1]]
        assert workers.call_all(Rollout.boundary, 1) == [None, None]
        assert workers.call_all(Rollout.close) == [None, None]


def test_workers_without_torch(ray_session: Any) -> None:
    with Agent("PPO", SMALL, env="CartPole-v1", num_workers=1) as agent:
        agent.train()
        loaded = agent.context.workers.handles[0].actor.__ray_call__.remote(_modules)  # type: ignore[attr-defined]
        assert agent.backend.get(loaded) == {"torch": False, "gymnasium": True}


def _modules(role: Any) -> dict[str, bool]:
    import sys

    return {name: name in sys.modules for name in ("torch", "gymnasium")}


def test_indices_and_callbacks_reach_workers(ray_session: Any) -> None:
    for backend in ("local", "ray"):
        with Agent(
            "A2C", SMALL, env=fragile.Fragile, num_workers=2, backend=backend, callbacks=fragile.Metrics
        ) as agent:
            result = agent.train()
        custom = (result["custom/worker"], result["custom/stream"], result["custom/length"])
        assert (*custom, result["twice"]) == (0.5, 1.5, 10, 2)


@pytest.mark.ci_slow
def test_an_environment_registered_in_this_process_alone_reaches_workers(ray_session: Any) -> None:
    import gymnasium

    class Local(fragile.Fragile):
        pass

    gymnasium.register("Local-v0", Local)
    raypid.register_env("MyLocal", Local)
    try:
        for env in ("Local-v0", "MyLocal", Local, lambda: Local()):
            with raypid.A2C(config=SMALL, env=env, num_workers=1) as agent:
                assert agent.train()["episode_len_mean"] == 10
    finally:
        del gymnasium.registry["Local-v0"]


# -- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["local", "ray"])
@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("nan", ["fragile:Fragile", "step 5", "not finite", "Box("]),
        ("shape", ["fragile:Fragile", "step 5", "(3,)", "(2,)", "Box("]),
        ("constructor", ["fragile:Fragile", "no licence for the simulator"]),
    ],
)
def test_a_bad_environment_is_the_same_error_everywhere(
    ray_session: Any, backend: str, mode: str, words: list[str]
) -> None:
    config = {**SMALL, "env": "fragile:Fragile", "num_workers": 2, "backend": backend}
    with pytest.raises(EnvError) as error:
        with Agent("PPO", config, env_config={"mode": mode, "worker": 1}) as agent:
            agent.train()
    assert type(error.value) is EnvError
    assert all(word in str(error.value) for word in words), str(error.value)
    assert ray_session.is_initialized()


@pytest.mark.ci_slow
def test_more_workers_than_the_joined_ray_has(ray_session: Any) -> None:
    config = {**SMALL, "env": "CartPole-v1", "num_workers": 3, "num_cpus_per_worker": 4}
    with pytest.raises(ResourceError, match="3 workers of 4 CPUs need 12 CPUs.*has 8.*num_workers=2"):
        Agent("PPO", config)
    with Agent("PPO", config, fit=True) as agent:
        assert (agent.config.num_workers, len(agent.context.workers)) == (2, 2)
        assert "num_workers=2" in agent.notes[0]


def test_a_closed_agent_says_so(tmp_path: Path) -> None:
    agent = raypid.PPO(config=SMALL, env="CartPole-v1")
    agent.close()
    agent.close()
    for call in (agent.train, agent.eval, agent.save, lambda: agent.restore(tmp_path)):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_restore_takes_the_counters_from_a_manifest_and_nothing_else(tmp_path: Path) -> None:
    with raypid.PPO(config=SMALL, env="CartPole-v1") as agent:
        result = agent.train()
        saved = checkpoint.open_checkpoint(agent.save(tmp_path))
        state, manifest = saved.state(), saved.manifest
        counters = manifest["counters"] | {"iteration": 7.0, "train": 1, "config": 3, "unknown": 2}
        changed = {"algorithm": "PPO", "config": manifest["config"], "counters": counters}
        agent.restore(checkpoint.save_checkpoint(tmp_path / "changed", "checkpoint_000007", state, manifest=changed))
        assert agent.iteration == 7 and type(agent.iteration) is int and not hasattr(agent, "unknown")
        assert agent.timesteps == result["timesteps_total"] and agent.config is not None
        assert agent.train()["training_iteration"] == 8


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"num_worker.*num_workers"):
        raypid.PPO(env="CartPole-v1", num_worker=2)
    with pytest.raises(ConfigError, match="Name the environment"):
        raypid.PPO()
    with pytest.raises(ConfigError, match="callbacks takes"):
        raypid.PPO(env="CartPole-v1", callbacks=3)
    with pytest.raises(AttributeError, match="PPPO"):
        _ = raypid.PPPO


def test_train_for_so_many_steps() -> None:
    with raypid.PPO(config=SMALL, env="CartPole-v1") as agent:
        result = agent.train(num_train_steps=300)
        assert 300 <= result["timesteps_total"] < 300 + 4 * 32
        assert agent.train(num_train_steps=1)["training_iteration"] == result["training_iteration"] + 1


@pytest.mark.parametrize("run", ["PPO", "A3C", "ES"])
def test_a_linear_schedule_ends_with_fit(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = {"evaluation_interval": 0, **({} if run == "ES" else {"num_envs_per_worker": 2, "fragment_length": 16})}
    quick |= {"desired_kl": 0} if run == "PPO" else {}
    with Agent(run, env="CartPole-v1", lr_schedule="linear", lr=0.1, seed=0, **quick) as agent:
        for use in (agent.train, agent.fit, lambda: agent.fit({"time_total_s": 9}, out=tmp_path / "no")):
            with pytest.raises(ConfigError, match=r"must know where it ends.*stop=100000"):
                use()
        assert not list(tmp_path.iterdir()) and agent.config.schedule_steps is None  # type: ignore[attr-defined]
        outcome = agent.fit(2_000, out=tmp_path / "run", final_episodes=0, quiet=True)
        rows = read_results(tmp_path / "run")
        left = [1 - row["timesteps_total"] / 2_000 for row in rows[:-1]]
        assert [row["learner/lr"] for row in rows[:-1]] == pytest.approx([0.1 * x for x in left], abs=0.02)
        assert 0 < outcome.result["learner/lr"] <= rows[0]["learner/lr"] < 0.1  # the last batch begins before the end
        assert read_params(tmp_path / "run")["schedule_steps"] is None
        about = agent.explain().as_dict()["settings"]["schedule_steps"]
        assert (about["from"], about["detail"]) == ("adapted", "a linear schedule ends with the run")
        over = f"lr_schedule linear ends at step 2,000.* Give a later stop .*{re.escape('fit(stop=N)')}"
        with pytest.raises(ConfigError, match=over):
            agent.train()
    with Agent.from_checkpoint(tmp_path / "run") as again, pytest.raises(ConfigError, match=over):
        again.train()


# -- state ---------------------------------------------------------------------------------------------------------

_EXACT = [
    ("PPO", "CartPole-v1", {}),
    ("PPO", "Pendulum-v1", {"num_workers": 2, "backend": "local", "kernel": "torch"}),
    ("PPO", "CartPole-v1", {"lr_schedule": "linear", "schedule_steps": 2000, "kernel": "numpy"}),
    pytest.param("A2C", "CartPole-v1", {"num_workers": 2, "num_learners": 1}, marks=pytest.mark.slow),
    pytest.param("PPO", "CartPole-v1", {"num_workers": 2, "num_learners": 2}, marks=pytest.mark.slow),
]


@pytest.mark.ci_slow
def test_all_learners_have_the_same_end(ray_session: Any) -> None:
    settings = {**SMALL, "lr_schedule": "linear", "desired_kl": 0.0, "num_workers": 2}
    with Agent("PPO", settings, env="CartPole-v1", num_learners=2) as agent:
        for end in (1_000, 2_000):
            agent.end_schedules(end)
            result = agent.train()
            assert result["learner/lr"] == pytest.approx(5e-4 * (1 - result["timesteps_total"] / end))


def test_a_rollback_leaves_the_end_of_the_run(tmp_path: Path) -> None:
    with raypid.PPO(
        "CartPole-v1", {**SMALL, "lr_schedule": "linear", "on_divergence": "rollback"}, out=tmp_path
    ) as agent:
        agent.train(num_train_steps=100)
        agent.save()
        agent.end_schedules(1_000)
        agent._roll_back()
        assert agent.run_end == 1_000 and 0 < agent.train()["learner/lr"] < 5e-4 / 2


def test_exact_resume_of_a_schedule_that_ends_with_the_run(tmp_path: Path) -> None:
    linear = {"lr_schedule": "linear", "clip_schedule": "linear", "desired_kl": 0.0}
    with Agent("PPO", {**SMALL, **STATE, **linear}, env="CartPole-v1", exact_resume=True) as whole:
        whole.end_schedules(1_000)
        history(whole, 2)
        path = whole.save(tmp_path)
        expected = history(whole, 2)
        assert expected[-1]["learner/lr"] == pytest.approx(5e-4 * (1 - expected[-1]["timesteps_total"] / 1_000))
        with Agent.from_checkpoint(path) as resumed:
            assert_equal(expected, history(resumed, 2))
            assert_equal_weights(whole, resumed)


@pytest.mark.parametrize(("run", "env", "more"), _EXACT)
def test_exact_resume(run: str, env: str, more: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if more.get("backend") != "local":
        request.getfixturevalue("ray_session")
    with Agent(run, {**SMALL, **STATE, **more}, env=env, exact_resume=True) as whole:
        history(whole, 2)
        path = whole.save(tmp_path)
        expected = history(whole, 2)
        with Agent.from_checkpoint(path) as resumed:
            assert_equal(expected, history(resumed, 2))
            assert_equal_weights(whole, resumed)
            # and once more, from a checkpoint of the resumed run
            again = resumed.save(tmp_path / "again")
            expected = history(resumed, 1)
    with Agent.from_checkpoint(again) as third:
        assert_equal(expected, history(third, 1))


def test_a_save_without_exact_resume_changes_nothing(tmp_path: Path) -> None:
    with raypid.PPO(config=SMALL, env="CartPole-v1") as a, raypid.PPO(config=SMALL, env="CartPole-v1") as b:
        assert_equal(history(a, 1), history(b, 1))
        a.save(tmp_path)
        assert_equal(history(a, 2), history(b, 2))


@pytest.mark.ci_slow
def test_restore_with_any_number_of_workers(ray_session: Any, tmp_path: Path) -> None:
    with raypid.PPO(config={**SMALL, **STATE}, env="CartPole-v1", num_workers=2) as agent:
        before = history(agent, 2)[-1]
        path = agent.save(tmp_path)
        weights = agent.get_weights()
    for num_workers, backend in ((0, "auto"), (1, "auto"), (3, "local"), (3, "auto")):
        with Agent.from_checkpoint(path, num_workers=num_workers, backend=backend) as resumed:
            np.testing.assert_array_equal(resumed.get_weights().flat, weights.flat)
            result = resumed.train()
            assert result["training_iteration"] == 3
            assert result["timesteps_total"] > before["timesteps_total"]
            assert result["learner_updates_total"] > before["learner_updates_total"]
            assert result["episodes_total"] >= before["episodes_total"]


def test_a_new_setting_wins_over_the_saved_one(tmp_path: Path) -> None:
    with raypid.PPO(config=SMALL, env="CartPole-v1", lr=3e-4, gamma=0.9) as agent:
        agent.train()
        path = agent.save(tmp_path)
    with Agent.from_checkpoint(path, lr=1e-5) as resumed:
        assert resumed.config.gamma == 0.9
        assert resumed.train()["learner/lr"] == pytest.approx(1e-5)
    with Agent.from_checkpoint(path) as resumed:
        assert resumed.train()["learner/lr"] == pytest.approx(3e-4)


def test_restore_into_a_used_agent_leaves_nothing_of_before(tmp_path: Path) -> None:
    with raypid.PPO(config=SMALL, env="CartPole-v1", exact_resume=True) as agent:
        history(agent, 2)
        path = agent.save(tmp_path)
        expected = history(agent, 2)
        agent.restore(path)
        assert_equal(expected, history(agent, 2))


def test_a_checkpoint_of_another_kind_is_refused(tmp_path: Path) -> None:
    with raypid.PPO(config=SMALL, env="CartPole-v1") as agent:
        path = agent.save(tmp_path)
    with raypid.A2C(config=SMALL, env="CartPole-v1") as other, pytest.raises(ConfigError, match="PPO.*A2C"):
        other.restore(path)
    with raypid.PPO(config=SMALL, env="Acrobot-v1") as other:
        before = other.get_weights().flat
        with pytest.raises(ConfigError, match="network"):
            other.restore(path)
        np.testing.assert_array_equal(other.get_weights().flat, before)


def test_init_from_takes_weights_alone(tmp_path: Path) -> None:
    with raypid.PPO(config={**SMALL, **STATE}, env="CartPole-v1") as agent:
        history(agent, 2)
        path, weights = agent.save(tmp_path), agent.get_weights()
    with raypid.A2C(config={**SMALL, **STATE}, env="CartPole-v1", init_from=str(path)) as other:
        np.testing.assert_array_equal(other.get_weights().flat, weights.flat)
        assert other.train()["training_iteration"] == 1


def test_the_saved_policy_acts_as_the_agent_does(tmp_path: Path) -> None:
    with raypid.PPO(config={**SMALL, **STATE}, env="CartPole-v1") as agent:
        agent.train()
        path = agent.save(tmp_path)
        trained = agent.eval(8, seed=11)
    from raypid.run.deploy import evaluate_policy

    summary, info = evaluate_policy(path / "policy", 8, seed=11)
    assert info["algorithm"] == "PPO"
    assert summary["weights_version"] == trained["weights_version"]
    assert summary.keys() == trained.keys()
