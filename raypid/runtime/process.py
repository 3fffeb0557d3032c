"""Roles in processes of this machine, by Python's own multiprocessing, on Linux and macOS. Nothing here needs Ray.

By default a process starts afresh ("spawn"). multiprocessing would run the driver's script again in it, so that a script without
`if __name__ == "__main__"` fails. Here it does not: what a script or a notebook's cell defines is sent by value, as on Ray, with cloudpickle, which
Gymnasium depends on. "forkserver" copies an empty process, which is quicker from the second role on. "fork" copies the driver within milliseconds,
with all that it has imported. That is safe only as long as the driver has one thread, and so not with torch.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Literal

from raypid.runtime.handle import (
    BUSY_S,
    ENDING_S,
    NICENESS,
    OTHER,
    A,
    B,
    F,
    Future,
    Handle,
    Place,
    T,
    T_co,
    WorkerLost,
)
from raypid.runtime.local import Failed, LocalBackend, LocalFuture, LocalHandle, Value, bound, build, full_name, resolve
from raypid.runtime.resources import limit_threads

LOOK_S = 0.5
"""Seconds between looks whether processes that are waited for are alive. A dead one's pipe may be held open by what its environments started."""


# -- in the role's process ---------------------------------------------------------------------------------------------


def serve(
    connection: multiprocessing.connection.Connection, drivers: multiprocessing.connection.Connection, niceness: int
) -> None:
    """Build a role and answer its calls, one after another, until an empty message or the end of the driver; then close the role.

    Args:
        connection: first the role's factory comes from there, and then calls.
        drivers: the driver's end of it, which a fork holds open.
        niceness: how much more this process yields than the driver does.
    """
    drivers.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # leave the call under way
    os.setsid()  # what environments start belongs to the role, and ends with it
    os.nice(niceness)
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    limit_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    calls = SimpleQueue[bytes]()
    threading.Thread(target=_receive_calls, args=(connection, calls), daemon=True).start()
    factory = calls.get()
    role = LocalHandle(lambda: build(pickle.loads(factory)))
    try:
        connection.send_bytes(_answer(role.ready.result))
        while call := calls.get():
            connection.send_bytes(_answer(partial(_call, role, call)))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        role.close()


