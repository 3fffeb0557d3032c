"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), with the details that practice added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from raypid.algorithms.actor_critic import ActorCritic, ActorCriticConfig, step_metrics
from raypid.algorithms.base import USUAL, State, schedule
from raypid.algorithms.minibatches import MAX_LOG_RATIO, Batch, Loss, LossGradient, mean
from raypid.nn.network_spec import NetworkSpec
from raypid.settings.config import ConfigError, ModelConfig, unless
from raypid.settings.ranges import tunable
from raypid.types import Array, Tensor, Trajectory, Update

KL_STEP, LEAST_PART = 1.5, 0.02
"""Factor by which `desired_kl` changes the learning rate after an epoch, and the smallest part of it that is left."""


@dataclass(kw_only=True, slots=True)
class PPOConfig(ActorCriticConfig):
    """Settings of PPO. The defaults reach LunarLanderContinuous-v3's 200 and CartPole-v1's 475 as they are."""

    model: ModelConfig = field(default_factory=partial(ModelConfig, hidden=None))
    """The network."""
    num_envs_per_worker: int | None = tunable(None, 4, 64, "powers of 2", also=(None,))  # type: ignore[assignment]
    """Environments that one worker steps side by side. More make fewer, larger calls of the network. Default: chosen
    from the environment (--explain shows the value and why)."""
    fragment_length: int | None = tunable(None, 32, 1024, "powers of 2", also=(None,))  # type: ignore[assignment]
    """Rows that one call collects from each environment. A row is one step. Each update learns from this many rows of
    every environment. Default: chosen from the environment (--explain shows the value and why)."""
    batch_size: int = 128
    lr: float = 5e-4
    gamma: float | None = tunable(None, 0.9, 0.9995, "log of 1 - x", also=(None,))  # type: ignore[assignment]
    """Discount. Rewards count for about 1 / (1 - gamma) steps ahead: 0.99 looks 100 steps ahead. Default: chosen from
    the environment (--explain shows the value and why)."""
    gae_lambda: float | None = tunable(None, 0.8, 0.995, "log of 1 - x", also=(1.0, None))  # type: ignore[assignment]
    """Lambda of generalised advantages (equations 11 and 12). Lower trusts the learnt values more: less variance, more
    bias. Default: chosen from the environment (--explain shows the value and why)."""
    entropy_coef: float | None = tunable(None, 1e-4, 0.1, "log", also=(None,))  # type: ignore[assignment]
    """Weight of the entropy bonus. Higher keeps the policy random for longer, so that it explores more. Default: chosen
    from the environment (--explain shows the value and why)."""
    normalize_rewards: bool = True
    num_epochs: int | None = tunable(None, 1, 20, "log", also=(None,))
    """Passes over each batch. More learn more from the same data, but move the policy farther from the one that acted.
    Default: chosen from the environment (--explain shows the value and why)."""
    clip: float | None = tunable(None, 0.1, 0.4, also=(None,))
    """Clip range of the probability ratio. It counts only within [1 - clip, 1 + clip]. Smaller keeps each update closer
    to the policy that acted. Default: chosen from the environment (--explain shows the value and why)."""
    clip_schedule: Literal["constant", "linear"] = "constant"
    """How clip changes. constant: it stays. linear: it falls to schedule_end * clip over schedule_steps."""
    value_clip: float | None = None
    """Clip the change of a value in one update to [-x, x], in the value loss. none: no clipping."""
    target_kl: float | None = tunable(None, 0.003, 0.1, "log", also=(None,))
    """Stop the epochs once the policy has moved this far (mean of ratio - 1 - log ratio). none: all epochs."""
    desired_kl: float | None = tunable(None, 0.003, 0.1, "log", also=(0.0, None))
    """How far one epoch should move the policy (mean of ratio - 1 - log ratio). If it moves twice as far, the learning
    rate falls, down to a fiftieth of lr. If it moves half as far, the rate rises again, up to lr. 0: it stays at lr.
    Default: chosen from the environment (--explain shows the value and why)."""

    ranges = {
        "be above 0": ("clip", "value_clip", "target_kl"),
        "be at least 0": ("desired_kl",),
        "be at least 1": ("num_epochs",),
    }

    def own_idle(self) -> dict[str, str]:
        return unless(self.num_epochs != 1, "with one epoch, after which nothing is left to stop", "target_kl")


