"""Kill the driver at random moments, saves included, and resume every run that has a checkpoint.

python tests/chaos/kills.py [--runs 200] [--seed 0]        # about 5 s for each; the first that does not resume ends it with 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from raypid.cli import main as raypid
from raypid.report.logger import read_results
from raypid.storage import checkpoint

FAST = (
    "--num-envs-per-worker",
    "2",
    "--evaluation-interval",
    "0",
    "--checkpoint-interval",
    "1",
    "--final-episodes",
    "0",
    "--quiet",
)
REPLAY = (
    "--start-steps",
    "32",
    "--batch-size",
    "8",
    "--steps-per-iteration",
    "16",
    "--buffer-size",
    "2000",
    "--save-replay",
    "true",
)
KINDS = {
    "PPO": ("--run", "PPO", "--fragment-length", "16", "--batch-size", "32"),
    "DQN": ("--run", "DQN", "--samples-per-insert", "1", *REPLAY),
}
RAY = ("--num-workers", "1", "--num-cpus-per-worker", "0.1")


def killed(folder: Path, flags: tuple[str, ...], wait_s: float, rng: random.Random) -> bool:
    """Train, and kill the driver `wait_s` seconds after the first result; returns if there is a checkpoint then."""
    command = [sys.executable, "-m", "raypid", "train", "--env", "CartPole-v1", "--out", str(folder), *flags, *FAST]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    results, deadline = folder / "result.json", time.monotonic() + 120
    while not (results.exists() and results.stat().st_size) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.002)
    time.sleep(wait_s)
    if rng.random() < 0.5:  # while a checkpoint is being written
        while (
            not list((folder / "checkpoints").glob(".tmp-*")) and time.monotonic() < deadline and process.poll() is None
        ):
            time.sleep(0.0005)
        time.sleep(rng.random() * 0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return bool(checkpoint.list_checkpoints(folder / "checkpoints"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ray", type=int, default=0, help="so many of the runs have a worker on Ray")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    counts = {"resumed": 0, "without a checkpoint": 0, "killed within a save": 0}
    for number in range(options.runs):
        name = rng.choice(list(KINDS))
        with tempfile.TemporaryDirectory(prefix="kills-") as place:
            folder = Path(place) / "run"
            if not killed(folder, (*KINDS[name], *(RAY if number < options.ray else ())), rng.random(), rng):
                counts["without a checkpoint"] += 1
                continue
            counts["killed within a save"] += bool(list((folder / "checkpoints").glob(".[to]*-*")))
            found = checkpoint.open_checkpoint(folder).path
            iteration = int(checkpoint.read_manifest(found)["counters"]["iteration"])
            goal = json.dumps({"training_iteration": iteration + 2})
            code = raypid(
                [
                    "train",
                    "--resume",
                    str(folder),
                    "--stop",
                    goal,
                    "--num-workers",
                    "0",
                    "--final-episodes",
                    "0",
                    "--quiet",
                ]
            )
            rows = [row["training_iteration"] for row in read_results(folder)]
            if code or rows != list(range(1, iteration + 3)):
                print(f"run {number} ({name}), killed after {found.name}: exit code {code}, iterations {rows}")
                return 1
            counts["resumed"] += 1
            if number % 10 == 9:
                print(f"{number + 1} runs, seed {options.seed}: {counts}", flush=True)
    print(f"{options.runs} runs, seed {options.seed}: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
