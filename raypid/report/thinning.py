"""Fewer results as a run grows old: those of several iterations become one, so that its files do not grow without bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from raypid.report.panel import LEARNER
from raypid.storage.run_folder import number

Value: TypeAlias = "int | float | str | None"
"""A value of result.json; null stands for NaN and infinities."""

WHOLE = 10_000
"""Results that are all kept. Later ones are at least 1/WHOLE of the run's time apart, so that a run of t seconds that had WHOLE results
after t0 has at most WHOLE * (1 + ln(t / t0)): 90,000 after a week in which there were 50 iterations a second."""
_SUMMED = ("time_this_iter_s", "timing/")
_AVERAGED = (LEARNER, "custom/", "episode_reward_this_iter")
RATE, TIME = "env_steps_per_s", "time_this_iter_s"


class Thinning:
    """Decides which results are written, and joins those that are not to the next one that is.

    Seconds of an iteration are added up, so sums over a run stay right. Metrics of the learner and of episodes are averaged, and so
    is the rate, by time. Of all else the newest value holds: totals, means over the last episodes, what was lost, the newest evaluation.

    Args:
        num_rows: results that the run has already.
        time_s: time_total_s of the newest of them.
    """

    def __init__(self, num_rows: int = 0, time_s: float = 0.0) -> None:
        self.num_rows, self._time_s = num_rows, time_s
        self.owed: dict[str, Value] = {}
        """The rows that were put off and not yet written, as one row; empty if there are none."""
        self._counts = Counter[str]()

    def joined(self, row: Mapping[str, Value]) -> dict[str, Value]:
        """The row together with those that were put off."""
        found = {**self.owed, **row}
        for key, value in row.items():
            before = self.owed.get(key)
            if not (isinstance(value, (int, float)) and isinstance(before, (int, float))):
                if key in self.owed and key.startswith(LEARNER):
                    found[key] = None  # it was not finite, which must not be lost
                elif value is None and key.startswith(_AVERAGED):
                    found[key] = before  # no episode has ended
            elif key.startswith(_SUMMED):
                found[key] = before + value
            elif key == RATE or key.startswith(_AVERAGED):
                old, new = (number(r, TIME) for r in (self.owed, row)) if key == RATE else (self._counts.get(key, 1), 1)
                found[key] = (before * old + value * new) / (old + new) if old + new > 0 else value
        return found

    def is_due(self, row: Mapping[str, Value]) -> bool:
        """Whether it is time to write a row."""
        now = row.get("time_total_s")
        if self.num_rows < WHOLE or not isinstance(now, (int, float)):
            return True
        return not 0 <= now - self._time_s < now / WHOLE

    def put_off(self, row: Mapping[str, Value]) -> None:
        """Keep a row for the next one."""
        self.owed = self.joined(row)
        self._counts.update(key for key in row if key.startswith(_AVERAGED))

    def written(self, row: Mapping[str, Value]) -> None:
        """Start over: a row has been written, with all rows that were put off."""
        self._time_s = number(row, "time_total_s")
        self.num_rows += 1
        self.owed, self._counts = {}, Counter()
