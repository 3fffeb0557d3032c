"""Supervision of roles whose state is worth keeping, such as learners: one that is rebuilt goes on from the newest whole state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any, Protocol

from raypid.errors import Diverged, Halted
from raypid.runtime.collective import NOTICE_S, CollectiveLost
from raypid.runtime.handle import ArgumentLost, Backend, Future, Place, T, WorkerLost, counted_as
from raypid.runtime.supervisor import Call, Group, Losses, RolesFailed, cause_of, how_lost

_GRACE_S = NOTICE_S + 3.0
"""Seconds, after the first failure, in which the others' errors are collected, to find the cause among them."""
COPY_S = 1.0
"""Seconds between copies of the state, if these take less than a hundredth of the time."""
_PROBE_S = 15.0
"""Seconds that a role has for saying how far it is, once another was lost. It may have to end what it does."""


class Copy(Protocol):
    """A state, and what it takes to copy it."""

    progress: int
    """How far it is, such as the number of updates that it has seen."""
    seconds: float


class Stateful(Protocol):
    """The methods of a role whose state is kept, and of one that meets others in a collective."""

    def copied(self) -> Any:
        """The state as it is now: a `Copy`."""

    def standing(self) -> int:
        """The progress of `newest_whole`; -1 if there is no such state."""

    def newest_whole(self) -> Any:
        """The newest state that no broken-off call has touched: a `Copy`."""

    def take_over(self, copy: Any) -> None:
        """Go on from the state of another role, or of one that was lost."""

    def open(self) -> str: ...

    def join(self, address: str) -> None: ...

    def leave(self) -> None: ...


class _Gone(Exception):
    """Roles that were lost while others were being rebuilt."""

    def __init__(self, lost: Sequence[int], call: str, error: Exception) -> None:
        super().__init__(call)
        self.lost, self.call, self.error = lost, call, error


