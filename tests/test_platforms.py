"""What other systems lack or do otherwise, as far as Linux can show it: what Windows and Apple's GPUs do not have, the spawn start method."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raypid import Agent
from raypid.cli import main

ROOT = Path(__file__).parents[1]

AS_ON_WINDOWS = """
import faulthandler, os, signal, sys
for module in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[module] = None  # importing it raises ImportError
of = {
    faulthandler: "register",
    os: "fork getegid geteuid getgid getpgid getuid killpg mkfifo sched_getaffinity setpgid setsid",
    signal: "ITIMER_REAL SIGALRM SIGHUP SIGTSTP SIGUSR1 SIGUSR2 SIG_BLOCK SIG_SETMASK SIG_UNBLOCK pthread_sigmask setitimer sigpending",
}
for module, names in of.items():
    for name in names.split():
        delattr(module, name)
"""
"""A sitecustomize.py, for a process and those that it starts."""

A_RUN = """
import os
assert not hasattr(os, "fork")
from raypid.cli import main
stop = ["--stop", '{"timesteps_total": 2000}', "--final-episodes", "2"]
assert main(["train", "--run", "PPO", "--env", "CartPole-v1", "--out", "run", "--seed", "0", "--quiet", *stop]) == 0
stop[1] = '{"timesteps_total": 4000}'
assert main(["train", "--resume", "run", "--quiet", *stop]) == 0
assert main(["eval", "run", "--episodes", "2"]) == 0
assert main(["doctor", "run"]) in (0, 1)
assert main(["check-env", "CartPole-v1", "--no-speed", "--seconds", "1"]) in (0, 1)
assert main(["tune", "--run", "PPO", "--env", "CartPole-v1"]) == 2
import raypid
assert raypid.load_policy("run").act([0.0] * 4) in (0, 1)
"""

SPAWNED = """
import multiprocessing
import raypid

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    with raypid.PPO("CartPole-v1", vectorizer="async", num_envs_per_worker=2, fragment_length=16, seed=0) as agent:
        print("steps", agent.train()["timesteps_total"])
"""


def run(program: str, folder: Path, *, windows: bool) -> str:
    (folder / "program.py").write_text(program)
    (folder / "system").mkdir()
    (folder / "system" / "sitecustomize.py").write_text(AS_ON_WINDOWS if windows else "")
    path = [str(folder / "system"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    env["RAYPID_DATA"] = str(folder / ".data")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_with_what_windows_has(tmp_path: Path) -> None:
    said = run(A_RUN, tmp_path, windows=True)
    assert "error" not in said.lower(), said


@pytest.mark.parametrize("windows", [False, True], ids=["macOS", "Windows"])
def test_environments_in_processes_that_are_spawned(windows: bool, tmp_path: Path) -> None:
    assert int(run(SPAWNED, tmp_path, windows=windows).split("steps")[1]) > 0


class Float64Found(TorchDispatchMode):
    """Collects the operations that take or make a tensor of float64."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, made)) if isinstance(x, torch.Tensor)]
        self.seen.add(str(func))
        self.found |= {str(func) for x in tensors if x.dtype == torch.float64}
        return made


REPLAY = {"start_steps": 64, "batch_size": 32, "samples_per_insert": 4.0, "steps_per_iteration": 128}


@pytest.mark.parametrize(
    ("run", "env", "settings"),
    [
        ("PPO", "CartPole-v1", {"kernel": "torch", "fragment_length": 32, "num_epochs": 1}),
        ("PPO", "Pendulum-v1", {"kernel": "torch", "fragment_length": 32, "num_epochs": 1, "normalize_observations": True}),
        ("RAINBOW", "CartPole-v1", REPLAY),
        ("SAC", "Pendulum-v1", {**REPLAY, "start_episodes": 0}),
        ("TD3", "Pendulum-v1", {**REPLAY, "start_episodes": 0, "prioritized": True}),
    ],
)  # fmt: skip
def test_learning_needs_no_float64_which_apples_gpus_lack(run: str, env: str, settings: dict[str, Any]) -> None:
    with Agent(run, env, seed=0, num_envs_per_worker=2, **settings) as agent, Float64Found() as mode:
        for _ in range(2):
            agent.train()
    assert len(mode.seen) > 20 and not mode.found


def test_a_search_is_refused_where_processes_have_no_groups(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr("os.killpg")
    assert main(["tune", "--run", "PPO", "--env", "CartPole-v1"]) == 2
    assert "raypid tune needs Linux or macOS" in capsys.readouterr().err


def test_ctrl_c_waits_for_ray_where_signals_cannot_be_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    from raypid.runtime.ray import _signals_wait

    for name in ("pthread_sigmask", "sigpending", "SIG_BLOCK", "SIG_UNBLOCK", "SIGHUP"):
        monkeypatch.delattr(signal, name)
    before, started = signal.getsignal(signal.SIGINT), False
    with pytest.raises(KeyboardInterrupt), _signals_wait():
        signal.raise_signal(signal.SIGINT)
        started = True
    assert started and signal.getsignal(signal.SIGINT) is before
