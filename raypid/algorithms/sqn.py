"""Soft Q-learning for discrete actions (Haarnoja et al. 2017, arXiv:1702.08165): the policy is the softmax of Q / alpha."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from raypid.algorithms.dqn import DQN, DQNConfig, TDLoss, huber
from raypid.algorithms.off_policy import TemperatureConfig, TransitionBatch
from raypid.nn.q_head import q_values
from raypid.types import Tensor, Weights


@dataclass(kw_only=True, slots=True)
class SQNConfig(TemperatureConfig, DQNConfig):
    """Settings of SQN."""

    no_effect = {
        **DQNConfig.no_effect,
        **dict.fromkeys(
            ("epsilon_start", "epsilon_end", "epsilon_steps", "worker_epsilon", "noisy"),
            "for SQN, which explores by its own softmax: set alpha or target_entropy",
        ),
        **dict.fromkeys(("num_atoms", "v_min", "v_max"), "for SQN, which learns plain values"),
    }

    ranges = {"be above 0": ("alpha",)}


class SQN(DQN):
    """Q(s, a) towards r + gamma * V(s').

    V(s') is the value of a policy pi, with the target network's Q' and alpha times the policy's entropy:

        V(s') = sum_a pi(a|s') (Q'(s', a) - alpha * log pi(a|s'))

    With double false pi is the softmax of Q' / alpha, and V(s') is alpha * log sum_a exp(Q'(s', a) / alpha) (equations 3 and 5).
    With double true it is the softmax of Q / alpha, of the network that learns: V(s') is at most that, as in double Q-learning
    (van Hasselt et al. 2016).
    """

    Config = SQNConfig
    metric_names = frozenset({"loss", "q", "td_error", "entropy", "alpha"})
    shown_metrics = ("loss", "td_error", "q", "entropy", "alpha", "replay_rows")
    config: SQNConfig

    @classmethod
    def exploration(cls, config: DQNConfig, timesteps: int, worker_index: int) -> dict[str, Any]:
        return {"random": True} if timesteps < config.start_steps else {}

    def build(self, seed: int) -> None:
        DQN.build(self, seed)
        self.add_temperature(self.config, 0.25 * math.log(self.spec.actions[0].num_params), 0.5)

    def step(self, b: TransitionBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        error, metrics = DQN.step(self, b)
        alpha = self.temperature().detach()[0]
        if self.config.alpha is None:
            self.optimizers["alpha"].minimise(self.temperature.loss(metrics["entropy"]))
        return error, {**metrics, "alpha": alpha}

    def loss(self, b: TransitionBatch) -> TDLoss:
        """The weighted loss, |TD error| [N], and metrics: the means of Q(s, a) and of the policy's entropy."""
        import torch

        alpha = self.temperature().detach()
        with torch.no_grad():
            q_next = self.distribution.masked(q_values(self.spec, *self.target(b.next_inputs)), b.next_inputs.mask)
            if self.config.double and self.target is not self.online:  # the learnt policy, valued by the target network
                mine = self.distribution.masked(q_values(self.spec, *self.online(b.next_inputs)), b.next_inputs.mask)
            else:
                mine = q_next
            log_pi = (mine / alpha).log_softmax(-1)
            pi = log_pi.exp()
            entropy = -(pi * log_pi).sum(-1)
            target = b.reward + b.discount * ((pi * q_next).sum(-1) + alpha * entropy)
        q = q_values(self.spec, *self.online(b.inputs)).gather(-1, b.action[:, None])[:, 0]
        error = q - target
        loss = (b.weight * huber(error, self.config.huber)).mean()
        return loss, error.detach().abs(), {"q": q.detach().mean(), "entropy": entropy.mean()}

    def weights(self) -> Weights:
        """Workers act by the newest temperature."""
        weights = DQN.weights(self)
        weights.extra["temperature"] = np.array(self.networks["alpha"].module().item(), np.float32)
        return weights


DEFAULT_CONFIG: dict[str, object]
"""The settings of SQN with their defaults, a dict of your own each time."""
