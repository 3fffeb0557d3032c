"""Ctrl-C as a terminal sends it: to every process of the group at once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from raypid.storage import checkpoint

TRAIN = ("train", "--run", "PPO", "--num-envs-per-worker", 2, "--fragment-length", 16, "--batch-size", 32, "--seed", 0)
ENV = ("--env", "fragile:Fragile", "--evaluation-interval", 0, "--out", "run")
KINDS = [
    pytest.param((), id="local"),
    pytest.param(("--num-workers", 2, "--num-cpus-per-worker", 0.1), id="ray"),
    pytest.param(("--vectorizer", "async"), id="async"),
]


BESIDE = (*KINDS[1].values[0], "--evaluation-interval", 1, "--evaluation-parallel", "true")


@pytest.mark.parametrize(
    "kind", [KINDS[0], KINDS[2], pytest.param(BESIDE, id="ray, evaluation beside", marks=pytest.mark.ci_slow)]
)
def test_the_first_one_ends_the_run_with_a_checkpoint(kind: tuple[Any, ...], start: Callable[..., Any]) -> None:
    # iterations of half a second: the signal falls into a fragment
    command = start(*TRAIN, *ENV, "--env-config", json.dumps({"sleep_s": 0.015}), *kind)
    command.wait_for_results(1)
    time.sleep(0.2)
    command.ctrl_c()
    done = command.finish()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("with a checkpoint. Ctrl-C again stops at once, without a checkpoint.\n") == 1
    assert "interrupted" in done.stdout
    rows = command.results()
    newest = checkpoint.latest(command.cwd / "run" / "checkpoints")
    assert newest is not None and newest.name == f"checkpoint_{len(rows):06d}"
    assert rows[-1]["lost/workers"] == rows[-1]["lost/env_crashes"] == rows[-1]["lost/evaluators"] == 0
    assert "50 episodes" not in done.stdout
    command.assert_nothing_left()


@pytest.mark.parametrize("kind", [KINDS[0], pytest.param(*KINDS[1].values, id="ray", marks=pytest.mark.ci_slow)])
def test_the_second_one_ends_it_at_once(kind: tuple[Any, ...], start: Callable[..., Any]) -> None:
    # a step takes an hour from the second episode on: only "at once" ends this
    marker = "at-once-marker"
    config = json.dumps({"mode": "hang", "at": 9, "marker": marker, "length": 10})
    command = start(*TRAIN, *ENV, "--env-config", config, *kind, "--quiet")
    deadline = time.monotonic() + 90
    while not (command.cwd / marker).exists():
        assert time.monotonic() < deadline and command.process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    command.ctrl_c()
    time.sleep(2.5 if "--num-workers" in kind else 0.5)  # Ray looks for signals once a second
    assert command.process.poll() is None
    command.ctrl_c()
    done = command.finish()
    assert done.returncode == 130
    assert done.stderr.endswith("raypid: stopped at once. Nothing was saved.\n") and "Traceback" not in done.stderr
    command.assert_nothing_left()


def test_sigterm_too_ends_it_with_a_checkpoint(start: Callable[..., Any]) -> None:
    command = start(*TRAIN, *ENV, "--env-config", json.dumps({"sleep_s": 0.005}))
    command.wait_for_results(1)
    os.kill(command.process.pid, signal.SIGTERM)
    assert command.finish().returncode == 0
    assert checkpoint.latest(command.cwd / "run" / "checkpoints") is not None
    command.assert_nothing_left()


@pytest.mark.parametrize(
    ("delay_s", "number"),
    [
        pytest.param(s, n, marks=pytest.mark.slow, id=f"{s}-{n.name}")
        for s in (0.1, 0.4, 0.8, 1.5, 2.5, 4.0)
        for n in (signal.SIGINT, signal.SIGTERM)
    ],
)  # fmt: skip
def test_a_signal_to_all_while_it_starts_leaves_nothing(
    delay_s: float, number: signal.Signals, start: Callable[..., Any]
) -> None:
    command = start(*TRAIN, *ENV, "--num-workers", 2, "--num-cpus-per-worker", 0.1)
    time.sleep(delay_s)
    os.killpg(command.process.pid, number)
    done = command.finish()
    assert done.returncode in (0, 128 + number, -number)
    if delay_s > 0.5:
        assert done.stderr in ("", "raypid: stopped at once.\n")
    command.assert_nothing_left()


def test_ctrl_c_in_an_import_is_ctrl_c(start: Callable[..., Any]) -> None:
    command = start("train", "--run", "PPO", "--env", "broken_off:Env")
    done = command.finish()
    assert done.returncode == 130 and "Traceback" not in done.stderr
    command.assert_nothing_left()
