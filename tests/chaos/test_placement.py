"""What goes where on clusters of several real nodes, and several runs on one cluster."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def placed(start: Callable[..., Any]) -> Callable[..., Any]:
    """placed("race", 20) -> what tests/chaos/placed.py reports of a cluster with a token of its own."""

    def run(*words: object) -> Any:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
        done = start(*words, python=str(Path(__file__).with_name("placed.py")), **token).finish(500)
        assert done.returncode == 0, done
        return json.loads(done.stdout.rsplit("REPORT", 1)[1])

    return run


def test_what_is_printed_is_where_ray_has_placed_it_and_what_it_has_reserved(placed: Callable[..., Any]) -> None:
    """Nodes of 2, 3 and 2 CPUs; the second declares a GPU."""
    report = placed("plans")
    for name, found in report.items():
        planned = {share["id"]: share["roles"] for share in found["plan"] if share["roles"]}
        assert planned == found["real"], name
        assert found["left"] == found["free"], name
    on = {name: [share["roles"] for share in found["plan"]] for name, found in report.items()}
    assert [roles["server"] for roles in on["servers"]] == [1, 1, 1] and sum(
        "evaluator" in r for r in on["servers"]
    ) == 1
    assert [roles["shard"] for roles in on["shards"]] == [1, 1, 1]
    (gpu,) = (share for share in report["shards"]["plan"] if share["total"]["GPU"])
    assert gpu["roles"]["learner"] == 1 and (gpu["takes"]["GPU"], gpu["left"]["GPU"]) == (1, 0)
    (driver,) = (share for share in report["learners"]["plan"] if share["driver"])
    assert driver["roles"] == {"learner": 2, "other": 1}


def test_of_two_runs_at_the_same_moment_one_is_placed_every_time(placed: Callable[..., Any]) -> None:
    answers = placed("race", 20)["answers"]
    assert len(answers) == 20
    for both in answers:
        (refused,) = (answer for answer in both if answer != "trains")
        assert refused.startswith("refused 3 workers of 1 CPU need 3 CPUs, the cluster now has 2 (free: "), both
        assert "What fits: num_workers=2" in refused


def test_whole_runs_at_once_one_that_is_killed_and_one_that_waits_for_room(placed: Callable[..., Any]) -> None:
    report = placed("full")
    trained, refused = sorted(report["ends"], key=lambda end: end[2])
    assert (trained[2], trained[1]) == (0, "")
    assert refused[2] == 2 and refused[1].startswith(
        "raypid: 3 workers of 1 CPU need 3 CPUs, the cluster now has 2 (free: "
    )
    assert refused[1].count("\n") == 1 and "--fit does it by itself" in refused[1]
    stdout, stderr, code = report["seen"]
    assert (code, stderr) == (0, "") and "takes 1 CPU, leaves " in stdout  # the plan of a cluster that nobody else uses
    assert "Now the cluster is full: " in stdout and "wait_for_room_s=600 waits until there is room" in stdout
    assert report["waited"] and report["free"] >= 3  # what the killed run had, though another one took its part at once
    assert report["end"][2] == 0
