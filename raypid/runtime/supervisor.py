"""Supervision: a group of roles of any kind that is kept complete, with deadlines, replacements and counts of losses.

What differs from kind to kind is said elsewhere: how a method is called, at its definition (`raypid.runtime.calls`); how a role comes
to its state again, by `Group.revived` or, where the state itself is worth keeping, by `raypid.runtime.stateful`.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from raypid.errors import Halted
from raypid.phases import Tell, nobody, say
from raypid.runtime.calls import rule_of
from raypid.runtime.handle import (
    A,
    Argument,
    ArgumentLost,
    B,
    Backend,
    ClusterLost,
    Future,
    Handle,
    LostNode,
    OutOfMemory,
    Place,
    T,
    WorkerLost,
    counted_as,
    kind_name,
)
from raypid.runtime.local import Failed, LocalFuture
from raypid.runtime.nodes import listed, numbers_text, roles_text
from raypid.storage.outputs import ErrorFile

Factory = Callable[[int, int], Callable[[], object]]
"""(index, restarts so far) -> a function that builds the role."""

LOSS_WINDOW_S = 3600.0
START_S = 60.0
"""Seconds that the process of a new role may take to start, if its calls may take less."""
LOOK_S = 1.0
"""Seconds between looks whether nodes were lost, and whether there is room again for roles that were there."""
ALONE_S = 3600.0
"""Seconds for which a run without any worker waits for one."""
GRACE_S = 1.0
"""Seconds that a call which is overdue has all the same: where this process stood still (Ctrl-Z, a machine that slept), the answers
that came meanwhile are read only now."""

R = TypeVar("R")
D = TypeVar("D")


class RolesFailed(RuntimeError):
    """More roles of a kind were lost within an hour than `max_restarts` allows, or one could not be rebuilt."""


class RoleRebuilt(Exception):
    """A role was lost in a call that is not made again (`Called.repeats`). It has been rebuilt."""


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

    def count(self, kind: str, message: str, error: Exception, *, number: int = 1, hint: str = "") -> None:
        """Count `number` roles of a kind that are about to be rebuilt, as one loss within the limit.

        Raises:
            RolesFailed: there were more losses than max_restarts within an hour. Its text is the message, the number of losses, and
                the hint.
        """
        self.add(kind, number)
        self.errors.add(f"{message}\n{error}\n\n")
        times = self._times["workers" if kind == "timeouts" else kind]
        times.append(now := time.monotonic())
        while now - times[0] > LOSS_WINDOW_S:
            times.popleft()
        if len(times) > self.max_restarts:
            raise RolesFailed(
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


def split(items: Sequence[T], num_parts: int) -> list[Sequence[T]]:
    """Consecutive parts in order, of sizes that differ by at most one."""
    ends = [len(items) * k // num_parts for k in range(num_parts + 1)]
    return [items[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]


class Call(LocalFuture[T]):
    """A call of one role of a group, or of several that answer as one: the value of the first of them, once all are done.

    If a role is lost in it, the group rebuilds that, and the call is made again unless its rule says otherwise.
    """

    def __init__(
        self,
        group: Group[Any, Any],
        indices: Sequence[int],
        method: Callable[..., object],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        pair: bool = False,
        patience_s: float | None = None,
    ) -> None:
        self.group, self.indices, self.method, self.args, self.pair = group, list(indices), method, args, pair
        self.kwargs, self.rule = kwargs or {}, rule_of(method)
        self.patience_s = group.timeout_s if patience_s is None else patience_s
        """Seconds that it may take, from when the roles are up and the calls before it have ended."""
        self.values: dict[int, T] = {}
        """By role, once they are there."""
        group.takes_up(self)
        self.firsts: dict[int, Future[T]] = {}
        self.seconds: dict[int, Future[Any]] = {}
        self.stamp: object = None
        self.since = time.monotonic()
        self.included = False
        """A call that makes progress, of before roles were rebuilt: the state that they have taken has it already."""
        self.make()

    @property
    def name(self) -> str:
        """The method, as messages name it."""
        return f"{self.method.__name__}()"

    def make(self) -> None:
        """Submit the call to its roles as they are now."""
        group, after = self.group, self.rule.splits_after
        if group.failure is not None:
            self.firsts = self.seconds = dict.fromkeys(self.indices, Failed(group.failure))
            return
        self.stamp, self.since = group.stamp(self.indices), time.monotonic()
        shares: list[Sequence[object]] = [self.args] * len(self.indices)
        if after is not None:
            parts = split(self.args[after:], len(self.indices))
            shares = [(*self.args[:after], *part) for part in parts]
        self.firsts, self.seconds = {}, {}
        for index, share in zip(self.indices, shares, strict=True):
            handle = group.handles[index]
            given = [a.of(handle) if isinstance(a, Argument) else a for a in share]
            if self.pair:
                method: Callable[..., Any] = self.method
                self.firsts[index], self.seconds[index] = handle.submit_parts(method, *given, **self.kwargs)
            else:
                self.firsts[index] = handle.submit(self.method, *given)  # type: ignore[arg-type]

    @property
    def is_current(self) -> bool:
        """Whether none of its roles has been rebuilt since it was made."""
        return self.stamp == self.group.stamp(self.indices)

    @property
    def deadline(self) -> float:
        """When it is overdue, by time.monotonic()."""
        return max([self.since, *(self.group.up_at(index) for index in self.indices)]) + self.patience_s

    @property
    def parts(self) -> Sequence[Future[object]]:
        """The roles' futures. None once it is overdue, so that nobody waits for them."""
        return [] if self.group.failure or time.monotonic() > self.deadline else list(self.firsts.values())

    def passed(self) -> Future[T]:
        return self.firsts[self.indices[0]]

    def result(self) -> T:
        """The value of the first role; raises what `attempt` raises."""
        return next(iter(self.results().values()))

    def results(self) -> dict[int, T]:
        """The values by role; raises what `attempt` raises. Where roles were lost, of those that have answered."""
        while not self.attempt():
            pass
        return self.values

    def attempt(self) -> bool:
        """Wait for the values. If a role was lost, let it be rebuilt, and make the call again; returns whether the values are there.

        Raises:
            RolesFailed: more roles were lost than `max_restarts` allows; the message names the last one.
            RoleRebuilt: the call is not to be made again.
            ArgumentLost: what a role was given is gone, and nothing takes its place.
            Exception: what a role itself raised, rather than what others raised because of it.
        """
        if self.values or self.ended(self.deadline):
            return True
        if not self.rule.repeats:
            raise RoleRebuilt(
                f"{self.group.who(self.indices)} was lost in {self.name}, which is not called again, and rebuilt."
            )
        if self.group.absent.isdisjoint(self.indices):
            self.group.settle(self.indices)
            self.make()
        return False

    def ended(self, deadline: float) -> bool:
        """Wait for the values until a time (0: take what is there). If a role was lost, let it be rebuilt and return False."""
        if self.group.failure is not None:
            raise self.group.failure
        values, errors, late = self.collected(deadline)
        if errors or late:
            if self.is_current:
                self.group.mend(self, errors, late)
        elif self.is_current or self.rule.progress is None or self.included:
            return self._take(values)
        return self.included and bool(values := self.collected(0.0)[0]) and self._take(values)

    def _take(self, values: dict[int, T]) -> bool:
        self.values = dict(sorted(values.items()))
        self.group.took(self, next(iter(self.values.values())))
        return True

    def collected(self, deadline: float) -> tuple[dict[int, T], dict[int, Exception], list[int]]:
        """Values and errors by role, and who has not answered in time. Once a role is known to have died, nobody is waited for."""
        group, values, errors = self.group, dict[int, T](), dict[int, Exception]()
        pending = {future: index for index, future in self.firsts.items()}
        while pending:
            left_s = deadline - time.monotonic()
            wait_s = min(LOOK_S, left_s) if left_s > 0 else GRACE_S * (deadline > 0)
            ready, _ = group.backend.wait(list(pending), num=1, timeout=wait_s)
            if not ready and left_s <= 0:
                break
            if not ready:
                group.look()
                if not self.is_current:  # they were lost with their node
                    break
                continue
            index = pending.pop(ready[0])
            try:
                values[index] = group.backend.get(ready[0])
            except Exception as error:
                errors[index] = error
                patience_s = group.patience_s(error)
                deadline = min(deadline, time.monotonic() + patience_s if patience_s else 0.0)
        return values, errors, list(pending.values())


