"""Data-parallel learners behind one handle: each is fed by its own workers, and they answer as one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from raypid.runtime.collective import NOTICE_S, CollectiveLost
from raypid.runtime.handle import ArgumentLost, Backend, Handle, WorkerLost, name_of
from raypid.runtime.local import LocalFuture

_FROM_ONE = ("weights", "state_dict")
"""Methods that ask and change nothing: all ranks would say the same."""
_GRACE_S = NOTICE_S + 3.0
"""Seconds, after the first failure, in which the others' errors are collected, to find the cause among them."""


class LearnersFailed(RuntimeError):
    """A learner of several was lost; what it held in memory cannot be had again."""


_GO_ON = "A run goes on from its last checkpoint (--resume)."


@contextmanager
def losses_named(num_learners: int, call: str) -> Iterator[None]:
    """For what a run waits for apart from its workers, which are replaced: who is lost here is a learner (a `LearnerGroup` names
    it by itself, but for what it asks of rank 0 alone), or what it was to learn from.

    Raises:
        LearnersFailed: in the place of what the backend says of it.
    """
    try:
        yield
    except ArgumentLost as error:
        raise LearnersFailed(f"What a worker had collected was lost with its node. {_GO_ON}") from error
    except WorkerLost as error:
        who = f"Learner 0 of {num_learners}" if num_learners > 1 else "The learner"
        raise LearnersFailed(f"{who} died in {call}. {_GO_ON}") from error


def split(items: Sequence[Any], num_parts: int) -> list[Sequence[Any]]:
    """Consecutive parts in order, of sizes that differ by at most one."""
    ends = [len(items) * k // num_parts for k in range(num_parts + 1)]
    return [items[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]


class LearnerGroup:
    """The `Handle` of several learners. Fragments go to the learner that owns them; weights and state are rank 0's.

    The learners' roles have `open() -> address` and `join(address)`; they are given the same state once they have met.
    Those that do not wait for each other (`meet` False) are only given the same state.

    Raises:
        TimeoutError: not all were there within start_s. What a learner's factory raised.
    """

    def __init__(
        self,
        backend: Backend,
        factory: Callable[[int], Callable[[], Any]],
        num_learners: int,
        *,
        num_cpus: float,
        num_gpus: float,
        start_s: float,
        meet: bool = True,
    ) -> None:
        self.backend = backend
        self.failure: Exception | None = None
        """What a call ended with; a group that was torn answers nothing else from then on."""
        self.handles: list[Handle] = [
            backend.spawn(factory(rank), num_cpus=num_cpus, num_gpus=num_gpus) for rank in range(num_learners)
        ]
        deadline = time.monotonic() + start_s
        for handle in self.handles:  # before they wait for each other
            backend.get(handle.ready, timeout=max(0.0, deadline - time.monotonic()))
        self.ready: Any = self.handles[0].ready
        if meet:
            address = self.handles[0].submit("open")
            self.ready = self._all("join", [(address,)] * num_learners)
            self.backend.get(self.ready)
        state = self.handles[0].submit("state_dict")
        for handle in self.handles[1:]:
            self.backend.get(handle.submit("load_state_dict", state))

    def __len__(self) -> int:
        return len(self.handles)

    def submit(self, method: str | Callable[..., Any], *args: Any, num_returns: int = 1) -> Any:
        """Call `method` on every learner, with rank 0's value as the answer; of `update` each gets its share of the fragments."""
        method = name_of(method)
        if self.failure is not None:
            failed = LocalFuture(error=self.failure)
            return failed if num_returns == 1 else [failed] * num_returns
        if method in _FROM_ONE:
            return self.handles[0].submit(method, *args, num_returns=num_returns)
        each = [args] * len(self)
        if method == "update":
            timesteps, *fragments = args
            each = [(timesteps, *part) for part in split(fragments, len(self))]
        return self._all(method, each, num_returns)

    def submit_to(self, rank: int, method: str | Callable[..., Any], *args: Any) -> Any:
        """Call `method` of one learner."""
        if self.failure is not None:
            return LocalFuture(error=self.failure)
        return Together(self, {rank: self.handles[rank].submit(method, *args)}, f"{name_of(method)}()")

    def result_of(self, rank: int, future: Any, call: str) -> Any:
        """The value of a call of one learner's handle; where it was lost, the error names it."""
        return Together(self, {rank: future}, call).result()

    def submit_each(
        self, method: str | Callable[..., Any], each: Sequence[Sequence[Any]], num_returns: int
    ) -> tuple[Any, list[list[Any]]]:
        """Call `method` on every learner with arguments of its own: rank 0's first value once all are done, and the
        futures of the other values of every rank."""
        if self.failure is not None:
            failed = LocalFuture(error=self.failure)
            return failed, [[failed] * (num_returns - 1)] * len(self)
        answers = [h.submit(method, *args, num_returns=num_returns) for h, args in zip(self.handles, each, strict=True)]
        return Together(self, {r: a[0] for r, a in enumerate(answers)}, f"{name_of(method)}()"), [
            a[1:] for a in answers
        ]

    def _all(self, method: str | Callable[..., Any], each: Sequence[Sequence[Any]], num_returns: int = 1) -> Any:
        if num_returns > 1:
            first, others = self.submit_each(method, each, num_returns)
            return [first, *others[0]]
        answers = [h.submit(method, *args) for h, args in zip(self.handles, each, strict=True)]
        return Together(self, dict(enumerate(answers)), f"{name_of(method)}()")


class Together(LocalFuture):
    """One call on all learners, or on one: the value of the lowest rank once all are done."""

    __slots__ = ("call", "futures", "group")

    def __init__(self, group: LearnerGroup, futures: dict[int, Any], call: str) -> None:
        super().__init__()
        self.group, self.futures, self.call = group, futures, call

    @property
    def parts(self) -> list[Any]:
        return list(self.futures.values())

    def result(self) -> Any:
        """The value of the lowest rank.

        Raises:
            LearnersFailed: a learner died or hangs; names it. What a learner raised by itself, before what this brought about.
        """
        errors: dict[int, Exception] = {}
        values: dict[int, Any] = {}
        pending, deadline = list(self.futures), None
        while pending:
            wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _ = self.group.backend.wait([self.futures[r] for r in pending], num=1, timeout=wait_s)
            if not ready:
                break
            rank = next(r for r in pending if self.futures[r] == ready[0])
            pending.remove(rank)
            try:
                values[rank] = self.group.backend.get(self.futures[rank])
            except Exception as error:
                errors[rank] = error
                deadline = deadline or time.monotonic() + _GRACE_S
        if errors:
            self.group.failure = self._cause(errors, pending)
            raise self.group.failure
        return values[min(values)]

    def _cause(self, errors: dict[int, Exception], pending: list[int]) -> Exception:
        """Of all that went wrong, what came first: a learner's own error, a dead one, one that hangs."""
        for error in errors.values():
            if not isinstance(error, WorkerLost) or isinstance(error, ArgumentLost):
                return error
        dead = [r for r, e in errors.items() if not isinstance(e, CollectiveLost)]
        lost, what = (dead, "died") if dead else (pending, "did not answer")
        if not lost:
            reason = str(next(iter(errors.values())))
        else:
            reason = f"{' and '.join(f'Learner {r}' for r in lost)} of {len(self.group)} {what} in {self.call}"
        failed = LearnersFailed(f"{reason}. {_GO_ON}")
        failed.__cause__ = errors[min(errors)]
        return failed
