"""What an environment may do, and what raypid does then: every fault, in training, evaluation and final episodes, in each loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raypid.envs import EnvError
from raypid.report.panel import Quiet
from raypid.run.agent import Agent
from raypid.run.run import Run, RunOptions
from raypid.storage import checkpoint

SMALL = {"num_envs_per_worker": 2, "fragment_length": 30, "batch_size": 32, "seed": 0, "vectorizer": "sync"}
MORE: dict[str, Any] = {
    "PPO": {},
    "IMPALA": {},
    "DQN": {"start_steps": 60, "buffer_size": 1000, "steps_per_iteration": 120},
}
PLAYS = {"evaluation_interval": 1, "evaluation_num_episodes": 2, "evaluation_parallel": False}
RAISES = ["raise", "reset", "sys.exit", "interrupt", "limited leak"]
SPOILS = ["nan", "shape", "dtype", "type", "infinite", "no number"]
KILLS = ["exit", "segfault", "killed", "hang"]


def cell(mode: str, where: str, run: str, on_ray: bool, tmp_path: Path, **more: Any) -> tuple[Agent, Run]:
    """A run of three iterations in which the fault strikes once, after one of them, or before the final episodes."""
    go = tmp_path / "go"
    env_config: dict[str, Any] = {"mode": mode, "marker": str(tmp_path / "struck"), "after": str(go)}
    if mode == "endless":
        env_config = {"length": 10**9}
    else:
        env_config["worker"] = 0 if where == "training" else [1, 2]
    ray = {"num_workers": 1, "worker_timeout_s": 5.0} if on_ray else {"num_workers": 0}
    plays = PLAYS if on_ray else {k: v for k, v in PLAYS.items() if k != "evaluation_parallel"}
    settings = {**SMALL, **plays, **MORE[run], **ray, "env": "fragile:Fragile", "env_config": env_config, **more}
    agent = Agent(run, settings, out=tmp_path / "run")
    options = RunOptions(stop={"training_iteration": 4}, plot=False, final_episodes=10)
    begun = Run(agent, options, Quiet())
    train, finish, when = agent.train, begun._finish, where

    def touching(num_train_steps: int | None = None) -> dict[str, float]:
        if when != "final" and agent.iteration == 1:
            go.touch()
        return train(num_train_steps)

    def finishing(result: Any) -> Any:
        go.touch()
        return finish(result)

    agent.train = touching  # type: ignore[method-assign]
    begun._finish = finishing  # type: ignore[method-assign]
    return agent, begun


def check(mode: str, where: str, run: str, on_ray: bool, tmp_path: Path, **more: Any) -> None:
    agent, begun = cell(mode, where, run, on_ray, tmp_path, **more)
    saved = tmp_path / "run" / "checkpoints"
    with agent:
        if mode in SPOILS:
            with pytest.raises(EnvError, match=r"Environment fragile:Fragile, stream \d, step \d") as caught:
                begun()
            assert caught.value.saved.startswith("Saved: ")  # type: ignore[attr-defined]
            assert checkpoint.latest(saved) is not None
            return
        outcome = begun()
        lost = {kind: agent.context.losses.counts[kind] for kind in ("workers", "timeouts")}
    assert outcome.reason == "training_iteration reached 4" and outcome.checkpoint is not None
    assert (tmp_path / "struck").exists()
    kills = {"workers": int(mode in KILLS and mode != "hang"), "timeouts": int(mode == "hang")}
    assert lost == kills
    crashes = int(mode in RAISES)
    assert agent.num_crashes == crashes
    assert outcome.result["lost/env_crashes"] == (0 if where == "final" else crashes)
    errors = tmp_path / "run" / "errors.txt"
    assert (errors.read_text() if errors.exists() else "").count("raised and was rebuilt") == crashes
    lost_at_the_end = mode in KILLS and where == "final"
    assert (outcome.final is None) == lost_at_the_end


WHERE = ["training", "evaluation", "final"]


@pytest.mark.parametrize("mode", [*RAISES[:3], "nan", "type", "infinite", "huge"])
@pytest.mark.parametrize("where", ["training", "evaluation"])
def test_in_one_process(mode: str, where: str, tmp_path: Path) -> None:
    check(mode, where, "PPO", False, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*RAISES[:3], *SPOILS, "huge", "prints", "slow"])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("run", MORE)
def test_in_one_process_all(mode: str, where: str, run: str, tmp_path: Path) -> None:
    check(mode, where, run, False, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*RAISES[:4], *SPOILS, *KILLS, "huge", "prints", "slow"])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("run", MORE)
def test_on_ray(ray_session: Any, mode: str, where: str, run: str, tmp_path: Path) -> None:
    check(mode, where, run, True, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
def test_a_leak_that_its_process_may_not_have(ray_session: Any, where: str, tmp_path: Path) -> None:
    """Python raises MemoryError; what the environment kept is free again once it is rebuilt."""
    check("limited leak", where, "PPO", True, tmp_path, worker_timeout_s=60.0)
    assert "MemoryError" in (tmp_path / "run" / "errors.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE[:2])
def test_a_leak_that_the_machine_does_not_have(where: str, start: Callable[..., Any], tmp_path: Path) -> None:
    """Ray's memory monitor kills the process, here before the machine is in need."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    total, available = (1024 * int(line.split()[1]) for line in lines if line.startswith(("MemTotal", "MemAvailable")))
    threshold = str(1 - (available - 1.5 * 2**30) / total)  # Ray and a worker take about half of that
    worker = 0 if where == "training" else [1, 2]
    config = json.dumps({"mode": "leak", "worker": worker, "marker": str(tmp_path / "struck")})
    settings = (
        "--num-workers",
        1,
        "--num-cpus-per-worker",
        0.1,
        "--evaluation-interval",
        1,
        "--evaluation-num-episodes",
        2,
    )
    settings += (
        "--num-envs-per-worker",
        2,
        "--fragment-length",
        30,
        "--batch-size",
        32,
        "--evaluation-parallel",
        "false",
    )
    stop = ("--stop", '{"training_iteration": 4}', "--out", "run", "--quiet")
    monitor = {"RAY_memory_usage_threshold": threshold, "RAY_memory_monitor_refresh_ms": "50"}
    command = start(
        "train", "--run", "PPO", "--env", "fragile:Fragile", "--env-config", config, *settings, *stop, **monitor
    )
    done = command.finish()
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "struck").exists()
    assert len(command.results()) == 4 and command.results()[-1]["lost/workers"] == 1
    errors = (tmp_path / "run" / "errors.txt").read_text()
    assert "Worker 0 (fragile:Fragile) ran out of memory in" in errors and "low on memory" in errors
    command.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["raise", "sys.exit", "exit", "segfault", "killed"])
