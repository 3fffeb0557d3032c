"""Where a replay loop puts fragments and gets updates from: buffers of the learners, or shards in actors of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

from raypid.algorithms.off_policy import OffPolicyConfig
from raypid.replay.base import Replay
from raypid.roles.parameter_server import Learnt, SharedParameters
from raypid.roles.replay_learner import ReplayLearner, ShardLearner
from raypid.runtime.handle import Backend, Future, Handle, WorkerLost
from raypid.runtime.learner_group import LearnerGroup, Together
from raypid.types import Sample, Trajectory, Weights

T = TypeVar("T")
_AHEAD = 3
"""Draws of every shard: one that the learner works with, and two on their way."""


class ShardsFailed(RuntimeError):
    """A replay shard was lost. What it held in memory is gone."""


class ReplaySource:
    """Where fragments go and updates come from. Here, one buffer in the learner's process.

    Subclasses have buffers in other places; the fragments of a worker go to one of them.
    """

    chunk = 1
    """Updates are done in portions of at least this many."""
    part = ""
    """Each buffer is saved in a folder of its own, "<part>_<index>". Without a name, the only buffer is the whole save."""

    def __init__(self, backend: Backend, learner: Handle, buffers: Sequence[Handle] = ()) -> None:
        self.backend, self.learner = backend, learner
        self.buffers = buffers or [learner]
        """The roles that hold the buffers."""
        self._ready: list[Future[int]] = [backend.put(0)] * len(self.buffers)
        """Rows that can be drawn from each buffer, once it has done what it was last told."""

    # -- what differs between sources ----------------------------------------------------------------------------------

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Future[Weights]]:
        """Do that many updates; returns the number that was done, and the new weights."""
        done, weights = self.learner.submit_parts(ReplayLearner.learn, timesteps, num_updates)
        return self.backend.get(done), weights

    def metrics(self) -> dict[str, float]:
        """What the learners' own metrics do not have."""
        return {}

    def _submit(self, index: int, method: Callable[..., T], *args: object) -> Future[T]:
        """Call a method of `Replay` on the buffer with this index."""
        return self.buffers[index].submit(method, *args)

    def _get(self, index: int, future: Future[T], call: str) -> T:
        """The result of such a call."""
        return self.backend.get(future)

    def _drop(self) -> None:
        """Forget what is under way: the rows are about to be replaced."""

    # -- what all have in common ---------------------------------------------------------------------------------------

    def buffer_of(self, worker: int) -> int:
        """The buffer that a worker's fragments go to."""
        return worker % len(self._ready)

    def insert(self, worker: int, fragment: Future[Trajectory]) -> None:
        """Store a fragment, without waiting for it. Errors of the buffer's previous fragment are raised here."""
        index = self.buffer_of(worker)
        self._get(index, self._ready[index], "add()")
        self._ready[index] = self._submit(index, Replay.add, worker, fragment)

    def holds(self, num_rows: int) -> bool:
        """Whether so many rows can be drawn, as many from each buffer as from the others."""
        return all(n * len(self._ready) >= num_rows for n in self._results(self._ready, "add()"))

    def save(self, folder: Path, previous: Path | None) -> None:
        """Write all buffers into `folder`; what the save in `previous` has already is linked."""
        before = [None if previous is None else place for place in self._places(previous or folder)]
        places = zip(self._places(folder), before, strict=True)
        saves = [self._submit(i, Replay.save, *both) for i, both in enumerate(places)]
        self._results(saves, "save()")

    def load(self, folder: Path) -> None:
        """Fill the buffers from a save, which may have been written by another number of them."""
        self._drop()
        parts, draws = share_of_saves(folder, len(self._ready))
        self._ready = [self._submit(i, Replay.load, folders, draws) for i, folders in enumerate(parts)]
        self._results(self._ready, "load()")

    def clear(self) -> None:
        """Empty the buffers."""
        self._drop()
        self._ready = self._submit_all(Replay.clear)

    def of_all(self, method: Callable[[Replay], T]) -> list[T]:
        """The results of a method of every buffer's."""
        return self._results(self._submit_all(method), f"{method.__name__}()")

    def _submit_all(self, method: Callable[..., T]) -> list[Future[T]]:
        return [self._submit(i, method) for i in range(len(self._ready))]

    def _results(self, futures: Sequence[Future[T]], call: str) -> list[T]:
        """The results of a call of each buffer."""
        return [self._get(i, future, call) for i, future in enumerate(futures)]

    def _places(self, folder: Path) -> list[str]:
        """The folder of each buffer's part of a save."""
        return [str(folder / f"{self.part}_{i}" if self.part else folder) for i in range(len(self._ready))]


class LearnersReplay(ReplaySource):
    """A buffer in the process of each of several learners."""

    part = "learner"

    def __init__(self, backend: Backend, learners: LearnerGroup) -> None:
        super().__init__(backend, learners, learners.handles)
        self.learners = learners

    def _submit(self, index: int, method: Callable[..., T], *args: object) -> Future[T]:
        return self.learners.submit_to(index, method, *args)


