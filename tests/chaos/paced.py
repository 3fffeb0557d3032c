"""A worker and a learner that take their time, for loops; imported by name here and in actors."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from raypid.types import Report, Update


class Worker:
    def __init__(self, index: int, seconds: float) -> None:
        self.index, self.seconds, self.num_calls = index, seconds, 0

    def ready(self) -> int:
        return self.index

    def collect(self, weights: Any, order: Any) -> Any:
        self.num_calls += 1
        time.sleep(self.seconds)
        return Report(self.index, 10, weights.version), (self.index, weights.version)

    def calls(self) -> int:
        return self.num_calls


class Learner:
    """Notes what each update was given. `seconds` is what one takes; `fails_at`: the update that raises."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.updates, self.fails_at = seconds, list[Any](), None

    def weights(self) -> Any:
        return SimpleNamespace(version=len(self.updates))

    def update(self, timesteps: int, *parts: Any) -> Any:
        if len(self.updates) == self.fails_at:
            raise FloatingPointError("diverged")
        time.sleep(self.seconds)
        self.updates.append(list(parts))
        return Update({"loss": 1.0}, 1), self.weights()

    def learnt(self) -> int:
        return len(self.updates)
