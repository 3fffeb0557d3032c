"""Parameter server: holds the newest weights; the learner pushes, workers and evaluator pull."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np

from raypid.checkpoint import find_policy
from raypid.errors import ConfigError
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.policy import read_policy_weights, save_policy
from raypid.types import Array, Weights

Parameters: TypeAlias = tuple[int, dict[str, Array]]
"""(version, all flat parameters by network)."""
Learnt: TypeAlias = tuple[Weights, dict[str, Array]]
"""A learner's new weights, and how far its parameters have moved, by network."""


class ParameterServer:
    """One version of the weights of `network`: the newest that was pushed."""

    def __init__(self, network: NetworkSpec) -> None:
        self.network = network
        self._weights: Weights | None = None
        self.pushes = self.pulls = self.refused = 0
        """Calls so far; pushes count what was taken, `refused` what was older than the version here."""

    def push(self, weights: Weights) -> int:
        """Hold `weights`, unless those here are of a newer version; returns the version that is here now."""
        if self._weights is not None and weights.version < self._weights.version:
            self.refused += 1
            return self._weights.version
        self.pushes += 1
        return self.reset(weights)

    def reset(self, weights: Weights) -> int:
        """Hold `weights`, whatever their version: a run that begins, or goes on from a checkpoint."""
        self._weights = weights
        return weights.version

    def pull(self, newer_than: int | None = None) -> Weights | None:
        """The weights; None where there are none yet, or none of a version above `newer_than`."""
        self.pulls += 1
        w = self._weights
        return w if w is None or newer_than is None or w.version > newer_than else None

    def save(self, folder: str) -> None:
        """Write a policy folder (`raypid.load_policy` reads it).

        Raises:
            ValueError: there are no weights yet.
        """
        if self._weights is None:
            raise ValueError("The parameter server holds no weights yet: push some before save.")
        save_policy(Path(folder), self.network, self._weights)

    def restore(self, folder: str) -> int:
        """Hold the weights of a policy folder, checkpoint or run folder; returns their version.

        Raises:
            ConfigError: they belong to another network.
            CheckpointError: nothing there, or damaged.
        """
        _, weights, _ = read_policy_weights(find_policy(Path(folder)))
        if self._weights is not None and weights.table != self._weights.table:
            raise ConfigError(f"The weights in {folder} belong to another network than those of this parameter server.")
        return self.reset(weights)

    def metrics(self) -> dict[str, float]:
        """The version that is here (-1: none), and counts since the start."""
        version = -1 if self._weights is None else self._weights.version
        return {"version": version, "pushes": self.pushes, "pulls": self.pulls, "refused": self.refused}

    def ready(self) -> None:
        """A call that returns once the server stands."""


class SharedParameters:
    """What learners that do not wait for each other have in common: all flat parameters, target networks included.

    Each begins its portion of updates with the newest and sends back its change, which counts `share` (1 / N of N learners).
    """

    def __init__(self, share: float) -> None:
        self.share, self.version = share, 0
        self._flat: dict[str, Array] = {}

    def hold(self, newest: Parameters) -> None:
        """Begin with these."""
        self.version, parameters = newest
        self._flat = {name: np.array(flat) for name, flat in parameters.items()}

    def newest(self) -> Parameters:
        """With the changes of all learners so far."""
        return self.version, {name: flat.copy() for name, flat in self._flat.items()}

    def add(self, learnt: Learnt) -> Weights:
        """Add a learner's change; returns the weights to act with. What they have besides parameters is the learner's."""
        weights, change = learnt
        for name, delta in change.items():
            self._flat[name] += np.float32(self.share) * delta
        self.version += 1
        return Weights(self.version, self._flat["acting"].copy(), weights.table, weights.extra)
