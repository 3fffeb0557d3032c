"""Torch networks of off-policy learning that never leave the learner: ensembles of Q(s, a), and Adam on flat tensors.

Axes: K critics of an ensemble; N rows; D inputs; A actions; H hidden units.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from raypid.nn.network_spec import NetworkSpec
from raypid.nn.networks import ImpalaResNet, NatureCNN, TorchInputs
from raypid.nn.numpy_mlp import orthogonal
from raypid.types import Collective

_ENCODERS = {"cnn": NatureCNN.encoder, "resnet": ImpalaResNet.encoder}
_ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "silu": functional.silu}
_MOMENTUM = 0.01


class Critics(nn.Module):
    """K fully connected Q networks, stacked so that a layer is one product; images pass one shared encoder first.

    norm: none, layer (without learnt scales), or batch (running statistics in `statistics`).
    half: the products between hidden layers, which are nearly all of the work, in bfloat16.
    """

    def __init__(
        self, spec: NetworkSpec, num_critics: int, num_actions: int, *, discrete: bool, norm: str, half: bool, seed: int
    ) -> None:
        super().__init__()
        rng, k = np.random.default_rng(seed), num_critics
        self.discrete, self.norm, self.in_half = discrete, norm, half
        self.activation = _ACTIVATIONS[spec.activation]
        self.scales = {leaf.path: leaf.scale for leaf in spec.pipeline.leaves if leaf.kind == "image"}
        self.paths = [path for path, _ in spec.images]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoders = nn.ModuleList(_ENCODERS[spec.network](shape, spec.channels) for _, shape in spec.images)
        width = spec.pipeline.vector_size + (0 if discrete else num_actions)
        with torch.no_grad():
            for encoder, (_, shape) in zip(self.encoders, spec.images, strict=True):
                width += encoder(torch.zeros(1, *shape)).shape[1]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        sizes = [width, *spec.hidden, num_actions if discrete else 1]
        for i, (rows, columns) in enumerate(zip(sizes, sizes[1:], strict=False)):
            gain = 0.1 if i == len(spec.hidden) else math.sqrt(2)
            self.weights.append(nn.Parameter(torch.from_numpy(orthogonal(rng, (k, rows, columns), gain))))
            self.biases.append(nn.Parameter(torch.zeros(k, 1, columns)))
        self.collective: Collective | None = None
        """The other learners of the run, where there are several: they hold the rows of a batch together."""
        for i, size in enumerate(spec.hidden if norm == "batch" else ()):
            self.register_buffer(f"statistics_{i}", torch.stack([torch.zeros(k, 1, size), torch.ones(k, 1, size)]))

    @property
    def statistics(self) -> list[Tensor]:
        """Running mean and variance [2, K, 1, H] of each normalised layer."""
        return list(self.buffers())

    def forward(self, inputs: TorchInputs, action: Tensor | None = None, *, train: bool = False) -> Tensor:
        """Q [K, N] of actions [N, A], or [K, N, A] for each discrete action. `train` normalises by the batch itself."""
        parts = [e(inputs.images[p].float() * self.scales[p]) for e, p in zip(self.encoders, self.paths, strict=True)]
        parts += [inputs.vector] if action is None else [inputs.vector, action]
        x = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
        h = x.expand(len(self.weights[0]), *x.shape)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if i == last and not self.discrete:  # one output: several times faster than a product of matrices
                return (h * weight.transpose(1, 2)).sum(-1) + bias[..., 0]
            if self.in_half and 0 < i < last:
                h = torch.bmm(h.bfloat16(), weight.bfloat16()).float() + bias
            else:
                h = torch.baddbmm(bias, h, weight)
            if i < last:
                h = self.activation(self._normalized(h, i, train))
        return h

    def _normalized(self, h: Tensor, i: int, train: bool) -> Tensor:
        if self.norm == "layer":
            return functional.layer_norm(h, h.shape[-1:])
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
        """Mean and variance [K, 1, H] over the rows; with a collective, over those of all learners."""
        mean = h.mean(1, keepdim=True)
        if self.collective is None:
            return mean, h.var(1, keepdim=True, unbiased=False)
        mean = _Mean.apply(mean, self.collective)
        return mean, _Mean.apply(((h - mean) ** 2).mean(1, keepdim=True), self.collective)


class _Mean(torch.autograd.Function):
    """The mean of a tensor over learners. What depends on it there has a part in its gradient here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, collective: Collective) -> Tensor:
        ctx.collective = collective
        return _mean(x, collective)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _mean(gradient, ctx.collective), None


def _mean(x: Tensor, collective: Collective) -> Tensor:
    total: Tensor = collective.sum(x.detach().clone(memory_format=torch.contiguous_format))
    return total / collective.size


class Temperature(nn.Module):
    """A positive number that is learnt by its logarithm; 0 stays 0."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor([math.log(value) if value else -math.inf]))

    def forward(self) -> Tensor:
        """[1]."""
        return self.log.exp()
