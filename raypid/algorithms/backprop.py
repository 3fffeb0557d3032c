"""Networks that learn from minibatches: what they say of the rows, and the gradient of a loss. Here with the hand-written
NumPy kernel; `torch_backprop` has autograd's.

Axes: n rows; T rows of B streams; P weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol

import numpy as np

from raypid.algorithms.base import FlatWeights, Parameters
from raypid.algorithms.minibatches import Minibatch, Streams
from raypid.nn.distributions import JointDistribution
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.numpy_mlp import Layer, SmallNetwork, initial_mlp
from raypid.nn.optimizer import Optimizer
from raypid.nn.pipeline import Inputs
from raypid.ops.optim import SGD, Adam, RMSProp, clip_norm
from raypid.types import Array, ArrayT, flat_rows, flat_views


@dataclass(slots=True)
class Evaluated(Generic[ArrayT]):
    """Outputs of a network for a minibatch and the actions in it."""

    log_prob: ArrayT
    """[n] log-probabilities of the actions; [T * B] for streams."""
    entropy: ArrayT
    """[n] entropies of the action distributions; [T * B] for streams."""
    value: ArrayT
    """[n] values; [(T+1) * B] for streams, which include the observations after the last rows."""


class LearningNetwork(FlatWeights, Protocol[ArrayT]):
    """The policy and value network of an actor-critic's learner (`ActorCritic.network`), in NumPy or torch."""

    flat: ArrayT
    """[P] the weights themselves, on the network's device."""

    def to_device(self, batch: Minibatch) -> Minibatch:
        """Move a batch to the network's device. It is done once for all epochs."""

    def evaluate(self, minibatch: Minibatch) -> Evaluated[ArrayT]:
        """Compute log_prob, entropy and value of the rows, and keep what the gradient needs."""

    def predict(self, streams: Streams[ArrayT], parameters: Array | None = None) -> tuple[ArrayT, ArrayT]:
        """Compute log_prob [T, B] of the actions and value [T+1, B] without a gradient, with `parameters` [P] or, if None, the weights."""


@dataclass(slots=True)
class NumpyEvaluated(Evaluated[Array]):
    """Outputs of a network, and what `NumpyNetwork.backward` needs. Axes: N rows of inputs; P distribution
    parameters."""

    x: Array
    """[N, D] the network's inputs."""
    layers: list[Layer]
    d_log_prob: Array
    """[n, P], or [n, 2P] of a Gaussian, whose log_std follow: the derivative of log_prob."""
    d_entropy: Array
    """Derivative of the entropy, in the same shape."""


class NumpyNetwork(Parameters, LearningNetwork[Array]):
    """A fully connected network with the hand-written kernel."""

    def __init__(self, spec: NetworkSpec, seed: int) -> None:
        self.spec = spec
        self.distribution = JointDistribution(spec.actions)
        flat = initial_mlp(spec, spec.pipeline.vector_size, np.random.default_rng(seed))
        self.mlp = SmallNetwork(spec, flat)
        Parameters.__init__(self, flat, self.mlp.table)
        self.gradient = np.zeros_like(flat)
        self.gradients = flat_views(self.gradient, self.table)

    def to_device(self, batch: Minibatch) -> Minibatch:
        return batch

    def evaluate(self, minibatch: Minibatch) -> NumpyEvaluated:
        inputs, action = minibatch.inputs, minibatch.action
        assert isinstance(inputs, Inputs)
        if isinstance(minibatch, Streams):
            inputs, action = inputs.flatten(), flat_rows(action)
        # of one leaf: others learn with torch
        assert isinstance(action, np.ndarray)
        params, value, layers = self.mlp.forward(inputs.vector)
        num = len(action)
        masked = self.distribution.masked(params, inputs.mask)
        log_prob, d_log_prob, entropy, d_entropy = self.mlp.logp_and_slopes(masked[:num], action)
        return NumpyEvaluated(log_prob, entropy, value, inputs.vector, layers, d_log_prob, d_entropy)

    def backward(
        self, out: NumpyEvaluated, which: Array | slice, by_log_prob: Array, by_entropy: float, by_value: Array
    ) -> None:
        """Write the gradient of a loss into `gradient`: from its derivatives by what the network said of m rows, of `which` [m]
        among those of `out`; that by the entropy is the same for each row."""
        d = out.d_log_prob[which] * by_log_prob[:, None]
        if by_entropy:
            d += out.d_entropy[which] * np.float32(by_entropy)
        num_params = self.spec.num_outputs
        if self.mlp.log_std is not None:
            self.gradients["log_std"][:] = d[:, num_params:].sum(0)
        d = d[:, :num_params]
        if len(d) < len(out.x):
            # of streams: the loss asks nothing of the other rows
            some, d = d, np.zeros((len(out.x), num_params), d.dtype)
            d[: len(out.log_prob)][which] = some
            some, by_value = by_value, np.zeros_like(out.value)
            by_value[: len(out.log_prob)][which] = some
        self.mlp.backward(self.gradients, out.x, out.layers, d, by_value)

    def predict(self, streams: Streams[Array], parameters: Array | None = None) -> tuple[Array, Array]:
        inputs = streams.inputs.flatten()
        assert isinstance(inputs, Inputs)
        network = self.mlp if parameters is None else SmallNetwork(self.spec, parameters)
        params, value, _ = network.forward(inputs.vector)
        acted = self.distribution.masked(params, inputs.mask)[: streams.valid.size]
        log_prob = self.distribution.log_prob(acted, network.log_std, flat_rows(streams.action))
        return streams.by_row(log_prob.astype(np.float32, copy=False), value)


class NumpyOptimizer(Optimizer[Array, Callable[[], None]]):
    """A rule of `ops.optim` with its `gradient`, into which calling a loss writes its own."""

    def __init__(self, gradient: Array, rule: Adam | RMSProp | SGD, max_norm: float | None) -> None:
        self.gradient, self.rule, self.max_norm = gradient, rule, max_norm

    def backward(self, loss: Callable[[], None]) -> None:
        loss()

    def clip(self) -> float:
        return clip_norm(self.gradient, self.max_norm)

    def step(self, lr: float | None) -> None:
        assert lr is not None
        self.rule.step(self.gradient, lr)

    def load_gradient(self, gradient: Array) -> None:
        self.gradient[:] = gradient

    def state_dict(self) -> dict[str, Array | int]:
        return self.rule.state_dict()

    def load_state_dict(self, state: Mapping[str, Array | int]) -> None:
        self.rule.load_state_dict(state)
