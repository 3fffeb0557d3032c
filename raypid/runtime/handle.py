"""How the loops speak to roles, wherever these run. A role is a plain object; a backend gives handles to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class WorkerLost(RuntimeError):
    """The process behind a handle is gone."""


class ArgumentLost(WorkerLost):
    """A future that was an argument of a call has no value: the process that should have made it is gone."""


class Future(Protocol[T_co]):
    """A value to come. It may be an argument of `submit`: then it resolves where the call runs."""


def name_of(method: str | Callable[..., object]) -> str:
    """The name of a role's method."""
    return method if isinstance(method, str) else method.__name__


class Handle(Protocol):
    """A role somewhere."""

    ready: Any
    """Future that resolves once the role is built, and raises what its factory raised."""

    def submit(self, method: str | Callable[..., Any], *args: Any, num_returns: int = 1) -> Any:
        """Call `method` there; returns a Future at once, or a list of them where the method returns a tuple."""


class Argument:
    """An argument of a worker's call that is made when the call is, for the worker that it goes to."""

    def of(self, handle: Handle | None) -> Any:
        """The value, or a future of it."""
        raise NotImplementedError

    def mend(self, handle: Handle | None) -> bool:
        """Called where the value that this worker got last was lost: can it be had again?"""
        return False


class Backend(Protocol):
    """Where roles run."""

    name: str

    def spawn(
        self, factory: Callable[[], Any], *, num_cpus: float = 0, num_gpus: float = 0, node: str | None = None
    ) -> Handle:
        """Build a role, on the given node if that is there. Errors of the factory appear at the first `get`.

        A factory may be a functools.partial with futures (of `put`) among its arguments: they resolve where the role is built.
        """

    def here(self, factory: Callable[[], Any]) -> Handle:
        """Build a role in this process."""

    def resources(self) -> dict[str, float]:
        """All CPUs, GPUs and memory, by Ray's names; empty where nothing is reserved."""

    def node_of(self, handle: Handle, wait_s: float = 0.1) -> str:
        """The node where a role is; "" where that does not become known within `wait_s`."""

    def put(self, value: Any) -> Future[Any]:
        """Make a value known to all workers, once. A future is passed on as it is."""

    def get(self, future: Any, timeout: float | None = None) -> Any:
        """The value.

        Raises:
            WorkerLost: its process died (ArgumentLost: that of an argument). TimeoutError: not there in time. Anything that the role raised.
        """

    def wait(self, futures: Sequence[Any], num: int = 1, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        """(ready, not ready): returns once `num` are ready or the time is over."""

    def kill(self, handle: Handle) -> None: ...

    def shutdown(self) -> None: ...
