"""Prioritised experience replay (Schaul et al. 2016): rows are drawn in proportion to priority ** alpha."""

from __future__ import annotations

import numpy as np

from raypid.ops.sum_tree import SumTree
from raypid.replay.base import Replay
from raypid.replay.disk import SavedRows
from raypid.types import Array


class PrioritizedReplay(Replay):
    """Replay that draws rows in proportion to priority ** alpha (`ReplaySpec.priority_exponent`), with a sum tree.

    New rows get the largest priority so far.
    """

    def reset(self, first_id: int, count: int) -> None:
        super().reset(first_id, count)
        self.tree = SumTree(self.spec.capacity)

    def _mark(self, slots: Array, *, ready: bool) -> None:
        super()._mark(slots, ready=ready)
        priority = self.max_priority**self.spec.priority_exponent if ready else 0.0
        self.tree.set(slots, np.full(len(slots), priority))

    def draw(self, num: int) -> tuple[Array, Array]:
        slots = self.tree.sample(num, self.rng)
        newest = self.count - 1
        return newest - (newest - slots) % self.spec.capacity, self.tree.get(slots) / self.tree.total

    def set_priorities(self, ids: Array, priorities: Array) -> None:
        """Give the rows `ids` [n] new priorities [n] > 0. Rows that have been overwritten are skipped and counted."""
        slots = self.slots(ids)
        here = (ids >= self.oldest) & self.columns["ready"][slots]
        self.num_skipped += int(np.count_nonzero(~here))
        slots, priorities = slots[here], priorities[here]
        if len(slots):
            self.max_priority = max(self.max_priority, float(priorities.max()))
            self.tree.set(slots, priorities.astype(np.float64) ** self.spec.priority_exponent)

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "replay_skipped_priorities": float(self.num_skipped)}

    def row_state(self, slots: Array) -> dict[str, Array]:
        return {"priority": self.tree.get(slots)}

    def restore(self, saved: SavedRows) -> None:
        slots = self.slots(saved.ids)
        priority = saved.columns.get("priority")
        if priority is None:  # it was saved by a kind without priorities
            priority = np.full(len(slots), self.max_priority**self.spec.priority_exponent)
        if len(slots) and not (priority.shape == slots.shape and (priority >= 0).all() and np.isfinite(priority).all()):
            raise ValueError("priorities are numbers of at least 0, one for each row")
        if len(slots):
            self.tree.set(slots, np.where(self.columns["ready"][slots], priority, 0.0))
