"""A group of workers that is kept complete, with deadlines, replacements and counts of losses."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from raypid.errors import Halted
from raypid.phases import Tell, nobody, say
from raypid.runtime.handle import (
    A,
    Argument,
    ArgumentLost,
    B,
    Backend,
    ClusterLost,
    Future,
    Handle,
    Kind,
    LostNode,
    OutOfMemory,
    Place,
    T,
    WorkerLost,
)
from raypid.runtime.nodes import listed, numbers_text, roles_text
from raypid.storage.outputs import ErrorFile

Factory = Callable[[int, int], Callable[[], object]]
"""(worker index, restarts so far) -> a function that builds the role."""

LOSS_WINDOW_S = 3600.0
START_S = 60.0
"""Seconds that the process of a new worker may take to start, if worker_timeout_s is less."""
LOOK_S = 1.0
"""Seconds between looks whether nodes were lost, and whether there is room again for those who were there."""
ALONE_S = 3600.0
"""Seconds for which a run without any worker waits for one."""

GRACE_S = 1.0
"""Seconds that a call which is overdue has all the same: where this process stood still (Ctrl-Z, a machine that slept), the answers
that came meanwhile are read only now."""

R = TypeVar("R")
D = TypeVar("D")


class WorkersFailed(RuntimeError):
    """More workers were lost within an hour than `max_restarts` allows."""


class Losses:
    """The processes and data that a run has lost: counts by kind, and a limit on how often a kind of role is rebuilt.

    Each loss is told in one line and written to errors.txt. The limit is `max_restarts` within LOSS_WINDOW_S seconds: a fault now
    and then must not end a long run.
    """

    def __init__(self, max_restarts: int, kinds: Sequence[str] = ()) -> None:
        self.max_restarts = max_restarts
        self.counts = Counter(dict.fromkeys(kinds, 0))
        """By kind, under lost/ in results. Workers that were overdue count as timeouts."""
        self.errors = ErrorFile()
        """The file for the errors of lost roles."""
        self.tell: Tell = nobody
        """Says one line to the user: what was lost, and what comes back."""
        self.stopping: Callable[[], bool] = lambda: False
        """Whether the run is to end; asked while it waits for what it has lost."""
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)
        """When roles of each kind were lost within the last LOSS_WINDOW_S seconds."""

    def add(self, kind: str, number: int = 1) -> None:
        """Count losses without a limit, such as rows of replay."""
        self.counts[kind] += number

    def count(
        self,
        kind: str,
        message: str,
        error: Exception,
        *,
        number: int = 1,
        failure: type[Exception] = WorkersFailed,
        hint: str = "",
    ) -> None:
        """Count `number` roles of a kind that are about to be rebuilt, as one loss within the limit.

        Raises:
            Exception: of type `failure`, if there were more losses than max_restarts within an hour. Its text is the message, the
                number of losses, and the hint.
        """
        self.add(kind, number)
        self.errors.add(f"{message}\n{error}\n\n")
        times = self._times["workers" if kind == "timeouts" else kind]
        times.append(now := time.monotonic())
        while now - times[0] > LOSS_WINDOW_S:
            times.popleft()
        if len(times) > self.max_restarts:
            raise failure(
                f"{message} That is loss number {len(times)} within an hour; max_restarts allows {self.max_restarts}.{hint}"
            ) from error


def how_lost(error: Exception, waited_s: float) -> str:
    """Say how a process was lost, as a clause: "did not answer within 5 s", "died"."""
    if isinstance(error, TimeoutError):
        return f"did not answer within {waited_s:g} s"
    return "ran out of memory" if isinstance(error, OutOfMemory) else "died"


def cause_of(error: Exception) -> str:
    """Say why a process ended, to append to a message: ": its process was killed"; "" if that is unknown."""
    return f": {error.how}" if isinstance(error, WorkerLost) and error.how else ""


@dataclass(slots=True)
class _Call(Generic[R, D]):
    """A call under way."""

    name: str
    args: tuple[object, ...]
    report: Future[R]
    data: Future[D]
    deadline: float
    """By time.monotonic()."""


class WorkerGroup(Generic[R, D]):
    """`num_workers` roles that are kept complete.

    If a call is lost or overdue, its worker is killed and rebuilt, and `call_all` makes the call again. Methods that are
    called with `start` return a pair (report: R, data: D).

    The workers of a node that is lost are absent until there is room for them, and the others go on. That is not counted towards
    `max_restarts`, which is there for faulty environments: a node has to come back before it can be lost again.
    """

    def __init__(
        self,
        backend: Backend,
        factory: Factory,
        num_workers: int,
        *,
        num_cpus: float,
        timeout_s: float,
        losses: Losses,
        describe: str = "",
        kind: Kind = "worker",
        node: str | None = None,
    ) -> None:
        self.backend, self.factory = backend, factory
        self.timeout_s, self.describe, self.kind = timeout_s, describe, kind.capitalize()
        self.places = [Place(kind, i, num_cpus, node=node) for i in range(num_workers)]
        self.losses = losses
        """Counts lost workers, the nodes that they were lost with, and fragments of theirs that were lost on the way."""
        self.restarts = [0] * num_workers
        self.absent: set[int] = set()
        self._returning: set[int] = set()
        """Workers that were absent and are being rebuilt."""
        self._looked = 0.0
        self._built = [False] * num_workers
        self._running: list[deque[_Call[R, D]]] = [deque() for _ in range(num_workers)]
        self.handles: list[Handle] = [self._spawn(i) for i in range(num_workers)]

    def _spawn(self, index: int) -> Handle:
        return self.backend.spawn(self.factory(index, self.restarts[index]), self.places[index])

    def __len__(self) -> int:
        return len(self.handles)

    def _arguments(self, index: int, args: tuple[object, ...]) -> list[object]:
        """The arguments of a call of worker `index` that is made now."""
        return [a.of(self.handles[index]) if isinstance(a, Argument) else a for a in args]

    # -- nodes that come and go ----------------------------------------------------------------------------------------

    @property
    def present(self) -> list[int]:
        """The workers that are not absent."""
        return [i for i in range(len(self)) if i not in self.absent]

    def look(self, suspect: int | None = None) -> None:
        """Take note of nodes that were lost, and build absent workers where there is room again. Cheap: looks once a second.

        suspect: a worker that has died, perhaps with its node.
        """
        now = time.monotonic()
        if suspect is None and now - self._looked < LOOK_S:
            return
        self._looked = now
        for remark in self.backend.remarks():
            self.losses.tell(remark)
        for node in self.backend.lost_nodes(None if suspect is None else self.handles[suspect]):
            self._lose(node)
        for i in sorted(self.absent):
            if self.backend.has_room(self.places[i]):
                self.absent.discard(i)
                self._returning.add(i)
                self.handles[i] = self._spawn(i)
        if self._returning and not self.absent & self._returning:
            self._tell_returned()

    def _lose(self, node: LostNode) -> None:
        """Count a node as lost, with all workers that were there."""
        there = [i for i, handle in enumerate(self.handles) if handle in node.handles and i not in self.absent]
        for i in there:
            self._end_process(i)
            self._returning.discard(i)
            self.absent.add(i)
        self.losses.add("nodes")
        self.losses.add("workers", len(there))
        what = roles_text(node.places)
        left = f"{len(self.present)} of {len(self)} workers go on" if there else "all workers go on"
        back = " The others come back when there is room for them." if there else ""
        if not self.present:
            left = "no worker is left"
            back = " Training waits until there is room for one; Ctrl-C ends the run with a checkpoint."
        text = f"Node {node.name} was lost ({node.how}){f' with {what}' if what else ''}; {left}.{back}"
        self.losses.errors.add(f"{text}\n\n")
        self.losses.tell(text)

    def _tell_returned(self) -> None:
        """Say which workers are back, once all that were built together are up."""
        handles = [self.handles[i] for i in self._returning]
        if len(self.backend.wait([h.ready for h in handles], num=len(handles), timeout=0)[0]) < len(handles):
            return
        back, self._returning = sorted(self._returning), set()
        one = len(back) == 1
        places = sorted({place for i in back if (place := self.backend.where(self.handles[i]))})
        where = f" on {listed(places)}" if places else ""
        self.losses.tell(
            f"Worker{'s' * (not one)} {numbers_text(back)} {'is' if one else 'are'} back{where}: "
            f"{len(self.present)} of {len(self)} workers go on."
        )

    def wait_for_one(self) -> None:
        """Wait until there is a worker.

        Raises:
            Halted: the run is to end.
            WorkersFailed: there was none for ALONE_S seconds.
        """
        until = time.monotonic() + ALONE_S
        while not self.present:
            self.look()
            if self.losses.stopping():
                raise Halted("No worker was there: the iteration was dropped.")
            if time.monotonic() > until:
                raise WorkersFailed(
                    f"No worker was there for {ALONE_S / 60:g} minutes, since the nodes with room for them are gone."
                )
            time.sleep(0.1)

    def reachable(self, data: Sequence[Future[T]]) -> list[Future[T]]:
        """Return the fragments that are not on lost nodes alone, and count the others as lost."""
        return self._count_missing([future for future in data if not self.backend.is_lost(future)], len(data))

    def intact(self, data: Sequence[Future[T]]) -> list[Future[T]]:
        """Return the fragments that can be fetched, and count the others as lost. For use after a call has failed for lack of one of
        them: it fetches each, which takes time."""
        kept: list[Future[T]] = []
        for future in data:
            with suppress(WorkerLost, TimeoutError):
                self.backend.get(future, timeout=LOOK_S)
                kept.append(future)
        return self._count_missing(kept, len(data))

    def _count_missing(self, kept: list[Future[T]], num: int) -> list[Future[T]]:
        """Count as lost the fragments that are missing of `num`."""
        if missing := num - len(kept):
            self.losses.add("fragments", missing)
        return kept

    def _value(self, future: Future[T], deadline: float) -> T:
        """The value of a future; raises what `Backend.get` raises."""
        while not self.backend.wait([future], timeout=max(0.0, min(LOOK_S, deadline - time.monotonic())))[0]:
            self.look()
            if time.monotonic() >= deadline:
                break
        return self.backend.get(future, timeout=max(GRACE_S, deadline - time.monotonic()))

    # -- all at a time -------------------------------------------------------------------------------------------------

    def _recover(self, index: int, call: str, args: tuple[object, ...], error: Exception) -> None:
        """Prepare for a call to be made again: mend the argument that was lost, or replace the worker.

        Raises:
            The error itself: no argument can be mended.
            WorkersFailed: see `recover`.
        """
        if not isinstance(error, ArgumentLost):
            self.recover(index, call, error)
        elif not any(a.mend(self.handles[index]) for a in args if isinstance(a, Argument)):
            raise error

    def call_all(self, method: Callable[..., T], *args: object) -> list[T]:
        """Call `method` of every worker that is there; returns the results in worker order."""
        return list(self.call_each(method, *args).values())

    def call_each(self, method: Callable[..., T], *args: object) -> dict[int, T]:
        """Call `method` of every worker that is there; returns the results by worker, in order."""
        results = self._results(
            lambda i: (self.handles[i].submit(method, *self._arguments(i, args)), None), method, args
        )
        return {i: value for i, (value, _) in results.items()}

    def call_all_parts(self, method: Callable[..., tuple[A, B]], *args: object) -> list[tuple[A, Future[B]]]:
        """Call a method that returns a pair of every worker that is there; returns (first value, future of the second) in worker
        order. Waits until there is a worker.

        Raises:
            Halted, WorkersFailed: see `wait_for_one`.
        """
        results: dict[int, tuple[A, Future[B]]] = {}
        while not results:
            self.wait_for_one()
            results = self._results(
                lambda i: self.handles[i].submit_parts(method, *self._arguments(i, args)), method, args
            )
        return list(results.values())

    def _results(
        self, submit: Callable[[int], tuple[Future[A], B]], method: Callable[..., object], args: tuple[object, ...]
    ) -> dict[int, tuple[A, B]]:
        """Submit a call of every worker that is there and wait for the first values; calls that are lost or overdue are submitted
        again, unless their worker is absent from then on."""

        def made(i: int) -> tuple[Handle, Future[A], B, float]:
            return self.handles[i], *submit(i), self.due(i, self.timeout_s)

        self.look()
        pending = {i: made(i) for i in self.present}
        results: dict[int, tuple[A, B]] = {}
        while pending:
            for i, (handle, first, other, deadline) in list(pending.items()):
                try:
                    if not self._built[i]:  # the time that its start takes does not count
                        self._value(handle.ready, time.monotonic() + max(START_S, self.timeout_s))
                        self._built[i] = True
                        deadline = self.due(i, self.timeout_s)
                        say("starting workers", f"{sum(self._built)} of {len(self)} workers are up")
                    results[i] = self._value(first, deadline), other
                    del pending[i]
                except (WorkerLost, TimeoutError) as error:
                    if handle is self.handles[i]:
                        self._recover(i, f"{method.__name__}()", args, error)
                    if i in self.absent:
                        del pending[i]
                    else:
                        pending[i] = made(i)
        return dict(sorted(results.items()))

    def answers(self, method: Callable[..., T], patience_s: float) -> dict[int, T]:
        """Call `method` of every worker, for the results that come within `patience_s` seconds. No worker is replaced."""
        found: dict[int, T] = {}
        with suppress(ClusterLost):
            workers = {self.handles[i].submit(method): i for i in self.present}
            ready = self.backend.wait(list(workers), num=len(workers), timeout=patience_s)[0] if workers else []
            for future in ready:
                with suppress(Exception):  # it is gone
                    found[workers[future]] = self.backend.get(future)
        return dict(sorted(found.items()))

    def due(self, index: int, seconds: float) -> float:
        """The deadline of a call of `seconds` that is made now, behind the calls under way."""
        return time.monotonic() + seconds + self.timeout_s * self.running(index) + START_S * (not self._built[index])

    # -- one at a time -------------------------------------------------------------------------------------------------

    def running(self, index: int) -> int:
        """The number of calls of worker `index` that were started and that `finished` has not returned."""
        return len(self._running[index])

    @property
    def idle(self) -> list[int]:
        """Workers that are there, without a call under way."""
        return [i for i, calls in enumerate(self._running) if not calls and i not in self.absent]

    def start(self, index: int, method: Callable[..., tuple[R, D]], *args: object) -> None:
        """Call a method of worker `index`, after the calls that it has under way; `finished` returns the result."""
        report, data = self.handles[index].submit_parts(method, *self._arguments(index, args))
        patience = self.timeout_s + (0.0 if self._built[index] else START_S)
        self._running[index].append(_Call(method.__name__, args, report, data, time.monotonic() + patience))

    def finished(
        self, timeout_s: float | None, others: Sequence[Future[object]] = (), *, num: int = 1
    ) -> list[tuple[int, tuple[R, Future[D]]]]:
        """The calls that have ended, as (worker, (report, future of the data)): by worker, and in the order of the calls.

        Waits up to `timeout_s` seconds (None: as long as calls may take) until `num` of them have ended, or all that are under way, or one
        of the futures `others`. A worker that was lost or is overdue is replaced. Its calls are forgotten, and `lost` counts it. Where no worker is
        there, waits for one.

        Raises:
            Halted: there is no worker, and the run is to end.
            WorkersFailed: see `recover` and `wait_for_one`.
        """
        self.look()
        if not self.present and not others:
            self.wait_for_one()
        for i, calls in enumerate(self._running):
            if calls and not self._built[i] and self.backend.wait([self.handles[i].ready], timeout=0)[0]:
                self._built[i] = True
                calls[0].deadline = time.monotonic() + self.timeout_s  # the time that its start takes does not count
        first = [calls[0] for calls in self._running if calls]
        if not first and not others:
            return []
        until = min((call.deadline for call in first), default=time.monotonic() + self.timeout_s)
        wait = max(0.0, until - time.monotonic())
        self._wait_for(others, wait if timeout_s is None else min(wait, timeout_s), num)
        done: list[tuple[int, tuple[R, Future[D]]]] = []
        asked = [i for i, calls in enumerate(self._running) if calls]
        while asked:
            oldest = {self._running[i][0].report: i for i in asked}
            ready, _ = self.backend.wait(list(oldest), num=len(oldest), timeout=0)
            late = [f for f, i in oldest.items() if f not in ready and time.monotonic() > self._running[i][0].deadline]
            if late:
                ready += self.backend.wait(late, num=len(late), timeout=GRACE_S)[0]
            ended = {oldest[future] for future in ready}
            overdue = {oldest[future] for future in late} - ended
            for i in sorted(ended | overdue):
                if not self._running[i]:  # it was lost with the node of one before
                    continue
                if result := self._end(i, overdue=i in overdue):
                    done.append((i, result))
            asked = [i for i in sorted(ended) if self._running[i]]
        return done

    def _wait_for(self, others: Sequence[Future[object]], wait_s: float, num: int) -> None:
        """Wait until `num` calls, or all, have ended, one of `others` counting as a call. Look after nodes meanwhile."""
        until = time.monotonic() + wait_s
        while futures := [*others, *(calls[0].report for calls in self._running if calls)]:
            left_s = max(0.0, until - time.monotonic())
            num = min(num, len(futures))
            if len(self.backend.wait(futures, num, min(left_s, LOOK_S))[0]) == num or left_s <= LOOK_S:
                return
            self.look()

    def _end(self, index: int, *, overdue: bool) -> tuple[R, Future[D]] | None:
        """The result of a worker's oldest call; None if the worker, or an argument of the call, was lost."""
        calls = self._running[index]
        call = calls.popleft()
        try:
            if overdue:
                raise TimeoutError
            report = self.backend.get(call.report)
        except (WorkerLost, TimeoutError) as error:
            self._recover(index, f"{call.name}()", call.args, error)
            return None
        if calls:  # the worker starts the next call only now
            calls[0].deadline = time.monotonic() + self.timeout_s
        return report, call.data

    def drop(self) -> None:
        """Wait for the calls under way and forget their results, for a fresh start after a restore."""
        while any(self._running):
            self.finished(None)

    def recover(self, index: int, call: str, error: Exception, waited_s: float | None = None) -> None:
        """Count a worker that has died or is overdue as lost, kill it and rebuild it, unless it was lost with its node. Its calls
        under way are lost with it.

        waited_s: the time that an overdue call had; None: `timeout_s`.

        Raises:
            WorkersFailed: more were lost within an hour than `max_restarts`. The message names the worker, its environment and its last call.
        """
        before = self.handles[index]
        if isinstance(error, WorkerLost):
            self.look(index)
        if self.handles[index] is not before or index in self.absent:
            return
        overdue = isinstance(error, TimeoutError)
        place = self.backend.where(self.handles[index])
        who = f"{self.kind} {index} ({self.describe}){f' on {place}' if place else ''}"
        message = f"{who} {how_lost(error, waited_s or self.timeout_s)} in {call}{cause_of(error)}."
        self._end_process(index, interrupt=overdue)
        hint = " An environment that hangs? worker_timeout_s sets how long a call may take." if overdue else ""
        self.losses.count("timeouts" if overdue else "workers", message, error, hint=hint)
        self._begin(index)
        is_back = "It comes back when there is room for it." if index in self.absent else "It is built anew."
        self.losses.tell(f"{message} {is_back}")

    def _begin(self, index: int) -> None:
        """Rebuild a worker, now or when there is room for it."""
        if self.backend.has_room(self.places[index]):
            self.handles[index] = self._spawn(index)
        else:
            self.absent.add(index)

    def renew(self, index: int) -> None:
        """Replace a worker whose work is no longer wanted; it does not count as lost."""
        self._end_process(index, interrupt=True)
        self._begin(index)

    def _end_process(self, index: int, *, interrupt: bool = False) -> None:
        """End a worker that is lost, or one that is to be interrupted, whose environments are closed."""
        self._running[index].clear()
        if interrupt:
            self.backend.end([self.handles[index]], interrupt=True)
        else:
            self.backend.kill(self.handles[index])
        self.restarts[index] += 1
        self._built[index] = False

    def close(self, *, interrupt: bool = False) -> None:
        """Let the workers close their environments, and end them; see `Backend.end`. None is there from then on."""
        there = [self.handles[i] for i in self.present]
        self.absent.update(range(len(self)))
        self.backend.end(there, interrupt=interrupt)
