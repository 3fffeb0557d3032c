"""--explain and agent.explain(): each value, where it came from, what it replaced, and what raypid chose."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import raypid
from raypid.cli import main
from raypid.plugins.registry import ALGORITHMS
from raypid.run.explain import explain
from raypid.settings.config import Given, overlay, sources_by_setting
from raypid.settings.tuned import TUNED

WIDE = """
import gymnasium, numpy

class Wide(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (9,), numpy.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), numpy.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(9, numpy.float32), {}

    def step(self, action):
        return numpy.zeros(9, numpy.float32), 0.0, False, True, {}
"""
"""An environment with nine numbers to observe."""

Explained = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Explained:
    """explained("--lr", 1) -> {name: {value, from, ...}} of a command that runs nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(
        sys.modules, "ray", raising=False
    )  # these tests' own Ray is no cluster that a command would join

    def run(*arguments: object) -> dict[str, dict[str, Any]]:
        assert main(["train", *map(str, arguments), "--explain", "--json"]) == 0
        out, err = capfd.readouterr()
        assert err == "" and not Path("runs").exists()
        settings: dict[str, dict[str, Any]] = json.loads(out)["settings"]
        return settings

    return run


CARTPOLE = ("--run", "PPO", "--env", "CartPole-v1")


def origin(row: dict[str, Any]) -> tuple[object, str, str]:
    return row["value"], row["from"], row["detail"]


def test_every_kind_of_origin(explained: Explained) -> None:
    Path("a.yaml").write_text("lr: 1e-2\nnum_envs_per_worker: 4\nmodel: {hidden: [8]}\n")
    tuned = TUNED["PPO", "CartPole-v1"]
    flags = ("--lr", 0.5, "--model.activation", "relu", "--lr-schedule", "linear", "--stop", '{"timesteps_total": 500}')
    found = explained(*CARTPOLE, "--tuned", "--config", "a.yaml", "--config", '{"gamma": 0.5}', *flags)
    assert origin(found["lr"]) == (0.5, "flag", "")
    assert {"value": 0.01, "from": "file", "detail": "a.yaml"} in found["lr"]["replaced"]
    assert origin(found["num_envs_per_worker"]) == (4, "file", "a.yaml")
    assert origin(found["model.hidden"]) == ([8], "file", "a.yaml") and found["model.activation"]["from"] == "flag"
    assert origin(found["gamma"]) == (0.5, "flag", "--config")
    only = next(name for name in tuned if name not in ("lr", "gamma", "num_envs_per_worker", "model"))
    assert origin(found[only]) == (tuned[only], "tuned", "PPO on CartPole-v1")
    assert origin(found["seed"])[1:] == ("adapted", "drawn")
    assert origin(found["schedule_steps"]) == (500, "adapted", "a linear schedule ends with the run")
    assert origin(found["max_grad_norm"]) == (raypid.PPO.DEFAULT_CONFIG["max_grad_norm"], "default", "")
    assert origin(found["clip"]) == (0.2, "adapted", "the usual choice")
    chosen = {name: found[name]["value"] for name in ("model.network", "backend", "device", "kernel", "num_threads")}
    assert chosen == {"model.network": "mlp", "backend": "local", "device": "cpu", "kernel": "numpy", "num_threads": 1}
    assert {found[name]["from"] for name in chosen} == {"adapted"}
    assert [found[key]["from"] for key in ("run", "stop", "out", "env")] == ["flag", "flag", "adapted", "flag"]


def test_only_what_was_changed_is_adapted(explained: Explained, capfd: pytest.CaptureFixture[str]) -> None:
    car = ("--run", "PPO", "--env", "MountainCar-v0")
    assert origin(explained(*car)["normalize_observations"]) == (False, "default", "")
    assert main(["train", *car, "--explain"]) == 0 and "normalize_observations" not in capfd.readouterr().out
    with raypid.PPO("MountainCar-v0") as agent:
        assert "normalize_observations" not in str(agent.explain()) and agent.config.normalize_observations is False


