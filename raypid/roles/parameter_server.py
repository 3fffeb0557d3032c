"""Parameter server: holds the newest weights; the learner pushes, workers and evaluator pull."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TypeAlias

import numpy as np

from raypid.errors import UserError
from raypid.nn.policy import read_policy_weights, save_policy
from raypid.roles.role import Role
from raypid.roles.setup import WorkerSetup
from raypid.storage.checkpoint import find_policy
from raypid.storage.neighbours import refuse_file_name
from raypid.types import Array, Weights

Parameters: TypeAlias = tuple[int, dict[str, Array]]
"""(version, all flat parameters by network)."""
Learnt: TypeAlias = tuple[Weights, dict[str, Array]]
"""A learner's new weights, and how far its parameters have moved, by network."""


class ParameterServer(Role):
    """Holds the newest weights: the learner pushes, rollouts and evaluator pull; `save` and `restore` keep them on disk.

    Args:
        setup: what `raypid.setup(...)` returned.

    Raises:
        UserError: `setup` is no Setup.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        super().__init__(setup)
        self.network = setup.network
        self._weights: Weights | None = None
        self.pushes = self.pulls = self.refused = 0
        """Calls so far; pushes count what was taken, `refused` what was older than the version here."""

    def push(self, weights: Weights, since: Weights | None = None) -> int:
        """Hold `weights`, unless those here are of a newer version; returns the version that is here now.

        The first push that is refused warns. `metrics()` counts all of them.

        Args:
            weights: what a learner's `update` or `learn` returned.
            since: the weights that it began with, if several learners push. What it has changed is then added to the newest
                weights, whose version rises as its own has: nothing is refused, and no learner undoes the work of another.

        Raises:
            ConfigError: they belong to another network.
            UserError: they are no Weights.
        """
        self.check("ParameterServer.push", weights=weights, since=since)
        if since is not None and (newest := self._weights) is not None:
            version = newest.version + weights.version - since.version
            weights = Weights(version, newest.flat + (weights.flat - since.flat), weights.table, weights.extra)
        if self._weights is None or weights.version >= (version := self._weights.version):
            self.pushes += 1
            self._weights = weights
            return weights.version
        self.refused += 1
        if self.refused == 1:
            warnings.warn(
                f"ParameterServer.push: refused weights of version {weights.version:,}, since version {version:,} is here; "
                "rollouts go on with that one. Let the learner go on from it, with learner.set_weights(server.pull()), or replace it, "
                "with server.reset(learner.weights()). Further refusals are only counted, in metrics()['refused'].",
                stacklevel=2,
            )
        return version

    def reset(self, weights: Weights) -> int:
        """Hold `weights`, whatever their version; returns it. For a run that begins, or goes on from a checkpoint.

        Raises:
            ConfigError: they belong to another network.
            UserError: they are no Weights.
        """
        self.check("ParameterServer.reset", weights=weights)
        self._weights = weights
        return weights.version

    def pull(self, newer_than: int | None = None) -> Weights | None:
        """The newest weights; None if there are none yet.

        Args:
            newer_than: a version (`weights.version`). If the newest weights are not above it, None is returned, and nothing is sent twice.

        Raises:
            UserError: `newer_than` is no whole number.
        """
        self.check("ParameterServer.pull", newer_than=newer_than)
        self.pulls += 1
        w = self._weights
        return w if w is None or newer_than is None or w.version > newer_than else None

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a policy folder, which `raypid.load_policy`, `restore` and the setting `init_from` read.

        Raises:
            UserError: there are no weights yet, or `folder` is no path.
            RuntimeError: it cannot be written.
        """
        self.check("ParameterServer.save", folder=folder)
        refuse_file_name(folder, "ParameterServer.save")
        if self._weights is None:
            raise UserError("ParameterServer.save: it holds no weights yet. Push some first: push(learner.weights()).")
        save_policy(Path(folder), self.network, self._weights)

    def restore(self, folder: str | os.PathLike[str]) -> int:
        """Hold the weights of a policy folder, checkpoint or run folder; returns their version.

        A learner goes on from them after `learner.set_weights(server.pull())`. Otherwise its pushes are older, and are refused.

        Raises:
            ConfigError: they belong to another network.
            CheckpointError: there is nothing, or it is damaged.
            UserError: `folder` is no path.
        """
        self.check("ParameterServer.restore", folder=folder)
        _, weights, _, _ = read_policy_weights(find_policy(Path(folder)))
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
