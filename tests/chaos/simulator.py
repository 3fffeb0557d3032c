"""An environment that starts a simulator, a process of its own, and takes its time to end it in close()."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Simulator(gymnasium.Env[Any, Any]):
    """`folder` has a file for each that was started: its process, with how many it lived beside, and what the environment was told.

    mode: what the second step does, in training's worker 0 alone: "raise", "hang", "exit".
    """

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, folder: str, mode: str = "", worker_index: int = 0, stream_index: int = 0) -> None:
        self.mode, self.steps, self.is_mine = mode, 0, worker_index == stream_index == 0
        told = f"{len(living(Path(folder))) + 1} {worker_index} {stream_index}"
        self.process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        Path(folder, str(self.process.pid)).write_text(told)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 2 and self.is_mine and self.mode:
            if self.mode == "raise":
                raise RuntimeError("boom")
            time.sleep(600) if self.mode == "hang" else os._exit(3)
        return np.zeros(2, np.float32), 1.0, self.np_random.random() < 0.1, False, {}

    def close(self) -> None:
        time.sleep(0.3)  # it says goodbye
        self.process.terminate()
        self.process.wait()


def living(folder: Path) -> list[int]:
    """The simulators that live."""
    return [int(file.name) for file in folder.iterdir() if _lives(file.name)]


def _lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def most(folder: Path) -> int:
    """How many have lived at a time."""
    return max(int(file.read_text().split()[0]) for file in folder.iterdir())


def told(folder: Path) -> set[tuple[int, int]]:
    """(worker_index, stream_index) of all."""
    return {(int(w), int(s)) for _, w, s in (file.read_text().split() for file in folder.iterdir())}
