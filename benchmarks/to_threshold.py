"""Seconds from the start of the process to a confirmed threshold, raypid and peers in turn on one machine.

A threshold counts when two greedy evaluations in a row hold it, of 10 and then of 50 episodes. The clock is this
process's: from the start of the runner to the line that it prints, evaluation time left out, for everyone alike.

    python benchmarks/to_threshold.py --task cartpole --seeds 9 --peer sbx=SB/bin/python --peer sb3=SB/bin/python
    python benchmarks/to_threshold.py --task lander --seeds 3 --peer sbx=SB/bin/python --peer rllib=RL/bin/python --peer-seeds 1

Peers need environments of their own:
    pip install stable_baselines3==2.9.2 sbx-rl==0.28 box2d==2.3.10 pygame       (SB)
    pip install "ray[rllib]==2.60.0" torch box2d==2.3.10 pygame                   (RL)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {"algo": "PPO", "env": "CartPole-v1", "threshold": 475, "every": 2_000, "max": 120},
    "lander": {
        "algo": "PPO", "env": "LunarLanderContinuous-v3", "threshold": 200, "every": 20_000, "max": 400,
        "config": {"num_workers": 2, "num_envs_per_worker": 8},
    },
}  # fmt: skip
RUNNERS = {
    "sbx": [str(HERE / "runners/sb3_sbx_run.py"), "--library", "sbx"],
    "sb3": [str(HERE / "runners/sb3_sbx_run.py"), "--library", "sb3"],
    "rllib": [str(HERE / "runners/rllib_run.py")],
}


def run(command: list[str], seed: int, task: dict[str, Any]) -> dict[str, Any]:
    """One runner; its row with `seconds` filled in."""
    arguments = [
        "--env",
        task["env"],
        "--threshold",
        task["threshold"],
        "--seed",
        seed,
        "--max-seconds",
        task["max"],
        "--every",
        task["every"],
    ]
    start = time.perf_counter()
    with subprocess.Popen(
        [*command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        line = ""
        for line in process.stdout:
            if line.startswith("{"):
                break
        seconds = time.perf_counter() - start
        process.stdout.read()
        errors = process.stderr.read()
    if not line.startswith("{"):
        raise RuntimeError(f"{command} ended without a result:\n{errors[-2000:]}")
    row: dict[str, Any] = json.loads(line)
    return row | {"seconds": seconds - row["evaluation_s"], "seed": seed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0..N-1 of raypid")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PYTHON", help="sbx, sb3 or rllib and its interpreter"
    )
    parser.add_argument("--peer-seeds", type=int, default=None, help="seeds of each peer (default: as raypid)")
    parser.add_argument(
        "--add", action="store_true", help="keep the stored runs and add those of the peers named (slow peers run once)"
    )
    args = parser.parse_args()
    task = TASKS[args.task]
    peers = dict(entry.split("=", 1) for entry in args.peer)
    ours = [
        sys.executable,
        str(HERE / "runners/raypid_run.py"),
        "--algo",
        task["algo"],
        "--config",
        json.dumps(task.get("config", {})),
    ]
    out = HERE / "results" / f"to_threshold_{args.task}.json"
    runs: dict[str, list[dict[str, Any]]] = json.loads(out.read_text())["runs"] if out.exists() and args.add else {}
    for seed in range(args.seeds):
        if not args.add:
            runs.setdefault("raypid", []).append(run(ours, seed, task))
            show("raypid", runs["raypid"][-1])
        for peer, python in peers.items():
            if seed < (args.seeds if args.peer_seeds is None else args.peer_seeds):
                runs.setdefault(peer, []).append(run([python, *RUNNERS[peer]], seed, task))
                show(peer, runs[peer][-1])
    table = [
        f"| {args.task}: seconds to {task['threshold']} on {task['env']} | median | min | max | solved | steps/s |",
        "|---|---|---|---|---|---|",
    ]
    for rows in runs.values():
        seconds = [r["seconds"] for r in rows]
        solved = sum(r["solved"] for r in rows)
        rate = statistics.median(r["steps_per_s"] for r in rows)
        spread = f"{statistics.median(seconds):.1f} | {min(seconds):.1f} | {max(seconds):.1f}"
        table.append(f"| {rows[0]['library']} | {spread} | {solved} of {len(rows)} | {rate:,.0f} |")
    print("\n".join(table))
    out.parent.mkdir(exist_ok=True)
    machine = {
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
    }
    out.write_text(json.dumps({"task": task, "machine": machine, "table": table, "runs": runs}, indent=1) + "\n")


def show(name: str, row: dict[str, Any]) -> None:
    print(
        f"{name:7} seed {row['seed']}: {row['seconds']:6.1f} s, {row['steps']:,} steps, return {row['return']:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