CLIPPED_METRICS = frozenset({"policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm", "lr"})


class Clipped(Protocol):
    """The settings of the clipped surrogate."""

    value_clip: float | None
    value_coef: float

    @property
    def entropy_coef(self) -> float | None: ...


class ClippedLoss:
    """The loss of PPO and APPO. An algorithm inherits from it before the ActorCritic that it extends."""

    config: Clipped
    clip: float
    """Current clip range."""

    def loss(self, log_prob: Tensor, entropy: Tensor, value: Tensor, batch: Batch[Tensor]) -> Loss:
        """-min(ratio * A, clipped ratio * A) + value_coef * half the squared error of the value - entropy_coef * entropy, [n] rows."""
        c, clip, advantage = self.config, self.clip, batch.advantage
        log_ratio = (log_prob - batch.log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - clip, 1 + clip)
        policy_loss = -(ratio * advantage).minimum(clipped * advantage).mean()
        error = (value - batch.target) ** 2
        if c.value_clip is not None:
            near = batch.value + (value - batch.value).clamp(-c.value_clip, c.value_clip)
            error = error.maximum((near - batch.target) ** 2)
        value_loss = 0.5 * error.mean()
        entropy = entropy.mean()
        loss = policy_loss + c.value_coef * value_loss - (c.entropy_coef or 0.0) * entropy
        change = ratio.detach() - 1
        kl, clip_fraction = (change - log_ratio.detach()).mean(), (change.abs() > clip).float().mean()
        return loss, {
            "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "kl": kl, "clip_fraction": clip_fraction,
        }  # fmt: skip

    def loss_gradient(self, log_prob: Array, entropy: Array, value: Array, batch: Batch[Array]) -> LossGradient:
        """The derivatives of `loss` by log_prob [n], entropy and value [n]; and its metrics."""
        c, clip, advantage, n = self.config, self.clip, batch.advantage, len(log_prob)
        log_ratio = (log_prob - batch.log_prob).clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratio = np.exp(log_ratio)
        clipped = ratio.clip(1 - clip, 1 + clip)
        surrogate, bound = ratio * advantage, clipped * advantage
        # elsewhere the clipped term is smaller, or the ratio is beyond all reason; both are flat
        counts = (surrogate <= bound) & (np.abs(log_ratio) < MAX_LOG_RATIO)
        by_log_prob = np.where(counts, surrogate, 0) * np.float32(-1 / n)
        difference = value - batch.target
        by_value, error = difference, difference * difference
        if c.value_clip is not None:
            change = value - batch.value
            near = batch.value + np.clip(change, -c.value_clip, c.value_clip) - batch.target
            by_value = np.where(error >= near * near, difference, np.where(np.abs(change) <= c.value_clip, near, 0))
            error = np.maximum(error, near * near)
        metrics = {
            "policy_loss": -mean(np.minimum(surrogate, bound)),
            "value_loss": 0.5 * mean(error),
            "entropy": mean(entropy),
            "kl": mean(ratio - 1 - log_ratio),
            "clip_fraction": np.count_nonzero(clipped != ratio) / n,
        }
        return by_log_prob, -(c.entropy_coef or 0.0) / n, by_value * np.float32(c.value_coef / n), metrics


