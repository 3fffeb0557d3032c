"""benchmarks/chaos.py: what it measures, and its short form, which kills roles of all three loops."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import chaos
import numpy as np
import pytest
from chaos_faults import ROLES, roles
from chaos_trace import Progress, recovery

USUAL = {"steps": 100.0, "updates": 10.0}


def progress(dips: list[tuple[float, float]], duration: float = 40.0) -> Progress:
    """An iteration each quarter of a second at the usual rate, and nothing between the ends of each dip."""
    times = np.arange(0, duration, 0.25)
    idle = np.array([sum(min(max(t - a, 0.0), b - a) for a, b in dips) for t in times])
    return Progress(times, {what: rate * (times - idle) for what, rate in USUAL.items()})


@pytest.mark.parametrize(
    "dips, expected",
    [([], 0.0), ([(10, 13)], 2.9), ([(12, 14)], 3.9), ([(10, 13), (14, 16)], 5.9), ([(10, 40)], None)],
    ids=["no dip", "at once", "noticed late", "twice", "never"],
)
def test_recovery_is_the_end_of_what_a_loss_did(dips: list[tuple[float, float]], expected: float | None) -> None:
    found = recovery(progress(dips), 10.0, 25.0, USUAL, 1.0)
    assert found is None if expected is None else found == pytest.approx(expected, abs=0.11)


def test_recovery_needs_updates_too() -> None:
    run = progress([])
    run.counts["updates"] = progress([(10, 15)]).counts["updates"]
    assert recovery(run, 10.0, 25.0, USUAL, 1.0) == pytest.approx(4.9, abs=0.11)


def test_the_usual_rate_and_the_width_of_a_window() -> None:
    run = progress([(10, 12)])
    assert run.usual("steps", 0.0, 39.0, 1.0) == pytest.approx(100)
    assert run.width() == 1.0 and math.isclose(Progress(4 * run.times, run.counts).width(), 2.0)


def row(injected: list[str], lost: dict[str, float]) -> dict[str, Any]:
    return {"library": "raypid", "injected": [{"kind": kind} for kind in injected], "lost": lost}


def test_every_loss_is_to_be_counted_and_nothing_else() -> None:
    kills = ["worker", "server", "worker"]
    assert chaos.accounted(row(kills, {"workers": 2, "parameter_servers": 1}))[1]
    assert not chaos.accounted(row(kills, {"workers": 1, "parameter_servers": 1}))[1]
    assert not chaos.accounted(row(kills, {"workers": 2, "parameter_servers": 1, "evaluators": 1}))[1]
    assert chaos.accounted(row(["node-kill"], {"nodes": 1, "workers": 2}))[1]  # which it took with it
    assert not chaos.accounted(row(["node-kill"], {"workers": 2}))[1]
    text, right = chaos.accounted(row(["learner"], {}))
    assert (text, right) == ("learners not counted of 1", False)


def test_processes_without_the_mark_are_nobody_s_roles() -> None:
    assert roles("a mark that nothing has") == {role: [] for role in ROLES}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("task", ["async", "replay"])
def test_all_that_was_killed_is_counted_and_nothing_stays(task: str, tmp_path: Path) -> None:
    """Each kill waits until the one before was counted and training has gone on; then Ctrl-C ends the run."""
    kinds = ["worker", "server", "evaluator", "learner", *["shard"] * (task == "replay")]
    command = [sys.executable, chaos.__file__, "--tasks", task, "--roles", *kinds, "--minutes", "0.3", "--every", "2"]
    done = subprocess.run(
        [*command, "--counted", "--strict", "--patience", "300", "--out", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "chaos.json").read_text())["rows"][0]
    assert {x["kind"] for x in found["injected"]} == set(kinds) and not found["missed"], found