class StatefulGroup(Group[Any, Any]):
    """One `Stateful` role or several that answer as one. With `meet` they join a collective, and all get the state of the first.

    One that dies, or does not answer within `timeout_s` seconds, is rebuilt. It goes on from the newest whole state that is left:
    that of another one, or a copy that this process takes every few seconds. Roles that have met meet again, and all take that
    state. The progress that is lost with it is counted in `losses` as `unit`.

    Raises:
        TimeoutError: not all roles were there within `start_s` seconds.
        Exception: whatever a role's factory raised.
    """

    def __init__(
        self,
        backend: Backend,
        factory: Callable[[int, int], Callable[[], object]],
        places: Sequence[Place],
        *,
        start_s: float,
        timeout_s: float = 300.0,
        losses: Losses | None = None,
        meet: bool = True,
        unit: str = "updates",
    ) -> None:
        self.start_s, self.meets, self.unit = start_s, meet and len(places) > 1, unit
        self.generation = 0
        """Number of times that roles were rebuilt, or have met again."""
        self._progress = Fraction()
        self._under_way: Call[Any] | None = None
        """The newest call by which all roles make progress together."""
        self.kept: Any = None
        """The newest copy of the state in this process, which outlives all roles and their nodes."""
        self.mark: object = None
        """Opaque progress snapshot from the trainer, stored with each copy of the state."""
        self.kept_mark: object = None
        """The `mark` of the copy that is kept."""
        self._copying: tuple[Future[Any], object, float] | None = None
        """A copy that is on its way, with `mark` and the time when it was asked for."""
        self._kept_at = self._copy_at = time.monotonic()
        """When the copy that is kept was asked for, and when the next one is due."""
        self._copy_cost = math.inf
        """Seconds that a copy takes its role."""
        self._lasting: dict[str, tuple[Callable[..., object], tuple[object, ...]]] = {}
        """The last call of each method whose setting is no part of the state (`Called.lasts`)."""
        super().__init__(backend, factory, places, timeout_s=timeout_s, losses=losses or Losses(0))
        self.revived = lambda indices, how: ""
        deadline = time.monotonic() + start_s
        for handle in self.handles:  # before they wait for each other
            backend.get(handle.ready, timeout=max(0.0, deadline - time.monotonic()))
        if self.meets:
            address = self.handles[0].submit(Stateful.open)
            for met in [handle.submit(Stateful.join, address) for handle in self.handles]:
                backend.get(met)
        if len(self) > 1:
            state = self.handles[0].submit(Stateful.copied)
            for handle in self.handles[1:]:
                backend.get(handle.submit(Stateful.take_over, state))
        self._ask_for_copy()

    @property
    def progress(self) -> int:
        """What the caller has received, without what was lost. What one of N roles does alone is 1/N of a whole."""
        return math.floor(self._progress)

    def stamp(self, indices: Sequence[int]) -> object:
        return self.generation if self.meets else super().stamp(indices)

    def takes_up(self, call: Call[Any]) -> None:
        call.patience_s += _GRACE_S
        if call.rule.lasts:
            self._lasting[call.name] = call.method, call.args
        if call.rule.progress is not None and self.failure is None:
            self._keep_copy()
            if len(call.indices) == len(self):
                self._under_way = call

    # -- the copy --------------------------------------------------------------------------------------------------------

    def _keep_copy(self) -> None:
        """Every few seconds take a copy of the first role's state, without waiting for it: asked for in one call, taken in a later one."""
        now = time.monotonic()
        if self._copying is None:
            if now >= self._copy_at:
                self._ask_for_copy()
        elif self._is_copied:
            first = self.kept is None  # which takes longer than those that follow
            self._take_copy()
            if self.kept is not None and not first:
                self._copy_cost = min(self._copy_cost, self.kept.seconds)
            self._copy_at = now + max(COPY_S, 0.0 if first else 100 * self._copy_cost)

    def _ask_for_copy(self) -> None:
        self._copying = self.handles[0].submit(Stateful.copied), self.mark, time.monotonic()

    @property
    def _is_copied(self) -> bool:
        """Whether the copy that was asked for is there."""
        return self._copying is not None and bool(self.backend.wait([self._copying[0]], num=1, timeout=0)[0])

    def _take_copy(self) -> None:
        """Take the copy that was asked for. If there is none, its role is lost, or has diverged: the next call says so."""
        assert self._copying is not None
        (copying, mark, asked_at), self._copying = self._copying, None
        with suppress(WorkerLost, TimeoutError, Diverged):
            copy = self.backend.get(copying, timeout=self.timeout_s)
            if self.kept is None or copy.progress >= self.kept.progress:
                self.kept, self.kept_mark, self._kept_at = copy, mark, asked_at

    @property
    def kept_s(self) -> float:
        """Seconds since the state was as it is in the copy that is kept."""
        return time.monotonic() - self._kept_at

    # -- losses ----------------------------------------------------------------------------------------------------------

    def patience_s(self, error: Exception) -> float:
        return 0.0 if _is_death(error) else _GRACE_S

    def took(self, call: Call[Any], value: object) -> None:
        if call is self._under_way:
            self._under_way = None
        if call.rule.progress is not None:
            self._progress += Fraction(call.rule.progress(value), 1 if len(call.indices) == len(self) else len(self))
        if call.rule.gives_state:  # an earlier copy is of no use from here on
            self.kept = None
            self._ask_for_copy()
            self._take_copy()

    def mend(self, call: Call[Any], errors: Mapping[int, Exception], late: Sequence[int]) -> None:
        for error in errors.values():
            if not isinstance(error, WorkerLost):
                if not isinstance(error, Diverged):  # then all roles are there, and can be given another state
                    self.failure = error
                raise error
        if gone := next((error for error in errors.values() if isinstance(error, ArgumentLost)), None):
            if self.meets and len(call.indices) > 1:  # the others wait for one that has never begun
                self._rebuild([], call.name, gone)
            raise gone
        deaths = [index for index, error in errors.items() if _is_death(error)]
        cause = errors[deaths[0]] if deaths else TimeoutError() if late else next(iter(errors.values()))
        self._rebuild(deaths or late, call.name, cause)
        if not call.rule.repeats:
            self._under_way = None

    def _rebuild(self, lost: Sequence[int], call: str, error: Exception) -> None:
        """Rebuild the roles in `lost`, and let all go on from the newest whole state. With none in `lost`, roles that have lost their
        collective meet again.

        Raises:
            RolesFailed: more were lost within an hour than `max_restarts` allows.
            Exception: what a factory raised.
        """
        said, rebuilt = "", set[int]()
        try:
            while True:
                what = f"The {self.kind}s lost their connection"
                how = f"{f'{self.who(lost)} {how_lost(error, self.timeout_s)}' if lost else what} in {call}{cause_of(error)}."
                said = f"{said} {how}".strip()
                self.losses.count(counted_as(self.places[0].kind), how, error, number=len(lost))
                for index in lost:
                    self._end_process(index)
                    self._wait_for_room(index, how)
                    self.handles[index] = self._spawn(index)
                rebuilt |= set(lost)
                try:
                    where, newest = self._go_on(sorted(rebuilt))
                    break
                except _Gone as again:
                    lost, call, error = again.lost, again.call, again.error
        except Exception as failure:
            self.failure = failure
            raise
        self.generation += 1
        if self._under_way is not None:
            self._under_way.included = newest > self.progress
        gone = max(0, self.progress - newest)
        self._progress -= gone
        self.losses.add(self.unit, gone)
        more = self.revived(sorted(rebuilt), said) if rebuilt else ""
        self.losses.tell(f"{said} {where}; {self.unit} lost: {gone:,}.{more}")

    def _wait_for_room(self, index: int, how: str) -> None:
        """Wait until a role that was lost can be built, as long as one may take to start.

        Raises:
            RolesFailed: there is no room.
            Halted: the run is to end.
            ClusterLost: there is no cluster any more, as the call in the loop says.
        """
        deadline, told = time.monotonic() + self.start_s, False
        while not self.backend.has_room(self.places[index]):
            self.backend.wait([self.ready], timeout=0)
            if not told:
                self.losses.tell(
                    f"{how} Training waits until there is room for another one; Ctrl-C ends the run with a checkpoint."
                )
            told = True
            if self.losses.stopping():
                raise Halted(f"{how} There was no room for another one yet: the iteration was dropped.")
            if time.monotonic() > deadline:
                raise RolesFailed(f"{how} It found no place in the cluster within {self.start_s:g} s.")
            time.sleep(0.5)

    def _go_on(self, rebuilt: Sequence[int]) -> tuple[str, int]:
        """Give all roles the newest whole state; returns a clause that says which that is, and its progress.

        Raises:
            _Gone: roles were lost in the meantime.
        """
        others = [index for index in range(len(self)) if index not in rebuilt]
        standing = self._ask(Stateful.standing, others, _PROBE_S)
        if self._is_copied:
            self._take_copy()
        self._copying, self._copy_at = None, 0.0
        best = max(standing, key=lambda index: standing[index], default=None)
        newest = -1 if best is None else standing[best]
        state: Future[Any]
        who = "All go" if self.meets else "It goes"
        if best is not None and newest >= 0 and (self.kept is None or newest >= self.kept.progress):
            state = self.handles[best].submit(Stateful.newest_whole)
            where = f"{who} on from the state of {self.kind} {best}"
        elif self.kept is not None:
            newest, state = self.kept.progress, self.backend.put(self.kept)
            where = f"{who} on from its state of {self.kept_s:.0f} s ago"
        else:  # it was lost before there was a copy: nothing had been learnt
            newest, state = 0, self.handles[0].submit(Stateful.newest_whole)
            where = f"{who} on from the start"
        if not self.meets and standing:  # each has taken over what the others had learnt, however far it is itself
            newest = self.progress
        self._ask(None, rebuilt, max(self.start_s, self.timeout_s))
        if self.meets:
            self._ask(Stateful.leave, others, _PROBE_S)
            address = self.handles[0].submit(Stateful.open)
            self._ask(Stateful.join, range(len(self)), self.timeout_s + _GRACE_S, address)
        self._ask(Stateful.take_over, range(len(self)) if self.meets else rebuilt, self.timeout_s, state)
        for method, args in self._lasting.values():
            self._ask(method, rebuilt, self.timeout_s, *args)
        return where, newest

    def _ask(
        self, method: Callable[..., T] | None, indices: Iterable[int], timeout_s: float, *args: object
    ) -> dict[int, T]:
        """The results of a call (None: until they are there) of these roles.

        Raises:
            _Gone: some were lost.
        """
        asked: dict[int, Future[Any]] = {
            i: self.handles[i].ready if method is None else self.handles[i].submit(method, *args) for i in indices
        }
        found: dict[int, T] = {}
        lost: list[int] = []
        errors: list[Exception] = []
        deadline = time.monotonic() + timeout_s
        for index, future in asked.items():
            try:
                found[index] = self.backend.get(future, timeout=max(0.0, deadline - time.monotonic()))
            except (WorkerLost, TimeoutError) as error:
                errors.append(error)
                if not isinstance(error, CollectiveLost | ArgumentLost):
                    lost.append(index)
        if errors:
            raise _Gone(lost, "its start" if method is None else f"{method.__name__}()", errors[0])
        return found


def _is_death(error: Exception) -> bool:
    """Whether a role's process is gone, and not another one, or what the role was given."""
    return isinstance(error, WorkerLost) and not isinstance(error, CollectiveLost | ArgumentLost)
