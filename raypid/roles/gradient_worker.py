"""Worker that learns where it acts: it sends the gradient over its own fragment in place of the fragment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from raypid.algorithms.base import Algorithm
from raypid.errors import UserError
from raypid.nn.network_policy import Exploration, NetworkPolicy
from raypid.roles.acting import RolloutSpec
from raypid.roles.worker import FragmentWorker, WorkerState
from raypid.settings.config import Config
from raypid.storage.checkpoint import refusing
from raypid.types import Gradients, Report, Trajectory, Weights

MAX_FRAGMENTS = 100
"""Fragments in a row without a gradient after which an agent is given up."""
MAX_GRADIENTS = 100_000
"""Gradients of one fragment after which an agent is given up."""


@runtime_checkable
class GradientSource(Protocol):
    """Turns fragments into gradients: an algorithm (A3C), or a user's agent with its model (`raypid.nn.user_agent`)."""

    def begin(self, weights: Weights) -> None:
        """The worker acts with these weights from here on."""

    def fetch(self, weights: Weights, trajectory: Trajectory | None) -> Gradients | None:
        """Compute the next gradient over the fragments so far, at these weights; None asks for another fragment.

        Args:
            trajectory: a new fragment, which has a valid row; None if there is none since the last call.
        """

    def restart(self) -> None:
        """Forget all fragments."""

    def local_state(self) -> dict[str, object]:
        """Return what it keeps from fragment to fragment, apart from the weights."""

    def load_local_state(self, state: dict[str, object]) -> None: ...


def differentiating(
    algorithm: type[Algorithm[Config]], config: Config, spec: RolloutSpec, policy: NetworkPolicy
) -> GradientSource:
    """An algorithm that computes gradients in a worker, beside the policy that acts there."""
    source = algorithm(config, spec.network, spec.seed)
    assert isinstance(source, GradientSource)
    return source


class GradientWorker(FragmentWorker):
    """A worker that computes gradients.

    Args:
        source: builds what computes them, for the policy that acts.
    """

    def __init__(
        self,
        spec: RolloutSpec,
        source: Callable[[NetworkPolicy], GradientSource],
        worker_index: int = 0,
        restarts: int = 0,
    ) -> None:
        super().__init__(spec, worker_index, restarts)
        self.source = source(self.policy)
        self._left = 0
        """Number of gradients that the source may still have over its last fragment; 0 if it has no fragment."""

    def collect(self, weights: Weights, exploration: Exploration | None = None) -> tuple[Report, Gradients]:
        """Compute the next gradient. If the source has no more over the last fragment, act for `fragment_length` rows first, with the
        same weights; timing's total counts both.

        Raises:
            UserError: fragment after fragment was sent, and no gradient came; or gradient after gradient came, and never None.
        """
        report, new = self.empty_report(weights.version), None
        for _ in range(MAX_FRAGMENTS):
            if self._left:
                self._left -= 1
                before = time.perf_counter()
                with np.errstate(all="ignore"):
                    gradients = self.source.fetch(weights, new)
                report.timing["total"] += time.perf_counter() - before
                if gradients is not None:
                    if not self._left:
                        break
                    return report, gradients
            self.source.begin(weights)
            more, trajectory = self.collect_fragment(weights, exploration)
            report.join(more)
            # a short fragment may have no valid row, where environments take a row to reset
            new = trajectory if trajectory.num_valid else None
            if new is not None:
                self._left = MAX_GRADIENTS
        raise UserError(
            f"fetch_grads() of the agent returned nothing but None for {MAX_FRAGMENTS} fragments, or {MAX_GRADIENTS:,} gradients and never None. "
            "It returns one gradient a call, and None when it needs another fragment."
        )

    def boundary(self, save_count: int) -> None:
        super().boundary(save_count)
        self.source.restart()
        self._left = 0

    def state_dict(self) -> WorkerState:
        return {**super().state_dict(), "source": self.source.local_state()}

    def load_state_dict(self, state: WorkerState) -> None:
        super().load_state_dict(state)
        with refusing(f"The state of worker {self.worker_index} in the checkpoint"):
            self.source.load_local_state(state["source"])