class PPO(ClippedLoss, ActorCritic[PPOConfig]):
    """Maximise min(ratio * A, clip(ratio, 1 - eps, 1 + eps) * A), with ratio = pi(a|s) / pi_acted(a|s) (equation 7), several
    times over each batch; generalised advantages."""

    Config = PPOConfig
    config: PPOConfig
    where_endless: ClassVar[Mapping[str, object]] = {
        **ActorCritic.where_endless,
        "gae_lambda": 0.92,
        "clip": 0.15,
        "model.hidden": (128, 128),
    }
    where_long: ClassVar[Mapping[str, object]] = {"gamma": 0.998, "num_epochs": 8}
    where_native: ClassVar[Mapping[str, object]] = {"num_envs_per_worker": 16, "fragment_length": 128}
    where_fast: ClassVar[Mapping[str, object]] = {"num_envs_per_worker": 32, "fragment_length": 64}
    metric_names = CLIPPED_METRICS | {"explained_variance"}
    shown_metrics = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "explained_variance")

    def __init__(self, config: PPOConfig, spec: NetworkSpec, seed: int) -> None:
        super().__init__(config, spec, seed)
        assert config.num_epochs is not None and config.clip is not None
        self.num_epochs = config.num_epochs
        self.clip = self.clip_at_first = config.clip
        """Current clip range, and its initial value."""
        self.lr_part = 1.0
        """Factor of `desired_kl` on the learning rate."""

    @classmethod
    def network_spec(cls, config: PPOConfig, spec: NetworkSpec) -> NetworkSpec:
        return replace(spec, hidden=(64, 64)) if config.model.hidden is None else spec

    @classmethod
    def for_spaces(cls, config: PPOConfig, spec: NetworkSpec) -> dict[str, tuple[object, str]]:
        is_discrete = any(leaf.is_discrete for leaf in spec.actions)
        actions, entropy_coef, num_epochs = ("discrete", 0.01, 5) if is_discrete else ("continuous", 0.0, 10)
        entropy = (entropy_coef, f"for {actions} actions")
        if is_discrete and all(leaf.kind.endswith("discrete") for leaf in spec.pipeline.leaves):
            entropy = (0.05, "observations and actions are discrete")
        seen, desired_kl = ("are", 0.0) if spec.pipeline.normalize else ("are not", 0.01)
        scale = f"observations {seen} normalised"
        gae_lambda = (0.98, "for discrete actions")
        if not is_discrete:
            gae_lambda = (0.95 if spec.pipeline.normalize else 0.98, scale)
        chosen: dict[str, tuple[object, str]] = {
            "num_envs_per_worker": (8, USUAL),
            "fragment_length": (256, USUAL),
            "gae_lambda": gae_lambda,
            "clip": (0.2, USUAL),
            "gamma": (0.99, USUAL),
            "model.hidden": (spec.hidden, USUAL),
            "entropy_coef": entropy,
            "num_epochs": (num_epochs, f"for {actions} actions"),
            "desired_kl": (desired_kl, scale),
        }
        is_open = {name: choice for name, choice in chosen.items() if attrgetter(name)(config) is None}
        return super().for_spaces(config, spec) | is_open

    def update(self, batch: Trajectory, timesteps: int) -> Update:
        c, rows = self.config, self.prepare(batch)
        end = c.schedule_steps or self.run_end
        self.clip = self.clip_at_first * schedule(c.clip_schedule, timesteps, end, c.schedule_end)
        steps: list[dict[str, Any]] = []
        for _ in range(self.num_epochs):
            lr, epoch = self.lr(timesteps) * self.lr_part, []
            for minibatch in self.minibatches(rows):
                out = self.network.evaluate(minibatch)
                loss, metrics = self.objective(out, minibatch)
                norm = self.optimizer.minimise(loss, lr, minibatch.fraction)
                epoch.append(step_metrics(metrics, norm, minibatch.fraction))
            steps += epoch
            if epoch and self.moved(self.mean_metrics(epoch).get("kl")):
                break
        self.finish(batch)
        more = {"lr": lr, "explained_variance": self.explained_variance(rows)}
        return Update({**self.mean_metrics(steps), **more}, len(steps))

    def moved(self, kl: float | None) -> bool:
        """Adapt the learning rate to how far an epoch's policies were from the one that acted, and return whether to stop the epochs. A
        subclass's loss may leave `kl` out of its metrics: then the rate stays.

        Raises:
            ConfigError: target_kl is set, and `kl` is left out.
        """
        c = self.config
        if kl is None:
            if c.target_kl is not None:
                raise ConfigError(f"target_kl needs the metric kl, which {type(self).__name__}.loss does not report.")
            return False
        if c.desired_kl and kl > 2 * c.desired_kl:
            self.lr_part = max(self.lr_part / KL_STEP, LEAST_PART)
        elif not c.desired_kl or kl < c.desired_kl / 2:
            self.lr_part = min(self.lr_part * KL_STEP, 1.0)
        return c.target_kl is not None and kl > c.target_kl

    def learnt_state(self) -> State:
        return {**super().learnt_state(), "lr_part": self.lr_part}

    def load_learnt_state(self, state: State) -> None:
        super().load_learnt_state(state)
        self.lr_part = float(state.get("lr_part", 1.0))  # older ones have none


DEFAULT_CONFIG: dict[str, object]
"""The settings of PPO with their defaults, a dict of your own each time."""
