"""The documented command, and a project, on a Ray cluster that declares 3 GPUs and 8 CPUs; prints what each learner was given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from raypid.cli import main as raypid_main
from raypid.run.agent import Agent
from raypid.runtime.ray import ray

SETTINGS: dict[str, Any] = {
    "env_name": "gym_env", "agent_name": "default_agent", "model_name": "ppo", "num_envs_per_worker": 3, "num_workers": 3, "gpu": "0,1,2",
    "num_gpus": 3, "num_cpus": 8, "batch_size": 10,
}  # fmt: skip
HERE = {"device": "cpu", "fragment_length": 16, "seed": 0}


def seen(learners: Any) -> dict[str, Any]:
    """Each learner's GPU, and whether all have the same weights."""
    gpus = [ray.get(h.actor.__ray_call__.remote(lambda self: ray.get_gpu_ids())) for h in learners.handles]
    weights = [
        ray.get(h.actor.__ray_call__.remote(lambda self: self.role.weights().flat.tobytes())) for h in learners.handles
    ]
    return {"gpus": gpus, "same": len(set(weights)) == 1}


def documented(address: str) -> dict[str, Any]:
    """Run the command in this process, and look at its learners when they have ended their updates."""
    learners: list[dict[str, Any]] = []
    close = Agent.close

    def look_and_close(agent: Agent) -> None:
        if not learners:
            learners.append(seen(agent.context.learner))
        close(agent)

    Agent.close = look_and_close  # type: ignore[method-assign]
    words = [word for key, value in SETTINGS.items() for word in (f"--{key}", str(value))]
    code = raypid_main(["train", *words, *command(address, 3), "--out", "documented"])
    last = json.loads(Path("documented/result.json").read_text().splitlines()[-1])
    return {"command": code, "learners": {**learners[0], "updates": last["learner_updates_total"]}}


def command(address: str, iterations: int) -> list[str]:
    here = [word for key, value in HERE.items() for word in (f"--{key}", str(value))]
    stop = ["--stop", json.dumps({"training_iteration": iterations}), "--final-episodes", "0", "--quiet"]
    return [*here, "--address", address, *stop]


def project(address: str) -> int:
    assert raypid_main(["init", "mine"]) == 0
    names = [word for part in ("env", "agent", "model") for word in (f"--{part}_name", f"custom_{part}")]
    words = [*names, *command(address, 2), "--num_workers", "2", "--out", "runs/a"]
    return subprocess.run([sys.executable, "-m", "raypid", "train", *words], cwd="mine").returncode


def main() -> None:
    from ray.cluster_utils import Cluster

    os.chdir(sys.argv[1])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "num_gpus": 3, "include_dashboard": False})
    try:
        print("REPORT", json.dumps({"project": project(cluster.address), **documented(cluster.address)}))
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    main()