def test_processes_of_their_own_isolate(mode: str, tmp_path: Path) -> None:
    agent, begun = cell(mode, "training", "PPO", False, tmp_path, vectorizer="async", evaluation_interval=0)
    with agent:
        outcome = begun()
    assert outcome.reason == "training_iteration reached 4" and outcome.result["lost/env_crashes"] == 1


@pytest.mark.parametrize("mode", ["constructor", "exits"])
def test_one_that_cannot_be_made(mode: str, tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="could not be made"):
        Agent("PPO", SMALL, env="fragile:Fragile", env_config={"mode": "constructor", "exits": mode == "exits"})


def test_never_ends(tmp_path: Path) -> None:
    """Training goes on; without an ended episode nothing is evaluated by itself, and an evaluation that is asked for is cut."""
    agent, begun = cell("endless", "training", "PPO", False, tmp_path, evaluation_interval=0)
    with agent:
        outcome = begun()
    assert outcome.reason == "training_iteration reached 4" and outcome.final is None


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("os._exit(3)", "Environment 'born:Born' ended its process while it was made (exit code 3)."),
        ("os.kill(os.getpid(), 11)", "Environment 'born:Born' ended its process while it was made (signal 11)."),
        (
            "time.sleep(100)",
            "Environment 'born:Born' was not made within 1 s: its constructor hangs? worker_timeout_s is the limit.",
        ),
    ],
    ids=["exit", "segfault", "hang"],
)
def test_a_constructor_on_ray(body: str, says: str, start: Any, tmp_path: Path) -> None:
    """It is tried in a process of its own, before anything starts."""
    code = f"import os, time\nclass Born:\n    def __init__(self):\n        {body}\n    reset = step = None\n"
    (tmp_path / "born.py").write_text(
        code.replace("reset = step = None", "def reset(self): ...\n    def step(self): ...")
    )
    more = ("--num-workers", 1, "--worker-timeout-s", 1, "--out", "run")
    done = start("train", "--run", "PPO", "--env", "born:Born", *more).finish()
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"raypid: {says}\n")
