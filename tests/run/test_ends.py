"""Runs that an error ends: what was learnt is saved first; and faults that are rare or slow, which end none."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raypid.envs import EnvError
from raypid.nn.policy import read_policy_weights
from raypid.report.logger import read_results
from raypid.report.panel import Quiet
from raypid.roles import acting
from raypid.run import evaluation, events, remarks
from raypid.run.agent import Agent
from raypid.run.run import Run, RunOptions
from raypid.runtime import supervisor
from raypid.runtime.handle import WorkerLost
from raypid.runtime.supervisor import Losses, RolesFailed
from raypid.storage import checkpoint

SMALL = {"num_envs_per_worker": 2, "fragment_length": 30, "batch_size": 32, "seed": 0, "evaluation_interval": 0}
FRAGILE = {**SMALL, "env": "fragile:Fragile", "vectorizer": "sync"}


class Telling(Quiet):
    def __init__(self) -> None:
        self.told: list[str] = []
        self.summary: dict[str, str] = {}

    def message(self, text: str) -> None:
        self.told.append(text)

    def stop(self, summary: Any = ()) -> None:
        self.summary = dict(summary)


def drive(agent: Agent, stop: dict[str, float], progress: Quiet | None = None, **options: Any) -> Any:
    with agent:
        return Run(agent, RunOptions(stop=stop, plot=False, **options), progress or Quiet())()


def gone_bad(tmp_path: Path, after: int, **config: Any) -> Agent:
    """An agent whose environments do what `mode` says once `after` iterations have ended."""

    class Turning(Agent):
        def train(self, num_train_steps: int | None = None) -> dict[str, float]:
            if self.iteration == after:
                (tmp_path / "go").touch()
            return super().train(num_train_steps)

    env_config = {"after": str(tmp_path / "go"), **config.pop("env_config")}
    return Turning(config.pop("run", "PPO"), {**FRAGILE, **config, "env_config": env_config}, out=tmp_path / "run")


@pytest.mark.parametrize("mode", ["raise", "nan"])
@pytest.mark.parametrize("run", ["PPO", *(pytest.param(name, marks=pytest.mark.slow) for name in ("IMPALA", "DQN"))])
def test_an_error_of_the_environment_saves_what_was_learnt(tmp_path: Path, run: str, mode: str) -> None:
    more = {"start_steps": 60, "buffer_size": 1000} if run == "DQN" else {}
    agent = gone_bad(tmp_path, 2, run=run, env_config={"mode": mode}, max_restarts=2, **more)
    with pytest.raises(EnvError) as caught:
        drive(agent, {"training_iteration": 9})
    folder = tmp_path / "run"
    assert caught.value.saved == (  # type: ignore[attr-defined]
        f"Saved: checkpoint_000002 and best/ in {folder}; `raypid train --resume {folder}` goes on."
    )
    assert len(read_results(folder)) == 2 and read_policy_weights(folder / "best")[1].version > 0
    (tmp_path / "go").unlink()
    again = Agent.from_checkpoint(folder, out=folder)
    assert (again.iteration, again.timesteps > 0) == (2, True)
    outcome = drive(again, {"training_iteration": 4})
    assert outcome.reason == "training_iteration reached 4"
    assert [row["training_iteration"] for row in read_results(folder)] == [1, 2, 3, 4]


def test_an_error_of_an_evaluation_leaves_no_gap(tmp_path: Path) -> None:
    agent = gone_bad(tmp_path, 2, env_config={"mode": "nan", "worker": [1, 2]}, evaluation_interval=3)
    with pytest.raises(EnvError, match="not finite"):
        drive(agent, {"training_iteration": 9})
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").name == "checkpoint_000002"  # type: ignore[union-attr]
    (tmp_path / "go").unlink()
    drive(Agent.from_checkpoint(tmp_path / "run", out=tmp_path / "run"), {"training_iteration": 4})
    assert [row["training_iteration"] for row in read_results(tmp_path / "run")] == [1, 2, 3, 4]


@pytest.mark.slow
def test_workers_that_are_lost_or_hang_do_not_hold_the_save(ray_session: Any, tmp_path: Path) -> None:
    """Worker 0 hangs, then the budget is spent: the save does not wait for it."""
    config = {"mode": "hang", "worker": 0}
    more = {"num_workers": 2, "worker_timeout_s": 2.0, "max_restarts": 0}
    with pytest.raises(RolesFailed, match="did not answer within 2 s") as caught:
        drive(gone_bad(tmp_path, 1, env_config=config, **more), {"training_iteration": 9})
    assert caught.value.saved.startswith("Saved: checkpoint_000001")  # type: ignore[attr-defined]
    state = checkpoint.open_checkpoint(tmp_path / "run" / "checkpoints" / "checkpoint_000001").state()
    assert list(state["workers"]) == ["1"]


def test_nothing_is_saved_where_nothing_was_learnt_or_the_learner_broke_off(tmp_path: Path) -> None:
    config = {**FRAGILE, "env_config": {"mode": "nan"}}
    with pytest.raises(EnvError) as caught:
        drive(Agent("PPO", config, out=tmp_path / "a"), {"training_iteration": 9})
    assert caught.value.saved == "Nothing was saved: nothing had been learnt."  # type: ignore[attr-defined]
    assert not (tmp_path / "a" / "checkpoints").exists()
    agent = Agent("PPO", FRAGILE, out=tmp_path / "b")
    agent.train()
    agent.context.learner.role._update = _breaks_off  # type: ignore[attr-defined]
    with pytest.raises(FloatingPointError) as broken:
        drive(agent, {"training_iteration": 9})
    assert broken.value.saved == "Nothing was saved: the learner broke off in an update; iteration 1 is lost."  # type: ignore[attr-defined]


def _breaks_off(*args: Any) -> Any:
    raise FloatingPointError("half way")


def test_the_command_line_says_what_was_saved(raypid: Callable[..., Any], tmp_path: Path) -> None:
    train = ("train", "--run", "PPO", "--num-envs-per-worker", 2, "--fragment-length", 30, "--batch-size", 32)
    config = json.dumps({"mode": "nan", "at": 200, "length": 300})
    more = ("--env", "fragile:Fragile", "--env-config", config, "--vectorizer", "sync", "--out", "run", "--quiet")
    done = raypid(*train, *more)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    end = "Saved: checkpoint_000006 and best/ in run; `raypid train --resume run` goes on."
    assert done.stderr.strip().endswith(end), done.stderr


# -- rates ---------------------------------------------------------------------------------------------------------


def test_an_environment_that_raises_now_and_then_ends_no_run(tmp_path: Path) -> None:
    config = {**FRAGILE, "env_config": {"every": 3000}, "fragment_length": 3000, "max_restarts": 2, "num_epochs": 1}
    result = drive(Agent("PPO", config, out=tmp_path), {"timesteps_total": 18_000}).result
    assert result["lost/env_crashes"] > 3


@pytest.mark.parametrize("evaluation", [False, True])
def test_one_that_raises_again_and_again_ends_it_within_moments(tmp_path: Path, evaluation: bool) -> None:
    with Agent("PPO", {**FRAGILE, "env_config": {"every": 3}}, out=tmp_path) as agent:
        with pytest.raises(EnvError, match="max_restarts=10 allows 10, and one more every 1,000 steps"):
            agent.eval() if evaluation else [agent.train() for _ in range(5)]
        assert agent.timesteps < 300


def test_losses_of_an_hour_ago_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    losses = Losses(2)
    for _ in range(20):
        losses.count("shards", "lost.", WorkerLost())
        now[0] += 1900.0
    losses.count("shards", "lost.", WorkerLost())
    with pytest.raises(RolesFailed, match=r"^lost\. That is loss number 3 within an hour; max_restarts allows 2\.$"):
        [losses.count("shards", "lost.", WorkerLost()) for _ in range(2)]


# -- episodes without an end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [10**9, 25])
def test_an_evaluation_episode_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(acting, "MAX_EPISODE_STEPS", 20)
    config = {**FRAGILE, "env_config": {"length": length}, "evaluation_interval": 1, "evaluation_num_episodes": 12}
    progress = Telling()
    outcome = drive(Agent("PPO", config, out=tmp_path), {"training_iteration": 3}, progress, final_episodes=10)
    assert outcome.result["evaluation/episodes_cut"] == outcome.result["evaluation/episodes"] == 10
    assert outcome.result["evaluation/episode_reward_mean"] == outcome.result["evaluation/episode_len_mean"] == 20
    cut = [text for text in progress.told if "cut" in text]
    assert cut == [
        "10 evaluation episodes of fragile:Fragile did not end within 20 steps and were cut: set time_limit, such as 1000, by which they end."
    ]
    assert outcome.final["episodes"] == 10


@pytest.mark.parametrize("interval", [None, 1])
def test_an_evaluation_that_is_stuck_is_cut_where_raypid_chose_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: int | None
) -> None:
    """Episodes of training end, those of the evaluation do not. Where the settings ask for the evaluation, only its length counts."""
    monkeypatch.setattr(evaluation, "LEAST_LIMIT_S", 0.01)
    monkeypatch.setattr(evaluation, "LIMIT", 0.0)
    monkeypatch.setattr(acting, "MAX_EPISODE_STEPS", 2000)
    endless = {"mode": "endless", "worker": [1, 2]}
    config = {**FRAGILE, "env_config": endless, "evaluation_interval": interval, "evaluation_num_episodes": 12}
    progress = Telling()
    drive(Agent("PPO", config, out=tmp_path), {"training_iteration": 2}, progress, final_episodes=0)
    result = next(row for row in read_results(tmp_path) if "evaluation/episodes_cut" in row)
    assert result["evaluation/episodes_cut"] == 10
    assert (result["evaluation/episode_len_mean"] == 2000) == (interval == 1)
    (said,) = [text for text in progress.told if "cut" in text]
    why = "did not end within 2,000 steps and were cut: set time_limit, such as 1000, by which they end."
    if interval is None:
        why = (
            "took more than 0.0 times as long as those of training and were cut: set time_limit, such as 1000, by which they end, or "
            "evaluation_interval, which lets them go on."
        )
    assert said == f"10 evaluation episodes of fragile:Fragile {why}"


def test_an_episode_that_a_time_limit_ends_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by steps nor by time, in evaluations whose time raypid chooses and in the final episodes."""
    monkeypatch.setattr(evaluation, "LEAST_LIMIT_S", 0.0)
    monkeypatch.setattr(evaluation, "LIMIT", 0.0)
    monkeypatch.setattr(acting, "MAX_EPISODE_STEPS", 20)
    config = {
        **FRAGILE,
        "env_config": {"mode": "endless", "worker": [1, 2]},
        "time_limit": 60,
        "evaluation_interval": None,
    }
    progress = Telling()
    outcome = drive(Agent("PPO", config, out=tmp_path), {"training_iteration": 2}, progress, final_episodes=50)
    rows = [row for row in read_results(tmp_path) if "evaluation/episodes_cut" in row]
    assert {(row["evaluation/episodes_cut"], row["evaluation/episode_len_mean"]) for row in rows} == {(0, 60)}
    assert outcome.final["episodes"] == 50 and not [text for text in progress.told if "cut" in text]


