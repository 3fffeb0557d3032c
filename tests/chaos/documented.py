"""The documented command, and a project, on a Ray cluster that declares 3 GPUs and 8 CPUs; prints what each learner was given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from raypid.run.agent import Agent
from raypid.runtime.ray import ray

SETTINGS: dict[str, Any] = {
    "env_name": "gym_env", "agent_name": "default_agent", "model_name": "ppo", "num_envs_per_worker": 3, "num_workers": 3, "gpu": "0,1,2",
    "num_gpus": 3, "num_cpus": 8, "batch_size": 10,
}  # fmt: skip
HERE = {"device": "cpu", "fragment_length": 16, "seed": 0}


def learners(address: str) -> dict[str, Any]:
    """Each learner's GPU, and whether all end their updates with the same weights."""
    settings = {key: value for key, value in SETTINGS.items() if key != "num_cpus"}
    with Agent("CustomModel", {**settings, **HERE, "address": address}) as agent:
        for _ in range(3):
            result = agent.train()
        handles = agent.context.learner.handles
        gpus = [ray.get(h.actor.__ray_call__.remote(lambda self: ray.get_gpu_ids())) for h in handles]
        weights = [
            ray.get(h.actor.__ray_call__.remote(lambda self: self.role.weights().flat.tobytes())) for h in handles
        ]
    return {"gpus": gpus, "same": len(set(weights)) == 1, "updates": result["learner_updates_total"]}


def command(address: str, place: Path, *words: str) -> int:
    here = [word for key, value in HERE.items() for word in (f"--{key}", str(value))]
    stop = ["--stop", '{"training_iteration": 2}', "--final-episodes", "0", "--quiet"]
    run = [sys.executable, "-m", "raypid", "train", *words, *here, "--address", address, *stop]
    return subprocess.run(run, cwd=place).returncode


def main() -> None:
    from ray.cluster_utils import Cluster

    place, said = (
        Path(sys.argv[1]),
        [f(*x) for key, value in SETTINGS.items() for f, x in ((str, (f"--{key}",)), (str, (value,)))],
    )
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "num_gpus": 3, "include_dashboard": False})
    try:
        address = cluster.address
        subprocess.run(
            [sys.executable, "-m", "raypid", "init", "mine"], cwd=place, check=True, stdout=subprocess.DEVNULL
        )
        names = [word for part in ("env", "agent", "model") for word in (f"--{part}_name", f"custom_{part}")]
        report = {
            "command": command(address, place, *said, "--out", "documented"),
            "project": command(address, place / "mine", *names, "--num_workers", "2", "--out", "runs/a"),
            "learners": learners(address),
        }
        print("REPORT", json.dumps(report))
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    main()
