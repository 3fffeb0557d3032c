"""A run and its folder: what lies there, when it stops, what stays, how it goes on."""

from __future__ import annotations

import ast
import csv
import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import fragile
import pytest

from raypid import load_policy
from raypid.algorithms.ppo import PPOConfig
from raypid.nn.policy import read_policy_weights
from raypid.outcome import Outcome
from raypid.report.logger import read_params, read_results
from raypid.report.panel import Quiet
from raypid.run.agent import Agent
from raypid.run.best import BestPolicy
from raypid.run.deploy import evaluate_policy
from raypid.run.evaluation import Evaluations
from raypid.run.folder import check_folder, clear_folder
from raypid.run.known_keys import check_stop, known_keys
from raypid.run.run import Run, RunOptions
from raypid.settings.config import ConfigError
from raypid.storage import checkpoint

SMALL = {"num_envs_per_worker": 4, "fragment_length": 32, "batch_size": 64, "seed": 3, "num_threads": 1}
FROZEN = set(
    "training_iteration timesteps_total episodes_total episode_reward_mean episode_reward_min episode_reward_max "
    "episode_len_mean time_this_iter_s time_total_s env_steps_per_s learner_updates_total timing/env timing/inference "
    "timing/transport timing/learner timing/evaluation lost/workers lost/timeouts lost/env_crashes".split()
)
EVALUATION = {f"evaluation/episode_reward_{k}" for k in ("mean", "min", "max", "ci95")} | {"evaluation/episodes"}


def run(folder: Path, stop: dict[str, float], options: dict[str, Any] | None = None, **config: Any) -> Outcome:
    agent = Agent("PPO", {"env": "CartPole-v1", "evaluation_interval": 0, **SMALL, **config}, out=folder)
    return drive(agent, stop, options)


def resume(folder: Path, stop: dict[str, float], options: dict[str, Any] | None = None, **config: Any) -> Outcome:
    return drive(Agent.from_checkpoint(folder, config, out=folder), stop, options)


def drive(agent: Agent, stop: dict[str, float], options: dict[str, Any] | None) -> Outcome:
    with agent:
        return Run(agent, RunOptions(stop=stop, **{"plot": False, **(options or {})}), Quiet())()


def test_what_lies_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    outcome = run(folder, {"training_iteration": 4}, {"plot": True}, evaluation_interval=2)
    assert outcome.reason == "training_iteration reached 4" and outcome.folder == folder
    names = {p.name for p in folder.iterdir()}
    events = {n for n in names if n.startswith("events.out.tfevents.")}
    assert len(events) == 1
    assert names - events == {
        "params.json", "result.json", "progress.csv", "checkpoints", "best", "learning_curve.png",
    }  # fmt: skip
    rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row.keys() >= FROZEN
        assert any(k.startswith("learner/") for k in row)
        assert (row.keys() >= EVALUATION) == (row["training_iteration"] % 2 == 0)
        assert all(isinstance(v, int | float | type(None)) for v in row.values())
    for key in ("timesteps_total", "learner_updates_total", "time_total_s"):
        assert all(a[key] < b[key] for a, b in zip(rows, rows[1:], strict=False))
    params = read_params(folder)
    assert (params["run"], params["env"], params["seed"], params["stop"]) == (
        "PPO", "CartPole-v1", 3, {"training_iteration": 4},
    )  # fmt: skip
    table = list(csv.DictReader((folder / "progress.csv").open()))
    assert len(table) == 4 and table[3]["timesteps_total"] == str(rows[3]["timesteps_total"])
    assert (folder / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / next(iter(events))).stat().st_size > 1000
    assert outcome.checkpoint == folder / "checkpoints" / "checkpoint_000004"
    assert not list(folder.rglob("*.pkl")) and not list(folder.rglob(".tmp*"))
    load_policy(folder / "best")


def test_the_best_and_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    keep = {"checkpoint_interval": 1, "keep_checkpoints": 2, "final_episodes": 0}
    run(tmp_path, {"training_iteration": 8}, keep, evaluation_interval=1, evaluation_num_episodes=3)
    there = checkpoint.list_checkpoints(tmp_path / "checkpoints")
    names = [p.name for p in there]
    assert names[-2:] == ["checkpoint_000007", "checkpoint_000008"]
    scores = [row["evaluation/episode_reward_mean"] for row in read_results(tmp_path)]
    best = max(range(8), key=lambda i: (scores[i], i)) + 1
    assert set(names) == {f"checkpoint_{i:06d}" for i in {best, 7, 8}}
    # best/ is the best one's, not the newest
    weights = checkpoint.read_policy(tmp_path / "best")[1]
    expected = checkpoint.read_policy(tmp_path / "checkpoints" / f"checkpoint_{best:06d}" / "policy")[1]
    assert weights.keys() == expected.keys()
    assert all((weights[k] == expected[k]).all() for k in weights)


