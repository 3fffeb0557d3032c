"""Everything in this process: a call runs when it is submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NoReturn

from raypid.runtime.handle import OTHER, A, ArgumentLost, B, Backend, F, Future, Handle, Place, T, T_co, WorkerLost


class LocalFuture(Future[T_co]):
    """A future whose value this process works out itself."""

    __slots__ = ()

    @property
    def parts(self) -> Sequence[Future[object]]:
        """The futures of other processes that it waits for."""
        return []

    def passed(self) -> Future[T_co]:
        """A future that can be passed to other roles without waiting: if another process computes the value, the future of that process."""
        return self

    def result(self) -> T_co:
        """The value; raises what the call raised."""
        raise NotImplementedError


class Value(LocalFuture[T_co]):
    """A value that is there."""

    __slots__ = ("value",)

    def __init__(self, value: T_co) -> None:
        self.value = value

    def result(self) -> T_co:
        return self.value


class Failed(LocalFuture[NoReturn]):
    """The exception of a call that failed."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def result(self) -> NoReturn:
        raise self.error


Resolve = Callable[[object], object]
"""Turns a future into its value, and leaves everything else as it is."""


def resolve(x: object) -> object:
    """The value of a future of this process that is an argument; everything else as it is.

    Raises:
        ArgumentLost: it should have come from a process that is gone.
        Exception: what the future raises otherwise.
    """
    try:
        return x.result() if isinstance(x, LocalFuture) else x
    except WorkerLost as error:
        raise ArgumentLost(str(error), error.how) from error


def passed(future: Future[T]) -> Future[T]:
    """A future that can be passed to other roles in place of this one; see `LocalFuture.passed`."""
    return future.passed() if isinstance(future, LocalFuture) else future


def full_name(method: Callable[..., object]) -> str:
    """The name of a role's method with that of its class, by which another process finds it."""
    return f"{method.__module__}.{method.__qualname__.rpartition('.')[0]}.{method.__name__}"


@cache
def _defines(kind: type, owner: str) -> bool:
    """Whether a class has the full name `owner`, or one of its base classes."""
    return any(f"{one.__module__}.{one.__qualname__}" == owner for one in kind.__mro__)


def bound(role: object, method: str) -> Callable[..., Any]:
    """The method of a role, or of the one of its `parts` whose class defines it, by its `full_name`. Only the last part of the name counts
    if there is none: a role may stand in for another."""
    owner, _, name = method.rpartition(".")
    for part in getattr(role, "parts", ()):
        if _defines(type(part), owner):  # type: ignore[arg-type]
            role = part
    method_of: Callable[..., Any] = getattr(role, name)
    return method_of


def build(factory: Callable[[], object], resolve: Resolve = resolve) -> object:
    """Build a role; futures among the arguments of a functools.partial are resolved first."""
    if isinstance(factory, partial):
        factory = partial(factory.func, *map(resolve, factory.args), **factory.keywords)
    return factory()


class LocalHandle:
    """A role in this process. `resolve` fetches arguments, of the factory too, that are futures of another backend."""

    def __init__(self, factory: Callable[[], object], resolve: Resolve = resolve) -> None:
        self._resolve = resolve
        self.ready: LocalFuture[None] = Value(None)
        try:
            self.role = build(factory, resolve)
        except Exception as error:
            self.ready = Failed(error)

    def close(self) -> None:
        """Close the role, if it was built and has something to close."""
        with suppress(Exception):
            getattr(self.role, "close", bool)()

    def submit(self, method: Callable[..., T], *args: object) -> LocalFuture[T]:
        try:
            self.ready.result()
            return Value(bound(self.role, full_name(method))(*map(self._resolve, args)))
        except Exception as error:
            return Failed(error)

    def submit_parts(
        self, method: Callable[..., tuple[A, B]], *args: object, **kwargs: object
    ) -> tuple[LocalFuture[A], LocalFuture[B]]:
        try:
            self.ready.result()
            a, b = bound(self.role, full_name(method))(*map(self._resolve, args), **kwargs)
        except Exception as error:
            return Failed(error), Failed(error)
        return Value(a), Value(b)


class LocalBackend(Backend):
    """`get` and `wait` never block. `wait` returns futures in the order given."""

    name = "local"

    def spawn(self, factory: Callable[[], object], place: Place = OTHER) -> Handle:
        return LocalHandle(factory)

    def here(self, factory: Callable[[], object]) -> LocalHandle:
        return LocalHandle(factory)

    def node_of(self, handle: Handle, wait_s: float = 0.1) -> str:
        return "local"

    def put(self, value: T | Future[T]) -> Future[T]:
        return value if isinstance(value, Future) else Value(value)

    def get(self, future: Future[T], timeout: float | None = None) -> T:
        assert isinstance(future, LocalFuture)
        return future.result()

    def wait(self, futures: Sequence[F], num: int = 1, timeout: float | None = None) -> tuple[list[F], list[F]]:
        return list(futures[:num]), list(futures[num:])

    def end(self, handles: Sequence[Handle], *, interrupt: bool = False) -> None:
        for handle in handles:
            assert isinstance(handle, LocalHandle)
            handle.close()
