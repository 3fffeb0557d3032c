"""Where a replay loop puts fragments and gets updates from: buffers of the learners, or shards in actors of their own.

A buffer that is lost is filled again within the run: from its part of the newest checkpoint, if the run saves them, and from the
fragments that it got since, which this process keeps references to. This process writes and reads the files, whatever disks other nodes
have: buffers send and get rows, one piece while another one is on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from raypid.algorithms.off_policy import OffPolicyConfig
from raypid.errors import UserError
from raypid.replay.base import Replay
from raypid.replay.disk import (
    ReplayDamaged,
    Span,
    link_save,
    read_index,
    read_rows,
    write_rows,
)
from raypid.roles.learner import Learner
from raypid.roles.parameter_server import SharedParameters
from raypid.roles.replay import Replay as Shard
from raypid.roles.replay_learner import ReplayLearner
from raypid.runtime.handle import ArgumentLost, Backend, Future, Handle, Place, WorkerLost
from raypid.runtime.plan import Placement
from raypid.runtime.stateful import StatefulGroup
from raypid.runtime.supervisor import START_S, Call, Group, Losses, RoleRebuilt
from raypid.storage.checkpoint import CheckpointError, refusing
from raypid.types import Array, Trajectory, Weights

T = TypeVar("T")
Steps: TypeAlias = Generator[Future[object], None, T]
"""Work that has to wait: it gives what it waits for, and is to be called again once that is there."""
_AHEAD = 3
"""Draws of every shard: one that the learner works with, and two on their way."""


class ReplaySource:
    """Where fragments go and updates come from. Here, a buffer in the process of each learner.

    Subclasses have buffers in other places; the fragments of a worker go to one of them.
    """

    chunk = 1
    """Updates are done in portions of at least this many."""

    def __init__(
        self,
        backend: Backend,
        learner: Handle,
        config: OffPolicyConfig,
        losses: Losses,
        *,
        group: Group[Any, Any] | None = None,
        part: str = "learner",
        most_kept: int = 0,
    ) -> None:
        self.backend, self.learner, self.config, self.losses = backend, learner, config, losses
        self.group = group or (learner if isinstance(learner, Group) else None)
        """The roles that hold the buffers; None: the learner in this process, which is not lost."""
        self.num = 1 if self.group is None else len(self.group)
        self._part = "" if self.num == 1 and group is None else part
        """Each buffer is saved in a folder of its own, "<part>_<index>". Without a name, the only buffer is the whole save."""
        self.timeout_s = max(START_S, config.worker_timeout_s)
        self.saved: Path | None = None
        """The newest save of the buffers in this run."""
        self.emptied = False
        """Rows were lost, so that there are too few to learn from. Whoever collects more sets it back."""
        self._ready: list[Future[int]] = [backend.put(0)] * self.num
        """Rows that can be drawn from each buffer once its newest call has ended."""
        self._held = [0] * self.num
        """Rows that could be drawn from each buffer when this was last known."""
        self._refilling: set[int] = set()
        """Buffers that were lost, which are not drawn from until they hold enough rows."""
        self._loading: dict[int, Filling[str]] = {}
        """Buffers that were rebuilt and are being filled."""
        self._kept: list[deque[tuple[int, Future[Trajectory]]]] = [deque() for _ in range(self.num)]
        """(worker, fragment) that each buffer got since the newest save, oldest first."""
        self._most_kept = 0 if self.group is None else most_kept // self.num
        """Most fragments that are kept for a buffer."""
        if self.group is not None:
            self.group.revived = self._revived

    @property
    def buffers(self) -> list[Handle]:
        """The roles that hold the buffers."""
        return [self.learner] if self.group is None else self.group.handles

    # -- what differs between sources ----------------------------------------------------------------------------------

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Future[Weights]]:
        """Make that many updates; returns the number that was made, and the new weights. None are made where rows were lost."""
        done, weights = self.learner.submit_parts(ReplayLearner.learn_from_replay, timesteps, num_updates)
        try:
            return self.backend.get(done), weights
        except RoleRebuilt:
            return 0, self.learner.submit(Learner.weights)

    def metrics(self) -> dict[str, float]:
        """Metrics that the learners do not report themselves."""
        return {}

    def forget(self) -> None:
        """Forget what is under way, some of which is lost, or the rows are about to be replaced."""

    def buffer_of(self, worker: int) -> int:
        """The buffer that a worker's fragments go to."""
        return worker % self.num

    def _revived(self, indices: Sequence[int], how: str) -> str | None:
        """Fill the buffers of learners that were rebuilt."""
        said = []
        for index in indices:
            self._loading[index] = Filling(self._filling(index, self._held[index]))
            said.append(self._loading[index].finish())
            del self._loading[index]
        self._note_emptied([index for index in indices if not self._holds_enough(index)])
        return "".join(f" Its replay buffer is gone: {text}." for text in said)

    def _note_emptied(self, indices: Sequence[int]) -> None:
        """These buffers hold too little to be drawn from."""
        self.emptied |= bool(indices)

    # -- what all have in common ---------------------------------------------------------------------------------------

    def _submit(self, index: int, method: Callable[..., T], *args: object) -> Future[T]:
        """Call a method of `Replay` on the buffer with this index."""
        if self.group is None:
            return self.learner.submit(method, *args)
        return self.group.ask(index, method, *args)

    def insert(self, worker: int, fragment: Future[Trajectory]) -> None:
        """Store a fragment, without waiting for it. Errors of the buffer's previous fragment are raised here."""
        index = self.buffer_of(worker)
        self._held[index] = self._rows(index)
        if self.group is not None:
            kept, most = self._kept[index], self._most_kept
            if len(kept) < 2 * most or index not in self._loading:
                kept.append((worker, fragment))
            while len(kept) > most and index not in self._loading:
                kept.popleft()
        if index not in self._loading:  # otherwise it gets those that are kept
            self._ready[index] = self._submit(index, Shard.add, worker, fragment)
        if index in self._refilling and self._holds_enough(index):
            self._refilling.discard(index)

    def holds(self, num_rows: int) -> bool:
        """Whether so many rows can be drawn, as many from each buffer as from the others."""
        return all(self._rows(i) * self.num >= num_rows for i in range(self.num))

    def _rows(self, index: int) -> int:
        """Rows that can be drawn from a buffer, once it has stored its newest fragment; 0 while it is being filled."""
        if index in self._loading and not self._has_loaded(index):
            return 0
        call = self._ready[index]
        try:
            is_lost = isinstance(call, Call) and not call.values and not call.ended(call.deadline)
            if is_lost:  # it is being filled, or has been
                return 0 if index in self._loading else self._held[index]
            return self.backend.get(call)
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
        return self._held[index] * self.num >= self.rows_to_go_on

    def clear(self) -> None:
        """Empty the buffers."""
        self.forget()
        self._forget_kept()
        self._ready = [self._submit(i, Replay.clear) for i in range(self.num)]

    def of_all(self, method: Callable[[Replay], T]) -> list[T]:
        """The results of a method of every buffer's."""
        return [self.backend.get(future) for future in [self._submit(i, method) for i in range(self.num)]]

    def _forget_kept(self) -> None:
        for kept in self._kept:
            kept.clear()

    # -- saving ------------------------------------------------------------------------------------------------------

    def save(self, folder: Path, previous: Path | None) -> None:
        """Write all buffers into `folder`; what the save in `previous` has already is linked."""
        before = [None] * self.num if previous is None else self._places(previous)
        for index, place in enumerate(self._places(folder)):
            if not self._is_kept(index, place):
                self._persist(index, "save()", partial(self._write, index, place, before[index]))

    def note_save(self, folder: Path) -> None:
        """A save is in its place: buffers that are lost from here on are filled from it."""
        self.saved = folder
        for index, kept in enumerate(self._kept):
            if index not in self._loading:
                kept.clear()

    def _places(self, folder: Path) -> list[Path]:
        """The folder of each buffer's part of a save."""
        return [folder / f"{self._part}_{i}" if self._part else folder for i in range(self.num)]

    def _is_kept(self, index: int, place: Path) -> bool:
        """Whether a buffer's part of a save could be written without asking its process."""
        return False

    def _write(self, index: int, place: Path, previous: Path | None) -> None:
        handle = self.buffers[index]
        head, step = self.backend.get(handle.submit(Replay.head), self.timeout_s)
        write_rows(place, previous, head, step, partial(self._columns, handle))

    def _persist(self, index: int, call: str, work: Callable[[], T]) -> T:
        """Do work that asks a buffer's process several times; again if that is lost meanwhile."""
        while True:
            self.settle([index])
            try:
                return work()
            except (WorkerLost, TimeoutError) as error:
                if self.group is None:
                    raise
                self.group.lose(index, call, error)

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
        self._forget_kept()
        parts, draws = share_of_saves(folder, self.num)
        self._held = [self._persist(i, "load()", partial(self._read, i, part, draws)) for i, part in enumerate(parts)]
        self._ready = [self.backend.put(rows) for rows in self._held]

    def _read(self, index: int, folders: Sequence[Path], draws: bool) -> int:
        return Filling(self._reading(self.buffers[index], folders, draws)).finish()

    def _reading(self, handle: Handle, folders: Sequence[Path], draws: bool) -> Steps[int]:
        """Do what `Replay.load` does, piece by piece; returns the rows that can be drawn."""
        rows = 0
        for i, folder in enumerate(folders):
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

    # -- losses --------------------------------------------------------------------------------------------------------

    def _filling(self, index: int, held: int) -> Steps[str]:
        """Fill a buffer that was rebuilt, from its part of the newest save and from the fragments since; count what is lost of the rows
        that were `held`; returns what to say."""
        handle, rows, told, kept = self.buffers[index], 0, "", self._kept[index]
        filled_from: list[str] = []
        try:
            yield from self._step(handle.ready)
            if self.saved is not None:
                parts, draws = share_of_saves(self.saved, self.num)
                rows = yield from self._reading(handle, parts[index], draws)
                filled_from += [self.saved.parent.name] if rows else []
        except CheckpointError as error:
            told = f"its save cannot be read ({error}) and "
            handle.submit(Replay.clear)
        except (WorkerLost, TimeoutError):  # what comes next finds it
            told = "the new one was lost, too: "
        added = 0
        while added < len(kept):  # more come meanwhile
            adds = [handle.submit(Shard.add, *fragment) for fragment in islice(kept, added, None)]
            added += len(adds)
            for add in adds:
                try:
                    rows = yield from self._step(add)
                except ArgumentLost:  # it was lost with its node
                    self.losses.add("fragments")
                except (WorkerLost, TimeoutError):
                    break
        self._held[index], self._ready[index] = rows, self.backend.put(rows)
        lost = max(0, held - rows)
        self.losses.add("replay_rows", lost)
        filled_from += ["what was collected since"] if added else []
        how = f"it was filled from {' and '.join(filled_from)}" if filled_from else "it fills up by collecting"
        return f"{told}{how}; rows lost: {lost:,}"

    def _has_loaded(self, index: int) -> bool:
        """Whether a buffer that was rebuilt is filled; if not, go on with it as far as nothing has to be waited for. Once it is, what was
        lost is told."""
        filling = self._loading[index]
        while filling.result is None:
            if not self.backend.wait([filling.waits_for], num=1, timeout=0)[0]:
                return False
            filling.go_on()
        del self._loading[index]
        if self._holds_enough(index):
            self._refilling.discard(index)
        self.losses.tell(f"{filling.how} {filling.result[0].upper()}{filling.result[1:]}.")
        return True

    def settle(self, indices: Sequence[int]) -> None:
        """Wait until buffers that were rebuilt are filled."""
        for index in indices:
            while index in self._loading and not self._has_loaded(index):
                waits_for = [self._loading[index].waits_for]
                if not self.backend.wait(waits_for, num=1, timeout=self.timeout_s)[0] and self.group is not None:
                    self.group.lose(index, "load()", TimeoutError())


