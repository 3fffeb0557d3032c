"""Simulators that environments start end with them, whatever ends those."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raypid
from raypid.envs import EnvError, EnvSpec, make_vector, sample_apart
from raypid.run.agent import Agent
from raypid.sweep.processes import TrialProcesses

CHAOS = Path(__file__).parents[1] / "chaos"
sys.path.insert(0, str(CHAOS))
from simulator import Simulator, living, most, told  # noqa: E402

SMALL = {"num_envs_per_worker": 2, "fragment_length": 16, "batch_size": 32, "seed": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (folder := tmp_path / "simulators").mkdir()
    yield folder
    for pid in living(folder):
        os.kill(pid, 9)


def spec(folder: Path, mode: str = "", **more: Any) -> EnvSpec:
    return EnvSpec(env=Simulator, env_config={"folder": str(folder), "mode": mode}, **more)


@pytest.mark.parametrize("mode", ["", "raise", "hang", "exit"])
def test_what_looks_at_an_environment_lets_it_close(folder: Path, mode: str) -> None:
    """Also where its steps hang; what ends its own process closes nothing."""
    with suppress(EnvError):
        sample_apart(spec(folder, mode), 1.0 if mode == "hang" else 30.0, lambda found: "steps")
    assert len(living(folder)) == (mode == "exit")
    assert most(folder) <= 2  # one that raises is replaced


@pytest.mark.parametrize("mode", ["", "raise", "exit"])
@pytest.mark.parametrize("vectorizer", ["sync", "threads", "processes", "async"])
def test_a_vector_closes_all_of_its_environments(folder: Path, vectorizer: str, mode: str) -> None:
    """Also where one of them has raised, or has ended its process, whose own are lost with it."""
    if mode == "exit" and vectorizer != "async":
        pytest.skip("it would end this process")
    vector = make_vector(spec(folder, mode, num_envs=4, vectorizer=vectorizer, num_threads=3))
    vector.reset()
    for _ in range(2):
        vector.step(np.zeros(4, np.int64))
    vector.close()
    assert len(living(folder)) == (mode == "exit")


@pytest.mark.parametrize("mode", ["", "raise", "hang"])
def test_check_env_closes_it(folder: Path, mode: str) -> None:
    config = {"folder": str(folder), "mode": mode}
    report = raypid.check_env(Simulator, config, seconds=1.0, timeout_s=2.0, speed=False)
    assert report.ok == (not mode) and not living(folder)
    assert told(folder) == ({(0, 0)} if mode else {(0, 0), (1, 0)})


@pytest.mark.parametrize("limit", [None, 2])
def test_evaluations_live_only_while_they_are_played(folder: Path, limit: int | None) -> None:
    """They are numbered after the workers, and seeded as ever."""
    config = {"folder": str(folder)}
    with Agent("PPO", {**SMALL, "env": Simulator, "env_config": config, "evaluation_num_envs": limit}) as agent:
        played = agent.eval(4)
        assert len(living(folder)) == 2
    assert not living(folder) and most(folder) == 2 + (limit or 4)
    assert told(folder) == {(0, 0), (0, 1)} | {(1, stream) for stream in range(limit or 4)}
    assert played["episodes"] == 4


SCRIPT = """
import sys
sys.path.insert(0, {chaos!r})
import raypid
from simulator import Simulator
agent = raypid.PPO(Simulator, env_config={{"folder": {folder!r}}}, num_envs_per_worker=2, fragment_length=16, num_workers={workers})
agent.train()
"""


@pytest.mark.ci_slow
@pytest.mark.parametrize("workers", [0, 1])
def test_an_agent_that_nobody_closes_is_closed_at_the_end_of_the_program(folder: Path, workers: int) -> None:
    script = SCRIPT.format(chaos=str(CHAOS), folder=str(folder), workers=workers)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert len(list(folder.iterdir())) >= 2 and not living(folder) and most(folder) == 2


@pytest.mark.ci_slow
@pytest.mark.parametrize("mode", ["", "hang", "raise"])
def test_workers_close_their_environments(ray_session: Any, folder: Path, mode: str) -> None:
    settings = {**SMALL, "env": Simulator, "env_config": {"folder": str(folder), "mode": mode}, "max_restarts": 0}
    with Agent("PPO", {**settings, "num_workers": 2, "worker_timeout_s": 5.0, "num_cpus_per_worker": 0.1}) as agent:
        with suppress(RuntimeError, EnvError):
            agent.train()
            agent.eval(3)
        assert most(folder) <= 8
    assert not living(folder)
    assert mode or told(folder) == {(w, s) for w in (0, 1) for s in (0, 1)} | {(2, s) for s in range(3)}


@pytest.mark.ci_slow
@pytest.mark.parametrize("mode", ["", "hang"])
@pytest.mark.parametrize("how", ["kill", "close"])
def test_trials_that_are_ended_close_their_environments(
    folder: Path, tmp_path: Path, mode: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(CHAOS), *filter(None, [os.environ.get("PYTHONPATH")])]))
    settings = {**SMALL, "env": "simulator:Simulator", "env_config": {"folder": str(folder), "mode": mode}}
    order = {
        "run": "PPO", "settings": settings, "below": {}, "folder": str(tmp_path / "trial"), "until": 600.0, "keep": False,
        "on_ray": False, "stop": {}, "before": [0.0, 0.0, 0.0], "first_within": None, "ends_at": math.inf,
    }  # fmt: skip
    processes = TrialProcesses(1, tmp_path / "log")
    processes.start("trial", order)
    until = time.monotonic() + 60
    while len(living(folder)) < 2 and time.monotonic() < until:
        processes.wait(0.1)
    time.sleep(0.5)
    assert len(living(folder)) >= 2, (tmp_path / "log").read_text()
    processes.kill("trial") if how == "kill" else processes.close()
    assert not living(folder)
    processes.close()
