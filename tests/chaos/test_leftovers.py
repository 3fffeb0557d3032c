"""What a killed run on Ray leaves: nothing, and soon."""

from __future__ import annotations

import json
import os
import signal
import sys
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


@pytest.mark.ci_slow
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
