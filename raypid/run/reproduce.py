"""Measures how long tuned settings take to reach their return, for raypid's own records and for `raypid reproduce`."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from raypid.envs.resolve import package_of, resolve
from raypid.run.agent import Agent
from raypid.run.known_return import tuned_runs_here
from raypid.run.resolve import SettledRun
from raypid.settings.tuned import TUNED, Record
from raypid.types import Array

CHECK_EPISODES, CONFIRM_EPISODES = 10, 50
"""Greedy episodes of an evaluation, and of the one that must confirm it."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One algorithm on one environment: the mean return to reach, and the most seconds of training that it may take, by the clock."""

    algo: str
    env: str
    threshold: float
    seconds: float
    every: int
    """Environment steps between evaluations."""
    backend: str = "local"
    more: dict[str, Any] = field(default_factory=dict)
    """Settings that override the tuned ones."""

    @property
    def config(self) -> dict[str, Any]:
        """The settings of its runs."""
        return {**TUNED.get((self.algo, self.env), {}), **self.more, "backend": self.backend}


_TASKS = (
    Task(algo="A2C", env="CartPole-v1", threshold=475, seconds=60, every=10_000),
    Task(algo="A3C", env="CartPole-v1", threshold=475, seconds=60, every=4_000),
    Task(algo="A3C", env="raypid/PositionCartPole-v0", threshold=450, seconds=180, every=10_000),
    Task(algo="ARS", env="HalfCheetah-v5", threshold=2000, seconds=400, every=100_000),
    Task(
        algo="ApeX", env="LunarLander-v3", threshold=200, seconds=900, every=10_000, backend="ray",
        more={"num_workers": 4, "num_cpus_per_worker": 0.25},
    ),
    Task(algo="DQN", env="ALE/Pong-v5", threshold=-15, seconds=3600, every=25_000, more={"frame_stack": 4}),
    Task(algo="DQN", env="CartPole-v1", threshold=475, seconds=90, every=2_000),
    Task(algo="ES", env="CartPole-v1", threshold=475, seconds=60, every=4_000),
    Task(algo="IMPALA", env="raypid/PositionCartPole-v0", threshold=450, seconds=120, every=10_000),
    Task(algo="IMPALA", env="raypid/TMaze-v0", threshold=0.95, seconds=120, every=20_000),
    Task(algo="PPO", env="CartPole-v1", threshold=475, seconds=60, every=2_000),
    Task(algo="PPO", env="Pendulum-v1", threshold=-200, seconds=60, every=10_000),
    Task(algo="PPO", env="raypid/PositionCartPole-v0", threshold=450, seconds=120, every=10_000),
    Task(algo="PPO", env="raypid/TMaze-v0", threshold=0.95, seconds=120, every=10_000),
    Task(algo="R2D2", env="raypid/PositionCartPole-v0", threshold=450, seconds=180, every=4_000),
    Task(algo="Rainbow", env="CartPole-v1", threshold=475, seconds=180, every=2_000),
    Task(algo="Rainbow", env="LunarLander-v3", threshold=200, seconds=900, every=10_000),
)  # fmt: skip
TUNED_TASKS = {(task.algo, task.env): task for task in _TASKS}
"""(algorithm, environment) -> how the tuned settings for it are measured."""


class Measurement(NamedTuple):
    """The cost of training to a task's return, without evaluations."""

    backend: str
    solved: bool
    steps: int
    mean_return: float
    """The return of the evaluation that confirmed the threshold, or else the best return."""
    clock_seconds: float
    cpu_seconds: float
    """CPU time of this process with all its threads, without Ray's workers."""

    @property
    def seconds(self) -> float:
        """The seconds that are recorded: CPU time in one process, where a busy machine does not matter; wall time on Ray."""
        return self.cpu_seconds if self.backend == "local" else self.clock_seconds


Tell = Callable[[int, float, float], None]
"""Gets (environment steps, seconds as recorded, mean return) of each evaluation that does not reach the goal."""


def measure(task: Task, seed: int, tell: Tell | None = None) -> Measurement:
    """Train until two greedy evaluations in a row reach the task's threshold, or the time is over.

    Raises:
        UserError: a package is missing or a setting does not fit; nothing has been trained then.
    """
    prepare(task)
    start, spent, due, solved, best = _clocks(), np.zeros(2), task.every, False, float("-inf")
    with Agent(run=task.algo, env=task.env, seed=seed, config=task.config) as agent:
        is_over = False
        while not solved and not is_over:
            agent.train()
            spent += _clocks() - start  # the first time with the start of the agent, always without evaluations
            is_over = spent[0] >= task.seconds
            if agent.timesteps >= due or (is_over and best == float("-inf")):
                due = agent.timesteps + task.every
                mean = agent.eval(CHECK_EPISODES)["episode_reward_mean"]
                if mean >= task.threshold:
                    mean = agent.eval(CONFIRM_EPISODES, seed=seed + 500_000)["episode_reward_mean"]
                    solved = mean >= task.threshold
                best = max(best, mean)
                if tell is not None and not solved:
                    tell(agent.timesteps, spent[1 if task.backend == "local" else 0], mean)
            start = _clocks()
        clock, cpu = (round(float(seconds), 1) for seconds in spent)
        return Measurement(task.backend, solved, agent.timesteps, round(mean if solved else best, 2), clock, cpu)


def prepare(task: Task) -> None:
    """Check that a task can be trained here. In one process, also import what it needs, which must not count as training.

    Raises:
        UserError: a package is missing or a setting does not fit.
    """
    resolve(task.env)
    if task.backend == "local":
        Agent(run=task.algo, env=task.env, config=task.config).close()


def _clocks() -> Array:
    """Seconds of the clock and of this process's CPU time."""
    return np.array([time.perf_counter(), time.process_time()])


def versions(env: str) -> dict[str, str]:
    """Installed versions {package: version} of what determines returns: raypid, Gymnasium and the environment's package."""
    packages = dict.fromkeys(("raypid", "gymnasium", package_of(env)))
    return {package: str(importlib.import_module(package).__version__) for package in packages}


def other_versions(record: Record) -> str:
    """Say which packages have another version here than in the record; "" if they agree or the record has no versions."""
    here = versions(record.env)
    changed = [name for name, version in here.items() if record.versions.get(name, (version,)) != (version,)]
    texts = [f"{name} is {here[name]}, recorded with {' and '.join(record.versions[name])}" for name in changed]
    return f"{'; '.join(texts)}: returns may differ." if texts else ""


def hints(agent: Agent, run: SettledRun, how: str) -> list[str]:
    """Return notes at the start of a run: if it is resumed, where it goes on; if it is new, that it leaves tuned settings unused.

    Args:
        run: the run as it was asked for.
        how: the option or argument that asks for tuned settings.
    """
    if run.saved is not None:
        rows = " with its replay buffer" if agent.replay_restored else ""
        return [f"Going on from step {agent.timesteps:,} (iteration {agent.iteration}){rows}."]
    env, tuned = str(run.config.env), run.request.tuned
    is_repeated = run.request.recorded_run is not None
    if not tuned and not is_repeated and (run.run, env) in TUNED and tuned_runs_here(run.run, env):
        return [f"{run.run} has tuned settings for {env}: {how} uses them."]
    return []