class AsynchronousLearners(ReplaySource):
    """Learners that do not wait for each other. Each takes the shared parameters when it is free, and gives back its change.

    An update of one of N learners has 1/N of a batch's rows, so it counts as 1/N of an update. At the end of an iteration all
    learners take the same parameters. One whose buffer was lost takes part again once that holds enough rows.
    """

    def __init__(
        self,
        backend: Backend,
        learners: StatefulGroup,
        config: OffPolicyConfig,
        losses: Losses,
        factory: Callable[[], object],
        place: Place,
        *,
        most_kept: int = 0,
    ) -> None:
        super().__init__(backend, learners, config, losses, most_kept=most_kept)
        self.learners = learners
        self.shared: Group[Any, Any] = Group(
            backend, lambda index, restarts: factory, [place], timeout_s=learners.timeout_s, losses=losses
        )
        self.shared.revived = self._revived_shared
        self._running: dict[int, tuple[int, Call[int]]] = {}
        """Learner -> how often the shared parameters had been rebuilt when its `learn_from` under way began, and that call."""
        self._weights: Future[Weights] | None = None
        self._newest = 0
        """The learner whose parameters are the newest, besides the shared ones."""
        self._shares = False
        """The shared parameters are those of this iteration."""
        self._done = 0
        """Updates of single learners that `learn` has not reported yet."""

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Future[Weights]]:
        self._share()
        for rank in range(self.num):
            if rank not in self._running and rank not in self._refilling:
                newest = self.shared.handles[0].submit(SharedParameters.newest)
                call = self.learners.ask(rank, ReplayLearner.learn_from, newest, timesteps, num_updates, pair=True)
                self._running[rank] = self.shared.restarts[0], call
        self._wait()
        done, self._done = divmod(self._done, self.num)
        return done, self._weights if self._weights is not None else self.learner.submit(Learner.weights)

    def metrics(self) -> dict[str, float]:
        """Rows in all buffers. All learners end what is under way and take the same parameters."""
        for rank in list(self._running):
            self._end(rank)
        while self._shares:
            restarts, newest = self.shared.restarts[0], self.shared.handles[0].submit(SharedParameters.newest)
            try:
                self.backend.get(self.learner.submit(ReplayLearner.set_parameters, newest))
                self._shares = False
            except ArgumentLost as error:
                self._lose_shared(restarts, error)
        return {"replay_rows": float(sum(self.backend.get(rows) for rows in self._ready))}

    def forget(self) -> None:
        self._running.clear()
        self._shares, self._done = False, 0

    def _note_emptied(self, indices: Sequence[int]) -> None:
        self._refilling.update(indices)
        self.emptied |= len(self._refilling) == self.num

    def _share(self) -> None:
        """At the first portion of an iteration, give what the learners hold to all."""
        while not self._shares:
            start = self.backend.get(self.learners.ask(self._newest, ReplayLearner.parameters))
            hold = self.shared.ask(0, SharedParameters.hold, start)
            self._shares = hold.ended(hold.deadline)

    def _wait(self) -> None:
        """Wait until a learner, or more, has ended its portion."""
        if not self._running:
            return
        calls = {rank: list(num.parts) for rank, (_, num) in self._running.items()}
        if pending := [part for parts in calls.values() for part in parts]:
            self.backend.wait(pending, num=1, timeout=self.learners.timeout_s)
        ended = [r for r, parts in calls.items() if not parts or self.backend.wait(parts, num=1, timeout=0)[0]]
        for rank in ended or list(calls):
            self._end(rank)

    def _end(self, rank: int) -> None:
        """Wait for a learner's portion, and only then add its change: an actor serves its calls in order, so a change that
        is not there yet would hold up the other learners."""
        restarts, call = self._running.pop(rank)
        try:
            done = call.result()
        except RoleRebuilt:
            return
        except ArgumentLost as error:  # the shared parameters, which it was to begin with
            return self._lose_shared(restarts, error)
        self._done, self._newest = self._done + done, rank
        self._weights = self.shared.handles[0].submit(SharedParameters.add, call.seconds[rank])

    def _lose_shared(self, restarts: int, error: Exception) -> None:
        """Rebuild the shared parameters, unless another learner's call has found out before; and share those of the learner that learnt
        last."""
        if restarts == self.shared.restarts[0]:
            self.shared.lose(0, "newest()", error)
        self._share()

    def _revived_shared(self, indices: Sequence[int], how: str) -> str:
        self._shares = False
        return f"They are those of learner {self._newest} from here on."


