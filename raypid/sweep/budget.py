"""How a search spends its time: seconds of each trial, runs of each phase, when a phase must end."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from raypid.settings.config import ConfigError
from raypid.sweep.halving import NUM_RUNGS, REDUCTION, Halving

NUM_CANDIDATES = 4
"""Settings that run again with another seed."""
NUM_FINALISTS = 2
"""Of these, settings that run with FINALIST_SEEDS more."""
FINALIST_SEEDS = 2
MIN_FRESH, MAX_FRESH = 3, 10
"""Fresh seeds on which the best settings and the defaults are trained anew; more than the least if time is left."""
FIRST_FRESH = 1000
START_S = 4.0
"""Seconds until the first trial trains."""
REPORT_S = 4.0
"""Seconds to write the report."""
TURN_S = 0.7
"""Seconds of a trial beside its training: environments, networks, the last evaluation."""
RAY_TURN_S = 5.0
"""The same where workers are processes on Ray; Ray itself stays from trial to trial."""
MIN_TRIAL_S = 1.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "": 1, "sec": 1, "min": 60}


def read_seconds(text: str | float) -> float:
    """Read a time such as 90, "90s", "10m", "1h30m" as seconds.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool) and 0 < text < math.inf:
        return float(text)
    parts = re.findall(r"(\d+(?:\.\d*)?)\s*([a-z]*)", str(text).strip().lower())
    whole = re.sub(r"\s", "", "".join(number + unit for number, unit in parts))
    if not parts or whole != re.sub(r"\s", "", str(text).lower()) or any(unit not in _UNITS for _, unit in parts):
        raise ConfigError(f"A time is a number of seconds, or such as 90s, 10m, 1h30m: not {text!r}.")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds <= 0:
        raise ConfigError(f"A time is above 0, not {text!r}.")
    return float(seconds)


def shown_seconds(seconds: float) -> str:
    """Seconds as a reader wants them: 0.4 s, 45 s, 10 min, 2.5 h."""
    if seconds < 180:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.3g} min" if seconds < 3 * 3600 else f"{seconds / 3600:.3g} h"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a search does in its time."""

    trials: int
    budget_s: float
    trial_s: float
    """Seconds of training of a trial that is not stopped."""
    concurrent: int
    overhead_s: float = TURN_S
    """Of a trial beside its training."""

    @property
    def turn_s(self) -> float:
        return self.trial_s + self.overhead_s

    @property
    def race_s(self) -> float:
        """Seconds of the phase in which the best run with other seeds."""
        turns = math.ceil(NUM_CANDIDATES / self.concurrent) + math.ceil(
            NUM_FINALISTS * FINALIST_SEEDS / self.concurrent
        )
        return turns * self.turn_s

    @property
    def fresh_s(self) -> float:
        """Seconds of the last phase: the best settings and the defaults on MIN_FRESH seeds."""
        return math.ceil(2 * MIN_FRESH / self.concurrent) * self.turn_s

    def explore_until_s(self, candidates: int) -> float:
        """When the last trial with new settings must have ended, if there are so many candidates: they run once more each, and the proof
        follows. The rest of the race takes place if there is time."""
        race_s = math.ceil(candidates / self.concurrent) * self.turn_s if candidates > 1 else 0.0
        return self.budget_s - race_s - self.fresh_s - REPORT_S


def turns_of_a_trial() -> float:
    """How much of a trial's time one takes on average, since most are stopped: a bit more than successive halving's, whose rungs fill
    while it goes on."""
    ends = np.array([0.0, *Halving(1.0).rungs])
    return 1.6 * float(np.diff(ends) @ (1.0 / REDUCTION) ** np.arange(NUM_RUNGS))


def make_plan(
    trials: int, budget_s: float, concurrent: int, trial_s: float | None = None, overhead_s: float = TURN_S
) -> Plan:
    """Divide the budget among trials, or see how many fit if the time of one is given.

    Raises:
        ConfigError: there is too little time; the message says how much is needed.
    """
    one = Plan(trials, budget_s, 0.0, concurrent, overhead_s)
    turns = turns_of_a_trial() * trials / concurrent
    races = (one.race_s + one.fresh_s) / overhead_s
    fixed = START_S + REPORT_S + one.race_s + one.fresh_s + overhead_s * trials / concurrent
    if trial_s is not None:
        least = START_S + REPORT_S + (1 + races) * (trial_s + overhead_s)
        if budget_s < least:
            raise ConfigError(
                f"A budget of {shown_seconds(budget_s)} is too small for one trial of {shown_seconds(trial_s)} and the runs that compare "
                f"the best settings with the defaults: give {shown_seconds(math.ceil(least))} or more, or shorter trials."
            )
        return Plan(trials, budget_s, trial_s, concurrent, overhead_s)
    seconds = (budget_s - fixed) / (turns + races)
    if seconds < MIN_TRIAL_S:
        least = math.ceil(fixed + MIN_TRIAL_S * (turns + races))
        many, fewer = ("trials", ", or fewer trials") if trials > 1 else ("trial", "")
        raise ConfigError(
            f"A budget of {shown_seconds(budget_s)} is too small for {trials} {many} of {MIN_TRIAL_S:g} s and the runs that compare the best "
            f"settings with the defaults: give {shown_seconds(least)} or more{fewer}."
        )
    return Plan(trials, budget_s, float(f"{seconds:.2g}"), concurrent, overhead_s)
