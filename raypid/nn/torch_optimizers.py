"""Adam and RMSProp on the flat tensor of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

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

    def load_gradient(self, gradient: Array) -> None:
        self.gradient.copy_(torch.from_numpy(np.require(gradient, requirements=("C", "W"))))

    def _tensor(self, x: Array | int) -> Tensor:
        return torch.tensor(np.array(matching(x, np.empty(self.flat.shape))), device=self.flat.device)

    def _array(self, name: str) -> Array:
        """What the optimizer keeps under `name`; zeros before the first step."""
        state = self.optimizer.state.get(self.flat)
        return state[name].detach().cpu().numpy().copy() if state else np.zeros(self.flat.numel(), np.float32)


class FlatAdam(FlatOptimizer):
    """Adam, fused."""

    kind = partial(torch.optim.Adam, fused=True)

    def state_dict(self) -> dict[str, Array | int]:
        state = self.optimizer.state.get(self.flat)
        steps = int(state["step"].item()) if state else 0
        return {"m": self._array("exp_avg"), "v": self._array("exp_avg_sq"), "steps": steps}

    def load_state_dict(self, state: Mapping[str, Array | int]) -> None:
        step = torch.tensor(float(state["steps"]), device=self.flat.device)
        m, v = self._tensor(state["m"]), self._tensor(state["v"])
        self.optimizer.state[self.flat] = {"step": step, "exp_avg": m, "exp_avg_sq": v}


class FlatRMSProp(FlatOptimizer):
    """RMSProp without momentum."""

    kind = partial(torch.optim.RMSprop, foreach=False)

    def state_dict(self) -> dict[str, Array | int]:
        return {"v": self._array("square_avg")}

    def load_state_dict(self, state: Mapping[str, Array | int]) -> None:
        # RMSprop counts steps, but makes no use of the count
        self.optimizer.state[self.flat] = {"step": torch.tensor(0.0), "square_avg": self._tensor(state["v"])}
