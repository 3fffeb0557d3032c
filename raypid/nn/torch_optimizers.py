"""Adam and RMSProp on the flat parameters of a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raypid.nn.networks import FlatParameters
from raypid.types import Collective


class FlatOptimizer(ABC):
    """Steps on the flat tensor of a network; its gradient is the network's `gradient`.

    With a `collective` a loss is the mean over a learner's rows, of which all have equally many: gradients are averaged.
    """

    optimizer: torch.optim.Optimizer

    def __init__(self, network: FlatParameters, max_norm: float | None) -> None:
        self.network, self.max_norm = network, max_norm
        self.collective: Collective | None = None
        self.flat = nn.Parameter(network.flat)
        self.flat.grad = network.gradient

    def minimise(self, loss: Tensor) -> None:
        """One step down the gradient of `loss` by this network's parameters alone."""
        self.network.gradient.zero_()
        loss.backward(inputs=self.network.parameters)
        if self.collective is not None:
            self.collective.sum(self.network.gradient.div_(self.collective.size))
        if self.max_norm is not None:
            self.clip()
        self.optimizer.step()

    def clip(self) -> Tensor:
        """Scale the gradient down to the norm `max_norm`, where there is one; returns the norm that it had."""
        norm = torch.linalg.vector_norm(self.network.gradient)
        if self.max_norm is not None:
            self.network.gradient.mul_((self.max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def step(self, lr: float) -> None:
        """One step down the gradient as it is, with this learning rate."""
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The same arrays as of its twin in `ops.optim`, so that a checkpoint goes on with either."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def _tensor(self, x: Any) -> Tensor:
        return torch.tensor(np.array(x), device=self.flat.device)

    def _array(self, name: str) -> Any:
        """What the optimizer keeps under `name`; zeros before the first step."""
        state = self.optimizer.state.get(self.flat)
        return state[name].detach().cpu().numpy().copy() if state else np.zeros(self.flat.numel(), np.float32)


class FlatAdam(FlatOptimizer):
    """Adam, fused."""

    def __init__(self, network: FlatParameters, lr: float, eps: float = 1e-8, max_norm: float | None = None) -> None:
        super().__init__(network, max_norm)
        self.optimizer = torch.optim.Adam([self.flat], lr=lr, eps=eps, fused=True)

    def state_dict(self) -> dict[str, Any]:
        state = self.optimizer.state.get(self.flat)
        steps = int(state["step"].item()) if state else 0
        return {"m": self._array("exp_avg"), "v": self._array("exp_avg_sq"), "steps": steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        step = torch.tensor(float(state["steps"]), device=self.flat.device)
        m, v = self._tensor(state["m"]), self._tensor(state["v"])
        self.optimizer.state[self.flat] = {"step": step, "exp_avg": m, "exp_avg_sq": v}


class FlatRMSProp(FlatOptimizer):
    """RMSProp without momentum."""

    def __init__(
        self,
        network: FlatParameters,
        lr: float,
        eps: float = 1e-5,
        max_norm: float | None = None,
        decay: float = 0.99,
    ) -> None:
        super().__init__(network, max_norm)
        self.optimizer = torch.optim.RMSprop([self.flat], lr=lr, alpha=decay, eps=eps, foreach=False)

    def state_dict(self) -> dict[str, Any]:
        return {"v": self._array("square_avg")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        step = torch.tensor(0.0)  # RMSprop counts, but makes no use of it
        self.optimizer.state[self.flat] = {"step": step, "square_avg": self._tensor(state["v"])}
