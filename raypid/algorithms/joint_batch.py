"""Bookkeeping for a batch that several learners hold together: which of its rows, or whole streams, this learner
has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raypid.types import Array, Collective


@dataclass(slots=True)
class Share:
    """The part of a batch (or minibatch) that this learner holds: n of the units (rows, or streams of rows) of all learners.

    Units have global numbers: those that one learner would give them if it held the fragments of all workers, in worker order.
    """

    number: Array
    """[n] int64, rising: global numbers of the units held here."""
    rows: Array
    """[total] rows in each unit of all learners."""
    advantage: Array | None = None
    """[total] advantages of all learners, where units are rows: minibatches are normalised by them."""

    @property
    def fraction(self) -> float:
        """The fraction of all learners' rows that is held here."""
        return float(self.rows[self.number].sum() / max(1, self.rows.sum()))

    def take(self, numbers: Array) -> tuple[Array, Share]:
        """Select units by global number; returns local indices [n] and the resulting Share."""
        places = np.searchsorted(self.number, numbers)
        there = np.append(self.number, -1)[places] == numbers
        advantage = None if self.advantage is None else self.advantage[numbers]
        return places[there], Share(np.flatnonzero(there), self.rows[numbers], advantage)


def share_of_rows(advantage: Array, valid: Array, collective: Collective) -> Share:
    """This learner's share of the rows of a joint batch, from its advantages [T, B] and valid rows [T, B].

    In the joint batch the learners' fragments lie side by side along the streams, and rows are flattened step by step: so
    the rows of the learners alternate.
    """
    everywhere = collective.gather((valid, advantage))
    all_valid = np.concatenate([v for v, _ in everywhere], 1)
    number = np.cumsum(all_valid).reshape(all_valid.shape) - 1
    start = sum(v.shape[1] for v, _ in everywhere[: collective.rank])
    here = number[:, start : start + valid.shape[1]][valid]
    advantages = np.concatenate([a for _, a in everywhere], 1)[all_valid]
    return Share(here, np.ones(len(advantages), np.int64), advantages)


def share_of_streams(valid: Array, collective: Collective) -> Share:
    """This learner's share of the streams of a joint batch, from its valid rows [T, B]."""
    rows = collective.gather(valid.sum(0))
    start = sum(len(r) for r in rows[: collective.rank])
    return Share(np.arange(start, start + valid.shape[1]), np.concatenate(rows))
