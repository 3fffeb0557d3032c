"""Worker that learns where it acts: it sends the gradient over its own fragment in place of the fragment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from raypid.roles.rollout import Rollout, RolloutSpec
from raypid.types import Gradients, Report, Trajectory, Weights


@runtime_checkable
class GradientSource(Protocol):
    """What turns a fragment into a gradient: an algorithm, or a policy over a model in any framework."""

    def gradients(self, trajectory: Trajectory, weights: Weights) -> Gradients:
        """The gradient over the fragment, in the order of the weights that acted."""

    def local_state(self) -> dict[str, Any]:
        """What it keeps from fragment to fragment, apart from the weights."""

    def load_local_state(self, state: dict[str, Any]) -> None: ...


class GradientRollout(Rollout):
    """A rollout worker with the learner's loss. `source` builds what computes the gradients; None: the policy itself does."""

    def __init__(
        self, spec: RolloutSpec, source: Callable[[], GradientSource] | None, worker_index: int = 0, restarts: int = 0
    ) -> None:
        super().__init__(spec, worker_index, restarts)
        self.source: Any = self.policy if source is None else source()

    def collect(self, weights: Weights, exploration: Mapping[str, Any] | None = None) -> tuple[Report, Any]:
        """Act for `fragment_length` rows, then differentiate; the report counts both in timing's total. Rows of which none is a step
        (short fragments of environments that take one to reset) give no gradient: more are collected."""
        report, trajectory = super().collect(weights, exploration)
        while not trajectory.num_valid:
            more, trajectory = super().collect(weights, exploration)
            report.join(more)
        before = time.perf_counter()
        gradients = self.source.gradients(trajectory, weights)
        report.timing["total"] += time.perf_counter() - before
        return report, gradients

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "source": self.source.local_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.source.load_local_state(state["source"])
