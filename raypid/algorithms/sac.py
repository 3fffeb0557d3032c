"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), for continuous and discrete actions (Christodoulou 2019,
arXiv:1910.07207), with what pays in wall-clock time: normalised critics (CrossQ: Bhatt et al. 2024, arXiv:1902.05605),
n-step targets and a delayed policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from raypid.algorithms.base import State
from raypid.algorithms.off_policy import (
    Batch,
    Norm,
    OffPolicy,
    OffPolicyConfig,
    continuous,
    one_discrete,
    temperature_idle,
)
from raypid.config import ConfigError
from raypid.nn.network_spec import NetworkSpec
from raypid.types import Collective, Sample, Update, matching

if TYPE_CHECKING:
    from torch import Tensor

    from raypid.nn.critics import Critics
    from raypid.nn.networks import TorchInputs


@dataclass(kw_only=True, slots=True)
class SACConfig(OffPolicyConfig):
    """Settings of SAC."""

    alpha: float | None = None
    """Fixed temperature; none learns it so that the entropy is target_entropy."""
    alpha_init: float = 1.0
    """Where the learnt temperature begins."""
    target_entropy: float | None = None
    """none: minus the number of action elements; for n discrete actions half of log n."""
    num_critics: int = 2
    """Critics; the smallest value counts."""
    critic_norm: Norm = "layer"
    """Normalisation in the critics: none, layer, or (of SAC) batch, which is CrossQ, with target_network false."""
    policy_delay: int = 2
    """Critic updates for each policy update."""
    lr_critic: float | None = None
    """Learning rate of the critics; none: lr."""

    ranges = {
        "be at least 0": ("alpha",),
        "be at least 1": ("num_critics", "policy_delay"),
        "be above 0": ("alpha_init",),
    }

    def own_idle(self) -> dict[str, str]:
        return temperature_idle(self.alpha)

    def own_checks(self) -> None:
        if self.critic_norm == "batch" and self.target_network:
            raise ConfigError("critic_norm batch bootstraps from the same network: set target_network to false.")
        if self.critic_norm == "batch" and self.learner_sync == "asynchronous":
            raise ConfigError("critic_norm batch needs learner_sync all_reduce: statistics are no parameters.")
        if self.critic_norm == "batch" and self.th_compile and self.num_learners > 1:
            raise ConfigError("critic_norm batch of several learners cannot be compiled: set th_compile to false.")


