"""Sequences of rows that follow each other in one stream, for recurrent networks.

Axes: T = burn_in + length rows; N sequences.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from raypid.ops.sum_tree import importance
from raypid.replay.buffer import NO_ROW, Buffer
from raypid.types import Array, Sequences, tree_map

_ROUNDS = 100
"""Draws of twice as many first rows as are needed, until enough of them have a whole sequence after them."""


def draw_sequences(
    buffer: Buffer, draw: Callable[[int], tuple[Array, Array]], num: int, length: int, burn_in: int, beta: float
) -> Sequences:
    """Draw `num` sequences. `draw` gives the ids and probabilities of so many first rows.

    Raises:
        ValueError: too few rows have `burn_in + length` rows after them.
    """
    rows = burn_in + length
    ids, probability = np.empty((rows + 1, 0), np.int64), np.empty(0)
    for _ in range(_ROUNDS if buffer.num_ready else 0):
        starts, drawn_with = draw(2 * num)
        chains = _chains(buffer, starts, rows)
        whole = chains[-1] >= 0
        ids = np.concatenate([ids, chains[:, whole]], 1)
        probability = np.concatenate([probability, drawn_with[whole]])
        if len(probability) >= num:
            return _sequences(buffer, ids[:, :num], burn_in, probability[:num], beta)
    raise ValueError(f"The replay buffer holds no {num} sequences of {rows} rows yet; it has {buffer.count:,} rows.")


def _chains(buffer: Buffer, starts: Array, rows: int) -> Array:
    """Ids [rows + 1, n] of the rows `starts` [n] and of those after them; NO_ROW where a stream goes no further."""
    chain = [starts]
    for _ in range(rows):
        follow = buffer.columns["follow"][buffer.slots(chain[-1])]
        chain.append(np.where(chain[-1] >= 0, follow, NO_ROW))
    return np.stack(chain)


def _sequences(buffer: Buffer, ids: Array, burn_in: int, probability: Array, beta: float) -> Sequences:
    """Gather the rows `ids` [T + 1, N]."""
    c, slots = buffer.columns, buffer.slots(ids)
    within = slots[:-1]
    return Sequences(
        obs=tree_map(lambda x: x.reshape(*ids.shape, *x.shape[1:]), buffer.observations(slots.ravel())),
        first=c["first"][slots],
        action=buffer.actions(within),
        reward=buffer.rewards(within),
        terminated=c["terminated"][within],
        truncated=c["truncated"][within],
        valid=c["valid"][within],
        burn_in=burn_in,
        id=ids[0],
        probability=probability,
        weight=importance(probability, buffer.num_ready, beta),
        memory=c["memory"][slots[0]] if "memory" in c else None,
    )
