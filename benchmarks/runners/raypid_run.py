"""raypid to a threshold: prints one JSON line. Evaluation time is measured and left to the caller to take out."""

import argparse
import json
import sys
import time

import raypid
from raypid.settings.tuned import TUNED

parser = argparse.ArgumentParser()
parser.add_argument("--algo", required=True)
parser.add_argument("--env", required=True)
parser.add_argument("--threshold", type=float, required=True)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--max-seconds", type=float, required=True)
parser.add_argument("--every", type=float, required=True, help="environment steps between evaluations")
parser.add_argument("--config", default="{}", help="JSON, over the tuned settings")
parser.add_argument("--warm-up", type=float, default=0, help="seconds of training that steps_per_s leaves out")
args = parser.parse_args()

config = {**TUNED.get((args.algo, args.env), {}), **json.loads(args.config)}
begin = time.perf_counter()
agent = getattr(raypid, args.algo)(env=args.env, seed=args.seed, config=config)
trained = evaluated = warm_up = 0.0
warm_steps = 0
next_evaluation, solved, mean = args.every, False, float("nan")
build = time.perf_counter() - begin
while not solved and trained < args.max_seconds:
    start = time.perf_counter()
    result = agent.train()
    trained += time.perf_counter() - start
    if trained <= args.warm_up:
        warm_up, warm_steps = trained, result["timesteps_total"]
    if result["timesteps_total"] >= next_evaluation:
        next_evaluation += args.every
        start = time.perf_counter()
        mean = agent.eval(10)["episode_reward_mean"]
        if mean >= args.threshold:
            mean = agent.eval(50, seed=args.seed + 500_000)["episode_reward_mean"]
            solved = mean >= args.threshold
        evaluated += time.perf_counter() - start
row = {
    "library": f"raypid {raypid.__version__}",
    "solved": solved,
    "seconds": None,  # the caller's clock, less evaluation_s
    "evaluation_s": evaluated,
    "build_s": build,
    "train_s": trained,
    "steps": result["timesteps_total"],
    "steps_per_s": (result["timesteps_total"] - warm_steps) / (trained - warm_up),
    "return": mean,
    "torch": "torch" in sys.modules,
}
print(json.dumps(row), flush=True)
agent.close()
