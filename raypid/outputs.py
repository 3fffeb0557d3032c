"""Where a command is to write: tried before anything is computed, and explained where it cannot be."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from raypid.errors import UserError, reason, shown


@contextlib.contextmanager
def usable(path: Path, option: str) -> Iterator[None]:
    """Turn an error of the file system, or a name that it cannot have, into a UserError that names the option and the path."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{option} cannot be {shown(str(path))}: {reason(error)}.") from error


def check_folder_writable(folder: Path, option: str) -> None:
    """Check that `folder` can be made and files be written into it. Nothing of the trial stays.

    Raises:
        UserError: it cannot, and why.
    """
    made: list[Path] = []
    with usable(folder, option):
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
        if file.is_dir():
            raise UserError(f"{option} takes the name of a file; {shown(str(file))} is a folder.")
        existed = file.exists()
        check_folder_writable(file.parent, option)
        if file.parent.exists():
            file.open("ab").close()
            if not existed:
                file.unlink()
        elif len(file.name.encode(errors="surrogateescape")) > 255:
            raise OSError("the name is too long")
