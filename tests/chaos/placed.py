"""Runs on a cluster of its own, of three nodes; prints where the plan says that roles are, where they are, and what two runs at once got.

python placed.py plans | race ROUNDS | full
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from raypid.errors import UserError
from raypid.run import placement
from raypid.run.agent import Agent
from raypid.run.resolve import resolve
from raypid.runtime.ray import ray
from raypid.runtime.stateful import StatefulGroup
from raypid.settings.config import Given
from raypid.settings.request import RunRequest

SMALL: dict[str, Any] = {"num_envs_per_worker": 2, "fragment_length": 16, "seed": 0, "device": "cpu"}
DQN = {
    "env": "CartPole-v1",
    "buffer_size": 2000,
    "start_steps": 64,
    "batch_size": 48,
    "steps_per_iteration": 96,
    "model": {"hidden": (16,)},
}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "servers": ("PPO", {"env": "CartPole-v1", "batch_size": 32, "num_workers": 4, "parameter_server": True, "evaluation_interval": 1,
                        "evaluation_num_episodes": 1}),
    "shards": ("ApeX", {**DQN, "num_workers": 4, "num_replay_shards": 3, "num_learners": 1, "num_gpus": 1, "evaluation_parallel": False}),
    "learners": ("DQN", {**DQN, "num_workers": 2, "num_learners": 2, "learner_sync": "asynchronous", "evaluation_parallel": False}),
}  # fmt: skip


RAYPID = [sys.executable, "-m", "raypid", "train", "--run", "PPO", "--env", "CartPole-v1"]


def real(agent: Agent) -> dict[str, Counter[str]]:
    """Node -> how many roles of each kind are there."""
    context, backend = agent.context, agent.backend
    learner, replay = context.learner, context.replay
    found = {
        "worker": context.workers.handles,
        "learner": learner.handles if isinstance(learner, StatefulGroup) else [],
        "shard": replay.source.buffers if replay and getattr(agent.config, "num_replay_shards", 0) else [],
        "server": context.weights.servers.handles if hasattr(context.weights, "servers") else [],
        "other": replay.source.shared.handles if replay and hasattr(replay.source, "shared") else [],
        "evaluator": agent.evaluations.beside._group.handles
        if agent.evaluations.beside and agent.evaluations.beside._group
        else [],
    }
    at: dict[str, Counter[str]] = {}
    for kind, handles in found.items():
        for handle in handles:
            at.setdefault(backend.node_of(handle, 60.0), Counter())[kind] += 1
    return at


def free(agent: Agent, wanted: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """What is free of each node, once its own report says what is expected, or after a while."""
    for _ in range(100):
        found = {node.id: {name: node.has(name) for name in ("CPU", "GPU")} for node in agent.backend.nodes()}
        if found == wanted:
            break
        time.sleep(0.1)
    return found


def plans(address: str) -> dict[str, Any]:
    report = {}
    for name, (run, settings) in RUNS.items():
        with Agent(run, {**SMALL, **settings, "address": address}) as agent:
            for _ in range(2):
                agent.train()
            placement = agent.explain().as_dict()["placement"]
            wanted = {share["id"]: share["left"] for share in placement}
            found = {node: dict(kinds) for node, kinds in real(agent).items()}
            report[name] = {"plan": placement, "real": found, "left": wanted, "free": free(agent, wanted)}
    return report


def one_of_two(address: str) -> None:
    """Reserve for three workers each time that a line says so, and say what came of it; the next line lets go."""
    placement._RELEASE_SECONDS = 0.2  # nobody gives anything back here before both have answered
    settings = {**SMALL, "env": "CartPole-v1", "batch_size": 32, "num_workers": 3, "address": address}
    run = resolve(RunRequest(run="PPO", settings=Given(settings)))
    ray.init(address, log_to_driver=False, logging_level="ERROR")
    print("ready", flush=True)
    for _ in sys.stdin:
        backend = None
        try:
            _, backend, _ = placement.place(run)
            print("trains", flush=True)
        except UserError as error:
            print(f"refused {error}", flush=True)
        sys.stdin.readline()
        if backend is not None:
            backend.shutdown()
        while ray.available_resources().get("CPU", 0.0) < 5:
            time.sleep(0.01)
        print("free", flush=True)


def race(address: str, rounds: str) -> dict[str, Any]:
    """Two processes reserve 3 of 5 CPUs at the same moment, again and again."""
    command = [sys.executable, __file__, "one_of_two", address]
    two = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    def said() -> list[str]:
        return [one.stdout.readline().strip() for one in two]  # type: ignore[union-attr]

    def tell() -> None:
        for one in two:
            print("now", file=one.stdin, flush=True)

    assert said() == ["ready", "ready"]
    answers = []
    for _ in range(int(rounds)):
        tell()
        answers.append(said())
        tell()
        assert said() == ["free", "free"]
    for one in two:
        one.stdin.close()  # type: ignore[union-attr]
        one.wait(60)
    return {"answers": answers}


def train(address: str, out: str, *words: str) -> subprocess.Popen[str]:
    command = [*RAYPID, "--address", address, "--seed", "0", "--final-episodes", "0", "--quiet", "--out", out, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def full(address: str) -> dict[str, Any]:
    """Two whole runs at once that need more than half; then one whose driver is killed; then one that waits for room."""
    stop = ("--stop", '{"time_total_s": 25}')
    two = [train(address, name, "--num-workers", "3", *stop) for name in "ab"]
    ends = [(*one.communicate(), one.returncode) for one in two]
    held = train(address, "c", "--num-workers", "5", "--stop", '{"time_total_s": 600}')
    while not Path("c", "result.json").exists():
        assert held.poll() is None
        time.sleep(0.2)
    looks = [*RAYPID, "--address", address, "--num-workers", "2", "--fit", "--explain"]
    seen = subprocess.run(looks, capture_output=True, text=True)
    waits = train(address, "d", "--num-workers", "2", "--wait-for-room-s", "120", "--stop", '{"training_iteration": 1}')
    ray.init(address, log_to_driver=False, logging_level="ERROR")
    while not any(group["state"] == "PENDING" for group in ray.util.placement_group_table().values()):
        assert waits.poll() is None
        time.sleep(0.2)
    waited = not Path("d", "result.json").exists()
    held.kill()
    while (free := ray.available_resources().get("CPU", 0.0)) < 3:
        time.sleep(0.05)
    end = (*waits.communicate(), waits.returncode)
    return {
        "ends": ends,
        "seen": (seen.stdout, seen.stderr, seen.returncode),
        "waited": waited,
        "free": free,
        "end": end,
    }


def main() -> None:
    from ray.cluster_utils import Cluster

    what, *words = sys.argv[1:]
    if what == "one_of_two":
        return one_of_two(*words)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=3, num_gpus=int(what == "plans"))
        if what == "plans":
            cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        print("REPORT", json.dumps({"plans": plans, "race": race, "full": full}[what](cluster.address, *words)))
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    main()
