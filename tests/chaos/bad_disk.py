"""A disk that does not take some files: it is full or read-only for what matches a pattern, real files and folders otherwise.

Writes fail in `open` and in the file's `write`.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import re
from collections.abc import Callable
from typing import Any

FULL, READ_ONLY = errno.ENOSPC, errno.EROFS


def install(
    pattern: str, number: int = FULL, after: str | None = None, at_open: bool = False, times: int = 10**9
) -> Callable[[], None]:
    """Fail from here on; returns what ends it.

    Args:
        pattern: regular expression that is searched in absolute paths.
        number: of the error.
        after: only once this file is there.
        at_open: files cannot be opened either, as where the disk has no room for one more. (Of a read-only one none can.)
        times: so many failures, then there is space again.
    """
    at_open = at_open or number != FULL
    left = [times]

    def fails(path: Any) -> bool:
        name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if not name or not re.search(pattern, os.path.abspath(name)):
            return False
        return left[0] > 0 and (after is None or os_exists(after))

    def failure(path: Any) -> OSError:
        left[0] -= 1
        return OSError(number, os.strerror(number), os.fsdecode(path))

    class Full(io.FileIO):
        """Takes three bytes, then the disk is full."""

        took = False

        def write(self, data: Any) -> int:
            if not fails(self.name):
                return super().write(data)
            if number == FULL and not self.took:
                self.took = True
                return super().write(bytes(data)[:3])
            raise failure(self.name)

    before = (builtins.open, io.open, os.open, os.mkdir)
    os_exists = os.path.exists

    def opened(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, *more: Any, **named: Any) -> Any:
        writes = set(mode) & set("wax+")
        known = isinstance(file, str | os.PathLike) and re.search(pattern, os.path.abspath(os.fsdecode(file)))
        if not writes or not known:
            return before[0](file, mode, buffering, encoding, *more, **named)
        if at_open and fails(file):
            raise failure(file)
        raw = Full(os.fsdecode(file), mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding or "utf-8")

    def opened_by_number(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and fails(path):
            raise failure(path)
        return before[2](path, flags, *more, **named)

    def made(path: Any, *more: Any, **named: Any) -> None:
        if at_open and fails(path):
            raise failure(path)
        before[3](path, *more, **named)

    def end() -> None:
        builtins.open, io.open, os.open, os.mkdir = before

    builtins.open, io.open, os.open, os.mkdir = opened, opened, opened_by_number, made
    return end
