"""How the loops talk to roles, wherever these run. A role is a plain object; a backend gives out handles to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, overload

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


BUSY_S = 2.0
"""Seconds in which a role that is to end comes to the end of its calls by itself."""
ENDING_S = 6.0
"""Seconds in which it then closes: environments have CLOSING_S of them."""
NICENESS: dict[str, int] = {"evaluator": 10}
"""How much more than the driver the process of a role yields, by its kind: an evaluator takes only what training leaves."""


class WorkerLost(RuntimeError):
    """The process behind a handle is gone. `how`: what is known of its end, as a clause; "" if nothing is."""

    def __init__(self, message: str = "", how: str = "") -> None:
        super().__init__(message)
        self.how = how


class OutOfMemory(WorkerLost):
    """The process was killed because memory ran out."""


class ArgumentLost(WorkerLost):
    """A future that was an argument of a call has no value: the process that should have made it is gone."""


class ClusterLost(RuntimeError):
    """No process will answer any more, since a cluster's head or Ray's servers on this machine are gone."""


class Future(Generic[T_co]):
    """A value of type T that will be there later.

    As an argument of `submit` it stands for its value, which is fetched where the call runs. In this process a future is a
    `LocalFuture`. On Ray it is Ray's own ObjectRef, so this class is what a type checker sees and not what isinstance finds.
    """

    __slots__ = ()


F = TypeVar("F", bound=Future[object])


class Handle(Protocol):
    """A role in this process or another one.

    Calls name the role's method by the function itself, such as `Learner.weights`. Only its name travels, so a role may
    override the method. Arguments may be futures, so their types are not checked. No call waits for its result.
    """

    @property
    def ready(self) -> Future[object]:
        """Resolves once the role is built, and raises what its factory raised."""

    def submit(self, method: Callable[..., T], *args: object) -> Future[T]:
        """Call `method`; returns a future of its result."""

    def submit_parts(
        self, method: Callable[..., tuple[A, B]], *args: object, **kwargs: object
    ) -> tuple[Future[A], Future[B]]:
        """Call a method that returns a pair; returns a future of each part, so that one can be read while the other is passed on."""


class Argument:
    """An argument of a worker's call that is chosen when the call is made, for the worker that it goes to."""

    def of(self, handle: Handle | None) -> object:
        """The value, or a future of it, for this worker (None: for the evaluator)."""
        raise NotImplementedError

    def mend(self, handle: Handle | None) -> bool:
        """Replace the value that was lost on its way to this worker; returns whether the call can be made again."""
        return False


def kind_name(kind: str) -> str:
    """What messages call a role of a kind: the kind itself, where nothing else is said here."""
    return {"shard": "replay shard", "server": "parameter server", "other": "actor with shared parameters"}.get(
        kind, kind
    )


def counted_as(kind: str) -> str:
    """What lost roles of a kind are counted as: its plural, where nothing else is said here."""
    irregular = {"server": "parameter_servers", "evaluator": "workers", "other": "shared_parameters"}
    return irregular.get(kind, f"{kind}s")


@dataclass(frozen=True, slots=True)
class Place:
    """Which role of a run it is, and what it takes. A role that is built again has the same place."""

    kind: str
    index: int = 0
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    node: str | None = None
    """The node where it should be; None: wherever there is room."""


OTHER = Place("other")


def places(
    kind: str, number: int = 1, *, num_cpus: float = 0.0, num_gpus: float = 0.0, node: str | None = None
) -> list[Place]:
    """Places of so many roles of a kind that take the same."""
    return [Place(kind, index, num_cpus, num_gpus, node) for index in range(number)]


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that is gone or does not answer, and what of this run was there."""

    name: str
    """Its host, and the first letters of its id."""
    how: str
    """How it was lost, such as "does not answer"."""
    places: tuple[Place, ...]
    handles: tuple[Handle, ...]
    """The roles at these places. Their processes are being ended as far as they can be reached; calls of them raise WorkerLost."""


class Backend(Protocol):
    """Runs roles. The methods that are defined here suit a backend without nodes, on which nothing is lost."""

    name: str

    def spawn(self, factory: Callable[[], object], place: Place = OTHER) -> Handle:
        """Build a role in its place: with what was reserved for it, or on its node if that is alive.

        Errors of the factory appear at the first `get`. A factory may be a functools.partial with futures (of `put`) among its
        arguments. They resolve where the role is built.
        """

    def has_room(self, place: Place) -> bool:
        """Whether a role that is built there now would start: what is reserved for it is on a node that answers. Cheap."""
        return True

    def lost_nodes(self, suspect: Handle | None = None) -> list[LostNode]:
        """Nodes that were lost since this was called last. Does not wait, except for the node of a role that has died (`suspect`).

        Raises:
            ClusterLost: the head is gone.
        """
        return []

    def where(self, handle: Handle) -> str:
        """The node of a role, as messages call it; "" where there is one alone. Cheap."""
        return ""

    def is_lost(self, future: Future[object]) -> bool:
        """Whether a value is on lost nodes alone. Cheap."""
        return False

    def here(self, factory: Callable[[], object]) -> Handle:
        """Build a role in this process."""

    def resources(self) -> dict[str, float]:
        """All CPUs, GPUs and memory, by Ray's names; empty where nothing is reserved."""
        return {}

    def node_of(self, handle: Handle, wait_s: float = 0.1) -> str:
        """The node where a role is, or "" if that does not become known within `wait_s` seconds."""

    @overload
    def put(self, value: Future[T]) -> Future[T]: ...
    @overload
    def put(self, value: T) -> Future[T]:
        """Make a value available to all workers, sending it once. A future is returned as it is."""

    def get(self, future: Future[T], timeout: float | None = None) -> T:
        """Wait for a value, at most `timeout` seconds.

        Raises:
            WorkerLost: its process died (ArgumentLost: the process of an argument).
            TimeoutError: it was not there in time.
            Exception: whatever the role raised.
        """

    def wait(self, futures: Sequence[F], num: int = 1, timeout: float | None = None) -> tuple[list[F], list[F]]:
        """Wait until `num` futures have a value, at most `timeout` seconds; returns (ready, not ready)."""

    def kill(self, handle: Handle) -> None:
        """End a role's process at once."""
        return

    def end(self, handles: Sequence[Handle], *, interrupt: bool = False) -> None:
        """Let roles `close`, all at a time, and then end their processes: those that do not come back from it, too.

        interrupt: what they are doing takes too long, or is no longer wanted; without it, they have BUSY_S seconds to come to its end.
        """

    def shutdown(self) -> None:
        """End all roles of this backend."""
        return
