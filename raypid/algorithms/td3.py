"""Twin delayed DDPG (Fujimoto et al. 2018, arXiv:1802.09477) and DDPG (Lillicrap et al. 2016, arXiv:1509.02971)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raypid.algorithms.off_policy import CriticsConfig, PolicyAndCritics, TransitionBatch, continuous
from raypid.nn.network_spec import NetworkSpec
from raypid.settings.config import ConfigError, unless
from raypid.settings.ranges import tunable
from raypid.types import Tensor


@dataclass(kw_only=True, slots=True)
class TD3Config(CriticsConfig):
    """Settings of TD3. Actions are in units of the canonical action: 1 is half the range."""

    exploration_noise: float = tunable(0.1, 0.03, 0.6, "log")
    """Standard deviation of the noise on the workers' actions. 1 is half the range of an action. Higher explores
    more."""
    target_noise: float = tunable(0.2, 0.05, 0.5, also=(0.0,))
    """Standard deviation of the noise on the target policy's actions. 1 is half the range of an action. It makes the
    critics' values of similar actions similar."""
    target_noise_clip: float = 0.5
    """Largest noise on the target policy's actions, in either direction."""

    ranges = {"be at least 0": ("exploration_noise", "target_noise", "target_noise_clip")}

    def own_idle(self) -> dict[str, str]:
        return unless(self.target_noise, "unless target_noise is above 0", "target_noise_clip")

    def own_checks(self) -> None:
        if self.critic_norm == "batch" or not self.target_network:
            raise ConfigError("TD3 and DDPG need target_network true, and critic_norm none or layer. SAC has CrossQ.")


class TD3(PolicyAndCritics[TD3Config]):
    """Q towards r + gamma * min_k Q'_k(s', pi'(s') + clipped noise); the policy climbs Q_1 (algorithm 1)."""

    Config = TD3Config
    metric_names = frozenset({"critic_loss", "policy_loss", "q"})
    shown_metrics = ("critic_loss", "policy_loss", "q", "replay_rows")

    @classmethod
    def network_spec(cls, config: TD3Config, spec: NetworkSpec) -> NetworkSpec:
        return continuous(config, spec, "squashed_deterministic")

    @classmethod
    def exploration(cls, config: TD3Config, timesteps: int, worker_index: int) -> dict[str, Any]:
        return {"random": True} if timesteps < config.start_steps else {"noise": config.exploration_noise}

    def build(self, seed: int) -> None:
        from raypid.nn.networks import FlatParameters

        super().build(seed)
        self.target_policy = self.make_policy(seed)
        self.networks |= {"target_policy": self.target_policy, "target_critics": FlatParameters(self.target_critics)}

    def step(self, b: TransitionBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        loss, error, q = self.critic_loss(b)
        self.optimizers["critics"].minimise(loss)
        metrics = {"critic_loss": loss.detach(), "q": q.mean()}
        if self.num_updates % self.config.policy_delay == 0:
            loss = self.policy_loss(b)
            self.optimizers["acting"].minimise(loss)
            metrics["policy_loss"] = loss.detach()
        self.track("target_policy", "acting")
        self.track("target_critics", "critics")
        return error, metrics

    def critic_loss(self, b: TransitionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Mean squared TD error summed over critics, |TD error| [N] of their mean, and Q [K, N]."""
        import torch

        c = self.config
        with torch.no_grad():
            action = torch.tanh(self.target_policy(b.next_inputs)[0])
            if c.target_noise:
                noise = self.normal(*action.shape) * c.target_noise
                action = (action + noise.clamp(-c.target_noise_clip, c.target_noise_clip)).clamp(-1, 1)
            target = b.reward + b.discount * self.target_critics(b.next_inputs, action).amin(0)
        q = self.critics(b.inputs, b.action)
        error = q - target
        return (b.weight * error * error).mean(1).sum(), error.detach().abs().mean(0), q.detach()

    def policy_loss(self, b: TransitionBatch) -> Tensor:
        """-E[Q_1(s, pi(s))] (equation 8)."""
        return -self.critics(b.inputs, self.policy(b.inputs)[0].tanh())[0].mean()


@dataclass(kw_only=True, slots=True)
class DDPGConfig(TD3Config):
    """Settings of DDPG: TD3 with one critic, no delay and no noise on the target."""

    num_critics: int = 1
    policy_delay: int = 1
    target_noise: float = 0.0


class DDPG(TD3):
    """Deep deterministic policy gradient (Lillicrap et al. 2016)."""

    Config = DDPGConfig
    metric_names = TD3.metric_names


DEFAULT_CONFIG: dict[str, object]
"""The settings of TD3 with their defaults, a dict of your own each time."""
