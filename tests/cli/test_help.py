"""The help: in groups, short, and every setting in one of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from raypid.cli import main
from raypid.cli.options import GROUPS, usual_settings
from raypid.plugins.registry import ALGORITHMS
from raypid.settings.config import Config, ModelConfig, field_docs

SCREENS = 88
"""Most lines at 100 columns. That of the algorithm to try first is two screens of 40 lines."""
OWN = [name for name in ALGORITHMS.names() if ALGORITHMS.is_own(name)]


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", OWN)
def test_the_help_of_an_algorithm_is_two_screens(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = help_of(capsys, "train", "--run", name, "--help")
    assert text.count("\n") <= SCREENS and max(map(len, text.splitlines())) <= 100
    titles = re.findall(r"^(\w+)[^\n]*:$", text, re.MULTILINE)
    assert [title for title in titles if title in GROUPS] == list(GROUPS)
    shown = set(re.findall(r"^  --([\w.-]+)", text, re.MULTILINE))
    usual = {setting.replace("_", "-") for setting in usual_settings(ALGORITHMS.get(name).Config)}
    assert usual <= shown and f"raypid train --run {name} --help-all" in " ".join(text.split())


@pytest.mark.parametrize(("columns", "most"), [(100, 80), (80, 96)])
def test_the_help_of_ppo_is_two_screens(
    columns: int, most: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert help_of(capsys, "train", "--run", "PPO", "--help").count("\n") <= most


def test_all_settings_are_in_a_group_and_said_in_a_sentence() -> None:
    """The groups and what is shown stand beside the settings: neither may name one that is gone."""
    for name in OWN:
        config = ALGORITHMS.get(name).Config
        known = {field.name for field in fields(config)} | {f"model.{field.name}" for field in fields(ModelConfig)}
        assert usual_settings(config) <= known
        assert {config.group_of(setting) for setting in known} <= set(GROUPS)
    assert {setting for names in Config.groups.values() for setting in names} <= {f.name for f in fields(Config)}
    assert set(Config.usual) <= {f.name for f in fields(Config)} and set(field_docs(Config)) == {
        f.name for f in fields(Config)
    }


def test_the_help_says_a_default_once(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ("train", "--run", "PPO", "--help-all"),
        ("tune", "--run", "SAC", "--help-all"),
        ("eval", "--help"),
        ("plot", "--help"),
    ):
        text = help_of(capsys, *words)
        blocks = re.split(r"\n  (?=-)", text)
        assert len(blocks) > 4
        for block in blocks:
            assert len(re.findall(r"\(default", " ".join(block.split()))) <= 1, block
        assert "--num-sgd-iter" not in text  # other names are not listed


def test_the_help_without_an_algorithm_says_how_to_see_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(help_of(capsys, "train", "--help").split())
    assert "`raypid train --run PPO --help` shows the settings of PPO" in text
    algorithm = text.partition("algorithm (every algorithm):")[2].partition(" run: ")[0]
    assert "--gamma" in algorithm and "default" not in algorithm  # nobody has those of `Config` itself


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["PPO"], "Unknown command 'PPO'. Known: check-env, compare"),
        (["train", "file", "cart.yml"], "-f or --config a file."),
        (["train", "--env", "CartPole-v1"], "--run PPO is the first to try"),
        (["train", "--run", "PPO", "--env", "highway-env:highway-v0"], "pip install highway-env"),
        (["train", "--run", "PPO", "--env", "CartPole-v1", "--stop", "rewrd=6"], "Did you mean 'reward'?"),
        (["train", "--run", "PPO", "--env", "CartPole-v1", "--stop", "iterations=1.5"], "'training_iteration' takes a whole number, not 1.5"),
        (["--run", "PPO"], "Unknown command '--run'. Known: check-env, compare"),
        (["serve"], "Unknown command 'serve'. Known: check-env, compare"),
        (["train", "PPO"], "Unexpected argument 'PPO'. --run names the algorithm, --env the environment"),
        (["train", "--run", "PPO", "--timestep", "9"], "Did you mean '--timesteps'"),
        (["train", "--run", "PPO", "--learnng_rate", "9"], "Unknown option '--learnng-rate'. Did you mean '--lr'?"),
        (["train", "--run", "PPO", "--nosuchthing", "9"], "Unknown option '--nosuchthing'. docs/coming-from/ says what"),
        (["eval", "a", "--episode", "9"], "Did you mean '--episodes'?"),
        (["plot", "a", "--ouput", "b"], "Did you mean '--out'"),
        (["tune", "--run", "PPO", "--trails", "9"], "Did you mean '--trials'?"),
        (["train", "--run", "PPO", "--env", "CartPole-v1", "--timesteps", "5", "--stop", "6"], "or --stop has another one"),
        (["train", "--run", "PPO", "--env", "CartPole-v1", "--stop", "reward=2,reward=3"], "has two values for 'episode_reward_mean'"),
        (["train", "--run", "PPO", "--env", "CartPole-v1", "--timesteps", "5min"], "is no number of environment steps"),
        (["train", "--run", "PPO", "--env", "CartPole-v1", "--stop", "10m"], "2M), a time (90s, 10min, 2h)"),
    ],
)  # fmt: skip
def test_words_that_are_not_ours(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert answer in said and said.count("\n") == 1


def test_a_run_of_files_goes_on_elsewhere(in_process: Callable[..., Any], tmp_path: Path) -> None:
    """An environment and callbacks in files, named from another folder; --timesteps beside --stop."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "reach.py").write_text(
        "import gymnasium\nimport raypid\n"
        "class Reach(gymnasium.Wrapper):\n    def __init__(self): super().__init__(gymnasium.make('CartPole-v1'))\n"
        "class Seen(raypid.Callbacks):\n    def on_episode_end(self, info): return {'seen': 1.0}\n"
    )
    words = ("--fragment-length", 8, "--quiet", "--final-episodes", 0)
    done = in_process(
        "train", "--run", "ppo", "--env", "own/reach.py:Reach", "--callbacks", "own/reach.py:Seen", "--timesteps", "0.1k",
        "--stop", "reward=1e5", "--out", "run", *words,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    params = json.loads((tmp_path / "run" / "params.json").read_text())
    assert params["run"] == "PPO" and params["stop"] == {"timesteps_total": 100, "episode_reward_mean": 1e5}
    assert params["env"] == f"{tmp_path}/own/reach.py:Reach" and params["callbacks"] == f"{tmp_path}/own/reach.py:Seen"
    assert in_process("train", "--resume", "run", "--timesteps", 1000, *words).returncode == 0
    rows = [json.loads(row) for row in (tmp_path / "run" / "result.json").read_text().splitlines()]
    assert 1000 <= rows[-1]["timesteps_total"] < 1200
    assert {row["custom/seen"] for row in rows if "custom/seen" in row} == {1.0}  # not where no episode has ended
    told = in_process("eval", "run", "--episodes", 1)
    assert told.returncode == 0 and "reach.py:Reach, 1 episode" in told.stdout
