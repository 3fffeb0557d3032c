"""Python environments stepped by one loop, or by threads where they wait rather than compute.

Axes: B streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from raypid.envs.adapter import is_seeded
from raypid.envs.closing import close_all
from raypid.envs.env_spec import EnvSpec, rebuild_seed
from raypid.envs.errors import EnvError, reraise_signal
from raypid.envs.observation_checks import action_rows
from raypid.envs.vector import PythonEnv, Step, VectorEnv
from raypid.envs.wrappers import strip_limit
from raypid.errors import UserError, shown
from raypid.types import Array, Tree

Argument = TypeVar("Argument")
_RESULTS = {
    2: "reset() must return (obs, info)",
    5: "step() must return (obs, reward, terminated, truncated, info)",
}
WAITING_S = 0.5e-3
"""Wall seconds per environment step from which threads can pay for themselves."""
NUM_TIMED_STEPS = 3
"""Vector steps that decide between the loop and threads, after one that warms up."""


class PythonVector(VectorEnv):
    """Environments in this process, NEXT_STEP resets. The numbers do not depend on whether threads step them.

    Args:
        make_env: stream -> a new environment.
        mode: "sync", "threads", or "auto": a loop that turns to threads if the environments wait.
        first_env: an environment for stream 0 that exists already.
    """

    def __init__(
        self,
        spec: EnvSpec,
        name: str,
        make_env: Callable[[int], PythonEnv],
        mode: str = "sync",
        first_env: PythonEnv | None = None,
    ) -> None:
        super().__init__(spec, name)
        self._make_env = make_env
        self._pool: ThreadPoolExecutor | None = None
        self.envs: list[PythonEnv] = []
        self._limits: list[float] = []
        try:
            for stream in range(self.num_envs):
                self._add(stream, first_env if first_env is not None and stream == 0 else make_env(stream))
        except UserError:
            self.close()
            raise
        self.vectorizer = "threads" if mode == "threads" else "sync"
        self._undecided = mode == "auto" and self.num_envs > 1
        self._timed: list[tuple[float, float]] = []
        self._ended = [True] * self.num_envs
        self._elapsed = [0] * self.num_envs
        self._num_rebuilds = [0] * self.num_envs

    def _reset(self, seeds: Sequence[int] | None) -> Tree:
        results = self._each(self._reset_one, self._seeds(seeds) or [None] * self.num_envs)
        observations = [self._unpack(result, stream, 2)[0] for stream, result in enumerate(results)]
        self._ended = [False] * self.num_envs
        self._elapsed = [0] * self.num_envs
        return self._checked(self._layout.stack(observations), of_reset=True)

    def _step(self, action: Tree) -> Step:
        actions = action_rows(self.action_space, action, self.num_envs)
        assert len(actions) == self.num_envs, f"{len(actions)} actions for {self.num_envs} environments"
        return self._collect(self._timed_each(actions) if self._undecided else self._each(self._step_one, actions))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        close_all(self.envs, self._name)
        self.envs = []

    def _reset_one(self, stream: int, seed: int | None) -> object:
        try:
            return self.envs[stream].reset(seed=None if seed is None else int(seed))
        except EnvError:  # what it returned is of no use
            raise
        except BaseException as error:
            reraise_signal(error)
            return self._rebuild(stream)

    def _step_one(self, stream: int, action: object) -> object:
        env = self.envs[stream]
        try:
            return env.reset() if self._ended[stream] else env.step(action)
        except EnvError:
            raise
        except BaseException as error:
            reraise_signal(error)
            # as if the episode had ended before: this row holds a reset
            self._ended[stream] = True
            return self._rebuild(stream)

    def _collect(self, results: list[object]) -> Step:
        """Build the arrays of one step from what reset() and step() returned."""
        num_envs = self.num_envs
        observations: list[object] = []
        rewards: list[object] = [0.0] * num_envs
        flags = np.zeros((3, num_envs), np.bool_)
        terminated, truncated, first = flags
        infos: dict[int, Mapping[str, object]] = {}
        for stream, result in enumerate(results):
            if self._ended[stream]:
                obs, _ = self._unpack(result, stream, 2)
                first[stream], self._ended[stream], self._elapsed[stream] = True, False, 0
            else:
                obs, rewards[stream], terminates, truncates, info = self._unpack(result, stream, 5)
                # the usual case costs three comparisons
                if type(terminates) is not bool and type(terminates) is not np.bool_:
                    terminates = self._flag("terminated", terminates, stream)
                if type(truncates) is not bool and type(truncates) is not np.bool_:
                    truncates = self._flag("truncated", truncates, stream)
                if type(info) is not dict and not isinstance(info, Mapping):
                    raise EnvError(f"{self._where(stream)}: step() returned the info {shown(info)}; it must be a dict.")
                self._elapsed[stream] += 1
                if self._elapsed[stream] >= self._limits[stream]:
                    truncates = True
                if terminates or truncates:
                    terminated[stream], truncated[stream] = bool(terminates), bool(truncates)
                    infos[stream], self._ended[stream] = info, True
            observations.append(obs)
        obs, reward = self._checked(self._layout.stack(observations)), self._rewards(rewards)
        return Step(obs, reward, terminated, truncated, ~first, first, infos=infos)

    def _flag(self, name: str, value: object, stream: int) -> bool:
        """Convert what is meant as true or false: 0 or 1, or an array of one element."""
        with suppress(TypeError, ValueError, RuntimeError):
            array = np.asarray(value)
            if array.size == 1 and array.dtype.kind in "biuf" and array.item() in (0, 1):
                return bool(array.item())
        raise EnvError(f"{self._where(stream)}: step() returned {shown(value)} as {name}; it must be true or false.")

    def _rewards(self, rewards: list[object]) -> Array:
        self._given = rewards
        with suppress(TypeError, ValueError, OverflowError):
            array = np.array(rewards, np.float32)
            if array.ndim == 1:
                return array
        return np.array([self._scalar(reward, stream) for stream, reward in enumerate(rewards)], np.float32)

    def _unpack(self, result: object, stream: int, count: int) -> tuple[Any, ...]:
        """Check that reset() returned a tuple of 2, or step() a tuple of 5."""
        if type(result) is tuple and len(result) == count:
            return result
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
        raise EnvError(f"{self._where(stream)}: {_RESULTS[count]}, as Gymnasium's environments do; it returned {got}.")

    def _scalar(self, reward: object, stream: int) -> float:
        """Convert a reward that came as an array of one element."""
        with suppress(TypeError, ValueError, OverflowError):
            array = np.asarray(reward)
            if array.size == 1:
                return float(array.item())
        raise EnvError(f"{self._where(stream)}: the reward is {shown(reward)}; it must be one number.")

    def _rebuild(self, stream: int) -> object:
        """Replace an environment, which has just raised, and return what the new one's reset() returns."""

        def replace() -> object:
            close_all([self.envs[stream]], self._name)
            self._num_rebuilds[stream] += 1
            self.envs[stream], self._limits[stream] = strip_limit(self._make_env(stream))
            return self.envs[stream].reset(seed=rebuild_seed(self._spec, stream, self._num_rebuilds[stream]))

        return self._replaced(replace, stream)

    def _each(self, call: Callable[[int, Argument], object], arguments: Sequence[Argument]) -> list[object]:
        """Call `call(stream, argument)` for every stream, in a loop or in threads."""
        streams = range(self.num_envs)
        if self.vectorizer == "sync":
            return list(map(call, streams, arguments))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.num_envs, thread_name_prefix="raypid-env")
        futures = [self._pool.submit(call, stream, argument) for stream, argument in zip(streams, arguments)]
        wait(futures)
        return [future.result() for future in futures]

    def _timed_each(self, actions: list[object]) -> list[object]:
        """Step in the loop and measure it; after some steps, turn to threads if the environments wait."""
        wall, cpu = time.perf_counter(), time.thread_time()
        results = self._each(self._step_one, actions)
        self._timed.append((time.perf_counter() - wall, time.thread_time() - cpu))
        if len(self._timed) > NUM_TIMED_STEPS:
            self._undecided = False
            # the first step warms caches and libraries up
            wall = sum(w for w, _ in self._timed[1:])
            cpu = sum(c for _, c in self._timed[1:])
            if wall / (NUM_TIMED_STEPS * self.num_envs) > WAITING_S and cpu < wall / 2:
                self.vectorizer = "threads"
        return results

    def _add(self, stream: int, env: PythonEnv) -> None:
        env, limit = strip_limit(env)
        self.envs.append(env)
        self._limits.append(limit)
        if stream == 0:
            self._set_spaces(env.observation_space, env.action_space)
            self.is_seeded = is_seeded(env)
        elif env.observation_space != self.observation_space or env.action_space != self.action_space:
            raise EnvError(
                f"Environment {self._name}: stream {stream} has other spaces than stream 0 "
                f"({env.observation_space}, {env.action_space}); all must be equal. Pad or wrap them."
            )
