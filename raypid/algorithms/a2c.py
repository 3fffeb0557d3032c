"""Advantage actor-critic: the synchronous form of A3C (Mnih et al. 2016, arXiv:1602.01783, algorithm S3), with GAE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from raypid.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from raypid.algorithms.minibatches import Batch
from raypid.types import Array, Trajectory, Update


@dataclass(kw_only=True, slots=True)
class A2CConfig(ActorCriticConfig):
    """Settings of A2C."""

    num_envs_per_worker: int = 16
    fragment_length: int = 16
    batch_size: int = 256
    """Rows in one gradient step; a larger batch is cut into several steps, each row used once."""
    lr: float = 1e-3
    gae_lambda: float = 0.95
    entropy_coef: float = 0.01
    normalize_rewards: bool = True
    normalize_advantages: bool = False


class A2C(ActorCritic):
    """One pass over each batch: -log pi(a|s) * A + value_coef * (V - target)^2 / 2 - entropy_coef * H."""

    Config: ClassVar[type[ActorCriticConfig]] = A2CConfig
    metric_names = frozenset({"policy_loss", "value_loss", "entropy", "grad_norm", "lr"})

    def update(self, batch: Trajectory, timesteps: int) -> Update:
        lr = self.lr(timesteps)
        rows = self.learner.to_device(self.prepare(batch))
        metrics = [self.learner.step(minibatch, lr) for minibatch in self.minibatches(rows)]
        self.finish(batch)
        return Update({**self.mean_metrics(metrics), "lr": lr}, len(metrics))

    def loss(self, log_prob: Any, entropy: Any, value: Any, batch: Batch) -> tuple[Any, dict[str, Any]]:
        c = self.config
        policy_loss = -(log_prob * batch.advantage).mean()
        value_loss = 0.5 * ((value - batch.target) ** 2).mean()
        entropy = entropy.mean()
        loss = policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

    def slopes(
        self, log_prob: Array, entropy: Array, value: Array, batch: Batch
    ) -> tuple[Array, float, Array, dict[str, float]]:
        c, n = self.config, len(log_prob)
        difference = value - batch.target
        metrics = {
            "policy_loss": -float((log_prob * batch.advantage).mean()),
            "value_loss": 0.5 * float((difference * difference).mean()),
            "entropy": float(entropy.mean()),
        }
        return (
            batch.advantage * np.float32(-1 / n),
            -c.entropy_coef / n,
            difference * np.float32(c.value_coef / n),
            metrics,
        )
