"""Ids of other packages and of old Gym, and environments in files."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from raypid.envs import EnvError, EnvSpec, list_envs, make_vector, resolve
from raypid.envs.ids import PACKAGES, brought_by, gone
from raypid.plugins.registry import ENVS

OLD = {
    "LunarLander-v2": "LunarLander-v3",
    "Pendulum-v0": "Pendulum-v1",
    "BipedalWalkerHardcore-v2": "BipedalWalkerHardcore-v3",
    "CarRacing-v0": "CarRacing-v3",
    "Taxi-v2": "Taxi-v4",
    "FrozenLake-v0": "FrozenLake-v1",
    "HalfCheetah-v2": "HalfCheetah-v5",
    "HalfCheetah-v3": "HalfCheetah-v5",
    "Breakout": "ALE/Breakout-v5",
    "BreakoutNoFrameskip-v4": "ALE/Breakout-v5",
    "PongDeterministic-v4": "ALE/Pong-v5",
    "Pong-v0": "ALE/Pong-v5",
    "Pong-v4": "ALE/Pong-v5",
    "Pong-ram-v0": "ALE/Pong-v5",
    "HalfCheetahBulletEnv-v0": "HalfCheetah-v5",
    "Walker2DBulletEnv-v0": "Walker2d-v5",
    "RoboschoolAnt-v1": "Ant-v5",
    "procgen": "envpool:CoinrunEasy-v0",
    "procgen-starpilot-v0": "envpool:StarpilotEasy-v0",
    "procgen:procgen-coinrun-v0": "envpool:CoinrunEasy-v0",
    "GymV21Environment-v0": "module:make",
}


@pytest.mark.parametrize(("old", "new"), OLD.items())
def test_old_ids_are_answered_with_the_new_one(old: str, new: str) -> None:
    with pytest.raises(EnvError, match=f"'{new}'"):
        resolve(old)


@pytest.mark.parametrize("name", ["CartPole-v0", "CartPole-v1", "HalfCheetah-v4", "MountainCar-v0"])
def test_what_can_be_made_is_not_answered(name: str) -> None:
    assert gone(name) is None and resolve(name).name == name


def test_nothing_is_listed_that_cannot_be_made() -> None:
    names = list_envs()
    assert {"CartPole-v1", "ALE/Pong-v5", "HalfCheetah-v4"} <= set(names)
    assert not {"HalfCheetah-v2", "Pong-v4", "GymV21Environment-v0"} & set(names)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.package))
def test_packages_that_are_not_installed_are_named(package: object) -> None:
    assert brought_by(package.example) is package  # type: ignore[attr-defined]
    if importlib.util.find_spec(package.module.partition(".")[0]) is None:  # type: ignore[attr-defined]
        with pytest.raises(EnvError, match="which is not installed: pip install '?") as error:
            resolve(package.example)  # type: ignore[attr-defined]
        assert package.package in str(error.value)  # type: ignore[attr-defined]


MINIGRID = """
import gymnasium
from gymnasium import spaces

class Grid(gymnasium.Env):
    observation_space = spaces.Dict(image=spaces.Box(0, 255, (7, 7, 3)), mission=spaces.Text(9))
    action_space = spaces.Discrete(3)
    def reset(self, *, seed=None, options=None):
        return {"image": self.observation_space["image"].sample(), "mission": "go"}, {}
    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}

gymnasium.register("MiniGrid-Mine-v0", Grid)
"""


def test_an_installed_package_is_imported_and_its_texts_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("minigrid") is not None:
        pytest.skip("the package itself is installed")
    place = tmp_path / "site-packages"
    (place / "minigrid").mkdir(parents=True)
    (place / "minigrid" / "__init__.py").write_text(MINIGRID)
    monkeypatch.syspath_prepend(place)
    monkeypatch.chdir(place)
    with pytest.raises(EnvError, match="not installed"):  # nobody has named what lies in the current folder
        resolve("MiniGrid-Mine-v0")
    monkeypatch.chdir(tmp_path)
    try:
        vector = make_vector(EnvSpec(env="MiniGrid-Mine-v0", num_envs=2))
        assert list(vector.observation_space) == ["image"]
        vector.close()
        with pytest.raises(EnvError, match="Did you mean 'MiniGrid-Mine-v0'"):
            resolve("MiniGrid-Mien-v0")
    finally:
        sys.modules.pop("minigrid", None)
        importlib.import_module("gymnasium").registry.pop("MiniGrid-Mine-v0", None)


FILE = """
import gymnasium
import raypid

class _Hidden(gymnasium.Env): pass
class Quiet(gymnasium.Wrapper): pass
{more}
"""
ONE = "class One:\n    def reset(self): return [0.0]\n    def step(self, action): return [0.0], 0.0, True, {}\n"
WRAPPED = (
    "class Wrapped(gymnasium.Wrapper):\n    def __init__(self, n=1): super().__init__(gymnasium.make('CartPole-v1'))\n"
)


@pytest.mark.parametrize(
    ("more", "name", "answer"),
    [
        (ONE, "", "One"),
        (ONE, ":One", "One"),
        (ONE + "class Two(One): pass\n", "", "mine.py has 2 environments: One, Two. Name one: '.*mine.py:One'"),
        (ONE + "class Two(One): pass\n", ":Two", "Two"),
        (ONE, ":Oen", "mine.py has no 'Oen'. Did you mean '.*mine.py:One'"),
        (
            "",
            "",
            "has no environment: .* no class with reset and step.*a wrapper needs .* It has _Hidden, Quiet.",
        ),
        (
            "class Half:\n    def step(self, action): pass\n",
            "",
            "no class with reset and step .* It has _Hidden, Quiet, Half.",
        ),
        (WRAPPED, "", "Wrapped"),
        ("raypid.register_env('filed-v0', lambda: gymnasium.make('CartPole-v1'))\n", "", "filed-v0"),
        ("raypid.register_env('filed-v0', lambda: gymnasium.make('CartPole-v1'))\n", ":filed-v0", "filed-v0"),
        ("def make():\n    return gymnasium.make('CartPole-v1')\n", ":make", "make"),
        (
            "def make():\n    return gymnasium.make('CartPole-v1')\n",
            "",
            "It has .* make. If a function makes the environment, name it: .*mine.py:function",
        ),
        ("1 / 0\n", "", "ZeroDivisionError"),
        ("import raypid_nosuch\n", "", r"^[^\n]*mine.py:\d+ imports raypid_nosuch, which is not installed$"),
        (
            "class Half(\n",
            "",
            r"(?s)^Traceback.*mine.py.*\nraypid: .* importing .*mine.py failed: SyntaxError: ",
        ),
    ],
)
def test_environments_in_files(
    more: str, name: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ENVS, "_entries", dict(ENVS._entries))
    (tmp_path / "mine.py").write_text(FILE.format(more=more))
    monkeypatch.chdir(tmp_path)
    if " " in answer or "Error" in answer:
        with pytest.raises(EnvError, match=answer):
            resolve(f"mine.py{name}")
    else:
        assert resolve(f"mine.py{name}").name.endswith(answer)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mine", "'mine.py', or 'mine.py:Name' if it has several"),
        ("mine.One", "'mine.py:One'"),
        ("inner/theirs", "'inner/theirs.py', or"),
        ("inner.theirs", "'inner/theirs.py', or"),
    ],
)
def test_names_of_files_are_answered(name: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    for file in ("mine.py", "inner/theirs.py"):
        (tmp_path / file).write_text(ONE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvError, match=f"Unknown environment '{name}'. Did you mean {meant}"):
        resolve(name)
