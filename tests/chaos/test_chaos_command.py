"""benchmarks/chaos.py: what it measures, and its short form, which kills roles of all three loops."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import chaos
import numpy as np
import pytest
from chaos_faults import ROLES, roles
from chaos_trace import Progress, recovery
from patience import wait_until
from processes import marked, with_mark

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


def test_the_median_of_recoveries_is_between_the_middle_two() -> None:
    assert chaos.seconds([1.0, 2.0, 4.0, 9.0]) == "3.0 / 9.0"
    assert chaos.seconds([1.0, 2.0, None, None]) == "not / not (2)"
    assert chaos.seconds([1.0, 2.0, None]) == "2.0 / not (1)"


def stored(fault: str = "kills", **recovery: list[float | None]) -> dict[str, Any]:
    """A row as chaos.json has it."""
    kinds = [kind for kind, values in recovery.items() for _ in values]
    found = row(kinds, {chaos.KINDS[kind]: kinds.count(kind) for kind in kinds}) | {"recovery": recovery}
    return found | {
        "task": "sync", "fault": fault, "minutes": 1.0, "exit": "0", "missed": [], "left": {"processes": [], "shm": []}, "log": [],
    }  # fmt: skip


def test_whether_recovery_was_in_time_is_said_and_is_part_of_what_is_wrong() -> None:
    good, late = stored(worker=[4.9], learner=[9.0]), stored(worker=[4.9, 6.0], learner=[9.0, None])
    assert chaos.targets(good) == ("met: 2 of 2", True) and not chaos.wrong(good)
    assert chaos.targets(late) == ("not met: 2 of 4", False)
    assert chaos.wrong(late) == "recovery in time not met: 2 of 4"
    assert not chaos.wrong(late | {"counted": True})  # there is no undisturbed run that it could be measured by
    assert chaos.targets(stored("stop", stop=[25.0])) == ("", True)  # it has to wait for its time limit


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["chaos.py", *map(str, arguments)])
    return chaos.main()


def test_tables_are_made_from_what_is_stored_without_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chaos, "import_seconds", None)
    with pytest.raises(SystemExit, match="2"):
        run_main(monkeypatch, "--table", "--out", tmp_path)
    assert "there are no rows in" in capsys.readouterr().err and not list(tmp_path.iterdir())
    bare = {"library": "raypid", "task": "sync", "fault": "none", "minutes": 1.0}  # all else is missing
    (tmp_path / "chaos.json").write_text(json.dumps({"rows": [stored(worker=[6.0, 2.0]), bare]}))
    assert run_main(monkeypatch, "--table", "--out", tmp_path) == 0
    assert "| 4.0 / 6.0 | not met: 1 of 2 |" in (tmp_path / "chaos.md").read_text()
    assert run_main(monkeypatch, "--table", "--strict", "--out", tmp_path) == 1
    assert "| raypid | sync (PPO) | none, 1 min |  |  |  |  |  |  |  |  |  |" in (tmp_path / "chaos.md").read_text()


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--minutes", "0"], "above 0"),
        (["--minutes", "0.1"], "Nothing strikes"),
        (["--tasks", "cartpole", "--faults", "worker", "--peer", "/nope/python"], "does not run"),
        (["--tasks", "cartpole", "--roles", "shard"], "cartpole has no shard"),
        (["--settings", "[1]"], "expected JSON"),
    ],
)
def test_flags_are_refused_before_anything_starts(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_main(monkeypatch, *arguments, "--out", tmp_path)
    found = capsys.readouterr()
    assert said in found.err and not found.out


def test_an_undisturbed_run_comes_first_and_once(tmp_path: Path) -> None:
    options = chaos.parser_of_flags().parse_args(
        ["--tasks", "sync", "--faults", "worker", "node-kill", "pause", "--calm-minutes", "3", "--out", str(tmp_path)]
    )
    faults = [(run.fault, run.minutes) for run in chaos.runs_of(options)]
    assert faults == [("none", 3.0), ("worker", 10.0), ("node-none", 3.0), ("node-kill", 10.0), ("pause", 10.0)]


def test_processes_without_the_mark_are_nobody_s_roles() -> None:
    assert roles("a mark that nothing has") == {role: [] for role in ROLES}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_nothing_stays_of_a_command_that_is_told_to_end(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    mark = uuid.uuid4().hex
    here = {"TMPDIR": str(tmp_path / "tmp"), "RAY_TMPDIR": tempfile.gettempdir()}  # whose sockets need a short path
    environment = with_mark(mark, {**os.environ, **here})
    command = [sys.executable, chaos.__file__, "--tasks", "cartpole", "--faults", "worker", "--out", tmp_path / "out"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    wait_until(lambda: any("ray::" in line for line in marked(mark).values()), 120)
    assert list((tmp_path / "tmp").glob("raypid-chaos-*"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert not list((tmp_path / "tmp").glob("raypid-chaos-*"))
    wait_until(lambda: not marked(mark), 60)
    assert "Traceback" not in (tmp_path / "log").read_text()


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