def test_none_is_said_in_words(explained: Explained) -> None:
    Path("a.yaml").write_text("max_grad_norm: none\ntarget_kl: null\ncallbacks: none\nmodel: {hidden: none}\n")
    found = explained(*CARTPOLE, "--config", "a.yaml", "--model.memory", "none")
    assert [found[key]["value"] for key in ("max_grad_norm", "target_kl", "callbacks")] == [None] * 3
    assert found["model.memory"]["value"] == "none" and found["model.hidden"]["from"] == "adapted"
    for given in (("--max-grad-norm", "none"), ("--max-grad-norm=None",), ("--config", '{"max-grad-norm": "none"}')):
        assert origin(explained(*CARTPOLE, "--evaluation-env", "none", *given)["max_grad_norm"])[:2] == (None, "flag")


def test_every_setting_is_there_with_the_value_that_the_run_has(explained: Explained) -> None:
    found = explained("--run", "DQN", "--env", "CartPole-v1", "--tuned", "--seed", 3)
    with raypid.DQN(env="CartPole-v1", tuned=True, seed=3) as agent:
        plain, mine = agent.plain_config(), agent.explain().as_dict()["settings"]
    names = {*plain, *(f"model.{name}" for name in plain["model"])} - {"model"}  # type: ignore[attr-defined]
    assert names == mine.keys() and names <= found.keys()
    for name in names - {"env", "seed"}:
        assert {**found[name], "group": ""} == {**mine[name], "group": ""}
        if mine[name]["from"] != "adapted":
            group, _, part = name.partition(".")
            assert mine[name]["value"] == (plain[group][part] if group == "model" else plain[name])  # type: ignore[index]
    assert mine["env"]["from"] == "given" and found["env"]["from"] == "flag"


def test_a_file_of_one_run_and_a_run_that_goes_on(explained: Explained, capfd: pytest.CaptureFixture[str]) -> None:
    Path("a.yaml").write_text(
        "run: PPO\nenv: CartPole-v1\nseed: 3\nstop: {training_iteration: 1}\nlr: 1e-2\nfragment_length: 16\n"
    )
    assert explained("-f", "a.yaml", "--gamma", 0.5) == explained("--config", "a.yaml", "--gamma", 0.5)
    found = explained("-f", "a.yaml", "--lr", 0.5, "--seed", 4)
    assert origin(found["lr"]) == (0.5, "flag", "") and found["lr"]["replaced"][0]["value"] == 0.01
    assert origin(found["seed"]) == (4, "flag", "") and origin(found["fragment_length"]) == (16, "file", "a.yaml")
    assert main(["train", "-f", "a.yaml", "--out", "run", "--quiet", "--final-episodes", "0"]) == 0
    assert main(["train", "--resume", "run", "--explain"]) == 0
    assert "is at its stop already (training_iteration reached 1)" in capfd.readouterr().out
    before = Path("run/params.json").read_bytes()
    found = explained("--resume", "run", "--lr", 0.5)
    assert origin(found["lr"]) == (0.5, "flag", "") and origin(found["fragment_length"]) == (16, "resume", "run")
    assert found["lr"]["replaced"] == [{"value": 0.01, "from": "resume", "detail": "run"}]
    assert main(["train", "--resume", "run", "--lr", "0.5", "--explain"]) == 0
    out = capfd.readouterr().out
    assert "changed since the run began\n  lr 0.01 to 0.5 at step " in out
    assert Path("run/params.json").read_bytes() == before
    assert origin(explained("--config", "run/params.json")["lr"]) == (0.01, "file", "run/params.json")


