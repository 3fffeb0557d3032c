"""Evaluation during training: inline and beside, what is reported when, and an evaluator that is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raypid.nn.policy import read_policy_weights
from raypid.report.logger import read_results
from raypid.report.panel import Quiet
from raypid.run.agent import Agent
from raypid.run.events import Listener
from raypid.run.run import Run, RunOptions
from raypid.runtime.plan import Node, Roles, plan
from raypid.runtime.supervisor import RolesFailed
from raypid.settings.config import Config, ConfigError

SMALL = {"num_envs_per_worker": 2, "fragment_length": 30, "batch_size": 32, "seed": 0, "num_threads": 1}
FRAGILE = {**SMALL, "env": "fragile:Fragile", "vectorizer": "sync", "num_workers": 1}
BESIDE = {**FRAGILE, "evaluation_parallel": True, "evaluation_interval": 1, "evaluation_num_episodes": 2}
MEAN = "evaluation/episode_reward_mean"


def evaluator_only(mode: str, **more: Any) -> dict[str, Any]:
    """The environment as `mode` says in the evaluator, and sound in the workers. It breathes, so that a test has few iterations."""
    return {"mode": mode, "worker": [1, 2], "sleep_s": 0.001, **more}


def train_until(agent: Agent, what: Callable[[dict[str, Any]], Any], timeout_s: float = 60.0) -> list[dict[str, Any]]:
    """The results up to the first for which `what` is true."""
    results, deadline = [agent.train()], time.monotonic() + timeout_s
    while not what(results[-1]):
        assert time.monotonic() < deadline, "waited in vain"
        results.append(agent.train())
    return results


@pytest.mark.ci_slow
def test_training_does_not_wait_and_results_say_whose_they_are(ray_session: Any) -> None:
    with Agent("PPO", BESIDE, env_config=evaluator_only("slow")) as agent:
        weights, steps = {}, {}

        def arrived(result: dict[str, Any]) -> bool:
            now = agent.get_weights()
            weights[now.version], steps[now.version] = now.flat, result["timesteps_total"]
            return MEAN in result

        first = train_until(agent, arrived)
        second = train_until(agent, arrived)
        for results in (first, second):  # an evaluation takes 1 s and more
            assert len(results) > 3
            assert max(r["timing/evaluation"] for r in results) < 0.9
            newest, version = max(weights), results[-1]["evaluation/weights_version"]
            assert version < newest
            assert results[-1]["evaluation/timesteps_total"] == steps[version]
        assert first[-1]["evaluation/weights_version"] == 1
        # the second was asked for when the first was there, with the newest weights then
        assert second[-1]["evaluation/weights_version"] == len(first)
        played = agent.evaluations.last
        assert played is not None
        np.testing.assert_array_equal(agent.backend.get(played.weights).flat, weights[played.evaluation.version])
        assert agent.eval(1)["weights_version"] == max(weights)  # at once, and of the current ones


def test_beside_gives_the_numbers_of_inline(ray_session: Any) -> None:
    config = {**SMALL, "env": "CartPole-v1", "num_workers": 1, "evaluation_interval": 3}
    with Agent("PPO", config, backend="local") as here, Agent("PPO", config, evaluation_parallel=True) as there:
        assert here.evaluations.beside is None and there.evaluations.beside is not None
        expected = [here.train() for _ in range(3)][-1]
        result = train_until(there, lambda r: MEAN in r)[-1]
        mine, its = ({k: v for k, v in r.items() if k.startswith("evaluation/")} for r in (expected, result))
        assert mine == its and mine["evaluation/timesteps_total"] == expected["timesteps_total"]


def test_none_where_the_interval_is_0(ray_session: Any) -> None:
    with Agent("PPO", {**BESIDE, "evaluation_interval": 0}) as agent:
        agent.evaluations.automatic = True
        assert not any(MEAN in agent.train() for _ in range(3))
        assert agent.evaluations.beside is not None and not agent.evaluations.beside.busy


# -- where it runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "beside"),
    [
        ({"num_workers": 2}, True),
        ({"num_workers": 3}, False),
        ({"num_workers": 2, "num_learners": 1}, True),
        ({"num_workers": 5, "num_cpus_per_worker": 0.5}, True),
        ({"num_workers": 6, "num_cpus_per_worker": 0.5}, False),
        ({"num_workers": 3, "evaluation_parallel": True}, True),
        ({"num_workers": 2, "evaluation_parallel": False}, False),
    ],
)
def test_it_takes_a_cpu_that_is_to_spare(settings: dict[str, Any], beside: bool) -> None:
    c = Config().replace(settings)
    worker = {"CPU": c.num_cpus_per_worker}
    kinds = {"worker": (c.num_workers, worker), "learner": (c.num_learners, {"CPU": 1.0})}
    roles = Roles(kinds, evaluator=c.evaluation_parallel)
    four = Node("", "this machine", {"CPU": 4.0}, {"CPU": 4.0}, has_driver=True)
    assert bool(plan(roles, [four]).at["evaluator"]) == beside


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2, "backend": "local"}])
def test_a_process_of_its_own_needs_ray(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"evaluation_parallel.*set num_workers, and not backend local"):
        Agent("PPO", SMALL, env="CartPole-v1", evaluation_parallel=True, **settings)


def _ask_evaluator(agent: Agent, question: Callable[[Any], Any]) -> Any:
    group = agent.evaluations.beside._group  # type: ignore[union-attr]
    return agent.backend.get(group.handles[0].actor.__ray_call__.remote(question))  # type: ignore[union-attr]


# -- in a worker's process -----------------------------------------------------------------------------------------

WITHIN = {**BESIDE, "evaluation_parallel": False}


@pytest.mark.parametrize(
    "algorithm", ["PPO", *(pytest.param(name, marks=pytest.mark.slow) for name in ("IMPALA", "DQN"))]
)
def test_inline_on_ray_plays_in_a_worker(ray_session: Any, tmp_path: Path, algorithm: str) -> None:
    """An environment that ends its process there, in each loop: the driver lives, and the evaluation is owed."""
    config = {k: v for k, v in WITHIN.items() if k != "num_threads"}
    struck = tmp_path / "struck"
    with Agent(algorithm, config, env_config=evaluator_only("exit", marker=str(struck))) as agent:
        agent.context.losses.errors.folder = tmp_path
        results = train_until(agent, lambda r: MEAN in r)
        assert agent.eval(2)["episode_reward_mean"] == 10.0
    assert MEAN not in results[0] and results[-1][MEAN] == 10.0
    assert (results[-1]["lost/workers"], results[-1]["lost/evaluators"]) == (1, 0)
    assert int(struck.read_text()) != os.getpid()
    assert "Worker 0 (fragile:Fragile) died in evaluate()" in (tmp_path / "errors.txt").read_text()


@pytest.mark.ci_slow
def test_one_that_hangs_in_a_worker_is_overdue(ray_session: Any, tmp_path: Path) -> None:
    config = evaluator_only("hang", marker=str(tmp_path / "struck"))
    with Agent("PPO", WITHIN, env_config=config, worker_timeout_s=2.0) as agent:
        assert agent.eval(2)["episode_reward_mean"] == 10.0  # it asks again
        assert agent.context.losses.counts["timeouts"] == 1


@pytest.mark.ci_slow
def test_final_episodes_that_are_lost_are_told(ray_session: Any, tmp_path: Path) -> None:
    class Telling(Quiet):
        def message(self, text: str) -> None:
            told.append(text)

    told: list[str] = []
    config = {"mode": "exit", "worker": [1, 2], "after": str(tmp_path / "go")}
    with Agent("PPO", WITHIN, env_config=config, out=tmp_path / "run") as agent:
        run = Run(agent, RunOptions(stop={"training_iteration": 1}, plot=False, final_episodes=2), Telling())
        finish = run._finish

        def then(result: Any) -> Any:
            (tmp_path / "go").touch()
            return finish(result)

        run._finish = then  # type: ignore[method-assign]
        outcome = run()
    assert outcome.final is None and outcome.reason == "training_iteration reached 1"
    assert [text for text in told if text.startswith("No final episodes: the process that played them was lost")]


@pytest.mark.ci_slow
def test_an_interrupted_evaluation_does_not_hold_the_save(ray_session: Any, tmp_path: Path) -> None:
    with Agent("PPO", WITHIN, env_config=evaluator_only("hang"), evaluation_interval=0) as agent:
        agent.train()
        start = time.monotonic()
        assert agent.evaluations.newest(1, lambda: time.monotonic() > start + 0.5) is None
        agent.save(tmp_path)
        assert agent.context.losses.counts["timeouts"] == 0
        assert time.monotonic() - start < 60


# -- losses --------------------------------------------------------------------------------------------------------


@pytest.mark.ci_slow
def test_it_is_niced_and_a_killed_one_is_replaced(ray_session: Any, tmp_path: Path) -> None:
    config = {**FRAGILE, "evaluation_interval": 1, "evaluation_num_episodes": 2}  # the session's Ray has CPUs to spare
    with Agent("PPO", config, env_config={"sleep_s": 0.001}) as agent:
        agent.context.losses.errors.folder = tmp_path
        train_until(agent, lambda r: MEAN in r)
        nice = _ask_evaluator(agent, lambda role: os.nice(0))
        assert nice >= min(19, os.nice(0) + 10)
        os.kill(_ask_evaluator(agent, lambda role: os.getpid()), signal.SIGKILL)
        results = train_until(agent, lambda r: r["lost/evaluators"] == 1)
        results += train_until(agent, lambda r: MEAN in r)
    assert results[-1]["lost/evaluators"] == 1 and results[-1]["lost/workers"] == 0
    assert "Evaluator 0 (fragile:Fragile) died in play()" in (tmp_path / "errors.txt").read_text()


@pytest.mark.ci_slow
def test_an_evaluator_that_hangs_is_replaced(ray_session: Any, tmp_path: Path) -> None:
    config = evaluator_only("hang", marker=str(tmp_path / "struck"))
    with Agent("PPO", BESIDE, env_config=config, worker_timeout_s=2.0) as agent:
        results = train_until(agent, lambda r: MEAN in r)
    assert (results[-1]["lost/evaluators"], results[-1]["lost/timeouts"]) == (1, 0)
    hung = int((tmp_path / "struck").read_text())
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{hung}"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.ci_slow
def test_more_losses_than_the_budget(ray_session: Any) -> None:
    with Agent("PPO", BESIDE, env_config=evaluator_only("exit"), max_restarts=0) as agent:
        with pytest.raises(RolesFailed, match=r"Evaluator 0 \(fragile:Fragile\) died in play\(\)"):
            train_until(agent, lambda r: False)


def test_what_an_evaluation_raises_ends_the_run(ray_session: Any) -> None:
    with Agent("PPO", BESIDE, env_config=evaluator_only("nan")) as agent:
        with pytest.raises(ValueError, match="not finite"):
            train_until(agent, lambda r: False)


@pytest.mark.ci_slow
def test_a_restore_drops_what_is_going_on(ray_session: Any, tmp_path: Path) -> None:
    with Agent("PPO", BESIDE, env_config=evaluator_only("slow")) as agent:
        agent.train()
        path = agent.save(tmp_path)
        agent.train()
        assert agent.evaluations.beside is not None and agent.evaluations.beside.busy
        agent.restore(path)
        assert not agent.evaluations.beside.busy
        assert train_until(agent, lambda r: MEAN in r)[-1]["evaluation/weights_version"] == 2


# -- a run ---------------------------------------------------------------------------------------------------------


def test_a_goal_is_confirmed_beside_and_best_holds_what_was_played(ray_session: Any, tmp_path: Path) -> None:
    config = {**BESIDE, "evaluation_interval": None, "env_config": {"sleep_s": 0.001}}
    with Agent("PPO", config, out=tmp_path) as agent:
        outcome = Run(agent, RunOptions(stop={MEAN: 9.5}, plot=False), Quiet())()
        played = agent.evaluations.last
        assert played is not None
        weights = agent.backend.get(played.weights)
        newest = agent.get_weights().version
    assert outcome.reason == f"{MEAN} reached 10"
    assert outcome.result["evaluation/episodes"] == 50
    assert outcome.final == {"episode_reward_mean": 10.0, "episode_reward_ci95": 0.0, "episodes": 50}
    _, best, info, _ = read_policy_weights(tmp_path / "best")
    assert best.version == weights.version == info["weights_version"] == outcome.result["evaluation/weights_version"]
    assert best.version < newest
    np.testing.assert_array_equal(best.flat, weights.flat)
    assert info["timesteps_total"] == outcome.result["evaluation/timesteps_total"]
    assert (info["score"], info["final"]) == (10.0, outcome.final)


@pytest.mark.ci_slow
def test_a_run_takes_what_is_being_evaluated_at_its_end(ray_session: Any, tmp_path: Path) -> None:
    config = {**BESIDE, "env_config": evaluator_only("slow"), "evaluation_num_episodes": 1}
    with Agent("PPO", config, out=tmp_path) as agent:
        stop = {"training_iteration": 2, MEAN: 100.0}
        outcome = Run(agent, RunOptions(stop=stop, plot=False, final_episodes=1), Quiet())()
    assert outcome.reason == "training_iteration reached 2"
    assert outcome.result["evaluation/weights_version"] == 1
    assert outcome.final is not None and outcome.final["episodes"] == 1


@pytest.mark.ci_slow
def test_a_run_ends_with_an_evaluation_of_its_newest_weights(ray_session: Any, tmp_path: Path) -> None:
    """If that is cheap: here an evaluation takes half a second, and the run has taken a minute before."""
    config = {**BESIDE, "evaluation_interval": None, "evaluation_num_episodes": 1, "env_config": evaluator_only("slow")}
    with Agent("PPO", config, out=tmp_path) as agent:
        agent.time_total_s = 60.0
        Run(agent, RunOptions(stop={"training_iteration": 2}, plot=False, final_episodes=0), Quiet())()
    before, last = read_results(tmp_path)[-2:]
    assert MEAN not in before  # the first one was still being played
    assert last["evaluation/timesteps_total"] == last["timesteps_total"] > before["timesteps_total"]


def test_an_interrupted_run_does_not_wait(ray_session: Any, tmp_path: Path) -> None:
    config = {**BESIDE, "env_config": evaluator_only("hang")}
    start = time.monotonic()
    with Agent("PPO", config, out=tmp_path) as agent:
        run = Run(agent, RunOptions(stop={"training_iteration": 2}, plot=False), Quiet())
        interrupting = Listener()
        interrupting.on_iteration = lambda result: os.kill(os.getpid(), signal.SIGINT)  # type: ignore[method-assign]
        agent.listen(interrupting)
        outcome = run()
    assert outcome.reason == "interrupted" and outcome.final is None
    assert time.monotonic() - start < 30
