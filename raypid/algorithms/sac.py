"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), for continuous and discrete actions (Christodoulou 2019,
arXiv:1910.07207), with what pays in wall-clock time: normalised critics (CrossQ: Bhatt et al. 2024, arXiv:1902.05605),
n-step targets and a delayed policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from raypid.algorithms.base import State
from raypid.algorithms.off_policy import (
    CriticsConfig,
    PolicyAndCritics,
    TemperatureConfig,
    TransitionBatch,
    continuous,
    one_discrete,
)
from raypid.nn.network_spec import NetworkSpec
from raypid.settings.config import ConfigError
from raypid.types import Collective, Tensor, matching

if TYPE_CHECKING:
    from raypid.nn.networks import TorchInputs


@dataclass(kw_only=True, slots=True)
class SACConfig(TemperatureConfig, CriticsConfig):
    """Settings of SAC."""

    ranges = {"be at least 0": ("alpha",)}

    def own_checks(self) -> None:
        if self.critic_norm == "batch" and (self.target_network or self.learner_sync == "asynchronous"):
            raise ConfigError("critic_norm batch needs target_network false and learner_sync all_reduce.")
        if self.critic_norm == "batch" and self.th_compile and self.num_learners > 1:
            raise ConfigError("critic_norm batch of several learners cannot be compiled: set th_compile to false.")


