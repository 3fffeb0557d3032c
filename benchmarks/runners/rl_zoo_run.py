"""Stable-Baselines3 or SBX, with RL-Zoo's settings, to a threshold: the peers of `defaults.py`, in Python environments of their own.

Prints each evaluation, and at last whether the threshold held, as lines of JSON. Takes the library and an order of `defaults.py`.
"""

import json
import sys
import time

LIBRARY, order = sys.argv[1], json.loads(sys.argv[2])
task = order["task"]

import torch  # noqa: E402

torch.set_num_threads(2)
if LIBRARY == "sb3":
    import stable_baselines3 as library
else:
    import sbx as library
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization  # noqa: E402

LANDER = {
    "n_envs": 16, "n_timesteps": 1e6, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01,
}  # fmt: skip
MUJOCO_SAC = {"n_timesteps": 1e6, "learning_starts": 10_000}
SMALL_DQN = {
    "learning_rate": 2.5e-4, "batch_size": 512, "buffer_size": 100_000, "learning_starts": 0, "gamma": 0.99, "target_update_interval": 5_000,
    "train_freq": 16, "gradient_steps": 4, "exploration_fraction": 0.06, "exploration_final_eps": 0.11,
}  # fmt: skip
ZOO = {  # rl-zoo3, hyperparams/<algorithm>.yml; schedules "lin_x" fall linearly to 0 over n_timesteps
    ("PPO", "CartPole-v1"): {
        "n_envs": 8, "n_timesteps": 1e5, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98,
        "n_epochs": 20, "ent_coef": 0.0, "learning_rate": "lin_0.001", "clip_range": "lin_0.2",
    },
    ("PPO", "Acrobot-v1"): {
        "normalize": True, "n_envs": 16, "n_timesteps": 1e6, "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0,
    },
    ("PPO", "LunarLanderContinuous-v3"): LANDER,
    ("PPO", "LunarLander-v3"): LANDER,
    ("PPO", "Pendulum-v1"): {
        "n_envs": 4, "n_timesteps": 1e5, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0,
        "learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
    },
    ("PPO", "MountainCarContinuous-v0"): {
        "normalize": True, "n_envs": 1, "n_timesteps": 20_000, "batch_size": 256, "n_steps": 8, "gamma": 0.9999, "learning_rate": 7.77e-5,
        "ent_coef": 0.00429, "clip_range": 0.1, "n_epochs": 10, "gae_lambda": 0.9, "max_grad_norm": 5, "vf_coef": 0.19, "use_sde": True,
        "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
    },
    ("PPO", "BipedalWalker-v3"): {
        "normalize": True, "n_envs": 32, "n_timesteps": 5e6, "n_steps": 2048, "batch_size": 64, "gae_lambda": 0.95, "gamma": 0.999,
        "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 3e-4, "clip_range": 0.18,
    },
    ("SAC", "LunarLanderContinuous-v3"): {
        "n_timesteps": 5e5, "batch_size": 256, "learning_rate": "lin_0.00073", "buffer_size": 1_000_000, "ent_coef": "auto", "gamma": 0.99,
        "tau": 0.01, "train_freq": 1, "gradient_steps": 1, "learning_starts": 10_000, "policy_kwargs": {"net_arch": [400, 300]},
    },
    ("SAC", "Pendulum-v1"): {"n_timesteps": 20_000, "learning_rate": 1e-3},
    ("SAC", "MountainCarContinuous-v0"): {
        "n_timesteps": 5e4, "learning_rate": 3e-4, "buffer_size": 50_000, "batch_size": 512, "ent_coef": 0.1, "train_freq": 32,
        "gradient_steps": 32, "gamma": 0.9999, "tau": 0.01, "learning_starts": 0, "use_sde": True,
        "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]},
    },
    ("SAC", "BipedalWalker-v3"): {
        "n_timesteps": 5e5, "learning_rate": 7.3e-4, "buffer_size": 300_000, "batch_size": 256, "ent_coef": "auto", "gamma": 0.98, "tau": 0.02,
        "train_freq": 64, "gradient_steps": 64, "learning_starts": 10_000, "use_sde": True,
        "policy_kwargs": {"log_std_init": -3, "net_arch": [400, 300]},
    },
    ("SAC", "Hopper-v5"): MUJOCO_SAC,
    ("SAC", "HalfCheetah-v5"): MUJOCO_SAC,
    ("DQN", "CartPole-v1"): {"n_timesteps": 2e5, **SMALL_DQN},
    ("DQN", "Acrobot-v1"): {"n_timesteps": 1.5e5, **SMALL_DQN},
    ("DQN", "MountainCar-v0"): {
        "n_timesteps": 1.2e5, "learning_rate": 4e-3, "batch_size": 128, "buffer_size": 10_000, "learning_starts": 1_000, "gamma": 0.98,
        "target_update_interval": 5_000, "train_freq": 16, "gradient_steps": 8, "exploration_fraction": 0.2, "exploration_final_eps": 0.07,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    ("DQN", "LunarLander-v3"): {
        "n_timesteps": 1.5e5, "learning_rate": 8.8e-4, "batch_size": 32, "buffer_size": 1_000_000, "learning_starts": 0, "gamma": 0.99,
        "target_update_interval": 10_000, "train_freq": 16, "gradient_steps": -1, "exploration_fraction": 0.2, "exploration_final_eps": 0.1,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
}  # fmt: skip


def value(x):
    if isinstance(x, str) and x.startswith("lin_"):
        start = float(x.removeprefix("lin_"))
        return lambda left: left * start
    return x


if (order["algorithm"], task["env"]) not in ZOO:
    sys.exit(f"RL-Zoo has no settings for {order['algorithm']} on {task['env']}")
settings = {k: value(v) for k, v in {**ZOO[order["algorithm"], task["env"]], **order["settings"]}.items()}
num_steps, normalize, seed = int(settings.pop("n_timesteps")), settings.pop("normalize", False), order["seed"]
env = make_vec_env(task["env"], n_envs=settings.pop("n_envs", 1), seed=seed)
held_out = make_vec_env(task["env"], n_envs=1, seed=seed + 500_000)
if normalize:
    env, held_out = VecNormalize(env), VecNormalize(held_out, training=False, norm_reward=False)
model = getattr(library, order["algorithm"])("MlpPolicy", env, seed=seed, device="cpu", verbose=0, **settings)


class ToThreshold(BaseCallback):
    evaluated, seconds, due, solved = 0.0, 0.0, task["every"], False

    def tell(self, metric, found):
        row = {
            "step": self.num_timesteps,
            "seconds": round(self.seconds, 2),
            "metric": metric,
            "value": round(float(found), 3),
        }
        print(json.dumps(row), flush=True)

    def _on_step(self):
        before = time.time()
        self.seconds = before - order["began"] - self.evaluated
        if self.num_timesteps >= self.due:
            self.due = max(self.num_timesteps + task["every"], int(self.num_timesteps * order["apart"]))
            if normalize:
                sync_envs_normalization(env, held_out)
            mean, _ = evaluate_policy(model, held_out, n_eval_episodes=10)
            self.tell(order["first"], mean)
            if mean >= task["threshold"]:
                mean, _ = evaluate_policy(model, held_out, n_eval_episodes=50)
                self.tell(order["second"], mean)
                self.solved = bool(mean >= task["threshold"])
            self.evaluated += time.time() - before
        return not self.solved and self.seconds < order["limit"]


callback = ToThreshold()
model.learn(num_steps, callback=callback)
callback.tell(order["solved"], callback.solved)
print(f"version {library.__version__}", flush=True)
