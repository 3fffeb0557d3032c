"""`raypid list`."""

from __future__ import annotations

import json
import re

import pytest

from raypid.cli import main
from raypid.cli.list import _ALGORITHMS, _NETWORKS
from raypid.plugins.registry import ALGORITHMS, NETWORKS, OWN_MODELS


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["list", *words]) == 0
    return capsys.readouterr().out


def test_environments_are_short_grouped_and_marked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = listed(capsys, "envs")
    names = [line for line in text.splitlines()[:-1] if " install" not in line]  # commands to paste are not wrapped
    assert text.count("\n") <= 60 and max(map(len, names)) <= 80
    assert "classic control\n" in text and "HalfCheetah-v5" in text and "HalfCheetah-v4" not in text
    assert "HalfCheetah-v4" in listed(capsys, "envs", "half")
    assert listed(capsys, "envs", "LUNAR", "cont") == "Box2D\n  LunarLanderContinuous-v3\n"
    assert main(["list", "envs", "nosuchthing"]) == 2
    assert "Nothing in `raypid list envs` has 'nosuchthing'" in capsys.readouterr().err


def test_what_people_type_is_understood(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert listed(capsys, "envs", "--installed", "lunar", "cont") == "Box2D\n  LunarLanderContinuous-v3\n"
    names = {
        name.strip(",") for line in listed(capsys, "envs", "raypid/", "v0").splitlines()[1:] for name in line.split()
    }
    assert "raypid/PositionCartPole-v0" in names and "gym_env" not in names  # whole, however narrow
    for words in (["algos"], []):
        with pytest.raises(SystemExit) as end:
            main(["list", *words])
        assert end.value.code == 2 and "envs" in capsys.readouterr().err


def test_environments_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(listed(capsys, "envs", "--json"))
    by_name = {row["name"]: row for row in rows}
    assert by_name["CartPole-v1"] == {
        "name": "CartPole-v1",
        "package": "classic control",
        "installed": True,
        "install": "",
    }
    assert all(row["installed"] == (not row["install"]) for row in rows)
    there = json.loads(listed(capsys, "envs", "--json", "--installed"))
    assert there == [row for row in rows if row["installed"]]


def test_environments_by_their_actions(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        listed(capsys, "envs", "mountaincar", "--actions", "continuous")
        == "classic control\n  MountainCarContinuous-v0\n"
    )
    assert main(["list", "agents", "--actions", "discrete"]) == 2


def test_every_algorithm_and_network_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(_ALGORITHMS) == {name for name in ALGORITHMS.names() if ALGORITHMS.is_own(name)}
    assert set(_NETWORKS) == {name for name in NETWORKS.names() if NETWORKS.is_own(name)} - set(OWN_MODELS)
    for kind in ("agents", "networks", "models", "tuned"):
        rows = json.loads(listed(capsys, kind, "--json"))
        assert rows and all(row["name"] and row["about"] for row in rows)
    assert "PPO " in listed(capsys, "agents", "ppo") and "\nSAC" not in listed(capsys, "agents", "ppo")


def test_tuned_settings_are_a_table_of_return_and_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = listed(capsys, "tuned")
    assert max(map(len, text.splitlines())) <= 100
    heading, *rows = listed(capsys, "tuned", "es:cartpole").splitlines()
    assert heading.split() == ["name", "goal", "return", "seconds", "seeds"]
    assert re.match(r"ES:CartPole-v1 +475 +\d+ \(\d+ to \d+\) +[\d.]+ \([\d.]+ to [\d.]+\) +3 of 3", rows[0])
    (row,) = json.loads(listed(capsys, "tuned", "es:cartpole", "--json"))
    assert row["name"] == "ES:CartPole-v1" and {"median", "low", "high"} == set(row["recorded"]["returns"])
