"""Data-parallel learners behind one handle. Each is fed by its own workers, and they answer as one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from raypid.errors import Diverged
from raypid.runtime.collective import NOTICE_S, CollectiveLost
from raypid.runtime.handle import A, ArgumentLost, B, Backend, Future, Handle, Place, T, WorkerLost
from raypid.runtime.local import Failed, LocalFuture
from raypid.types import Update, Weights


class LearnerRole(Protocol):
    """The methods of a learner that are called by name here."""

    def open(self) -> str: ...

    def join(self, address: str) -> None: ...

    def update(self, timesteps: int, *fragments: object) -> tuple[Update, Weights]: ...

    def learn(self, timesteps: int, num_updates: int, *samples: object) -> tuple[object, Weights]: ...

    def weights(self) -> Weights: ...

    def state_dict(self) -> Mapping[str, object]: ...

    def load_state_dict(self, state: Mapping[str, object]) -> None: ...


_FROM_ONE = (LearnerRole.weights.__name__, LearnerRole.state_dict.__name__)
"""Methods that change nothing and give the same result on every rank."""
_FOR_ALL = {LearnerRole.update.__name__: 1, LearnerRole.learn.__name__: 2}
"""Methods whose last arguments are fragments or samples, with the number of arguments before these."""
_GRACE_S = NOTICE_S + 3.0
"""Seconds, after the first failure, in which the others' errors are collected, to find the cause among them."""


class LearnersFailed(RuntimeError):
    """A learner was lost, or what it was to learn from. What was in its memory is gone."""


@contextmanager
def losses_named(num_learners: int, call: str) -> Iterator[None]:
    """Turn a lost process into LearnersFailed that names the learner.

    For calls that are not made by a WorkerGroup, which replaces its workers. A LearnerGroup names its learners itself, except
    in calls of rank 0 alone.
    """
    try:
        yield
    except ArgumentLost as error:
        raise LearnersFailed("What a worker had collected was lost with its node.") from error
    except WorkerLost as error:
        who = f"Learner 0 of {num_learners}" if num_learners > 1 else "The learner"
        raise LearnersFailed(f"{who} died in {call}.") from error


def split(items: Sequence[T], num_parts: int) -> list[Sequence[T]]:
    """Consecutive parts in order, of sizes that differ by at most one."""
    ends = [len(items) * k // num_parts for k in range(num_parts + 1)]
    return [items[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]


class LearnerGroup:
    """Several learners as one `Handle`. Each update splits its fragments among them; weights and state are those of rank 0.

    The roles are `LearnerRole`s. With `meet` they join a collective first. Then all get the state of rank 0.

    Raises:
        TimeoutError: not all learners were there within `start_s` seconds.
        Exception: whatever a learner's factory raised.
    """

    def __init__(
        self,
        backend: Backend,
        factory: Callable[[int], Callable[[], object]],
        num_learners: int,
        *,
        num_cpus: float,
        num_gpus: float,
        start_s: float,
        meet: bool = True,
    ) -> None:
        self.backend = backend
        self.failure: Exception | None = None
        """The error of the first call that failed. Every later call fails with it too."""
        self.handles: list[Handle] = [
            backend.spawn(factory(rank), Place("learner", rank, num_cpus, num_gpus)) for rank in range(num_learners)
        ]
        deadline = time.monotonic() + start_s
        for handle in self.handles:  # before they wait for each other
            backend.get(handle.ready, timeout=max(0.0, deadline - time.monotonic()))
        self.ready: Future[object] = self.handles[0].ready
        if meet:
            self.ready = self.submit(LearnerRole.join, self.handles[0].submit(LearnerRole.open))
            backend.get(self.ready)
        state = self.handles[0].submit(LearnerRole.state_dict)
        for handle in self.handles[1:]:
            backend.get(handle.submit(LearnerRole.load_state_dict, state))

    def __len__(self) -> int:
        return len(self.handles)

    def submit(self, method: Callable[..., T], *args: object) -> Future[T]:
        """Call `method` of every learner; returns rank 0's value once all are done."""
        if self.failure is not None:
            return Failed(self.failure)
        if method.__name__ in _FROM_ONE:
            return self.handles[0].submit(method, *args)
        return Together(self, {r: h.submit(method, *args) for r, h in enumerate(self.handles)}, method)

    def submit_parts(self, method: Callable[..., tuple[A, B]], *args: object) -> tuple[Future[A], Future[B]]:
        """Like `submit`, for a method that returns a pair. Each learner gets its share of fragments and samples."""
        if self.failure is not None:
            return Failed(self.failure), Failed(self.failure)
        fixed = _FOR_ALL.get(method.__name__, len(args))
        shares = split(args[fixed:], len(self))
        parts = [h.submit_parts(method, *args[:fixed], *own) for h, own in zip(self.handles, shares, strict=True)]
        return Together(self, {r: a for r, (a, _) in enumerate(parts)}, method), parts[0][1]

    def submit_to(self, rank: int, method: Callable[..., T], *args: object) -> Future[T]:
        """Call `method` of one learner."""
        if self.failure is not None:
            return Failed(self.failure)
        return Together(self, {rank: self.handles[rank].submit(method, *args)}, method)

    def result_of(self, rank: int, future: Future[T], method: Callable[..., object]) -> T:
        """Wait for a call of one learner's own handle. If the learner was lost, the error names it and `method`."""
        return Together(self, {rank: future}, method).result()


class Together(LocalFuture[T]):
    """One call of all learners, or of one: the value of the lowest rank once all are done."""

    __slots__ = ("call", "futures", "group")

    def __init__(self, group: LearnerGroup, futures: dict[int, Future[T]], method: Callable[..., object]) -> None:
        self.group, self.futures, self.call = group, futures, f"{method.__name__}()"

    @property
    def parts(self) -> Sequence[Future[object]]:
        return list(self.futures.values())

    def result(self) -> T:
        """The value of the lowest rank; raises what `results` raises."""
        return self.results()[0]

    def results(self) -> list[T]:
        """The values of all ranks.

        Raises:
            LearnersFailed: a learner died or hangs; the message names it.
            Exception: what a learner itself raised, rather than what the others raised because of it.
        """
        errors: dict[int, Exception] = {}
        values: dict[int, T] = {}
        pending, deadline = {future: rank for rank, future in self.futures.items()}, None
        while pending:
            wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _ = self.group.backend.wait(list(pending), num=1, timeout=wait_s)
            if not ready:
                break
            rank = pending.pop(ready[0])
            try:
                values[rank] = self.group.backend.get(ready[0])
            except Exception as error:
                errors[rank] = error
                deadline = deadline or time.monotonic() + _GRACE_S
        if errors:
            cause = self._cause(errors, list(pending.values()))
            if not isinstance(cause, Diverged):  # then all learners are there, and can be given another state
                self.group.failure = cause
            raise cause
        return [value for _, value in sorted(values.items())]

    def _cause(self, errors: dict[int, Exception], pending: list[int]) -> Exception:
        """The first cause of these errors: what a learner itself raised, else a dead learner, else one that hangs."""
        for error in errors.values():
            if not isinstance(error, WorkerLost) or isinstance(error, ArgumentLost):
                return error
        dead = [r for r, e in errors.items() if not isinstance(e, CollectiveLost)]
        lost, what = (dead, "died") if dead else (pending, "did not answer")
        if not lost:
            reason = str(next(iter(errors.values())))
        else:
            reason = f"{' and '.join(f'Learner {r}' for r in lost)} of {len(self.group)} {what} in {self.call}"
        failed = LearnersFailed(f"{reason}.")
        failed.__cause__ = errors[min(errors)]
        return failed
