"""What reset() and step() must return, in one sentence for all who call them: vectors, processes, adapters, check-env."""

from __future__ import annotations

RESET, STEP = 2, 5
"""Lengths of the tuples that reset() and step() return."""
_WANTED = {
    RESET: "reset() must return (obs, info), as Gymnasium's environments do",
    STEP: "step() must return (obs, reward, terminated, truncated, info), as Gymnasium's environments do",
}
_ADAPTED = {
    RESET: "reset() must return raypid.OBSERVATION(observation), or (observation, info) as Gymnasium's environments do",
    STEP: "step() must return raypid.OBSERVATION(observation, reward, terminated, truncated, info), or such a tuple",
}
"""The same of environments without Gymnasium's interface."""


def fits(result: object, count: int) -> bool:
    """Whether it is a tuple of the length that reset() (`RESET`) or step() (`STEP`) returns."""
    return isinstance(result, tuple) and len(result) == count


def misfit(result: object, count: int, *, adapted: bool = False) -> tuple[str, str]:
    """Say what is wrong with a result that does not fit, and what to write in its place ("" if nothing is known).

    Args:
        count: `RESET` or `STEP`.
        adapted: the environment may return raypid.OBSERVATION.
    """
    advice = ""
    if count == STEP and fits(result, 4):
        advice = (
            "Split done into terminated (it ended by itself) and truncated (it ran out of time), as Gym did in 0.26."
        )
    elif count == RESET and not isinstance(result, tuple):
        advice = "Write: return obs, {}"
    return f"{(_ADAPTED if adapted else _WANTED)[count]}; it returned {described(result)}.", advice


def misfit_text(result: object, count: int, *, adapted: bool = False) -> str:
    """`misfit` as one text."""
    return " ".join(filter(None, misfit(result, count, adapted=adapted)))


def described(value: object) -> str:
    """The type of a value with its article: "a tuple of 4", "an ndarray"."""
    name = f"tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' or name == 'ndarray' else 'a'} {name}"
