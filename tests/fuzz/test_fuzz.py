"""The short form of benchmarks/fuzz.py: no altered or crafted input does anything but load or be refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import LOADERS

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"


@pytest.mark.ci_slow
def test_every_loader_withstands_a_hundred_inputs() -> None:
    """In a process of its own, because an audit hook cannot be removed."""
    done = subprocess.run(
        [sys.executable, str(FUZZ), "--inputs", str(100 * len(LOADERS)), "--seed", "1"], capture_output=True, text=True
    )
    assert done.returncode == 0, json.dumps(done.stdout[-4000:] + done.stderr[-2000:])
    assert all(f"{name}: 100 inputs in" in done.stdout for name in LOADERS)
