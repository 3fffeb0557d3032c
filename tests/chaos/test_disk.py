"""A full disk: a clear message, and what was there stays whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raypid import checkpoint

TRAIN = ("train", "--run", "PPO", "--num-envs-per-worker", 2, "--fragment-length", 16, "--batch-size", 32, "--seed", 0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk(small_disk: Path, start: Callable[..., Any], in_process: Callable[..., Any]) -> None:
    run = small_disk / "run"
    more = ("--env", "fragile:Fragile", "--checkpoint-interval", 1, "--evaluation-interval", 0, "--quiet")
    first = in_process(*TRAIN, *more, "--stop", '{"training_iteration": 2}', "--out", run)
    assert (first.returncode, first.stderr) == (0, "")
    rows = (run / "result.json").read_text()
    policy = checkpoint.read_policy(run / "best")[1]
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - 24_000)))
    second = start("train", "--resume", run, "--stop", '{"training_iteration": 500}', "--quiet").finish()
    assert second.returncode == 1 and second.stdout == ""
    assert second.stderr.startswith("raypid: ") and second.stderr.count("\n") == 1, second.stderr
    assert "disk is full" in second.stderr or "No space left" in second.stderr
    # every line is whole, the checkpoint and the policy are readable, nothing unfinished lies about
    now = (run / "result.json").read_text()
    assert now.startswith(rows)
    for line in now.splitlines():
        json.loads(line)
    assert checkpoint.find(run).name >= "checkpoint_000002"
    assert checkpoint.read_policy(run / "best")[1].keys() == policy.keys()
    assert not list(run.rglob(".tmp-*"))
    # with space again it goes on
    (small_disk / "ballast").unlink()
    goal = json.dumps({"training_iteration": len(now.splitlines()) + 2})
    third = in_process("train", "--resume", run, "--stop", goal, "--quiet")
    assert (third.returncode, third.stderr) == (0, "")