def test_a_resumed_run_continues_its_numbers(tmp_path: Path) -> None:
    run(tmp_path, {"training_iteration": 3}, callbacks=fragile.Metrics, env=fragile.Fragile)
    first = read_results(tmp_path)
    outcome = resume(tmp_path, {"training_iteration": 5}, callbacks=fragile.Metrics, env=fragile.Fragile)
    rows = read_results(tmp_path)
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[:3] == first
    for key in ("timesteps_total", "episodes_total", "learner_updates_total", "time_total_s"):
        assert rows[3][key] > rows[2][key]
    assert outcome.checkpoint is not None and outcome.checkpoint.name == "checkpoint_000005"
    assert len(list(csv.DictReader((tmp_path / "progress.csv").open()))) == 5


def test_iterations_after_the_checkpoint_are_dropped_on_resume(tmp_path: Path) -> None:
    run(tmp_path, {"training_iteration": 4}, {"checkpoint_interval": 2, "keep_checkpoints": 9})
    resume_from = tmp_path / "checkpoints" / "checkpoint_000002"
    with Agent.from_checkpoint(resume_from, out=tmp_path) as agent:
        Run(agent, RunOptions(stop={"training_iteration": 3}, plot=False), Quiet())()
    assert [row["training_iteration"] for row in read_results(tmp_path)] == [1, 2, 3]


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    every = {"checkpoint_interval": 2}
    exact = {"exact_resume": True, "normalize_observations": True}
    run(tmp_path / "whole", {"training_iteration": 4}, every, **exact)
    run(tmp_path / "cut", {"training_iteration": 2}, every, **exact)
    resume(tmp_path / "cut", {"training_iteration": 4}, every)
    whole, cut = (checkpoint.read_policy(tmp_path / name / "best")[1] for name in ("whole", "cut"))
    assert all((whole[k] == cut[k]).all() for k in whole)
    rewards = [[row["episode_reward_mean"] for row in read_results(tmp_path / name)] for name in ("whole", "cut")]
    assert rewards[0] == rewards[1]


def test_a_worse_resumed_run_leaves_the_best_policy(tmp_path: Path) -> None:
    run(tmp_path, {"training_iteration": 1}, evaluation_interval=1)
    manifest = tmp_path / "checkpoints" / "checkpoint_000001" / "manifest.json"
    policy = checkpoint.read_policy(tmp_path / "best")[1]
    best = checkpoint.read_manifest(manifest.parent)["score"]
    # a learning rate that ruins the policy
    resume(tmp_path, {"training_iteration": 3}, lr=5.0)
    scores = [row["evaluation/episode_reward_mean"] for row in read_results(tmp_path)]
    assert scores[0] == best and max(scores[1:]) < best
    now = checkpoint.read_policy(tmp_path / "best")[1]
    assert all((policy[k] == now[k]).all() for k in policy)
    checkpoint.prune(tmp_path / "checkpoints", 1)
    assert manifest.is_file()  # the best one stays


def test_stops(tmp_path: Path) -> None:
    fragile_run = {"env": fragile.Fragile, "callbacks": fragile.Metrics}
    assert "custom/length" in run(tmp_path / "a", {"custom/length": 10}, **fragile_run).reason
    assert "custom/twice" in run(tmp_path / "b", {"custom/twice": 6}, **fragile_run).reason
    assert read_results(tmp_path / "b")[-1]["training_iteration"] == 3
    assert "timesteps_total" in run(tmp_path / "c", {"timesteps_total": 1, "time_total_s": 1e6}).reason


def test_a_stop_on_the_training_return_needs_20_episodes(tmp_path: Path) -> None:
    run(tmp_path, {"episode_reward_mean": 1.0}, num_envs_per_worker=1)
    rows = read_results(tmp_path)
    assert rows[-1]["episodes_total"] >= 20
    assert all(row["episodes_total"] < 20 for row in rows[:-1]) and len(rows) > 1


def test_a_stop_on_the_evaluation_is_confirmed(tmp_path: Path) -> None:
    stop = {"evaluation/episode_reward_mean": 5.0}
    outcome = run(tmp_path, stop, evaluation_interval=1, evaluation_num_episodes=2)
    assert outcome.result["evaluation/episodes"] == 50
    assert read_results(tmp_path)[-1]["evaluation/episodes"] == 50


# -- the best policy -----------------------------------------------------------------------------------------------


def about(folder: Path) -> dict[str, Any]:
    info: dict[str, Any] = read_policy_weights(folder / "best")[2]
    return info


