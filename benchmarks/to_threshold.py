"""Seconds from the start of the process to a confirmed threshold, raypid and peers in turn on one machine.

Tasks: PPO on CartPole-v1 (cartpole) and LunarLanderContinuous-v3 (lander), DQN on CartPole-v1 (dqn-cartpole), SAC on
LunarLanderContinuous-v3 (sac-lander), APPO and IMPALA on CartPole-v1 with 2 workers on Ray (appo-cartpole, impala-cartpole),
ES on CartPole-v1 (es-cartpole).

A threshold counts when two greedy evaluations in a row hold it, of 10 and then of 50 episodes. The clock is this
process's: from the start of the runner to the line that it prints, evaluation time left out, for everyone alike.

    python benchmarks/to_threshold.py --task cartpole --seeds 9 --peer sbx=SB/bin/python --peer sb3=SB/bin/python
    python benchmarks/to_threshold.py --task lander --seeds 3 --peer sbx=SB/bin/python --peer rllib=RL/bin/python --peer-seeds 1
    python benchmarks/to_threshold.py --task sac-lander --seeds 3 --peer sbx-ratio=SB/bin/python --peer sbx=SB/bin/python

sbx-ratio and sb3-ratio are SBX and Stable-Baselines3 with raypid's number of environments and its ratio of updates to
steps, and RL-Zoo's settings besides (off-policy tasks only).

Peers need environments of their own:
    pip install stable_baselines3==2.9.2 sbx-rl==0.28 box2d==2.3.10 pygame       (SB)
    pip install "ray[rllib]==2.60.0" torch box2d==2.3.10 pygame                   (RL)
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flags import add_results_folder, json_object, positive, results_folder, whole
from reporting import machine

HERE = Path(__file__).parent
ON_TWO_WORKERS = {"num_workers": 2, "num_envs_per_worker": 8}
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {"algo": "PPO", "env": "CartPole-v1", "threshold": 475, "every": 2_000, "max": 120},
    "lander": {
        "algo": "PPO", "env": "LunarLanderContinuous-v3", "threshold": 200, "every": 20_000, "max": 400,
        "config": {"num_workers": 2, "num_envs_per_worker": 8},
    },
    "dqn-cartpole": {"algo": "DQN", "env": "CartPole-v1", "threshold": 475, "every": 2_000, "max": 180},
    "sac-lander": {"algo": "SAC", "env": "LunarLanderContinuous-v3", "threshold": 200, "every": 5_000, "max": 900},
    "appo-cartpole": {
        "algo": "APPO", "env": "CartPole-v1", "threshold": 475, "every": 10_000, "max": 300, "config": ON_TWO_WORKERS,
    },
    "impala-cartpole": {
        "algo": "IMPALA", "env": "CartPole-v1", "threshold": 475, "every": 10_000, "max": 300, "config": ON_TWO_WORKERS,
    },
    "es-cartpole": {"algo": "ES", "env": "CartPole-v1", "threshold": 475, "every": 10_000, "max": 120},
}  # fmt: skip
RUNNERS = {
    "sbx": [str(HERE / "runners/sb3_sbx_run.py"), "--library", "sbx"],
    "sb3": [str(HERE / "runners/sb3_sbx_run.py"), "--library", "sb3"],
    "rllib": [str(HERE / "runners/rllib_run.py")],
}
RATIO = "-ratio"


def same_ratio(task: dict[str, Any]) -> dict[str, Any]:
    """raypid's number of environments and its updates for each step, in the words of Stable-Baselines3."""
    from raypid.plugins.registry import ALGORITHMS
    from raypid.settings.tuned import TUNED

    c = ALGORITHMS.get(task["algo"]).Config()
    c = c.replace({**TUNED.get((task["algo"], task["env"]), {}), **task.get("config", {})})
    num_envs = c.num_envs_per_worker * max(1, c.num_workers)
    updates = c.updates_per_step * num_envs  # for each step of all environments
    return {
        "n_envs": num_envs,
        "train_freq": max(1, round(1 / updates)),
        "gradient_steps": max(1, round(updates)),
    }


