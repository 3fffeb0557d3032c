"""The one error that users see from this package."""

from __future__ import annotations

from raypid.errors import UserError


class EnvError(UserError):
    """An environment cannot be found, made, handled or trusted.

    The text says what was given, what was expected and what to do.
    """
