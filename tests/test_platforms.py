"""What other systems lack or do otherwise, as far as Linux can show it: no fcntl (Windows), the spawn start method (macOS, Windows)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

WITHOUT_FCNTL = """
import sys
sys.modules["fcntl"] = None  # importing it raises ImportError
from raypid.cli import main
stop = ["--stop", '{"timesteps_total": 2000}', "--final-episodes", "2"]
assert main(["train", "--run", "PPO", "--env", "CartPole-v1", "--out", "run", "--seed", "0", "--quiet", *stop]) == 0
stop[1] = '{"timesteps_total": 4000}'
assert main(["train", "--resume", "run", "--quiet", *stop]) == 0
assert main(["eval", "run", "--episodes", "2"]) == 0
assert main(["doctor", "run"]) in (0, 1)
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


def run(program: str, folder: Path) -> str:
    (folder / "program.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    env["RAYPID_DATA"] = str(folder / ".data")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_without_fcntl(tmp_path: Path) -> None:
    run(WITHOUT_FCNTL, tmp_path)


def test_environments_in_processes_that_are_spawned(tmp_path: Path) -> None:
    assert int(run(SPAWNED, tmp_path).split("steps")[1]) > 0
