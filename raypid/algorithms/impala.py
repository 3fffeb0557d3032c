"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561) and APPO, its clipped form (Luo et al. 2020, arXiv:1912.00167)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from raypid.algorithms.a2c import A2C, AdvantageLoss
from raypid.algorithms.actor_critic import ActorCriticConfig, step_metrics
from raypid.algorithms.backprop import Evaluated
from raypid.algorithms.base import AsynchronousConfig, State
from raypid.algorithms.minibatches import (
    MAX_LOG_RATIO,
    Batch,
    Loss,
    LossGradient,
    Minibatch,
    Streams,
    vtrace_columns,
)
from raypid.algorithms.ppo import CLIPPED_METRICS, clipped_loss, clipped_loss_gradient
from raypid.config import unless
from raypid.nn.distributions import array_module
from raypid.nn.network_spec import NetworkSpec
from raypid.ops.vtrace import vtrace
from raypid.types import Array, ArrayT, Trajectory, Update, Weights, matching

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(kw_only=True, slots=True)
class IMPALAConfig(AsynchronousConfig, ActorCriticConfig):
    """Settings of IMPALA."""

    fragment_length: int = 32
    batch_size: int = 256
    """Rows in one gradient step; a larger batch is cut into several steps, by streams."""
    fragments_per_update: int = 1
    """Fragments (of one worker each) that one update takes."""
    lr: float = 1e-3
    entropy_coef: float = 0.01
    normalize_rewards: bool = True
    normalize_advantages: bool = False
    gae_lambda: float = 1.0
    """Lambda of V-trace; 1 is the paper's."""
    rho_clip: float = 1.0
    """Largest weight of a TD error: decides which policy's value is learnt."""
    c_clip: float = 1.0
    """Largest weight of a trace: decides how fast it is learnt."""
    num_epochs: int = 1
    """Passes over each batch."""

    ranges = {"be above 0": ("rho_clip", "c_clip"), "be at least 1": ("num_epochs", "fragments_per_update")}


class IMPALA(AdvantageLoss[IMPALAConfig]):
    """A2C's loss, with advantages and targets by V-trace (section 4.2): the policy that acted may be older."""

    Config = IMPALAConfig
    metric_names = A2C.metric_names
    flow = "async"

    @property
    def by_streams(self) -> bool:
        """V-trace asks what the network says of each row and the next."""
        return True

    @classmethod
    def update_size(cls, config: IMPALAConfig) -> int:
        return config.fragments_per_update

    def columns(self, t: Trajectory, reward: Array) -> dict[str, Array]:
        return vtrace_columns(t, reward, self.config.gamma)

    def update(self, batch: Trajectory, timesteps: int) -> Update:
        lr, streams = self.lr(timesteps), self.prepare(batch)
        steps = []
        for _ in range(self.config.num_epochs):
            for minibatch in self.minibatches(streams):
                out = self.network.evaluate(minibatch)
                corrected = self.corrected(minibatch, out)
                loss, metrics = self.objective(out, corrected)
                norm = self.optimizer.minimise(loss, lr, minibatch.fraction)
                steps.append(step_metrics(metrics, norm, minibatch.fraction))
        self.finish(batch)
        return Update({**self.mean_metrics(steps), "lr": lr}, len(steps))

    def corrected(self, streams: Minibatch, out: Evaluated[Any]) -> Minibatch:
        """Streams with the advantages and targets that V-trace makes of what the network says now."""
        assert isinstance(streams, Streams)
        log_prob, value = streams.by_row(out.log_prob, out.value)
        if hasattr(value, "detach"):
            log_prob, value = log_prob.detach(), value.detach()
        ratio = bounded_ratio(log_prob, streams.columns["log_prob"])
        return replace(streams, columns=self.advantages(streams.columns, ratio, value, weigh=True))

    def advantages(self, columns: dict[str, ArrayT], ratio: ArrayT, value: ArrayT, *, weigh: bool) -> dict[str, ArrayT]:
        """`columns` [T, B] with advantage and target: V-trace by the ratios pi / mu [T, B] and the values [T+1, B]. `weigh`:
        advantages have the factor rho."""
        c, b = self.config, columns
        following = value[1:] * (1 - b["final"]) + b["final_value"]
        known = (b["reward"], value[:-1], following, b["discount"], b["passes"])
        clips = (c.rho_clip, c.c_clip, c.gae_lambda)
        target, advantage = vtrace(ratio * b["valid"], *known, *clips, weigh=weigh)
        return {**columns, "target": target, "advantage": advantage}


def bounded_ratio(log_prob: ArrayT, acted: ArrayT) -> ArrayT:
    """pi(a|s) / mu(a|s) from their logarithms [T, B]."""
    log_ratio = (log_prob - acted).clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio: ArrayT = array_module(log_prob).exp(log_ratio)
    return ratio


