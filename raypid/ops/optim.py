"""Optimizers on one flat NumPy buffer, in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from raypid.types import Array, matching


def clip_norm(gradient: Array, max_norm: float | None) -> float:
    """Scale `gradient` [P] in place so that its L2 norm is at most `max_norm`; return the norm before scaling."""
    norm = float(np.sqrt(gradient @ gradient))
    if max_norm is not None and norm > max_norm:
        gradient *= max_norm / norm
    return norm


class Stateful(Protocol):
    """The state of an optimizer, for checkpoints."""

    def state_dict(self) -> dict[str, Array | int]: ...
    def load_state_dict(self, state: Mapping[str, Array | int]) -> None: ...


class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1) on `parameters` [P] float32."""

    def __init__(self, parameters: Array, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-5) -> None:
        self.parameters, self.betas, self.eps = parameters, betas, eps
        self.m = np.zeros_like(parameters)
        self.v = np.zeros_like(parameters)
        self.steps = 0
        self._scratch = np.empty_like(parameters)

    def step(self, gradient: Array, lr: float) -> None:
        """Move the parameters against `gradient` [P]."""
        (b1, b2), t = self.betas, self._scratch
        self.steps += 1
        self.m *= b1
        self.m += np.multiply(gradient, 1 - b1, out=t)
        np.multiply(gradient, gradient, out=t)
        t *= 1 - b2
        self.v *= b2
        self.v += t
        np.sqrt(self.v, out=t)
        root = (1 - b2**self.steps) ** 0.5  # m and v are scaled by the step size and eps
        t += self.eps * root
        np.divide(self.m, t, out=t)
        t *= lr * root / (1 - b1**self.steps)
        self.parameters -= t

    def state_dict(self) -> dict[str, Array | int]:
        return {"m": self.m.copy(), "v": self.v.copy(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Array | int]) -> None:
        self.m[:] = matching(state["m"], self.m)
        self.v[:] = matching(state["v"], self.v)
        self.steps = int(state["steps"])


class RMSProp:
    """RMSProp (Tieleman and Hinton 2012) on `parameters` [P] float32.

    v = decay * v + (1 - decay) * g^2; the step is lr * g / (sqrt(v) + eps).
    """

    def __init__(self, parameters: Array, *, decay: float = 0.99, eps: float = 1e-5) -> None:
        self.parameters, self.decay, self.eps = parameters, decay, eps
        self.v = np.zeros_like(parameters)
        self._scratch = np.empty_like(parameters)

    def step(self, gradient: Array, lr: float) -> None:
        """Move the parameters against `gradient` [P]."""
        t = self._scratch
        np.multiply(gradient, gradient, out=t)
        t *= 1 - self.decay
        self.v *= self.decay
        self.v += t
        np.sqrt(self.v, out=t)
        t += self.eps
        np.divide(gradient, t, out=t)
        t *= lr
        self.parameters -= t

    def state_dict(self) -> dict[str, Array | int]:
        return {"v": self.v.copy()}

    def load_state_dict(self, state: Mapping[str, Array | int]) -> None:
        self.v[:] = matching(state["v"], self.v)


class SGD:
    """Gradient descent with momentum (Sutskever et al. 2013) on `parameters` [P] float32.

    velocity = momentum * velocity + gradient, without the paper's factor on the gradient.
    """

    def __init__(self, parameters: Array, *, momentum: float = 0.0) -> None:
        self.parameters, self.momentum = parameters, momentum
        self.velocity = np.zeros_like(parameters)

    def step(self, gradient: Array, lr: float) -> None:
        """Move the parameters against `gradient` [P]."""
        self.velocity *= self.momentum
        self.velocity += gradient
        self.parameters -= lr * self.velocity

    def state_dict(self) -> dict[str, Array | int]:
        return {"velocity": self.velocity.copy()}

    def load_state_dict(self, state: Mapping[str, Array | int]) -> None:
        self.velocity[:] = matching(state["velocity"], self.velocity)
