"""Output that nobody may be able to read (a full disk, a closed pipe, a terminal that is gone), and a line of a terminal that says what
a command is doing."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from typing import IO, Any, TextIO, cast

_MAY_RECOVER = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)


class Lenient:
    """A text stream that drops what cannot be written, and tells in `failure` why. All else is the file's own."""

    def __init__(self, file: IO[str] | None) -> None:
        self._file: IO[str] = open(os.devnull, "w") if file is None else file  # Python has none for a closed descriptor
        self.failure: Exception | None = OSError(errno.EBADF, "it is closed") if file is None else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with self._noted():
            try:
                self._file.write(text)
            except UnicodeEncodeError:
                encoding = str(getattr(self._file, "encoding", "ascii"))
                plain = text.replace("±", "+-").encode(encoding, "backslashreplace")
                self._file.write(plain.decode(encoding))
        return len(text)

    def flush(self) -> None:
        with self._noted():
            self._file.flush()

    def give_up(self) -> None:
        """Send what is still unwritten nowhere, or the interpreter would complain of it when it ends."""
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:  # a signal's handler prints while what it interrupted prints
            pass
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            self.failure = self.failure or error
            if getattr(error, "errno", None) not in _MAY_RECOVER:
                self.give_up()


def lenient(file: IO[str] | None) -> IO[str]:
    """The stream, dropping what cannot be written."""
    return file if isinstance(file, Lenient) else cast(IO[str], Lenient(file))


@contextlib.contextmanager
def lenient_output() -> Iterator[Lenient]:
    """Drop what stdout and stderr do not take; gives stdout."""
    output, errors = Lenient(sys.stdout), Lenient(sys.stderr)
    try:
        with contextlib.redirect_stdout(cast(TextIO, output)), contextlib.redirect_stderr(cast(TextIO, errors)):
            yield output
    finally:
        for stream in (output, errors):
            stream.flush()
            if stream.failure is not None:
                stream.give_up()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


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
