"""Settings that reach a stated return, by algorithm and environment: `--tuned` on the command line, `tuned=True` in Python.

Times and seeds behind them stand in benchmarks/results.
"""

from __future__ import annotations

from typing import Any

TUNED: dict[tuple[str, str], dict[str, Any]] = {
    ("PPO", "CartPole-v1"): {"fragment_length": 128, "normalize_observations": True},
    ("PPO", "Pendulum-v1"): {
        "fragment_length": 128, "num_envs_per_worker": 16, "num_epochs": 8, "gamma": 0.95, "gae_lambda": 0.95, "lr": 1e-3,
        "entropy_coef": 0.0,
    },
    ("PPO", "HalfCheetah-v5"): {
        "fragment_length": 64, "num_envs_per_worker": 32, "num_epochs": 10, "gamma": 0.98, "gae_lambda": 0.92, "entropy_coef": 0.0,
        "normalize_observations": True, "model": {"log_std_init": -1.0},
    },
    ("A2C", "CartPole-v1"): {"lr": 3e-3, "entropy_coef": 0.0},
}  # fmt: skip
