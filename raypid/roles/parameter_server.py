"""Parameter server: it holds the newest weights. The learner pushes them; workers and evaluator pull them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raypid.checkpoint import find_policy
from raypid.config import ConfigError
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.policy import read_policy_weights, save_policy
from raypid.types import Array, Weights


class ParameterServer:
    """Holds the newest weights of `network` that were pushed."""

    def __init__(self, network: NetworkSpec) -> None:
        self.network = network
        self._weights: Weights | None = None
        self.pushes = self.pulls = self.refused = 0
        """Calls so far. `pushes` counts accepted weights, `refused` those that were older than the version held."""

    def push(self, weights: Weights) -> int:
        """Hold `weights`, unless a newer version is held; returns the version held now."""
        if self._weights is not None and weights.version < self._weights.version:
            self.refused += 1
            return self._weights.version
        self.pushes += 1
        return self.reset(weights)

    def reset(self, weights: Weights) -> int:
        """Hold `weights`, whatever their version, when a run starts or is restored; returns their version."""
        self._weights = weights
        return weights.version

    def pull(self, newer_than: int | None = None) -> Weights | None:
        """The weights, or None if there are none yet or none newer than version `newer_than`."""
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
            CheckpointError: there is nothing, or it is damaged.
        """
        _, weights, _ = read_policy_weights(find_policy(Path(folder)))
        if self._weights is not None and weights.table != self._weights.table:
            raise ConfigError(f"The weights in {folder} belong to another network than those of this parameter server.")
        return self.reset(weights)

    def metrics(self) -> dict[str, float]:
        """The version held (-1 for none), and counts since the start."""
        version = -1 if self._weights is None else self._weights.version
        return {"version": version, "pushes": self.pushes, "pulls": self.pulls, "refused": self.refused}

    def ready(self) -> None:
        """Return once the server is running."""

    def close(self) -> None:
        pass


@dataclass(slots=True)
class Change:
    """How far one learner moved the parameters that it started from."""

    parameters: dict[str, Array]
    """The difference, by network."""
    weights: Weights
    """The learner's own weights at the end; their table and their extra arrays are used."""


class SharedParameters:
    """The parameters of learners that do not wait for each other: flat, by network, target networks included.

    A learner starts each portion of updates from the newest parameters and sends back its change. That change is scaled by
    `share`, which is 1 / N for N learners.
    """

    def __init__(self, share: float) -> None:
        self.share, self.version = share, 0
        self._flat: dict[str, Array] = {}

    def hold(self, version: int, parameters: dict[str, Array]) -> None:
        """Replace the parameters."""
        self.version = version
        self._flat = {name: np.array(flat) for name, flat in parameters.items()}

    def newest(self) -> tuple[int, dict[str, Array]]:
        """(version, parameters by network)."""
        return self.version, {name: flat.copy() for name, flat in self._flat.items()}

    def add(self, change: Change) -> Weights:
        """Apply a learner's change; returns the new weights to act with."""
        weights = change.weights
        for name, delta in change.parameters.items():
            self._flat[name] += np.float32(self.share) * delta
        self.version += 1
        return Weights(self.version, self._flat["acting"].copy(), weights.table, weights.extra)

    def ready(self) -> None:
        """Return once all earlier calls are done."""
