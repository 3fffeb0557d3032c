"""Ctrl-C and the other signals that end a run: the first after its iteration and with a checkpoint, a second one at once."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import ClassVar, TypeAlias

from raypid.envs.closing import ENDS

TWICE_S = 5.0
"""Seconds after a run that Ctrl-C has ended in which another one ends the next run at once, so that a loop over runs ends."""


Handler: TypeAlias = Callable[[int, FrameType | None], object]


@contextlib.contextmanager
def signals_call(handler: Handler) -> Iterator[Mapping[int, Handler | int | None]]:
    """Let Ctrl-C, SIGTERM and SIGHUP (but not under nohup) call `handler`, in the main thread; gives what they called before."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = [n for n in ENDS if n in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(n) is not signal.SIG_IGN]
    before = {int(number): signal.signal(number, handler) for number in numbers if in_main_thread}
    try:
        yield before
    finally:
        for number, previous in before.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)


class Interrupts:
    """The signals that a run has received.

    Args:
        stop: asks the run to end after its iteration.
        tell: shows a line.
        again: how the user interrupts once more, such as "Ctrl-C again".
        in_loop: whether the run may be one of a loop, which ends if the user interrupts twice within TWICE_S.
    """

    _ended_at: ClassVar[float] = -math.inf
    """When a signal has ended a run of this process (monotonic)."""

    def __init__(self, stop: Callable[[], None], tell: Callable[[str], None], again: str, in_loop: bool) -> None:
        self._stop, self._tell, self._again = stop, tell, again
        self._twice_until = Interrupts._ended_at + TWICE_S if in_loop else -math.inf
        self.number = 0
        """Signals so far. Shortly after an interrupted run the first one counts twice."""
        self.is_saved = False
        """Whether the run has saved everything, so that a signal only skips what is left."""

    def any(self) -> bool:
        """Whether there was one."""
        return self.number > 0

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """End the run on a signal: after this iteration and with a checkpoint, or at once on a second one; a third is not ours."""
        owner = os.getpid()

        def on_signal(number: int, frame: FrameType | None) -> None:
            if os.getpid() != owner:  # a process of an environment, forked with this handler: its owner ends it
                if number == signal.SIGTERM:
                    raise SystemExit
                return
            self.number += 2 if time.monotonic() < self._twice_until else 1
            self._stop()
            if self.number > 2 and callable(outer := before[number]):
                outer(number, frame)  # impatience with what the second one set going: a command ends its process
            if self.number > 1:
                raise KeyboardInterrupt
            without = "" if self.is_saved else ", without a checkpoint"
            ends = "now" if self.is_saved else "after this iteration, with a checkpoint"
            self._tell(f"Stopping {ends}. {self._again} stops at once{without}.")

        with signals_call(on_signal) as before:
            yield
        if self.any():
            Interrupts._ended_at = time.monotonic()
