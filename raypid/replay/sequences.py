"""Sequences from a replay buffer, for recurrent networks.

Axes: T = burn_in + length rows; N sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raypid.ops.sum_tree import importance
from raypid.types import Array, Sequences, tree_map

if TYPE_CHECKING:
    from raypid.replay.buffer import Replay


def draw_sequences(replay: Replay, num: int, length: int, burn_in: int, beta: float) -> Sequences:
    """What `Replay.sample_sequences` hands out."""
    rows, c = burn_in + length, replay.columns
    ids = _chains(replay, num, rows)
    slots = replay.slots(ids)
    first, within = slots[0], slots[:-1]
    if replay.tree is None:
        probability = np.full(num, 1 / (replay.count - replay.oldest))
    else:
        probability = replay.tree.get(first) / replay.tree.total
    flat = replay.observations(slots.ravel())
    return Sequences(
        obs=tree_map(lambda x: x.reshape(rows + 1, num, *x.shape[1:]), flat),
        first=c["first"][slots],
        action=replay.actions(within),
        reward=replay.rewards(within),
        terminated=c["terminated"][within],
        truncated=c["truncated"][within],
        valid=c["valid"][within],
        burn_in=burn_in,
        id=ids[0],
        probability=probability,
        weight=importance(probability, replay.num_ready, beta),
        memory=c["memory"][first] if "memory" in c else None,
    )


def _chains(replay: Replay, num: int, rows: int) -> Array:
    """Ids [rows + 1, num] of rows that follow each other, from first rows that are drawn until enough have so many after them."""
    found = np.empty((rows + 1, 0), np.int64)
    for _ in range(100 if replay.tree is None or replay.num_ready else 0):
        if replay.tree is None:
            starts = replay.rng.integers(replay.oldest, replay.count, 2 * num)
        else:
            starts = replay.prioritised(2 * num, replay.tree)[0]
        chain = [starts]
        for _ in range(rows):
            follow = replay.columns["follow"][replay.slots(chain[-1])]
            chain.append(np.where(chain[-1] >= 0, follow, -1))
        ids = np.stack(chain)
        found = np.concatenate([found, ids[:, ids[-1] >= 0]], 1)
        if found.shape[1] >= num:
            return found[:, :num]
    raise ValueError(f"The replay buffer holds no {num} sequences of {rows} rows yet; it has {replay.count:,} rows.")