def command_of(peer: str, python: str, task: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """How a peer is started. `settings`: over what it takes by itself."""
    name = peer.removesuffix(RATIO)
    own = {**(same_ratio(task) if peer.endswith(RATIO) else {}), **settings}
    command = [python, *RUNNERS[name], "--algo", task["algo"]]
    if name != "rllib":
        return [*command, "--settings", json.dumps(own)]
    envs = task.get("config", {}).get("num_envs_per_worker")
    return [*command, "--envs", str(envs)] if task["algo"] in ("APPO", "IMPALA") else command


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
    parser.add_argument("--seeds", type=whole(), default=3, help="seeds 0..N-1 of raypid")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="sbx, sb3, sbx-ratio, sb3-ratio or rllib and its interpreter",
    )
    parser.add_argument("--peer-seeds", type=whole(0), default=None, help="seeds of each peer (default: as raypid)")
    parser.add_argument(
        "--add", action="store_true", help="keep the stored runs and add those of the peers named (slow peers run once)"
    )
    parser.add_argument("--config", type=json_object, default={}, help="JSON, over raypid's settings")
    parser.add_argument(
        "--settings", type=json_object, default={}, help="JSON, over the settings of SBX and Stable-Baselines3"
    )
    parser.add_argument("--max-seconds", type=positive, default=None, help="of one run (default: the task's)")
    add_results_folder(parser, "runs of 10 seconds")
    args = parser.parse_args()
    task = dict(TASKS[args.task])
    task["config"] = {**task.get("config", {}), **args.config}
    task["max"] = 10 if args.quick else args.max_seconds or task["max"]
    if wrong := [entry for entry in args.peer if "=" not in entry]:
        parser.error(f"argument --peer: expected NAME=PYTHON, not {wrong[0]!r}")
    peers = dict(entry.split("=", 1) for entry in args.peer)
    ours = [
        sys.executable,
        str(HERE / "runners/raypid_run.py"),
        "--algo",
        task["algo"],
        "--config",
        json.dumps(task["config"]),
    ]
    out = results_folder(args) / f"to_threshold_{args.task.replace('-', '_')}.json"
    runs: dict[str, list[dict[str, Any]]] = json.loads(out.read_text())["runs"] if out.exists() and args.add else {}
    for seed in range(args.seeds):
        if not args.add:
            runs.setdefault("raypid", []).append(run(ours, seed, task))
            show("raypid", runs["raypid"][-1])
        for peer, python in peers.items():
            if seed < (args.seeds if args.peer_seeds is None else args.peer_seeds):
                command = command_of(peer, python, task, args.settings)
                runs.setdefault(peer, []).append(run(command, seed, task))
                show(peer, runs[peer][-1])
    table = [
        f"| {args.task}: seconds to {task['threshold']} on {task['env']} | median | min | max | solved | steps/s |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in runs.items():
        seconds = [r["seconds"] for r in rows]
        solved = sum(r["solved"] for r in rows)
        rate = statistics.median(r["steps_per_s"] for r in rows)
        spread = f"{statistics.median(seconds):.1f} | {min(seconds):.1f} | {max(seconds):.1f}"
        what = rows[0]["library"] + (" with raypid's environments and ratio" if name.endswith(RATIO) else "")
        table.append(f"| {what} | {spread} | {solved} of {len(rows)} | {rate:,.0f} |")
    print("\n".join(table))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"task": task, "machine": machine(), "table": table, "runs": runs}, indent=1) + "\n")


def show(name: str, row: dict[str, Any]) -> None:
    print(
        f"{name:9} seed {row['seed']}: {row['seconds']:6.1f} s, {row['steps']:,} steps, return {row['return']:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
