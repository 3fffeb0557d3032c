"""A path at which nothing is is answered with what lies near; files and folders are not taken for each other."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raypid
from raypid import roles
from raypid.cli import main
from raypid.errors import UserError
from raypid.storage.checkpoint import find_policy
from raypid.storage.neighbours import near, nothing_at, refuse_file_name


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, with a few runs as far as their names are looked at."""
    monkeypatch.chdir(tmp_path)
    for name in ("run/cartpole", "run/lander", "runs/PPO_first"):
        Path(name).mkdir(parents=True)
        Path(name, "params.json").write_text("{}")
    Path("run/notes").mkdir()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("run/cartpol", " Did you mean 'run/cartpole'?"),
        ("run/cartpole.zip", " Did you mean 'run/cartpole'?"),
        ("ru/cartpole", " Did you mean 'run/cartpole'?"),
        ("ru/cartpol", " Did you mean 'run/cartpole'?"),
        ("PPO_first", " Did you mean 'runs/PPO_first'?"),
        ("PPO_frist", " Did you mean 'runs/PPO_first'?"),
        ("run/pendulum", " In 'run' there is cartpole, lander."),
        ("pendulum", " In 'runs' there is PPO_first."),
        ("elsewhere/pendulum", " There is no folder 'elsewhere' either."),
        ("x" * 5000, ""),
        ("a\0b", " In 'runs' there is PPO_first."),
    ],
)
def test_what_lies_near_is_named(given: str, told: str) -> None:
    assert near(given) == told and nothing_at(given).endswith(f".{told}")


def test_a_file_is_not_answered_with_a_folder() -> None:
    assert near("run/cartpol", files=True) == ""
    assert near("RUN/cartpole/PARAMS.json", files=True) == near("run/cartpole/param.json", files=True)
    assert near("run/cartpole/param.json", files=True) == " Did you mean 'run/cartpole/params.json'?"


def test_a_file_of_code_may_be_written_in_another_case() -> None:
    Path("reacher.py").write_text("")
    for given, there in (("REACHER.py:Reach", "reacher.py'?"), ("Reacher:Reach", " Did you mean 'reacher.py'?")):
        for call in (lambda: raypid.PPO(given), lambda: raypid.PPO("CartPole-v1", model={"network": given})):  # noqa: B023
            with pytest.raises(UserError) as caught:
                call()  # type: ignore[no-untyped-call]
            assert str(caught.value).endswith(there)


COMMANDS = {
    "eval": ["eval", "run/cartpol"],
    "resume": ["train", "--resume", "run/cartpol"],
    "init from": ["train", "--run", "PPO", "--env", "CartPole-v1", "--init-from", "run/cartpol"],
    "plot": ["plot", "run/cartpol"],
    "compare": ["compare", "run/cartpole", "run/cartpol"],
    "doctor": ["doctor", "run/cartpol"],
    "search": ["tune", "--resume", "run/cartpol"],
    "tuned": ["train", "--run", "PPO", "--env", "CartPole-v1", "--tuned", "run/cartpol"],
    "config": ["train", "--config", "run/cartpol/params.json"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_names_the_run_that_is_meant(command: str, capsys: Any) -> None:
    if command == "compare":
        Path("run/cartpole/result.json").write_text('{"training_iteration": 1, "timesteps_total": 1}\n')
    assert main(COMMANDS[command]) == 2
    assert "Did you mean 'run/cartpole" in capsys.readouterr().err


def load_policy(path: str) -> object:
    return raypid.load_policy(path)


@pytest.mark.parametrize("load", [load_policy, raypid.Agent.from_checkpoint, find_policy])
@pytest.mark.parametrize("ending", [".zip", ".pt", ".pth"])
def test_a_model_of_another_library_is_said_to_be_a_file(load: Callable[[str], object], ending: str) -> None:
    Path(f"model{ending}").write_bytes(b"PK")
    with pytest.raises(UserError, match=f"'model{ending}' is a file; .* are folders.* Models of other libraries"):
        load(f"model{ending}")
    Path("model").mkdir()
    os.remove(f"model{ending}")
    with pytest.raises(UserError, match=f"There is nothing at 'model{ending}'. Did you mean 'model'"):
        load(f"model{ending}")


def test_a_file_of_a_policy_names_its_folder() -> None:
    Path("run/policy.json").touch()
    with pytest.raises(UserError, match="Give the folder that it lies in: 'run'"):
        raypid.load_policy("run/policy.json")


def test_what_is_saved_is_a_folder_and_may_have_no_name_of_a_file(capsys: Any) -> None:
    told = r"'model.{}' is the name of a file, and a folder will be written. Give 'model'"
    with raypid.PPO("CartPole-v1", fragment_length=8) as agent:
        with pytest.raises(UserError, match="save: " + told.format("zip")):
            agent.save("model.zip")
        with pytest.raises(UserError, match="The run's folder: " + told.format("pt")):
            agent.fit(8, out="model.pt")
    setup = raypid.setup("DQN", "CartPole-v1")
    with pytest.raises(UserError, match="Replay.save: " + told.format("pkl")):
        roles.Replay(setup).save("model.pkl")
    with pytest.raises(UserError, match="ParameterServer.save: " + told.format("pth")):
        roles.ParameterServer(setup).save("model.pth")
    assert main(["train", "--run", "PPO", "--env", "CartPole-v1", "--stop", "8", "--out", "model.zip"]) == 2
    assert "Give 'model'" in capsys.readouterr().err and not list(Path().glob("model*"))
    refuse_file_name("PPO_CartPole-v1.5", "save")  # no ending of a file
