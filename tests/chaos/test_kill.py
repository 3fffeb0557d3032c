"""Workers that die or hang, and a driver that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until

import raypid
from raypid.report.logger import read_results
from raypid.report.panel import Quiet
from raypid.roles.rollout import Rollout
from raypid.run.agent import Agent
from raypid.run.doctor import diagnose, open_run
from raypid.run.run import Run, RunOptions
from raypid.runtime.handle import WorkerLost
from raypid.runtime.supervisor import RolesFailed
from raypid.storage import checkpoint

SMALL = {"num_envs_per_worker": 2, "fragment_length": 30, "batch_size": 32, "seed": 0, "evaluation_interval": 0}
RAY = {**SMALL, "env": "fragile:Fragile", "num_workers": 2}


def drive(agent: Agent, iterations: int) -> dict[str, Any]:
    with agent:
        return Run(agent, RunOptions(stop={"training_iteration": iterations}, plot=False), Quiet())().result


def test_a_worker_killed_while_it_collects(ray_session: Any, tmp_path: Path) -> None:
    agent = Agent("PPO", {**RAY, "env_config": {"sleep_s": 0.01}, "vectorizer": "sync"}, out=tmp_path)
    victim = agent.context.workers.handles[1].actor  # type: ignore[attr-defined]
    pid = ray_session.get(victim.__ray_call__.remote(lambda role: os.getpid()))
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()  # a fragment takes 0.6 s and more
    result = drive(agent, 2)
    rows = read_results(tmp_path)
    assert [row["lost/workers"] for row in rows] == [1, 1] and result["lost/timeouts"] == 0
    # nothing is missing: both workers' shares are in each iteration; every eleventh row is a reset
    valid = 2 * 2 * 30
    assert all(valid * 0.85 < n <= valid for n in (rows[0]["timesteps_total"], result["timesteps_total"] / 2))
    text = (tmp_path / "errors.txt").read_text()
    assert "Worker 1 (fragile:Fragile) died in collect()" in text


def test_an_environment_that_ends_its_process(ray_session: Any, tmp_path: Path) -> None:
    config = {"mode": "exit", "worker": 0, "marker": str(tmp_path / "struck")}
    result = drive(Agent("PPO", {**RAY, "env_config": config}, out=tmp_path / "run"), 2)
    assert (result["lost/workers"], result["lost/env_crashes"]) == (1, 0)


@pytest.mark.ci_slow
def test_an_environment_that_hangs(ray_session: Any, tmp_path: Path) -> None:
    config = {"mode": "hang", "worker": 1, "marker": str(tmp_path / "struck")}
    agent = Agent("PPO", {**RAY, "env_config": config, "worker_timeout_s": 2.0}, out=tmp_path / "run")
    result = drive(agent, 2)
    assert (result["lost/workers"], result["lost/timeouts"]) == (0, 1)
    text = (tmp_path / "run" / "errors.txt").read_text()
    assert "Worker 1 (fragile:Fragile) did not answer within 2 s in collect()" in text
    hung = int((tmp_path / "struck").read_text())
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{hung}"):  # it was killed, not left to sleep
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_more_losses_than_the_budget(ray_session: Any, tmp_path: Path) -> None:
    config = {"mode": "exit", "worker": 0}
    agent = Agent("PPO", {**RAY, "num_workers": 1, "env_config": config, "max_restarts": 1}, out=tmp_path)
    with pytest.raises(RolesFailed, match=r"Worker 0 \(fragile:Fragile\) died in collect\(\).*max_restarts allows 1"):
        drive(agent, 2)
    assert (tmp_path / "errors.txt").read_text().count("Worker 0 (fragile:Fragile) died") >= 2


def test_a_replaced_worker_draws_other_numbers(ray_session: Any) -> None:
    with Agent("PPO", RAY) as agent:
        workers = agent.context.workers
        before = workers.call_all(Rollout.state_dict)
        workers.lose(1, "a test", WorkerLost())
        after = workers.call_all(Rollout.state_dict)
    assert after[0] == before[0] and after[1] not in before


TRAIN = ("train", "--run", "PPO", "--num-envs-per-worker", 2, "--fragment-length", 16, "--batch-size", 32, "--seed", 0)


def test_exit_code_and_message_of_lost_workers(ray_session: Any, in_process: Callable[..., Any]) -> None:
    config = json.dumps({"mode": "exit", "worker": 0})
    more = ("--num-workers", 1, "--num-cpus-per-worker", 0.1, "--max-restarts", 0, "--out", "run", "--quiet")
    done = in_process(*TRAIN, "--env", "fragile:Fragile", "--env-config", config, *more)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("raypid: Worker 0 (fragile:Fragile) died in collect()")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_driver_resumes(
    num_workers: int, start: Callable[..., Any], in_process: Callable[..., Any], tmp_path: Path
) -> None:
    config = json.dumps({"sleep_s": 0.001})
    more = ("--env", "fragile:Fragile", "--env-config", config, "--vectorizer", "sync", "--evaluation-interval", 0)
    more = (*more, "--num-workers", num_workers, "--checkpoint-interval", 2)
    more += ("--num-cpus-per-worker", 0.1) if num_workers else ()
    command = start(*TRAIN, *more, "--out", "run", "--quiet")
    command.wait_for_results(5)
    os.kill(command.process.pid, signal.SIGKILL)
    assert command.finish().returncode == -signal.SIGKILL
    command.assert_nothing_left()
    before = command.results()
    saved = checkpoint.read_manifest(checkpoint.latest(tmp_path / "run" / "checkpoints"))["counters"]["iteration"]
    goal = len(before) + 3
    going_on = ("train", "--resume", "run", "--stop", json.dumps({"training_iteration": goal}), "--quiet")
    if num_workers:
        resumed = start(*going_on)
        done = resumed.finish()
        resumed.assert_nothing_left()
    else:
        done = in_process(*going_on)
    assert (done.returncode, done.stderr) == (0, "")
    rows = command.results()
    assert [row["training_iteration"] for row in rows] == list(range(1, goal + 1))
    assert rows[:saved] == before[:saved]


PATIENT = ("--num-workers", 2, "--num-cpus-per-worker", 0.1, "--num-cpus", 4, "--evaluation-interval", 0, "--seed", 0)
LEARNERS = {
    "PPO": ("--env", "CartPole-v1", "--num-learners", 1, "--checkpoint-interval", 1_000_000),
    "IMPALA": ("--env", "CartPole-v1", "--num-learners", 2, "--checkpoint-interval", 1_000_000),
    "SAC": ("--env", "Pendulum-v1", "--num-learners", 1, "--start-steps", 200, "--steps-per-iteration", 200),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_sigterm_to_all_processes_ends_the_run_in_seconds_and_saves(start: Callable[..., Any]) -> None:
    command = start("train", "--run", "PPO", *PATIENT, *LEARNERS["PPO"], "--out", "run", "--quiet")
    command.wait_for_results(1)
    wait_until(lambda: command.results()[-1]["time_total_s"] > 4)
    started = time.monotonic()
    for pid in command.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    done = command.finish()
    assert time.monotonic() - started < 50  # Ray would wait for its own server for a minute, and then end the process
    assert done.stderr.startswith("Stopping after this iteration") and "saved" in done.stderr.lower(), done
    command.assert_nothing_left()
    assert checkpoint.latest(command.cwd / "run" / "checkpoints") is not None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=pytest.mark.ci_slow if run == "PPO" else pytest.mark.slow) for run in LEARNERS]
)
def test_where_all_of_ray_is_killed_the_copy_of_the_learner_is_saved(run: str, start: Callable[..., Any]) -> None:
    command = start("train", "--run", run, *PATIENT, *LEARNERS[run], "--out", "run", "--quiet")
    command.wait_for_results(1)
    # a copy of what has been learnt comes a second after the start; SAC also saves after ten
    wait_until(lambda: command.results()[-1]["time_total_s"] > (15 if run == "SAC" else 4))
    servers = [pid for pid, line in command.processes().items() if line.split()[0].endswith(("/gcs_server", "/raylet"))]
    assert len(servers) == 2
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    done = command.finish()
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done
    assert "was ended from outside" in done.stderr and "Saved: checkpoint_" in done.stderr
    assert f"The state of the learner{'s' * (run == 'IMPALA')} is that of " in done.stderr
    assert ("The replay buffer is that of checkpoint_" in done.stderr) == (run == "SAC")
    command.assert_nothing_left()
    assert "The state of the learner" in (command.cwd / "run" / "errors.txt").read_text()
    newest = checkpoint.latest(command.cwd / "run" / "checkpoints")
    assert newest is not None
    manifest = checkpoint.read_manifest(newest)
    saved, gone_back = manifest["counters"], manifest["gone_back"]
    assert gone_back in done.stderr
    assert any(gone_back in finding.finding for finding in diagnose(open_run(command.cwd / "run")))
    rows = command.results()
    row = rows[int(saved["iteration"]) - 1]
    assert (saved["timesteps_total"], saved["num_updates"]) == (row["timesteps_total"], row["learner_updates_total"])
    goal = int(saved["iteration"]) + 2
    done = start("train", "--resume", "run", "--stop", json.dumps({"training_iteration": goal}), "--quiet").finish()
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["training_iteration"] for row in command.results()] == list(range(1, goal + 1))


def test_a_run_that_is_killed_before_its_first_checkpoint_begins_anew(
    start: Callable[..., Any], in_process: Callable[..., Any], tmp_path: Path
) -> None:
    words = (
        "train",
        "--run",
        "PPO",
        "--env",
        "fragile:Fragile",
        "--fragment-length",
        16,
        "--batch-size",
        32,
        "--evaluation-interval",
        0,
    )
    again = (*words, "--env-config", '{"sleep_s": 0.01}', "--stop", 10**6, "--out", "run", "--resume")
    command = start(*again)
    command.wait_for_results(1)
    running = in_process(*again)
    assert running.returncode == 2 and "Another run is writing to run" in running.stderr
    command.process.kill()
    command.process.wait()
    assert checkpoint.latest(tmp_path / "run" / "checkpoints") is None
    planned = in_process(*again, "--explain")
    assert "it begins anew" in planned.stdout and read_results(tmp_path / "run")  # --explain drops nothing
    other = in_process("train", "--run", "A2C", "--resume", "run")
    assert (other.returncode, other.stderr) == (
        2,
        "raypid: run holds a run of PPO, not of A2C: leave the algorithm out (raypid.Agent takes any), and the run goes on with its own.\n",
    )
    assert "`raypid train --resume run` begins it anew" in " ".join(in_process("doctor", "run").stdout.split())

    end = ("--stop", '{"training_iteration": 2}', "--env-config", '{"sleep_s": 0.0}')
    done = in_process("train", "--resume", "run", *end)
    steps = read_results(tmp_path / "run")[0]["timesteps_total"]
    assert (
        done.returncode == 0
        and "run was ended before its first checkpoint: it begins anew. Steps lost: " in done.stdout
    )
    assert [row["training_iteration"] for row in read_results(tmp_path / "run")] == [1, 2]
    assert checkpoint.open_checkpoint(tmp_path / "run").path.name == "checkpoint_000002"

    for path in (tmp_path / "run").iterdir():  # no iteration had ended; and from Python
        if path.name != "params.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    outcome = raypid.train(resume="run", quiet=True, final_episodes=0)
    assert outcome.result["training_iteration"] == 2 and read_results(tmp_path / "run")[0]["timesteps_total"] == steps
    outcome = raypid.train("PPO", "fragile:Fragile", out="run", resume=True, init_from="run", tuned=True, quiet=True)
    assert outcome.reason.startswith("training_iteration reached")


def test_a_run_that_lost_its_checkpoints_is_not_begun_anew(in_process: Callable[..., Any], tmp_path: Path) -> None:
    words = (
        "--env",
        "CartPole-v1",
        "--fragment-length",
        16,
        "--stop",
        '{"training_iteration": 1}',
        "--out",
        "run",
        "--quiet",
    )
    assert in_process("train", "--run", "PPO", *words).returncode == 0
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    for again in (("--resume", "run"), ("--run", "PPO", *words, "--resume")):
        done = in_process("train", *again)
        assert done.returncode == 2 and "run holds no checkpoint" in done.stderr, done
    assert (tmp_path / "run" / "best").exists()
