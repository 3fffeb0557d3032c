"""How a search spends its time: seconds of a trial, when trials are judged, when the proof must begin."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from raypid.phases import duration
from raypid.settings.config import ConfigError

REDUCTION = 3
"""Of so many trials that are judged, one goes on, for so many times the seconds."""
LATE = 1.25
"""An evaluation counts at a moment if it came before this many times its seconds: iterations do not end on the second."""
SEEDS_AGAIN = 2
"""Further seeds of the settings that are still good at the end of a trial."""
MIN_FRESH, MAX_FRESH = 3, 10
"""Fresh seeds on which the best settings and the defaults are trained; more than the least if time is left."""
FIRST_FRESH = 1000
FEW_TRIALS = 4
"""Trials that fit into any budget."""
MIN_TRIAL_S = 1.0
START_S = 4.0
"""Seconds until the first trial trains."""
REPORT_S = 4.0
"""Seconds to write the report."""
TURN_S = 0.7
"""Seconds of a trial beside its training: environments, networks, the last evaluation."""
RAY_TURN_S = 5.0
"""The same where workers are processes on Ray; Ray itself stays from trial to trial."""
_COST = 0.42
"""Part of a trial's seconds that one takes on average, since most are stopped: 1.6 times that of successive halving, whose first trials
go on for want of others."""
_AGAIN = 6
"""Runs with further seeds that are expected."""
_TIME = re.compile(r"\s*".join(rf"(?:(\d+\.?\d*)\s*{unit})?" for unit in ("h", "m(?:in)?", "(?:s(?:ec)?)?")))
"""Hours, minutes and seconds, each of which may be missing."""


def read_seconds(text: str | float) -> float:
    """Read a time such as 90, "90s", "10m", "1h30m" as seconds.

    Raises:
        ConfigError: it is something else, or 0.
    """
    parts = _TIME.fullmatch(str(text).strip().lower())
    seconds = sum(float(part or 0) * unit for part, unit in zip(parts.groups(), (3600, 60, 1))) if parts else 0.0
    if seconds <= 0:
        raise ConfigError(f"A time is a number of seconds above 0, or such as 90s, 10m, 1h30m: not {text!r}.")
    return seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """What a search does in its time."""

    trials: int
    """Most settings to try."""
    budget_s: float
    trial_s: float
    """Seconds of training of a trial that is not stopped."""
    longest_s: float
    """Those that it may have if the defaults learn slowly."""
    concurrent: int
    overhead_s: float = TURN_S
    """Of a trial beside its training."""

    @property
    def rungs(self) -> list[float]:
        """Seconds of training after which a trial is judged; the last is its end."""
        return [self.trial_s / REDUCTION**2, self.trial_s / REDUCTION, self.trial_s]

    def first_rung(self, learned_s: float) -> int:
        """The first rung by which the defaults, which need so many seconds, have learned; the last if none is."""
        return next((i for i, rung in enumerate(self.rungs) if rung * LATE >= learned_s), len(self.rungs) - 1)

    def for_task(self, learned_s: float) -> Plan:
        """Give trials more seconds, if the budget allows, so that they can be judged before their end."""
        return replace(self, trial_s=max(self.trial_s, min(REDUCTION * learned_s, self.longest_s)))

    def explore_until_s(self, turn_s: float) -> float:
        """When the last trial must have ended, so that the best settings and the defaults can run on MIN_FRESH seeds, for so long each."""
        return self.budget_s - math.ceil(2 * MIN_FRESH / self.concurrent) * turn_s - REPORT_S


def make_plan(
    trials: int, budget_s: float, concurrent: int, trial_s: float | None = None, overhead_s: float = TURN_S
) -> Plan:
    """Divide the budget among trials, or keep to the given seconds of a trial.

    Raises:
        ConfigError: there is too little time; the message says how much is needed.
    """
    comparisons = math.ceil(_AGAIN / concurrent) + math.ceil(2 * MIN_FRESH / concurrent)
    few = 1 if trial_s else min(trials, FEW_TRIALS)
    few_turns = math.ceil(few / concurrent) + comparisons
    least = START_S + REPORT_S + few_turns * ((trial_s or MIN_TRIAL_S) + overhead_s)
    if budget_s < least:
        raise ConfigError(
            f"A budget of {duration(budget_s)} is too small for {few} trial{'s' if few > 1 else ''} of {duration(trial_s or MIN_TRIAL_S)} "
            f"and the runs that compare the best settings with the defaults: give {duration(math.ceil(least))} or more."
        )
    if trial_s is not None:
        return Plan(trials, budget_s, trial_s, trial_s, concurrent, overhead_s)
    left_s = budget_s - START_S - REPORT_S
    longest_s = left_s / few_turns - overhead_s
    turns = trials / concurrent
    seconds = (left_s - overhead_s * (turns + comparisons)) / (_COST * turns + comparisons)
    seconds = min(max(seconds, MIN_TRIAL_S), longest_s)
    return Plan(trials, budget_s, float(f"{seconds:.2g}"), longest_s, concurrent, overhead_s)
