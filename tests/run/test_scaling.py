"""The short form of benchmarks/scaling.py: all workers come up, deliver, none is lost, and the tables can be made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCALING = Path(__file__).parents[2] / "benchmarks" / "scaling.py"
WORKERS = 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_workers_deliver_and_none_is_lost(tmp_path: Path) -> None:
    short = ["--workers", f"1,{WORKERS}", "--seconds", "3", "--folder", str(tmp_path)]
    done = subprocess.run([sys.executable, str(SCALING), *short], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "scaling.json").read_text())
    assert set(found["rows"]) == {"A3C", "PPO", "ES"}
    for algorithm, rows in found["rows"].items():
        row = rows[str(WORKERS)]
        assert row["delivered"] == row["roles"]["worker"]["num"] == WORKERS
        assert row["lost"]["workers"] == row["lost"]["timeouts"] == 0, algorithm
        assert row["steps_per_s"] > rows["1"]["steps_per_s"]  # they wait, so even a busy machine gains by them
        assert row["updates_per_s"] > 0
        assert row["up_s"] > 0 and found["empty"][str(WORKERS)]["roles"]["worker"]["num"] == WORKERS
        assert all(role["memory"] > 0 for role in row["roles"].values())
    assert "as many empty actors" in (tmp_path / "scaling.md").read_text()
