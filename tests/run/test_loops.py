"""The synchronous loop: one weights future for all, fragments in worker order, counts of valid steps."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from raypid.loops import loops
from raypid.loops.weights import ByReference
from raypid.runtime.handle import places
from raypid.runtime.local import LocalBackend
from raypid.runtime.supervisor import Group, Losses
from raypid.types import Report


class Worker:
    log: list[Any] = []

    def __init__(self, index: int) -> None:
        self.index = index

    def collect(self, weights: int, timesteps: int, exploration: Any) -> Any:
        self.log.append(("collect", self.index, weights))
        return Report(self.index, 10 + self.index, weights), f"fragment {self.index}"


class Learner:
    def __init__(self) -> None:
        self.version, self.calls = 0, []

    def weights(self) -> int:
        return self.version

    def update(self, timesteps: int, *fragments: str) -> Any:
        self.calls.append((timesteps, fragments))
        self.version += 1
        if self.version == 3:
            raise FloatingPointError("diverged")
        return SimpleNamespace(num_updates=1), self.version


@pytest.fixture
def context() -> loops.Context:
    Worker.log = []
    backend = LocalBackend()
    workers = Group(
        backend, lambda i, r: partial(Worker, i), places("worker", 3), timeout_s=10, losses=Losses(0), describe="e"
    )
    learner = backend.spawn(Learner)
    return loops.Context(backend, workers, learner, ByReference(backend, learner))


def test_each_turn_publishes_collects_from_all_and_learns_once(context: loops.Context) -> None:
    loop = loops.sync(context)
    turns = [next(loop), next(loop)]
    assert Worker.log == [("collect", i, version) for version in (0, 1) for i in range(3)]
    fragments = ("fragment 0", "fragment 1", "fragment 2")
    assert context.learner.role.calls == [(33, fragments), (66, fragments)]  # type: ignore[attr-defined]
    assert context.timesteps == 66
    for turn in turns:
        assert [r.worker_index for r in turn.reports] == [0, 1, 2]
        assert turn.timing.keys() == {"collect", "learner"} and min(turn.timing.values()) >= 0


def test_an_error_of_the_learner_reaches_the_caller(context: loops.Context) -> None:
    loop = loops.sync(context)
    next(loop), next(loop)
    with pytest.raises(FloatingPointError, match="diverged"):
        next(loop)
