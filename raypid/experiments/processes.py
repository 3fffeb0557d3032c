"""The processes that run the trials of a search, side by side; each runs many."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

Event: TypeAlias = dict[str, Any]
"""What a process says of its trial: "rung" (then it waits for `answer`) or "ended", with trial, curve, seconds."""
CLOSING_S = 10.0
"""Seconds in which processes that are to end close their environments, those of workers too."""


class TrialProcesses:
    """A few processes that take trials as they come.

    Args:
        num: most trials at a time.
        log: what the processes print is added to this file.
    """

    def __init__(self, num: int, log: Path) -> None:
        self._num, self._log = num, log
        self._selector = selectors.DefaultSelector()
        self._processes: list[_Process] = []

    @property
    def running(self) -> list[int]:
        """Numbers of the trials under way."""
        return [p.trial for p in self._processes if p.trial is not None]

    @property
    def has_room(self) -> bool:
        return len(self.running) < self._num

    def start(self, trial: int, order: Mapping[str, object]) -> None:
        """Start a trial. There must be room."""
        process = next((p for p in self._processes if p.trial is None), None)
        if process is None:
            process = _Process(self._log)
            self._processes.append(process)
            self._selector.register(process.events, selectors.EVENT_READ, process)
        process.trial = trial
        process.say({"do": "trial", "trial": trial, **order})

    def answer(self, trial: int, *, go_on: bool) -> None:
        """Tell a trial that waits at a rung whether to go on."""
        self._of(trial).say({"do": "go_on" if go_on else "stop", "trial": trial})

    def stop(self, trial: int) -> None:
        """Tell a trial that trains to end as it is; it says how far it came."""
        self._of(trial).say({"do": "stop", "trial": trial})

    def kill(self, trial: int) -> None:
        """End a trial, with its process: its environments are closed."""
        self._end([self._of(trial)])

    def wait(self, timeout_s: float) -> list[Event]:
        """What has happened within the timeout. A process that died has ended its trial with state "failed"."""
        found: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            process: _Process = key.data
            events, alive = process.read()
            for event in events:
                if event["event"] == "ended":
                    process.trial = None
                if event["event"] != "ready":
                    found.append(event)
            if not alive:
                if process.trial is not None:
                    died = f"Its process ended ({process.how_it_ended()}); {self._log} has what it printed."
                    found.append(
                        {
                            "event": "ended",
                            "trial": process.trial,
                            "state": "failed",
                            "kind": "died",
                            "message": died,
                            "traceback": "",
                        }
                    )
                self._end([process])
        return found

    def close(self) -> None:
        """End all processes, and what they run."""
        self._end(list(self._processes))

    def _of(self, trial: int) -> _Process:
        return next(p for p in self._processes if p.trial == trial)

    def _end(self, processes: Sequence[_Process]) -> None:
        for process in processes:
            process.interrupt()
        until = time.monotonic() + CLOSING_S
        for process in processes:
            with contextlib.suppress(KeyError):
                self._selector.unregister(process.events)
            process.close(max(0.0, until - time.monotonic()))
            self._processes.remove(process)


def _piece(events: IO[bytes]) -> bytes | None:
    """What has come; None if nothing has, b"" at the end."""
    return events.read(65536)


class _Process:
    """One process and what it was given to do."""

    def __init__(self, log: Path) -> None:
        there, write = os.pipe()
        command = [sys.executable, "-m", "raypid.experiments.trial_process", str(write)]
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=[write], start_new_session=True
            )
        os.close(write)
        os.set_blocking(there, False)
        self.events: IO[bytes] = open(there, "rb", buffering=0)
        self.trial: int | None = None
        self._rest = b""

    def say(self, message: Mapping[str, object]) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died, which `read` finds out
            self._popen.stdin.write(json.dumps(message).encode() + b"\n")
            self._popen.stdin.flush()

    def read(self) -> tuple[list[Event], bool]:
        """Events that have come, and whether the process lives."""
        alive = True
        while (piece := _piece(self.events)) is not None:
            if not piece:
                alive = False
                break
            self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines], alive

    def how_it_ended(self) -> str:
        code = self._popen.wait(5)
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def interrupt(self) -> None:
        self._popen.terminate()

    def close(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(seconds)
        with contextlib.suppress(ProcessLookupError):  # workers on Ray, processes of environments
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()
        self.events.close()
