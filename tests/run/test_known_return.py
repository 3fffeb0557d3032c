"""Which return is known for an environment, when a run is measured by it, and what is then suggested."""

from __future__ import annotations

from typing import Any

import pytest

from raypid.run.known_return import known_return, remedies, shortfall
from raypid.tuned import TUNED

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
    assert shortfall({"env": "LunarLander-v3"}, -100.0, 10_000) is None  # the quickest recorded run took far more
    assert shortfall({"env": "Pendulum-v1"}, -1200.0, 100_000) is not None
    assert shortfall({"env": "Pendulum-v1"}, -210.0, 100_000) is None


def test_suggestions_are_what_this_run_has_not_tried() -> None:
    assert remedies("PPO", CARTPOLE, 475)[0].startswith("--tuned (475 in ")
    tuned = CARTPOLE | TUNED["PPO", "CartPole-v1"]
    assert remedies("PPO", tuned, 475)[0].startswith("--run ")  # another one that is recorded to reach it
    assert remedies("PPO", {"env": "Acrobot-v1"}, -100) == ["other settings", "raypid check-env Acrobot-v1"]
