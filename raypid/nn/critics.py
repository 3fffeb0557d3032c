"""Torch networks of off-policy learning that stay in the learner: ensembles of Q(s, a), and SAC's temperature.

Axes: K critics of an ensemble; N rows; D inputs; F features; A actions; H hidden units.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from raypid.nn.network_spec import NetworkSpec
from raypid.nn.networks import ACTIVATIONS, Encoders, TorchInputs, UserModule, affine, example_inputs, held, layer_norm
from raypid.nn.numpy_mlp import orthogonal
from raypid.plugins.registry import NETWORKS
from raypid.types import Collective

_MOMENTUM = 0.01


class _Context(FunctionCtx):
    collective: Collective


class Critics(nn.Module):
    """K fully connected Q networks, stacked so that a layer is one product for all of them.

    Images pass convolutions that all critics share. With a registered network each critic has one of its own, whose
    features [N, F] go into the fully connected layers in place of the observation.

    Args:
        spec: the policy's network: inputs, encoder, and widths of the fully connected layers.
        num_actions: elements of a continuous action, or number of discrete actions (`discrete`).
        norm: normalisation of hidden layers: none, layer (without learned scales), or batch (running `statistics`).
        half: compute the products between hidden layers, which are nearly all of the work, in bfloat16.
    """

    def __init__(
        self, spec: NetworkSpec, num_critics: int, num_actions: int, *, discrete: bool, norm: str, half: bool, seed: int
    ) -> None:
        super().__init__()
        rng, k = np.random.default_rng(seed), num_critics
        self.num_critics, self.discrete, self.norm, self.in_half = k, discrete, norm, half
        self.activation = ACTIVATIONS[spec.activation]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)  # it takes no more
            is_own = NETWORKS.is_own(spec.network)
            self.encoders = Encoders(spec, fast=False) if is_own else nn.ModuleList(UserModule(spec) for _ in range(k))
        with torch.no_grad():
            width = self._encoded(example_inputs(spec)).shape[-1] + (0 if discrete else num_actions)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        sizes = [width, *spec.hidden, num_actions if discrete else 1]
        for i, (rows, columns) in enumerate(zip(sizes, sizes[1:], strict=False)):
            gain = 0.1 if i == len(spec.hidden) else math.sqrt(2)
            self.weights.append(nn.Parameter(torch.from_numpy(orthogonal(rng, (k, rows, columns), gain))))
            self.biases.append(nn.Parameter(torch.zeros(k, 1, columns)))
        self.collective: Collective | None = None
        """The run's other learners, if any. Together they hold the rows of a batch."""
        for i, size in enumerate(spec.hidden if norm == "batch" else ()):
            self.register_buffer(f"statistics_{i}", torch.stack([torch.zeros(k, 1, size), torch.ones(k, 1, size)]))

    @property
    def statistics(self) -> list[Tensor]:
        """The running mean and variance [2, K, 1, H] of each normalised layer."""
        return list(self.buffers())

    def _encoded(self, inputs: TorchInputs) -> Tensor:
        """Return what the fully connected layers see of the observations: [N, D], or [K, N, F] of the critics' own encoders."""
        if isinstance(self.encoders, Encoders):
            return self.encoders.forward(inputs)
        return torch.stack([e.features(inputs) for e in self.encoders if isinstance(e, UserModule)])

    def forward(self, inputs: TorchInputs, action: Tensor | None = None, *, train: bool = False) -> Tensor:
        """Return Q [K, N] of actions [N, A]; without `action`, Q [K, N, A] of each discrete action.

        `train` normalises by the statistics of the batch itself.
        """
        x = self._encoded(inputs)
        if action is not None:
            x = torch.cat([x, action.expand(*x.shape[:-1], -1)], -1)
        weights, biases = held(self.weights).values(), held(self.biases).values()
        h, last = x.expand(self.num_critics, *x.shape[-2:]), len(weights) - 1
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            if i == last and not self.discrete:  # one output: several times faster than a product of matrices
                return (h * weight.transpose(1, 2)).sum(-1) + bias[..., 0]
            h = affine(h, weight, bias, in_half=self.in_half and 0 < i < last)
            if i < last:
                h = self.activation(self._normalized(h, i, train))
        return h

    def _normalized(self, h: Tensor, i: int, train: bool) -> Tensor:
        """Normalise the outputs [K, N, H] of layer i."""
        if self.norm == "layer":
            return layer_norm(h)
        if self.norm == "none":
            return h
        running: Tensor = getattr(self, f"statistics_{i}")
        mean, variance = running
        if train:
            now = torch.stack(self._moments(h))
            running.lerp_(now.detach(), _MOMENTUM)
            mean, variance = now
        return (h - mean) * torch.rsqrt(variance + 1e-5)

    def _moments(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance [K, 1, H] over the rows; with several learners, over the rows of all of them."""
        mean = h.mean(1, keepdim=True)
        if self.collective is None:
            return mean, h.var(1, keepdim=True, unbiased=False)
        everywhere: Tensor = _Mean.apply(mean, self.collective)
        variance: Tensor = _Mean.apply(((h - everywhere) ** 2).mean(1, keepdim=True), self.collective)
        return everywhere, variance


class _Mean(torch.autograd.Function):
    """The mean of a tensor over learners. The gradient counts what depends on the mean in every learner."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, collective: Collective) -> Tensor:
        ctx.collective = collective
        return _mean(x, collective)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        return _mean(gradient, ctx.collective), None


def _mean(x: Tensor, collective: Collective) -> Tensor:
    return collective.sum(x.detach().clone(memory_format=torch.contiguous_format)) / collective.size


class Temperature(nn.Module):
    """A positive number, learned through its logarithm so that the policy's entropy is `target_entropy`. 0 stays 0."""

    def __init__(self, value: float, target_entropy: float) -> None:
        super().__init__()
        self.target_entropy = target_entropy
        self.log = nn.Parameter(torch.tensor([math.log(value) if value else -math.inf]))

    def forward(self) -> Tensor:
        """[1]."""
        return self.log.exp()

    def loss(self, entropy: Tensor) -> Tensor:
        """The temperature rises where the entropy [] lies below its target (SAC, equation 18)."""
        return (self() * (entropy - self.target_entropy)).sum()
