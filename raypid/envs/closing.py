"""How environments end: each is closed, and one whose close() does not come back holds up neither a run nor its process."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn, Protocol

CLOSING_S = 5.0
"""Seconds that the environments of a vector have together."""
ENDING_S = CLOSING_S + 1.0
"""Seconds that a process has for that, and for its own end, before it is killed."""
ENDS = {signal.SIGINT, signal.SIGTERM, *({signal.SIGHUP} if hasattr(signal, "SIGHUP") else ())}
"""Signals that end a process unless it does something else."""


class Closed(Protocol):
    """What can be closed."""

    def close(self) -> object: ...


class _TooLong(BaseException):  # no Exception, which an environment may catch
    """Raised inside a close() that takes too long."""


def close_all(envs: Sequence[Closed], name: str, seconds: float = CLOSING_S) -> None:
    """Close environments, whatever they raise. One that is not closed in time is given up with a warning.

    The deadline is that of `within`. Workers are ended from outside.
    """
    until = time.monotonic() + seconds
    for env in envs:
        try:
            with contextlib.suppress(Exception), within(max(0.1, until - time.monotonic()), _TooLong()):
                env.close()
        except _TooLong:
            warnings.warn(
                f"Environment {name}: close() did not come back within {seconds:g} s and was given up.", RuntimeWarning, stacklevel=2
            )  # fmt: skip


def end_by_parent() -> None:
    """In a process with environments: leave Ctrl-C to its parent; other signals raise SystemExit, for which environments are closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in ENDS - {signal.SIGINT}:
        signal.signal(number, leave)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal by SystemExit, which no environment is taken to have raised (`reraise_signal`)."""
    raise SystemExit(128 + number)


@contextlib.contextmanager
def inheriting() -> Iterator[None]:
    """Start a process that calls `end_by_parent`: until it does, signals to it wait."""
    heeded = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heeded)


def end_processes(processes: Sequence[multiprocessing.process.BaseProcess], *, interrupt: bool = False) -> None:
    """Wait ENDING_S seconds for processes that are about to close their environments and end; one that hangs is interrupted, and then killed.

    interrupt: they are in the midst of something else, which is interrupted at once.
    """
    for wait_s, then in ((0.0 if interrupt else ENDING_S, "terminate"), (ENDING_S if interrupt else 1.0, "kill")):
        until = time.monotonic() + wait_s
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                getattr(process, then)()
    for process in processes:
        process.join()


@contextlib.contextmanager
def within(seconds: float | None, error: BaseException) -> Iterator[None]:
    """Raise `error` after so many seconds of wall time; None: never, as outside of the main thread, or where something else uses SIGALRM."""

    def raise_(number: int, frame: object) -> None:
        raise error

    can = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if seconds is None or not can or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGALRM, raise_)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again, where it was raised in what lets nothing out
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
