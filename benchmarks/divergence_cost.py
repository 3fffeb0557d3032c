"""What it costs to look for numbers that are not finite: environment steps a second while learning, with the checks and without.

    python benchmarks/divergence_cost.py --pairs 150 --seconds 0.3

Windows with and without the checks alternate in one process and one run, the first of each pair changing places. They are short and many,
because the speed of a machine drifts more than the checks cost. Prints the medians of the pairs' ratios with their 95% intervals, and
writes them to benchmarks/results/divergence_cost.md. Without the checks means: none of updates and actions, no
`np.errstate` around acting and observations (one around each update stays), and rewards checked as they were before.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import raypid
from raypid.envs import observation_checks, vector
from raypid.roles import acting, learner, replay, worker

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("PPO", "CartPole-v1", {}),
    ("PPO", "LunarLanderContinuous-v3", {}),
    ("SAC", "LunarLanderContinuous-v3", {}),
    ("DQN", "CartPole-v1", {}),
]
QUIET: list[tuple[type, str]] = [
    (acting.EnvironmentLoop, "act"),
    (acting.EnvironmentLoop, "_to_env"),
    (worker.FragmentWorker, "_complete"),
    (replay.Replay, "add"),
    (observation_checks.ObservationLayout, "check"),
]
"""Methods that are decorated with `np.errstate`."""


def by_squares(reward: Any, given: Any) -> None:
    """The former check of rewards, where these are finite."""
    assert math.isfinite(reward.dot(reward))


@contextlib.contextmanager
def without_checks() -> Iterator[None]:
    """Take all checks away."""
    with contextlib.ExitStack() as stack:
        for owner, name in QUIET:
            stack.enter_context(mock.patch.object(owner, name, vars(owner)[name].__wrapped__))
        stack.enter_context(mock.patch.object(learner.Learner, "_check_update", lambda *args: None))
        stack.enter_context(mock.patch.object(acting, "check_action", lambda *args: None))
        stack.enter_context(mock.patch.object(vector, "check_rewards", by_squares))
        yield


def window(agent: raypid.Agent, seconds: float) -> float:
    """Steps a second of this process's own time, in a window of training."""
    steps, start, clock = agent.timesteps, time.process_time(), time.perf_counter()
    while time.perf_counter() - clock < seconds:
        agent.train()
    return (agent.timesteps - steps) / (time.process_time() - start)


def ratios(agent: raypid.Agent, pairs: int, seconds: float) -> tuple[list[float], float]:
    """Rate with the checks over rate without, of each pair; and the median rate with them."""
    found, rates = [], []
    for pair in range(pairs):
        rate = {}
        for checked in (pair % 2 == 0, pair % 2 == 1):
            with contextlib.nullcontext() if checked else without_checks():
                rate[checked] = window(agent, seconds)
        found.append(rate[True] / rate[False])
        rates.append(rate[True])
    return found, statistics.median(rates)


def median_interval(found: list[float]) -> tuple[float, float, float]:
    """Upper end, median and lower end of its 95% interval, by ranks: a count of pairs above the median is binomial."""
    found, half = sorted(found), 0.98 * math.sqrt(len(found))
    middle = (len(found) - 1) / 2
    return (
        found[min(len(found) - 1, math.ceil(middle + half))],
        statistics.median(found),
        found[max(0, math.floor(middle - half))],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "divergence_cost.md")
    options = parser.parse_args()
    lines = [
        f"`python benchmarks/divergence_cost.py --pairs {options.pairs} --seconds {options.seconds:g}`, {os.cpu_count()} cores.",
        "Steps a second of CPU time, all in one process; the cost is 1 - the median ratio of pairs, with the 95% interval of that median.",
        "",
        "| algorithm | environment | steps/s with checks | cost | 95% interval |",
        "|---|---|---|---|---|",
    ]
    for run, env, settings in CASES:
        with raypid.Agent(run, {"env": env, "seed": 0, "num_threads": 1, **settings}) as agent:
            while not agent.num_updates:
                agent.train()
            window(agent, 3.0)
            found, rate = ratios(agent, options.pairs, options.seconds)
        low, middle, high = (100 * (1 - ratio) for ratio in median_interval(found))
        lines.append(f"| {run} | {env} | {rate:,.0f} | {middle:.1f}% | {low:.1f}% to {high:.1f}% |")
        print(lines[-1], flush=True)
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
