"""A group of workers that is kept complete, with deadlines, replacements and counts of losses."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from raypid.outputs import ErrorFile
from raypid.phases import say
from raypid.runtime.handle import A, Argument, ArgumentLost, B, Backend, Future, Handle, OutOfMemory, T, WorkerLost

Factory = Callable[[int, int], Callable[[], object]]
"""(worker index, restarts so far) -> a function that builds the role."""

LOSS_WINDOW_S = 3600.0
START_S = 60.0
"""Seconds that the process of a new worker may take to start, if worker_timeout_s is less."""

GRACE_S = 1.0
"""Seconds that a call which is overdue has all the same: where this process stood still (Ctrl-Z, a machine that slept), the answers
that came meanwhile are read only now."""

R = TypeVar("R")
D = TypeVar("D")


class WorkerRole(Protocol):
    """The method of a worker that is called by name here."""

    def close(self) -> None: ...


class WorkersFailed(RuntimeError):
    """More workers were lost within an hour than `max_restarts` allows."""


class LossBudget:
    """How many processes may be lost within LOSS_WINDOW_S: a fault now and then must not end a long run."""

    def __init__(self, max_restarts: int) -> None:
        self.max_restarts = max_restarts
        self._times: deque[float] = deque()

    def spend(self, message: str, hint: str = "") -> None:
        """Count a loss.

        Raises:
            WorkersFailed: there were more than max_restarts. Its text is the message, what was counted, and the hint.
        """
        self._times.append(now := time.monotonic())
        while now - self._times[0] > LOSS_WINDOW_S:
            self._times.popleft()
        if len(self._times) > self.max_restarts:
            raise WorkersFailed(
                f"{message} That is loss number {len(self._times)} within an hour; max_restarts allows {self.max_restarts}.{hint}"
            )


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

    If a call is lost or overdue, its worker is killed and built anew, and `call_all` makes the call again. Methods that are
    called with `start` return a pair (report: R, data: D).
    """

    def __init__(
        self,
        backend: Backend,
        factory: Factory,
        num_workers: int,
        *,
        num_cpus: float,
        timeout_s: float,
        max_restarts: int,
        describe: str = "",
        kind: str = "Worker",
    ) -> None:
        self.backend, self.factory, self.num_cpus = backend, factory, num_cpus
        self.timeout_s, self.describe, self.kind = timeout_s, describe, kind
        self.budget = LossBudget(max_restarts)
        self.restarts = [0] * num_workers
        self.lost = {"workers": 0, "timeouts": 0}
        self.errors = ErrorFile()
        """Where the errors of lost workers are written."""
        self._built = [False] * num_workers
        self._running: list[deque[_Call[R, D]]] = [deque() for _ in range(num_workers)]
        self.handles: list[Handle] = [self._spawn(i) for i in range(num_workers)]

    def _spawn(self, index: int) -> Handle:
        return self.backend.spawn(self.factory(index, self.restarts[index]), num_cpus=self.num_cpus)

    def __len__(self) -> int:
        return len(self.handles)

    def _given(self, index: int, args: tuple[object, ...]) -> list[object]:
        """The arguments of a call of worker `index` that is made now."""
        return [a.of(self.handles[index]) if isinstance(a, Argument) else a for a in args]

    def _recover(self, index: int, call: str, args: tuple[object, ...], error: Exception) -> None:
        """Prepare for a call to be made again: mend the argument that was lost, or replace the worker.

        Raises:
            The error itself: no argument can be mended. WorkersFailed: see `replace`.
        """
        if not isinstance(error, ArgumentLost):
            self.replace(index, call, error)
        elif not any(a.mend(self.handles[index]) for a in args if isinstance(a, Argument)):
            raise error

    def call_all(self, method: Callable[..., T], *args: object) -> list[T]:
        """Call `method` of every worker; returns the results in worker order."""

        def submit(index: int) -> tuple[Future[T], None]:
            return self.handles[index].submit(method, *self._given(index, args)), None

        return [value for value, _ in self._results(submit, method, args)]

    def call_all_parts(self, method: Callable[..., tuple[A, B]], *args: object) -> list[tuple[A, Future[B]]]:
        """Call a method that returns a pair of every worker; returns (first value, future of the second) in worker order."""

        def submit(index: int) -> tuple[Future[A], Future[B]]:
            return self.handles[index].submit_parts(method, *self._given(index, args))

        return self._results(submit, method, args)

    def _results(
        self, submit: Callable[[int], tuple[Future[A], B]], method: Callable[..., object], args: tuple[object, ...]
    ) -> list[tuple[A, B]]:
        """Submit a call of every worker and wait for the first values; calls that are lost or overdue are submitted again."""
        pending = {i: submit(i) for i in range(len(self))}
        deadline = {i: self._due(i) for i in pending}
        results: dict[int, tuple[A, B]] = {}
        while pending:
            for i, (first, other) in list(pending.items()):
                try:
                    if not self._built[i]:  # the time that its start takes does not count
                        self.backend.get(self.handles[i].ready, timeout=max(START_S, self.timeout_s))
                        self._built[i], deadline[i] = True, self._due(i)
                        say("starting workers", f"{sum(self._built)} of {len(self)} workers are up")
                    value = self.backend.get(first, timeout=max(GRACE_S, deadline[i] - time.monotonic()))
                except (WorkerLost, TimeoutError) as error:
                    self._recover(i, f"{method.__name__}()", args, error)
                    pending[i], deadline[i] = submit(i), self._due(i)
                    continue
                results[i] = value, other
                del pending[i]
        return [results[i] for i in range(len(self))]

    def _due(self, index: int) -> float:
        """The deadline of a call that is made now. It waits for the calls under way first."""
        return time.monotonic() + self.timeout_s * (1 + self.running(index))

    def answers(self, method: Callable[..., T], patience_s: float) -> dict[int, T]:
        """Call `method` of every worker, for the results that come within `patience_s` seconds. No worker is replaced."""
        futures = [handle.submit(method) for handle in self.handles]
        ready, _ = self.backend.wait(futures, num=len(futures), timeout=patience_s)
        found: dict[int, T] = {}
        for index, future in enumerate(futures):
            if future in ready:
                with suppress(Exception):  # it is gone
                    found[index] = self.backend.get(future)
        return found

    def due(self, index: int, seconds: float) -> float:
        """The deadline of a call of `seconds` that is made now, behind the calls under way."""
        return time.monotonic() + seconds + self.timeout_s * self.running(index) + START_S * (not self._built[index])

    # -- one at a time -------------------------------------------------------------------------------------------------

    def running(self, index: int) -> int:
        """The number of calls of worker `index` that were started and that `finished` has not returned."""
        return len(self._running[index])

    @property
    def idle(self) -> list[int]:
        """Workers without a call under way."""
        return [i for i, calls in enumerate(self._running) if not calls]

    def start(self, index: int, method: Callable[..., tuple[R, D]], *args: object) -> None:
        """Call a method of worker `index`, after the calls that it has under way; `finished` returns the result."""
        report, data = self.handles[index].submit_parts(method, *self._given(index, args))
        patience = self.timeout_s + (0.0 if self._built[index] else START_S)
        self._running[index].append(_Call(method.__name__, args, report, data, time.monotonic() + patience))

    def finished(
        self, timeout_s: float | None, others: Sequence[Future[object]] = ()
    ) -> list[tuple[int, tuple[R, Future[D]]]]:
        """The calls that have ended, as (worker, (report, future of the data)): by worker, and in the order of the calls.

        Waits up to `timeout_s` seconds (None: as long as calls may take) for the first of them, or for one of the futures
        `others`. A worker that was lost or is overdue is replaced. Its calls are forgotten, and `lost` counts it.
        """
        for i, calls in enumerate(self._running):
            if calls and not self._built[i] and self.backend.wait([self.handles[i].ready], timeout=0)[0]:
                self._built[i] = True
                calls[0].deadline = time.monotonic() + self.timeout_s  # the time that its start takes does not count
        first = [calls[0] for calls in self._running if calls]
        if not first and not others:
            return []
        until = min((call.deadline for call in first), default=time.monotonic() + self.timeout_s)
        wait = max(0.0, until - time.monotonic())
        reports = [call.report for call in first]
        self.backend.wait([*others, *reports], num=1, timeout=wait if timeout_s is None else min(wait, timeout_s))
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
                if result := self._end(i, overdue=i in overdue):
                    done.append((i, result))
            asked = [i for i in sorted(ended) if self._running[i]]
        return done

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

    def replace(self, index: int, call: str, error: Exception, waited_s: float | None = None) -> None:
        """Count worker `index` as lost, kill it and build it anew. Its calls under way are lost with it.

        waited_s: the time that an overdue call had; None: `timeout_s`.

        Raises:
            WorkersFailed: more were lost within an hour than `max_restarts`. The message names the worker, its environment and its last call.
        """
        overdue = isinstance(error, TimeoutError)
        what = f"did not answer within {waited_s or self.timeout_s:g} s" if overdue else "died"
        what = "ran out of memory" if isinstance(error, OutOfMemory) else what
        message = f"{self.kind} {index} ({self.describe}) {what} in {call}."
        self.lost["timeouts" if overdue else "workers"] += 1
        self.errors.add(f"{message}\n{error}\n\n")
        self._end_process(index)
        hint = " An environment that hangs? worker_timeout_s sets how long a call may take." if overdue else ""
        try:
            self.budget.spend(message, hint)
        except WorkersFailed as failed:
            raise failed from error
        self.handles[index] = self._spawn(index)

    def renew(self, index: int) -> None:
        """Replace a worker whose work is no longer wanted; it does not count as lost."""
        self._end_process(index)
        self.handles[index] = self._spawn(index)

    def _end_process(self, index: int) -> None:
        self._running[index].clear()
        self.backend.kill(self.handles[index])
        self.restarts[index] += 1
        self._built[index] = False

    def close(self) -> None:
        """Give the workers two seconds to close their environments, then end them."""
        futures = [h.submit(WorkerRole.close) for h in self.handles]
        try:
            self.backend.wait(futures, num=len(futures), timeout=2.0)
        finally:
            for handle in self.handles:
                self.backend.kill(handle)
