"""Learners in processes of their own behind one handle. Each is fed by its own workers, and they answer as one.

One that dies or hangs is rebuilt within the run, and all go on from the newest whole state. The calls that were under way are
made again, so their callers need not know.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from raypid.errors import Diverged, Halted
from raypid.runtime.calls import called, rule_of
from raypid.runtime.collective import NOTICE_S, CollectiveLost
from raypid.runtime.handle import A, ArgumentLost, B, Backend, Future, Handle, Place, T, WorkerLost
from raypid.runtime.local import Failed, LocalFuture
from raypid.runtime.supervisor import Losses
from raypid.types import LearnerCopy, Weights


class LearnerRole(Protocol):
    """The methods of a learner that are called by name here."""

    def open(self) -> str: ...

    def join(self, address: str) -> None: ...

    def leave(self) -> None: ...

    @called(splits_after=1)
    def update(self, timesteps: int, *data: object) -> tuple[object, Weights]: ...

    @called(splits_after=1)
    def learn(self, timesteps: int, *samples: object) -> tuple[object, Weights]: ...

    def learn_from_replay(self, timesteps: int, num_updates: int) -> tuple[int, Weights]: ...

    def weights(self) -> Weights: ...

    def state_dict(self) -> Mapping[str, object]: ...

    def load_state_dict(self, state: Mapping[str, object]) -> None: ...

    def set_weights(self, weights: Weights) -> None: ...

    def scale_lr(self, factor: float) -> None: ...

    def end_schedules(self, steps: int, timesteps: int) -> None: ...

    def copied(self) -> LearnerCopy: ...

    def standing(self) -> int: ...

    def newest_whole(self) -> LearnerCopy: ...

    def take_over(self, copy: LearnerCopy) -> None: ...


_FROM_ONE = (LearnerRole.weights.__name__, LearnerRole.state_dict.__name__)
"""Methods that change nothing and give the same result on every rank."""
_SET = {method.__name__: method for method in (LearnerRole.scale_lr, LearnerRole.end_schedules)}
"""Methods whose settings are not part of a state. They are called again on a learner that is rebuilt."""
_LEARN = (LearnerRole.update.__name__, LearnerRole.learn.__name__, LearnerRole.learn_from_replay.__name__)
"""Methods by which all learners learn together."""
_ALONE = "learn_from"
"""The method by which a learner learns without the others: an update of one of N learners is 1/N of an update."""
_DRAWS = (LearnerRole.learn_from_replay.__name__, _ALONE)
"""Methods that draw from buffers. Where these lie with the learners, such a call is not made again after a loss."""
_GIVES_STATE = (LearnerRole.load_state_dict.__name__, LearnerRole.set_weights.__name__)
"""Methods after which an earlier copy of the state is of no use."""
_GRACE_S = NOTICE_S + 3.0
"""Seconds, after the first failure, in which the others' errors are collected, to find the cause among them."""
COPY_S = 1.0
"""Seconds between copies of the learners' state, if these take less than a hundredth of the time."""
_PROBE_S = 15.0
"""Seconds that a learner has for saying how far it is, once another was lost. It may have to end what it does."""


class LearnersFailed(RuntimeError):
    """More learners were lost within an hour than `max_restarts` allows, or one could not be rebuilt."""


class LearnerRebuilt(Exception):
    """A learner was lost in a call that is not made again, since the buffer that it draws from was lost too. It has been rebuilt."""


class _Gone(Exception):
    """Learners that were lost while others were being rebuilt: rank -> what happened to it."""

    def __init__(self, lost: Mapping[int, str], call: str, error: Exception) -> None:
        super().__init__(call)
        self.lost, self.call, self.error = lost, call, error


