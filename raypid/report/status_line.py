"""A line of a terminal that says what a command is doing, and is gone when that is done."""

from __future__ import annotations

import os
import shutil
import sys
from typing import IO

from raypid.report.streams import lenient


def is_terminal(file: IO[str]) -> bool:
    """Whether a file is a terminal on which lines can be redrawn: not a pipe, TERM=dumb or a CI's log."""
    return file.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")


class StatusLine:
    """Shows a text such as "starting Ray" until the next, or "", takes its place. Nothing if `file` (stderr) is no terminal."""

    def __init__(self, file: IO[str] | None = None) -> None:
        self._file = lenient(file or sys.stderr)
        self._shows, self._text = is_terminal(self._file), ""

    def __call__(self, text: str) -> None:
        if not self._shows or text == self._text:
            return
        self._text = text
        room = shutil.get_terminal_size().columns - 1  # a line that wraps could not be taken back
        self._file.write("\r\x1b[K" + (f"{text} ..."[:room] if text else ""))
        self._file.flush()
