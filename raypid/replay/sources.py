"""Where a replay loop puts fragments and gets samples: the learner's own buffer, or shards in actors of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from raypid.replay.buffer import Replay
from raypid.roles.parameter_server import Change, SharedParameters
from raypid.roles.replay_learner import ReplayLearner, ShardLearner
from raypid.runtime.handle import Backend, Future, Handle, WorkerLost
from raypid.runtime.learner_group import LearnerGroup

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

    def load(self, folder: Path) -> None: ...

    def clear(self) -> None:
        """Empty the buffer."""


class OwnReplay:
    """The buffer is in the learner's process."""

    chunk = 1

    def __init__(self, backend: Backend, learner: Handle) -> None:
        self.backend, self.learner = backend, learner
        self._ready: Any = backend.put(0)

    def insert(self, worker: int, fragment: Any) -> None:
        self.backend.get(self._ready)  # what went wrong with the fragment before shows here
        self._ready = self.learner.submit(ReplayLearner.insert, worker, fragment)

    def holds(self, num_rows: int) -> bool:
        return bool(self.backend.get(self._ready) >= num_rows)

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Any]:
        done, weights = self.learner.submit_parts(ReplayLearner.learn, timesteps, num_updates)
        return self.backend.get(done), weights

    def metrics(self) -> dict[str, float]:
        return {}

    def save(self, folder: Path, previous: Path | None) -> None:
        self.backend.get(
            self.learner.submit(ReplayLearner.save_replay, str(folder), None if previous is None else str(previous))
        )

    def load(self, folder: Path) -> None:
        parts, draws = share_of_saves(folder, 1)
        self._ready = self.learner.submit(ReplayLearner.load_replay, parts[0], draws)
        self.backend.get(self._ready)

    def clear(self) -> None:
        self._ready = self.learner.submit(ReplayLearner.clear_replay)


class LearnersReplay(OwnReplay):
    """A buffer in the process of each of several learners. A worker's fragments go to one of them."""

    def __init__(self, backend: Backend, learners: LearnerGroup) -> None:
        OwnReplay.__init__(self, backend, learners)
        self.learners = learners
        self._ready: list[Any] = [backend.put(0)] * len(learners)

    def insert(self, worker: int, fragment: Any) -> None:
        rank = worker % len(self.learners)
        self.backend.get(self._ready[rank])
        self._ready[rank] = self.learners.submit_to(rank, ReplayLearner.insert, worker, fragment)

    def holds(self, num_rows: int) -> bool:
        return all(self.backend.get(f) * len(self.learners) >= num_rows for f in self._ready)

    def save(self, folder: Path, previous: Path | None) -> None:
        calls = zip(*(_places(p, "learner", len(self.learners)) for p in (folder, previous)), strict=True)
        for future in [self.learners.submit_to(r, ReplayLearner.save_replay, *call) for r, call in enumerate(calls)]:
            self.backend.get(future)

    def load(self, folder: Path) -> None:
        parts, draws = share_of_saves(folder, len(self.learners))
        self._ready = [self.learners.submit_to(r, ReplayLearner.load_replay, p, draws) for r, p in enumerate(parts)]
        for future in self._ready:
            self.backend.get(future)

    def clear(self) -> None:
        self._ready = [self.learners.submit_to(r, ReplayLearner.clear_replay) for r in range(len(self.learners))]


class AsynchronousLearners(LearnersReplay):
    """Learners that do not wait for each other: each takes the shared parameters when it is free, and gives back its change.

    An update of one of N learners has 1/N of a batch's rows and counts 1/N. When an iteration ends, all take the same parameters.
    """

    def __init__(self, backend: Backend, learners: LearnerGroup, shared: Handle) -> None:
        LearnersReplay.__init__(self, backend, learners)
        self.shared = shared
        self._running: dict[int, tuple[Future[int], Future[Change]]] = {}
        self._weights: Any = None
        self._held = False
        """The shared parameters are those of this iteration."""
        self._done = 0
        """Updates of single learners that are not told yet."""

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Any]:
        if not self._held:
            self.backend.get(self._hold())
        for rank in range(len(self.learners)):
            if rank not in self._running:
                newest = self.shared.submit(SharedParameters.newest)
                handle = self.learners.handles[rank]
                self._running[rank] = handle.submit_parts(ReplayLearner.learn_from, newest, timesteps, num_updates)
        self.backend.wait([call[0] for call in self._running.values()], num=1)
        for rank, call in list(self._running.items()):
            if self.backend.wait([call[0]], num=1, timeout=0)[0]:
                self._end(rank)
        num, self._done = divmod(self._done, len(self.learners))
        return num, self._weights

    def metrics(self) -> dict[str, float]:
        for rank in list(self._running):
            self._end(rank)
        if self._held:
            self.backend.get(
                self.learners.submit(ReplayLearner.set_parameters, self.shared.submit(SharedParameters.newest))
            )
            self._held = False
        return {"replay_rows": float(sum(self.backend.get(f) for f in self._ready))}

    def load(self, folder: Path) -> None:
        self._forget()
        LearnersReplay.load(self, folder)

    def clear(self) -> None:
        self._forget()
        LearnersReplay.clear(self)

    def _forget(self) -> None:
        """What is under way belongs to before."""
        self._running.clear()
        self._held, self._done = False, 0

    def _hold(self) -> Any:
        self._held = True
        return self.shared.submit(
            SharedParameters.hold, *self.learners.handles[0].submit_parts(ReplayLearner.parameters)
        )

    def _end(self, rank: int) -> None:
        """Wait for a learner's portion, and add its change: not before it is there, since an actor serves in order."""
        num, change = self._running.pop(rank)
        self._done += self.learners.result_of(rank, num, ReplayLearner.learn_from)
        self._weights = self.shared.submit(SharedParameters.add, change)


