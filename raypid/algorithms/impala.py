"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561) and APPO, its clipped form (Luo et al. 2020, arXiv:1912.00167)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from raypid.algorithms.a2c import A2C
from raypid.algorithms.actor_critic import ActorCriticConfig
from raypid.algorithms.base import AsynchronousConfig
from raypid.algorithms.minibatches import MAX_LOG_RATIO, Batch, Streams, vtrace_columns
from raypid.algorithms.ppo import CLIPPED_METRICS, ClippedSurrogate
from raypid.config import ConfigError, unless
from raypid.nn.distributions import array_module
from raypid.nn.network_spec import NetworkSpec
from raypid.ops.vtrace import vtrace
from raypid.types import Array, Trajectory, Update, Weights


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

    def idle(self) -> dict[str, str]:
        return {**ActorCriticConfig.idle(self), **AsynchronousConfig.idle(self)}

    def validate(self) -> None:
        ActorCriticConfig.validate(self)
        AsynchronousConfig.validate(self)
        for name in ("rho_clip", "c_clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)!r}.")
        if self.num_epochs < 1 or self.fragments_per_update < 1:
            raise ConfigError(
                f"num_epochs and fragments_per_update must be at least 1, not {self.num_epochs} and {self.fragments_per_update}."
            )


class IMPALA(A2C):
    """A2C's loss, with advantages and targets by V-trace (section 4.2): the policy that acted may be older."""

    Config = IMPALAConfig
    metric_names = A2C.metric_names
    flow = "async"
    surrogate: ClassVar[bool] = False
    """The loss has the ratio pi / mu itself, so advantages are not multiplied by rho."""

    @property
    def by_streams(self) -> bool:
        return True

    @classmethod
    def update_size(cls, config: Any) -> int:
        return int(config.fragments_per_update)

    def columns(self, t: Trajectory, reward: Array) -> dict[str, Array]:
        return vtrace_columns(t, reward, self.config.gamma)

    def estimate(self, columns: dict[str, Any], log_prob: Any, value: Any) -> dict[str, Any]:
        c, b = self.config, columns
        ratio = self.ratio(log_prob, b["log_prob"]) * b["valid"]
        following = value[1:] * (1 - b["final"]) + b["final_value"]
        target, advantage = vtrace(
            ratio,
            b["reward"],
            value[:-1],
            following,
            b["discount"],
            b["passes"],
            c.rho_clip,
            c.c_clip,
            c.gae_lambda,
            weigh=not self.surrogate,
        )
        return {**columns, "target": target, "advantage": advantage}

    def ratio(self, log_prob: Any, acted: Any) -> Any:
        """pi(a|s) / mu(a|s) from their logarithms [T, B]."""
        return array_module(log_prob).exp((log_prob - acted).clip(-MAX_LOG_RATIO, MAX_LOG_RATIO))

    def update(self, batch: Trajectory, timesteps: int) -> Update:
        lr = self.lr(timesteps)
        rows = self.begin(self.learner.to_device(self.prepare(batch)))
        metrics = [
            self.learner.step(minibatch, lr)
            for _ in range(self.config.num_epochs)
            for minibatch in self.minibatches(rows)
        ]
        self.finish(batch)
        return Update({**self.mean_metrics(metrics), "lr": lr}, len(metrics))

    def begin(self, streams: Streams) -> Batch | Streams:
        """What the minibatches of a batch are cut from: streams, since V-trace asks what the network says at each step."""
        return streams


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

    def idle(self) -> dict[str, str]:
        return {
            **IMPALAConfig.idle(self),
            **unless(self.vtrace, "unless vtrace is true", "rho_clip", "c_clip"),
            **unless(self.target_network, "unless target_network is true", "target_interval", "target_ratio"),
        }

    def validate(self) -> None:
        IMPALAConfig.validate(self)
        for name in ("clip", "target_interval", "target_ratio"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)!r}.")


class APPO(ClippedSurrogate, IMPALA):
    """IMPALA with PPO's clipped surrogate, several times over each batch: advantages are computed once, by the network as the batch finds
    it, and minibatches are random rows (whole streams, where there is a memory).

    With a target network (IMPACT, section 3.2) advantages are by that of pi_target, and the ratio is min(mu / pi_target, rho) * pi / mu,
    where mu acted.
    """

    Config = APPOConfig
    metric_names = CLIPPED_METRICS
    surrogate = True

    def __init__(self, config: Any, spec: NetworkSpec, seed: int) -> None:
        super().__init__(config, spec, seed)
        self.clip = config.clip
        self.target: Array | None = self.learner.numpy().copy() if config.target_network else None
        """[P] parameters of the target network."""

    def begin(self, streams: Streams) -> Batch | Streams:
        if self.target is not None and self.version % self.config.target_interval == 0:
            self.target[:] = self.learner.numpy()
        log_prob, value = self.learner.evaluate(streams, self.target)
        columns = super().estimate(streams.columns, log_prob, value)
        if not self.config.vtrace:
            columns["advantage"] = columns["target"] - value[:-1]
        if self.target is not None:
            acted = columns["log_prob"] - math.log(self.config.target_ratio)
            columns["log_prob"] = array_module(log_prob).maximum(log_prob, acted)
        streams = replace(streams, columns=columns)
        return streams if self.spec.memory else streams.rows(self.collective)

    def estimate(self, columns: dict[str, Any], log_prob: Any, value: Any) -> dict[str, Any]:
        return columns

    def ratio(self, log_prob: Any, acted: Any) -> Any:
        """Without V-trace as if the network itself had acted."""
        return super().ratio(log_prob, acted if self.config.vtrace else log_prob)

    def set_weights(self, weights: Weights) -> None:
        super().set_weights(weights)
        if self.target is not None:
            self.target[:] = weights.flat

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return state if self.target is None else {**state, "target": self.target.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.target is not None:
            self.target[:] = state.get("target", state["flat"])