class ShardedReplay(ReplaySource):
    """A buffer in each of several actors. Each batch has equally many rows of all.

    Two samples of each shard are on their way while the learner works, so it never waits for a copy. A shard that dies, or does not
    answer within `timeout_s` seconds, is rebuilt. Until it holds enough rows the others take its place in turn: each row of theirs is
    drawn with the same larger factor, which cancels out in the importance weights.
    """

    def __init__(
        self,
        backend: Backend,
        learner: Handle,
        config: OffPolicyConfig,
        losses: Losses,
        factory: Callable[[int], Callable[[], object]],
        planned: Placement,
        *,
        most_kept: int = 0,
    ) -> None:
        self.factory = factory
        self.shards: Group[Any, Any] = Group(
            backend,
            lambda index, restarts: factory(index),
            [planned.place("shard", i) for i in range(config.num_replay_shards)],
            timeout_s=max(START_S, config.worker_timeout_s),
            losses=losses,
        )
        super().__init__(backend, learner, config, losses, group=self.shards, part="shard", most_kept=most_kept)
        self.shards.settle = self.settle
        self.chunk = config.updates_per_call
        self.feeds = planned.feeds()
        """The shard of each worker: one on its node, where there is one."""
        self.num_learners = len(learner) if isinstance(learner, Group) else 1
        self.rows = self.chunk * config.batch_size // (self.num * self.num_learners)
        """Rows of each shard in a sample of one learner."""
        self._ahead: deque[list[Call[int]]] = deque()
        """Samples on their way: for each learner in turn, one of each shard."""
        self._turn = 0
        """Which shard takes the place of one that is being filled."""

    def buffer_of(self, worker: int) -> int:
        return self.feeds[worker]

    def _submit(self, index: int, method: Callable[..., T], *args: object) -> Future[T]:
        self.settle([index])
        return super()._submit(index, method, *args)

    def forget(self) -> None:
        self._ahead.clear()

    def learn(self, num_updates: int, timesteps: int) -> tuple[int, Future[Weights]]:
        while True:
            if len(self._refilling) == self.num:  # none is left that could take their place
                self.settle(range(self.num))
            if len(self._refilling) == self.num:
                self.emptied = True
                return 0, self.learner.submit(Learner.weights)
            while len(self._ahead) < _AHEAD:
                self._ahead.append(self._drawn(self.config.beta_at(timesteps)))
            draws = self._ahead.popleft()
            if all(draw.ended(draw.deadline) for draw in draws):  # if one is lost, so are those on their way
                break
        samples = [draw.seconds[draw.indices[0]] for draw in draws]
        done, weights = self.learner.submit_parts(Learner.learn, timesteps, *samples)
        found = done.results() if isinstance(done, Call) else {0: self.backend.get(done)}
        if self.config.prioritized:
            for rank, priorities in found.items():
                own = range(rank * self.num, (rank + 1) * self.num)
                for place, new in zip(own, priorities, strict=False):
                    draw, sample = draws[place], samples[place]
                    if draw.is_current:  # the ids of a shard that was lost mean other rows by now
                        self.shards.handles[draw.indices[0]].submit(Shard.set_priorities, sample, new)
        return next(iter(found.values())).num_updates, weights

    def _drawn(self, beta: float) -> list[Call[int]]:
        """Ask for a sample of each shard, for each learner. Shards that are there take the places of those that are not, in turn."""
        there = [i for i in range(self.num) if i not in self._refilling]
        draws = []
        for index in [*range(self.num)] * self.num_learners:
            if index in self._refilling:
                index, self._turn = there[self._turn % len(there)], self._turn + 1
            draws.append(self.shards.ask(index, Shard.drawn, self.rows, beta, pair=True))
        return draws

    def _revived(self, indices: Sequence[int], how: str) -> str | None:
        self._ahead.clear()
        for index in indices:
            before = self._loading.get(index)
            held = self._held[index] if before is None else before.held
            self._loading[index] = Filling(self._filling(index, held), how, held)
            self._refilling.add(index)
            self._held[index], self._ready[index] = 0, self.backend.put(0)
        return None  # it is told once they are filled

    def _is_kept(self, index: int, place: Path) -> bool:
        """A shard that was lost, and for which there is no room yet, will be what its part of the newest save is."""
        if index not in self._loading or self.shards.is_up(index):
            return False
        if self.saved is None:
            empty = self.factory(index)()
            assert isinstance(empty, Shard)
            empty.buffer.save(place, None)
            return True
        parts, is_its_own = share_of_saves(self.saved, self.num)
        if is_its_own and (part := parts[index][0]).is_dir():
            link_save(part, place)
            return True
        return False

    def metrics(self) -> dict[str, float]:
        """Numbers of all shards, added up, without those that are being built."""
        there = [i for i in range(self.num) if i not in self._loading or self._has_loaded(i)]
        found = [self.backend.get(numbers) for numbers in [self._submit(i, Replay.metrics) for i in there]]
        if not found:
            return {"replay_rows": 0.0}
        return {name: sum(m[name] for m in found) for name in found[0]}


