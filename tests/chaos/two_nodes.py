"""Trains on a Ray cluster of two nodes of one CPU each, and prints what its parameter servers did."""

from __future__ import annotations

import json
import sys
from typing import Any

from raypid.roles.parameter_server import ParameterServer
from raypid.run.agent import Agent
from raypid.runtime.ray import ray

SETTINGS: dict[str, Any] = {
    "PPO": {"env": "CartPole-v1", "batch_size": 32},
    "SAC": {"env": "Pendulum-v1", "buffer_size": 500, "start_steps": 64, "batch_size": 16, "a_l_ratio": 8,
            "steps_per_iteration": 128, "model": {"hidden": (16,)}},
}  # fmt: skip


def trained(run: str, address: str) -> dict[str, Any]:
    shared = {"num_envs_per_worker": 2, "fragment_length": 16, "num_workers": 2, "seed": 0, "address": address}
    with Agent(run, {**SETTINGS[run], **shared, "parameter_server": True}) as agent:
        for _ in range(3):
            result = agent.train()
        servers, backend = agent.context.weights.servers, agent.backend
        at = {node: backend.node_of(server, 30.0) for node, server in servers.items()}
        workers = [backend.node_of(h) for h in agent.context.workers.handles]
        pulls = {node: backend.get(server.submit(ParameterServer.metrics))["pulls"] for node, server in servers.items()}
    names = ("lost/parameter_servers", "lost/workers", "parameter_server/version", "learner_updates_total")
    return {"at": at, "workers": workers, "pulls": pulls, "result": {n: result[n] for n in names}}


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        print("REPORT", json.dumps({run: trained(run, cluster.address) for run in sys.argv[1:] or SETTINGS}))
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