@dataclass(kw_only=True, slots=True)
class APPOConfig(IMPALAConfig):
    """Settings of APPO. Where PPO has them too, the defaults are PPO's."""

    fragment_length: int = 256
    batch_size: int = 128
    """Rows in one gradient step; a larger batch is cut into several steps."""
    lr: float = 5e-4
    gae_lambda: float = 0.98
    """Lambda of the returns."""
    normalize_advantages: bool = True
    num_epochs: int = 5
    """Passes over each batch."""
    vtrace: bool = False
    """Correct advantages and targets by V-trace for who acted; false: generalised advantages by the newest values. Where probabilities change fast,
    as with continuous actions, V-trace cuts returns short; the loss clips its ratio in either case."""
    clip: float = 0.2
    """The probability ratio counts only within [1 - clip, 1 + clip]."""
    value_clip: float | None = None
    """Clip the value's change to [-x, x] in its loss; none does not."""
    target_network: bool = False
    """Measure ratios, advantages and targets by a copy of the network that follows every target_interval updates (IMPACT)."""
    target_interval: int = 4
    """Updates between copies."""
    target_ratio: float = 2.0
    """Largest ratio of the acting policy to the target network's that counts (IMPACT's rho)."""

    ranges = {"be above 0": ("clip", "value_clip", "target_interval", "target_ratio")}

    def own_idle(self) -> dict[str, str]:
        return {
            **unless(self.vtrace, "unless vtrace is true", "rho_clip", "c_clip"),
            **unless(self.target_network, "unless target_network is true", "target_interval", "target_ratio"),
        }


class APPO(IMPALA):
    """IMPALA with PPO's clipped surrogate, several times over each batch: advantages are computed once, by the network as it is
    when the batch arrives, and minibatches are random rows (whole streams, if there is a memory).

    With a target network (IMPACT, section 3.2) advantages are by that of pi_target, and the ratio is min(mu / pi_target, rho) * pi / mu,
    where mu acted.
    """

    Config = APPOConfig
    metric_names = CLIPPED_METRICS
    config: APPOConfig

    def __init__(self, config: APPOConfig, spec: NetworkSpec, seed: int) -> None:
        super().__init__(config, spec, seed)
        self.target = self.network.numpy().copy() if config.target_network else None
        """[P] parameters of the target network."""

    def update(self, batch: Trajectory, timesteps: int) -> Update:
        lr, rows = self.lr(timesteps), self.with_advantages(self.prepare(batch))
        steps = []
        for _ in range(self.config.num_epochs):
            for minibatch in self.minibatches(rows):
                out = self.network.evaluate(minibatch)
                loss, metrics = self.objective(out, minibatch)
                norm = self.optimizer.minimise(loss, lr, minibatch.fraction)
                steps.append(step_metrics(metrics, norm, minibatch.fraction))
        self.finish(batch)
        return Update({**self.mean_metrics(steps), "lr": lr}, len(steps))

    def with_advantages(self, streams: Minibatch) -> Minibatch:
        """A batch with advantages and targets by the network, or the target network, as it is now."""
        assert isinstance(streams, Streams)
        c = self.config
        if self.target is not None and self.version % c.target_interval == 0:
            self.target[:] = self.network.numpy()
        log_prob, value = self.network.predict(streams, self.target)
        acted = streams.columns["log_prob"]
        # without V-trace as if the network itself had acted
        ratio = bounded_ratio(log_prob, acted if c.vtrace else log_prob)
        columns = self.advantages(streams.columns, ratio, value, weigh=False)
        if not c.vtrace:
            columns["advantage"] = columns["target"] - value[:-1]
        if self.target is not None:
            columns["log_prob"] = array_module(log_prob).maximum(log_prob, acted - math.log(c.target_ratio))
        streams = replace(streams, columns=columns)
        return streams if self.spec.memory else streams.flattened(self.collective)

    def loss(self, log_prob: Tensor, entropy: Tensor, value: Tensor, batch: Batch[Tensor]) -> Loss:
        return clipped_loss(self.config, self.config.clip, log_prob, entropy, value, batch)

    def loss_gradient(self, log_prob: Array, entropy: Array, value: Array, batch: Batch[Array]) -> LossGradient:
        return clipped_loss_gradient(self.config, self.config.clip, log_prob, entropy, value, batch)

    def set_weights(self, weights: Weights) -> None:
        super().set_weights(weights)
        if self.target is not None:
            self.target[:] = weights.flat

    def learnt_state(self) -> State:
        state = super().learnt_state()
        return state if self.target is None else {**state, "target": self.target.copy()}

    def load_learnt_state(self, state: State) -> None:
        super().load_learnt_state(state)
        if self.target is not None:
            self.target[:] = matching(state.get("target", state["flat"]), self.target)
