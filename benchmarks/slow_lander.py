"""LunarLanderContinuous-v3 whose step waits, as a robot or a game server does: `env="slow_lander:SlowLander"`."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

ORDINARY = "LunarLanderContinuous-v3"


class SlowLander(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each step sleeps `wait_s` seconds."""

    def __init__(self, wait_s: float = 0.02) -> None:
        super().__init__(gymnasium.make(ORDINARY, disable_env_checker=True))
        self._wait_s = wait_s

    def step(self, action: Any) -> Any:
        time.sleep(self._wait_s)
        return self.env.step(action)
