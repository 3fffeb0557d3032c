"""Whether storages should be recycled: rollouts in fresh arrays (as raypid makes them) against rollouts in preallocated buffers.

    python benchmarks/storages.py --seconds 15

A rollout worker in one process collects fragments of 80 rows, and 60 of them are held, as by `DistributedAgent(num_storages=60)`. The
oldest is let go before the next is collected: fresh, its arrays are freed; recycled, its buffers are free for the next one, whose rows are
written into them step by step. Both take turns in one process and one run, the first of each pair changing places. Prints medians of
their CPU time, the median ratio of the pairs with its 95% interval, and the memory of processes of their own that hold 60 of either kind; and writes
them to benchmarks/results/storages.md.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from divergence_cost import median_interval
from flags import positive
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from raypid.envs import EnvSpec, Step
from raypid.nn.catalog import build_spec
from raypid.nn.networks import TorchNetwork
from raypid.nn.numpy_mlp import initial_mlp
from raypid.roles.acting import RolloutSpec
from raypid.roles.worker import TrajectoryWorker
from raypid.settings.config import ModelConfig
from raypid.types import Report, Trajectory, Tree, Weights, tree_stack

ROWS, STORAGES = 80, 60
CASES = {f"{kind}, {b}": (kind, b) for kind in ("84x84x4 uint8", "8 float32") for b in (1, 8)}


class Frames(VectorEnv[Any, Any, Any]):
    """Gives out observations that it has already: an environment that takes next to no time. Episodes of 100 steps."""

    def __init__(self, num_envs: int, *, images: bool) -> None:
        single = spaces.Box(0, 255, (84, 84, 4), np.uint8) if images else spaces.Box(-9, 9, (8,), np.float32)
        self.num_envs, self.single_observation_space, self.single_action_space = num_envs, single, spaces.Discrete(4)
        self.observation_space = batch_space(single, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.observation_space.seed(0)
        self.bank = [self.observation_space.sample() for _ in range(10)]
        self.zeros, self.none, self.steps = np.zeros(num_envs), np.zeros(num_envs, bool), 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.bank[0], {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        ended = np.full(self.num_envs, self.steps % 100 == 0)
        return self.bank[self.steps % 10], self.zeros, self.none, ended, {}


def images(num_envs: int) -> Frames:
    """An environment with images."""
    return Frames(num_envs, images=True)


def vectors(num_envs: int) -> Frames:
    """An environment with 8 floats."""
    return Frames(num_envs, images=False)


class Recycled(TrajectoryWorker):
    """Writes the rows of a fragment into the buffers of a storage, which `free` has. For observations and actions that are one array."""

    def __init__(self, spec: RolloutSpec) -> None:
        super().__init__(spec)
        self.free: deque[dict[str, Any]] = deque()

    def buffers(self, obs: Any, action: Any) -> dict[str, Any]:
        """The buffers of a new storage."""
        b = self.env.num_envs
        flags = {name: np.zeros((ROWS, b), bool) for name in ("terminated", "truncated", "valid")}
        columns = {"reward": np.zeros((ROWS, b), np.float32), "first": np.zeros((ROWS + 1, b), bool), **flags}
        columns["obs"] = np.zeros((ROWS + 1, *obs.shape), obs.dtype)
        columns["action"] = np.zeros((ROWS, *action.shape), action.dtype)
        return columns

    def clear_rows(self) -> None:
        super().clear_rows()
        self.t, self.storage = 0, None

    def step(self, action: Tree) -> Step:
        if self.storage is None:
            self.storage = self.free.popleft() if self.free else self.buffers(self.obs, action)
            self.storage["obs"][0], self.storage["first"][0] = self.obs, self.first
        step, s, t = super(TrajectoryWorker, self).step(action), self.storage, self.t
        for rows in (self.rows.actions, self.rows.obs, self.rows.first):
            del rows[1:]
        s["action"][t], s["reward"][t], s["terminated"][t] = action, step.reward, step.terminated
        s["truncated"][t], s["valid"][t] = step.truncated, step.valid
        s["obs"][t + 1], s["first"][t + 1] = self.obs, self.first
        self.t = t + 1
        return step

    def finish(self) -> tuple[Report, Trajectory]:
        rows, before, s = self.rows, time.perf_counter(), self.storage
        assert s is not None
        trajectory = Trajectory(
            **s,
            behaviour={k: np.stack([a.behaviour[k] for a in rows.acted]) for k in rows.acted[0].behaviour},
            state=rows.state,
            stream=np.arange(self.env.num_envs),
            version=self.policy.version,
        )
        self._complete(trajectory, rows)
        self._inference_s += time.perf_counter() - before
        report = Report(self.worker_index, trajectory.num_valid, trajectory.version)
        for episode in rows.episodes:
            self.report_episode(report, episode)
        self._collecting = False
        report.timing = self.timing()
        return report, trajectory

    def release(self, t: Trajectory) -> None:
        """Make the buffers of a fragment free again."""
        names = ("obs", "first", "action", "reward", "terminated", "truncated", "valid")
        self.free.append({name: getattr(t, name) for name in names})


def built(case: str, *, recycled: bool) -> tuple[TrajectoryWorker, Weights]:
    """A worker for a case, and what it acts with: the smallest CNN that makes sense, so that storing counts most, or the default network."""
    kind, num_envs = CASES[case]
    env = images if "x" in kind else vectors
    model = ModelConfig(channels=(4,), hidden=(16,)) if env is images else ModelConfig()
    single = env(1)
    network = build_spec(single.single_observation_space, single.single_action_space, model)
    spec = RolloutSpec(
        env=EnvSpec(env=env, num_envs=num_envs, vectorizer="native", seed=0),
        network=network,
        fragment_length=ROWS,
        seed=0,
    )
    if network.torch_free:
        size = network.pipeline.vector_size
        weights = Weights(0, initial_mlp(network, size, np.random.default_rng(0)), network.mlp_table(size))
    else:
        made = TorchNetwork(network)
        weights = Weights(0, made.numpy(), made.table)
    return (Recycled(spec) if recycled else TrajectoryWorker(spec)), weights


def collector(case: str, *, recycled: bool) -> Callable[[], Trajectory]:
    """A function that lets go of the oldest of 60 fragments, where there are as many, and collects one."""
    worker, weights = built(case, recycled=recycled)
    held: deque[Trajectory] = deque()

    def collect() -> Trajectory:
        if len(held) == STORAGES:
            oldest = held.popleft()
            if isinstance(worker, Recycled):
                worker.release(oldest)
            del oldest
        held.append(worker.collect(weights)[1])
        return held[-1]

    return collect


def storing(case: str, *, recycled: bool) -> Callable[[], object]:
    """A function that stores 80 rows and does nothing else: the largest part of a rollout that recycling can change."""
    kind, b = CASES[case]
    single = spaces.Box(0, 255, (84, 84, 4), np.uint8) if "x" in kind else spaces.Box(-9, 9, (8,), np.float32)
    obs = [batch_space(single, b).sample() for _ in range(ROWS + 1)]
    small = [np.zeros(b, np.float32)] * ROWS
    held: deque[Any] = deque()

    def store() -> object:
        oldest = held.popleft() if len(held) == STORAGES else None
        if not recycled:
            del oldest
            held.append((tree_stack(obs), *(np.stack(small) for _ in range(6))))
            return held[-1]
        if oldest is None:
            oldest = (
                np.zeros((ROWS + 1, *obs[0].shape), obs[0].dtype),
                *(np.zeros((ROWS, b), np.float32) for _ in range(6)),
            )
        for t in range(ROWS):
            oldest[0][t] = obs[t]
            for column in oldest[1:]:
                column[t] = small[t]
        oldest[0][ROWS] = obs[ROWS]
        held.append(oldest)
        return oldest

    return store


def in_pairs(fresh: Callable[[], object], recycled: Callable[[], object], seconds: float) -> str:
    """CPU times of both in turn, as cells of a table: medians in ms, recycled over fresh with its interval."""
    for _ in range(STORAGES + 5):
        fresh()
        recycled()
    times: dict[bool, list[float]] = {False: [], True: []}
    ratios, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        for kind in (False, True) if len(ratios) % 2 else (True, False):
            start = time.process_time()
            (recycled if kind else fresh)()
            times[kind].append(time.process_time() - start)
        ratios.append(times[True][-1] / times[False][-1])
    high, middle, low = median_interval(ratios)
    ms = [1e3 * statistics.median(times[kind]) for kind in (False, True)]
    return f"{ms[0]:.3g} ms | {ms[1]:.3g} ms | {middle:.3f} ({low:.3f} to {high:.3f}), {len(ratios)}"


def memory(case: str, *, recycled: bool) -> str:
    """In this process: MB resident with 60 storages held and after 60 more were made, and the most at any time."""
    collect = collector(case, recycled=recycled)
    status = Path("/proc/self/status")

    def read(name: str) -> float:
        found = re.search(rf"{name}:\s+(\d+)", status.read_text())
        assert found is not None
        return int(found[1]) / 1024

    for _ in range(STORAGES):
        collect()
    once = read("VmRSS")
    for _ in range(STORAGES):
        collect()
    return f"{once:.0f}, {read('VmRSS'):.0f}, {read('VmHWM'):.0f} MB"


def alone(case: str, kind: str) -> str:
    """What `memory` says in a process of its own."""
    command = [sys.executable, __file__, "--memory", kind, "--case", case]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=positive, default=15, help="of each measurement")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "storages.md")
    parser.add_argument("--memory", choices=("fresh", "recycled"), help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        print(memory(options.case, recycled=options.memory == "recycled"))
        return
    lines = [
        f"`python benchmarks/storages.py --seconds {options.seconds:g}`, {os.cpu_count()} cores, one process, {ROWS} rows, {STORAGES} rollouts held.",
        "",
        "| CPU time: observation, environments | fresh | recycled | recycled / fresh (95% interval), pairs |",
        "|---|---|---|---|",
    ]
    print(*lines, sep="\n", flush=True)
    for case in CASES:
        for what, make in (("a whole rollout", collector), ("storing its rows alone", storing)):
            cells = in_pairs(make(case, recycled=False), make(case, recycled=True), options.seconds)
            lines.append(f"| {case}: {what} | {cells} |")
            print(lines[-1], flush=True)
    lines += [
        "",
        f"| memory: with {STORAGES} held, after {STORAGES} more, the most at any time | fresh | recycled |",
        "|---|---|---|",
    ]
    for case in CASES:
        lines.append(f"| {case} | {alone(case, 'fresh')} | {alone(case, 'recycled')} |")
        print(lines[-1], flush=True)
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
