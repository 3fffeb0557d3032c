"""Asynchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3): workers send gradients, not data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raypid.algorithms.a2c import A2C, A2CConfig, AdvantageLoss
from raypid.algorithms.base import FollowsGradients, GradientsConfig, State
from raypid.ops.normalizer import merge_moments, zero_moments
from raypid.settings.config import ConfigError
from raypid.types import Gradients, Moments, Trajectory, Weights, to_numpy

_RETURN = "return_"
"""Prefix of the moments of returns in `Weights.extra`."""


@dataclass(kw_only=True, slots=True)
class A3CConfig(GradientsConfig, A2CConfig):
    """Settings of A3C."""

    optimizer: Literal["adam", "rmsprop"] = "rmsprop"
    lr: float = 3e-3

    no_effect = {"batch_size": "for A3C, whose workers make one gradient of each whole fragment: set fragment_length"}

    def own_checks(self) -> None:
        if self.intrinsic_reward is not None:
            raise ConfigError("A3C has no intrinsic_reward, since its workers use the rewards: take IMPALA or APPO.")


class A3C(FollowsGradients[A3CConfig], AdvantageLoss[A3CConfig]):
    """A2C whose gradients are computed where the data are. The learner applies them in the order of arrival, with one optimizer
    for all workers (the paper's shared RMSProp, or Adam)."""

    Config = A3CConfig
    metric_names = A2C.metric_names
    shown_metrics = (*A2C.shown_metrics, "staleness")

    def gradients(self, trajectory: Trajectory, weights: Weights) -> Gradients:
        """Compute the gradient of the loss over a fragment, in a worker, at the weights that acted. All rows are one
        minibatch."""
        self.network.load(weights.flat)
        self.load_moments(weights.extra)
        if self.return_scaler is not None and f"{_RETURN}count" in weights.extra:
            self.return_scaler.elsewhere = Moments.from_arrays(weights.extra, _RETURN)
        batch = self.prepare(trajectory)
        out = self.network.evaluate(batch)
        loss, metrics = self.objective(out, batch)
        self.optimizer.differentiate(loss)
        flat = to_numpy(self.optimizer.gradient).copy()
        mean = self.mean_metrics([{**metrics}])
        moments, returns = trajectory.moments, self._take_returns()
        return Gradients(flat, trajectory.version, len(batch), mean, moments, trajectory.largest_reward, returns)

    def _take_returns(self) -> Moments | None:
        """Return the moments of returns that were not sent to the learner yet, in a worker. They count as sent from now
        on."""
        if self.return_scaler is None:
            return None
        unsent, self.return_scaler.moments = self.return_scaler.moments, zero_moments(1)
        return unsent

    def merge_returns(self, seen: Moments | None) -> None:
        if self.return_scaler is not None and seen is not None:
            self.return_scaler.moments = merge_moments(self.return_scaler.moments, seen)

    def weights(self) -> Weights:
        """Workers scale rewards by the returns of all of them."""
        weights = super().weights()
        if self.return_scaler is not None:
            weights.extra |= self.return_scaler.moments.as_arrays(_RETURN)
        return weights

    def begin(self, weights: Weights) -> None:
        """Do nothing: `gradients` loads the weights."""

    def fetch(self, weights: Weights, trajectory: Trajectory | None) -> Gradients | None:
        """Compute the gradient over a new fragment, in a worker; None if there is none."""
        return None if trajectory is None else self.gradients(trajectory, weights)

    def restart(self) -> None:
        """Do nothing: no fragment is kept."""

    def local_state(self) -> State:
        """Return the state of a worker: the returns of its running episodes, and the moments that were not sent to the
        learner yet."""
        return {} if self.return_scaler is None else self.return_scaler.state_dict()

    def load_local_state(self, state: State) -> None:
        if self.return_scaler is not None and state:
            self.return_scaler.load_state_dict(state)


DEFAULT_CONFIG: dict[str, object]
"""The settings of A3C with their defaults, a dict of your own each time."""