def _places(folder: Path | None, name: str, num: int) -> Sequence[str | None]:
    """Folders of the parts of a buffer that lies in several places."""
    return [None if folder is None else str(folder / f"{name}_{i}") for i in range(num)]


def share_of_saves(folder: Path, num: int) -> tuple[list[list[str]], bool]:
    """Which parts of a saved buffer each of `num` buffers loads, and whether these are the same as were saved.

    More parts than buffers are dealt out; of fewer, several buffers take the same (each its newest rows).
    """
    whole = (folder / "index.json").is_file()
    found = [p for p in folder.glob("*_*") if p.is_dir() and p.name.split("_")[-1].isdigit()]
    parts = [str(p) for p in ([folder] if whole else sorted(found, key=lambda p: int(p.name.split("_")[-1])))]
    if not parts:
        return [[str(folder)]] * num, True  # where loading says what is missing
    return [parts[i::num] if i < len(parts) else [parts[i % len(parts)]] for i in range(num)], len(parts) == num


class ShardedReplay:
    """Buffers in actors of their own. A worker's fragments go to one of them; each batch has rows of all.

    Two samples of each shard are on their way while the learner works, so it never waits for a copy.
    """

    def __init__(
        self, backend: Backend, learner: Handle, shards: list[Handle], chunk: int, batch_size: int,
        beta: Callable[[int], float], *, prioritized: bool, moments: bool,
    ) -> None:  # fmt: skip
        self.backend, self.learner, self.shards, self.chunk = backend, learner, shards, chunk
        self.num_learners = len(learner) if isinstance(learner, LearnerGroup) else 1
        self.rows = chunk * batch_size // (len(shards) * self.num_learners)
        self.beta, self.prioritized, self.moments = beta, prioritized, moments
        self._ready: list[Any] = [backend.put(0)] * len(shards)
        self._ahead: deque[list[list[Any]]] = deque()
        """Samples on their way: for each learner, of each shard."""

    def insert(self, worker: int, fragment: Any) -> None:
        shard = worker % len(self.shards)
        self._get(shard, self._ready[shard], "add()")  # what went wrong with the fragment before shows here
        self._ready[shard] = self.shards[shard].submit(Replay.add, worker, fragment)
        if self.moments:
            self.learner.submit(ShardLearner.seen, fragment)

    def holds(self, num_rows: int) -> bool:
        rows = [self._get(i, future, "add()") for i, future in enumerate(self._ready)]
        return all(n * len(self.shards) >= num_rows for n in rows)

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Any]:
        while len(self._ahead) < 3:
            beta = self.beta(timesteps)
            draws = [
                [shard.submit(Replay.sample, self.rows, beta) for shard in self.shards]
                for _ in range(self.num_learners)
            ]
            self._ahead.append(draws)
        samples, num_shards = self._ahead.popleft(), len(self.shards)
        if isinstance(self.learner, LearnerGroup):
            calls = [(timesteps, self.chunk, *drawn) for drawn in samples]
            done, answers = self.learner.split_each(ShardLearner.learn, num_shards, calls)
        else:
            split = self.learner.submit_split
            done, weights, priorities = split(ShardLearner.learn, num_shards, timesteps, self.chunk, *samples[0])
            answers = [(weights, priorities)]
        try:
            num: int = self.backend.get(done)
            if self.prioritized:
                for drawn, (_, priorities) in zip(samples, answers, strict=True):
                    for shard, sample, new in zip(self.shards, drawn, priorities, strict=True):
                        shard.submit(Replay.set_priorities_of, sample, self.backend.put(new))
            return num, answers[0][0]
        except Exception as error:
            for i, shard in enumerate(self.shards):
                try:
                    self.backend.get(shard.submit(Replay.ready), timeout=_ANSWER_S)
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
        futures = [shard.submit(Replay.metrics) for shard in self.shards]
        found = [self._get(i, future, "metrics()") for i, future in enumerate(futures)]
        return {name: sum(m[name] for m in found) for name in found[0]}

    def save(self, folder: Path, previous: Path | None) -> None:
        calls = zip(*(_places(p, "shard", len(self.shards)) for p in (folder, previous)), strict=True)
        saves = [s.submit(Replay.save, *call) for s, call in zip(self.shards, calls, strict=True)]
        for i, future in enumerate(saves):
            self._get(i, future, "save()")

    def load(self, folder: Path) -> None:
        self._ahead.clear()
        parts, draws = share_of_saves(folder, len(self.shards))
        self._ready = [s.submit(Replay.load, p, draws) for s, p in zip(self.shards, parts, strict=True)]
        for i, future in enumerate(self._ready):
            self._get(i, future, "load()")

    def clear(self) -> None:
        self._ahead.clear()
        self._ready = [s.submit(Replay.clear) for s in self.shards]
