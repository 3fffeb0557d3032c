"""Errors that users can correct, which end the command line with 2, and the end of a run whose numbers ran away."""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Sequence

HEAD = "Traceback (most recent call last):\n"
"""How a text begins that has a user's traceback first."""

MAX_LINE = 2000
MAX_SHOWN = 300
"""Characters of somebody else's text that a message repeats."""


class UserError(ValueError):
    """Says what was given, what is valid, and what to do."""

    has_traceback = False
    """Its text ends with the traceback of a user's code, so it is shown with its lines."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message, without the frames of raypid above it."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(UserError):
    """A setting that does not exist or does not fit."""


class CodeError(RuntimeError):
    """Code of the user's raised: its traceback, and after it what raypid says."""

    has_traceback = True

    @classmethod
    def after(cls, frames: Sequence[traceback.FrameSummary], error: BaseException, message: str) -> CodeError:
        """The error whose text is the traceback of `error` through `frames`, then `message`."""
        lines = "".join([*traceback.format_list(frames), *traceback.format_exception_only(type(error), error)])
        return cls(f"{HEAD}{lines.rstrip()}\nraypid: {message}")


class Diverged(RuntimeError):
    """Learning left the finite numbers: a run stops here, or goes back to its last checkpoint.

    Args:
        what: the first bad quantity, such as "the policy_loss is nan".
        advice: the settings to look at, as a sentence.
        batch: what was learnt from, or acted on, as a state that a checkpoint can hold.
        timesteps: environment steps so far; None where only the driver knows.
    """

    def __init__(
        self, what: str, advice: str = "", batch: dict[str, object] | None = None, timesteps: int | None = None
    ) -> None:
        super().__init__(what)
        self.what, self.advice, self.batch, self.timesteps = what, advice, batch or {}, timesteps
        self.kept = ""
        """Where the batch and the last good weights are, as a sentence."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.what, self.advice, self.batch, self.timesteps), {"kept": self.kept}

    def __str__(self) -> str:
        when = "" if self.timesteps is None else f" at environment step {self.timesteps:,}"
        return " ".join(filter(None, [f"Training diverged{when}: {self.what}.", self.advice, self.kept]))


class Halted(RuntimeError):
    """An iteration was broken off, because the run should have ended a while ago."""


def reason(error: Exception) -> str:
    """Return what an error says, on one line and without the number of an OSError."""
    said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    if said.startswith(HEAD):  # what follows the user's traceback says the same in a line
        said = said.rpartition("\nraypid: ")[2]
    return shorten(said)


def shorten(text: str, most: int = MAX_SHOWN) -> str:
    """Return the beginning of a text that may be long, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]}..."


def listed(names: Sequence[str], most: int = 10) -> str:
    """The first names, and how many more there are: "a, b, c and 2 more"; "" without any."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def one_line(message: object) -> str:
    """Return a message on one line, without the middle of one that somebody's input made long."""
    text = " ".join(str(message).splitlines())
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE // 2]} ... {text[-MAX_LINE // 2 :]}"


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxlong = 60


def shown(value: object) -> str:
    """Return a value as a message shows it: of what is long or deep only the beginning. (A YAML file of a few lines can name
    10^9 values.)"""
    try:
        return _SHORT.repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        return f"a {type(value).__name__} too large to show"