def _receive_calls(connection: multiprocessing.connection.Connection, calls: SimpleQueue[bytes]) -> None:
    """Receive calls while the role is busy, so that the driver never waits to send one. When the driver has ended, end this process."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            calls.put(connection.recv_bytes())
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ENDING_S)
    os._exit(1)


def _call(role: LocalHandle, call: bytes) -> object:
    """Make a call of the role, which raises what its factory raised if it was not built."""
    role.ready.result()
    method, args, kwargs = pickle.loads(call)
    return bound(role.role, method)(*map(resolve, args), **kwargs)


def _answer(call: Callable[[], object]) -> bytes:
    """What a call returns, as a pickled Value, or what it raises, as a pickled Failed."""
    try:
        return _dumps(Value(call()))
    except Exception as error:
        error.worker_traceback = text = traceback.format_exc()  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            pickle.loads(answer := _dumps(Failed(error)))
            return answer
        return _dumps(Failed(RuntimeError(text)))  # the error cannot be built from what it holds


def _dumps(value: object) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]  # Gymnasium needs it too

    return cloudpickle.dumps(value)


# -- in the driver -----------------------------------------------------------------------------------------------------


class ProcessFuture(LocalFuture[T_co]):
    """What a role in another process returns, or a part of it. As an argument it is waited for in the driver, and its value is sent."""

    __slots__ = ("handle", "outcome")

    def __init__(self, handle: ProcessHandle) -> None:
        self.handle = handle
        self.outcome: LocalFuture[T_co] | None = None

    def __reduce__(self) -> tuple[type[Value[object]], tuple[object]]:
        return Value, (resolve(self),)

    def result(self) -> T_co:
        _wait([self])
        assert self.outcome is not None
        return self.outcome.result()


def _wait(futures: Sequence[F], num: int = 1, timeout: float | None = None) -> list[F]:
    """Wait until `num` futures have an outcome, at most `timeout` seconds; returns these."""
    until = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        handles = {f.handle for f in futures if isinstance(f, ProcessFuture) and f.outcome is None}
        for handle in handles:
            handle.receive()
        known = [f for f in futures if not isinstance(f, ProcessFuture) or f.outcome is not None]
        left_s = until - time.monotonic()
        if len(known) >= num or left_s <= 0:
            return known[:num]
        multiprocessing.connection.wait([handle.connection for handle in handles], min(left_s, LOOK_S))


class ProcessHandle:
    """A role in a process of its own."""

    def __init__(self, factory: Callable[[], object], place: Place, context: Any) -> None:
        self.connection, theirs = context.Pipe()
        given = theirs, self.connection, NICENESS.get(place.kind, 0)
        self.process = context.Process(target=serve, args=given)
        with _without_script():
            self.process.start()
        theirs.close()
        self._calls = deque[tuple[ProcessFuture[object], ...]]()
        """The futures of each call that was not answered yet, in the order in which the answers come."""
        self.ready = ProcessFuture[None](self)
        self._send(factory, self.ready)

    def submit(self, method: Callable[..., T], *args: object) -> ProcessFuture[T]:
        future = ProcessFuture[T](self)
        self._send((full_name(method), args, {}), future)
        return future

    def submit_parts(
        self, method: Callable[..., tuple[A, B]], *args: object, **kwargs: object
    ) -> tuple[ProcessFuture[A], ProcessFuture[B]]:
        parts = ProcessFuture[A](self), ProcessFuture[B](self)
        self._send((full_name(method), args, kwargs), *parts)
        return parts

    def _send(self, message: object, *futures: ProcessFuture[object]) -> None:
        try:
            data = _dumps(message)
        except Exception as error:
            return _settle(futures, partial(Failed, error))
        self._calls.append(futures)
        with contextlib.suppress(OSError):  # it has ended, as `receive` will find
            self.connection.send_bytes(data)

    def receive(self) -> None:
        """Take the answers that are there. If the process has ended, the other calls are lost."""
        is_alive = self.process.is_alive()  # asked first: what it sent before its end is there by then
        try:
            while self._calls and self.connection.poll():
                answer = self.connection.recv_bytes()
                _settle(self._calls.popleft(), partial(pickle.loads, answer))
        except (EOFError, OSError):
            is_alive = False
        while self._calls and not is_alive:
            self.process.join(1.0)
            code = self.process.exitcode or 0
            how = f"its process ended with {'signal' if code < 0 else 'exit code'} {abs(code)}"
            _settle(self._calls.popleft(), partial(Failed, WorkerLost(f"A role was lost: {how}.", how)))


def _settle(futures: Sequence[ProcessFuture[object]], answer: Callable[[], LocalFuture[Any]]) -> None:
    """Give the futures of a call, one or one for each part, their outcomes."""
    outcomes: list[LocalFuture[object]]
    try:
        outcomes = [answer()] if len(futures) == 1 else [Value(part) for part in answer().result()]
    except Exception as error:
        outcomes = [Failed(error)] * len(futures)
    for future, outcome in zip(futures, outcomes, strict=True):
        future.outcome = outcome


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Start processes that do not run the driver's script, as multiprocessing would have them do, and that no Ctrl-C meets half-started."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    heeded = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, heeded)


class ProcessBackend(LocalBackend):
    """Each role in a process of this machine. They end with the driver, also if it is killed; `shutdown` lets them close what they have.

    What is `put` is sent to each role that gets it.
    """

    name = "process"

    def __init__(self, start_method: Literal["spawn", "forkserver", "fork"] = "spawn") -> None:
        self._context = multiprocessing.get_context(start_method)
        self._handles = set[ProcessHandle]()
        atexit.register(self.shutdown)  # before multiprocessing waits for the processes

    def spawn(self, factory: Callable[[], object], place: Place = OTHER) -> ProcessHandle:
        handle = ProcessHandle(factory, place, self._context)
        self._handles.add(handle)
        return handle

    def get(self, future: Future[T], timeout: float | None = None) -> T:
        if not _wait([future], timeout=timeout):
            raise TimeoutError
        return super().get(future)

    def wait(self, futures: Sequence[F], num: int = 1, timeout: float | None = None) -> tuple[list[F], list[F]]:
        known = _wait(futures, num, timeout)
        return known, [future for future in futures if future not in known]

    def kill(self, handle: Handle) -> None:
        if isinstance(handle, ProcessHandle):
            with contextlib.suppress(OSError):
                os.killpg(handle.process.pid, signal.SIGKILL)
            handle.process.kill()
            handle.process.join()
            self._handles.discard(handle)

    def end(self, handles: Sequence[Handle], *, interrupt: bool = False) -> None:
        there = [handle for handle in handles if isinstance(handle, ProcessHandle)]
        for handle in there:
            with contextlib.suppress(OSError):
                handle.connection.send_bytes(b"")
        for wait_s in (0.0 if interrupt else BUSY_S, ENDING_S):
            until = time.monotonic() + wait_s
            for handle in there:
                handle.process.join(max(0.0, until - time.monotonic()))
            for handle in there:
                handle.process.terminate()  # one that closes its role goes on
        for handle in there:
            self.kill(handle)

    def shutdown(self) -> None:
        self.end(list(self._handles))
        atexit.unregister(self.shutdown)
