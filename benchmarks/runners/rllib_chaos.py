"""RLlib for `chaos.py`: trains for a time while it is struck, with a point for each iteration, and leaves row.json in --out.

Two env runners of eight environments, a network of 64 x 64 tanh, iterations of about a second. Its own settings for faults: env
runners and environments that fail are restarted, without a limit that matters. Runs in an environment of its own.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--algo", choices=("PPO", "IMPALA"), required=True)
parser.add_argument("--env", required=True)
parser.add_argument("--seconds", type=float, required=True)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--address", help="a cluster to join")
parser.add_argument("--learners", type=int, help="learner processes (default: RLlib's own)")
args = parser.parse_args()

import ray  # noqa: E402

quiet = {"log_to_driver": False, "logging_level": "ERROR"}
if args.address:
    ray.init(args.address, **quiet)
else:
    ray.init("local", num_cpus=8, include_dashboard=False, **quiet)
from ray.rllib import algorithms  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402

training = {"lr": 3e-4, "train_batch_size_per_learner": 1024, "minibatch_size": 128, "num_epochs": 10}
config = (
    getattr(algorithms, f"{args.algo}Config")()
    .environment(args.env)
    .env_runners(num_env_runners=2, num_envs_per_env_runner=8, create_env_on_local_worker=True)
    .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
    .training(**(training if args.algo == "PPO" else {}))
    .reporting(min_time_s_per_iteration=0.5 if args.algo == "IMPALA" else None)
    .fault_tolerance(restart_failed_env_runners=True, restart_failed_sub_environments=True)
    .evaluation(evaluation_num_env_runners=0, evaluation_interval=None, evaluation_duration=50,
                evaluation_config={"explore": False})
    .debugging(seed=args.seed)
)  # fmt: skip
if args.learners:
    config = config.learners(num_learners=args.learners)
algorithm = config.build_algo()
trace = Path(os.environ["RAYPID_CHAOS_TRACE"])
row = {"library": f"rllib {ray.__version__}", "steps": 0, "updates": 0, "lost": {}, "best": None, "last": None}
start = 0.0
while not start or time.monotonic() - start < args.seconds:
    result = algorithm.train()
    start = start or bool(result.get("num_env_steps_sampled_lifetime")) * time.monotonic()
    if not start:
        continue
    row["steps"] = int(result.get("num_env_steps_sampled_lifetime", row["steps"]))
    trained = result.get("learners", {}).get("__all_modules__", {}).get("num_module_steps_trained_lifetime", math.nan)
    row["updates"] = int(trained) if math.isfinite(trained) else row["updates"]  # samples learned from, in its case
    faults = result.get("fault_tolerance", {})
    row["lost"] = {"worker": int(faults.get("num_remote_worker_restarts", 0))}
    with trace.open("a") as file:
        file.write(f"{time.monotonic():.4f} {row['steps']} {row['updates']}\n")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "row.json").write_text(json.dumps(row))
row["last"] = float(algorithm.evaluate()["env_runners"]["episode_return_mean"])
(args.out / "row.json").write_text(json.dumps(row))
algorithm.stop()
ray.shutdown()
