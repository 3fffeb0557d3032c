"""The processes that run the trials of a search, side by side; each runs many."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]
"""What a process says of its trial: "moment" (then it waits for `go_on` or `end`) or "ended", with trial, curve, seconds."""
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
        self._processes: list[_Process] = []

    @property
    def running(self) -> list[str]:
        """Names of the trials under way."""
        return [p.trial for p in self._processes if p.trial is not None]

    @property
    def has_room(self) -> bool:
        return len(self.running) < self._num

    def start(self, trial: str, order: Mapping[str, object]) -> None:
        """Start a trial. There must be room."""
        process = next((p for p in self._processes if p.trial is None), None)
        if process is None:
            process = _Process(self._log)
            self._processes.append(process)
        process.trial = trial
        process.say({"do": "trial", "trial": trial, **order})

    def go_on(self, trial: str, until: float) -> None:
        """Let a trial that waits train up to a later moment."""
        self._of(trial).say({"do": "train", "until": until, "state": ""})

    def end(self, trial: str, state: str) -> None:
        """Tell a trial to end as it is; it says how far it came."""
        self._of(trial).say({"do": "end", "until": 0.0, "state": state})

    def kill(self, trial: str) -> None:
        """End a trial, with its process: its environments are closed."""
        self._end([self._of(trial)])

    def wait(self, timeout_s: float) -> list[Event]:
        """What has happened within the timeout. A process that died has ended its trial with state "failed"."""
        found: list[Event] = []
        told = connection.wait([p.connection for p in self._processes], timeout_s)
        for process in [p for p in self._processes if p.connection in told]:
            try:
                found.append(json.loads(process.connection.recv_bytes()))
            except (EOFError, ConnectionError):
                if process.trial is not None:
                    died = f"Its process ended ({process.how_it_ended()}); {self._log} has what it printed."
                    about = {"event": "ended", "trial": process.trial, "state": "failed", "kind": "died"}
                    found.append({**about, "message": died, "traceback": ""})
                self._end([process])
            else:
                if found[-1]["event"] == "ended":
                    process.trial = None
        return found

    def close(self) -> None:
        """End all processes, and what they run."""
        self._end(list(self._processes))

    def _of(self, trial: str) -> _Process:
        return next(p for p in self._processes if p.trial == trial)

    def _end(self, processes: Sequence[_Process]) -> None:
        for process in processes:
            process.popen.terminate()
        until = time.monotonic() + CLOSING_S
        for process in processes:
            process.close(max(0.0, until - time.monotonic()))
            self._processes.remove(process)


class _Process:
    """One process and what it was given to do."""

    def __init__(self, log: Path) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-m", "raypid.sweep.trial_process", str(theirs.fileno())]
        with log.open("ab") as log_file, theirs:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.trial: str | None = None

    def say(self, message: Mapping[str, object]) -> None:
        with contextlib.suppress(ConnectionError):  # it died, which `wait` finds out
            self.connection.send_bytes(json.dumps(message).encode())

    def how_it_ended(self) -> str:
        code = self.popen.wait(5)
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def close(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(seconds)
        with contextlib.suppress(ProcessLookupError):  # workers on Ray, processes of environments
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        self.connection.close()
