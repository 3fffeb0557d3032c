"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561) and APPO, its clipped form (Luo et al. 2020, arXiv:1912.00167)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from raypid.algorithms.a2c import A2C, A2CConfig, AdvantageLoss
from raypid.algorithms.actor_critic import step_metrics
from raypid.algorithms.backprop import Evaluated
from raypid.algorithms.base import AsynchronousConfig, State
from raypid.algorithms.minibatches import MAX_LOG_RATIO, Minibatch, Streams
from raypid.algorithms.ppo import CLIPPED_METRICS, ClippedLoss
from raypid.nn.distributions import array_module
from raypid.nn.network_spec import NetworkSpec
from raypid.ops.returns import passes
from raypid.ops.vtrace import vtrace
from raypid.settings.config import unless
from raypid.settings.ranges import tunable
from raypid.types import Array, ArrayT, Trajectory, Update, Weights, matching


@dataclass(kw_only=True, slots=True)
class IMPALAConfig(AsynchronousConfig, A2CConfig):
    """Settings of IMPALA."""

    num_envs_per_worker: int = 8
    fragment_length: int = 32
    batch_size: int = 256
    """Rows in one gradient step. A larger batch is cut into several steps, by streams."""
    fragments_per_update: int = tunable(1, 1, 8, "powers of 2")
    """Fragments that one update takes, each of one worker. More give updates with less noise, but from data that have
    waited longer."""
    gae_lambda: float = 1.0
    """Lambda of V-trace. 1 is the paper's. Lower trusts the learnt values more: less variance, more bias."""
    rho_clip: float = 1.0
    """Largest weight of a TD error in V-trace, which decides which policy's value is learnt. Larger is nearer to the
    newest policy, with more variance; smaller is nearer to the one that acted."""
    c_clip: float = 1.0
    """Largest weight of a trace in V-trace, which decides how fast values are learnt. Smaller has less variance, but
    learns more slowly."""
    num_epochs: int = tunable(1, 1, 4)
    """Passes over each batch. More learn more from the same data, but move the policy farther from the one that
    acted."""

    ranges = {"be above 0": ("rho_clip", "c_clip"), "be at least 1": ("num_epochs", "fragments_per_update")}


class IMPALA(AdvantageLoss[IMPALAConfig]):
    """A2C's loss, with advantages and targets by V-trace (section 4.2): the policy that acted may be older."""

    Config = IMPALAConfig
    metric_names = A2C.metric_names
    shown_metrics: ClassVar[tuple[str, ...]] = (*A2C.shown_metrics, "staleness")
    flow = "async"

    @property
    def by_streams(self) -> bool:
        """True: V-trace needs the network's outputs for consecutive rows."""
        return True

    @classmethod
    def update_size(cls, config: IMPALAConfig) -> int:
        return config.fragments_per_update

    def columns(self, t: Trajectory, reward: Array) -> dict[str, Array]:
        """Compute the columns that V-trace needs besides the learner's values, [T, B] float32 each.

        `final` is 1 where the environment handed out a true last observation, and `final_value` its value by the acting policy.
        """
        final, final_value = np.zeros((2, *t.valid.shape), np.float32)
        if t.final is not None:
            final[t.final.t, t.final.b] = 1
            final_value[t.final.t, t.final.b] = t.behaviour["final_value"]
        return {
            "log_prob": t.behaviour["log_prob"],
            "value": t.behaviour["value"][:-1],
            "reward": reward.astype(np.float32, copy=False),
            "discount": np.where(t.terminated, 0, np.float32(self.config.gamma)).astype(np.float32),
            "passes": passes(t.terminated, t.truncated, t.valid),
            "valid": t.valid.astype(np.float32),
            "final": final,
            "final_value": final_value,
        }

    def update(self, batch: Trajectory, timesteps: int) -> Update:
        lr, prepared, steps = self.lr(timesteps), self.prepare(batch), []
        for _ in range(self.config.num_epochs):
            for minibatch in self.minibatches(prepared):
                out = self.network.evaluate(minibatch)
                loss, metrics = self.objective(out, self.corrected(minibatch, out))
                norm = self.optimizer.minimise(loss, lr, minibatch.fraction)
                steps.append(step_metrics(metrics, norm, minibatch.fraction))
        self.finish(batch)
        return Update({**self.mean_metrics(steps), "lr": lr}, len(steps))

    def corrected(self, streams: Minibatch, out: Evaluated[Any]) -> Minibatch:
        """Return a minibatch of streams with advantages and targets by V-trace from the network's present outputs."""
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

    fragment_length: int = tunable(256, 32, 1024, "powers of 2")
    batch_size: int = 128
    """Rows in one gradient step. A larger batch is cut into several steps."""
    lr: float = 5e-4
    gae_lambda: float = 0.98
    """Lambda of the returns. Lower trusts the learnt values more: less variance, more bias."""
    normalize_advantages: bool = True
    num_epochs: int = tunable(5, 1, 20, "log")
    """Passes over each batch. More learn more from the same data, but move the policy farther from the one that
    acted."""
    vtrace: bool = False
    """Correct advantages and targets by V-trace for the older policy that acted. With continuous actions, whose
    probabilities change fast, V-trace cuts returns short. false: generalised advantages by the newest values. The loss
    clips its ratio in either case."""
    clip: float = tunable(0.2, 0.1, 0.4)
    """Clip range of the probability ratio. It counts only within [1 - clip, 1 + clip]. Smaller keeps each update closer
    to the policy that acted."""
    value_clip: float | None = None
    """Clip the change of a value in one update to [-x, x], in the value loss. none: no clipping."""
    target_network: bool = False
    """Measure ratios, advantages and targets by a copy of the network, renewed every target_interval updates (IMPACT)."""
    target_interval: int = tunable(4, 1, 16, "powers of 2")
    """Updates between renewals of the target network. Fewer follow the learnt network more closely."""
    target_ratio: float = 2.0
    """Largest ratio of the acting policy to the target network's that counts (IMPACT's rho)."""

    ranges = {"be above 0": ("clip", "value_clip", "target_interval", "target_ratio")}

    def own_idle(self) -> dict[str, str]:
        return {
            **unless(self.vtrace, "unless vtrace is true", "rho_clip", "c_clip"),
            **unless(self.target_network, "unless target_network is true", "target_interval", "target_ratio"),
        }


class APPO(ClippedLoss, IMPALA):
    """IMPALA with PPO's clipped surrogate, several times over each batch: advantages are computed once, by the network as it is
    when the batch arrives, and minibatches are random rows (whole streams, if there is a memory).

    With a target network (IMPACT, section 3.2) advantages are by that of pi_target, and the ratio is min(mu / pi_target, rho) * pi / mu,
    where mu acted.
    """

    Config = APPOConfig
    metric_names = CLIPPED_METRICS
    shown_metrics = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "staleness")
    config: APPOConfig

    def __init__(self, config: APPOConfig, spec: NetworkSpec, seed: int) -> None:
        super().__init__(config, spec, seed)
        self.clip = config.clip
        self.target = self.network.numpy().copy() if config.target_network else None
        """[P] parameters of the target network."""

    def prepare(self, trajectory: Trajectory) -> Minibatch:
        """Turn a trajectory into a batch with advantages and targets from the present network, or target network."""
        streams = super().prepare(trajectory)
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

    def corrected(self, streams: Minibatch, out: object) -> Minibatch:
        """Return the minibatch unchanged: `prepare` has computed its advantages and targets."""
        return streams

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


DEFAULT_CONFIG: dict[str, object]
"""The settings of IMPALA with their defaults, a dict of your own each time."""
