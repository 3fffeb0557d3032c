"""Environments that fail on purpose, callbacks and roles; imported by name, as a user's module is, here and in workers."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from raypid import Callbacks

REWARDS = {"infinite": float("inf"), "huge": 1e30, "no number": "a lot"}
PIECE, MOST, ROOM = 16 << 20, 1536 << 20, 512 << 20
"""Bytes that a leak grows by, that it ends at if nothing strikes, and that its process may take where it limits itself."""


class Fragile(gymnasium.Env):
    """Episodes of `length` steps, reward 1 a step. At step `at` of an episode it does what `mode` says.

    worker: only in this worker. marker: only once, and then this file is there. after: only once this file is there.
    exits: a constructor that fails calls sys.exit. every: raises at each such step of its life, which begins at a random one.
    """

    def __init__(
        self,
        mode: str = "",
        at: int = 5,
        length: int = 10,
        worker: int | Sequence[int] | None = None,
        marker: str | None = None,
        after: str | None = None,
        every: int = 0,
        exits: bool = False,
        sleep_s: float = 0.0,
        worker_index: int = 0,
        stream_index: int = 0,
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.mode, self.at, self.length, self.sleep_s = mode, at, length, sleep_s
        mine = worker if isinstance(worker, Sequence) else [worker_index if worker is None else worker]
        self.mine, self.marker, self.after = worker_index in mine, marker, after
        self.indices = {"env_worker": worker_index, "env_stream": stream_index}
        self.every, self.life = every, int(np.random.default_rng().integers(1 + every // 2))
        if mode == "constructor" and exits:
            sys.exit(3)
        if mode == "constructor" and self._strikes():
            raise ValueError("no licence for the simulator")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        if self.mode == "reset" and self._strikes():
            raise ValueError("the simulator did not start")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.life += 1
        obs = np.array([self.t / 10, int(action)], np.float32)
        if self.sleep_s:
            time.sleep(self.sleep_s)
        if self.every and self.life % self.every == 0:
            raise ValueError("the simulator lost its balance")
        if self.t == self.at and self.mode not in ("", "constructor", "reset") and self._strikes():
            if self.mode in REWARDS:
                return obs, REWARDS[self.mode], False, False, {}
            obs = self._fail(obs)
        return obs, 1.0, False, self.t >= self.length, dict(self.indices)

    def _strikes(self) -> bool:
        if not self.mine or (self.marker is not None and Path(self.marker).exists()):
            return False
        if self.after is not None and not Path(self.after).exists():
            return False
        if self.marker is not None:
            Path(self.marker).write_text(str(os.getpid()))
        return True

    def _fail(self, obs: Any) -> Any:
        if self.mode == "endless":
            self.length = 10**9
            return obs
        if self.mode == "raise":
            raise ValueError("the simulator lost its balance")
        if self.mode == "sys.exit":
            sys.exit(3)
        if self.mode == "interrupt":
            raise KeyboardInterrupt
        if self.mode == "exit":
            os._exit(3)
        if self.mode == "segfault":
            ctypes.string_at(0)
        if self.mode == "killed":  # as the kernel does where memory runs out
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mode in ("leak", "limited leak"):
            self._leak()
        if self.mode == "spawn":  # as a simulator that is a program of its own
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            Path(str(self.marker)).write_text(str(child.pid))
            return obs
        if self.mode == "prints":
            print("x" * 100_000)
            return obs
        if self.mode == "hang":
            time.sleep(10_000)
        if self.mode == "slow":
            time.sleep(0.5)
            return obs
        return {
            "nan": np.array([0, np.nan], np.float32),
            "shape": np.zeros(3, np.float32),
            "dtype": np.array(["a", "b"]),
            "type": None,
        }[self.mode]

    def _leak(self) -> None:
        """Keep more and more memory; limited: of this process alone, which then gets no more (only in a worker's process)."""
        if self.mode == "limited leak":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + ROOM
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
        self.kept = [np.ones(PIECE, np.uint8)]
        while len(self.kept) * PIECE < MOST:
            time.sleep(0.01)
            self.kept.append(np.ones(PIECE, np.uint8))
        time.sleep(60)  # what watches over memory may take a moment
        raise AssertionError("nothing has limited the leak")


class Metrics(Callbacks):
    """Where each episode ran, and a count of iterations."""

    def on_episode_end(self, info: dict[str, Any]) -> dict[str, float]:
        assert (info["worker_index"], info["stream_index"]) == (info["env_worker"], info["env_stream"])
        return {"worker": info["worker_index"], "stream": info["stream_index"], "length": info["episode_length"]}

    def on_iteration(self, result: dict[str, Any]) -> None:
        result["twice"] = 2 * result["training_iteration"]


class Echo:
    """A role for the backends."""

    def __init__(self, start: int = 0) -> None:
        self.total = start

    def add(self, x: int) -> int:
        self.total += x
        return self.total

    def pair(self, x: Any) -> tuple[str, Any]:
        return "small", x

    def fail(self, text: str) -> Any:
        raise KeyError(text)

    def time_out(self, text: str) -> Any:
        raise TimeoutError(text)

    def pid(self) -> int:
        return os.getpid()

    def blas_threads(self) -> list[int]:
        from threadpoolctl import threadpool_info

        return sorted({info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"})

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"


class Table:
    """A role that was given an array by reference."""

    def __init__(self, add: int, table: Any) -> None:
        self.add, self.table = add, table

    def sum_from(self, start: int) -> float:
        return float(self.table[start:].sum()) + self.add

    def owns(self) -> tuple[bool, int]:
        """Does it hold a copy; and how many bytes that are its own alone did reading the array take?"""

        def private() -> int:
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))

        before = private()
        assert self.table.sum() > 0
        return self.table.flags.owndata or self.table.flags.writeable, private() - before


class Broken:
    """A role that cannot be built."""

    def __init__(self) -> None:
        raise LookupError("no such simulator")


class Unreadable:
    """What its pickle builds raises there."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ModuleNotFoundError("No module named 'left_at_home'")
