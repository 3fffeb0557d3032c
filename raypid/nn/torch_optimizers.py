"""Adam and RMSProp on the flat tensor of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raypid.nn.networks import FlatParameters
from raypid.nn.optimizer import Optimizer
from raypid.types import Array, matching


class FlatOptimizer(Optimizer[Tensor, Tensor]):
    """Steps on the flat tensor of a network; `gradient` is the network's.

    Args:
        network: its parameters, and no others, are moved by a loss.
        max_norm: largest L2 norm of a gradient; None does not clip.
        measure: compute the norm also where nothing is clipped.
        settings: more keywords of torch's optimizer.
    """

    kind: Callable[..., torch.optim.Optimizer]
    """Makes torch's optimizer."""
    arrays: ClassVar[Mapping[str, str]]
    """What torch's optimizer calls its arrays, by their names in a checkpoint."""

    def __init__(
        self,
        network: FlatParameters,
        lr: float,
        eps: float = 1e-8,
        max_norm: float | None = None,
        measure: bool = False,
        **settings: float,
    ) -> None:
        self.network, self.max_norm, self.measure = network, max_norm, measure
        self.gradient = network.gradient
        self.flat = nn.Parameter(network.flat)
        self.flat.grad = network.gradient
        self.optimizer = self.kind([self.flat], lr=lr, eps=eps, **settings)

    def backward(self, loss: Tensor) -> None:
        loss.backward(inputs=self.network.parameters)

    def clip(self) -> Tensor | float:
        if self.max_norm is None and not self.measure:
            return 0.0
        norm = torch.linalg.vector_norm(self.gradient)
        if self.max_norm is not None:
            self.gradient.mul_((self.max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def step(self, lr: float | None) -> None:
        if lr is not None:
            self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rate that steps without one of their own take."""
        self.optimizer.param_groups[0]["lr"] *= factor

    def load_gradient(self, gradient: Array) -> None:
        self.gradient.copy_(torch.from_numpy(np.require(gradient, requirements=("C", "W"))))

    def state_dict(self) -> dict[str, Array | int]:
        state = self.optimizer.state.get(self.flat) or dict.fromkeys(self.arrays.values(), torch.zeros_like(self.flat))
        return {name: state[theirs].detach().cpu().numpy().copy() for name, theirs in self.arrays.items()}

    def load_state_dict(self, state: Mapping[str, Array | int]) -> None:
        device, shape = self.flat.device, np.empty(self.flat.shape)
        saved = {theirs: np.array(matching(state[name], shape)) for name, theirs in self.arrays.items()}
        arrays = {theirs: torch.tensor(array, device=device) for theirs, array in saved.items()}
        # RMSprop counts steps, too, but makes no use of the count
        self.optimizer.state[self.flat] = {"step": torch.tensor(float(state.get("steps", 0)), device=device), **arrays}


class FlatAdam(FlatOptimizer):
    """Adam, fused."""

    kind = partial(torch.optim.Adam, fused=True)

    arrays = {"m": "exp_avg", "v": "exp_avg_sq"}

    def state_dict(self) -> dict[str, Array | int]:
        state = self.optimizer.state.get(self.flat)
        return {**super().state_dict(), "steps": int(state["step"].item()) if state else 0}


class FlatRMSProp(FlatOptimizer):
    """RMSProp without momentum."""

    kind = partial(torch.optim.RMSprop, foreach=False)
    arrays = {"v": "square_avg"}
