"""A batch that several learners hold together: which of its rows are here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raypid.types import Array, Collective


@dataclass(slots=True)
class Share:
    """The part of a batch (or minibatch) that this learner holds: n rows of the `total` of all learners.

    The rows of all learners are numbered as one learner would have them, who was given all fragments in worker order.
    """

    number: Array
    """[n] int64, rising: the numbers of the rows that are here."""
    total: int
    advantage: Array
    """[total] of all learners: what minibatches normalise by."""

    @property
    def fraction(self) -> float:
        return len(self.number) / self.total

    def take(self, numbers: Array) -> tuple[Array, Share]:
        """Of the rows with these numbers: the places [n] of those that are here, in this order, and the share that they are."""
        places = np.searchsorted(self.number, numbers)
        there = np.append(self.number, -1)[places] == numbers
        return places[there], Share(np.flatnonzero(there), len(numbers), self.advantage[numbers])


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
    return Share(here, int(all_valid.sum()), np.concatenate([a for _, a in everywhere], 1)[all_valid])
