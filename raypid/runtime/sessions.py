"""What a Ray that this process starts leaves behind: processes, if this one is killed, and folders with logs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import IO

from raypid.runtime import guard
from raypid.storage.run_folder import is_held

KEPT = 5
"""Folders of sessions that are over and that stay, for their logs."""
_OURS = "raypid"
"""A file in the folder of a session that raypid has started; locked as long as its driver lives."""


_open: set[Session] = set()
"""Sessions that are not closed. They are kept here because guard and lock have to last as long as Ray."""


def start_guard(mark: str, *raylet: str, stderr: int | None = None) -> subprocess.Popen[bytes] | None:
    """Start the guard of this process in another session; its stdin ends with this process. None if it cannot be started."""
    command = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), mark, *raylet]
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True, cwd="/"
        )
    return None


class Session:
    """Ray's processes and its folder, from before they start until they have ended.

    A guard ends what outlives this process, on Linux. The folder stays, for its logs, until KEPT newer ones are over too: the next
    session that starts removes it. Neither touches a Ray that is joined or that something else has started.
    """

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self._guard: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """For the environment of Ray's processes."""
        return {guard.MARK: self.mark}

    def watch(self) -> None:
        """Start the guard. Where that is not possible, Ray's processes end by themselves, if later."""
        if sys.platform == "linux":
            self._guard = start_guard(self.mark, stderr=subprocess.DEVNULL)

    def begin(self, folder: Path) -> None:
        """Once Ray has started: take its folder, and remove the oldest of those that nobody holds."""
        _open.add(self)
        with contextlib.suppress(OSError, ModuleNotFoundError):  # where there are no such locks, all stay
            import fcntl

            self._lock = open(folder / _OURS, "wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            over = sorted(other for other in folder.parent.glob("session_*") if other != folder and _is_over(other))
            for old in over[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)

    def close(self) -> None:
        """Let go of the folder, once Ray has ended. The guard ends those of its agents that are still there."""
        _open.discard(self)
        if self._guard is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # a fork of this process keeps its stdin open
                self._guard.communicate(timeout=2)
            self._guard.kill()
            self._guard.wait()
        if self._lock is not None:
            self._lock.close()


def _is_over(folder: Path) -> bool:
    """Whether raypid started this session for this user, and its driver has ended."""
    mark = folder / _OURS
    is_there = os.path.isfile(mark) and not (os.path.islink(folder) or os.path.islink(mark))
    return is_there and mark.stat().st_uid == os.getuid() and not is_held(mark)
