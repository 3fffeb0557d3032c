"""Adam on the flat parameters of a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raypid.nn.networks import FlatParameters
from raypid.types import Collective


class FlatAdam:
    """Adam with fused steps on the flat tensor of a network; its gradient is the network's `gradient`.

    With a `collective` a loss is the mean over a learner's rows, of which all have equally many: gradients are averaged.
    """

    def __init__(self, network: FlatParameters, lr: float, eps: float = 1e-8, max_norm: float | None = None) -> None:
        self.network, self.max_norm = network, max_norm
        self.collective: Collective | None = None
        self.flat = nn.Parameter(network.flat)
        self.flat.grad = network.gradient
        self.adam = torch.optim.Adam([self.flat], lr=lr, eps=eps, fused=True)

    def minimise(self, loss: Tensor) -> None:
        """One step down the gradient of `loss` by this network's parameters alone."""
        self.network.gradient.zero_()
        loss.backward(inputs=self.network.parameters)
        if self.collective is not None:
            self.collective.sum(self.network.gradient.div_(self.collective.size))
        if self.max_norm is not None:
            self.clip()
        self.adam.step()

    def clip(self) -> Tensor:
        """Scale the gradient down to the norm `max_norm`, where there is one; returns the norm that it had."""
        norm = torch.linalg.vector_norm(self.network.gradient)
        if self.max_norm is not None:
            self.network.gradient.mul_((self.max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def step(self, lr: float) -> None:
        """One step down the gradient as it is, with this learning rate."""
        self.adam.param_groups[0]["lr"] = lr
        self.adam.step()

    def state_dict(self) -> dict[str, Any]:
        """The same arrays as of `ops.optim.Adam`, so that a checkpoint goes on with either."""
        state = self.adam.state.get(self.flat)
        if not state:
            zeros = np.zeros(self.flat.numel(), np.float32)
            return {"m": zeros, "v": zeros.copy(), "steps": 0}
        m, v = (state[k].detach().cpu().numpy().copy() for k in ("exp_avg", "exp_avg_sq"))
        return {"m": m, "v": v, "steps": int(state["step"].item())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        def tensor(x: Any) -> Tensor:
            return torch.tensor(np.array(x), device=self.flat.device)

        step = torch.tensor(float(state["steps"]), device=self.flat.device)
        self.adam.state[self.flat] = {"step": step, "exp_avg": tensor(state["m"]), "exp_avg_sq": tensor(state["v"])}
