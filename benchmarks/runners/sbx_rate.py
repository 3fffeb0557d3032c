"""Updates a second of SBX's SAC, one update for each step, for `beside_sbx.py`, in a Python that has SBX and need not have raypid.

Prints the updates a second of each window as the last line.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import gymnasium
from sbx import SAC
from stable_baselines3.common.callbacks import BaseCallback


class Clock(BaseCallback):
    """Notes the time at the end of each window."""

    def __init__(self, first: int, window: int) -> None:
        super().__init__()
        self.first, self.window, self.times = first, window, []

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.first and (self.num_timesteps - self.first) % self.window == 0:
            self.times.append(time.perf_counter())
        return True


def main() -> None:
    warnings.filterwarnings("ignore")
    order = json.loads(sys.argv[1])
    first = order["start"] + 2 * order["window"]  # compiled by then
    clock = Clock(first, order["window"])
    model = SAC(
        "MlpPolicy",
        gymnasium.make(order["env"]),
        learning_starts=order["start"],
        batch_size=256,
        policy_kwargs={"net_arch": [256, 256]},
        seed=0,
    )
    model.learn(first + order["windows"] * order["window"], callback=clock)
    print(json.dumps([order["window"] / (b - a) for a, b in zip(clock.times, clock.times[1:])]))


if __name__ == "__main__":
    main()
