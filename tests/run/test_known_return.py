"""Which return is known for an environment, when a run is measured by it, and what is then suggested."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import pytest

import raypid.run.known_return as known_return_module
from raypid.envs import screen
from raypid.errors import UserError
from raypid.run.known_return import known_return, remedies, shortfall, tuned_runs_here
from raypid.settings.tuned import TUNED

CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "env_config": {}, "time_limit": None, "action_repeat": 1}


def test_the_return_is_gymnasiums_or_that_of_tuned_settings() -> None:
    known = known_return(CARTPOLE)
    assert known is not None and (known.value, known.source) == (475, "Gymnasium's reward_threshold")
    known = known_return({"env": "Pendulum-v1"})
    assert known is not None and (known.value, known.source) == (-200, "raypid's tuned settings")


@pytest.mark.parametrize(
    "changed",
    [{"env_config": {"x": 1}}, {"time_limit": 50}, {"action_repeat": 2}, {"evaluation_env": "x"}, {"env": "raypid/Catch-v0"}, {"env": None}],
)  # fmt: skip
def test_where_returns_are_others_none_is_known(changed: dict[str, Any]) -> None:
    assert known_return(CARTPOLE | changed) is None


def test_a_run_is_measured_if_it_had_a_fair_chance() -> None:
    assert shortfall(CARTPOLE, 128.0, 60_000) is not None
    assert shortfall(CARTPOLE, 440.0, 60_000) is None  # close enough
    assert shortfall(CARTPOLE, 128.0, 5_000) is None
    assert shortfall({"env": "LunarLander-v3"}, -100.0, 100_000) is None  # the quickest recorded run took more
    assert shortfall({"env": "LunarLander-v3"}, -100.0, 400_000) is not None
    assert shortfall({"env": "Pendulum-v1"}, -1200.0, 100_000) is not None
    assert shortfall({"env": "Pendulum-v1"}, -210.0, 100_000) is None


def test_suggestions_are_what_this_run_has_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    (own,) = remedies("PPO", CARTPOLE, 475)
    assert own.command == "raypid train --run PPO --env CartPole-v1 --tuned"
    assert own.why.startswith("its tuned settings: 475 in ")
    tuned = CARTPOLE | TUNED["PPO", "CartPole-v1"]
    (other,) = remedies("PPO", tuned, 475)  # another one that is recorded to reach it
    assert re.fullmatch(r"raypid train --run (?!PPO)\w+ --env CartPole-v1 --tuned", other.command)
    nothing = remedies("PPO", {"env": "Acrobot-v1", "intrinsic_reward": None}, -100)
    assert nothing[0].command == "raypid train --run PPO --env Acrobot-v1 --intrinsic-reward rnd"
    assert [one.command for one in nothing[1:]] in ([], ["raypid tune --run PPO --env Acrobot-v1"])


def test_what_needs_torch_is_not_suggested_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_return_module, "has", lambda extra: False)
    assert not tuned_runs_here("DQN", "CartPole-v1") and not tuned_runs_here("PPO", "raypid/TMaze-v0")
    assert tuned_runs_here("PPO", "CartPole-v1")
    quickest = remedies("PPO", CARTPOLE | TUNED["PPO", "CartPole-v1"], 475)[0].command
    assert any(f"--run {name} " in quickest for name in ("ES", "A2C", "A3C"))
    (look,) = remedies("PPO", {"env": "Acrobot-v1", "intrinsic_reward": None}, -100)
    assert look.command == "raypid check-env Acrobot-v1"


def test_mujoco_is_filmed_only_where_it_can_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(screen, "_way_without_screen", lambda: "")
    assert not screen.draws_mujoco()
    with pytest.raises(UserError, match="^HalfCheetah-v5 cannot be drawn here: there is no screen, .*MUJOCO_GL=egl"):
        screen.choose_mujoco_gl("HalfCheetah-v5")
    monkeypatch.setattr(screen, "_way_without_screen", lambda: "egl")
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    screen.choose_mujoco_gl("HalfCheetah-v5")
    assert os.environ["MUJOCO_GL"] == "glfw"  # the user's
    monkeypatch.delenv("MUJOCO_GL")
    screen.choose_mujoco_gl("HalfCheetah-v5")
    assert os.environ.pop("MUJOCO_GL") == "egl"
