"""Asynchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3): workers send gradients, not data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from raypid.algorithms.a2c import A2C, A2CConfig
from raypid.algorithms.gradients import GradientsConfig, reduced
from raypid.config import ConfigError
from raypid.types import Gradients, Trajectory, Update, Weights


@dataclass(kw_only=True, slots=True)
class A3CConfig(GradientsConfig, A2CConfig):
    """Settings of A3C."""

    optimizer: Literal["adam", "rmsprop"] = "rmsprop"
    lr: float = 3e-3

    no_effect = {"batch_size": "for A3C, whose workers make one gradient of each whole fragment: set fragment_length"}

    def idle(self) -> dict[str, str]:
        return {**A2CConfig.idle(self), **GradientsConfig.idle(self)}

    def validate(self) -> None:
        A2CConfig.validate(self)
        GradientsConfig.validate(self)
        if self.intrinsic_reward is not None:
            raise ConfigError(
                "intrinsic_reward is learnt in the learner, A3C's rewards are used in its workers: take IMPALA or APPO."
            )


class A3C(A2C):
    """A2C whose gradients are computed where the data are. The learner applies them in the order of arrival, with one optimizer
    for all workers (the paper's shared RMSProp, or Adam)."""

    Config = A3CConfig
    metric_names = A2C.metric_names
    flow = "async"
    collect = "gradients"
    several_learners = False

    @classmethod
    def update_size(cls, config: Any) -> int:
        return int(config.gradients_per_update)

    def gradients(self, trajectory: Trajectory, weights: Weights) -> Gradients:
        """In a worker: the gradient of A2C's loss over a fragment, by the weights that acted; one pass, all rows in one."""
        self.learner.load(weights.flat)
        if self.moments is not None:
            self.moments.load(weights.extra)
        batch = self.learner.to_device(self.prepare(trajectory))
        metrics = self.mean_metrics([self.learner.differentiate(batch)])
        gradient = self.learner.gradient
        flat = gradient.cpu().numpy() if hasattr(gradient, "cpu") else gradient
        return Gradients(flat.copy(), trajectory.version, len(batch), metrics, trajectory.moments)

    def local_state(self) -> dict[str, Any]:
        """In a worker: how it scales its rewards."""
        return {} if self.return_scaler is None else self.return_scaler.state_dict()

    def load_local_state(self, state: dict[str, Any]) -> None:
        if self.return_scaler is not None and state:
            self.return_scaler.load_state_dict(state)

    def update(self, batch: Any, timesteps: int) -> Update:
        gradients: list[Gradients] = batch
        lr = self.lr(timesteps)
        total, metrics = reduced(gradients, self.config.gradient_reduce)
        norm = self.learner.descend(total, lr)
        for part in gradients:
            if self.moments is not None and part.moments is not None:
                self.moments.merge(part.moments)
        self.version += 1
        return Update({**metrics, "grad_norm": float(norm), "lr": lr}, 1)