def test_a_person_sees_what_differs_on_one_screen(
    explained: Explained, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["train", *CARTPOLE, "--tuned", "--lr", "0.5", "--explain"]) == 0
    text = capfd.readouterr().out
    lines = text.splitlines()
    assert len(lines) <= 27 and max(map(len, lines)) <= 80 and lines[-1] == "Nothing was run."
    assert re.search(r"lr {22}0.5 +flag; default 0.0005", text) and "value_coef" not in text
    assert main(["train", *CARTPOLE, "--tuned", "--lr", "0.5", "--explain", "all"]) == 0
    everything = capfd.readouterr().out
    assert "value_coef" in everything and "more settings" not in everything
    assert [line for line in everything.splitlines() if not line.startswith(" ")][1:-1] == [
        "run", "environment", "network", "algorithm", "evaluation", "machine",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*CARTPOLE, "--json"), "--json has no effect without --explain"),
        (
            ("-f", "grid.yaml", "--explain"),
            "--explain is for one run, and grid.yaml has several: --dry-run shows them.",
        ),
        ((*CARTPOLE, "--lr", "-1", "--explain"), "lr must be above 0"),
        ((*CARTPOLE, "--num-workers", "1000", "--explain"), "--fit"),
    ],
)
def test_it_is_refused_as_the_run_would_be(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    Path("grid.yaml").write_text("run: PPO\nenv: CartPole-v1\nstop: {time_total_s: 1}\nlr: {grid_search: [1, 2]}\n")
    assert main(["train", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == "" and words in err


def test_what_fits_is_known_without_ray(explained: Explained) -> None:
    found = explained(*CARTPOLE, "--num-workers", 1000, "--fit")
    assert found["num_workers"]["from"] == "adapted" and found["num_workers"]["value"] < 1000
    assert found["num_workers"]["replaced"] == [{"value": 1000, "from": "flag", "detail": ""}]
    assert found["backend"]["value"] == "ray"


@pytest.mark.parametrize(("env", "width"), [("Pendulum-v1", 64), ("tests_wide:Wide", 128)])
def test_widths_by_the_observations_are_adapted(
    env: str, width: int, explained: Explained, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests_wide.py").write_text(WIDE)
    row = explained("--run", "SAC", "--env", env, "--model.hidden", "null")["model.hidden"]
    assert origin(row) == ([width, width], "adapted", f"for vector observations of {3 if width == 64 else 9} numbers")
    assert main(["train", "--run", "SAC", "--env", env, "--model.hidden", "null", "--explain", "all"]) == 0
    assert re.search(rf"  model.hidden +\[{width}, {width}\] +adapted: for vector", capfd.readouterr().out)
    row = explained("--run", "SAC", "--env", env, "--model.hidden", "[5]")["model.hidden"]
    assert origin(row) == ([5], "flag", "")
    assert explained("--run", "PPO", "--env", env, "--model.hidden", "null")["model.hidden"]["value"] == [64, 64]


@pytest.mark.parametrize("run", ["DQN", "Rainbow", "ApeX", "SQN", "SAC", "TD3", "DDPG"])
def test_algorithms_with_replay_leave_the_width_open(run: str) -> None:
    assert ALGORITHMS.get(run).Config().model.hidden is None


def test_sources_are_laid_over_each_other_with_the_values() -> None:
    below = overlay(
        Given({"lr": 1, "model": {"hidden": [8], "memory": "gru"}, "env_config": {"a": 1}}, "tuned", "t"), {}
    )
    laid = overlay(below, Given({"lr": 2, "model": {"hidden": [4]}, "env-config.b": 2, "num_sgd_iter": 3}, "flag"))
    assert laid == {
        "model.memory": "gru",
        "env_config": {"a": 1},
        "lr": 2,
        "model.hidden": [4],
        "env-config.b": 2,
        "num_sgd_iter": 3,
    }
    found = {name: [(s.kind, s.value) for s in sources] for name, sources in sources_by_setting(laid).items()}
    assert found["lr"] == [("tuned", 1), ("flag", 2)] and found["model.memory"] == [("tuned", "gru")]
    assert found["model.hidden"] == [("tuned", [8]), ("flag", [4])] and found["num_epochs"] == [("flag", 3)]
    assert found["env_config"] == [("tuned", {"a": 1}), ("flag", 2)]
    assert overlay({"env_config.a": 1, "a_l_ratio": 2}, {"env_config": {}, "samples_per_insert": 3}) == {
        "env_config": {}, "samples_per_insert": 3,
    }  # fmt: skip


def test_an_address_that_the_environment_names_and_other_names_are_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = raypid.PPO("CartPole-v1", seed=0, num_envs_per_worker=1)
    run = replace(agent.resolved, config=agent.config.replace({"num_workers": 1}), sources={}, plan=None)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    row = explain(run).as_dict()["settings"]["address"]
    assert origin(row) == ("10.0.0.1:6379", "adapted", "RAY_ADDRESS names it")
    local = replace(run, config=run.config.replace({"address": "local"}))
    assert explain(local).as_dict()["settings"]["address"]["value"] == "local"
    monkeypatch.delenv("RAY_ADDRESS")
    assert main(["train", *CARTPOLE, "--redis-address", "local", "--num-workers", "1", "--explain"]) == 0
    assert "redis_address is called address here" in capfd.readouterr().out
    assert main(["train", *CARTPOLE, "--redis-address", "local", "--num-workers", "0"]) == 2
    assert "redis_address, here address, has no effect where nothing runs on Ray" in capfd.readouterr().err
