"""Errors that users can correct. The command line shows the message and exits with 2."""

from __future__ import annotations


class UserError(ValueError):
    """Says what was given, what is valid, and what to do."""
