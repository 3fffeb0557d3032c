"""How a run went on, second by second: what `chaos.py` measures recovery by.

A run writes a line for each iteration (`Trace`, or `write_point` in a runner of another library). `Progress` reads them.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raypid import Callbacks

PLACE = "RAYPID_CHAOS_TRACE"
"""The environment variable that names the file."""
ENOUGH = 0.9
"""The share of the undisturbed rate that counts as recovered."""
SUSTAINED_S = 5.0
STEP_S = 0.1


def write_point(steps: float, updates: float) -> None:
    """Append a line: the machine's monotonic clock, and the counts since the start of the run."""
    with Path(os.environ[PLACE]).open("a") as file:
        file.write(f"{time.monotonic():.4f} {steps:.0f} {updates:.0f}\n")


class Trace(Callbacks):
    """`--callbacks chaos_trace:Trace`: a point for each iteration."""

    def on_iteration(self, result: dict[str, float]) -> None:
        write_point(result["timesteps_total"], result["learner_updates_total"])


@dataclass(slots=True)
class Progress:
    """Counts over time: environment steps and learner updates [n] at `times` [n], seconds of the monotonic clock.

    In between, an iteration's steps and updates are taken to be spread evenly over its time.
    """

    times: Any
    counts: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Progress:
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        points = np.array([[float(x) for x in line.split()] for line in lines]).reshape(-1, 3)
        return cls(points[:, 0], {"steps": points[:, 1], "updates": points[:, 2]})

    def __len__(self) -> int:
        return len(self.times)

    def total(self, what: str) -> float:
        return float(self.counts[what][-1]) if len(self) else 0.0

    def width(self) -> float:
        """Seconds of a window: 1, or two iterations where these take longer."""
        return max(1.0, 2 * float(np.median(np.diff(self.times)))) if len(self) > 1 else 1.0

    def rate(self, what: str, start: float, end: float) -> float:
        """Mean rate per second from `start` to `end`; nothing happens after the last point."""
        before, after = np.interp([start, end], self.times, self.counts[what])
        return float((after - before) / (end - start))

    def usual(self, what: str, start: float, end: float, width: float) -> float:
        """Median rate of the windows between `start` and `end`."""
        begins = np.arange(start, max(end - width, start + STEP_S), STEP_S)
        return float(np.median([self.rate(what, t, t + width) for t in begins]))


def recovery(progress: Progress, at: float, until: float, usual: dict[str, float], width: float) -> float | None:
    """Seconds from a loss at `at` until the rates of steps and of updates are back; None: not before `until`, the next loss.

    They are back from the first moment on at which both the window that begins there and the 5 s that begin there (or what
    is left before `until`) have 90% of the usual rate, in steps and in updates. The 5 s see what comes late: a loss that is
    noticed only after some seconds.
    """
    for begin in np.arange(at, until - width, STEP_S):
        ends = (begin + width, min(begin + SUSTAINED_S, until))
        if all(progress.rate(what, begin, end) >= ENOUGH * rate for what, rate in usual.items() for end in ends):
            return float(begin - at)
    return None


def settling(progress: Progress, at: float, until: float, width: float) -> float | None:
    """As `recovery`, but until the rates are those of the last third of the time to the next loss: what the loss itself did, where
    rates drift besides, as with what the policy does in the environment."""
    own = {what: progress.rate(what, until - (until - at) / 3, until) for what in progress.counts}
    return recovery(progress, at, until, own, width)
