"""Agents of users, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np


class Careful:
    """An agent that keeps account of what it is asked."""

    def __init__(self, args: Any, model: Any) -> None:
        self.args, self.model, self.calls, self.left = args, model, [], 0

    @staticmethod
    def add_args(parser: Any) -> None:
        parser.add_argument("--passes", type=int, default=2)

    def set_weights(self, weights: Any) -> None:
        self.calls.append("set_weights")
        self.model.set_weights(weights)

    def send_trajectory(self, trajectory: Any, Rs: Any = None) -> None:
        assert Rs.shape == trajectory.reward.shape == (16, 3)
        self.calls.append("send_trajectory")
        self.gradient, self.left = self.model.step(trajectory), self.args.passes

    def fetch_grads(self, weights: Any) -> Any:
        if not self.left:
            return None
        self.calls.append("fetch_grads")
        self.left -= 1
        self.model.set_weights(weights)
        return self.gradient, {"left": self.left, "sent": self.calls.count("send_trajectory")}


class Faulty(Careful):
    def fetch_grads(self, weights: Any) -> Any:
        if self.args.passes == 0:
            return None
        if self.args.passes == 1:
            raise ValueError("my fault")
        if self.args.passes == 2:
            return {"layers": [{"w": np.zeros((2, 2))}, {"b": np.zeros(2)}]}
        return {"layers": [{"w": np.full((4, 2), np.nan)}, {"b": np.zeros(2)}]}
