"""Which buffer gets what, and what is rebuilt once alone, where shards and shared parameters are lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from raypid.loops.sources import AsynchronousLearners, Filling, ShardedReplay
from raypid.plugins.registry import ALGORITHMS
from raypid.runtime.handle import ArgumentLost, Place
from raypid.runtime.local import Failed, LocalBackend, LocalHandle, Value
from raypid.runtime.supervisor import Losses


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
    source = ShardedReplay(backend, learner, config, Losses(5), build, planned)  # type: ignore[arg-type]
    loading = Value(0)
    backend.pending.append(loading)
    source._loading[1] = Filling("Shard 1 died.", 7, source._filling(1, 7), loading, deque())
    source.insert(1, Value(None))  # type: ignore[arg-type]
    source.insert(0, Value(None))  # type: ignore[arg-type]
    first, second = (shard.role.workers for shard in source.buffers)  # type: ignore[attr-defined]
    assert (first, second) == ([1], []) and not source.holds(1)
    backend.pending.clear()
    source.settle(1)
    assert second == [0] and source.holds(1) and source.losses.counts["replay_rows"] == 7


class Learners:
    """Two that have begun with parameters that are lost."""

    def __init__(self) -> None:
        self.handles = [LocalHandle(object)] * 2
        self.timeout_s = 1.0

    def __len__(self) -> int:
        return 2

    def submit_to(self, rank: int, method: Any, *args: object) -> Any:
        return Value("parameters")


class Shared:
    def hold(self, parameters: object) -> None: ...


def test_shared_parameters_that_are_lost_are_built_anew_once_however_many_learners_find_it() -> None:
    config, losses = ALGORITHMS.get("DQN").Config(env="x"), Losses(5)
    source = AsynchronousLearners(LocalBackend(), Learners(), config, losses, Shared, Place("other"))  # type: ignore[arg-type]
    source._running = {
        rank: (source.shared, Failed(ArgumentLost("gone")), Failed(ArgumentLost("gone"))) for rank in (0, 1)
    }
    for rank in (0, 1):
        source._end(rank)
    assert losses.counts["shared_parameters"] == 1
