"""Advantage actor-critic: the synchronous form of A3C (Mnih et al. 2016, arXiv:1602.01783, algorithm S3), with GAE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raypid.algorithms.actor_critic import ActorCritic, ActorCriticConfig, ActorCriticT, step_metrics
from raypid.algorithms.minibatches import Batch, Loss, LossGradient, mean
from raypid.settings.ranges import tunable
from raypid.types import Array, Tensor, Trajectory, Update


@dataclass(kw_only=True, slots=True)
class A2CConfig(ActorCriticConfig):
    """Settings of A2C."""

    num_envs_per_worker: int = 16
    fragment_length: int = tunable(16, 4, 128, "powers of 2")
    batch_size: int = 256
    """Rows in one gradient step. A larger batch is cut into several steps, and each row is used once."""
    lr: float = 1e-3
    gae_lambda: float = 0.95
    entropy_coef: float = 0.01
    normalize_rewards: bool = True
    normalize_advantages: bool = False


class AdvantageLoss(ActorCritic[ActorCriticT]):
    """-log pi(a|s) * A + value_coef * (V - target)^2 / 2 - entropy_coef * H."""

    def loss(self, log_prob: Tensor, entropy: Tensor, value: Tensor, batch: Batch[Tensor]) -> Loss:
        c = self.config
        policy_loss = -(log_prob * batch.advantage).mean()
        value_loss = 0.5 * ((value - batch.target) ** 2).mean()
        entropy = entropy.mean()
        loss = policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

    def loss_gradient(self, log_prob: Array, entropy: Array, value: Array, batch: Batch[Array]) -> LossGradient:
        c, n, difference = self.config, len(log_prob), value - batch.target
        metrics = {
            "policy_loss": -mean(log_prob * batch.advantage),
            "value_loss": 0.5 * mean(difference * difference),
            "entropy": mean(entropy),
        }
        by_log_prob = batch.advantage * np.float32(-1 / n)
        return by_log_prob, -c.entropy_coef / n, difference * np.float32(c.value_coef / n), metrics


class A2C(AdvantageLoss[A2CConfig]):
    """One pass over each batch."""

    Config = A2CConfig
    metric_names = frozenset({"policy_loss", "value_loss", "entropy", "grad_norm", "lr"})
    shown_metrics = ("policy_loss", "value_loss", "entropy", "grad_norm")

    def update(self, batch: Trajectory, timesteps: int) -> Update:
        lr, rows, steps = self.lr(timesteps), self.prepare(batch), []
        for minibatch in self.minibatches(rows):
            out = self.network.evaluate(minibatch)
            loss, metrics = self.objective(out, minibatch)
            norm = self.optimizer.minimise(loss, lr, minibatch.fraction)
            steps.append(step_metrics(metrics, norm, minibatch.fraction))
        self.finish(batch)
        return Update({**self.mean_metrics(steps), "lr": lr}, len(steps))


DEFAULT_CONFIG: dict[str, object]
"""The settings of A2C with their defaults, a dict of your own each time."""
