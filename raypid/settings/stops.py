"""When a run ends, as people write it: a number of steps, a time, or criteria by the names of results."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from raypid.errors import ConfigError, shown
from raypid.settings.config import parse_value

STEPS, SECONDS = "timesteps_total", "time_total_s"
_UNITS = {"": (STEPS, 1), "k": (STEPS, 1e3), "K": (STEPS, 1e3), "M": (STEPS, 1e6), "G": (STEPS, 1e9), "s": (SECONDS, 1),
          "min": (SECONDS, 60), "h": (SECONDS, 3600)}  # fmt: skip
_FORMS = "a number of environment steps (100000, 1e6, 100k, 2M), a time (90s, 10min, 2h), or criteria such as reward=200,time=600 or as JSON"

SHORT = {
    "reward": "episode_reward_mean", "evaluation/reward": "evaluation/episode_reward_mean", "time": SECONDS, "steps": STEPS,
    "timesteps": STEPS, "episodes": "episodes_total", "iterations": "training_iteration",
}  # fmt: skip
"""Short forms of stop criteria -> the keys of results."""


def read_stop(stop: object, option: str = "stop") -> dict[str, object]:
    """Read stop criteria: a number of steps, or text as the command line has it, or a mapping whose keys may be short forms (`SHORT`).

    Returns:
        Names of results here -> values, which are not checked any further (`raypid.run.known_keys.check_stop`).

    Raises:
        ConfigError: it is none of these, or says two things of one result.
    """
    if stop is None:
        return {}
    criteria = _criteria(stop)
    if criteria is None:
        name, value = _amount(stop, option)
        return {name: value}
    found: dict[str, object] = {}
    for key, given in criteria:
        if not isinstance(key, str):
            raise ConfigError(f"The name of a stop criterion is text, not {shown(key)}.")
        ours, number = SHORT.get(key, key), _number(given)
        if ours in found and found[ours] != number:
            raise ConfigError(f"{option} has two values for {ours!r}: give one of them.")
        found[ours] = number
    return found


def _criteria(stop: object) -> Iterable[tuple[object, object]] | None:
    """The criteria (key, value) of a mapping, of JSON or of KEY=VALUE,...; None if it is something else."""
    if isinstance(stop, str) and stop.lstrip().startswith("{"):
        stop = parse_value(stop)
    if isinstance(stop, str) and "=" in stop:
        return [(key.strip(), value) for key, _, value in (part.partition("=") for part in stop.split(","))]
    return stop.items() if isinstance(stop, Mapping) else None


def _number(value: object) -> object:
    """The number in a text, which YAML makes of 1e6; anything else as it is."""
    try:
        return _amount(value, "stop")[1] if isinstance(value, str) else value
    except ConfigError:
        return value


def _amount(value: object, option: str) -> tuple[str, float]:
    """(what is counted, how many): of steps or seconds."""
    wrong = ConfigError(f"{option} takes {_FORMS}, not {shown(value)}.")
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise wrong
    number = str(value).strip()
    unit = "" if number.lower().endswith(("inf", "nan")) else re.sub(r"^.*[\d._]", "", number)
    if unit not in _UNITS:
        raise wrong
    name, factor = _UNITS[unit]
    try:
        amount = float(number.removesuffix(unit)) * factor if unit or not isinstance(value, int) else value
    except ValueError:
        raise wrong from None
    return name, int(amount) if math.isfinite(amount) and amount == int(amount) else amount
