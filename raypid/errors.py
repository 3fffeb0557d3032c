"""Errors that users can mend. The command line shows their message and exits with 2."""

from __future__ import annotations


class UserError(ValueError):
    """What was given, what was expected, what to do."""
