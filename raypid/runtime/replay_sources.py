"""Where a replay loop puts fragments and gets samples: the learner's own buffer, or shards in actors of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from raypid.runtime.handle import Backend, Handle, WorkerLost

_ANSWER_S = 10.0
"""Seconds that a shard may take to show that it lives, when something went wrong."""


class ShardsFailed(RuntimeError):
    """A replay shard was lost; what it held in memory cannot be had again."""


class ReplaySource(Protocol):
    """Where fragments go and samples come from."""

    chunk: int
    """Updates are done in portions of at least so many."""

    def insert(self, worker: int, fragment: Any) -> None:
        """Store a fragment (a future)."""

    def holds(self, num_rows: int) -> bool:
        """Whether so many rows can be drawn."""

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Any]:
        """Do that many updates; returns their number and a future of the new weights."""

    def metrics(self) -> dict[str, float]: ...

    def save(self, folder: Path, previous: Path | None) -> None: ...

    def fits(self, folder: Path) -> bool:
        """Whether the buffer saved in `folder` was in as many parts."""

    def load(self, folder: Path) -> None: ...

    def clear(self) -> None:
        """Empty the buffer."""


class OwnReplay:
    """The buffer is in the learner's process."""

    chunk = 1

    def __init__(self, backend: Backend, learner: Handle) -> None:
        self.backend, self.learner = backend, learner
        self._ready = backend.put(0)

    def insert(self, worker: int, fragment: Any) -> None:
        self.backend.get(self._ready)  # what went wrong with the fragment before shows here
        self._ready = self.learner.submit("insert", worker, fragment)

    def holds(self, num_rows: int) -> bool:
        return bool(self.backend.get(self._ready) >= num_rows)

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Any]:
        done, weights = self.learner.submit("learn", timesteps, num_updates, num_returns=2)
        return self.backend.get(done), weights

    def metrics(self) -> dict[str, float]:
        return {}

    def save(self, folder: Path, previous: Path | None) -> None:
        self.backend.get(self.learner.submit("save_replay", str(folder), None if previous is None else str(previous)))

    def fits(self, folder: Path) -> bool:
        return not any(folder.glob("shard_*"))

    def load(self, folder: Path) -> None:
        self._ready = self.learner.submit("load_replay", str(folder))
        self.backend.get(self._ready)

    def clear(self) -> None:
        self._ready = self.learner.submit("clear_replay")


class ShardedReplay:
    """Buffers in actors of their own. A worker's fragments go to one of them; each batch has rows of all.

    Two samples of each shard are on their way while the learner works, so it never waits for a copy.
    """

    def __init__(
        self, backend: Backend, learner: Handle, shards: list[Handle], chunk: int, batch_size: int,
        beta: Callable[[int], float], *, prioritized: bool, moments: bool,
    ) -> None:  # fmt: skip
        self.backend, self.learner, self.shards, self.chunk = backend, learner, shards, chunk
        self.rows = chunk * batch_size // len(shards)
        self.beta, self.prioritized, self.moments = beta, prioritized, moments
        self._ready: list[Any] = [backend.put(0)] * len(shards)
        self._ahead: deque[list[Any]] = deque()

    def insert(self, worker: int, fragment: Any) -> None:
        shard = worker % len(self.shards)
        self._get(shard, self._ready[shard], "add()")  # what went wrong with the fragment before shows here
        self._ready[shard] = self.shards[shard].submit("add", worker, fragment)
        if self.moments:
            self.learner.submit("seen", fragment)

    def holds(self, num_rows: int) -> bool:
        rows = [self._get(i, future, "add()") for i, future in enumerate(self._ready)]
        return all(n * len(self.shards) >= num_rows for n in rows)

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Any]:
        while len(self._ahead) < 3:
            beta = self.beta(timesteps)
            self._ahead.append([shard.submit("sample", self.rows, beta) for shard in self.shards])
        samples, size = self._ahead.popleft(), len(self.shards)
        done, weights, *priorities = self.learner.submit("learn", timesteps, self.chunk, *samples, num_returns=2 + size)
        if self.prioritized:
            for shard, sample, new in zip(self.shards, samples, priorities, strict=True):
                shard.submit("set_priorities_of", sample, self.backend.put(new))
        try:
            return self.backend.get(done), weights
        except Exception as error:
            for i, shard in enumerate(self.shards):
                try:
                    self.backend.get(shard.submit("ready"), timeout=_ANSWER_S)
                except (WorkerLost, TimeoutError):
                    raise self._failed(i, "sample()") from error
            raise

    def _get(self, shard: int, future: Any, call: str) -> Any:
        try:
            return self.backend.get(future)
        except WorkerLost as error:
            raise self._failed(shard, call) from error

    def _failed(self, shard: int, call: str) -> ShardsFailed:
        return ShardsFailed(
            f"Replay shard {shard} of {len(self.shards)} died in {call}. A run goes on from its last checkpoint (--resume)."
        )

    def metrics(self) -> dict[str, float]:
        futures = [shard.submit("metrics") for shard in self.shards]
        found = [self._get(i, future, "metrics()") for i, future in enumerate(futures)]
        return {name: sum(m[name] for m in found) for name in found[0]}

    def save(self, folder: Path, previous: Path | None) -> None:
        before = [None if previous is None else str(previous / f"shard_{i}") for i in range(len(self.shards))]
        saves = [s.submit("save", str(folder / f"shard_{i}"), before[i]) for i, s in enumerate(self.shards)]
        for i, future in enumerate(saves):
            self._get(i, future, "save()")

    def fits(self, folder: Path) -> bool:
        return len(list(folder.glob("shard_*"))) == len(self.shards)

    def load(self, folder: Path) -> None:
        self._ahead.clear()
        self._ready = [s.submit("load", str(folder / f"shard_{i}")) for i, s in enumerate(self.shards)]
        for i, future in enumerate(self._ready):
            self._get(i, future, "load()")

    def clear(self) -> None:
        self._ahead.clear()
        self._ready = [s.submit("clear") for s in self.shards]
