"""Which buffer gets what, and what is rebuilt once alone, where shards and shared parameters are lost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from raypid.loops.sources import AsynchronousLearners, ShardedReplay
from raypid.plugins.registry import ALGORITHMS
from raypid.runtime.handle import ArgumentLost, Place, places
from raypid.runtime.local import LocalBackend, LocalHandle, Value
from raypid.runtime.stateful import StatefulGroup
from raypid.runtime.supervisor import Losses
from raypid.types import LearnerCopy


class Unfinished(LocalBackend):
    """A backend where some futures have no value yet."""

    def __init__(self) -> None:
        self.pending: list[object] = []

    def wait(self, futures: Sequence[Any], num: int = 1, timeout: float | None = None) -> Any:
        ready = [future for future in futures if future not in self.pending]
        return ready[:num], [future for future in futures if future not in ready[:num]]


class Buffer:
    def __init__(self, index: int) -> None:
        self.workers: list[int] = []

    def add(self, worker: int, fragment: object) -> int:
        self.workers.append(worker)
        return len(self.workers)


class Crossed:
    """A plan by which each of two workers feeds the other one's shard."""

    def place(self, kind: Any, index: int) -> Place:
        return Place(kind, index)

    def feeds(self) -> list[int]:
        return [1, 0]


def test_a_fragment_goes_to_its_shard_while_another_one_is_being_filled() -> None:
    backend = Unfinished()
    config = ALGORITHMS.get("DQN").Config(
        env="x", num_replay_shards=2, num_workers=2, batch_size=16, updates_per_call=1
    )
    build = lambda index: partial(Buffer, index)  # noqa: E731
    learner, planned = LocalHandle(partial(Buffer, 0)), Crossed()
    source = ShardedReplay(backend, learner, config, Losses(5), build, planned, most_kept=9)  # type: ignore[arg-type]
    loading = Value(0)
    backend.pending.append(loading)
    source._held[1] = 7
    source.shards.handles[1].ready = loading  # type: ignore[misc]
    source._revived([1], "Shard 1 died.")
    source.insert(1, Value(None))  # type: ignore[arg-type]
    source.insert(0, Value(None))  # type: ignore[arg-type]
    first, second = (shard.role.workers for shard in source.buffers)  # type: ignore[attr-defined]
    assert (first, second) == ([1], []) and not source.holds(1)
    backend.pending.clear()
    source.settle([1])
    assert second == [0] and source.holds(1) and source.losses.counts["replay_rows"] == 6


class Learner:
    """One that has begun with parameters that are lost."""

    def parameters(self) -> str:
        return "parameters"

    def copied(self) -> LearnerCopy:
        return LearnerCopy(0, {}, None)  # type: ignore[arg-type]

    def take_over(self, copy: object) -> None: ...

    def learn_from(self) -> Any:
        raise ArgumentLost("gone")


class Shared:
    def hold(self, parameters: object) -> None: ...


def test_shared_parameters_that_are_lost_are_built_anew_once_however_many_learners_find_it() -> None:
    config, losses = ALGORITHMS.get("DQN").Config(env="x"), Losses(5)
    backend = LocalBackend()
    learners = StatefulGroup(backend, lambda rank, restarts: Learner, places("learner", 2), start_s=9, meet=False)
    source = AsynchronousLearners(backend, learners, config, losses, Shared, Place("other"))
    source._running = {rank: (0, learners.ask(rank, Learner.learn_from, pair=True)) for rank in (0, 1)}
    for rank in (0, 1):
        source._end(rank)
    assert losses.counts["shared_parameters"] == 1
