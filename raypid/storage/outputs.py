"""Where a command is to write: tried before anything is computed, and explained where it cannot be."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from errno import EDQUOT, ENOSPC
from pathlib import Path

from raypid.errors import UserError, reason, shown
from raypid.storage.neighbours import refuse_file_name


class Unwritten(RuntimeError):
    """A file could not be written: the disk is full, or the place is not writable."""


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error means that the disk is full, or the user's quota."""
    return isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT)


def why_unwritten(path: Path, error: Exception) -> str:
    """Say which file could not be written, why, and what to do."""
    if is_disk_full(error):
        return f"The disk is full: {path} cannot be written. Free some space."
    return f"{path} cannot be written: {reason(error)}."


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an error of the file system into one that names the file.

    Raises:
        Unwritten: anything inside raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise Unwritten(why_unwritten(path, error)) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a file to write instead of `path`, which takes its place at the end: readers, also after a crash, find either the old
    file or the new one. Nothing of it stays if it could not be written."""
    path = Path(os.path.realpath(path))  # a link stays one
    beside = path.with_name(f".tmp-{os.getpid()}{path.suffix}")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def write_whole(path: Path, text: str | bytes) -> None:
    """Write a file so that readers, also after a crash, find either the old one or the new one.

    Raises:
        Unwritten: it cannot be written.
    """
    with explained(path), replacing(path) as beside:
        beside.write_bytes(text.encode() if isinstance(text, str) else text)


class AppendFile:
    """A file that grows by whole pieces. It is unbuffered: a piece survives the process as soon as `append` returns.

    Raises:
        Unwritten: it cannot be written; here, and in `append`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with explained(path):
            self._file = open(path, "ab", buffering=0)

    def append(self, piece: bytes) -> None:
        with explained(self.path):
            start = self._file.tell()
            rest = memoryview(piece)
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(start)  # a full disk may take half a line; none is better
                    self._file.seek(start)
                raise

    def is_in_place(self) -> bool:
        """Whether the path still leads to this file."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a file system that does not answer at the moment
            return True

    def close(self) -> None:
        self._file.close()


ERRORS = "errors.txt"
FIRST_ERRORS, OLDER_ERRORS = "errors.first.txt", "errors.older.txt"
"""Former contents of errors.txt: when it was full for the first time, which may show how it began, and the last
time."""
MAX_ERRORS = 1 << 20
"""Bytes after which a new errors.txt is begun. An environment that raises all day would fill the disk."""


class ErrorFile:
    """The file of a run's tracebacks. Together with the two older files it has at most 3 MAX_ERRORS bytes. If it cannot
    be written the run goes on, and says so."""

    def __init__(self, folder: Path | None = None, where: Callable[[], str] = lambda: "") -> None:
        self.folder = folder
        """Folder of the run; None: nothing is written."""
        self.where = where
        """Returns how far the run is, such as "iteration 3, step 4,096". Each entry begins with a line that has it, and
        the time."""
        self.unwritten = ""
        """Reason of the first failed write, or ""."""

    def add(self, text: str) -> str:
        """Append a text, all of it or nothing; returns why it could not be written, or "". The middle of a long text is
        left out."""
        if self.folder is None:
            return ""
        when = ", ".join(filter(None, [time.strftime("%Y-%m-%d %H:%M:%S"), self.where()]))
        piece = f"[{when}]\n{text}".encode(errors="replace")
        if len(piece) > MAX_ERRORS // 8:
            piece = b"\n... (cut) ...\n".join((piece[: MAX_ERRORS // 16], piece[-MAX_ERRORS // 16 :]))
        path = self.folder / ERRORS
        try:
            with contextlib.suppress(OSError):  # there is none, or it stays
                if path.stat().st_size + len(piece) > MAX_ERRORS:
                    first = path.with_name(FIRST_ERRORS)
                    path.replace(path.with_name(OLDER_ERRORS) if first.exists() else first)
            with contextlib.closing(AppendFile(path)) as file:
                file.append(piece)
        except Unwritten as error:
            self.unwritten = self.unwritten or str(error)
            return str(error)
        return ""


@contextlib.contextmanager
def usable(path: Path, option: str) -> Iterator[None]:
    """Turn an error of the file system, or a name that it cannot have, into an error that names the option and the path.

    Raises:
        UserError: the place cannot be written to.
        Unwritten: the disk is full.
    """
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError) as error:
        if is_disk_full(error):
            raise Unwritten(why_unwritten(path, error)) from error
        why = reason(error)
        if isinstance(error, (FileExistsError, NotADirectoryError)):
            file = next((part for part in (path, *path.parents) if part.is_file()), path)
            why = f"{shown(str(file))} is a file, not a folder"
        raise UserError(f"{option} cannot be {shown(str(path))}: {why}.") from error


def check_folder_writable(folder: Path, option: str) -> None:
    """Check that `folder` can be made and files be written into it. Nothing of the trial stays.

    Raises:
        UserError: it cannot, and why; or it has the name of a file.
    """
    refuse_file_name(folder, option)
    with usable(folder, option):
        _try_folder(folder)


def _try_folder(folder: Path) -> None:
    made: list[Path] = []
    try:
        for part in reversed((folder, *folder.parents)):
            if not part.exists():
                part.mkdir()
                made.append(part)
        tempfile.TemporaryFile(dir=folder).close()
    finally:
        for part in reversed(made):
            part.rmdir()


def check_file_writable(file: Path, option: str) -> None:
    """Check that `file` can be written, and that it is not a folder. Nothing of the trial stays.

    Raises:
        UserError: it cannot, and why.
    """
    with usable(file, option):
        _try_folder(file.parent)
        if file.exists():
            file.open("ab").close()
