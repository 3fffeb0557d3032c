"""The one error that users see from this package."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from raypid.errors import UserError

_HERE = str(Path(__file__).parent)


class EnvError(UserError):
    """An environment cannot be found, made, handled or trusted.

    The text says what was given, what was expected and what to do.
    """


def user_traceback() -> str:
    """The exception being handled as text, from where it leaves this package on: what the user's code did."""
    error = sys.exception() if sys.version_info >= (3, 11) else sys.exc_info()[1]
    assert error is not None
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_HERE)]
    lines = traceback.format_list(frames) + traceback.format_exception_only(type(error), error)
    return "".join(lines).rstrip()