def test_the_best_policy_plays_at_the_end(tmp_path: Path) -> None:
    every = {"evaluation_interval": 1, "evaluation_num_episodes": 2}
    outcome = run(tmp_path, {"training_iteration": 4}, **every)
    rows, info = read_results(tmp_path), about(tmp_path)
    scores = [row["evaluation/episode_reward_mean"] for row in rows]
    best = rows[max(range(4), key=lambda i: (scores[i], i))]
    assert outcome.final == info["final"] and outcome.final is not None
    assert outcome.final["episodes"] == 50 and outcome.final["episode_reward_ci95"] > 0
    if info["timesteps_total"] == best["timesteps_total"]:
        assert info["score"] == max(scores) and info["weights_version"] == best["evaluation/weights_version"]
    else:  # the newest weights did better in the final episodes than those that two episodes had chosen
        assert info["timesteps_total"] == rows[-1]["timesteps_total"]
        assert info["score"] == outcome.final["episode_reward_mean"]
    # it is the folder's policy that played, with seeds of its own
    seed = read_params(tmp_path)["seed"] + 1_000_000_000
    played = evaluate_policy(tmp_path / "best", 50, seed=seed)[0]
    assert played["episode_reward_mean"] == outcome.final["episode_reward_mean"]
    # a resumed run that finds nothing better does not play the same again
    again = resume(tmp_path, {"training_iteration": 5}, {"final_episodes": 20}, lr=5.0)
    assert again.final == outcome.final and about(tmp_path)["score"] == info["score"]


def test_the_final_episodes_are_a_choice(tmp_path: Path) -> None:
    every = {"evaluation_interval": 1, "evaluation_num_episodes": 2}
    none = run(tmp_path / "none", {"training_iteration": 1}, {"final_episodes": 0}, **every)
    assert none.final is None and about(tmp_path / "none")["final"] is None
    assert about(tmp_path / "none")["score"] is not None
    # where nothing is ever evaluated no policy is best
    never = run(tmp_path / "never", {"training_iteration": 1}, evaluation_interval=0)
    assert never.final is None and about(tmp_path / "never")["score"] is None


def test_a_confirmed_stop_is_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evaluations, "play", None)
    every = {"evaluation_interval": 1, "evaluation_num_episodes": 2}
    outcome = run(tmp_path, {"evaluation/episode_reward_mean": 5.0}, **every)
    assert outcome.final is not None and outcome.final["episodes"] == 50
    assert outcome.final["episode_reward_mean"] == outcome.result["evaluation/episode_reward_mean"]


def test_slow_episodes_are_fewer_and_ctrl_c_skips_them(tmp_path: Path) -> None:
    with Agent("PPO", {**SMALL, "env": "CartPole-v1", "evaluation_interval": 1}, out=tmp_path) as agent:
        agent.train()
        assert agent.evaluations.last is not None
        said: list[str] = []
        cases = (
            (300.0, 900.0, 10),
            (50.0, 900.0, 12),
            (1.0, 900.0, 50),
            (50.0, 20.0, 10),
            (2.5, 8.0, 32),
            (0.5, 0.1, 20),
        )
        for seconds, run_s, episodes in cases:  # that 10 episodes of evaluation took, and the run
            best = BestPolicy(tmp_path)
            evaluation = dataclasses.replace(agent.evaluations.last.evaluation, seconds=seconds)
            best.offer(dataclasses.replace(agent.evaluations.last, evaluation=evaluation), agent)
            best.play(agent, 50, run_s, interrupted=lambda: True, tell=said.append)
            assert best.final is None and "in evaluation (weights of step 1" in best.line()
            best.play(agent, 50, run_s, interrupted=lambda: False, tell=said.append)
            assert best.final is not None and best.final["episodes"] == episodes
            assert re.fullmatch(rf"\d+\.\d ± \d+\.\d \({episodes} episodes, weights of step 1\d\d\)", best.line())
        assert len(said) == 8 and "12 episodes" in said[2]


