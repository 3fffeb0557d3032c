"""The one error that users see from this package."""

from __future__ import annotations

import signal
import sys
import traceback
from pathlib import Path

from raypid.errors import HEAD as HEAD
from raypid.errors import UserError

_HERE = str(Path(__file__).parent)


class EnvError(UserError):
    """An environment cannot be found, made, handled or trusted.

    The text says what was given, what was expected and what to do.
    """

    has_traceback = True


def reraise_signal(error: BaseException) -> None:
    """Raise `error` again if a signal raised it, as Ctrl-C does. All else is the environment's own doing, sys.exit() included."""
    if isinstance(error, Exception):
        return
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    codes = [code for handler in handlers if (code := getattr(handler, "__code__", None)) is not None]
    by_default = isinstance(error, KeyboardInterrupt) and handlers[0] is signal.default_int_handler
    if by_default or any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__)):
        raise error


def is_users(error: BaseException) -> bool:
    """Whether code outside of installed packages raised it, or called what did."""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(__file__).parents[1])
    return any(not f.filename.startswith((package, "<frozen")) and "site-packages" not in f.filename for f in frames)


def user_traceback() -> str:
    """The exception being handled as text, from where it leaves this package on: what the user's code did."""
    error = sys.exception() if sys.version_info >= (3, 11) else sys.exc_info()[1]
    assert error is not None
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_HERE)]
    lines = traceback.format_list(frames) + traceback.format_exception_only(type(error), error)
    return "".join(lines).rstrip()
