"""The one error that users see from this package."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from pathlib import Path

from raypid.errors import HEAD as HEAD
from raypid.errors import CodeError, UserError
from raypid.plugins.extras import install_hint

_HERE = str(Path(__file__).parent)
_PACKAGE = str(Path(__file__).parents[1])
_IMPORTING = (_PACKAGE, "<frozen importlib", importlib.__file__)
"""Beginnings of the files that stand between a name and the module that it means."""


class EnvError(UserError):
    """An environment cannot be found, made, handled or trusted.

    The text says what was given, what was expected and what to do.
    """

    has_traceback = True
    row: int | None = None
    """The stream at fault, if one is."""


class ImportFailed(EnvError):
    """The module of an environment exists, and what it does when it is imported fails."""


def import_failed(name: str, module: str, error: BaseException) -> ImportFailed:
    """Describe an error of importing the module of environment `name`: by the user's line where one is enough, else by the traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_IMPORTING)]
    if isinstance(error, ModuleNotFoundError) and error.name:
        theirs = [f for f in frames if "site-packages" not in f.filename]
        place = f"{relative(theirs[-1].filename)}:{theirs[-1].lineno}" if theirs else f"Environment {name!r}: {module}"
        does = "imports" if theirs[-1:] == frames[-1:] else "imports what needs"
        return ImportFailed(f"{place} {does} {error.name}, which is not installed{install_hint(error)}")
    message = f"Environment {name!r}: importing {module} failed: {type(error).__name__}: {error}"
    return ImportFailed(str(CodeError.after(frames, error, message)))


def relative(file: str) -> str:
    """A file as it is seen from the current folder, if it lies in it."""
    return os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file


def reraise_signal(error: BaseException) -> None:
    """Raise `error` again if a signal raised it, as Ctrl-C does. All else is the environment's own doing, sys.exit() included."""
    if isinstance(error, Exception):
        return
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [code for handler in handlers if (code := getattr(handler, "__code__", None)) is not None]
    by_default = isinstance(error, KeyboardInterrupt) and signal.default_int_handler in handlers
    if by_default or any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__)):
        raise error


def reraise_ours(error: BaseException, stream: int | None = None) -> None:
    """Raise `error` of stream `stream` again if a signal raised it, or if it says already what is wrong with the environment."""
    if isinstance(error, EnvError):
        error.row = stream if error.row is None else error.row
        raise error
    reraise_signal(error)


def is_users(error: BaseException) -> bool:
    """Whether code outside of installed packages raised it, or called what did."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(not f.filename.startswith((_PACKAGE, "<frozen")) and "site-packages" not in f.filename for f in frames)


def user_traceback() -> str:
    """The exception being handled as text, from where it leaves this package on: what the user's code did."""
    error = sys.exc_info()[1]
    assert error is not None
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_HERE)]
    lines = traceback.format_list(frames) + traceback.format_exception_only(type(error), error)
    return "".join(lines).rstrip()
