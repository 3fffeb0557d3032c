"""A batch that several learners hold together: which of its rows, or whole streams, are here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raypid.types import Array, Collective


@dataclass(slots=True)
class Share:
    """The part of a batch (or minibatch) that this learner holds: n of the units (rows, or streams of rows) of all learners.

    The units of all learners are numbered as one learner would have them, who was given all fragments in worker order.
    """

    number: Array
    """[n] int64, rising: the numbers of the units that are here."""
    rows: Array
    """[total] rows of each unit of all learners."""
    advantage: Array | None = None
    """[total] of all learners, where units are rows: what minibatches normalise by."""

    @property
    def total(self) -> int:
        """Units of all learners."""
        return len(self.rows)

    @property
    def fraction(self) -> float:
        """Of the rows of all learners those that are here."""
        return float(self.rows[self.number].sum() / max(1, self.rows.sum()))

    def take(self, numbers: Array) -> tuple[Array, Share]:
        """Of the units with these numbers: the places [n] of those that are here, in this order, and the share that they are."""
        places = np.searchsorted(self.number, numbers)
        there = np.append(self.number, -1)[places] == numbers
        advantage = None if self.advantage is None else self.advantage[numbers]
        return places[there], Share(np.flatnonzero(there), self.rows[numbers], advantage)


def share_of(advantage: Array, valid: Array, collective: Collective) -> Share:
    """This learner's share, from its advantages [T, B] and valid rows [T, B].

    Joined fragments lie side by side along the streams, and rows are flattened step by step: in the joined batch the rows
    of the learners alternate.
    """
    everywhere = collective.gather((valid, advantage))
    all_valid = np.concatenate([v for v, _ in everywhere], 1)
    number = np.cumsum(all_valid).reshape(all_valid.shape) - 1
    start = sum(v.shape[1] for v, _ in everywhere[: collective.rank])
    here = number[:, start : start + valid.shape[1]][valid]
    advantages = np.concatenate([a for _, a in everywhere], 1)[all_valid]
    return Share(here, np.ones(len(advantages), np.int64), advantages)
