"""How a run ends where nobody can read it, where its folder goes, and at a signal at any moment."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until

from raypid.storage import checkpoint

TRAIN = ("train", "--run", "PPO", "--num-envs-per-worker", 2, "--fragment-length", 16, "--batch-size", 32, "--seed", 0)
ENV = ("--env", "fragile:Fragile", "--evaluation-interval", 0, "--out", "run")
SLOW = ("--env-config", json.dumps({"sleep_s": 0.005}))
RAY = ("--num-workers", 2, "--num-cpus-per-worker", 0.1)
AT_ONCE = "raypid: stopped at once.\n"
ENDS = "Stopping after this iteration, with a checkpoint. Ctrl-C again stops at once, without a checkpoint.\n"
NOW = "Stopping now. Ctrl-C again stops at once.\n"


def as_module(start: Callable[..., Any], *arguments: Any) -> Any:
    return start("raypid", *arguments, python="-m")


@pytest.mark.ci_slow
def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    train = " ".join(map(str, (*TRAIN, *ENV, "--stop", "'{\"training_iteration\": 2}'")))
    script = f"""
    raypid="{sys.executable} -m raypid"
    $raypid {train} > /dev/full 2> full.txt; echo $?
    $raypid {train.replace("run", "closed").replace("--closed", "--run")} >&- 2>&-; echo $?
    $raypid list networks > /dev/full 2> list.txt; echo $?
    $raypid list networks | head -1 > /dev/null; echo ${{PIPESTATUS[0]}}
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["0", "0", "1", "0"] and done.stderr == "", done
    for name in ("full", "list"):
        said = (tmp_path / f"{name}.txt").read_text()
        assert said == "raypid: The output could not be written: No space left on device.\n"
    for name in ("run", "closed"):
        assert checkpoint.open_checkpoint(tmp_path / name).path.name == "checkpoint_000002"
        assert len((tmp_path / name / "result.json").read_text().splitlines()) == 2


@pytest.mark.parametrize("kind", [(), pytest.param(RAY, marks=pytest.mark.slow)], ids=["local", "ray"])
def test_the_end_of_the_terminal(kind: tuple[Any, ...], start: Callable[..., Any]) -> None:
    command = as_module(start, *TRAIN, *ENV, *SLOW, *kind)
    command.wait_for_results(1)
    os.killpg(command.process.pid, signal.SIGHUP)  # the kernel tells every process of the terminal
    done = command.finish()
    assert (done.returncode, done.stderr) == (0, "")
    assert checkpoint.open_checkpoint(command.cwd / "run").path.name == f"checkpoint_{len(command.results()):06d}"
    assert command.results()[-1]["lost/workers"] == 0
    command.assert_nothing_left()


def test_a_folder_that_is_deleted(start: Callable[..., Any]) -> None:
    command = as_module(start, *TRAIN, *ENV, *SLOW, "--quiet")
    command.wait_for_results(1)
    shutil.rmtree(command.cwd / "run")
    done = command.finish()
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    kept = checkpoint.open_checkpoint(command.cwd / "run").path
    assert "result.json was deleted" in done.stderr and f"Saved: {kept.name} and best/ in run;" in done.stderr
    assert "cannot be written" not in done.stderr and "FolderLost" in (command.cwd / "run" / "errors.txt").read_text()
    assert f"checkpoint_{command.results()[-1]['training_iteration']:06d}" == kept.name
    assert json.loads((command.cwd / "run" / "params.json").read_text())["run"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_signals_before_a_run_trains(number: signal.Signals, start: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "slow_import.py").write_text(
        "import pathlib, time\npathlib.Path('importing').touch()\ntry:\n    time.sleep(100)\n"
        "except BaseException as error:\n    raise ImportError('a C extension') from error\n"
    )
    command = as_module(start, "train", "--run", "PPO", "--env", "slow_import:Env")
    wait_until(lambda: (tmp_path / "importing").exists())
    for _ in range(5):
        os.killpg(command.process.pid, number)
    done = command.finish()
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", AT_ONCE)


@pytest.mark.slow
@pytest.mark.timeout(600)  # ten runs
@pytest.mark.parametrize("kind", [(), RAY], ids=["local", "ray"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("times", [1, 5])
def test_signals_at_any_moment(
    kind: tuple[Any, ...], number: signal.Signals, times: int, start: Callable[..., Any], tmp_path: Path
) -> None:
    dice = random.Random(f"{kind} {number} {times}")
    stop = ("--stop", '{"training_iteration": 4}', "--overwrite", "--quiet")
    began = time.monotonic()
    assert as_module(start, *TRAIN, *ENV, *kind, *stop).finish().returncode == 0
    whole_s = time.monotonic() - began
    for _ in range(10 if not kind else 5):
        command = as_module(start, *TRAIN, *ENV, *kind, *stop)
        time.sleep(dice.uniform(0, whole_s))
        send = dice.choice((os.kill, os.killpg))  # `kill` signals one process; a terminal and `timeout` the whole group
        for _ in range(times):
            send(command.process.pid, number)
            time.sleep(0.02)
        done = command.finish()
        before_raypid = done.returncode == -number  # Python itself was starting, or had ended
        assert before_raypid or done.returncode in (0, 128 + number, 130), done
        left = done.stderr.replace(ENDS, "").replace(NOW, "")
        at_once = left.startswith(AT_ONCE.strip()) and left.count("\n") == 1  # what is lost stands behind it
        assert before_raypid or not left or at_once, done.stderr
        for path in checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints"):
            checkpoint.open_checkpoint(path)
        command.assert_nothing_left()