def split(items: Sequence[T], num_parts: int) -> list[Sequence[T]]:
    """Consecutive parts in order, of sizes that differ by at most one."""
    ends = [len(items) * k // num_parts for k in range(num_parts + 1)]
    return [items[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]


class LearnerGroup:
    """One learner or several as one `Handle`. Each update splits its fragments among them; weights and state are those of rank 0.

    The roles are `LearnerRole`s. With `meet` they join a collective first. Then all get the state of rank 0.

    A learner that dies, or does not answer within `timeout_s` seconds, is rebuilt. It goes on from the newest whole state that is
    left: that of another learner, or a copy that this process takes every few seconds. Learners that have met meet again, and all
    take that state. What was learnt since is counted in `losses`.

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
        timeout_s: float = 300.0,
        losses: Losses | None = None,
        meet: bool = True,
    ) -> None:
        self.backend, self.factory = backend, factory
        self.places = [Place("learner", rank, num_cpus, num_gpus) for rank in range(num_learners)]
        self.start_s, self.timeout_s, self.meets = start_s, timeout_s, meet and num_learners > 1
        self.losses = losses or Losses(0)
        self.failure: Exception | None = None
        """The error after which nothing can be asked of the learners. Every later call fails with it too."""
        self.generation = 0
        """Number of times that learners were rebuilt. Calls of an earlier generation may have to be made again."""
        self.num_updates = 0
        """Updates whose results the loop has received, without those that were lost."""
        self._num_alone = 0
        """Updates of single learners that do not make a whole one yet."""
        self.learning: Together[object] | None = None
        """The newest call to learn."""
        self.buffers_with: Callable[[Sequence[int]], str] | None = None
        """Fills the buffers of learners that were rebuilt, if they have some; returns what to say of it."""
        self.kept: LearnerCopy | None = None
        """The newest copy of the state in this process, which outlives all learners and their nodes."""
        self.mark: object = None
        """Opaque progress snapshot from the trainer, stored with each copy of the state."""
        self.kept_mark: object = None
        """The `mark` of the copy that is kept."""
        self._copying: tuple[Future[LearnerCopy], object, float] | None = None
        """A copy that is on its way, with `mark` and the time when it was asked for."""
        self._kept_at = self._copy_at = time.monotonic()
        """When the copy that is kept was asked for, and when the next one is due."""
        self._copy_cost = math.inf
        """Seconds that a copy takes its learner."""
        self._set: dict[str, tuple[object, ...]] = {}
        """Method of _SET -> its last arguments."""
        self.handles: list[Handle] = [self._spawn(rank) for rank in range(num_learners)]
        deadline = time.monotonic() + start_s
        for handle in self.handles:  # before they wait for each other
            backend.get(handle.ready, timeout=max(0.0, deadline - time.monotonic()))
        self.ready: Future[object] = self.handles[0].ready
        if self.meets:
            address = self.handles[0].submit(LearnerRole.open)
            for met in [handle.submit(LearnerRole.join, address) for handle in self.handles]:
                backend.get(met)
        if num_learners > 1:
            state = self.handles[0].submit(LearnerRole.state_dict)
            for handle in self.handles[1:]:
                backend.get(handle.submit(LearnerRole.load_state_dict, state))
        self._ask_for_copy()

    def __len__(self) -> int:
        return len(self.handles)

    def _spawn(self, rank: int) -> Handle:
        return self.backend.spawn(self.factory(rank), self.places[rank])

    # -- calls -----------------------------------------------------------------------------------------------------------

    def submit(self, method: Callable[..., T], *args: object) -> Future[T]:
        """Call `method` of every learner; returns rank 0's value once all are done."""
        ranks = range(1 if method.__name__ in _FROM_ONE else len(self))
        if method.__name__ in _SET:
            self._set[method.__name__] = args
        return self._call(ranks, method, lambda rank: (self.handles[rank].submit(method, *args), None))

    def submit_parts(
        self, method: Callable[..., tuple[A, B]], *data: object, **kwargs: object
    ) -> tuple[Future[A], Future[B]]:
        """Call a method by which the learners learn, which returns a pair. Each gets its share of the fragments or samples in `data`."""
        after = rule_of(method).splits_after
        after = len(data) if after is None else after
        shares = [(*data[:after], *share) for share in split(data[after:], len(self))]
        self.keep_copy()
        call: Future[Any] = self._call(
            range(len(self)), method, lambda rank: self.handles[rank].submit_parts(method, *shares[rank], **kwargs)
        )
        if isinstance(call, Together):
            self.learning = call
        return call, Second(call) if isinstance(call, Together) else call

    def submit_to(self, rank: int, method: Callable[..., T], *args: object) -> Future[T]:
        """Call `method` of one learner."""
        return self._call([rank], method, lambda rank: (self.handles[rank].submit(method, *args), None))

    def submit_parts_to(
        self, rank: int, method: Callable[..., tuple[A, B]], *args: object, **kwargs: object
    ) -> tuple[Future[A], Future[B]]:
        """Call a method that returns a pair of one learner."""
        call: Future[Any] = self._call(
            [rank], method, lambda rank: self.handles[rank].submit_parts(method, *args, **kwargs)
        )
        return call, Second(call) if isinstance(call, Together) else call

    def _call(
        self,
        ranks: Iterable[int],
        method: Callable[..., object],
        issue: Callable[[int], tuple[Future[T], Future[object] | None]],
    ) -> Future[T]:
        return Failed(self.failure) if self.failure is not None else Together(self, ranks, method, issue)

    # -- the copy --------------------------------------------------------------------------------------------------------

    def keep_copy(self) -> None:
        """Every few seconds take a copy of rank 0's state, without waiting for it: asked for in one call, taken in a later one."""
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
        self._copying = self.handles[0].submit(LearnerRole.copied), self.mark, time.monotonic()

    @property
    def _is_copied(self) -> bool:
        """Whether the copy that was asked for is there."""
        return self._copying is not None and bool(self.backend.wait([self._copying[0]], num=1, timeout=0)[0])

    def _take_copy(self) -> None:
        """Take the copy that was asked for. If there is none, its learner is lost, or has diverged: the next call says so."""
        assert self._copying is not None
        (copying, mark, asked_at), self._copying = self._copying, None
        with suppress(WorkerLost, TimeoutError, Diverged):
            copy = self.backend.get(copying, timeout=self.timeout_s)
            if self.kept is None or copy.num_updates >= self.kept.num_updates:
                self.kept, self.kept_mark, self._kept_at = copy, mark, asked_at

    @property
    def kept_s(self) -> float:
        """Seconds since the state was as it is in the copy that is kept."""
        return time.monotonic() - self._kept_at

    def renew_copy(self) -> None:
        """Take a copy of the state that the learners were given from outside: an earlier one is of no use from here on."""
        self.kept = None
        self._ask_for_copy()
        self._take_copy()

    def count_alone(self, number: int) -> None:
        """Count updates that a learner has made without the others."""
        whole, self._num_alone = divmod(self._num_alone + number, len(self))
        self.num_updates += whole

    # -- losses ----------------------------------------------------------------------------------------------------------

    def mend(self, lost: Mapping[int, str], call: str, error: Exception) -> None:
        """Rebuild the learners in `lost` (rank -> what happened), and let all go on from the newest whole state.

        With none in `lost`, learners that have lost their collective meet again.

        Raises:
            LearnersFailed: more were lost within an hour than `max_restarts` allows.
            Exception: what a factory raised.
        """
        said, rebuilt = "", set[int]()
        try:
            while True:
                what = self._describe(lost, call)
                said = f"{said} {what}".strip()
                self.losses.count("learners", what, error, number=len(lost), failure=LearnersFailed)
                for rank in lost:
                    self.backend.kill(self.handles[rank])
                    self._wait_for_room(rank, what)
                    self.handles[rank] = self._spawn(rank)
                rebuilt |= lost.keys()
                try:
                    where, newest = self._go_on(sorted(rebuilt))
                    break
                except _Gone as again:
                    lost, call, error = again.lost, again.call, again.error
        except Exception as failure:
            self.failure = failure
            raise
        self.generation += 1
        gone = max(0, self.num_updates - newest)
        if self.learning is not None:
            self.learning.included = newest > self.num_updates
        self.num_updates -= gone
        self.losses.add("updates", gone)
        kept = "nothing that was learnt is lost" if not gone else f"updates lost: {gone:,}"
        more = self.buffers_with(sorted(rebuilt)) if self.buffers_with is not None and rebuilt else ""
        self.losses.tell(f"{said} {where}; {kept}.{more}")

    def _wait_for_room(self, rank: int, what: str) -> None:
        """Wait until a learner that was lost can be built, as long as one may take to start.

        Raises:
            LearnersFailed: there is no room.
            Halted: the run is to end.
            ClusterLost: there is no cluster any more, as the call in the loop says.
        """
        deadline, told = time.monotonic() + self.start_s, False
        while not self.backend.has_room(self.places[rank]):
            self.backend.wait([self.ready], timeout=0)
            if not told:
                self.losses.tell(
                    f"{what} Training waits until there is room for another one; Ctrl-C ends the run with a checkpoint."
                )
            told = True
            if self.losses.stopping():
                raise Halted(f"{what} There was no room for another one yet: the iteration was dropped.")
            if time.monotonic() > deadline:
                raise LearnersFailed(f"{what} It found no place in the cluster within {self.start_s:g} s.")
            time.sleep(0.5)

    def _describe(self, lost: Mapping[int, str], call: str) -> str:
        if not lost:
            return f"The learners lost their connection in {call}."
        if len(self) == 1:
            return f"The learner {lost[0]} in {call}."
        return f"{' and '.join(f'Learner {r}' for r in lost)} of {len(self)} {next(iter(lost.values()))} in {call}."

    def _go_on(self, rebuilt: Sequence[int]) -> tuple[str, int]:
        """Give all learners the newest whole state; returns a clause that says which that is, and its number of updates.

        Raises:
            _Gone: learners were lost in the meantime.
        """
        others = [rank for rank in range(len(self)) if rank not in rebuilt]
        standing = self._all(LearnerRole.standing, others, _PROBE_S)
        if self._is_copied:
            self._take_copy()
        self._copying, self._copy_at = None, 0.0
        best = max(standing, key=lambda rank: standing[rank], default=None)
        newest = -1 if best is None else standing[best]
        state: Future[LearnerCopy]
        who = "All go" if self.meets else "It goes"
        if best is not None and newest >= 0 and (self.kept is None or newest >= self.kept.num_updates):
            state = self.handles[best].submit(LearnerRole.newest_whole)
            where = f"{who} on from the state of learner {best}"
        elif self.kept is not None:
            newest, state = self.kept.num_updates, self.backend.put(self.kept)
            where = f"{who} on from its state of {self.kept_s:.0f} s ago"
        else:  # it was lost before there was a copy: nothing had been learnt
            newest, state = 0, self.handles[0].submit(LearnerRole.newest_whole)
            where = f"{who} on from the start"
        if not self.meets and standing:  # each has taken over what the others had learnt, however far it is itself
            newest = self.num_updates
        self._all(None, rebuilt, max(self.start_s, self.timeout_s))
        if self.meets:
            self._all(LearnerRole.leave, others, _PROBE_S)
            address = self.handles[0].submit(LearnerRole.open)
            self._all(LearnerRole.join, range(len(self)), self.timeout_s + _GRACE_S, address)
        takers = range(len(self)) if self.meets else rebuilt
        self._all(LearnerRole.take_over, takers, self.timeout_s, state)
        for name, args in self._set.items():
            self._all(_SET[name], rebuilt, self.timeout_s, *args)
        return where, newest

    def _all(
        self, method: Callable[..., T] | None, ranks: Iterable[int], timeout_s: float, *args: object
    ) -> dict[int, T]:
        """The results of a call (None: until they are there) of these learners.

        Raises:
            _Gone: some were lost.
        """
        asked = {
            rank: self.handles[rank].ready if method is None else self.handles[rank].submit(method, *args)
            for rank in ranks
        }
        found: dict[int, T] = {}
        lost: dict[int, str] = {}
        errors: list[Exception] = []
        deadline = time.monotonic() + timeout_s
        for rank, future in asked.items():
            try:
                found[rank] = self.backend.get(future, timeout=max(0.0, deadline - time.monotonic()))  # type: ignore[assignment]
            except (WorkerLost, TimeoutError) as error:
                errors.append(error)
                if not isinstance(error, CollectiveLost | ArgumentLost):
                    lost[rank] = "did not answer" if isinstance(error, TimeoutError) else "died"
        if errors:
            raise _Gone(lost, f"{'its start' if method is None else f'{method.__name__}()'}", errors[0])
        return found


class KeptLearner:
    """Stands in for learners that are gone for good. It answers from the newest copy of their state, and cannot learn."""

    def __init__(self, kept: LearnerCopy) -> None:
        self.kept = kept

    def is_whole(self) -> bool:
        return True

    def standing(self) -> int:
        return self.kept.num_updates

    def weights(self) -> Weights:
        return self.kept.weights

    def state_dict(self) -> dict[str, Any]:
        return self.kept.state


class Together(LocalFuture[T]):
    """One call of all learners, or of some: the value of the lowest rank once all are done. If a learner is lost in it, the call is
    made again."""

    def __init__(
        self,
        group: LearnerGroup,
        ranks: Iterable[int],
        method: Callable[..., object],
        issue: Callable[[int], tuple[Future[T], Future[object] | None]],
    ) -> None:
        self.group, self.ranks, self.method, self.issue = group, list(ranks), method, issue
        self.included = False
        """A call to learn, of before learners were rebuilt: the state that they have taken has it already."""
        self.is_counted = False
        self._make()

    def _make(self) -> None:
        self.generation = self.group.generation
        pairs = {rank: self.issue(rank) for rank in self.ranks}
        self.futures = {rank: first for rank, (first, _) in pairs.items()}
        self.seconds = {rank: second for rank, (_, second) in pairs.items()}
        self.deadline = time.monotonic() + self.group.timeout_s + _GRACE_S

    @property
    def _learns(self) -> bool:
        return self.method.__name__ in _LEARN

    @property
    def parts(self) -> Sequence[Future[object]]:
        """The learners' futures. None once it is overdue, so that nobody waits for them."""
        return [] if time.monotonic() > self.deadline else list(self.futures.values())

    def passed(self) -> Future[T]:
        return self.futures[self.ranks[0]]

    def result(self) -> T:
        """The value of the lowest rank; raises what `results` raises."""
        return next(iter(self.results().values()))

    def results(self) -> dict[int, T]:
        """The values by rank. Where learners were lost, those that have answered, of a call to learn that need not be made again.

        Raises:
            LearnersFailed: more learners were lost than `max_restarts` allows; the message names the last one.
            LearnerRebuilt: one with a buffer of its own was lost while it learnt.
            ArgumentLost: what a learner was given is gone.
            Exception: what a learner itself raised, rather than what the others raised because of it.
        """
        while True:
            values, errors, pending = self._collected()
            if not errors and not pending:
                if self.generation == self.group.generation or not self._learns or self.included:
                    return self._counted(values)
            elif self.generation == self.group.generation:
                self._mend(errors, pending)
            if self._learns and self.included and (values := self._collected(0.0)[0]):
                return self._counted(values)
            if self.method.__name__ in _DRAWS and self.group.buffers_with is not None:
                self.group.learning = None
                raise LearnerRebuilt
            self._make()

    def _counted(self, values: dict[int, T]) -> dict[int, T]:
        group = self.group
        if self._learns and group.learning is self:
            group.learning = None
            group.num_updates += _updates(next(iter(values.values())))
        elif self.method.__name__ == _ALONE and not self.is_counted:
            self.is_counted = True
            group.count_alone(_updates(next(iter(values.values()))))
        elif self.method.__name__ in _GIVES_STATE:
            group.renew_copy()
        return dict(sorted(values.items()))

    def _collected(self, timeout_s: float | None = None) -> tuple[dict[int, T], dict[int, Exception], list[int]]:
        """Values and errors by rank, and who has not answered in time. Once a learner is known to have died, nobody is waited for."""
        errors: dict[int, Exception] = {}
        values: dict[int, T] = {}
        pending = {future: rank for rank, future in self.futures.items()}
        deadline = self.deadline if self._learns else time.monotonic() + self.group.timeout_s + _GRACE_S
        deadline = deadline if timeout_s is None else time.monotonic() + timeout_s
        while pending:
            ready, _ = self.group.backend.wait(list(pending), num=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            rank = pending.pop(ready[0])
            try:
                values[rank] = self.group.backend.get(ready[0])
            except Exception as error:
                errors[rank] = error
                deadline = min(deadline, time.monotonic() + _GRACE_S)
                if _is_death(error):
                    deadline = time.monotonic()
        return values, errors, list(pending.values())

    def _mend(self, errors: dict[int, Exception], pending: list[int]) -> None:
        """Have the learners rebuilt that were lost in this call.

        Raises:
            Exception: the cause is not the loss of a learner.
        """
        group, call = self.group, f"{self.method.__name__}()"
        for error in errors.values():
            if not isinstance(error, WorkerLost):
                if not isinstance(error, Diverged):  # then all learners are there, and can be given another state
                    group.failure = error
                raise error
        gone = [error for error in errors.values() if isinstance(error, ArgumentLost)]
        if gone:
            if group.meets and len(self.ranks) > 1:  # the others wait for one that has never begun
                group.mend({}, call, gone[0])
            raise gone[0]
        deaths = {rank: error for rank, error in errors.items() if _is_death(error)}
        overdue = dict.fromkeys(pending, f"did not answer within {group.timeout_s:g} s")
        cause = next(iter((deaths or errors).values()), TimeoutError())
        group.mend(dict.fromkeys(deaths, "died") or overdue, call, cause)


class Second(LocalFuture[T]):
    """The other value of a call that returns a pair: that of the lowest rank that has answered."""

    def __init__(self, call: Together[object]) -> None:
        self.call = call

    @property
    def parts(self) -> Sequence[Future[object]]:
        return self.call.parts

    def passed(self) -> Future[T]:
        values = self.call._collected(0.0)[0]
        return self.call.seconds[min(values, default=self.call.ranks[0])]  # type: ignore[return-value]

    def result(self) -> T:
        self.call.result()
        return self.call.group.backend.get(self.passed())


def _is_death(error: Exception) -> bool:
    """Whether a learner's process is gone, and not another one, or what the learner was given."""
    return isinstance(error, WorkerLost) and not isinstance(error, CollectiveLost | ArgumentLost)


def _updates(value: object) -> int:
    """The number of updates that a call to learn has reported."""
    number = getattr(value, "num_updates", value)
    return number if isinstance(number, int) else 0
