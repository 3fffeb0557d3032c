"""Processes that are known by a mark in their environment, which they pass on: which there are, and how they end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARK = "RAYPID_MARKS"
"""The variable that holds the marks, one after the other: what a marked process starts with a mark of its own has both."""
POLL_S = 0.5
QUIET_S = 1.0
"""So long nothing may have been left: a process that starts another one when it is ended would go on."""


def with_mark(mark: str, environment: dict[str, str]) -> dict[str, str]:
    """The environment, with one mark more."""
    return {**environment, MARK: f"{environment.get(MARK, '')}:{mark}"}


def marked(mark: str) -> dict[int, str]:
    """pid -> command line of the processes that have the mark, without zombies."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                found[int(pid)] = line.decode(errors="replace").strip()
    return found


def send(mark: str, number: int) -> None:
    """Send a signal to all that has the mark."""
    for pid in marked(mark):
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def end(mark: str) -> None:
    """Kill all that has the mark, also what is stopped; returns when it is gone."""
    while marked(mark):
        send(mark, signal.SIGKILL)
        time.sleep(0.05)


def end_with_this_process(mark: str) -> None:
    """Start a process that kills all that has the mark once this one has ended, in whatever way: also by kill -9 or os._exit."""
    plain = {name: value for name, value in os.environ.items() if name != MARK}
    subprocess.Popen([sys.executable, "-S", __file__, str(os.getpid()), mark], env=plain, start_new_session=True)


def end_what_is_started() -> None:
    """Have all that this process starts from now on end with it; Ctrl-C ends it at once."""
    mark = uuid.uuid4().hex
    os.environ.update(with_mark(mark, dict(os.environ)))
    end_with_this_process(mark)
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))


def exit_on_signals() -> None:
    """Leave through every `finally` and `with` on SIGTERM and Ctrl-C, without a traceback."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: sys.exit(128 + got))


def main() -> None:
    """Wait until the process that has started this one has ended; then end what it has left."""
    parent, mark = int(sys.argv[1]), sys.argv[2]
    while os.getppid() == parent:
        time.sleep(POLL_S)
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < QUIET_S:
        if marked(mark):
            end(mark)
            quiet_since = time.monotonic()
        time.sleep(0.1)


if __name__ == "__main__":
    main()
