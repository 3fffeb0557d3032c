"""The algorithms reach known returns on known tasks (`benchmarks/learning.py` has the tasks and prints the times)."""

from __future__ import annotations

import pytest
from learning import TASKS, run_task

QUICK = ("ppo-cartpole", "ppo-catch", "ppo-pendulum", "a2c-cartpole", "ppo-multi-discrete", "ppo-dict-cartpole")


@pytest.mark.ci_slow
@pytest.mark.parametrize("name", QUICK)
def test_reaches_its_threshold_in_one_process(name: str) -> None:
    row = run_task(name, seed=0, backend="local")
    assert row["solved"], row


@pytest.mark.ci_slow
def test_reaches_its_threshold_on_ray(ray_session: None) -> None:
    row = run_task("ppo-cartpole", seed=0, backend="ray")
    assert row["solved"], row


@pytest.mark.slow
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", [n for n in TASKS if n not in QUICK and n != "ppo-halfcheetah"])
def test_reaches_its_threshold_with_three_seeds(name: str, seed: int) -> None:
    row = run_task(name, seed=seed, backend="local")
    assert row["solved"], row


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in TASKS if TASKS[n].on_ray and n != "ppo-cartpole"])
def test_reaches_its_threshold_on_ray_too(name: str, ray_session: None) -> None:
    row = run_task(name, seed=0, backend="ray")
    assert row["solved"], row


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_half_cheetah_runs() -> None:
    row = run_task("ppo-halfcheetah", seed=0, backend="local")
    assert row["solved"], row