class SAC(OffPolicy[SACConfig]):
    """Maximise sum gamma^t (r + alpha * entropy): Q by equation 5, the policy by equation 9, alpha by equation 18."""

    Config = SACConfig
    metric_names = frozenset({"critic_loss", "policy_loss", "q", "entropy", "alpha"})

    @classmethod
    def network_spec(cls, config: SACConfig, spec: NetworkSpec) -> NetworkSpec:
        if any(leaf.nvec for leaf in spec.actions):
            one_discrete(spec)
            return replace(spec, head="actor")
        return continuous(config, spec, "squashed_gaussian")

    def build(self, seed: int) -> None:
        import torch

        from raypid.nn.critics import Critics, Temperature
        from raypid.nn.distributions import ActionDistribution
        from raypid.nn.networks import FlatParameters, TorchNetwork
        from raypid.nn.torch_optimizers import FlatAdam

        c, spec = self.config, self.spec
        self.discrete = spec.actions[0].kind == "categorical"
        size = sum(leaf.num_params if self.discrete else leaf.size for leaf in spec.actions)
        self.distribution = ActionDistribution(spec.actions)
        self.policy = TorchNetwork(spec, seed, str(self.device))
        if c.bf16:
            self.policy.compute_in_half()

        def critics() -> Critics:
            made = Critics(
                spec, c.num_critics, size, discrete=self.discrete, norm=c.critic_norm, half=c.bf16, seed=seed + 1
            )
            return made.to(self.device)

        self.critics, self.target = critics(), critics()
        self.temperature = Temperature(c.alpha_init if c.alpha is None else c.alpha).to(self.device)
        default = 0.5 * math.log(size) if self.discrete else -float(size)
        self.target_entropy = default if c.target_entropy is None else c.target_entropy
        self.networks = {"acting": self.policy, "critics": FlatParameters(self.critics)}
        if c.target_network:
            self.networks["target"] = FlatParameters(self.target)
        self.networks["alpha"] = FlatParameters(self.temperature)
        self.optimizers = {
            "acting": FlatAdam(self.policy, c.lr, c.adam_eps, c.max_grad_norm),
            "critics": FlatAdam(self.networks["critics"], c.lr_critic or c.lr, c.adam_eps, c.max_grad_norm),
        }
        if c.alpha is None:
            self.optimizers["alpha"] = FlatAdam(self.networks["alpha"], c.lr)
        if c.th_compile:
            self.critic_loss = torch.compile(self.critic_loss)  # type: ignore[method-assign]
            self.policy_loss = torch.compile(self.policy_loss)  # type: ignore[method-assign]

    def meet(self, collective: Collective) -> None:
        super().meet(collective)
        self.critics.collective = collective  # statistics of batches are those of all learners' rows

    def update(self, batch: Sample, timesteps: int) -> Update:
        c, errors = self.config, []
        for b in self.batches(batch):
            alpha = self.temperature().detach()
            loss, error, q = self.critic_loss(b, alpha)
            self.optimizers["critics"].minimise(loss)
            metrics = {"critic_loss": loss.detach(), "q": q.mean()}
            if self.num_updates % c.policy_delay == 0:
                loss, entropy = self.policy_loss(b, alpha)
                self.optimizers["acting"].minimise(loss)
                if c.alpha is None:
                    self.optimizers["alpha"].minimise((self.temperature() * (entropy - self.target_entropy)).sum())
                metrics |= {"policy_loss": loss.detach(), "entropy": entropy, "alpha": alpha[0]}
            self.track("target", "critics")
            self.count(metrics)
            errors.append(error)
        return self.finish(errors)

    def critic_loss(self, b: Batch, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean squared TD error summed over critics, |TD error| [N] of their mean, and Q [K, N]."""
        import torch

        if self.config.critic_norm == "batch":
            q, target = self._crossq(b, alpha)
        else:
            with torch.no_grad():
                network = self.target if self.config.target_network else self.critics
                target = b.reward + b.discount * self.soft_value(b.next_inputs, network, alpha)
            q = self.q_of(self.critics, b)
        error = q - target
        loss = (b.weight * error * error).mean(1).sum()
        return loss, error.detach().abs().mean(0), q.detach()

    def q_of(self, critics: Critics, b: Batch) -> Tensor:
        """Q [K, N] of the actions that were taken."""
        if not self.discrete:
            return critics(b.inputs, b.action)
        return critics(b.inputs).gather(-1, b.action.expand(self.config.num_critics, -1)[..., None])[..., 0]

    def soft_value(self, inputs: TorchInputs, critics: Critics, alpha: Tensor) -> Tensor:
        """V(s) [N] = E_pi[min_k Q_k(s, a) - alpha * log pi(a|s)] (equation 3); exact for discrete actions."""
        if self.discrete:
            log_pi = self._log_pi(inputs)
            return (log_pi.exp() * (critics(inputs).amin(0) - alpha * log_pi)).sum(-1)
        action, log_prob = self.draw(inputs)
        return critics(inputs, action).amin(0) - alpha * log_prob

    def policy_loss(self, b: Batch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """E[alpha * log pi - min_k Q_k] (equation 9), and the policy's entropy."""
        if self.discrete:
            log_pi = self._log_pi(b.inputs)
            q = self.critics(b.inputs).detach().amin(0)
            pi = log_pi.exp()
            return (pi * (alpha * log_pi - q)).sum(-1).mean(), -(pi * log_pi).sum(-1).mean().detach()
        action, log_prob = self.draw(b.inputs)
        q = self.critics(b.inputs, action).amin(0)
        return (alpha * log_prob - q).mean(), -log_prob.mean().detach()

    def draw(self, inputs: TorchInputs) -> tuple[Tensor, Tensor]:
        """Actions [N, A] of the policy with a gradient, and their log_prob [N] (appendix C)."""
        import torch
        from torch.nn.functional import softplus

        params = self.policy(inputs)[0]
        means, raw, start = [], [], 0
        for leaf in self.spec.actions:
            means.append(params[:, start : start + leaf.size])
            raw.append(params[:, start + leaf.size : start + 2 * leaf.size])
            start += 2 * leaf.size
        mean, deviation = torch.cat(means, -1), -5 + 3.5 * (torch.tanh(torch.cat(raw, -1)) + 1)
        noise = self.normal(*mean.shape)
        u = mean + deviation.exp() * noise
        slope = 2 * (math.log(2) - u - softplus(-2 * u))
        log_prob = (-0.5 * noise * noise - deviation - 0.5 * math.log(2 * math.pi) - slope).sum(-1)
        return torch.tanh(u), log_prob

    def _log_pi(self, inputs: TorchInputs) -> Tensor:
        """log pi [N, A] of every discrete action."""
        return self.distribution.masked(self.policy(inputs)[0], inputs.mask).log_softmax(-1)

    def _crossq(self, b: Batch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Q [K, N] and targets [N] from one pass over both batches, so that their statistics are the same (CrossQ, figure 2)."""
        import torch

        both, n = b.inputs.joined(b.next_inputs), len(b.reward)
        if self.discrete:
            with torch.no_grad():
                log_pi = self._log_pi(b.next_inputs)
            q = self.critics(both, train=True)
            chosen = b.action.expand(self.config.num_critics, -1)[..., None]
            value = (log_pi.exp() * (q[:, n:].detach().amin(0) - alpha * log_pi)).sum(-1)
            return q[:, :n].gather(-1, chosen)[..., 0], b.reward + b.discount * value
        with torch.no_grad():
            action, log_prob = self.draw(b.next_inputs)
        q = self.critics(both, torch.cat([b.action, action]), train=True)
        value = q[:, n:].detach().amin(0) - alpha * log_prob
        return q[:, :n], b.reward + b.discount * value

    def learnt_state(self) -> State:
        statistics = {str(i): s.cpu().numpy() for i, s in enumerate(self.critics.statistics)}
        return {**super().learnt_state(), "statistics": statistics}

    def load_learnt_state(self, state: State) -> None:
        import torch

        super().load_learnt_state(state)
        for i, s in enumerate(self.critics.statistics):
            saved = matching(state["statistics"][str(i)], np.empty(s.shape))
            s.copy_(torch.from_numpy(np.array(saved)))
