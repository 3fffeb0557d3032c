"""What a killed run on Ray leaves: nothing, and soon."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
TRAIN = (
    "train", "--run", "PPO", "--env", "fragile:Fragile", "--num-workers", 1, "--num-cpus-per-worker", 0.1, "--num-envs-per-worker", 2,
    "--fragment-length", 16, "--batch-size", 32, "--evaluation-interval", 0, "--seed", 0, "--quiet", "--out", "run",
)  # fmt: skip
AGENTS_S = 40.0
"""Ray's agents, left alone, try for 60 s to tell a server that is gone of the end."""


@pytest.mark.slow
def test_nothing_of_a_killed_driver_is_left_nor_of_what_its_environments_started(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """The environment starts a process of its own, which nothing else would end."""
    command = start(*TRAIN, "--env-config", json.dumps({"mode": "spawn", "marker": str(tmp_path / "child")}))
    command.wait_for_results(2)
    assert int((tmp_path / "child").read_text()) in command.processes()
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.wait()
    wait_until(lambda: not command.processes(), AGENTS_S)
    command.assert_nothing_left()


@pytest.mark.slow
def test_ray_that_is_ended_from_outside_is_noticed_and_what_was_learnt_is_saved(start: Callable[..., Any]) -> None:
    """Ray itself would wait for its server for a minute, and then end the driver without a word of ours."""
    command = start(*TRAIN, "--checkpoint-interval", 10_000)
    command.wait_for_results(3)
    (server,) = [pid for pid, line in command.processes().items() if "gcs_server" in line.split()[0]]
    os.kill(server, signal.SIGKILL)
    done = command.finish()
    assert done.returncode == 1 and "Ray's gcs_server was ended from outside" in done.stderr
    assert "Saved: checkpoint_" in done.stderr and list((command.cwd / "run" / "checkpoints").glob("checkpoint_*"))
    command.assert_nothing_left()


@pytest.mark.slow
def test_what_environments_print_does_not_fill_the_disk(start: Callable[..., Any]) -> None:
    """100 kB in each of hundreds of episodes; Ray's log of the worker is cut at 16 MB, and one older is kept."""
    command = start(*TRAIN, "--env-config", json.dumps({"mode": "prints"}))

    def sizes() -> list[int]:
        logs = [
            path
            for path in Path("/tmp/ray").glob(f"session_*_{command.process.pid}/logs/**/worker-*")
            if path.is_file()
        ]
        return [path.stat().st_size for path in logs]

    wait_until(lambda: command.process.poll() is not None or sum(size > 8 << 20 for size in sizes()) >= 2)
    rows = len(command.results())
    command.wait_for_results(rows + 100)
    assert max(sizes()) < 20 << 20 and sum(sizes()) < 40 << 20
    command.ctrl_c()
    assert command.finish().returncode == 0


@pytest.mark.slow
def test_a_driver_that_stood_still_blames_nobody(start: Callable[..., Any]) -> None:
    """Ctrl-Z for longer than calls may take: what was answered meanwhile counts as in time."""
    runs = ("PPO", "IMPALA")
    patience = ("--worker-timeout-s", 4)
    commands = {run: start("train", "--run", run, *TRAIN[3:-1], run, *patience) for run in runs}
    for run, command in commands.items():
        command.wait_for_results(5, run)
        os.kill(command.process.pid, signal.SIGSTOP)
    time.sleep(8)
    for run, command in commands.items():
        os.kill(command.process.pid, signal.SIGCONT)
        command.wait_for_results(len(command.results(run)) + 5, run)
        assert command.results(run)[-1]["lost/timeouts"] == 0
        command.ctrl_c()
        assert command.finish().returncode == 0