class Filling(Generic[T]):
    """A buffer that was rebuilt and is being filled.

    Args:
        steps: the work; its result is what to say.
        how: how the predecessor was lost, as a sentence.
        held: rows that could be drawn from the predecessor.
    """

    waits_for: Future[object]
    """What the next step needs."""

    def __init__(self, steps: Steps[T], how: str = "", held: int = 0) -> None:
        self.steps, self.how, self.held = steps, how, held
        self.result: T | None = None
        """None as long as it goes on."""
        self.go_on()

    def go_on(self) -> None:
        """Do the next step, for which what it needs is there."""
        try:
            self.waits_for = next(self.steps)
        except StopIteration as end:
            self.result = end.value

    def finish(self) -> T:
        """Do all steps, which wait for what they need."""
        while self.result is None:
            self.go_on()
        return self.result


def share_of_saves(folder: Path, num: int) -> tuple[list[list[Path]], bool]:
    """Which parts of a saved buffer each of `num` buffers loads, and whether each loads exactly the part that it saved.

    If there are more parts than buffers, they are distributed in turn. If there are fewer, several buffers load the same part (each keeps
    its newest rows).
    """
    whole = (folder / "index.json").is_file()
    found = [p for p in folder.glob("*_*") if p.is_dir() and p.name.split("_")[-1].isdigit()]
    parts = [folder] if whole else sorted(found, key=lambda p: int(p.name.split("_")[-1]))
    if not parts:
        return [[folder]] * num, True  # loading then says what is missing
    return [parts[i::num] if i < len(parts) else [parts[i % len(parts)]] for i in range(num)], len(parts) == num
