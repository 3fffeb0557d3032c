"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), with the details that practice added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from raypid.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from raypid.algorithms.base import schedule
from raypid.algorithms.minibatches import MAX_LOG_RATIO, Batch
from raypid.config import ConfigError, unless
from raypid.types import Array, Trajectory, Update


@dataclass(kw_only=True, slots=True)
class PPOConfig(ActorCriticConfig):
    """Settings of PPO. The defaults reach LunarLanderContinuous-v3's 200 and CartPole-v1's 475 as they are."""

    fragment_length: int = 256
    batch_size: int = 128
    lr: float = 5e-4
    gae_lambda: float = 0.98
    entropy_coef: float = 0.01
    normalize_rewards: bool = True
    num_epochs: int = 5
    """Passes over each batch."""
    clip: float = 0.2
    """The probability ratio counts only within [1 - clip, 1 + clip]."""
    clip_schedule: Literal["constant", "linear"] = "constant"
    """linear: clip falls over schedule_steps."""
    value_clip: float | None = None
    """Clip the value's change to [-x, x] in its loss; none does not."""
    target_kl: float | None = None
    """Stop the epochs once the policy has moved this far (mean of ratio - 1 - log ratio); none does not."""

    def idle(self) -> dict[str, str]:
        several = unless(self.num_epochs > 1, "with one epoch, after which nothing is left to stop", "target_kl")
        return {**ActorCriticConfig.idle(self), **several}

    def validate(self) -> None:
        ActorCriticConfig.validate(self)
        if self.num_epochs < 1 or not self.clip > 0:
            raise ConfigError(f"num_epochs must be at least 1 and clip above 0, not {self.num_epochs} and {self.clip}.")


CLIPPED_METRICS = frozenset({"policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm", "lr"})


class ClippedSurrogate(ActorCritic):
    """Maximise min(ratio * A, clip(ratio, 1 - eps, 1 + eps) * A), with ratio = pi(a|s) / pi_acted(a|s) (equation 7)."""

    clip: float

    def loss(self, log_prob: Any, entropy: Any, value: Any, batch: Batch) -> tuple[Any, dict[str, Any]]:
        import torch

        c, advantage = self.config, batch.advantage
        log_ratio = (log_prob - batch.log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        error = (value - batch.target) ** 2
        if c.value_clip is not None:
            near = batch.value + (value - batch.value).clamp(-c.value_clip, c.value_clip)
            error = torch.maximum(error, (near - batch.target) ** 2)
        value_loss = 0.5 * error.mean()
        entropy = entropy.mean()
        loss = policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy
        with torch.no_grad():
            kl, clip_fraction = (ratio - 1 - log_ratio).mean(), ((ratio - 1).abs() > self.clip).float().mean()
        return loss, {
            "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "kl": kl, "clip_fraction": clip_fraction,
        }  # fmt: skip

    def slopes(
        self, log_prob: Array, entropy: Array, value: Array, batch: Batch
    ) -> tuple[Array, float, Array, dict[str, float]]:
        c, advantage, n = self.config, batch.advantage, len(log_prob)
        log_ratio = (log_prob - batch.log_prob).clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratio = np.exp(log_ratio)
        surrogate = ratio * advantage
        clipped = np.clip(ratio, 1 - self.clip, 1 + self.clip)
        # elsewhere the clipped term is smaller, or the ratio is beyond all reason; both are flat
        counts = (surrogate <= clipped * advantage) & (np.abs(log_ratio) < MAX_LOG_RATIO)
        by_log_prob = np.where(counts, surrogate, 0) * np.float32(-1 / n)
        difference = value - batch.target
        by_value, error = difference, difference * difference
        if c.value_clip is not None:
            change = value - batch.value
            near = batch.value + np.clip(change, -c.value_clip, c.value_clip) - batch.target
            by_value = np.where(error >= near * near, difference, np.where(np.abs(change) <= c.value_clip, near, 0))
            error = np.maximum(error, near * near)
        metrics = {
            "policy_loss": -float(np.minimum(surrogate, clipped * advantage).mean()),
            "value_loss": 0.5 * float(error.mean()),
            "entropy": float(entropy.mean()),
            "kl": float((ratio - 1 - log_ratio).mean()),
            "clip_fraction": float((clipped != ratio).mean()),
        }
        return by_log_prob, -c.entropy_coef / n, by_value * np.float32(c.value_coef / n), metrics


class PPO(ClippedSurrogate):
    """The clipped surrogate, with generalised advantages, several times over each batch."""

    Config = PPOConfig
    metric_names = CLIPPED_METRICS | {"explained_variance"}

    def update(self, batch: Trajectory, timesteps: int) -> Update:
        c, lr = self.config, self.lr(timesteps)
        self.clip = c.clip * schedule(c.clip_schedule, timesteps, c.schedule_steps, c.schedule_end)
        rows = self.learner.to_device(self.prepare(batch))
        metrics: list[dict[str, Any]] = []
        for _ in range(c.num_epochs):
            epoch = [self.learner.step(minibatch, lr) for minibatch in self.minibatches(rows)]
            metrics += epoch
            if c.target_kl is not None and epoch and self.mean_metrics(epoch)["kl"] > c.target_kl:
                break
        self.finish(batch)
        return Update(
            {**self.mean_metrics(metrics), "lr": lr, "explained_variance": self.explained_variance(rows)}, len(metrics)
        )
