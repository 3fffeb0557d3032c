"""Which trials of a search go on: asynchronous successive halving (Li et al. 2020, arXiv:1810.05934), as a rule about seconds."""

from __future__ import annotations

from bisect import insort

REDUCTION = 3
"""Of so many trials that reach a rung, one goes on."""
NUM_RUNGS = 3
"""The last rung is the whole time of a trial: 1/9, 1/3 and all of it."""


class Halving:
    """Stops a trial at a rung unless its score is among the best third of those that have come so far.

    Nobody waits for anybody: the first at a rung goes on. Rungs are seconds of training, not environment steps, because what counts
    is how soon a return is reached: settings that make steps slow pay for it here.
    """

    def __init__(self, seconds: float) -> None:
        self.rungs = [seconds / REDUCTION ** (NUM_RUNGS - 1 - i) for i in range(NUM_RUNGS)]
        """Seconds of training after which a trial is judged; the last is its end."""
        self._scores: list[list[float]] = [[] for _ in self.rungs]

    def goes_on(self, rung: int, score: float) -> bool:
        """Judge a trial that has reached rung 0, 1, ...; its score is remembered for those that come later."""
        scores = self._scores[rung]
        insort(scores, score)
        if rung == len(self.rungs) - 1:
            return False
        better = sum(other > score for other in scores)
        return better < max(1, len(scores) // REDUCTION) and score > float("-inf")
