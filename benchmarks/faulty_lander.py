"""The lander whose step waits, and which fails on demand: `env="faulty_lander:FaultyLander"`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from slow_lander import SlowLander

PIECE, MOST = 64 << 20, 6 << 30
"""Bytes that a leak grows by, and where it ends if nothing strikes."""


class FaultyLander(SlowLander):
    """Looks into the folder `orders` at each step. The first environment to find the file order-* takes it away and does what
    it says: raise, exit, hang or leak."""

    def __init__(self, wait_s: float = 0.002, orders: str = "") -> None:
        super().__init__(wait_s)
        self._orders = orders

    def step(self, action: Any) -> Any:
        for entry in os.scandir(self._orders) if self._orders else ():
            if entry.name.startswith("order-") and (order := self._taken(Path(entry.path))):
                self._carry_out(order)
        return super().step(action)

    def _taken(self, path: Path) -> str:
        """What the order says; nothing if another environment was quicker."""
        mine = path.with_name(f"done-{path.name}")
        try:
            path.rename(mine)
        except OSError:
            return ""
        return mine.read_text()

    def _carry_out(self, order: str) -> None:
        if order == "raise":
            raise ValueError("the simulator lost its balance")
        if order == "exit":
            os._exit(3)
        if order == "hang":
            time.sleep(10_000)
        if order == "leak":
            kept = [np.ones(PIECE, np.uint8)]
            while len(kept) * PIECE < MOST:
                time.sleep(0.02)
                kept.append(np.ones(PIECE, np.uint8))
            raise MemoryError("nothing has limited the leak")
