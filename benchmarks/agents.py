"""The documented command, made to fit: how long does it take to 195 with all its values, and to 475 without --batch_size?

    python benchmarks/agents.py --seeds 1000,1001,1002

Each run is the whole command in a process of its own, start of Python and Ray included. The table is written to benchmarks/results/agents.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flags import positive, several, whole

COMMAND = (
    "--env_name", "gym_env", "--agent_name", "default_agent", "--model_name", "ppo", "--num_envs_per_worker", "3", "--num_workers", "3",
    "--gpu", "0,1,2", "--num_gpus", "3", "--num_cpus", "8", "--fit",
)  # fmt: skip
CASES = ((195, ("--batch_size", "10")), (475, ()))


def seconds(goal: float, more: tuple[str, ...], seed: int, limit_s: float) -> float | None:
    """Wall seconds until an evaluation, confirmed by the run itself, reaches `goal`; None if it does not."""
    stop = json.dumps({"evaluation/episode_reward_mean": goal, "time_total_s": limit_s})
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "raypid",
            "train",
            *COMMAND,
            *more,
            "--seed",
            str(seed),
            "--stop",
            stop,
            "--out",
            f"{folder}/run",
        ]
        start = time.perf_counter()
        subprocess.run([*command, "--final-episodes", "0", "--quiet"], check=True)
        took = time.perf_counter() - start
        last = json.loads(Path(folder, "run", "result.json").read_text().splitlines()[-1])
    return took if last.get("evaluation/episode_reward_mean", float("-inf")) >= goal else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=several(whole(0)), default=[1000, 1001, 1002])
    parser.add_argument("--limit", type=positive, default=240.0, help="seconds of training")
    options = parser.parse_args()
    lines = [
        f"`python benchmarks/agents.py --seeds {','.join(map(str, options.seeds))}`, {os.cpu_count()} cores, whole processes on CartPole-v1:",
        f"`raypid train {' '.join(COMMAND)}`",
        "",
        "| goal | beside these values | reached | median s | worst s |",
        "|---|---|---|---|---|",
    ]
    for goal, more in CASES:
        times = [seconds(goal, more, seed, options.limit) for seed in options.seeds]
        solved = [t for t in times if t is not None]
        shown = f"{statistics.median(solved):.1f} | {max(solved):.1f}" if solved else "- | -"
        lines.append(f"| {goal} | {' '.join(more) or 'none'} | {len(solved)} of {len(times)} | {shown} |")
        print(lines[-1], flush=True)
    Path(__file__).with_name("results").joinpath("agents.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