class AsynchronousLearners(LearnersReplay):
    """Learners that do not wait for each other. Each takes the shared parameters when it is free, and gives back its change.

    An update of one of N learners has 1/N of a batch's rows, so it counts as 1/N of an update. At the end of an iteration all
    learners take the same parameters.
    """

    def __init__(self, backend: Backend, learners: LearnerGroup, shared: Handle) -> None:
        super().__init__(backend, learners)
        self.shared = shared
        self._running: dict[int, tuple[Future[int], Future[Learnt]]] = {}
        """Learner -> what its `learn_from` under way will return."""
        self._weights: Future[Weights]
        self._held = False
        """The shared parameters are those of this iteration."""
        self._done = 0
        """Updates of single learners that `learn` has not reported yet."""

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Future[Weights]]:
        if not self._held:
            start = self.learners.handles[0].submit(ReplayLearner.parameters)
            self.backend.get(self.shared.submit(SharedParameters.hold, start))
            self._held = True
        for rank, handle in enumerate(self.learners.handles):
            if rank not in self._running:
                newest = self.shared.submit(SharedParameters.newest)
                self._running[rank] = handle.submit_parts(ReplayLearner.learn_from, newest, timesteps, num_updates)
        self.backend.wait([call[0] for call in self._running.values()], num=1)
        for rank, call in list(self._running.items()):
            if self.backend.wait([call[0]], num=1, timeout=0)[0]:
                self._end(rank)
        num, self._done = divmod(self._done, len(self.learners))
        return num, self._weights

    def metrics(self) -> dict[str, float]:
        """Rows in all buffers. All learners end what is under way and take the same parameters."""
        for rank in list(self._running):
            self._end(rank)
        if self._held:
            newest = self.shared.submit(SharedParameters.newest)
            self.backend.get(self.learners.submit(ReplayLearner.set_parameters, newest))
            self._held = False
        return {"replay_rows": float(sum(self.backend.get(f) for f in self._ready))}

    def _drop(self) -> None:
        self._running.clear()
        self._held, self._done = False, 0

    def _end(self, rank: int) -> None:
        """Wait for a learner's portion, and only then add its change: an actor serves its calls in order, so a change that
        is not there yet would hold up the other learners."""
        num, learnt = self._running.pop(rank)
        self._done += self.learners.result_of(rank, num, ReplayLearner.learn_from)
        self._weights = self.shared.submit(SharedParameters.add, learnt)


class ShardedReplay(ReplaySource):
    """A buffer in each of several actors. Each batch has equally many rows of all.

    Two samples of each shard are on their way while the learner works, so it never waits for a copy.
    """

    part = "shard"

    def __init__(
        self, backend: Backend, learner: Handle, shards: list[Handle], config: OffPolicyConfig, feeds: Sequence[int]
    ) -> None:
        super().__init__(backend, learner, shards)
        self.feeds = feeds
        """The shard of each worker: one on its node, where there is one."""
        self.chunk, self.config = config.updates_per_call, config
        self.num_learners = len(learner) if isinstance(learner, LearnerGroup) else 1
        self.rows = self.chunk * config.batch_size // (len(shards) * self.num_learners)
        """Of each shard in a sample of one learner."""
        self._ahead: deque[list[Future[Sample]]] = deque()
        """Samples on their way: for each learner in turn, one of each shard."""

    def buffer_of(self, worker: int) -> int:
        return self.feeds[worker]

    def _get(self, index: int, future: Future[T], call: str) -> T:
        try:
            return self.backend.get(future)
        except WorkerLost as error:
            raise ShardsFailed(f"Replay shard {index} of {len(self.buffers)} died in {call}.") from error

    def _drop(self) -> None:
        self._ahead.clear()

    def insert(self, worker: int, fragment: Future[Trajectory]) -> None:
        super().insert(worker, fragment)
        if self.config.normalize_observations:
            self.learner.submit(ShardLearner.seen, fragment)

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Future[Weights]]:
        while len(self._ahead) < _AHEAD:
            beta = self.config.beta_at(timesteps)
            shards = [*self.buffers] * self.num_learners
            self._ahead.append([shard.submit(Replay.sample, self.rows, beta) for shard in shards])
        samples = self._ahead.popleft()
        done, weights = self.learner.submit_parts(ShardLearner.learn, timesteps, self.chunk, *samples)
        try:
            found = done.results() if isinstance(done, Together) else [self.backend.get(done)]
        except Exception:
            self._results(self._submit_all(Replay.metrics), "sample()")  # was it for want of a sample? Name the shard
            raise
        if self.config.prioritized:
            priorities = chain.from_iterable(new for _, new in found)
            for i, (sample, new) in enumerate(zip(samples, priorities, strict=True)):
                self._submit(i % len(self.buffers), Replay.set_priorities_of, sample, new)
        return found[0][0], weights

    def metrics(self) -> dict[str, float]:
        """Numbers of all shards, added up."""
        found = self._results(self._submit_all(Replay.metrics), "metrics()")
        return {name: sum(m[name] for m in found) for name in found[0]}


def share_of_saves(folder: Path, num: int) -> tuple[list[list[str]], bool]:
    """Which parts of a saved buffer each of `num` buffers loads, and whether each loads exactly the part that it saved.

    If there are more parts than buffers, they are dealt out. If there are fewer, several buffers load the same part (each keeps
    its newest rows).
    """
    whole = (folder / "index.json").is_file()
    found = [p for p in folder.glob("*_*") if p.is_dir() and p.name.split("_")[-1].isdigit()]
    parts = [str(p) for p in ([folder] if whole else sorted(found, key=lambda p: int(p.name.split("_")[-1])))]
    if not parts:
        return [[str(folder)]] * num, True  # loading then says what is missing
    return [parts[i::num] if i < len(parts) else [parts[i % len(parts)]] for i in range(num)], len(parts) == num
