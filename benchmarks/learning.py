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
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flags import one_of, several, whole

import raypid
from raypid.registry import ALGORITHMS
from raypid.tuned import TUNED

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One algorithm on one environment: the mean return to reach, and the most seconds that it may take."""

    algo: str
    env: str
    threshold: float
    seconds: float
    every: int
    """Environment steps between evaluations."""
    config: dict[str, Any] = field(default_factory=dict)
    """Over the tuned settings, where there are some."""
    backends: tuple[str, ...] = ("local", "ray")
    on_ray: dict[str, Any] = field(default_factory=dict)
    """Settings on Ray, over the others: there a call should carry more."""
    long: bool = False
    """Most of an hour: one seed."""


CONVOLUTIONS = {"network": "cnn", "channels": [8, 16], "hidden": [16]}
"""A small CNN."""
FRAGMENTS = {"fragment_length": 16}
"""On Ray, of replay flows: 16 rows of each stream a call, in place of 1."""

TASKS = {
    "ppo-cartpole": Task(algo="PPO", env="CartPole-v1", threshold=475, seconds=60, every=2_000),
    "ppo-lander": Task(algo="PPO", env="LunarLanderContinuous-v3", threshold=200, seconds=180, every=20_000),
    "ppo-pendulum": Task(algo="PPO", env="Pendulum-v1", threshold=-200, seconds=60, every=10_000),
    "a2c-cartpole": Task(algo="A2C", env="CartPole-v1", threshold=475, seconds=60, every=10_000),
    "ppo-dict-cartpole": Task(algo="PPO", env="raypid/DictCartPole-v0", threshold=475, seconds=60, every=4_000),
    "ppo-multi-discrete": Task(algo="PPO", env="raypid/MultiMatch-v0", threshold=9.5, seconds=60, every=4_000),
    "ppo-catch": Task(algo="PPO", env="raypid/Catch-v0", threshold=0.9, seconds=180, every=4_000),
    "ppo-catch-cnn": Task(
        algo="PPO", env="raypid/Catch-v0", threshold=0.9, seconds=180, every=4_000,
        config={"model": {"network": "cnn"}, "lr": 1e-3, "num_epochs": 4, "fragment_length": 64},
    ),
    "ppo-halfcheetah": Task(algo="PPO", env="HalfCheetah-v5", threshold=3000, seconds=1800, every=200_000, backends=("local",)),
    "dqn-cartpole": Task(algo="DQN", env="CartPole-v1", threshold=475, seconds=90, every=2_000, on_ray=FRAGMENTS),
    "dqn-lander": Task(algo="DQN", env="LunarLander-v3", threshold=200, seconds=600, every=10_000, on_ray=FRAGMENTS),
    "rainbow-cartpole": Task(algo="Rainbow", env="CartPole-v1", threshold=475, seconds=180, every=2_000, on_ray=FRAGMENTS),
    "rainbow-lander": Task(algo="Rainbow", env="LunarLander-v3", threshold=200, seconds=900, every=10_000, on_ray=FRAGMENTS),
    "apex-lander": Task(
        algo="ApeX", env="LunarLander-v3", threshold=200, seconds=900, every=10_000, backends=("ray",),
        config={"num_workers": 4, "num_cpus_per_worker": 0.25},
    ),
    "sqn-cartpole": Task(algo="SQN", env="CartPole-v1", threshold=475, seconds=180, every=2_000, on_ray=FRAGMENTS),
    "sac-cartpole": Task(algo="SAC", env="CartPole-v1", threshold=475, seconds=180, every=2_000, on_ray=FRAGMENTS),
    "sac-lander": Task(
        algo="SAC", env="LunarLanderContinuous-v3", threshold=200, seconds=600, every=5_000, on_ray=FRAGMENTS,
    ),
    "sac-pendulum": Task(algo="SAC", env="Pendulum-v1", threshold=-200, seconds=120, every=1_000, on_ray=FRAGMENTS),
    "td3-lander": Task(
        algo="TD3", env="LunarLanderContinuous-v3", threshold=200, seconds=900, every=5_000, on_ray=FRAGMENTS,
    ),
    "td3-pendulum": Task(algo="TD3", env="Pendulum-v1", threshold=-200, seconds=120, every=1_000, on_ray=FRAGMENTS),
    "ddpg-pendulum": Task(algo="DDPG", env="Pendulum-v1", threshold=-200, seconds=180, every=1_000, on_ray=FRAGMENTS),
    "impala-cartpole": Task(algo="IMPALA", env="CartPole-v1", threshold=475, seconds=60, every=4_000),
    "appo-cartpole": Task(algo="APPO", env="CartPole-v1", threshold=475, seconds=60, every=4_000),
    "appo-lander": Task(algo="APPO", env="LunarLanderContinuous-v3", threshold=200, seconds=180, every=20_000),
    "a3c-cartpole": Task(algo="A3C", env="CartPole-v1", threshold=475, seconds=60, every=4_000),
    "es-cartpole": Task(algo="ES", env="CartPole-v1", threshold=475, seconds=60, every=4_000),
    "es-catch-cnn": Task(
        algo="ES", env="raypid/Catch-v0", threshold=0.9, seconds=180, every=20_000,
        config={"model": CONVOLUTIONS, "population": 128, "num_envs_per_worker": 64, "sigma": 0.1, "lr": 0.05},
    ),
    "ars-catch-cnn": Task(
        algo="ARS", env="raypid/Catch-v0", threshold=0.9, seconds=180, every=20_000,
        config={"model": CONVOLUTIONS, "population": 128, "num_envs_per_worker": 64, "sigma": 0.1, "lr": 0.1},
    ),
    "ars-halfcheetah": Task(algo="ARS", env="HalfCheetah-v5", threshold=2000, seconds=400, every=100_000),
    "ppo-memory-cartpole": Task(algo="PPO", env="raypid/PositionCartPole-v0", threshold=450, seconds=120, every=10_000),
    "impala-memory-cartpole": Task(algo="IMPALA", env="raypid/PositionCartPole-v0", threshold=450, seconds=120, every=10_000),
    "a3c-memory-cartpole": Task(algo="A3C", env="raypid/PositionCartPole-v0", threshold=450, seconds=180, every=10_000),
    "r2d2-memory-cartpole": Task(
        algo="R2D2", env="raypid/PositionCartPole-v0", threshold=450, seconds=180, every=4_000, on_ray=FRAGMENTS,
    ),
    "ppo-tmaze": Task(algo="PPO", env="raypid/TMaze-v0", threshold=0.95, seconds=120, every=10_000),
    "impala-tmaze": Task(algo="IMPALA", env="raypid/TMaze-v0", threshold=0.95, seconds=120, every=20_000),
    "sac-halfcheetah": Task(
        algo="SAC", env="HalfCheetah-v5", threshold=5000, seconds=2400, every=20_000, backends=("local",), long=True,
    ),
    "dqn-pong": Task(
        algo="DQN", env="ALE/Pong-v5", threshold=-15, seconds=3600, every=25_000, backends=("local",), long=True,
        config={"frame_stack": 4},
    ),
}  # fmt: skip


def run_task(name: str, seed: int, backend: str) -> dict[str, Any]:
    """Train until the threshold holds or the time is over; a row of the table."""
    task = TASKS[name]
    config = {**TUNED.get((task.algo, task.env), {}), **task.config, "backend": backend}
    if backend == "ray":
        if not config.get("num_workers"):
            config |= {"num_workers": 2, "num_cpus_per_worker": 0.5}
            algorithm = ALGORITHMS.get(task.algo)
            by_fragment = algorithm.flow == "async" and algorithm.collect == "trajectory"
            if not by_fragment:  # elsewhere an update has the streams of all workers
                config["num_envs_per_worker"] = max(1, config.get("num_envs_per_worker", 8) // 2)
        config |= task.on_ray
    start, evaluated, due, solved, best = time.perf_counter(), 0.0, task.every, False, float("-inf")
    cpu_start, cpu_evaluated = time.process_time(), 0.0
    with getattr(raypid, task.algo)(env=task.env, seed=seed, config=config) as agent:
        while not solved and time.perf_counter() - start - evaluated < task.seconds:
            result = agent.train()
            if result["timesteps_total"] < due:
                continue
            due, before, cpu_before = result["timesteps_total"] + task.every, time.perf_counter(), time.process_time()
            mean = agent.eval(10)["episode_reward_mean"]
            if mean >= task.threshold:
                mean = agent.eval(50, seed=seed + 500_000)["episode_reward_mean"]
                solved = mean >= task.threshold
            best = max(best, mean)
            evaluated += time.perf_counter() - before
            cpu_evaluated += time.process_time() - cpu_before
        cpu_seconds = time.process_time() - cpu_start - cpu_evaluated
        seconds = time.perf_counter() - start - evaluated
    return {
        "task": name, "backend": backend, "seed": seed, "solved": solved, "seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1),
        "steps": agent.context.timesteps, "return": round(mean if solved else best, 2), "threshold": task.threshold,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, one line for each task and backend."""
    lines = [
        "| task | threshold | backend | solved | seconds of each seed | steps of each seed | returns |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in TASKS:
        for backend in TASKS[name].backends:
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
        task = TASKS[name]
        if task.long and args.skip_long:
            continue
        for backend in args.backends:
            seeds = args.seeds
            if backend not in task.backends:
                continue
            if backend == "ray" or task.long:
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
