"""A group of workers that is kept complete: deadlines, replacement, and a count of what was lost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypid.runtime.handle import Argument, ArgumentLost, Backend, Handle, WorkerLost, name_of

Factory = Callable[[int, int], Callable[[], Any]]
"""(worker index, restarts so far) -> what builds the role."""

START_S = 60.0
"""Seconds that the process of a new worker may take to start, where worker_timeout_s is less."""


class WorkersFailed(RuntimeError):
    """More workers were lost than the budget allows."""


@dataclass(slots=True)
class _Call:
    """A call under way."""

    method: str
    args: tuple[Any, ...]
    futures: list[Any]
    deadline: float
    """By time.monotonic()."""


class WorkerGroup:
    """`num_workers` roles. A call that is lost or overdue kills its worker, builds a new one and is issued again."""

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
        self.timeout_s, self.max_restarts, self.describe, self.kind = timeout_s, max_restarts, describe, kind
        self.restarts = [0] * num_workers
        self.lost = {"workers": 0, "timeouts": 0}
        self.folder: Path | None = None
        """Where the first traceback of a lost worker goes."""
        self._built = [False] * num_workers
        self._running: list[deque[_Call]] = [deque() for _ in range(num_workers)]
        self.handles: list[Handle] = [self._spawn(i) for i in range(num_workers)]

    def _spawn(self, index: int) -> Handle:
        return self.backend.spawn(self.factory(index, self.restarts[index]), num_cpus=self.num_cpus)

    def __len__(self) -> int:
        return len(self.handles)

    def _submit(self, index: int, method: str | Callable[..., Any], args: tuple[Any, ...], num_returns: int) -> Any:
        handle = self.handles[index]
        given = (a.of(handle) if isinstance(a, Argument) else a for a in args)
        return handle.submit(method, *given, num_returns=num_returns)

    def _mended(self, index: int, args: tuple[Any, ...]) -> bool:
        """The call of a worker had no argument; it is not the worker that was lost."""
        return any(a.mend(self.handles[index]) for a in args if isinstance(a, Argument))

    def call_all(self, method: str | Callable[..., Any], *args: Any, num_returns: int = 1) -> list[Any]:
        """Call every worker; the results in worker order. With num_returns > 1: [first value, *futures of the others]."""
        pending = {i: self._submit(i, method, args, num_returns) for i in range(len(self))}
        deadline = {i: self._due(i) for i in pending}
        results: list[Any] = [None] * len(self)
        while pending:
            for i, future in list(pending.items()):
                head = future if num_returns == 1 else future[0]
                try:
                    if not self._built[i]:  # its start is not the call's time
                        self.backend.get(self.handles[i].ready, timeout=max(START_S, self.timeout_s))
                        self._built[i], deadline[i] = True, self._due(i)
                    value = self.backend.get(head, timeout=max(0.0, deadline[i] - time.monotonic()))
                except (WorkerLost, TimeoutError) as error:
                    if not isinstance(error, ArgumentLost):
                        self.replace(i, f"{name_of(method)}()", error)
                    elif not self._mended(i, args):
                        raise
                    pending[i], deadline[i] = self._submit(i, method, args, num_returns), self._due(i)
                    continue
                results[i] = value if num_returns == 1 else [value, *future[1:]]
                del pending[i]
        return results

    def _due(self, index: int) -> float:
        """By when a call that is made now has to be done: it comes behind those under way."""
        return time.monotonic() + self.timeout_s * (1 + self.running(index))

    # -- one at a time -------------------------------------------------------------------------------------------------

    def running(self, index: int) -> int:
        """Calls of worker `index` that `start` began and `finished` has not handed out."""
        return len(self._running[index])

    @property
    def idle(self) -> list[int]:
        """Workers without a call under way."""
        return [i for i, calls in enumerate(self._running) if not calls]

    def start(self, index: int, method: str | Callable[..., Any], *args: Any, num_returns: int) -> None:
        """Begin a call of worker `index`, behind those that it has under way; `finished` hands its result out."""
        futures = self._submit(index, method, args, num_returns)
        patience = self.timeout_s + (0.0 if self._built[index] else START_S)
        self._running[index].append(_Call(name_of(method), args, futures, time.monotonic() + patience))

    def finished(self, timeout_s: float | None, others: Sequence[Any] = ()) -> list[tuple[int, list[Any]]]:
        """(worker, [first value, *futures of the others]) of the calls that have ended, in worker order, each worker's in
        the order in which they began.

        Waits up to `timeout_s` (None: as long as calls may take) for the first of them, or for one of the futures
        `others`. A worker that was lost or is overdue is replaced, its calls are forgotten, and it appears in `lost`.
        """
        first = [calls[0] for calls in self._running if calls]
        if not first and not others:
            return []
        until = min((call.deadline for call in first), default=time.monotonic() + self.timeout_s)
        wait = max(0.0, until - time.monotonic())
        heads = [call.futures[0] for call in first]
        self.backend.wait([*others, *heads], num=1, timeout=wait if timeout_s is None else min(wait, timeout_s))
        done: list[tuple[int, list[Any]]] = []
        asked = [i for i, calls in enumerate(self._running) if calls]
        while asked:
            oldest = {self._running[i][0].futures[0]: i for i in asked}
            ready, _ = self.backend.wait(list(oldest), num=len(oldest), timeout=0)
            ended = {oldest[future] for future in ready}
            overdue = {i for i in asked if i not in ended and time.monotonic() > self._running[i][0].deadline}
            for i in sorted(ended | overdue):
                if values := self._end(i, overdue=i in overdue):
                    done.append((i, values))
            asked = [i for i in sorted(ended) if self._running[i]]
        return done

    def _end(self, index: int, *, overdue: bool) -> list[Any]:
        """The values of a worker's oldest call; empty if the worker, or what it was called with, was lost."""
        calls = self._running[index]
        call = calls.popleft()
        try:
            if overdue:
                raise TimeoutError
            values = [self.backend.get(call.futures[0]), *call.futures[1:]]
        except (WorkerLost, TimeoutError) as error:
            if not isinstance(error, ArgumentLost):
                self.replace(index, f"{call.method}()", error)
            elif not self._mended(index, call.args):
                raise
            return []
        self._built[index] = True
        if calls:  # it begins only now
            calls[0].deadline = time.monotonic() + self.timeout_s
        return values

    def drop(self) -> None:
        """Wait for the calls under way and forget their results: a fresh start after a restore."""
        while any(self._running):
            self.finished(None)

    def replace(self, index: int, call: str, error: Exception) -> None:
        """Kill worker `index` and build it anew; calls that it has under way are lost with it.

        Raises:
            WorkersFailed: the budget is used up; the message names the worker, its environment and its last call.
        """
        self._running[index].clear()
        overdue = isinstance(error, TimeoutError)
        what = f"did not answer within {self.timeout_s:g} s" if overdue else "died"
        message = f"{self.kind} {index} ({self.describe}) {what} in {call}."
        self.lost["timeouts" if overdue else "workers"] += 1
        if self.folder is not None:
            with (self.folder / "errors.txt").open("a") as out:
                out.write(f"{message}\n{error}\n\n")
        self.backend.kill(self.handles[index])
        self.restarts[index] += 1
        self._built[index] = False
        if sum(self.restarts) > self.max_restarts:
            hint = " An environment that hangs? worker_timeout_s sets how long a call may take." if overdue else ""
            raise WorkersFailed(
                f"{message} That is loss number {sum(self.restarts)}; max_restarts allows {self.max_restarts}.{hint}"
            ) from error
        self.handles[index] = self._spawn(index)

    def close(self) -> None:
        """Let the workers close their environments, briefly, then end them."""
        futures = [h.submit("close") for h in self.handles]
        try:
            self.backend.wait(futures, num=len(futures), timeout=2.0)
        finally:
            for handle in self.handles:
                self.backend.kill(handle)