class SAC(PolicyAndCritics[SACConfig]):
    """Maximise sum gamma^t (r + alpha * entropy): Q by equation 5, the policy by equation 9, alpha by equation 18."""

    Config = SACConfig
    metric_names = frozenset({"critic_loss", "policy_loss", "q", "entropy", "alpha"})
    shown_metrics = ("critic_loss", "policy_loss", "q", "entropy", "alpha", "replay_rows")

    @classmethod
    def network_spec(cls, config: SACConfig, spec: NetworkSpec) -> NetworkSpec:
        if any(leaf.nvec for leaf in spec.actions):
            one_discrete(spec)
            return replace(spec, head="actor")
        return continuous(config, spec, "squashed_gaussian")

    def build(self, seed: int) -> None:
        from raypid.nn.networks import FlatParameters

        super().build(seed)
        if self.config.target_network:
            self.networks["target"] = FlatParameters(self.target_critics)
        size = self.num_actions
        entropy, start = (0.5 * math.log(size), 0.01) if self.discrete else (-float(size), 0.03)
        self.add_temperature(self.config, entropy, start)

    def meet(self, collective: Collective) -> None:
        super().meet(collective)
        self.critics.collective = collective  # statistics of batches are those of all learners' rows

    def step(self, b: TransitionBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        c, alpha = self.config, self.temperature().detach()
        loss, error, q = self.critic_loss(b, alpha)
        self.optimizers["critics"].minimise(loss)
        metrics = {"critic_loss": loss.detach(), "q": q.mean()}
        if self.num_updates % c.policy_delay == 0:
            loss, entropy = self.policy_loss(b, alpha)
            self.optimizers["acting"].minimise(loss)
            if c.alpha is None:
                self.optimizers["alpha"].minimise(self.temperature.loss(entropy))
            metrics |= {"policy_loss": loss.detach(), "entropy": entropy, "alpha": alpha[0]}
        self.track("target", "critics")
        return error, metrics

    def critic_loss(self, b: TransitionBatch, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean squared TD error summed over critics, |TD error| [N] of their mean, and Q [K, N]."""
        import torch

        if self.config.critic_norm == "batch":
            q, target = self._crossq(b, alpha)
        else:
            with torch.no_grad():
                critics = self.target_critics if self.config.target_network else self.critics
                action, log_pi = self.choices(b.next_inputs)
                target = b.reward + b.discount * self.soft_value(critics(b.next_inputs, action), alpha, log_pi)
            q = self.taken(self.critics(b.inputs, None if self.discrete else b.action), b)
        error = q - target
        loss = (b.weight * error * error).mean(1).sum()
        return loss, error.detach().abs().mean(0), q.detach()

    def taken(self, q: Tensor, b: TransitionBatch) -> Tensor:
        """Return Q [K, N] of the actions in the batch, from the critics' Q [K, N], or Q [K, N, A] of all discrete
        actions."""
        return q.gather(-1, b.action.expand(len(q), -1)[..., None])[..., 0] if self.discrete else q

    def soft_value(self, q: Tensor, alpha: Tensor, log_pi: Tensor) -> Tensor:
        """V(s) [N] = E_pi[min_k Q_k(s, a) - alpha * log pi(a|s)] (equation 3), from Q [K, N] or [K, N, A] of `choices`."""
        return self.mean(q.amin(0) - alpha * log_pi, log_pi)

    def policy_loss(self, b: TransitionBatch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """E[alpha * log pi - min_k Q_k] (equation 9), and the policy's entropy."""
        action, log_pi = self.choices(b.inputs)
        q = self.critics(b.inputs, action).amin(0)
        if self.discrete:
            q = q.detach()
        return self.mean(alpha * log_pi - q, log_pi).mean(), -self.mean(log_pi, log_pi).mean().detach()

    def choices(self, inputs: TorchInputs) -> tuple[Tensor | None, Tensor]:
        """Return an action [N, A], drawn with a gradient, and its log_prob [N]; for discrete actions None, and log pi
        [N, A] of all of them."""
        if self.discrete:
            return None, self.distribution.masked(self.policy(inputs)[0], inputs.mask).log_softmax(-1)
        return self.draw(inputs)

    def mean(self, x: Tensor, log_pi: Tensor) -> Tensor:
        """E_pi[x] [N] over the `choices`: exact for discrete actions, else of the one that was drawn."""
        return (log_pi.exp() * x).sum(-1) if self.discrete else x

    def draw(self, inputs: TorchInputs) -> tuple[Tensor, Tensor]:
        """Actions [N, A] of the policy with a gradient, and their log_prob [N] (appendix C)."""
        import torch
        from torch.nn.functional import softplus

        # of each action its means, then what becomes its deviations
        parts = self.policy(inputs)[0].split([leaf.size for leaf in self.spec.actions for _ in range(2)], -1)
        mean, deviation = torch.cat(parts[::2], -1), -5 + 3.5 * (torch.tanh(torch.cat(parts[1::2], -1)) + 1)
        noise = self.normal(*mean.shape)
        u = mean + deviation.exp() * noise
        slope = 2 * (math.log(2) - u - softplus(-2 * u))
        log_prob = (-0.5 * noise * noise - deviation - 0.5 * math.log(2 * math.pi) - slope).sum(-1)
        return torch.tanh(u), log_prob

    def _crossq(self, b: TransitionBatch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Q [K, N] and targets [N] from one pass over both batches, so that their statistics are the same (CrossQ, figure 2)."""
        import torch

        both, n = b.inputs.joined(b.next_inputs), len(b.reward)
        with torch.no_grad():
            action, log_pi = self.choices(b.next_inputs)
        q = self.critics(both, None if action is None else torch.cat([b.action, action]), train=True)
        value = self.soft_value(q[:, n:].detach(), alpha, log_pi)
        return self.taken(q[:, :n], b), b.reward + b.discount * value

    def learnt_state(self) -> State:
        statistics = {str(i): s.cpu().numpy() for i, s in enumerate(self.critics.statistics)}
        return {**super().learnt_state(), "statistics": statistics}

    def load_learnt_state(self, state: State) -> None:
        import torch

        super().load_learnt_state(state)
        for i, s in enumerate(self.critics.statistics):
            saved = matching(state["statistics"][str(i)], np.empty(s.shape))
            s.copy_(torch.from_numpy(np.array(saved)))


DEFAULT_CONFIG: dict[str, object]
"""The settings of SAC with their defaults, a dict of your own each time."""
