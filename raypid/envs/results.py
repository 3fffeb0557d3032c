"""What reset() and step() must return, in one sentence for all who call them: vectors, processes, adapters, check-env."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from raypid.envs.infos import Parcel
from raypid.envs.observation_checks import ObservationError
from raypid.errors import shown

RESET, STEP = 2, 5
"""Lengths of the tuples that reset() and step() return."""
_WANTED = {
    RESET: ("reset()", "(obs, info)", "(obs)"),
    STEP: ("step()", "(obs, reward, terminated, truncated, info)", "(obs, reward, terminated, truncated, info)"),
}
"""Length -> the method, the tuple, and the arguments of raypid.OBSERVATION in its place."""
_LARGEST = float(np.finfo(np.float32).max)


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
    call, parts, arguments = _WANTED[count]
    form = f"raypid.OBSERVATION{arguments}, or {parts}" if adapted else parts
    return f"{call} must return {form} as Gymnasium's environments do; it returned {described(result)}.", advice


def misfit_text(result: object, count: int, *, adapted: bool = False) -> str:
    """`misfit` as one text."""
    return " ".join(filter(None, misfit(result, count, adapted=adapted)))


def reset_obs(result: Any, stream: int) -> object:
    """Return the observation of what reset() returned. Its info is not looked at.

    Raises:
        ObservationError: it is no tuple of 2.
    """
    if not fits(result, RESET):
        raise ObservationError(misfit_text(result, RESET), stream)
    return result[0]


def step_parts(result: Any, stream: int) -> tuple[object, object, bool, bool, Mapping[str, object] | Parcel]:
    """Take apart what step() returned: observation, reward as it was given, terminated, truncated, info.

    Raises:
        ObservationError: it is no tuple of 5, a flag is neither true nor false, or the info is no dict.
    """
    # the usual case costs comparisons alone: this runs for each environment at each step
    if type(result) is not tuple or len(result) != STEP:
        raise ObservationError(misfit_text(result, STEP), stream)
    obs, reward, terminated, truncated, info = result
    if type(terminated) is not bool:
        terminated = _flag("terminated", terminated, stream)
    if type(truncated) is not bool:
        truncated = _flag("truncated", truncated, stream)
    if type(info) is not dict and not isinstance(info, (Mapping, Parcel)):
        raise ObservationError(f"step() returned the info {shown(info)}; it must be a dict.", stream)
    return obs, reward, terminated, truncated, info


def _flag(name: str, value: object, stream: int) -> bool:
    meant = as_flag(value)
    if meant is None:
        raise ObservationError(f"step() returned {shown(value)} as {name}; it must be true or false.", stream)
    return meant


def as_flag(value: object) -> bool | None:
    """Convert what is meant as true or false: a bool, 0 or 1, or an array of one of these. None: it is something else."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    with suppress(TypeError, ValueError, RuntimeError):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf" and array.item() in (0, 1):
            return bool(array.item())
    return None


def judged_reward(reward: Any) -> tuple[float, str, str]:
    """Return a reward, which is a finite number or an array of one, as (float, "", ""); or say what is wrong with it, and what to do:
    (nan, "is None; it must be one number.", "")."""
    if type(reward) is float and -_LARGEST <= reward <= _LARGEST:
        return reward, "", ""
    with suppress(TypeError, ValueError, RuntimeError):
        array = np.asarray(reward)
        if array.size == 1:
            reward = array.item()
    if isinstance(reward, (str, bytes)):
        return math.nan, f"is text ({shown(reward)}); it must be one number.", ""
    try:
        value, number = float(reward), f"{float(reward):.3g}"
    except OverflowError:
        value, number = _LARGEST * 2, shown(reward)
    except (TypeError, ValueError, RuntimeError):
        advice = "Sum the components, and keep the parts in info, where a callback makes metrics of them."
        return math.nan, f"is {shown(reward)}; it must be one number.", advice if hasattr(reward, "__len__") else ""
    if not math.isfinite(value):
        return value, f"is {value}; it must be finite.", ""
    if abs(value) > _LARGEST:
        advice = "Divide it in the environment; reward_scale would come too late."
        return value, f"is {number}, beyond float32 (3.4e+38).", advice
    return value, "", ""


def reward_number(reward: object, stream: int) -> float:
    """Return a reward, which is a finite number or an array of one, as a float.

    Raises:
        ObservationError: it is something else.
    """
    value, wrong, advice = judged_reward(reward)
    if wrong:
        raise ObservationError(f"the reward {wrong} {advice}".rstrip(), stream)
    return value


def checked_step(step: Callable[[Any], object], stream: int, action: object) -> tuple[object, float, bool, bool, Any]:
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
