"""Where a replay loop puts fragments and gets updates from: buffers of the learners, or shards in actors of their own.

A buffer that is lost is filled again within the run: from its part of the newest checkpoint, if the run saves them, else by collecting.
A buffer writes and reads its part of a checkpoint itself where it sees the folder. On a node with another disk it sends and gets rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from raypid.algorithms.off_policy import OffPolicyConfig
from raypid.errors import UserError
from raypid.replay.base import NOT_SEEN, Replay
from raypid.replay.disk import (
    ReplayDamaged,
    Span,
    check_written,
    link_save,
    proof_of,
    read_index,
    read_rows,
    shown_to_all,
    write_rows,
)
from raypid.roles.learner import Learner
from raypid.roles.parameter_server import Learnt, SharedParameters
from raypid.roles.replay import Replay as Shard
from raypid.roles.replay_learner import ReplayLearner
from raypid.runtime.handle import ArgumentLost, Backend, Future, Handle, Place, WorkerLost
from raypid.runtime.learner_group import LearnerGroup, LearnerRebuilt, Together
from raypid.runtime.local import LocalFuture
from raypid.runtime.plan import Placement
from raypid.runtime.supervisor import START_S, Losses, how_lost
from raypid.storage.checkpoint import CheckpointError, refusing
from raypid.types import Array, Sample, Trajectory, Weights

T = TypeVar("T")
Steps: TypeAlias = Generator[Future[object], None, T]
"""Work that has to wait: it gives what it waits for, and is to be called again once that is there."""
_AHEAD = 3
"""Draws of every shard: one that the learner works with, and two on their way."""


class ShardsFailed(RuntimeError):
    """More replay shards were lost within an hour than `max_restarts` allows."""


class ReplaySource:
    """Where fragments go and updates come from. Here, one buffer in the learner's process.

    Subclasses have buffers in other places; the fragments of a worker go to one of them.
    """

    chunk = 1
    """Updates are done in portions of at least this many."""
    part = ""
    """Each buffer is saved in a folder of its own, "<part>_<index>". Without a name, the only buffer is the whole save."""

    def __init__(
        self,
        backend: Backend,
        learner: Handle,
        config: OffPolicyConfig,
        losses: Losses,
        buffers: list[Handle] | None = None,
    ) -> None:
        self.backend, self.learner, self.config, self.losses = backend, learner, config, losses
        self.buffers = buffers or [learner]
        """The roles that hold the buffers; those of lost ones are replaced."""
        self.timeout_s = max(START_S, config.worker_timeout_s)
        self.saved: Path | None = None
        """The newest save of the buffers in this run."""
        self.emptied = False
        """Rows were lost, so that there are too few to learn from. Whoever collects more sets it back."""
        self._ready: list[Future[int]] = [backend.put(0)] * len(self.buffers)
        """Rows that can be drawn from each buffer once its newest call has ended."""
        self._held = [0] * len(self.buffers)
        """Rows that could be drawn from each buffer when this was last known."""
        self._refilling: set[int] = set()
        """Buffers that were lost, which are not drawn from until they hold enough rows."""
        if isinstance(learner, LearnerGroup) and not config.num_replay_shards:
            learner.buffers_with = self._fill  # they lie with the learners, which are lost together with them

    # -- what differs between sources ----------------------------------------------------------------------------------

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Future[Weights]]:
        """Do that many updates ; returns the number that was done, and the new weights. None are done where rows were lost."""
        done, weights = self.learner.submit_parts(ReplayLearner.learn_from_replay, timesteps, num_updates)
        try:
            return self.backend.get(done), weights
        except LearnerRebuilt:
            return 0, self.learner.submit(ReplayLearner.weights)

    def metrics(self) -> dict[str, float]:
        """Metrics that the learners do not report themselves."""
        return {}

    def forget(self) -> None:
        """Forget what is under way, some of which is lost, or the rows are about to be replaced."""

    def _submit(self, index: int, method: Callable[..., T], *args: object) -> Future[T]:
        """Call a method of `Replay` on the buffer with this index."""
        return self.buffers[index].submit(method, *args)

    # -- what all have in common ---------------------------------------------------------------------------------------

    def buffer_of(self, worker: int) -> int:
        """The buffer that a worker's fragments go to."""
        return worker % len(self._ready)

    def insert(self, worker: int, fragment: Future[Trajectory]) -> None:
        """Store a fragment, without waiting for it. Errors of the buffer's previous fragment are raised here."""
        index = self.buffer_of(worker)
        self._held[index] = self._rows(index)
        self._add(index, worker, fragment)
        if index in self._refilling and self._holds_enough(index):
            self._refilling.discard(index)

    def _add(self, index: int, worker: int, fragment: Future[Trajectory]) -> None:
        self._ready[index] = self._submit(index, Shard.add, worker, fragment)

    def holds(self, num_rows: int) -> bool:
        """Whether so many rows can be drawn, as many from each buffer as from the others."""
        return all(self._rows(i) * len(self._ready) >= num_rows for i in range(len(self._ready)))

    def _rows(self, index: int) -> int:
        """Rows that can be drawn from a buffer, once it has stored its newest fragment."""
        try:
            return self.backend.get(self._ready[index])
        except ArgumentLost as error:
            self.losses.count("fragments", "What a worker had collected was lost with its node.", error)
            self._ready[index] = self.backend.put(self._held[index])
            return self._held[index]

    @property
    def rows_to_go_on(self) -> int:
        """Rows that all buffers together hold before learning goes on after they were emptied: as many as when it began."""
        return max(self.config.rows_to_start(), min(self.config.start_steps, self.config.buffer_size // 2))

    def _holds_enough(self, index: int) -> bool:
        """Whether a buffer that was lost may be drawn from again."""
        return self._held[index] * len(self._ready) >= self.rows_to_go_on

    def clear(self) -> None:
        """Empty the buffers."""
        self.forget()
        self._ready = [self._submit(i, Replay.clear) for i in range(len(self._ready))]

    def of_all(self, method: Callable[[Replay], T]) -> list[T]:
        """The results of a method of every buffer's."""
        return self._results([self._submit(i, method) for i in range(len(self._ready))])

    def _results(self, futures: Sequence[Future[T]]) -> list[T]:
        """The results of a call of each buffer."""
        return [self.backend.get(future) for future in futures]

    # -- saving ------------------------------------------------------------------------------------------------------

    def save(self, folder: Path, previous: Path | None) -> None:
        """Write all buffers into `folder`; what the save in `previous` has already is linked.

        Raises:
            Unwritten: what a buffer has written is not there.
        """
        places = self._places(folder)
        before = [None] * len(places) if previous is None else self._places(previous)
        with shown_to_all(folder.absolute()) as proof:
            asked = [i for i, place in enumerate(places) if not self._is_kept(i, place)]
            calls = [self._submit(i, Replay.save, places[i], before[i], proof) for i in asked]
            for i, call in zip(asked, calls, strict=True):
                if not self.backend.get(call):
                    self._write(i, places[i], before[i])
        for place in places:
            check_written(Path(place))

    def _places(self, folder: Path) -> list[str]:
        """The folder of each buffer's part of a save: a whole path, since other processes may have other current folders."""
        whole = folder.absolute()
        return [str(whole / f"{self.part}_{i}" if self.part else whole) for i in range(len(self._ready))]

    def _is_kept(self, index: int, place: str) -> bool:
        """Whether a buffer's part of a save could be written without asking its process."""
        return False

    def _write(self, index: int, place: str, previous: str | None) -> None:
        """Write a buffer whose process does not see the folder."""
        before = None if previous is None else Path(previous)
        while True:
            handle = self._handle(index)
            try:
                head, step = self.backend.get(handle.submit(Replay.head), self.timeout_s)
                return write_rows(Path(place), before, head, step, partial(self._columns, handle))
            except (WorkerLost, TimeoutError) as error:
                self._mend(index, handle, "save()", error)

    def _columns(self, handle: Handle, spans: Sequence[Span], changing: bool) -> Iterator[Mapping[str, Array]]:
        """The columns of a buffer's rows. Each span is on its way while the one before is used."""
        asked: deque[Future[dict[str, Array]]] = deque()
        for start, stop in spans:
            asked.append(handle.submit(Replay.saved_columns, start, stop, changing))
            if len(asked) > 1:
                yield self.backend.get(asked.popleft(), self.timeout_s)
        for future in asked:
            yield self.backend.get(future, self.timeout_s)

    def load(self, folder: Path) -> None:
        """Fill the buffers from a save, which may have been written by another number of them."""
        self.forget()
        parts, draws = share_of_saves(folder, len(self._ready))
        loads = [self._submit(i, Replay.load, part, draws, proof_of(part)) for i, part in enumerate(parts)]
        self._held = [
            self._send(i, parts[i], draws) if rows == NOT_SEEN else rows for i, rows in enumerate(self._results(loads))
        ]
        self._ready = [self.backend.put(rows) for rows in self._held]

    def _send(self, index: int, folders: Sequence[str], draws: bool) -> int:
        """Load saves into a buffer whose process does not see them; returns the rows that can be drawn."""
        while True:
            handle = self._handle(index)
            try:
                return _run_steps(self._sending(handle, folders, draws))
            except (WorkerLost, TimeoutError) as error:
                self._mend(index, handle, "load()", error)

    def _sending(self, handle: Handle, folders: Sequence[str], draws: bool) -> Steps[int]:
        """Do what `Replay.load` does in a process that sees the folders, piece by piece."""
        rows = 0
        for i, folder in enumerate(map(Path, folders)):
            passing = (UserError, RuntimeError, TimeoutError)
            with refusing(f"The replay buffer in {folder}", ReplayDamaged, passing):
                index = read_index(folder)
                first = yield from self._step(handle.submit(Replay.begin_load, index, i > 0))
                for piece in read_rows(folder, index, first):
                    yield from self._step(handle.submit(Replay.take_rows, *piece))
                rows = yield from self._step(handle.submit(Replay.end_load, draws and i == 0))
        return rows

    def _step(self, future: Future[T]) -> Steps[T]:
        """Go on with the value of a future once it is there."""
        yield future
        return self.backend.get(future, self.timeout_s)

    def _mend(self, index: int, handle: Handle, call: str, error: Exception) -> None:
        """Have a lost buffer rebuilt and filled."""
        self.backend.get(self._submit(index, Replay.head))

    # -- losses --------------------------------------------------------------------------------------------------------

    def _handle(self, index: int) -> Handle:
        """The role itself that holds a buffer."""
        handle = self.buffers[index]
        return handle.handles[index] if isinstance(handle, LearnerGroup) else handle

    def _filling(self, index: int, held: int) -> Steps[str]:
        """Fill a buffer that was rebuilt from its part of the newest save, and count what is lost of the rows that were `held`;
        returns what to say."""
        handle, rows, how = self._handle(index), 0, "it fills up by collecting"
        try:
            yield from self._step(handle.ready)
            if self.saved is not None:
                parts, draws = share_of_saves(self.saved, len(self._ready))
                proof = proof_of(parts[index])
                found = yield from self._step(handle.submit(Replay.load, parts[index], draws, proof))
                rows = found if found != NOT_SEEN else (yield from self._sending(handle, parts[index], draws))
                how = f"it was filled from {self.saved.parent.name}" if rows else how
        except CheckpointError as error:
            how = f"its save cannot be read ({error}) and it fills up by collecting"
            handle.submit(Replay.clear)
        except (WorkerLost, TimeoutError):  # what comes next finds it
            how = "the new one was lost, too"
        self._held[index], self._ready[index] = rows, self.backend.put(rows)
        lost = max(0, held - rows)
        self.losses.add("replay_rows", lost)
        return f"{how}; rows lost: {lost:,}"

    def _fill(self, ranks: Sequence[int]) -> str:
        """Fill the buffers of learners that were rebuilt."""
        said = [_run_steps(self._filling(rank, self._held[rank])) for rank in ranks]
        self._note_emptied([rank for rank in ranks if not self._holds_enough(rank)])
        return "".join(f" Its replay buffer is gone: {text}." for text in said)

    def _note_emptied(self, indices: Sequence[int]) -> None:
        """These buffers hold too little to be drawn from."""
        self.emptied |= bool(indices)


class LearnersReplay(ReplaySource):
    """A buffer in the process of each of several learners."""

    part = "learner"

    def __init__(self, backend: Backend, learners: LearnerGroup, config: OffPolicyConfig, losses: Losses) -> None:
        super().__init__(backend, learners, config, losses, learners.handles)
        self.learners = learners

    def _submit(self, index: int, method: Callable[..., T], *args: object) -> Future[T]:
        return self.learners.submit_to(index, method, *args)


class AsynchronousLearners(LearnersReplay):
    """Learners that do not wait for each other. Each takes the shared parameters when it is free, and gives back its change.

    An update of one of N learners has 1/N of a batch's rows, so it counts as 1/N of an update. At the end of an iteration all
    learners take the same parameters. One whose buffer was lost takes part again once that holds enough rows.
    """

    def __init__(
        self,
        backend: Backend,
        learners: LearnerGroup,
        config: OffPolicyConfig,
        losses: Losses,
        factory: Callable[[], object],
        place: Place,
    ) -> None:
        super().__init__(backend, learners, config, losses)
        self.factory, self.place = factory, place
        self.shared = backend.spawn(factory, place)
        self._running: dict[int, tuple[Handle, Future[int], Future[Learnt]]] = {}
        """Learner -> whose parameters its `learn_from` under way began with, and what that will return."""
        self._weights: Future[Weights] | None = None
        self._newest = 0
        """The learner whose parameters are the newest, besides the shared ones."""
        self._shares = False
        """The shared parameters are those of this iteration."""
        self._done = 0
        """Updates of single learners that `learn` has not reported yet."""

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Future[Weights]]:
        self._share()
        self.learners.keep_copy()
        for rank in range(len(self.learners)):
            if rank not in self._running and rank not in self._refilling:
                newest = self.shared.submit(SharedParameters.newest)
                given = (newest, timesteps, num_updates)
                call = self.learners.submit_parts_to(rank, ReplayLearner.learn_from, *given)
                self._running[rank] = self.shared, *call
        self._wait()
        num, self._done = divmod(self._done, len(self.learners))
        return num, self._weights if self._weights is not None else self.learners.submit(ReplayLearner.weights)

    def metrics(self) -> dict[str, float]:
        """Rows in all buffers. All learners end what is under way and take the same parameters."""
        for rank in list(self._running):
            self._end(rank)
        while self._shares:
            newest = self.shared.submit(SharedParameters.newest)
            try:
                self.backend.get(self.learners.submit(ReplayLearner.set_parameters, newest))
                self._shares = False
            except ArgumentLost as error:
                self._rebuild_shared(error)
                self._share()
        return {"replay_rows": float(sum(self._results(self._ready)))}

    def forget(self) -> None:
        self._running.clear()
        self._shares, self._done = False, 0

    def _note_emptied(self, indices: Sequence[int]) -> None:
        self._refilling.update(indices)
        self.emptied |= len(self._refilling) == len(self._ready)

    def _share(self) -> None:
        """At the first portion of an iteration, give what the learners hold to all."""
        while not self._shares:
            start = self.backend.get(self.learners.submit_to(self._newest, ReplayLearner.parameters))
            try:
                held = self.shared.submit(SharedParameters.hold, start)
                self.backend.get(held, self.learners.timeout_s)
                self._shares = True
            except (WorkerLost, TimeoutError) as error:
                self._rebuild_shared(error)

    def _wait(self) -> None:
        """Wait until a learner, or more, has ended its portion."""
        if not self._running:
            return
        calls = {r: list(num.parts) for r, (_, num, _) in self._running.items() if isinstance(num, LocalFuture)}
        pending = [part for parts in calls.values() for part in parts]
        if pending:
            self.backend.wait(pending, num=1, timeout=self.learners.timeout_s)
        ended = [r for r, parts in calls.items() if not parts or self.backend.wait(parts, num=1, timeout=0)[0]]
        for rank in ended or list(calls):
            self._end(rank)

    def _end(self, rank: int) -> None:
        """Wait for a learner's portion, and only then add its change: an actor serves its calls in order, so a change that
        is not there yet would hold up the other learners."""
        shared, num, learnt = self._running.pop(rank)
        try:
            done = self.backend.get(num)
        except LearnerRebuilt:
            return
        except ArgumentLost as error:  # the shared parameters, which it was to begin with
            if shared is self.shared:  # several learners find it, each by its own call
                self._rebuild_shared(error)
            return self._share()
        self._done, self._newest = self._done + done, rank
        self._weights = self.shared.submit(SharedParameters.add, self.backend.put(learnt))

    def _rebuild_shared(self, error: Exception) -> None:
        """Rebuild the shared parameters. They go on from those of the learner that learnt last."""
        what = f"The shared parameters {'did not answer' if isinstance(error, TimeoutError) else 'died'}."
        self.losses.count("shared_parameters", what, error)
        self.backend.kill(self.shared)
        self.shared, self._shares = self.backend.spawn(self.factory, self.place), False
        self.losses.tell(f"{what} They are those of learner {self._newest} from here on.")


@dataclass(frozen=True, slots=True)
class Draw:
    """Rows of one shard for one learner, on their way."""

    index: int
    shard: Handle
    """The one that they were drawn from: it may be lost, and another one have its place."""
    num: Future[int]
    sample: Future[Sample]


class ShardedReplay(ReplaySource):
    """A buffer in each of several actors. Each batch has equally many rows of all.

    Two samples of each shard are on their way while the learner works, so it never waits for a copy. A shard that dies, or does not
    answer within `timeout_s` seconds, is rebuilt. Until it holds enough rows the others take its place in turn: each row of theirs is
    drawn with the same larger factor, which cancels out in the importance weights.
    """

    part = "shard"

    def __init__(
        self,
        backend: Backend,
        learner: Handle,
        config: OffPolicyConfig,
        losses: Losses,
        factory: Callable[[int], Callable[[], object]],
        planned: Placement,
    ) -> None:
        self.factory = factory
        self.places = [planned.place("shard", i) for i in range(config.num_replay_shards)]
        shards: list[Handle] = [backend.spawn(factory(i), place) for i, place in enumerate(self.places)]
        super().__init__(backend, learner, config, losses, shards)
        self.chunk = config.updates_per_call
        self.feeds = planned.feeds()
        """The shard of each worker: one on its node, where there is one."""
        self.num_learners = len(learner) if isinstance(learner, LearnerGroup) else 1
        self.rows = self.chunk * config.batch_size // (len(shards) * self.num_learners)
        """Rows of each shard in a sample of one learner."""
        self._ahead: deque[list[Draw]] = deque()
        """Samples on their way: for each learner in turn, one of each shard."""
        self._turn = 0
        """Which shard takes the place of one that is being filled."""
        self._loading: dict[int, Filling] = {}
        """Shards that were rebuilt and are being filled."""
        round_rows = config.fragment_length * config.num_envs_per_worker
        self.most_waiting = max(1, config.buffer_size // len(shards) // round_rows)
        """Fragments that fill a shard: of those that wait for it, no more are kept."""

    def buffer_of(self, worker: int) -> int:
        return self.feeds[worker]

    def _submit(self, index: int, method: Callable[..., T], *args: object) -> Future[T]:
        self.settle(index)
        return ShardCall(self, index, method, args)

    def forget(self) -> None:
        self._ahead.clear()

    def _add(self, index: int, worker: int, fragment: Future[Trajectory]) -> None:
        if index in self._loading:  # nobody waits until it stands
            self._loading[index].fragments.append((worker, fragment))
        else:
            super()._add(index, worker, fragment)

    def _rows(self, index: int) -> int:
        """As in every source; but if the shard is lost, nobody waits for the new one."""
        if index in self._loading and not self._has_loaded(index):
            return 0
        call = self._ready[index]
        if isinstance(call, ShardCall) and not call.is_answered():
            return 0
        return super()._rows(index)

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Future[Weights]]:
        while True:
            if len(self._refilling) == len(self.buffers):
                self.emptied = True
                return 0, self.learner.submit(Learner.weights)
            while len(self._ahead) < _AHEAD:
                self._ahead.append(self._drawn(self.config.beta_at(timesteps)))
            draws = self._ahead.popleft()
            if self._are_there(draws):
                break
        samples = [draw.sample for draw in draws]
        done, weights = self.learner.submit_parts(Learner.learn, timesteps, *samples)
        found = done.results() if isinstance(done, Together) else {0: self.backend.get(done)}
        if self.config.prioritized:
            for rank, priorities in found.items():
                own = draws[rank * len(self.buffers) :]
                for draw, new in zip(own, priorities, strict=False):
                    if draw.shard is self.buffers[draw.index]:  # the ids of one that was lost mean other rows by now
                        draw.shard.submit(Shard.set_priorities, draw.sample, new)
        return next(iter(found.values())).num_updates, weights

    def _drawn(self, beta: float) -> list[Draw]:
        """Ask for a sample of each shard, for each learner. Shards that are there take the places of those that are not, in turn."""
        there = [i for i in range(len(self.buffers)) if i not in self._refilling]
        draws = []
        for place in [*range(len(self.buffers))] * self.num_learners:
            index = place
            if place in self._refilling:
                index, self._turn = there[self._turn % len(there)], self._turn + 1
            shard = self.buffers[index]
            draws.append(Draw(index, shard, *shard.submit_parts(Shard.drawn, self.rows, beta)))
        return draws

    def _are_there(self, draws: Sequence[Draw]) -> bool:
        """Wait for samples. A shard that is lost is rebuilt, and the samples that are on their way are forgotten."""
        for draw in draws:
            try:
                self.backend.get(draw.num, self.timeout_s)
            except (WorkerLost, TimeoutError) as error:
                self.rebuild(draw.index, draw.shard, "sample()", error)
                return False
        return True

    def rebuild(self, index: int, shard: Handle, call: str, error: Exception) -> None:
        """Rebuild a shard, unless that has been done.

        Raises:
            ShardsFailed: more were lost within an hour than max_restarts allows.
        """
        if self.buffers[index] is not shard:
            return
        what = f"Replay shard {index} of {len(self.buffers)} {how_lost(error, self.timeout_s)} in {call}."
        self.losses.count("shards", what, error, failure=ShardsFailed)
        self.backend.kill(shard)
        self.buffers[index] = self.backend.spawn(self.factory(index), self.places[index])
        self._ahead.clear()
        self._refilling.add(index)
        held, fragments = self._held[index], deque(self._unstored(index), self.most_waiting)
        if before := self._loading.get(index):
            held, fragments = before.held, before.fragments
        steps = self._filling(index, held)
        self._loading[index] = Filling(what, held, steps, next(steps), fragments)
        self._held[index], self._ready[index] = 0, self.backend.put(0)

    def _unstored(self, index: int) -> list[tuple[int, Future[Trajectory]]]:
        """The newest fragment for a shard, if the shard was lost before it was stored."""
        call = self._ready[index]
        if not isinstance(call, ShardCall) or call.method.__name__ != Replay.add.__name__:
            return []
        try:
            self.backend.get(call.future, timeout=0.0)
            return []
        except (WorkerLost, TimeoutError):
            return [call.args]  # type: ignore[list-item]

    def _has_loaded(self, index: int) -> bool:
        """Whether a shard that was rebuilt is filled; if not, go on with it as far as nothing has to be waited for. Once it is,
        what was lost is counted and told."""
        filling = self._loading[index]
        if not self.backend.wait([filling.waits_for], num=1, timeout=0)[0]:
            return False
        try:
            filling.waits_for = next(filling.steps)
            return False
        except StopIteration as end:
            said: str = end.value
        del self._loading[index]
        if self._holds_enough(index):
            self._refilling.discard(index)
        self.losses.tell(f"{filling.what} {said[0].upper()}{said[1:]}.")
        for fragment in filling.fragments:
            super().insert(*fragment)
        return True

    def settle(self, index: int) -> None:
        """Wait until a shard that was rebuilt is filled."""
        while index in self._loading and not self._has_loaded(index):
            waits_for = [self._loading[index].waits_for]
            if not self.backend.wait(waits_for, num=1, timeout=self.timeout_s)[0]:
                self.rebuild(index, self.buffers[index], "load()", TimeoutError())

    def _mend(self, index: int, handle: Handle, call: str, error: Exception) -> None:
        self.rebuild(index, handle, call, error)
        self.settle(index)

    def _is_kept(self, index: int, place: str) -> bool:
        """A shard that was lost, and for which there is no room yet, will be what its part of the newest save is."""
        if index not in self._loading or self.backend.wait([self.buffers[index].ready], num=1, timeout=0)[0]:
            return False
        if self.saved is None:
            empty = self.factory(index)()
            return isinstance(empty, Shard) and empty.buffer.save(place, None)
        parts, is_its_own = share_of_saves(self.saved, len(self.buffers))
        if is_its_own and (part := Path(parts[index][0])).is_dir():
            link_save(part, Path(place))
            return True
        return False

    def metrics(self) -> dict[str, float]:
        """Numbers of all shards, added up, without those that are being built."""
        there = [i for i in range(len(self.buffers)) if i not in self._loading or self._has_loaded(i)]
        found = self._results([self._submit(i, Replay.metrics) for i in there])
        if not found:
            return {"replay_rows": 0.0}
        return {name: sum(m[name] for m in found) for name in found[0]}


@dataclass(slots=True)
class Filling:
    """A shard that was rebuilt and is being filled."""

    what: str
    """How its predecessor was lost, as a sentence."""
    held: int
    """Rows that could be drawn from its predecessor."""
    steps: Steps[str]
    waits_for: Future[object]
    """The future that the next step needs."""
    fragments: deque[tuple[int, Future[Trajectory]]]
    """(worker, fragment) that have arrived meanwhile."""


class ShardCall(LocalFuture[T]):
    """A call of a replay shard. If the shard is lost, it is rebuilt and filled, and the call is made again."""

    def __init__(self, source: ShardedReplay, index: int, method: Callable[..., T], args: tuple[object, ...]) -> None:
        self.source, self.index, self.method, self.args = source, index, method, args
        self._make()

    def _make(self) -> None:
        self.shard = self.source.buffers[self.index]
        self.future = self.shard.submit(self.method, *self.args)

    @property
    def parts(self) -> Sequence[Future[object]]:
        return [self.future]

    def passed(self) -> Future[T]:
        return self.future

    def is_answered(self) -> bool:
        """Wait for the answer; returns False if the shard is lost. Another one is being built then."""
        try:
            self.source.backend.get(self.future, self.source.timeout_s)
        except ArgumentLost:
            pass
        except (WorkerLost, TimeoutError) as error:
            self.source.rebuild(self.index, self.shard, f"{self.method.__name__}()", error)
            return False
        return True

    def result(self) -> T:
        """Raises ShardsFailed, and what the shard itself raised. ArgumentLost: what it was given is gone."""
        while not self.is_answered():
            self.source.settle(self.index)
            self._make()
        return self.source.backend.get(self.future)


def share_of_saves(folder: Path, num: int) -> tuple[list[list[str]], bool]:
    """Which parts of a saved buffer each of `num` buffers loads, and whether each loads exactly the part that it saved.

    If there are more parts than buffers, they are distributed in turn. If there are fewer, several buffers load the same part (each keeps
    its newest rows).
    """
    folder = folder.absolute()
    whole = (folder / "index.json").is_file()
    found = [p for p in folder.glob("*_*") if p.is_dir() and p.name.split("_")[-1].isdigit()]
    parts = [str(p) for p in ([folder] if whole else sorted(found, key=lambda p: int(p.name.split("_")[-1])))]
    if not parts:
        return [[str(folder)]] * num, True  # loading then says what is missing
    return [parts[i::num] if i < len(parts) else [parts[i % len(parts)]] for i in range(num)], len(parts) == num


def _run_steps(steps: Steps[T]) -> T:
    """The result of work, whose waiting is done here."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
