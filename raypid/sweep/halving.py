"""Which trials of a search go on: asynchronous successive halving (Li et al. 2020, arXiv:1810.05934), as a rule about seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

K = TypeVar("K")
REDUCTION = 3
"""Of so many trials that reach a rung, one goes on."""
NUM_RUNGS = 3
"""The last rung is the whole time of a trial: 1/9, 1/3 and all of it."""
LATE = 1.25
"""An evaluation counts at a rung if it came before this many times the rung's seconds: iterations do not end on the second."""


class Halving:
    """Stops a trial at a rung unless its score is among the best third of those that have come so far.

    Nobody waits for anybody: the first at a rung goes on. Rungs are seconds of training, not environment steps, because what counts
    is how soon a return is reached: settings that make steps slow pay for it here.
    """

    def __init__(self, seconds: float) -> None:
        self.rungs = [seconds / REDUCTION ** (NUM_RUNGS - 1 - i) for i in range(NUM_RUNGS)]
        """Seconds of training after which a trial is judged; the last is its end."""
        self.first: int | None = None
        """The first rung that is judged; None until it is known when the defaults have first learned (`begin_behind`)."""

    @property
    def last(self) -> int:
        """The rung at which a trial ends."""
        return len(self.rungs) - 1

    def begin_behind(self, seconds: float) -> None:
        """Judge nobody before the first iteration in which the defaults learn has ended, which took them so many seconds of training."""
        behind = (i for i, rung in enumerate(self.rungs) if rung * LATE >= seconds)
        self.first = next(behind, self.last)

    def goes_on(self, rung: int, score: float, scores: Sequence[float]) -> bool:
        """Judge a trial that has reached a rung before the last by the scores of all that have come there, its own among them."""
        if self.first is None or rung < self.first:
            return True
        better = sum(other > score for other in scores)
        return better < max(1, len(scores) // REDUCTION) and score > -math.inf


def ranked(scores: Mapping[K, Sequence[float]], rung: int) -> list[K]:
    """Order trials by their scores at the rungs, best first, with the same measure for all.

    All are ordered by their scores at `rung`, which all have. The best third of these come first, in the order of the next rung, if
    they came that far; and so on. One that went on though it was not among the best third, since it came early, is not put before others for it.
    """
    here = sorted(scores, key=lambda trial: scores[trial][rung], reverse=True)
    best = here[: max(1, len(here) // REDUCTION)]
    ahead = {trial: scores[trial] for trial in best if len(scores[trial]) > rung + 1}
    return [*(ranked(ahead, rung + 1) if ahead else ()), *(trial for trial in here if trial not in ahead)]
