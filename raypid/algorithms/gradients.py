"""What algorithms share whose workers send gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from raypid.algorithms.base import AsynchronousConfig
from raypid.config import unless
from raypid.types import Array, Gradients, means


@dataclass(kw_only=True)
class GradientsConfig(AsynchronousConfig):
    """Settings of what the learner makes of gradients. A Config inherits from it beside the Config that it extends."""

    gradients_per_update: int = 1
    """Gradients that one step of the optimizer takes; 1 applies each as it arrives."""
    gradient_reduce: Literal["mean", "sum"] = "mean"
    """How several gradients become one."""

    ranges: ClassVar[Mapping[str, tuple[str, ...]]] = {"be at least 1": ("gradients_per_update",)}

    def own_idle(self) -> dict[str, str]:
        """Return the settings of this class that have no effect beside the others (`Config.idle`)."""
        return unless(self.gradients_per_update > 1, "unless gradients_per_update is above 1", "gradient_reduce")


def reduced(gradients: Sequence[Gradients], how: str) -> tuple[Array, dict[str, float]]:
    """Several gradients as one [P], by "mean" or "sum"; and the means of their metrics."""
    total = np.add.reduce([g.flat for g in gradients])
    if how == "mean":
        total = total / len(gradients)
    return total, means([g.metrics for g in gradients])
