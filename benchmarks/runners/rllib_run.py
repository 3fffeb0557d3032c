"""RLlib to a threshold: prints one JSON line. Runs in an environment of its own.

One env runner and its default settings; of APPO and IMPALA two env runners and a network of 64 x 64 tanh, the rest default.
"""

import argparse
import json
import time

parser = argparse.ArgumentParser()
parser.add_argument("--algo", choices=("PPO", "SAC", "DQN", "APPO", "IMPALA"), default="PPO")
parser.add_argument("--env", required=True)
parser.add_argument("--threshold", type=float, required=True)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--max-seconds", type=float, required=True)
parser.add_argument("--every", type=float, required=True, help="environment steps between evaluations")
parser.add_argument("--envs", type=int, default=None, help="environments of an env runner")
parser.add_argument("--warm-up", type=float, default=0, help="seconds of training that steps_per_s leaves out")
args = parser.parse_args()

import ray  # noqa: E402

ray.init(num_cpus=4, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
from ray.rllib import algorithms  # noqa: E402

asynchronous = args.algo in ("APPO", "IMPALA")
num_envs = args.envs or (
    8 if asynchronous else 4 if args.algo != "PPO" else 8 if args.env.startswith("CartPole") else 16
)
runners = {"num_env_runners": 2 if asynchronous else 1, "num_envs_per_env_runner": num_envs}
config = (
    getattr(algorithms, f"{args.algo}Config")().environment(args.env).env_runners(**runners).debugging(seed=args.seed)
)
if asynchronous:
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config = config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
config = config.evaluation(
    evaluation_interval=None, evaluation_num_env_runners=1, evaluation_duration=10, evaluation_duration_unit="episodes",
    evaluation_config={"explore": False},
)  # fmt: skip
algorithm = config.build_algo()
trained = evaluated = warm_up = 0.0
warm_steps = 0
steps, next_evaluation, solved, mean = 0, args.every, False, float("nan")


def evaluate(episodes):
    """Mean return of greedy episodes, ten at a time."""
    means = [algorithm.evaluate()["env_runners"]["episode_return_mean"] for _ in range(episodes // 10)]
    return sum(means) / len(means)


while not solved and trained < args.max_seconds:
    start = time.perf_counter()
    result = algorithm.train()
    trained += time.perf_counter() - start
    steps = result["num_env_steps_sampled_lifetime"]
    if trained <= args.warm_up:
        warm_up, warm_steps = trained, steps
    if steps >= next_evaluation:
        next_evaluation += args.every
        start = time.perf_counter()
        mean = evaluate(10)
        if mean >= args.threshold:
            mean = evaluate(50)
            solved = bool(mean >= args.threshold)
        evaluated += time.perf_counter() - start
row = {
    "library": f"rllib {ray.__version__}", "solved": solved, "seconds": None, "evaluation_s": evaluated,
    "train_s": trained, "steps": steps, "steps_per_s": (steps - warm_steps) / (trained - warm_up), "return": float(mean),
}  # fmt: skip
print(json.dumps(row), flush=True)
algorithm.stop()
