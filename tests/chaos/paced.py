"""A worker and a learner that take their time, for loops; imported by name here and in actors."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from raypid.types import Metrics, Report


class Paced:
    """Sleeps on call, and notes from when to when (on the clock that a machine's processes share)."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.times = seconds, list[tuple[float, float]]()

    def rest(self) -> None:
        start = time.monotonic()
        time.sleep(self.seconds)
        self.times.append((start, time.monotonic()))

    def busy(self) -> list[tuple[float, float]]:
        return self.times


class Worker(Paced):
    def __init__(self, index: int, seconds: float) -> None:
        super().__init__(seconds)
        self.index, self.num_calls = index, 0

    def ready(self) -> int:
        return self.index

    def collect(self, weights: Any, timesteps: int, exploration: Any) -> Any:
        self.num_calls += 1
        self.rest()
        return Report(self.index, 10, weights.version), (self.index, weights.version)

    def calls(self) -> int:
        return self.num_calls


class Learner(Paced):
    """Notes what each update was given. `seconds` is what one takes; `fails_at`: the update that raises."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(seconds)
        self.updates, self.fails_at = list[Any](), None

    def weights(self) -> Any:
        return SimpleNamespace(version=len(self.updates))

    def update(self, timesteps: int, *parts: Any) -> Any:
        if len(self.updates) == self.fails_at:
            raise FloatingPointError("diverged")
        self.rest()
        self.updates.append(list(parts))
        return Metrics({"loss": 1.0}, 1, len(self.updates)), self.weights()

    def learnt(self) -> int:
        return len(self.updates)