def test_a_folder_of_an_earlier_version(tmp_path: Path) -> None:
    run(tmp_path, {"training_iteration": 1}, evaluation_interval=1)
    before = about(tmp_path)
    (tmp_path / "best").rename(tmp_path / "policy")
    assert checkpoint.find_policy(tmp_path) == tmp_path / "policy"
    load_policy(tmp_path)
    resume(tmp_path, {"training_iteration": 2}, lr=5.0)
    assert (
        about(tmp_path)["score"] == before["score"] and about(tmp_path)["timesteps_total"] == before["timesteps_total"]
    )
    assert checkpoint.find_policy(tmp_path) == tmp_path / "best"
    clear_folder(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", ["run/run.py", "run/best.py", "run/remarks.py"])
def test_what_drives_a_run_asks_the_agent_and_sets_nothing_of_it(file: str) -> None:
    tree = ast.parse((Path(checkpoint.__file__).parents[1] / file).read_text())
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert not [node.lineno for node in attributes if node.attr == "context"]
    stored = [ast.unparse(node) for node in attributes if isinstance(node.ctx, ast.Store)]
    assert not [name for name in stored if "agent." in name]


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        ({"episode_rewards": 1}, "episode_reward_mean"),
        ({"timestep_total": 1}, "timesteps_total"),
        ({"timesteps_total": "soon"}, "takes a number"),
        ({"timesteps_total": True}, "takes a number"),
        ({"success": 1}, "custom/x"),
        ({"learner/entropi": 1}, "'learner/entropi'. Did you mean 'learner/entropy'"),
        ({"learner/alpha": 1}, "Unknown stop criterion 'learner/alpha'"),
        ({"lost/worker": 1}, "'lost/workers'"),
        ({"evaluation/episode_reward_meen": 1}, "'evaluation/episode_reward_mean'"),
        ({"parameter_server/pushes": 1}, "Unknown stop criterion"),
        ({"storages/full": 1}, "Unknown stop criterion"),
        ({"timing/lerner": 1}, "'timing/learner'"),
    ],
)
def test_stop_criteria_are_checked(stop: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_stop(stop, known_keys("PPO", PPOConfig()))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_stop_that_never_comes_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="time_total_s"):
        check_stop({"time_total_s": value}, known_keys("PPO", PPOConfig()))


def test_a_folder_that_holds_a_run_is_kept(tmp_path: Path) -> None:
    run(tmp_path, {"training_iteration": 1})
    mine = tmp_path / "notes.md"
    mine.write_text("mine")
    with pytest.raises(ConfigError, match=r"resume=.*overwrite=True"):
        check_folder(tmp_path, resume=False, overwrite=False)
    check_folder(tmp_path, resume=True, overwrite=False)
    check_folder(tmp_path, resume=False, overwrite=True)
    clear_folder(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.md"]
    check_folder(tmp_path, resume=False, overwrite=False)
    with pytest.raises(ConfigError, match="no run to resume"):
        check_folder(tmp_path, resume=True, overwrite=False)
    with pytest.raises(ConfigError, match="is a file"):
        check_folder(mine, resume=False, overwrite=True)


def test_a_run_that_fails_at_once_leaves_its_error_and_a_free_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finite"):
        run(tmp_path, {"training_iteration": 1}, env=fragile.Fragile, env_config={"mode": "nan"})
    assert "not finite" in (tmp_path / "errors.txt").read_text()
    check_folder(tmp_path, resume=False, overwrite=False)


def test_environments_that_raise_are_rebuilt_and_counted(tmp_path: Path) -> None:
    marker = tmp_path / "struck"
    config = {"env": fragile.Fragile, "env_config": {"mode": "raise", "worker": 0, "marker": str(marker)}}
    outcome = run(tmp_path / "run", {"training_iteration": 2}, **config)
    assert outcome.result["lost/env_crashes"] == 1
    assert outcome.result["timesteps_total"] == 2 * 4 * 32 - outcome.result["episodes_total"] - 1
    text = (tmp_path / "run" / "errors.txt").read_text()
    assert "the simulator lost its balance" in text and "worker 0" in text and "fragile.py" in text


def test_too_many_crashes_end_the_run(tmp_path: Path) -> None:
    config = {"env": fragile.Fragile, "env_config": {"mode": "raise", "worker": 0}, "max_restarts": 5}
    with pytest.raises(ValueError, match=r"worker 0 raised.*in so few steps; max_restarts=5 allows 5"):
        run(tmp_path, {"training_iteration": 9}, **config)
    assert "the simulator lost its balance" in (tmp_path / "errors.txt").read_text()


def test_a_criterion_of_a_callback_that_nobody_reports_is_told_once(tmp_path: Path) -> None:
    class Told(Quiet):
        def __init__(self) -> None:
            super().__init__()
            self.texts: list[str] = []

        def message(self, text: str) -> None:
            self.texts.append(text)

    progress = Told()
    with Agent("PPO", {"env": "CartPole-v1", **SMALL}, out=tmp_path) as agent:
        Run(
            agent,
            RunOptions(stop={"custom/succes": 1, "training_iteration": 4}, plot=False, final_episodes=0),
            progress,
        )()
    assert len([text for text in progress.texts if "custom/succes" in text]) == 1


def test_criteria_are_checked_before_the_folder_is_touched(tmp_path: Path) -> None:
    with (
        Agent("PPO", {"env": "CartPole-v1", **SMALL}, out=tmp_path / "run") as agent,
        pytest.raises(ConfigError, match="learner/entropy"),
    ):
        Run(agent, RunOptions(stop={"learner/entropi": 1}), Quiet())
    assert not (tmp_path / "run").exists()
