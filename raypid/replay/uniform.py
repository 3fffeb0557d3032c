"""Replay that draws every row with the same probability."""

from __future__ import annotations

import numpy as np

from raypid.replay.base import Replay
from raypid.types import Array


class UniformReplay(Replay):
    """Replay that draws all rows that are ready with equal probability. The shortest example of a kind of replay."""

    def draw(self, num: int) -> tuple[Array, Array]:
        ready = self.columns["ready"]
        ids = self.rng.integers(self.oldest, self.count, num)
        while (refused := ~ready[self.slots(ids)]).any():
            ids[refused] = self.rng.integers(self.oldest, self.count, np.count_nonzero(refused))
        return ids, np.full(num, 1 / self.num_ready)

    def draw_starts(self, num: int) -> tuple[Array, Array]:
        """Draw uniformly among all rows: a sequence may begin with one that cannot be learnt from."""
        return self.rng.integers(self.oldest, self.count, num), np.full(num, 1 / (self.count - self.oldest))
