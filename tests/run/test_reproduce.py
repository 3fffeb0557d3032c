"""How tuned settings are measured, what is recorded of them, and which versions it was measured with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raypid.run.reproduce import TUNED_TASKS, measure, other_versions, versions
from raypid.settings import tuned
from raypid.settings.tuned import TUNED, Spread, cells, record, records

ROW = {"algorithm": "PPO", "env": "CartPole-v1", "backend": "local", "threshold": 475, "solved": True, "steps": 10}


def test_every_entry_has_a_task_and_was_measured_by_it() -> None:
    assert set(TUNED) == set(TUNED_TASKS)
    for entry in TUNED:
        if (found := record(*entry)) is not None:
            assert (found.goal, found.backend) == (TUNED_TASKS[entry].threshold, TUNED_TASKS[entry].backend)


def test_the_same_seed_gives_the_same_return_and_evaluations_are_told() -> None:
    told: list[tuple[int, float, float]] = []
    task = replace(TUNED_TASKS["PPO", "CartPole-v1"], every=1_000, threshold=100)
    first = measure(task, 3, tell=lambda *row: told.append(row))
    again = measure(task, 3)
    assert first.solved and (first.steps, first.mean_return) == (again.steps, again.mean_return)
    assert first.mean_return >= 100 and all(steps < first.steps and mean < 500 for steps, _, mean in told)
    assert first.seconds == first.cpu_seconds


def test_a_limit_ends_it_with_a_return() -> None:
    found = measure(replace(TUNED_TASKS["PPO", "CartPole-v1"], seconds=0.001), 0)
    assert not found.solved and 0 < found.mean_return < 475 and found.steps < 2_000


@pytest.mark.parametrize(
    ("env", "packages"),
    [
        ("CartPole-v1", []),
        ("raypid/TMaze-v0", []),
        ("LunarLander-v3", ["Box2D"]),
        ("HalfCheetah-v5", ["mujoco"]),
        ("ALE/Pong-v5", ["ale_py"]),
    ],
)
def test_versions_are_those_of_the_environment(env: str, packages: list[str]) -> None:
    for package in packages:
        pytest.importorskip(package)
    found = versions(env)
    assert list(found) == ["raypid", "gymnasium", *packages] and all(version[0].isdigit() for version in found.values())


def test_other_versions_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    here = versions("CartPole-v1")
    rows = [
        {**ROW, "seed": 1000, "return": 480.0, "seconds": 0.5, "versions": here},
        {**ROW, "seed": 1001, "return": 500.0, "seconds": 0.9, "versions": {**here, "gymnasium": "0.29.1"}},
        {**ROW, "seed": 1002, "return": 300.0, "seconds": 60.0, "solved": False},
    ]
    monkeypatch.setattr(tuned, "_results", lambda: rows)
    found = record("PPO", "CartPole-v1")
    assert found is not None and (found.solved, found.seconds) == (2, Spread(0.7, 0.5, 0.9))
    assert cells("PPO", "CartPole-v1") == ("475", "480 (300 to 500)", "0.7 (0.5 to 0.9)", "2 of 3")
    assert records("CartPole-v1") == []  # one seed has not reached the goal
    now = here["gymnasium"]
    assert other_versions(found) == f"gymnasium is {now}, recorded with {now} and 0.29.1: returns may differ."
    assert other_versions(replace(found, versions={"gymnasium": (now,)})) == ""
    assert record("DQN", "CartPole-v1") is None and cells("DQN", "CartPole-v1")[1] == "not measured yet"
