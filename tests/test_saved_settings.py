"""Settings under names: what a search has found is saved, listed, and taken by --tuned NAME and tuned="NAME"."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import raypid
from raypid.cli import main
from raypid.errors import UserError
from raypid.settings import saved as saved_settings

ENTRY = {
    "algorithm": "PPO",
    "env": "CartPole-v1",
    "settings": {"lr": 0.002, "model": {"hidden": [32]}},
    "reached": "475 in 3 s",
}


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYPID_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_a_name_gives_the_settings_below_those_of_the_user() -> None:
    saved_settings.save("fast", ENTRY)
    with raypid.PPO(env="CartPole-v1", tuned="fast") as agent:
        assert agent.config.lr == 0.002 and agent.config.model.hidden == (32,)
    with raypid.PPO(env="CartPole-v1", tuned="fast", lr=0.1) as agent:
        assert agent.config.lr == 0.1 and agent.config.model.hidden == (32,)


def test_the_command_line_takes_a_name_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved_settings.save("fast", ENTRY)
    for i, named in enumerate(("fast", str(file))):
        out = tmp_path / f"run{i}"
        stop = ["--stop", '{"training_iteration": 1}', "--final-episodes", "0", "--quiet"]
        assert main(["train", "--run", "PPO", "--env", "CartPole-v1", "--tuned", named, *stop, "--out", str(out)]) == 0
        assert json.loads((out / "params.json").read_text())["lr"] == 0.002
    assert main(["list", "tuned"]) == 0
    assert "475 in 3 s: --tuned fast\n" in capsys.readouterr().out


def test_what_is_not_there_or_for_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tuned settings called 'fast'. `raypid list tuned` shows"):
        saved_settings.load("fast")
    saved_settings.save("fast", ENTRY)
    with pytest.raises(UserError, match="no tuned settings called 'fats'. Did you mean 'fast'"):
        saved_settings.load("fats")
    with pytest.raises(UserError, match="There is no file nowhere/x.json"):
        saved_settings.load("nowhere/x.json")
    with pytest.raises(UserError, match="are for PPO on CartPole-v1, not for PPO on .Acrobot-v1"):
        raypid.PPO(env="Acrobot-v1", tuned="fast")
    with pytest.raises(UserError, match="are for PPO on CartPole-v1, not for A2C on .CartPole-v1"):
        raypid.A2C(env="CartPole-v1", tuned="fast")
    with pytest.raises(UserError, match="tuned takes True, or the name"):
        raypid.PPO(env="CartPole-v1", tuned=3)  # type: ignore[arg-type]
    (tmp_path / "search").mkdir()
    with pytest.raises(UserError, match="There is no file .*search/best.json"):
        saved_settings.load(str(tmp_path / "search"))
    (tmp_path / "search" / "best.json").write_text(json.dumps(ENTRY))
    assert saved_settings.load(str(tmp_path / "search")) == ENTRY
    bad = {"[1]": "holds", '{"algorithm": "PPO"}': "bad.json holds no tuned settings", "{": "this is not JSON"}
    for text, said in bad.items():
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(UserError, match=said):
            saved_settings.load(str(tmp_path / "bad.json"))


def test_names() -> None:
    for bad in ("", "a/b", "../x", ".x", "x.json", "x" * 101):
        with pytest.raises(UserError, match="A name for settings"):
            saved_settings.check_name(bad)
    assert saved_settings.free_name("PPO-ALE/Pong-v5") == "PPO-ALE-Pong-v5"
    saved_settings.save("PPO-x", ENTRY)
    assert saved_settings.free_name("PPO-x") == "PPO-x-2" and saved_settings.names() == ["PPO-x"]
