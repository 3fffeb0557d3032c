"""Short forms of benchmarks/soak.py: nothing grows with the calls that are made, and nothing minds a role that stands still."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")]
COMMAND = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def run(out: Path, *arguments: Any) -> None:
    command = [sys.executable, COMMAND, "--quick", "--out", out, *arguments]
    done = subprocess.run([str(part) for part in command], cwd=COMMAND.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done


@pytest.mark.timeout(600)
def test_a_minute_of_calls_leaves_nothing_behind(tmp_path: Path) -> None:
    run(tmp_path, "--minutes", 1, "--every", 2, "--loops", "asynchronous,replay", "--beside")
    rows = json.loads((tmp_path / "soak.json").read_text())["rows"]
    for loop in ("asynchronous", "replay"):
        found = {f"{r['what']}: {r['quantity']}": r for r in rows if r["loop"] == loop}
        assert found["driver: references"]["highest"] < 200  # there were thousands of calls
        assert found["Ray: objects"]["highest"] < 200
        assert all(
            r["last"] <= r["first"] + 10 for r in found.values() if r["quantity"] in ("files", "sockets", "threads")
        )
        assert found["gcs: memory"]["last"] < found["gcs: memory"]["first"] + 5  # a record of calls took 15 MB a minute


@pytest.mark.timeout(900)
@pytest.mark.parametrize("loop", ["asynchronous", "replay"])
def test_a_role_that_stands_still_is_waited_for(loop: str, tmp_path: Path) -> None:
    run(tmp_path, "--pause", 10, "--loops", loop, "--roles", "learner,learners,server,driver")
    rows = json.loads((tmp_path / "soak_pauses.json").read_text())["rows"]
    assert {"learner", "server", "driver"} <= {r["role"] for r in rows}
    for r in rows:
        assert r["lost"] == {} and not r["ended"]
        assert r["during"]["references"] < r["before"]["references"] + 200 and r["during"]["objects"] < 200
