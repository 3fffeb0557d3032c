"""Worker that learns where it acts: it sends the gradient over its own fragment in place of the fragment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from raypid.checkpoint import refusing
from raypid.nn.network_policy import Exploration
from raypid.roles.acting import RolloutSpec
from raypid.roles.rollout import FragmentWorker, WorkerState
from raypid.types import Gradients, Report, Trajectory, Weights


@runtime_checkable
class GradientSource(Protocol):
    """What turns a fragment into a gradient: an algorithm, or the policy of a user's model."""

    def gradients(self, trajectory: Trajectory, weights: Weights) -> Gradients:
        """Compute the gradient over the fragment, in the order of the weights that acted."""

    def local_state(self) -> dict[str, object]:
        """Return what it keeps from fragment to fragment, apart from the weights."""

    def load_local_state(self, state: dict[str, object]) -> None: ...


class GradientRollout(FragmentWorker):
    """A rollout worker that computes gradients.

    Args:
        source: builds what computes them; None: the policy itself does, which is then a user's model.
    """

    def __init__(
        self, spec: RolloutSpec, source: Callable[[], GradientSource] | None, worker_index: int = 0, restarts: int = 0
    ) -> None:
        super().__init__(spec, worker_index, restarts)
        differentiates = self.policy if source is None else source()
        assert isinstance(differentiates, GradientSource)
        self.source = differentiates

    def collect(self, weights: Weights, exploration: Exploration | None = None) -> tuple[Report, Gradients]:
        """Act for `fragment_length` rows, then differentiate; timing's total counts both.

        A short fragment may have no valid row, where environments take one to reset. It gives no gradient, so more rows are
        collected.
        """
        report, trajectory = self.collect_fragment(weights, exploration)
        while not trajectory.num_valid:
            more, trajectory = self.collect_fragment(weights, exploration)
            report.join(more)
        before = time.perf_counter()
        with np.errstate(all="ignore"):
            gradients = self.source.gradients(trajectory, weights)
        report.timing["total"] += time.perf_counter() - before
        return report, gradients

    def state_dict(self) -> WorkerState:
        return {**super().state_dict(), "source": self.source.local_state()}

    def load_state_dict(self, state: WorkerState) -> None:
        super().load_state_dict(state)
        with refusing(f"The state of worker {self.worker_index} in the checkpoint"):
            self.source.load_local_state(state["source"])
