"""An environment whose step computes, as a simulator does: `env="working_env:Work"`."""

from __future__ import annotations

from typing import Any

import numpy as np

from raypid.envs.toy import Wait


class Work(Wait):
    """Each step sums `num_sums` numbers in Python, about 2 ms of a core, in place of sleeping. It is not timed: a core that is shared
    takes longer."""

    def __init__(self, num_sums: int = 60_000) -> None:
        super().__init__(wait_s=0.0)
        self._num_sums = num_sums

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        sum(i * i for i in range(self._num_sums))
        return super().step(action)
