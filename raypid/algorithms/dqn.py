"""Deep Q-learning (Mnih et al. 2015) with the parts of Rainbow (Hessel et al. 2018, arXiv:1710.02298) as switches, and
Ape-X (Horgan et al. 2018, arXiv:1803.00933), which is the same learner fed by many workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from raypid.algorithms.off_policy import OffPolicy, OffPolicyConfig, TransitionBatch, one_discrete
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.q_head import q_logits, q_values
from raypid.settings.config import ConfigError, unless
from raypid.settings.ranges import tunable
from raypid.types import Tensor


@dataclass(kw_only=True, slots=True)
class DQNConfig(OffPolicyConfig):
    """Settings of DQN."""

    lr: float = 1e-3
    normalize_rewards: bool = tunable(True, choices=(False, True))
    target_tau: float = tunable(0.01, 0.001, 0.05, "log")
    max_grad_norm: float | None = 10.0
    double: bool = True
    """Let the learnt network choose the next action, and the target network value it (van Hasselt et al. 2016)."""
    dueling: bool = tunable(False, choices=(False, True))
    """Compute Q from a state's value and actions' advantages (Wang et al. 2016). It helps if the choice of action often
    matters little."""
    noisy: float = 0.0
    """Initial noise (sigma_0) of noisy layers, which explore in place of epsilon (Fortunato et al. 2018; 0.5 there).
    Higher explores more. 0: no noisy layers."""
    num_atoms: int = 1
    """Atoms of a distribution over returns (C51: Bellemare et al. 2017; 51 there). More tell returns apart more finely,
    but make updates slower. 1: plain values."""
    v_min: float = -10.0
    """Smallest return that the atoms stand for. Lower ones count as this. It is in units of the rewards that are learnt
    from, after normalize_rewards, reward_scale and reward_clip."""
    v_max: float = 10.0
    """Largest return that the atoms stand for, in the same units as v_min. Higher ones count as this."""
    layer_norm: bool = tunable(True, choices=(False, True))
    """Normalise hidden layers. It allows higher learning rates, and target_network may then be false."""
    huber: float = 1.0
    """TD error at which the loss turns from square to linear. Smaller lets large errors count less. 0: square
    throughout."""
    epsilon_start: float = 1.0
    """Probability of a random action when learning begins."""
    epsilon_end: float = tunable(0.02, 0.005, 0.2, "log")
    """Probability of a random action after epsilon_steps. Higher explores more for the rest of the run."""
    epsilon_steps: int = tunable(10_000, 1_000, 50_000, "log")
    """Environment steps over which epsilon falls linearly. They begin after start_steps. More explore for longer."""
    worker_epsilon: float | None = None
    """alpha of Ape-X: stream i of N always explores with epsilon_end ** (1 + alpha * i / (N - 1)). none: all streams
    explore alike."""

    no_effect = {**OffPolicyConfig.no_effect, "bf16": "for Q-learning, which has no critics of its own"}

    ranges = {
        "be at least 0": ("noisy", "huber", "epsilon_steps", "worker_epsilon"),
        "lie in [1, 10000]": ("num_atoms",),
        "lie in [0, 1]": ("epsilon_start", "epsilon_end"),
    }

    def own_idle(self) -> dict[str, str]:
        start, noisy = ("epsilon_start", "epsilon_steps"), "with noisy layers, which explore in place of epsilon"
        return {
            **unless(self.worker_epsilon is None, "with worker_epsilon, which never changes", *start),
            **unless(not self.noisy, noisy, "epsilon_end", "worker_epsilon", *start),
            **unless(self.num_atoms > 1, "unless num_atoms is above 1", "v_min", "v_max"),
            **unless(self.num_atoms == 1, "with num_atoms above 1, whose loss is a cross-entropy", "huber"),
            **unless(self.target_network, "unless target_network is true", "double"),
        }

    def own_checks(self) -> None:
        if not self.v_min < self.v_max:
            raise ConfigError(f"The atoms need v_min below v_max, not {self.v_min:g} and {self.v_max:g}.")


TDLoss: TypeAlias = "tuple[Tensor, Tensor, dict[str, Tensor]]"
"""A loss [], |TD error| [N] and metrics."""


class DQN(OffPolicy[DQNConfig]):
    """Q(s, a) towards r + gamma * Q_target(s', argmax_a' Q(s', a')) (van Hasselt et al. 2016, equation 4)."""

    Config = DQNConfig
    metric_names = frozenset({"loss", "q", "td_error"})
    shown_metrics: ClassVar[tuple[str, ...]] = ("loss", "td_error", "q", "epsilon", "replay_rows")
    losses = ("loss",)

    @classmethod
    def network_spec(cls, config: DQNConfig, spec: NetworkSpec) -> NetworkSpec:
        one_discrete(spec)
        c = config
        atoms = tuple(np.linspace(c.v_min, c.v_max, c.num_atoms).tolist()) if c.num_atoms > 1 else ()
        return replace(spec, head="q", dueling=c.dueling, atoms=atoms, noisy=c.noisy, layer_norm=c.layer_norm)

    @classmethod
    def exploration(cls, config: DQNConfig, timesteps: int, worker_index: int) -> dict[str, Any]:
        c = config
        if timesteps < c.start_steps:
            return {"random": True}
        if c.noisy:
            return {}
        if c.worker_epsilon is not None:
            i = worker_index * c.num_envs_per_worker + np.arange(c.num_envs_per_worker)
            share = i / max(1, c.num_streams - 1)
            return {"epsilon": (c.epsilon_end ** (1 + c.worker_epsilon * share)).astype(np.float32)}
        done = min(1.0, (timesteps - c.start_steps) / c.epsilon_steps) if c.epsilon_steps else 1.0
        return {"epsilon": c.epsilon_start + (c.epsilon_end - c.epsilon_start) * done}

    def build(self, seed: int) -> None:
        import torch

        from raypid.nn.networks import TorchNetwork
        from raypid.nn.torch_optimizers import FlatAdam

        c = self.config
        self.online = TorchNetwork(self.spec, seed, str(self.device))
        self.target = TorchNetwork(self.spec, seed, str(self.device)) if c.target_network else self.online
        self.atoms = torch.tensor(self.spec.atoms, device=self.device)
        self.networks = {"acting": self.online, **({"target": self.target} if c.target_network else {})}
        self.optimizers = {"acting": FlatAdam(self.online, c.lr, c.adam_eps, c.max_grad_norm)}

    def step(self, b: TransitionBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        if self.config.noisy:
            self.online.perturb(self.rng)
            if self.target is not self.online:
                self.target.perturb(self.rng)
        loss, error, metrics = self.loss(b)
        self.optimizers["acting"].minimise(loss)
        self.track("target", "acting")
        return error, {"loss": loss.detach(), **metrics, "td_error": error.mean()}

    def loss(self, b: TransitionBatch) -> TDLoss:
        """The weighted loss, |TD error| [N] (the cross-entropy, where returns have a distribution), and metrics: the mean of Q(s, a)."""
        import torch

        with torch.no_grad():
            params, value = self.target(b.next_inputs)
            q_next = q_values(self.spec, params, value)
            chooser = q_next
            if self.config.double and self.target is not self.online:
                chooser = q_values(self.spec, *self.online(b.next_inputs))
            best = self.distribution.masked(chooser, b.next_inputs.mask).argmax(-1)
        logits = q_logits(self.spec, *self.online(b.inputs))  # [N, A, Z]
        rows = torch.arange(len(best), device=self.device)
        if self.spec.atoms:
            with torch.no_grad():
                following = q_logits(self.spec, params, value)[rows, best].softmax(-1)
                target = project(following, b.reward, b.discount, self.atoms)
            log_p = logits[rows, b.action].log_softmax(-1)
            error = -(target * log_p).sum(-1)
            q = (log_p.detach().exp() * self.atoms).sum(-1)
            return (b.weight * error).mean(), error.detach(), {"q": q.mean()}
        q = logits[rows, b.action, 0]
        target = b.reward + b.discount * q_next[rows, best]
        error = q - target
        loss = (b.weight * huber(error, self.config.huber)).mean()
        return loss, error.detach().abs(), {"q": q.detach().mean()}


def huber(error: Tensor, delta: float) -> Tensor:
    """Square up to `delta`, linear beyond; half the square where delta is 0."""
    import torch

    if not delta:
        return 0.5 * error * error
    return torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta)


def project(p: Tensor, reward: Tensor, discount: Tensor, atoms: Tensor) -> Tensor:
    """The distribution [N, Z] of reward + discount * z on the atoms z [Z], for p [N, Z] (Bellemare et al. 2017, algorithm 1)."""
    spacing, last = atoms[1] - atoms[0], len(atoms) - 1
    place = ((reward[:, None] + discount[:, None] * atoms - atoms[0]) / spacing).clamp(0, last)
    below = place.floor().clamp(max=last - 1)
    share = place - below
    index = below.long()
    projected = p.new_zeros(p.shape)
    projected.scatter_add_(1, index, p * (1 - share))
    return projected.scatter_add_(1, index + 1, p * share)


@dataclass(kw_only=True, slots=True)
class RainbowConfig(DQNConfig):
    """Settings of Rainbow: DQN with every part switched on."""

    dueling: bool = True
    noisy: float = tunable(0.5, 0.1, 1.0, "log")
    num_atoms: int = 51
    prioritized: bool = True
    priority_exponent: float = 0.5


class Rainbow(DQN):
    """Double, dueling, prioritised, n-step, distributional, noisy (Hessel et al. 2018)."""

    Config = RainbowConfig
    metric_names = DQN.metric_names
    shown_metrics = ("loss", "td_error", "q", "replay_rows")


@dataclass(kw_only=True, slots=True)
class ApeXConfig(DQNConfig):
    """Settings of Ape-X: many workers, an epsilon each, sharded prioritised replay."""

    num_workers: int = 4
    num_replay_shards: int = 2
    prioritized: bool = True
    dueling: bool = True
    fragment_length: int = 32
    epsilon_end: float = tunable(0.4, 0.1, 0.6, "log")
    worker_epsilon: float | None = tunable(7.0, 2.0, 10.0)


class ApeX(DQN):
    """DQN from the replay of many workers (Horgan et al. 2018)."""

    Config = ApeXConfig
    metric_names = DQN.metric_names


DEFAULT_CONFIG: dict[str, object]
"""The settings of DQN with their defaults, a dict of your own each time."""