def test_a_time_limit_that_is_longer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "MAX_EPISODE_STEPS", 20)
    with Agent("PPO", {**FRAGILE, "env_config": {"length": 10**9}, "time_limit": 30}) as agent:
        played = agent.eval(12)
    assert (played["episodes"], played["episodes_cut"], played["episode_len_mean"]) == (12, 0, 30)


def test_a_run_without_an_ended_episode_says_so(tmp_path: Path) -> None:
    config = {**FRAGILE, "env_config": {"length": 10**9}, "evaluation_interval": None}
    progress = Telling()
    drive(Agent("PPO", config, out=tmp_path), {"training_iteration": 2}, progress)
    assert progress.summary["best policy"].startswith("none: no episode has ended")
    assert np.isnan(read_results(tmp_path)[-1]["episode_reward_mean"] or np.nan)


def test_a_run_says_early_that_no_episode_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remarks, "NO_END_STEPS", 50)
    said = (
        "No episode of fragile:Fragile has ended in 50 steps of each environment. Training goes on; returns and evaluations wait for an end: "
        "if there is none, set time_limit, such as 1000."
    )
    for length, time_limit, told in ((10**9, None, 1), (40, None, 0), (10**9, 40, 0), (10**9, 60, 0)):
        config = {**FRAGILE, "env_config": {"length": length}, "time_limit": time_limit, "evaluation_interval": None}
        progress = Telling()
        drive(Agent("PPO", config, out=tmp_path / f"{length} {time_limit}"), {"training_iteration": 3}, progress)
        assert progress.told.count(said) == told


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.slow)])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("by", ["time", "signal"])
def test_whole_episodes_that_do_not_end_are_broken_off(
    by: str, after: int, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(events, "HALT_S", 0.2)
    more: dict[str, Any] = {"run": "ES", "population": 4, "env_config": {"mode": "endless"}, "num_envs_per_worker": 2}
    if backend == "ray":
        request.getfixturevalue("ray_session")
        more["num_workers"] = 1
    small = {key: FRAGILE[key] for key in ("seed", "evaluation_interval", "env", "vectorizer")}
    monkeypatch.setitem(globals(), "FRAGILE", small)
    agent = gone_bad(tmp_path, after, **more)
    turn = agent.train

    def timed(num_train_steps: int | None = None) -> dict[str, float]:
        if agent.iteration == after and by == "signal":
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return turn(num_train_steps)

    monkeypatch.setattr(agent, "train", timed)
    said = Telling()
    outcome = drive(agent, {"time_total_s": 0.4} if by == "time" else {}, said)
    assert outcome.interrupted == (by == "signal")
    assert outcome.reason.startswith("interrupted" if by == "signal" else "time_total_s reached")
    if by == "signal":
        assert any(text.startswith(f"Iteration {after + 1} did not end in time") for text in said.told)
        assert (
            (outcome.checkpoint is not None)
            == (after == 1)
            == (checkpoint.latest(tmp_path / "run" / "checkpoints") is not None)
        )
    assert any("set time_limit" in text for text in said.told)
