"""Exploration noise that lasts over steps, in half of a worker's episodes, for as long as it does no harm."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from raypid.roles.acting import Episode
from raypid.types import Array

WINDOW = 32
"""Episodes of each kind that are compared."""
FEWEST = 8
"""Episodes of each kind before they are compared; after as many more they are compared again."""
WORSE = 2.5
"""Standard errors by which episodes with lasting noise must earn less for the noise to become white."""


class LastingNoiseState(TypedDict):
    """The part of LastingNoise that a saved run keeps."""

    is_on: bool
    since: int
    lasting: list[float]
    white: list[float]


class LastingNoise:
    """Which of B streams explore with noise that lasts, and which with white noise.

    White noise cancels out where an environment answers slowly (MountainCarContinuous); noise that lasts (Eberhard et al. 2023)
    finds the goal there, but throws over what has to keep its balance (Hopper). So the episodes of each stream alternate between
    the two. Where those with lasting noise earn significantly less, all further ones have white noise.

    Args:
        steps: after which lasting noise has lost its past: it keeps r = 1 - 1 / steps of itself. 1: all noise is white.
    """

    def __init__(self, steps: float, num_streams: int) -> None:
        self._r, self.is_on = np.float32(1 - 1 / steps), steps > 1
        self.lasting: deque[float] = deque(maxlen=WINDOW)
        """Returns of the last episodes with lasting noise."""
        self.white: deque[float] = deque(maxlen=WINDOW)
        """Returns of the last episodes with white noise."""
        self._since = 0
        """Episodes since they were compared."""
        self._kept: Array = np.zeros(num_streams, np.float32)
        self.begin()

    def begin(self) -> None:
        """All streams begin new episodes."""
        self._kept[:] = 0
        self._kept[1::2] = self._r

    @property
    def kept(self) -> Array | None:
        """[B] the part of its noise that each stream keeps from step to step; None if no stream keeps any. It changes in place."""
        return self._kept if self.is_on else None

    def go_on(self, ended: Sequence[Episode]) -> bool:
        """Count episodes that ended: their streams' next ones have the other noise. Returns whether any noise goes on to last."""
        for episode in ended:
            stream = episode.stream
            (self.lasting if self._kept[stream] else self.white).append(episode.reward)
            self._kept[stream] = 0 if self._kept[stream] else self._r
        self._since += len(ended)
        if self._since >= 2 * FEWEST and min(len(self.lasting), len(self.white)) >= FEWEST:
            self._since, self.is_on = 0, not _is_less(self.lasting, self.white)
        return self.is_on

    def state_dict(self) -> LastingNoiseState:
        """Whether it is on, and what was earned."""
        return {"is_on": self.is_on, "since": self._since, "lasting": list(self.lasting), "white": list(self.white)}

    def load_state_dict(self, state: LastingNoiseState) -> None:
        """Go on from what `state_dict` returned, if noise may last at all."""
        self._since = int(state["since"])
        self.lasting = deque(map(float, state["lasting"]), WINDOW)
        self.white = deque(map(float, state["white"]), WINDOW)
        tried = bool(self.lasting)  # else it was off because all was to be white
        self.is_on = bool(self._r) and (bool(state["is_on"]) or not tried)


def _is_less(some: Sequence[float], others: Sequence[float]) -> bool:
    """Whether the mean of some numbers is below that of others by WORSE standard errors (Welch)."""
    error = math.sqrt(statistics.variance(some) / len(some) + statistics.variance(others) / len(others))
    return statistics.fmean(some) < statistics.fmean(others) - WORSE * error
