"""What version 0.1.0 saved, before files were moved and renamed, still loads: policies, checkpoints, replay, results.

tests/fixtures/make.py says how the examples were made.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

import raypid
from raypid.cli import main
from raypid.nn.policy import read_policy_weights
from raypid.report.logger import read_params, read_results
from raypid.report.plots import learning_curve
from raypid.run.deploy import evaluate_policy
from raypid.storage.checkpoint import find_policy, latest, open_checkpoint

FIXTURES = Path(__file__).parent / "fixtures"
SAVED = FIXTURES / "saved"
RUNS = sorted(path.name for path in SAVED.iterdir() if (path / "params.json").exists())
WITH_REPLAY = ("dqn", "r2d2", "sac")


@pytest.fixture
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make", FIXTURES / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path: Path) -> Any:
    """A copy of a saved folder, to write into."""
    return lambda name: shutil.copytree(SAVED / name, tmp_path / name)


def test_there_is_an_example_of_each_kind(make: ModuleType) -> None:
    assert {path.name for path in SAVED.iterdir() if path.is_dir()} == {*make.RUNS, "impala_agent", "policy"}
    size = sum(path.stat().st_size for path in SAVED.rglob("*") if path.is_file())
    assert size < 200_000
    for name in WITH_REPLAY:
        assert (latest(SAVED / name / "checkpoints") / "replay" / "index.json").exists()  # type: ignore[operator]


@pytest.mark.parametrize("name", [*RUNS, "policy"])
def test_a_policy_acts_and_is_evaluated(name: str) -> None:
    trust = name == "custom_model"  # it names a class of its own, and nothing was signed then
    summary, info = evaluate_policy(find_policy(SAVED / name), 2, trust=trust)
    env = gymnasium.make(info["env"]["env"])
    obs, _ = env.reset(seed=0)
    assert env.action_space.contains(raypid.load_policy(SAVED / name, trust=trust).act(obs))
    assert summary["episodes"] == 2 and math.isfinite(summary["episode_reward_mean"])
    expected = "PPO" if name == "policy" else read_params(SAVED / name)["run"]
    assert info["algorithm"] == expected


@pytest.mark.parametrize("name", RUNS)
def test_a_checkpoint_goes_on(name: str) -> None:
    folder = latest(SAVED / name / "checkpoints")
    assert folder is not None
    _, weights, _, _ = read_policy_weights(folder / "policy")
    counters = open_checkpoint(folder).manifest["counters"]
    with raypid.Agent.from_checkpoint(SAVED / name, trust=name == "custom_model") as agent:
        np.testing.assert_array_equal(agent.get_weights().flat, weights.flat)
        for key, array in weights.extra.items():
            np.testing.assert_array_equal(agent.get_weights().extra[key], array)
        assert agent.replay_restored == (name in WITH_REPLAY)
        result = agent.train()
        assert result["training_iteration"] == counters["iteration"] + 1
        assert result["timesteps_total"] > counters["timesteps_total"]
        assert result["episodes_total"] >= counters["num_episodes"]
        assert result["learner_updates_total"] > counters["num_updates"]
        losses = [value for key, value in result.items() if key.startswith("learner/")]
        assert losses and all(math.isfinite(value) for value in losses)
        after = agent.get_weights().flat
        assert np.isfinite(after).all() and (after != weights.flat).any()


SINCE_THEN = {
    "custom_args": {}, "gpu": None, "wait_for_room_s": 0.0, "noise_persistence": 1.0, "on_divergence": "stop", "max_rollbacks": 3,
    "agent": "default_agent", "agent_config": {}, "desired_kl": 0.0, "start_episodes": 0, "evaluation_num_envs": None,
}  # fmt: skip
"""Settings that 0.1.0 did not have -> what its runs did. Which value that is has to be thought of for each new one (raypid.storage.changes)."""


@pytest.mark.parametrize("name", RUNS)
def test_settings_that_came_later_change_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a run that goes on, and of one that is repeated."""
    params = read_params(SAVED / name)
    trust = name == "custom_model"
    concerns = {
        key: x for key, x in SINCE_THEN.items() if key != "noise_persistence" or name not in ("es", "custom_model")
    }
    with raypid.Agent.from_checkpoint(SAVED / name, trust=trust) as agent:
        plain = agent.plain_config()
        assert not agent.changes and not any("noise_persistence" in note for note in agent.notes)
    assert plain.keys() - params.keys() <= SINCE_THEN.keys()
    assert {key: plain[key] for key in concerns if key in plain} == {
        key: concerns[key] for key in concerns if key in plain
    }
    if trust:
        return
    for again in (("--config", str(SAVED / name / "params.json")), ("--resume", str(SAVED / name))):
        assert main(["train", *again, "--explain", "--json", "--trust"]) == 0
        found = {key: row["value"] for key, row in json.loads(capsys.readouterr().out)["settings"].items()}
        assert {key: found[key] for key in concerns if key in found} == {
            key: concerns[key] for key in concerns if key in found
        }
    assert main(["train", "-f", str(SAVED / name / "params.json"), "--dry-run", "--trust"]) == 0


@pytest.mark.parametrize("name", RUNS)
def test_results_are_read_and_drawn(name: str, tmp_path: Path) -> None:
    folder = SAVED / name
    assert read_params(folder)["seed"] == 1
    rows = read_results(folder)
    assert [row["training_iteration"] for row in rows] == list(range(1, len(rows) + 1))
    assert learning_curve([folder], tmp_path / "curve.png").stat().st_size > 10_000


def test_a_run_is_resumed_and_evaluated_from_the_command_line(copy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy("ppo")
    before = read_results(folder)
    stop = json.dumps({"training_iteration": len(before) + 1})
    assert main(["train", "--resume", str(folder), "--stop", stop, "--final-episodes", "0", "--quiet"]) == 0
    rows = read_results(folder)
    assert len(rows) == len(before) + 1 and rows[0] == pytest.approx(before[0], nan_ok=True)
    assert main(["eval", str(folder), "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["episodes"] == 2


def test_a_distributed_agent_restores_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    manifest = open_checkpoint(latest(SAVED / "impala_agent" / "checkpoints")).manifest  # type: ignore[arg-type]
    assert manifest["program"] == "raypid.distributed:IMPALAAgent"
    settings: dict[str, Any] = {
        "num_steps": 16,
        "num_actors": 2,
        "num_learners": 1,
        "num_storages": 4,
        "batch_size": 16,
        "hidden_dim": 8,
    }
    with raypid.IMPALAAgent("CartPole-v1", num_envs_per_worker=2, backend="local", **settings) as agent:
        agent.restore(SAVED / "impala_agent")
        result = agent.train(64, log_interval=0, eval_interval=0, save_interval=0)
        assert result["training_iteration"] > manifest["counters"]["iteration"]
        assert result["timesteps_total"] >= manifest["counters"]["timesteps_total"] + 64


def test_the_script_that_made_them_runs(make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ppo", "dqn"):
        make.train(Path(name), *make.RUNS[name])
        made, saved = read_results(name)[0], read_results(SAVED / name)[0]
        since = ["evaluation/episodes_cut", "episode_reward_this_iter"]
        # where no interval is set, a slow first iteration is followed by an evaluation
        mine = [key for key in made if key not in since and (key in saved or not key.startswith("evaluation/"))]
        assert mine == list(saved)
