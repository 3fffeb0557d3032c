"""What reset() and step() must return: the one description that vectors, processes, adapters and check-env check by."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from raypid.envs.infos import Parcel
from raypid.envs.observation_checks import ObservationError
from raypid.errors import shown

RESET, STEP = 2, 5
"""Lengths of the tuples that reset() and step() return."""
_WANTED = {
    RESET: "reset() must return (obs, info)",
    STEP: "step() must return (obs, reward, terminated, truncated, info)",
}
"""What is to be returned, by the length of the tuple."""
_LARGEST = float(np.finfo(np.float32).max)


def fits(result: object, count: int) -> bool:
    """Whether it is a tuple of the length that reset() (`RESET`) or step() (`STEP`) returns."""
    return isinstance(result, tuple) and len(result) == count


def misfit(result: object, count: int, stream: int | None = None) -> ObservationError:
    """The error that a result is not that of reset() (`count` is `RESET`) or of step() (`STEP`)."""
    advice = ""
    if count == STEP and fits(result, 4):
        advice = "Split done into terminated (it ended by itself) and truncated (out of time), as Gym did in 0.26."
    elif count == RESET and not isinstance(result, tuple):
        advice = "Write: return obs, {}"
    text = f"{_WANTED[count]} as Gymnasium's environments do; it returned {described(result)}."
    return ObservationError(text, stream, advice)


def reset_obs(result: Any, stream: int | None = None) -> object:
    """Return the observation of what reset() returned. Its info is not looked at.

    Raises:
        ObservationError: it is no tuple of 2.
    """
    if not fits(result, RESET):
        raise misfit(result, RESET, stream)
    return result[0]


def step_parts(result: Any, stream: int | None) -> tuple[object, object, bool, bool, Mapping[str, object] | Parcel]:
    """Take apart what step() returned: observation, reward as it was given, terminated, truncated, info.

    Raises:
        ObservationError: it is no tuple of 5, a flag is neither true nor false, or the info is no dict.
    """
    # the usual case costs comparisons alone: this runs for each environment at each step
    if type(result) is not tuple or len(result) != STEP:
        raise misfit(result, STEP, stream)
    obs, reward, terminated, truncated, info = result
    if type(terminated) is not bool:
        terminated = flag(terminated, "terminated", stream)
    if type(truncated) is not bool:
        truncated = flag(truncated, "truncated", stream)
    if type(info) is not dict:
        check_info(info, "step", stream)
    return obs, reward, terminated, truncated, info


def flag(value: object, name: str, stream: int | None = None) -> bool:
    """Convert what is meant as true or false: a bool, 0 or 1, or an array of one of these.

    Raises:
        ObservationError: it is something else.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    with suppress(TypeError, ValueError, RuntimeError):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf" and array.item() in (0, 1):
            return bool(array.item())
    raise ObservationError(f"step() returned {shown(value)} as {name}; it must be true or false.", stream)


def check_info(info: object, method: str, stream: int | None = None) -> None:
    """Check the info that reset() or step() returned.

    Raises:
        ObservationError: it is no dict.
    """
    if not isinstance(info, (Mapping, Parcel)):
        raise ObservationError(f"{method}() returned the info {shown(info)}; it must be a dict.", stream)


def reward_number(reward: Any, stream: int | None = None) -> float:
    """Return a reward, which is a finite number or an array of one, as a float.

    Raises:
        ObservationError: it is something else, or beyond float32.
    """
    if type(reward) is float and -_LARGEST <= reward <= _LARGEST:
        return reward
    value = math.nan
    with suppress(TypeError, ValueError, RuntimeError):
        array = np.asarray(reward)
        if array.size == 1:
            reward = array.item()
    is_text = isinstance(reward, (str, bytes))
    with suppress(TypeError, ValueError, RuntimeError, OverflowError):
        value = math.nan if is_text else float(reward)
    if abs(value) <= _LARGEST:
        return value
    has_parts = isinstance(reward, Collection) and not is_text
    text = (
        f"the reward is {shown(reward)}; it must be one finite number, in float32 (up to 3.4e+38) before reward_scale."
    )
    advice = "Sum the components, and keep the parts in info, where a callback makes metrics of them."
    raise ObservationError(text, stream, advice if has_parts else "")


def checked_step(
    step: Callable[[Any], object], stream: int | None, action: object
) -> tuple[object, float, bool, bool, Any]:
    """Step an environment by its method `step`; returns what that did, with the reward as a float.

    Raises:
        ObservationError: a part of it does not fit; the observation is not looked at.
    """
    obs, reward, terminated, truncated, info = step_parts(step(action), stream)
    return obs, reward_number(reward, stream), terminated, truncated, info


def described(value: object) -> str:
    """The type of a value with its article: "a tuple of 4", "an ndarray"."""
    name = f"tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' or name == 'ndarray' else 'a'} {name}"
