"""Environment steps a second while learning, beside the bound: the same environments with random actions on all cores.

Of SAC the bound also holds the matrix products of the updates that the steps call for (see sac_update.py), after the
steps in one process, beside them with workers. Of a policy over images it holds the convolutions: acting forward, and
learning forward and backward once for each row, as plain torch calls on all cores, after the environments on all cores.

    python benchmarks/throughput.py --env LunarLanderContinuous-v3:2,SAC/LunarLanderContinuous-v3:0,IMPALA/ALE/Pong-v5:0
                                        # [algorithm/]environment:workers; the algorithm is PPO where none is named

Prints a row for each environment and puts it into benchmarks/results/throughput.md, in place of that of before. Medians of `--runs` windows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any

from flags import positive, several, whole

import raypid
from raypid.envs import EnvSpec, make_vector
from raypid.plugins.registry import ALGORITHMS

MORE: dict[tuple[str, str], dict[str, Any]] = {
    ("IMPALA", "ALE/Pong-v5"): {
        "frame_stack": 4, "model": {"network": "cnn", "hidden": [512], "shared": True}, "num_envs_per_worker": 32, "fragment_length": 20,
        "batch_size": 640, "num_cpus_per_worker": 0.5,
    },
}  # fmt: skip
"""Where the defaults are not what the row is about."""


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


def update_seconds(agent: Any) -> float:
    """Seconds of matrix products for each environment step of an agent that runs SAC; leave torch's threads as they are."""
    from sac_update import bound as products_alone

    c, network = agent.config, agent.network
    sizes = {"obs": network.pipeline.vector_size, "actions": sum(leaf.size for leaf in network.actions)}
    update = products_alone(c.bf16, c.policy_delay, **sizes, hidden=network.hidden[0], batch=c.batch_size)
    times = []
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(c.policy_delay):
            update(None)
        times.append((time.perf_counter() - start) / c.policy_delay)
    return statistics.median(times) * c.updates_per_step


def convolution_seconds(agent: Any) -> float:
    """Seconds of plain torch calls for each row of an actor-critic over images: acting with all streams of a worker, learning
    from a batch; on all cores."""
    import torch

    from raypid.nn.networks import TorchNetwork

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    c, network = agent.config, agent.network
    ((_, shape),) = network.pipeline.images
    layers: list[Any] = [*TorchNetwork(network).module.encoders[0]]
    images = torch.rand(c.batch_size, *shape)
    width = torch.nn.Sequential(*layers)(images[:1]).shape[1]
    for hidden in network.hidden:
        layers += [torch.nn.Linear(width, network.num_trunks * hidden), torch.nn.Tanh()]
        width = network.num_trunks * hidden
    forward = torch.nn.Sequential(*layers)

    def act() -> None:
        with torch.no_grad():
            forward(images[: c.num_envs_per_worker])

    def learn() -> None:
        forward(images).mean().backward()

    acting, learning = median_seconds(act), median_seconds(learn)
    images = images.contiguous(memory_format=torch.channels_last)  # whichever layout is faster here
    acting, learning = min(acting, median_seconds(act)), min(learning, median_seconds(learn))
    return acting / c.num_envs_per_worker + learning / c.batch_size


def median_seconds(call: Any, num: int = 10) -> float:
    times = []
    for _ in range(num + 2):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def learning_rate(
    algo: str, env: str, workers: int, runs: int, seconds: float
) -> tuple[float, dict[str, float], int, float]:
    """With the default settings: median steps a second over windows, shares of the time, environments of a worker, seconds
    of matrix products for each step where they bind."""
    config = dict(MORE.get((algo, env), {}))
    if not workers:
        config.pop("num_cpus_per_worker", None)
    with getattr(raypid, algo)(env=env, seed=0, num_workers=workers, config=config) as agent:
        while agent.iteration < 3 or (algo == "SAC" and agent.context.timesteps < 2 * agent.config.start_steps):
            agent.train()
        rates, spent = [], dict.fromkeys(("env", "inference", "transport", "learner"), 0.0)
        for _ in range(runs):
            start, before = time.perf_counter(), agent.context.timesteps
            while time.perf_counter() - start < seconds:
                result = agent.train()
                for name in spent:
                    spent[name] += result[f"timing/{name}"]
            rates.append((agent.context.timesteps - before) / (time.perf_counter() - start))
        products = update_seconds(agent) if algo == "SAC" else 0.0
        if agent.network.pipeline.images:
            products = convolution_seconds(agent)
        num_envs = agent.config.num_envs_per_worker
    shares = {name: value / sum(spent.values()) for name, value in spent.items()}
    return statistics.median(rates), shares, num_envs, products


def entry_of(text: str) -> str:
    """An environment and its number of workers, such as SAC/LunarLanderContinuous-v3:2."""
    env, _, workers = text.rpartition(":")
    if not env or not workers.isdigit():
        raise argparse.ArgumentTypeError(f"expected ENVIRONMENT:WORKERS, such as CartPole-v1:2, not {text!r}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--env",
        type=several(entry_of),
        default="CartPole-v1:0,LunarLanderContinuous-v3:0,LunarLanderContinuous-v3:2,HalfCheetah-v5:0,"
        "SAC/LunarLanderContinuous-v3:0,SAC/LunarLanderContinuous-v3:2,IMPALA/ALE/Pong-v5:0,IMPALA/ALE/Pong-v5:1",
    )
    parser.add_argument("--runs", type=whole(), default=5)
    parser.add_argument("--seconds", type=positive, default=3.0)
    args = parser.parse_args()
    lines = [
        "| environment | workers | algorithm | steps/s, learning | bound | of the bound | time: env, inference, transport, learner |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for entry in args.env:
        named, _, workers = entry.rpartition(":")
        first, _, rest = named.partition("/")
        algo, env = (first, rest) if first in ALGORITHMS else ("PPO", named)
        count = int(workers)
        rate, shares, num_envs, products = learning_rate(algo, env, count, args.runs, args.seconds)
        limit = bound(env, max(16, num_envs), max(1, count), args.seconds)
        if products:
            beside = count and algo == "SAC"  # the others' cores are all counted already
            limit = min(limit, 1 / products) if beside else 1 / (1 / limit + products)
        split = ", ".join(f"{share:.0%}" for share in shares.values())
        lines.append(f"| {env} | {count} | {algo} | {rate:,.0f} | {limit:,.0f} | {rate / limit:.0%} | {split} |")
        print(lines[-1], flush=True)
    out = Path(__file__).parent / "results" / "throughput.md"
    before = out.read_text().splitlines() if out.exists() else lines[:2]
    rows = {tuple(line.split("|")[1:4]): line for line in [*before, *lines]}  # of those measured again the newer
    print("\n".join(rows.values()))
    out.write_text("\n".join(rows.values()) + "\n")


if __name__ == "__main__":
    main()