class Second(LocalFuture[T]):
    """The other value of a call that returns a pair: that of the first role that has answered."""

    def __init__(self, call: Call[Any]) -> None:
        self.call = call

    @property
    def parts(self) -> Sequence[Future[object]]:
        return self.call.parts

    def passed(self) -> Future[T]:
        values = self.call.values or self.call.collected(0.0)[0]
        return self.call.seconds[min(values, default=self.call.indices[0])]

    def result(self) -> T:
        self.call.result()
        return self.call.group.backend.get(self.passed())


class Group(Generic[R, D]):
    """Roles of one kind that are kept complete. A call that is lost or overdue has its role killed and rebuilt.

    Methods that are called with `start` return a pair (report: R, data: D). As a `Handle`, the group answers as one role.

    With `elastic`, roles whose node is lost are absent until there is room for them, and the others go on. That is not counted
    towards `max_restarts`, which is there for faulty environments: a node has to come back before it can be lost again.
    """

    def __init__(
        self,
        backend: Backend,
        factory: Factory,
        places: Sequence[Place],
        *,
        timeout_s: float,
        losses: Losses,
        describe: str = "",
        elastic: bool = False,
        told_of_nodes: bool = False,
    ) -> None:
        self.backend, self.factory = backend, factory
        self.timeout_s, self.describe = timeout_s, describe
        """Seconds that a call may take; what messages say in brackets after a role's number, such as its environment."""
        self.losses, self.elastic = losses, elastic
        self.told_of_nodes = told_of_nodes
        """Whether the backend tells this group of lost nodes, as it tells one of each run."""
        self.revived: Callable[[Sequence[int], str], str | None] = lambda indices, how: "It is built anew."
        """Called with roles that were rebuilt and with how they were lost, as a sentence. It gives them what they held, and returns what
        to say of it; None if that is said later."""
        self.failure: Exception | None = None
        """The error after which nothing can be asked of the roles. Every later call fails with it too."""
        self.settle: Callable[[Sequence[int]], None] = lambda indices: None
        """Waits until roles that were rebuilt hold again what they need for a call."""
        self.absent: set[int] = set()
        self._returning: set[int] = set()
        """Roles that were absent and are being rebuilt."""
        self._looked = 0.0
        self.places: list[Place] = []
        self.restarts: list[int] = []
        self._up_at: list[float | None] = []
        """When each was known to be built."""
        self._spawned_at: list[float] = []
        self._running: list[deque[Call[R]]] = []
        self.handles: list[Handle] = []
        for place in places:
            self.add(place)

    def add(self, place: Place) -> int:
        """Build one more role; returns its index."""
        self.places.append(place)
        self.restarts.append(0)
        self._up_at.append(None)
        self._spawned_at.append(0.0)
        self._running.append(deque())
        self.handles.append(self._spawn(len(self.places) - 1))
        return len(self.handles) - 1

    def _spawn(self, index: int) -> Handle:
        self._spawned_at[index], self._up_at[index] = time.monotonic(), None
        return self.backend.spawn(self.factory(index, self.restarts[index]), self.places[index])

    def __len__(self) -> int:
        return len(self.handles)

    @property
    def kind(self) -> str:
        """What messages call one of the roles."""
        return kind_name(self.places[0].kind)

    def who(self, indices: Sequence[int]) -> str:
        """Roles, as messages name them: "Worker 1 (CartPole-v1) on 10.0.0.3", "The learner", "Replay shard 0 of 2"."""
        if len(self) == 1 and not self.describe:
            name = f"The {self.kind}"
        else:
            which = f" ({self.describe})" if self.describe else f" of {len(self)}"
            name = f"{' and '.join(f'{self.kind.capitalize()} {index}' for index in indices)}{which}"
        place = self.backend.where(self.handles[indices[0]]) if len(indices) == 1 else ""
        return f"{name} on {place}" if place else name

    def stamp(self, indices: Sequence[int]) -> object:
        """What changes when one of these roles is rebuilt: a call of before is of the role that was lost."""
        return [self.restarts[index] for index in indices]

    def is_up(self, index: int) -> bool:
        """Whether a role is built, as far as that is known without waiting."""
        if self._up_at[index] is None and index not in self.absent:
            if self.backend.wait([self.handles[index].ready], timeout=0)[0]:
                self._up_at[index] = time.monotonic()
        return self._up_at[index] is not None

    def up_at(self, index: int) -> float:
        """When a role was up; of one that is being built, when it has to be. The time that its start takes is not that of a call."""
        if self.is_up(index):
            return self._up_at[index] or 0.0
        return self._spawned_at[index] + max(START_S, self.timeout_s)

    # -- as one role -----------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> Future[object]:
        return self.handles[0].ready

    def submit(self, method: Callable[..., T], *args: object) -> Call[T]:
        """Call all roles, or the first one, as the method's rule says; the value is that of the first."""
        return Call(self, range(1 if rule_of(method).to == "first" else len(self)), method, args)

    def submit_parts(
        self, method: Callable[..., tuple[A, B]], *args: object, **kwargs: object
    ) -> tuple[Call[A], Future[B]]:
        """The same for a method that returns a pair."""
        call: Call[A] = Call(self, range(len(self)), method, args, kwargs, pair=True)
        return call, Second(call)

    def ask(
        self,
        index: int,
        method: Callable[..., Any],
        *args: object,
        pair: bool = False,
        patience_s: float | None = None,
        **kwargs: object,
    ) -> Call[Any]:
        """Call one role, after what it has under way.

        patience_s: seconds that the call itself may take; None: `timeout_s`.
        """
        seconds = (self.timeout_s if patience_s is None else patience_s) + self.timeout_s * self.running(index)
        return Call(self, [index], method, args, kwargs, pair=pair, patience_s=seconds)

    # -- losses ----------------------------------------------------------------------------------------------------------

    def patience_s(self, error: Exception) -> float:
        """Seconds for which the other roles of a call are waited for once one has failed."""
        return 0.0

    def takes_up(self, call: Call[Any]) -> None:
        """A call is about to be made."""

    def took(self, call: Call[Any], value: object) -> None:
        """A call has its values, of which `value` is the first."""

    def mend(self, call: Call[Any], errors: Mapping[int, Exception], late: Sequence[int]) -> None:
        """Have the roles rebuilt that were lost in a call, and what it was given put right.

        Raises:
            Exception: the cause is no loss, or it cannot be mended.
        """
        for index, error in [*errors.items(), *((index, TimeoutError()) for index in late)]:
            if isinstance(error, ArgumentLost):
                if not any(a.mend(self.handles[index]) for a in call.args if isinstance(a, Argument)):
                    raise error
            elif isinstance(error, WorkerLost | TimeoutError):
                self.lose(index, call.name, error, call.patience_s)
            else:
                raise error

    def lose(self, index: int, call: str, error: Exception, waited_s: float | None = None) -> None:
        """Count a role that has died or is overdue as lost, kill it and rebuild it, unless it was lost with its node. Its calls under
        way are lost with it.

        waited_s: the time that an overdue call had; None: `timeout_s`.

        Raises:
            RolesFailed: more were lost within an hour than `max_restarts`. The message names the role and its last call.
        """
        before = self.handles[index]
        if isinstance(error, WorkerLost):
            self.look(index)
        if self.handles[index] is not before or index in self.absent:
            return
        overdue = isinstance(error, TimeoutError)
        how = f"{self.who([index])} {how_lost(error, waited_s or self.timeout_s)} in {call}{cause_of(error)}."
        self._end_process(index, interrupt=overdue)
        counted, hint = counted_as(self.places[index].kind), ""
        if overdue and counted == "workers":
            counted, hint = "timeouts", " An environment that hangs? worker_timeout_s sets how long a call may take."
        self.losses.count(counted, how, error, hint=hint)
        self._begin(index)
        said = "It comes back when there is room for it." if index in self.absent else self.revived([index], how)
        if said is not None:
            self.losses.tell(f"{how} {said}")

    def renew(self, index: int) -> None:
        """Replace a role whose work is no longer wanted; it does not count as lost."""
        self._end_process(index, interrupt=True)
        self._begin(index)

    def _begin(self, index: int) -> None:
        """Rebuild a role, now or when there is room for it."""
        if self.elastic and not self.backend.has_room(self.places[index]):
            self.absent.add(index)
        else:
            self.handles[index] = self._spawn(index)

    def _end_process(self, index: int, *, interrupt: bool = False) -> None:
        """End a role that is lost, or one that is to be interrupted, whose environments are closed."""
        self._running[index].clear()
        if interrupt:
            self.backend.end([self.handles[index]], interrupt=True)
        else:
            self.backend.kill(self.handles[index])
        self.restarts[index] += 1
        self._up_at[index] = None

    def close(self, *, interrupt: bool = False) -> None:
        """Let the roles close, and end them; see `Backend.end`. None is there from then on."""
        there = [self.handles[i] for i in self.present]
        self.absent.update(range(len(self)))
        self.backend.end(there, interrupt=interrupt)

    # -- nodes that come and go ----------------------------------------------------------------------------------------

    @property
    def present(self) -> list[int]:
        """The roles that are not absent."""
        return [i for i in range(len(self)) if i not in self.absent]

    def look(self, suspect: int | None = None) -> None:
        """Take note of nodes that were lost, and build absent roles where there is room again. Cheap: looks once a second.

        suspect: a role that has died, perhaps with its node.
        """
        now = time.monotonic()
        if not self.elastic or (suspect is None and now - self._looked < LOOK_S):
            return
        self._looked = now
        if self.told_of_nodes:
            for node in self.backend.lost_nodes(None if suspect is None else self.handles[suspect]):
                self._lose_node(node)
        for i in sorted(self.absent):
            if self.backend.has_room(self.places[i]):
                self.absent.discard(i)
                self._returning.add(i)
                self.handles[i] = self._spawn(i)
                self.revived([i], "")
        if self._returning and not self.absent & self._returning and self.told_of_nodes:
            self._tell_returned()

    def _lose_node(self, node: LostNode) -> None:
        """Count a node as lost, with all roles of this group that were there."""
        there = [i for i, handle in enumerate(self.handles) if handle in node.handles and i not in self.absent]
        for i in there:
            self._end_process(i)
            self._returning.discard(i)
            self.absent.add(i)
        self.losses.add("nodes")
        self.losses.add(counted_as(self.places[0].kind), len(there))
        what = roles_text(node.places)
        left = f"{len(self.present)} of {len(self)} {self.kind}s go on" if there else f"all {self.kind}s go on"
        back = " The others come back when there is room for them." if there else ""
        if not self.present:
            left = f"no {self.kind} is left"
            back = " Training waits until there is room for one; Ctrl-C ends the run with a checkpoint."
        text = f"Node {node.name} was lost ({node.how}){f' with {what}' if what else ''}; {left}.{back}"
        self.losses.errors.add(f"{text}\n\n")
        self.losses.tell(text)

    def _tell_returned(self) -> None:
        """Say which roles are back, once all that were built together are up."""
        if not all(map(self.is_up, self._returning)):
            return
        back, self._returning = sorted(self._returning), set()
        one = len(back) == 1
        places = sorted({place for i in back if (place := self.backend.where(self.handles[i]))})
        where = f" on {listed(places)}" if places else ""
        self.losses.tell(
            f"{self.kind.capitalize()}{'s' * (not one)} {numbers_text(back)} {'is' if one else 'are'} back{where}: "
            f"{len(self.present)} of {len(self)} {self.kind}s go on."
        )

    def wait_for_one(self) -> None:
        """Wait until there is a role.

        Raises:
            Halted: the run is to end.
            RolesFailed: there was none for ALONE_S seconds.
        """
        until = time.monotonic() + ALONE_S
        while not self.present:
            self.look()
            if self.losses.stopping():
                raise Halted(f"No {self.kind} was there: the iteration was dropped.")
            if time.monotonic() > until:
                raise RolesFailed(
                    f"No {self.kind} was there for {ALONE_S / 60:g} minutes, since the nodes with room for them are gone."
                )
            time.sleep(0.1)

    # -- data that roles have made ---------------------------------------------------------------------------------------

    def reachable(self, data: Sequence[Future[T]]) -> list[Future[T]]:
        """Return the data that are not on lost nodes alone, and count the others as lost fragments."""
        return self._without([future for future in data if self.backend.is_lost(future)], data)

    def intact(self, data: Sequence[Future[T]], error: Exception) -> list[Future[T]]:
        """Return the data that can be fetched, and count the others as lost fragments. For use after a call has failed for lack of one
        of them: it fetches each, which takes time.

        Raises:
            Exception: all are there, so something else is lost: `error`.
        """
        gone: list[Future[T]] = []
        for future in data:
            try:
                self.backend.get(future, timeout=LOOK_S)
            except (WorkerLost, TimeoutError):
                gone.append(future)
        if not gone:
            raise error
        return self._without(gone, data)

    def _without(self, gone: Sequence[Future[T]], data: Sequence[Future[T]]) -> list[Future[T]]:
        if gone:
            self.losses.add("fragments", len(gone))
        return [future for future in data if future not in gone]

    # -- all at a time -------------------------------------------------------------------------------------------------

    def call_all(self, method: Callable[..., T], *args: object) -> list[T]:
        """Call `method` of every role that is there; returns the results in order."""
        return list(self.call_each(method, *args).values())

    def call_each(self, method: Callable[..., T], *args: object) -> dict[int, T]:
        """Call `method` of every role that is there; returns the results by role, in order."""
        return {i: call.values[i] for i, call in self._each(method, args).items()}

    def call_all_parts(self, method: Callable[..., tuple[A, B]], *args: object) -> list[tuple[A, Future[B]]]:
        """Call a method that returns a pair of every role that is there; returns (first value, future of the second) in order. Waits
        until there is a role.

        Raises:
            Halted, RolesFailed: see `wait_for_one`.
        """
        calls: dict[int, Call[Any]] = {}
        while not calls:
            self.wait_for_one()
            calls = self._each(method, args, pair=True)
        return [(call.values[i], call.seconds[i]) for i, call in calls.items()]

    def _each(
        self, method: Callable[..., object], args: tuple[object, ...], *, pair: bool = False
    ) -> dict[int, Call[Any]]:
        """Call every role that is there and wait for the (first) values, each by itself; those that are absent by then are left out."""
        self.look()
        pending = {i: self.ask(i, method, *args, pair=pair) for i in self.present}
        done: dict[int, Call[Any]] = {}
        num_up = sum(map(self.is_up, self.present))
        while pending:
            for i, call in list(pending.items()):
                if call.attempt():
                    done[i] = pending.pop(i)
                    if num_up < len(self):
                        say(f"starting {self.kind}s", f"{len(done)} of {len(self)} {self.kind}s are up")
                elif i in self.absent:
                    del pending[i]
        return dict(sorted(done.items()))

    def answers(self, method: Callable[..., T], patience_s: float) -> dict[int, T]:
        """Call `method` of every role, for the results that come within `patience_s` seconds. No role is replaced."""
        found: dict[int, T] = {}
        with suppress(ClusterLost):
            asked = {self.handles[i].submit(method): i for i in self.present}
            ready = self.backend.wait(list(asked), num=len(asked), timeout=patience_s)[0] if asked else []
            for future in ready:
                with suppress(Exception):  # it is gone
                    found[asked[future]] = self.backend.get(future)
        return dict(sorted(found.items()))

    # -- one at a time -------------------------------------------------------------------------------------------------

    def running(self, index: int) -> int:
        """The number of calls of a role that were started and that `finished` has not returned."""
        return len(self._running[index])

    @property
    def idle(self) -> list[int]:
        """Roles that are there, without a call under way."""
        return [i for i, calls in enumerate(self._running) if not calls and i not in self.absent]

    def start(
        self, index: int, method: Callable[..., tuple[R, D]], *args: object, patience_s: float | None = None
    ) -> None:
        """Call a method of a role, after the calls that it has under way; `finished` returns the result."""
        self._running[index].append(Call(self, [index], method, args, pair=True, patience_s=patience_s))

    def finished(
        self, timeout_s: float | None, others: Sequence[Future[object]] = (), num: int = 1
    ) -> list[tuple[int, tuple[R, Future[D]]]]:
        """The calls that have ended, as (role, (report, future of the data)): by role, and in the order of the calls.

        Waits up to `timeout_s` seconds (None: as long as calls may take) for the first `num` of them, or for one of the futures
        `others`. A role that was lost or is overdue is replaced, and its calls are forgotten. Where no role is there, waits for one.

        Raises:
            Halted: there is no role, and the run is to end.
            RolesFailed: see `lose` and `wait_for_one`.
        """
        self.look()
        if not self.present and not others:
            self.wait_for_one()
        until = min((calls[0].deadline for calls in self._running if calls), default=None)
        if until is None and not others:
            return []
        wait_s = self.timeout_s if until is None else max(0.0, until - time.monotonic())
        self._wait_for_first(others, wait_s if timeout_s is None else min(wait_s, timeout_s), num)
        futures = [call.firsts[i] for i, calls in enumerate(self._running) for call in calls]
        ready = set(self.backend.wait(futures, num=len(futures), timeout=0)[0]) if futures else set()
        done: list[tuple[int, tuple[R, Future[D]]]] = []
        for i, calls in enumerate(self._running):
            while calls and (calls[0].firsts[i] in ready or time.monotonic() > calls[0].deadline):
                call = calls.popleft()
                if call.ended(call.deadline):  # otherwise the others of this role are lost, too
                    done.append((i, (call.values[i], call.seconds[i])))
                    if calls:  # the role starts the next call only now
                        calls[0].since = time.monotonic()
        return done

    def _wait_for_first(self, others: Sequence[Future[object]], wait_s: float, num: int) -> None:
        """Wait for `num` calls that have ended or for one of `others`, and look after nodes meanwhile."""
        until = time.monotonic() + wait_s
        while futures := [*others, *(calls[0].firsts[i] for i, calls in enumerate(self._running) if calls)]:
            left_s = max(0.0, until - time.monotonic())
            enough = min(num, len(futures))
            ready, _ = self.backend.wait(futures, num=enough, timeout=min(left_s, LOOK_S))
            if len(ready) >= enough or left_s <= LOOK_S:
                return
            self.look()

    def drop(self) -> None:
        """Wait for the calls under way and forget their results, for a fresh start after a restore."""
        while any(self._running):
            self.finished(None)
