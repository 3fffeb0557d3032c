"""Adam and RMSProp on the flat tensor of a network, by the functions of torch's optimizers.

Not by the classes `torch.optim.Adam` and `torch.optim.RMSprop`: they import torch's compiler, which takes seconds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop

from raypid.nn.networks import FlatParameters
from raypid.nn.optimizer import Optimizer
from raypid.types import Array, matching


class FlatOptimizer(Optimizer[Tensor, Tensor]):
    """Steps on the flat tensor of a network; `gradient` is the network's.

    Args:
        network: its parameters, and no others, are moved by a loss.
        max_norm: largest L2 norm of a gradient; None does not clip.
        measure: compute the norm also where nothing is clipped.
        decay: of RMSProp's mean of squares.
    """

    arrays: ClassVar[tuple[str, ...]]
    """Names of its arrays in a checkpoint."""

    def __init__(
        self,
        network: FlatParameters,
        lr: float,
        eps: float = 1e-8,
        max_norm: float | None = None,
        measure: bool = False,
        decay: float = 0.99,
    ) -> None:
        self.network, self.max_norm, self.measure = network, max_norm, measure
        self.gradient = network.gradient
        self.lr, self.eps, self.decay = lr, eps, decay
        self.state: dict[str, Tensor] = {}
        """The arrays of the optimizer and the number of steps; empty before the first step."""

    @abstractmethod
    def _update(self) -> None:
        """Make a step with `lr`."""

    def backward(self, loss: Tensor) -> None:
        loss.backward(inputs=self.network.parameters)

    def clip(self) -> Tensor | float:
        if self.max_norm is None and not self.measure:
            return 0.0
        norm = torch.linalg.vector_norm(self.gradient)
        if self.max_norm is not None:
            self.gradient.mul_((self.max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    @torch.no_grad()
    def step(self, lr: float | None) -> None:
        if lr is not None:
            self.lr = lr
        if not self.state:
            self.state = {name: torch.zeros_like(self.network.flat) for name in self.arrays}
            self.state["steps"] = torch.zeros((), device=self.network.flat.device)
        self._update()

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rate that steps without one of their own take."""
        self.lr *= factor

    def load_gradient(self, gradient: Array) -> None:
        self.gradient.copy_(torch.from_numpy(np.require(gradient, requirements=("C", "W"))))

    def state_dict(self) -> dict[str, Array | int]:
        state = self.state or dict.fromkeys(self.arrays, torch.zeros_like(self.network.flat))
        return {name: state[name].cpu().numpy().copy() for name in self.arrays}

    def load_state_dict(self, state: Mapping[str, Array | int]) -> None:
        device, shape = self.network.flat.device, np.empty(self.network.flat.shape)
        # RMSprop counts steps, too, but makes no use of the count
        self.state = {n: torch.tensor(np.array(matching(state[n], shape)), device=device) for n in self.arrays}
        self.state["steps"] = torch.tensor(float(state.get("steps", 0)), device=device)


class FlatAdam(FlatOptimizer):
    """Adam, fused."""

    arrays = ("m", "v")

    def _update(self) -> None:
        m, v, steps = ([self.state[name]] for name in (*self.arrays, "steps"))
        adam(
            [self.network.flat], [self.gradient], m, v, [], steps, fused=True, foreach=False, amsgrad=False,
            beta1=0.9, beta2=0.999, lr=self.lr, weight_decay=0.0, eps=self.eps, maximize=False,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Array | int]:
        return {**super().state_dict(), "steps": int(self.state["steps"].item()) if self.state else 0}


class FlatRMSProp(FlatOptimizer):
    """RMSProp without momentum."""

    arrays = ("v",)

    def _update(self) -> None:
        v, steps = [self.state["v"]], [self.state["steps"]]
        rmsprop(
            [self.network.flat], [self.gradient], v, [], [], steps, foreach=False,
            lr=self.lr, alpha=self.decay, eps=self.eps, weight_decay=0.0, momentum=0.0, centered=False,
        )  # fmt: skip
