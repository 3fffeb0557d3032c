"""Everything in this process: a call runs when it is submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from raypid.runtime.handle import name_of


class LocalFuture:
    """A value, or the exception that `get` raises."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self.value, self.error = value, error

    @property
    def parts(self) -> list[Any]:
        """What it waits for: nothing."""
        return []

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class LocalHandle:
    """A role in this process. `resolve` turns futures of other backends into values."""

    def __init__(self, factory: Callable[[], Any], resolve: Callable[[Any], Any] | None = None) -> None:
        self._resolve = resolve or _resolve
        self._error: Exception | None = None
        try:
            self.role = _resolved(factory, self._resolve)()
        except Exception as error:
            self._error = error
        self.ready = LocalFuture(error=self._error)

    def submit(self, method: str | Callable[..., Any], *args: Any, num_returns: int = 1) -> Any:
        try:
            if self._error is not None:
                raise self._error
            value = getattr(self.role, name_of(method))(*(self._resolve(a) for a in args))
        except Exception as error:
            failed = LocalFuture(error=error)
            return failed if num_returns == 1 else [failed] * num_returns
        if num_returns == 1:
            return LocalFuture(value)
        return [LocalFuture(v) for v in value]


def _resolved(factory: Callable[[], Any], resolve: Callable[[Any], Any]) -> Callable[[], Any]:
    """A factory with the values of the futures among its arguments."""
    if not isinstance(factory, partial):
        return factory
    return partial(factory.func, *map(resolve, factory.args), **factory.keywords)


def _resolve(x: Any) -> Any:
    return x.result() if isinstance(x, LocalFuture) else x


class LocalBackend:
    """`get` and `wait` never block; `wait` returns submission order."""

    name = "local"

    def spawn(
        self, factory: Callable[[], Any], *, num_cpus: float = 0, num_gpus: float = 0, node: str | None = None
    ) -> LocalHandle:
        return LocalHandle(factory)

    def here(self, factory: Callable[[], Any]) -> LocalHandle:
        return LocalHandle(factory)

    def resources(self) -> dict[str, float]:
        return {}

    def node_of(self, handle: Any, wait_s: float = 0.1) -> str:
        return "local"

    def put(self, value: Any) -> LocalFuture:
        return value if isinstance(value, LocalFuture) else LocalFuture(value)

    def get(self, future: Any, timeout: float | None = None) -> Any:
        if isinstance(future, list):
            return [self.get(f) for f in future]
        return future.result()

    def wait(self, futures: Sequence[Any], num: int = 1, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        return list(futures[:num]), list(futures[num:])

    def kill(self, handle: Any) -> None:
        pass

    def shutdown(self) -> None:
        pass
