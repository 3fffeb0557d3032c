"""A process beside the driver that does what is to be done after its end. It is run as a script and imports nothing of raypid.

With a Ray of the driver's own, it ends what outlives the driver (this needs /proc). Where the driver is killed, Ray's own processes end by
themselves, but two of its agents only after a minute: they want to tell Ray's server, which is gone by then. What environments have
started, nobody would end at all.

On a node of a cluster, it says why the driver has ended, if Ray on this machine ended first. Where that happens while the driver waits
for a call, Ray ends the driver at once and without a word: nothing that runs in the driver can save, or be sure to say anything.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from glob import glob

MARK = "RAYPID_STARTED_BY"
"""The environment variable by which the processes that a driver's Ray starts are known; they pass it on to theirs."""
POLL_S = 0.5
ENDING_S = 3.0
"""Seconds in which what a killed driver leaves may end by itself."""
CONNECT_S = 1.0
QUIET_S = 2.0
"""So long nothing may have been left: a process that starts another one when it is ended would go on."""


def carries(pid: str, mark: str) -> bool:
    """Whether a process was started with the mark, as far as can be known: one that has changed its title may have written over it."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:  # it has ended, or is another user's
        return f"{MARK}={mark}".encode() in file.read().split(b"\0")
    return False


def session(pid: str) -> int:
    """The session that a process is in; 0 if it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/stat") as file:
        state, _, _, number = file.read().rpartition(")")[2].split()[:4]
        return 0 if state in "ZX" else int(number)
    return 0


def sessions(driver: int, mark: str, known: Iterable[int]) -> set[int]:
    """The sessions that the driver's living children lead: each of Ray's processes leads one, in which its agents and workers are."""
    found = set[int]()
    for path in glob(f"/proc/{driver}/task/*/children"):
        with suppress(OSError), open(path) as file:
            for pid in file.read().split():
                if session(pid) == int(pid) and (int(pid) in known or carries(pid, mark)):
                    found.add(int(pid))
    return found - {os.getpid()}


def left(mark: str, known: Iterable[int]) -> list[int]:
    """The processes in these sessions, and those that carry the mark (none, if it is empty)."""
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
    return [int(pid) for pid in pids if session(pid) in known or (mark and session(pid) and carries(pid, mark))]


def end(pids: Iterable[int], by: signal.Signals = signal.SIGKILL) -> None:
    """End processes."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, by)


def tell_of_raylet(host: str, port: str) -> None:
    """Say so if no process listens any more where Ray did."""
    try:
        with suppress(TimeoutError):
            socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError:
        print(
            f"raypid: Ray on this machine ({host}) has ended, and has ended this process with it: what was learnt since the newest "
            "checkpoint is lost. Start Ray here again, or go on elsewhere: raypid train --resume goes on from that checkpoint.",
            file=sys.stderr,
        )


def main() -> None:
    """End what one of Ray's processes leaves when it ends, and all that is left when the driver has ended.

    If stdin ends and the driver has not, its Ray was stopped: end what is left of that, and this process. With the address of a raylet
    that is not the driver's, nothing is ended, but said.
    """
    driver, mark, raylet = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGTSTP"):  # sent to all; only the driver's end counts here
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    known, stopped = set[int](), False
    while os.getppid() == driver and not stopped:
        living = sessions(driver, mark, known)
        if known - living:
            end(left("", known - living))
        known = living
        stopped = bool(select.select([sys.stdin], [], [], POLL_S)[0])
    if raylet:
        return tell_of_raylet(*raylet)
    if os.getppid() == driver:
        end(left(mark, known))
        return
    asked = set[int]()
    began = quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < QUIET_S:
        if found := left(mark, known):
            quiet_since = time.monotonic()
            if quiet_since - began > ENDING_S:
                end(found)
            else:  # a simulator may have something to give back, such as a licence
                end(set(found) - asked, signal.SIGTERM)
                asked |= set(found)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
