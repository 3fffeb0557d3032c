"""Closing environments: one whose close() does not come back must not hold up the end of a run."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Protocol

CLOSING_S = 5.0
"""Seconds that the environments of a vector have together."""


class Closed(Protocol):
    """What can be closed."""

    def close(self) -> object: ...


class _TooLong(BaseException):  # no Exception, which an environment may catch
    """Raised inside a close() that takes too long."""


def close_all(envs: Sequence[Closed], name: str, seconds: float = CLOSING_S) -> None:
    """Close environments, whatever they raise. One that is not closed in time is given up with a warning.

    The deadline needs a signal, so there is none outside of the main thread, or where something else uses SIGALRM. Workers are ended
    from outside.
    """
    until = time.monotonic() + seconds
    for env in envs:
        try:
            with contextlib.suppress(Exception), _within(max(0.1, until - time.monotonic())):
                env.close()
        except _TooLong:
            warnings.warn(
                f"Environment {name}: close() did not come back within {seconds:g} s and was given up.", RuntimeWarning, stacklevel=2
            )  # fmt: skip


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise _TooLong after so many seconds."""

    def raise_(number: int, frame: object) -> None:
        raise _TooLong

    can = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not can or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGALRM, raise_)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again, where it was raised in what lets nothing out
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
