"""Errors that users can correct. The command line shows the message and exits with 2."""

from __future__ import annotations


class UserError(ValueError):
    """Says what was given, what is valid, and what to do."""


def reason(error: Exception) -> str:
    """Return what an error says, on one line and without the number of an OSError."""
    said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    text = " ".join(said.split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def one_line(message: object) -> str:
    """Return a message on one line, without the middle of one that somebody's input made long."""
    text = " ".join(str(message).splitlines())
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE // 2]} ... {text[-MAX_LINE // 2 :]}"


MAX_LINE = 2000
MAX_SHOWN = 300
"""Characters of somebody else's text that a message repeats."""


def shown(value: object) -> str:
    """Return a value as a message shows it: on one line, and cut where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, deep nesting
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= MAX_SHOWN else f"{text[:40]}... ({len(text):,} characters)"
