"""A process beside the driver that ends what outlives it. It is run as a script, imports nothing of raypid, and needs /proc.

Where the driver is killed, Ray's own processes end by themselves, but two of its agents only after a minute: they want to tell Ray's server,
which is gone by then. What environments have started, nobody would end at all.
"""

from __future__ import annotations

import os
import signal
import sys
import time

MARK = "RAYPID_STARTED_BY"
"""The environment variable by which the processes that a driver's Ray starts are known; they pass it on to theirs."""
POLL_S = 0.5
QUIET_S = 2.0
"""So long nothing may have been left: a process that starts another one when it is ended would go on."""


def marked(mark: str) -> list[int]:
    """This user's processes that carry the mark, but not this one."""
    words, found = f"{MARK}={mark}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if words in file.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:  # it has ended, or is another user's
            continue
    return [pid for pid in found if pid != os.getpid()]


def end_all(mark: str) -> None:
    """End the processes that carry the mark, until there has been none for a while."""
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < QUIET_S:
        for pid in marked(mark):
            quiet_since = time.monotonic()
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.1)


def main() -> None:
    """Wait until the driver has ended, then end what carries its mark. Only the driver ends this process."""
    driver, mark = int(sys.argv[1]), sys.argv[2]
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGTSTP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    while os.getppid() == driver:
        time.sleep(POLL_S)
    end_all(mark)


if __name__ == "__main__":
    main()
