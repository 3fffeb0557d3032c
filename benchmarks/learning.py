"""Does it learn? Every algorithm on known tasks, three seeds in one process and one on Ray, with the time that it took.

    python benchmarks/learning.py                       # all tasks
    python benchmarks/learning.py --tasks catch,pendulum --seeds 0 --backends local

A threshold counts when two greedy evaluations in a row hold it, of 10 and then of 50 episodes; evaluation time is left
out. On Ray the time includes the start of Ray and its workers. The table is written to benchmarks/results/learning.md.
sac-halfcheetah and dqn-pong take up to 40 and 60 minutes; `--skip-long` leaves them out.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from flags import one_of, several, whole

from raypid.plugins.registry import ALGORITHMS
from raypid.run.reproduce import TUNED_TASKS, Task, measure, versions

RESULTS = Path(__file__).parent / "results"


CONVOLUTIONS = {"network": "cnn", "channels": [8, 16], "hidden": [16]}
"""A small CNN."""

TASKS = {
    "ppo-cartpole": TUNED_TASKS["PPO", "CartPole-v1"],
    "ppo-lander": Task(algo="PPO", env="LunarLanderContinuous-v3", threshold=200, seconds=180, every=20_000),
    "ppo-pendulum": TUNED_TASKS["PPO", "Pendulum-v1"],
    "a2c-cartpole": TUNED_TASKS["A2C", "CartPole-v1"],
    "ppo-dict-cartpole": Task(algo="PPO", env="raypid/DictCartPole-v0", threshold=475, seconds=60, every=4_000),
    "ppo-multi-discrete": Task(algo="PPO", env="raypid/MultiMatch-v0", threshold=9.5, seconds=60, every=4_000),
    "ppo-catch": Task(algo="PPO", env="raypid/Catch-v0", threshold=0.9, seconds=180, every=4_000),
    "ppo-catch-cnn": Task(
        algo="PPO", env="raypid/Catch-v0", threshold=0.9, seconds=180, every=4_000,
        more={"model": {"network": "cnn"}, "lr": 1e-3, "num_epochs": 4, "fragment_length": 64},
    ),
    "ppo-halfcheetah": Task(algo="PPO", env="HalfCheetah-v5", threshold=3000, seconds=1800, every=200_000),
    "dqn-cartpole": TUNED_TASKS["DQN", "CartPole-v1"],
    "dqn-lander": Task(algo="DQN", env="LunarLander-v3", threshold=200, seconds=600, every=10_000),
    "rainbow-cartpole": TUNED_TASKS["Rainbow", "CartPole-v1"],
    "rainbow-lander": TUNED_TASKS["Rainbow", "LunarLander-v3"],
    "apex-lander": TUNED_TASKS["ApeX", "LunarLander-v3"],
    "sqn-cartpole": Task(algo="SQN", env="CartPole-v1", threshold=475, seconds=180, every=2_000),
    "sac-cartpole": Task(algo="SAC", env="CartPole-v1", threshold=475, seconds=180, every=2_000),
    "sac-lander": Task(algo="SAC", env="LunarLanderContinuous-v3", threshold=200, seconds=600, every=5_000),
    "sac-pendulum": Task(algo="SAC", env="Pendulum-v1", threshold=-200, seconds=120, every=1_000),
    "td3-lander": Task(algo="TD3", env="LunarLanderContinuous-v3", threshold=200, seconds=900, every=5_000),
    "td3-pendulum": Task(algo="TD3", env="Pendulum-v1", threshold=-200, seconds=120, every=1_000),
    "ddpg-pendulum": Task(algo="DDPG", env="Pendulum-v1", threshold=-200, seconds=180, every=1_000),
    "impala-cartpole": Task(algo="IMPALA", env="CartPole-v1", threshold=475, seconds=60, every=4_000),
    "appo-cartpole": Task(algo="APPO", env="CartPole-v1", threshold=475, seconds=60, every=4_000),
    "appo-lander": Task(algo="APPO", env="LunarLanderContinuous-v3", threshold=200, seconds=180, every=20_000),
    "a3c-cartpole": TUNED_TASKS["A3C", "CartPole-v1"],
    "es-cartpole": TUNED_TASKS["ES", "CartPole-v1"],
    "es-catch-cnn": Task(
        algo="ES", env="raypid/Catch-v0", threshold=0.9, seconds=180, every=20_000,
        more={"model": CONVOLUTIONS, "population": 128, "num_envs_per_worker": 64, "sigma": 0.1, "lr": 0.05},
    ),
    "ars-catch-cnn": Task(
        algo="ARS", env="raypid/Catch-v0", threshold=0.9, seconds=180, every=20_000,
        more={"model": CONVOLUTIONS, "population": 128, "num_envs_per_worker": 64, "sigma": 0.1, "lr": 0.1},
    ),
    "ars-halfcheetah": TUNED_TASKS["ARS", "HalfCheetah-v5"],
    "ppo-memory-cartpole": TUNED_TASKS["PPO", "raypid/PositionCartPole-v0"],
    "impala-memory-cartpole": TUNED_TASKS["IMPALA", "raypid/PositionCartPole-v0"],
    "a3c-memory-cartpole": TUNED_TASKS["A3C", "raypid/PositionCartPole-v0"],
    "r2d2-memory-cartpole": TUNED_TASKS["R2D2", "raypid/PositionCartPole-v0"],
    "ppo-tmaze": TUNED_TASKS["PPO", "raypid/TMaze-v0"],
    "impala-tmaze": TUNED_TASKS["IMPALA", "raypid/TMaze-v0"],
    "sac-halfcheetah": Task(
        algo="SAC", env="HalfCheetah-v5", threshold=5000, seconds=2400, every=20_000
    ),
    "dqn-pong": TUNED_TASKS["DQN", "ALE/Pong-v5"],
}  # fmt: skip


LONG = ("sac-halfcheetah", "dqn-pong")
"""Tasks that take most of an hour, so that one seed must do."""


def backends_of(name: str) -> tuple[str, ...]:
    """Where a task is measured: in one process and on Ray, unless one of the two takes too long or says nothing."""
    if TASKS[name].backend == "ray":
        return ("ray",)
    return ("local",) if name in (*LONG, "ppo-halfcheetah") else ("local", "ray")


def on(task: Task, backend: str) -> Task:
    """The task on a backend. On Ray it has two workers unless it says otherwise, and with replay 16 rows of each stream a call."""
    if backend == "local" or task.backend == "ray":
        return replace(task, backend=backend)
    algorithm = ALGORITHMS.get(task.algo)
    more: dict[str, Any] = {"num_workers": 2, "num_cpus_per_worker": 0.5}
    if (algorithm.flow, algorithm.collect) != ("async", "trajectory"):  # an update has the streams of all workers
        more["num_envs_per_worker"] = max(1, task.config.get("num_envs_per_worker", 8) // 2)
    if algorithm.flow == "replay":
        more["fragment_length"] = 16
    return replace(task, backend=backend, more={**task.more, **more})


def run_task(name: str, seed: int, backend: str) -> dict[str, Any]:
    """Train until the threshold holds or the time is over; a row of the table."""
    found = measure(on(TASKS[name], backend), seed)
    return {
        "task": name, "backend": backend, "seed": seed, "solved": found.solved, "seconds": found.clock_seconds,
        "cpu_seconds": found.cpu_seconds, "steps": found.steps, "return": found.mean_return, "threshold": TASKS[name].threshold,
        "versions": versions(TASKS[name].env),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, one line for each task and backend."""
    lines = [
        "| task | threshold | backend | solved | seconds of each seed | steps of each seed | returns |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in TASKS:
        for backend in backends_of(name):
            found = [r for r in rows if r["task"] == name and r["backend"] == backend]
            if found:
                columns = (", ".join(f"{r[key]:,}" for r in found) for key in ("seconds", "steps", "return"))
                solved = f"{sum(r['solved'] for r in found)} of {len(found)}"
                task = TASKS[name]
                lines.append(
                    f"| {task.algo} {task.env} ({name}) | {task.threshold:g} | {backend} | {solved} | {' | '.join(columns)} |"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=several(one_of(TASKS)), default=list(TASKS))
    seeds_help = "of the local runs; on Ray and of long tasks the first"
    parser.add_argument("--seeds", type=several(whole(0)), default=[0, 1, 2], help=seeds_help)
    parser.add_argument("--backends", type=several(one_of(("local", "ray"))), default=["local", "ray"])
    parser.add_argument("--skip-long", action="store_true", help="leave out the tasks that take most of an hour")
    args = parser.parse_args()
    store = RESULTS / "learning.json"
    rows: list[dict[str, Any]] = json.loads(store.read_text()) if store.exists() else []
    for name in args.tasks:
        if name in LONG and args.skip_long:
            continue
        for backend in args.backends:
            seeds = args.seeds
            if backend not in backends_of(name):
                continue
            if backend == "ray" or name in LONG:
                seeds = seeds[:1]
            for seed in seeds:
                row = run_task(name, seed, backend)
                print(json.dumps(row), flush=True)
                key = (name, backend, seed)
                rows = [r for r in rows if (r["task"], r["backend"], r["seed"]) != key] + [row]
                RESULTS.mkdir(exist_ok=True)
                store.write_text("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")
    print(table(rows))
    (RESULTS / "learning.md").write_text(table(rows) + "\n")


if __name__ == "__main__":
    main()
