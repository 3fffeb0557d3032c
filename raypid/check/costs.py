"""How fast the environment is in each vector, and what training costs beside it. Runs in the process apart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import cycle
from typing import Any

import gymnasium
import numpy as np

from raypid.check.apart import RESET, STEP
from raypid.check.exam import SEED, Exam
from raypid.check.single import AsOne
from raypid.envs import EnvSpec, make_vector
from raypid.envs.errors import EnvError
from raypid.envs.make import check, choose_vectorizer
from raypid.envs.observation_checks import from_tree, to_tree
from raypid.envs.python_vector import waits
from raypid.envs.resolve import resolve
from raypid.errors import UserError
from raypid.run.agent import Agent
from raypid.runtime.resources import num_cores
from raypid.settings.config import Config
from raypid.spaces import Space
from raypid.types import Tree, tree_map

MILLION = 1_000_000
OWN = ("native", "ale", "envpool")
"""Vectors that environments bring themselves."""
LOOPS, SLOW_S = ("sync", "threads", "processes", "async"), 1e-3
"""Vectors whose speed is worked out from that of single steps, where these take that long: a short look would see too few of them."""
DRAWN = 2_000
"""Steps of a vector that are drawn from those times."""
MOST_S = 0.4
"""Longest measurement of one vector."""
ITERATIONS = {"PPO": 12, "SAC": 6}
"""Most iterations that are measured, after one that warms up."""


# -- vectors -----------------------------------------------------------------------------------------------------------


def measure_vectors(exam: Exam, seconds: float) -> list[dict[str, Any]]:
    """Measure for about `seconds` seconds the steps per second of each way to step `num_envs` environments, the fastest first."""
    spec, until = exam.spec, time.monotonic() + seconds
    names = _candidates(spec, is_vector=isinstance(exam.env, AsOne))
    step_s = exam.mean_times()[0]
    rows: list[dict[str, Any]] = []
    for index, name in enumerate(names):
        allowed = max(0.0, until - time.monotonic()) / (len(names) - index)
        row: dict[str, Any] = {"vectorizer": name, "num_envs": spec.num_envs, "steps_per_s": None, "waits": False}
        is_slow = exam.made_again_s * spec.num_envs > allowed
        most = 1 / worked_out(exam, name, spec.num_envs) if name in LOOPS else np.inf
        if name in LOOPS and (step_s > SLOW_S or is_slow):
            wall, cpu = np.median(exam.usual_times(STEP), 0).tolist()
            row |= {"steps_per_s": most, "waits": waits(wall, cpu), "note": "worked out from single steps"}
        elif is_slow:
            row["note"] = "not measured: it takes too long to make"
        else:
            row |= _measured(replace(spec, vectorizer=name, worker_index=1), exam, min(MOST_S, allowed))
            if row["steps_per_s"]:  # a short look misses what is rare, such as resets that take long
                row["steps_per_s"] = min(row["steps_per_s"], most)
        rows.append(row)
    _, auto = check(spec)
    if auto == "auto":
        in_a_loop = [row["waits"] for row in rows if row["vectorizer"] == "sync"]
        auto = "native" if not in_a_loop else "threads" if in_a_loop[0] else "sync"
    for row in rows:
        row["auto"] = row["vectorizer"] == auto
    return sorted(rows, key=lambda row: -(row["steps_per_s"] or 0.0))


def worked_out(exam: Exam, vectorizer: str, num_envs: int) -> float:
    """Seconds for each step of one of `num_envs` environments, from the times of one: those that were seen, in random order.

    A loop adds them; threads wait for the slowest where the environments wait; processes share the cores where they compute.
    """
    mean_s, length = exam.mean_times()[0], exam.mean_length()
    if vectorizer == "sync" or (vectorizer == "threads" and not exam.waits()):
        return mean_s
    rng, shape = np.random.default_rng(SEED), (DRAWN, num_envs)
    steps, resets = (rng.choice(exam.usual_times(call)[:, 0], shape) for call in (STEP, RESET))
    slowest_s = np.where(rng.random(shape) < 1 / (length + 1), resets, steps).max(1).mean()
    together_s = float(slowest_s / num_envs * (1 + 1 / length))  # a reset takes a row of its own
    return together_s if exam.waits() else max(together_s, mean_s / min(num_envs, num_cores()))


def _candidates(spec: EnvSpec, *, is_vector: bool) -> list[str]:
    """The vectorizers that can step it."""
    resolved, found = resolve(spec.env), []
    for name in (*OWN, *LOOPS):
        with suppress(EnvError):
            choose_vectorizer(replace(spec, vectorizer=name), resolved)
            if resolved.kind != "function" or is_vector == (name == "native"):
                found.append(name)
    return found


def _measured(spec: EnvSpec, exam: Exam, seconds: float) -> dict[str, object]:
    steps, valid, wall, cpu = -1, 0, 0.0, 0.0  # the first warms up
    exam.channel.alive()
    try:
        with closing(make_vector(spec)) as vector:
            exam.channel.alive()
            obs, num = vector.reset(), vector.num_envs
            until = time.perf_counter() + seconds
            while steps < 2 or time.perf_counter() < until:
                exam.channel.alive()
                action = _random_actions(exam, obs, num)
                start, start_cpu = time.perf_counter(), time.thread_time()
                step = vector.step(action)
                obs, steps = step.obs, steps + 1
                if steps:
                    wall, cpu = wall + time.perf_counter() - start, cpu + time.thread_time() - start_cpu
                    valid += int(np.count_nonzero(step.valid))
    except UserError as error:
        return {"note": str(error).splitlines()[-1]}
    return {"steps_per_s": valid / wall, "waits": waits(wall / (steps * num), cpu / (steps * num))}


def _random_actions(exam: Exam, obs: Tree, num: int) -> Tree:
    """Random actions [B, *], such as action masks in `obs` allow."""
    rows = [from_tree(exam.env.observation_space, tree_map(lambda array, i=i: array[i], obs)) for i in range(num)]
    return to_tree(exam.env.action_space, [exam.action(row) for row in rows])


# -- training ----------------------------------------------------------------------------------------------------------


class Replayed(gymnasium.Env[Any, Any]):
    """Gives observations that were seen before, at almost no cost: what remains is the cost of learning."""

    def __init__(self, seen: Sequence[Any], observation: Space, action: Space) -> None:
        self.observation_space, self.action_space = observation, action
        self._observations, self._num_steps = cycle(seen), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return next(self._observations), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        return next(self._observations), self.np_random.standard_normal(), self._num_steps % 100 == 0, False, {}


def measure_training(
    run: str, config: Config, exam: Exam, vectors: list[dict[str, Any]], seconds: float
) -> dict[str, object]:
    """Measure for about `seconds` seconds what the algorithm costs for each step, and add what the environment costs: the time of a million steps.

    Both are measured one after the other and in one process. Evaluations are left out.
    """
    observation, action = exam.env.observation_space, exam.env.action_space

    def replayed() -> Replayed:
        return Replayed(exam.kept, observation, action)

    short = _short_iterations(run, images=any(part.is_picture for part in exam.parts))
    settings = {name: getattr(config, name) for name in ("num_envs_per_worker", "frame_stack")}
    try:
        with Agent(run, {"env": replayed, "vectorizer": "sync", "seed": SEED, **settings, **short}) as agent:
            agent_s, updates = _learned(agent, run, exam, seconds)
    except (UserError, ModuleNotFoundError) as error:
        return {"seconds": None, "env_share": None, "note": f"{run}: {str(error).splitlines()[0]}"}
    rate = next((row["steps_per_s"] for row in vectors if row["auto"]), None)
    env_s = 1 / rate if rate else exam.mean_times()[0]
    return {
        "seconds": MILLION * (env_s + agent_s), "env_share": env_s / (env_s + agent_s), "env_s_per_step": env_s,
        "learning_s_per_step": agent_s, "updates_per_step": updates, "note": "",
    }  # fmt: skip


def _short_iterations(run: str, *, images: bool) -> dict[str, int]:
    """Settings that make an iteration short and leave what a step costs as it is."""
    if run == "PPO":
        return {"fragment_length": 16 if images else 64}
    steps, rows = (8, 512) if images else (64, 4_096)
    return {"start_steps": 256, "buffer_size": rows, "steps_per_iteration": steps}


def _learned(agent: Agent, run: str, exam: Exam, seconds: float) -> tuple[float, float]:
    """(Seconds for each step without the environment, updates for each step) of some iterations."""
    until = time.monotonic() + seconds
    while not agent.num_updates:  # imports, and the rows to start with
        agent.train()
        exam.channel.alive()
    steps, updates, spent = agent.timesteps, agent.num_updates, 0.0
    for _ in range(ITERATIONS[run]):
        result = agent.train()
        exam.channel.alive()
        spent += result["time_this_iter_s"] - result["timing/env"]
        if time.monotonic() > until:
            break
    num = max(1, agent.timesteps - steps)
    return spent / num, (agent.num_updates - updates) / num
