"""Settings that reach a stated return, by algorithm and environment: `--tuned` on the command line, `tuned=True` in Python.

Times and seeds behind them stand in benchmarks/results.
"""

from __future__ import annotations

_Q_CARTPOLE: dict[str, object] = {
    "num_envs_per_worker": 16, "a_l_ratio": 8, "lr": 2e-3, "model": {"hidden": [64, 64]}, "batch_size": 256, "n_step": 5,
    "target_tau": 0.02, "layer_norm": True, "start_steps": 500, "reward_scale": 0.1,
}  # fmt: skip
_Q_LANDER: dict[str, object] = {
    "num_envs_per_worker": 32, "a_l_ratio": 8, "lr": 1e-3, "batch_size": 256, "n_step": 5, "gamma": 0.995, "target_tau": 0.005,
    "layer_norm": True, "start_steps": 2_000, "reward_scale": 0.1,
}  # fmt: skip
_PENDULUM: dict[str, object] = {
    "a_l_ratio": 4,
    "lr": 1e-3,
    "model": {"hidden": [64, 64]},
    "batch_size": 128,
    "target_tau": 0.01,
}
_MEMORY: dict[str, object] = {"model": {"network": "lstm"}, "fragment_length": 64, "batch_size": 256}

TUNED: dict[tuple[str, str], dict[str, object]] = {
    ("PPO", "CartPole-v1"): {"fragment_length": 128, "normalize_observations": True},
    ("PPO", "Pendulum-v1"): {
        "fragment_length": 128, "num_envs_per_worker": 16, "num_epochs": 8, "gamma": 0.95, "gae_lambda": 0.95, "lr": 1e-3,
        "entropy_coef": 0.0,
    },
    ("PPO", "HalfCheetah-v5"): {
        "fragment_length": 64, "num_envs_per_worker": 32, "num_epochs": 10, "gamma": 0.98, "gae_lambda": 0.92, "entropy_coef": 0.0,
        "normalize_observations": True, "model": {"log_std_init": -1.0},
    },
    ("PPO", "raypid/PositionCartPole-v0"): _MEMORY,
    ("PPO", "raypid/TMaze-v0"): _MEMORY | {"gamma": 0.98},
    ("IMPALA", "raypid/PositionCartPole-v0"): {"model": {"network": "lstm"}},
    ("IMPALA", "raypid/TMaze-v0"): {"model": {"network": "lstm"}, "gamma": 0.98},
    ("A2C", "CartPole-v1"): {"lr": 3e-3, "entropy_coef": 0.0},
    ("DQN", "CartPole-v1"): _Q_CARTPOLE | {"epsilon_steps": 2_000, "epsilon_end": 0.02},
    ("SQN", "CartPole-v1"): _Q_CARTPOLE | {"alpha_init": 0.05},
    ("R2D2", "raypid/PositionCartPole-v0"): {
        "a_l_ratio": 16, "lr": 1e-3, "target_tau": 0.02, "layer_norm": True, "reward_scale": 0.1, "value_rescaling": False,
        "epsilon_steps": 5_000, "epsilon_end": 0.01,
    },
    ("Rainbow", "CartPole-v1"): _Q_CARTPOLE | {"lr": 1e-3, "batch_size": 128, "num_atoms": 21, "v_min": 0.0, "v_max": 10.0},
    ("SAC", "CartPole-v1"): {
        "num_envs_per_worker": 16, "a_l_ratio": 8, "lr": 2e-3, "model": {"hidden": [64, 64]}, "n_step": 5, "target_tau": 0.02,
        "start_steps": 500, "reward_scale": 0.1, "alpha_init": 0.05, "target_entropy": 0.2,
    },
    ("SAC", "LunarLanderContinuous-v3"): {
        "num_envs_per_worker": 32, "a_l_ratio": 12, "lr": 2e-3, "model": {"hidden": [64, 64]}, "n_step": 8, "target_tau": 0.01,
        "start_steps": 2_000, "alpha_init": 0.3, "target_entropy": 0.0,
    },
    ("DQN", "LunarLander-v3"): _Q_LANDER | {"epsilon_steps": 30_000, "epsilon_end": 0.01},
    ("DQN", "ALE/Pong-v5"): {
        "frame_stack": 4, "a_l_ratio": 4, "batch_size": 32, "lr": 2.5e-4, "double": False, "start_steps": 4_000, "buffer_size": 100_000,
        "epsilon_steps": 40_000, "epsilon_end": 0.02, "target_tau": 1.0, "target_interval": 1_000, "reward_clip": 1.0,
        "model": {"channels": [16, 32], "hidden": [256]},
    },
    ("Rainbow", "LunarLander-v3"): _Q_LANDER | {
        "gamma": 0.99, "batch_size": 128, "target_tau": 0.01, "model": {"hidden": [64, 64]}, "noisy": 0.3, "v_min": -20.0, "v_max": 30.0,
    },
    ("ApeX", "LunarLander-v3"): _Q_LANDER | {"num_envs_per_worker": 8},
    ("ES", "CartPole-v1"): {"num_envs_per_worker": 64, "sigma": 0.1, "lr": 0.05, "model": {"hidden": [16]}},
    ("ES", "Pendulum-v1"): {"num_envs_per_worker": 64, "population": 64, "sigma": 0.5, "lr": 0.2, "model": {"hidden": [16]}},
    ("ARS", "HalfCheetah-v5"): {"num_envs_per_worker": 64, "population": 32, "top_directions": 4, "lr": 0.02, "sigma": 0.03},
    ("SAC", "HalfCheetah-v5"): {
        "a_l_ratio": 2, "lr": 1e-3, "bf16": True, "start_steps": 5_000, "buffer_size": 1_000_000, "steps_per_iteration": 4_000,
    },
    ("SAC", "Pendulum-v1"): _PENDULUM,
    ("TD3", "LunarLanderContinuous-v3"): {
        "num_envs_per_worker": 32, "a_l_ratio": 12, "lr": 2e-3, "model": {"hidden": [64, 64]}, "n_step": 8, "target_tau": 0.01,
        "start_steps": 4_000, "exploration_noise": 0.5,
    },
    ("TD3", "Pendulum-v1"): _PENDULUM,
    ("DDPG", "Pendulum-v1"): _PENDULUM,
}  # fmt: skip
