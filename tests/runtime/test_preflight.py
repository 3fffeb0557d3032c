"""Sizes that cannot fit: one line that names the setting, exit code 2, within seconds, before anything starts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from raypid.cli import main
from raypid.runtime.resources import num_cores

PPO = ("train", "--run", "PPO", "--env", "CartPole-v1", "--quiet")
DQN = ("train", "--run", "DQN", "--env", "CartPole-v1", "--quiet")
ES = ("train", "--run", "ES", "--env", "CartPole-v1", "--quiet")
BILLION = 10**9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PPO, "--fragment-length", BILLION], ["--fragment-length 1000000000 needs about", "What fits: --fragment-length"]),
        ([*PPO, "--fragment-length", BILLION, "--num-workers", 1], ["--fragment-length 1000000000 needs about"]),
        ([*PPO, "--model.hidden", "[1000000,1000000]"], ["a network of 2,000,0", "weights (model, frame_stack) needs about"]),
        ([*PPO, "--model.hidden", "[1000000,1000000]", "--num-workers", 1], ["a network of 2,000,0"]),
        ([*PPO, "--num-envs-per-worker", BILLION], ["num_envs_per_worker must be at most 1,000,000, not 1,000,000,000"]),
        ([*PPO, "--num-envs-per-worker", BILLION, "--num-workers", 1], ["num_envs_per_worker must be at most"]),
        ([*PPO, "--num-envs-per-worker", 10**6, "--fragment-length", 10**4], ["--num-envs-per-worker 1000000 needs about"]),
        ([*PPO, "--batch-size", BILLION], ["--batch-size 1000000000 needs about"]),
        ([*PPO, "--frame-stack", BILLION], ["a network of ", "weights (model, frame_stack) needs about"]),
        ([*PPO, "--model.memory", "lstm", "--model.memory-size", 10**6], ["a network of 8,0", "weights (model, frame_stack) needs about"]),
        ([*PPO, "--num-workers", 100_000], ["100000 workers of 1 CPU need 100000 CPUs", "What fits: --num-workers", "--fit"]),
        ([*DQN, "--buffer-size", 10**12], ["--buffer-size 1000000000000 needs about"]),
        ([*DQN, "--buffer-size", 10**12, "--batch-size", 10**11], ["needs about"]),
        ([*DQN, "--num-workers", 100_000, "--num-replay-shards", 100_000, "--batch-size", 100_000, "--buffer-size", 20_000_000], ["100000 workers"]),
        ([*ES, "--noise-table-size", 10**12], ["--noise-table-size 1000000000000 needs about"]),
        ([*ES, "--population", 10**12], ["--population 1000000000000 needs about"]),
        ([*ES, "--num-envs-per-worker", 10**8], ["num_envs_per_worker must be at most"]),
        ([*PPO, "--time-limit", 10**20], ["time_limit must be below 2^63"]),
        ([*PPO, "--num-workers", 10**20], ["num_workers must be below 2^63"]),
        ([*PPO, "--model.hidden", f"[8,{10**20}]"], ["model.hidden must be below 2^63"]),
    ],
)  # fmt: skip
def test_what_cannot_fit_is_refused_at_once(
    arguments: list[object],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "ray" in sys.modules:
        # what other tests of this process have started is not to be joined
        monkeypatch.setattr(sys.modules["ray"], "is_initialized", lambda: False)
    start = time.monotonic()
    code = main([str(a) for a in arguments])
    out, err = capfd.readouterr()
    assert (code, out) == (2, ""), (code, out, err)
    assert err.startswith("raypid: ") and err.count("\n") == 1, err
    assert all(word in err for word in words), err
    assert time.monotonic() - start < 30 and not list(tmp_path.iterdir())


def test_num_cpus_does_not_switch_the_preflight_off(tmp_path: Path) -> None:
    """In a process of its own: this one may have joined a Ray that declares more CPUs."""
    workers = 8 * num_cores()
    command = [
        sys.executable,
        "-m",
        "raypid",
        *PPO,
        "--num-cpus",
        64,
        "--num-workers",
        workers,
        "--out",
        tmp_path / "run",
    ]
    ended = subprocess.run([str(a) for a in command], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout, list(tmp_path.iterdir())) == (2, "", []), ended
    start = f"raypid: {workers} workers of 1 CPU need {workers} CPUs, this machine has {num_cores()}. "
    assert ended.stderr.startswith(f"{start}What fits: --num-workers {num_cores()}, or"), ended.stderr
    assert ended.stderr.count("\n") == 1
