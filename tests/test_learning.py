"""The algorithms reach known returns on known tasks (`benchmarks/learning.py` has the tasks and prints the times)."""

from __future__ import annotations

import pytest
from learning import LONG, TASKS, backends_of, run_task

QUICK = (
    "ppo-cartpole", "ppo-catch", "ppo-pendulum", "a2c-cartpole", "ppo-multi-discrete", "ppo-dict-cartpole", "dqn-cartpole",
)  # fmt: skip
LOCAL = [name for name in TASKS if "local" in backends_of(name) and name not in (*QUICK, *LONG)]
RAY = [name for name in TASKS if "ray" in backends_of(name)]


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
@pytest.mark.parametrize("name", [n for n in LOCAL if n != "ppo-halfcheetah"])
def test_reaches_its_threshold_with_three_seeds(name: str, seed: int) -> None:
    row = run_task(name, seed=seed, backend="local")
    assert row["solved"], row


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in RAY if n != "ppo-cartpole"])
def test_reaches_its_threshold_on_ray_too(name: str, ray_session: None) -> None:
    row = run_task(name, seed=0, backend="ray")
    assert row["solved"], row


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_half_cheetah_runs() -> None:
    row = run_task("ppo-halfcheetah", seed=0, backend="local")
    assert row["solved"], row


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("name", LONG)
def test_reaches_its_threshold_in_most_of_an_hour(name: str) -> None:
    row = run_task(name, seed=0, backend="local")
    assert row["solved"], row
