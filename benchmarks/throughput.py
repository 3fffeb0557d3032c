"""Environment steps a second while learning, beside the bound: the same environments with random actions on all cores.

    python benchmarks/throughput.py --env LunarLanderContinuous-v3:2      # environment:workers

Prints a row for each environment and writes them to benchmarks/results/throughput.md. Medians of `--runs` windows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any

import raypid
from raypid.envs import EnvSpec, make_vector
from raypid.tuned import TUNED


def random_rate(env: str, num_envs: int, seconds: float, out: Any) -> None:
    """Steps a second of one process with random actions, put into the queue `out`."""
    vector = make_vector(EnvSpec(env=env, num_envs=num_envs))
    vector.reset()
    vector.action_space.seed(0)
    actions = [batch(vector.action_space, num_envs) for _ in range(64)]
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for action in actions:
            steps += int(vector.step(action).valid.sum())
    out.put(steps / (time.perf_counter() - start))
    vector.close()


def batch(space: Any, num: int) -> Any:
    import numpy as np

    return np.stack([space.sample() for _ in range(num)])


def bound(env: str, num_envs: int, processes: int, seconds: float) -> float:
    """Steps a second of `processes` processes side by side."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    running = [context.Process(target=random_rate, args=(env, num_envs, seconds, out)) for _ in range(processes)]
    for process in running:
        process.start()
    total = sum(out.get() for _ in running)
    for process in running:
        process.join()
    return total


def learning_rate(env: str, workers: int, runs: int, seconds: float) -> tuple[float, dict[str, float]]:
    """(median steps a second over windows, shares of the time) of PPO with the tuned settings."""
    config = dict(TUNED.get(("PPO", env), {}))
    if workers:
        config["num_envs_per_worker"] = max(1, config.get("num_envs_per_worker", 8) // workers)
    with raypid.PPO(env=env, seed=0, num_workers=workers, config=config) as agent:
        for _ in range(3):
            agent.train()
        rates, spent = [], dict.fromkeys(("env", "inference", "transport", "learner"), 0.0)
        for _ in range(runs):
            start, before = time.perf_counter(), agent.context.timesteps
            while time.perf_counter() - start < seconds:
                result = agent.train()
                for name in spent:
                    spent[name] += result[f"timing/{name}"]
            rates.append((agent.context.timesteps - before) / (time.perf_counter() - start))
    total = sum(spent.values())
    return statistics.median(rates), {name: value / total for name, value in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--env", default="CartPole-v1:0,LunarLanderContinuous-v3:0,LunarLanderContinuous-v3:2,HalfCheetah-v5:0"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    lines = [
        "| environment | workers | PPO, steps/s | bound: random actions | of the bound | time: env, inference, transport, learner |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for entry in args.env.split(","):
        env, _, workers = entry.rpartition(":")
        count = int(workers)
        rate, shares = learning_rate(env, count, args.runs, args.seconds)
        limit = bound(env, 16, max(1, count), args.seconds)
        split = ", ".join(f"{share:.0%}" for share in shares.values())
        lines.append(f"| {env} | {count} | {rate:,.0f} | {limit:,.0f} | {rate / limit:.0%} | {split} |")
        print(lines[-1], flush=True)
    print("\n".join(lines))
    out = Path(__file__).parent / "results" / "throughput.md"
    out.parent.mkdir(exist_ok=True)
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
