"""Stable-Baselines3 or SBX (RL-Zoo's settings) to a threshold: prints one JSON line. Runs in an environment of its own."""

import argparse
import json
import time

parser = argparse.ArgumentParser()
parser.add_argument("--library", choices=("sb3", "sbx"), required=True)
parser.add_argument("--algo", choices=("PPO", "SAC", "DQN"), default="PPO")
parser.add_argument("--env", required=True)
parser.add_argument("--threshold", type=float, required=True)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--max-seconds", type=float, required=True)
parser.add_argument("--every", type=float, required=True, help="environment steps between evaluations")
parser.add_argument("--settings", default="{}", help="JSON, over RL-Zoo's settings")
args = parser.parse_args()

import torch  # noqa: E402

torch.set_num_threads(2)
if args.library == "sb3":
    import stable_baselines3 as library
else:
    import sbx as library
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402

ZOO = {  # rl-zoo3, hyperparams/<algorithm>.yml; schedules "lin_x" fall linearly to 0 over n_timesteps
    ("PPO", "CartPole-v1"): {
        "n_envs": 8, "n_timesteps": 100_000, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98,
        "n_epochs": 20, "ent_coef": 0.0, "learning_rate": "lin_0.001", "clip_range": "lin_0.2",
    },
    ("PPO", "LunarLanderContinuous-v3"): {
        "n_envs": 16, "n_timesteps": 1_000_000, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999,
        "n_epochs": 4, "ent_coef": 0.01,
    },
    ("SAC", "LunarLanderContinuous-v3"): {
        "n_envs": 1, "n_timesteps": 500_000, "batch_size": 256, "learning_rate": "lin_0.00073", "buffer_size": 1_000_000,
        "ent_coef": "auto", "gamma": 0.99, "tau": 0.01, "train_freq": 1, "gradient_steps": 1, "learning_starts": 10_000,
        "policy_kwargs": {"net_arch": [400, 300]},
    },
    ("DQN", "CartPole-v1"): {
        "n_envs": 1, "n_timesteps": 50_000, "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000,
        "learning_starts": 1_000, "gamma": 0.99, "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128,
        "exploration_fraction": 0.16, "exploration_final_eps": 0.04, "policy_kwargs": {"net_arch": [256, 256]},
    },
}  # fmt: skip


def value(x):
    if isinstance(x, str) and x.startswith("lin_"):
        start = float(x.removeprefix("lin_"))
        return lambda left: left * start
    return x


given = json.loads(args.settings)
settings = {k: value(v) for k, v in {**ZOO[args.algo, args.env], **given}.items()}
num_steps = settings.pop("n_timesteps")
env = make_vec_env(args.env, n_envs=settings.pop("n_envs"), seed=args.seed)
held_out = make_vec_env(args.env, n_envs=1, seed=1000 + args.seed)
algorithm = getattr(library, args.algo)
model = algorithm("MlpPolicy", env, seed=args.seed, device="cpu", verbose=0, **settings)


class ToThreshold(BaseCallback):
    solved, evaluated, mean, next_evaluation = False, 0.0, float("nan"), args.every

    def _on_training_start(self):
        self.begin = time.perf_counter()

    def _on_step(self):
        trained = time.perf_counter() - self.begin - self.evaluated
        if self.num_timesteps >= self.next_evaluation:
            self.next_evaluation += args.every
            start = time.perf_counter()
            self.mean, _ = evaluate_policy(model, held_out, n_eval_episodes=10)
            if self.mean >= args.threshold:
                self.mean, _ = evaluate_policy(model, held_out, n_eval_episodes=50)
                self.solved = bool(self.mean >= args.threshold)
            self.evaluated += time.perf_counter() - start
        return not self.solved and trained < args.max_seconds


callback = ToThreshold()
model.learn(num_steps, callback=callback)
trained = time.perf_counter() - callback.begin - callback.evaluated
row = {
    "library": f"{args.library} {library.__version__}", "solved": callback.solved, "seconds": None, "evaluation_s": callback.evaluated,
    "train_s": trained, "steps": model.num_timesteps, "steps_per_s": model.num_timesteps / trained, "return": float(callback.mean),
    "settings": given,
}  # fmt: skip
print(json.dumps(row), flush=True)
