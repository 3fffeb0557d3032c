"""Python environments stepped by one loop, or by threads where they wait rather than compute.

Axes: B streams.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import numpy as np

from raypid.envs.errors import EnvError
from raypid.envs.layout import ObservationError, ObservationLayout, action_rows, check_space
from raypid.envs.spec import EnvSpec, rebuild_seed, stream_seeds
from raypid.envs.vector import Step, VectorEnv
from raypid.types import Array, Tree

MAX_REBUILDS = 3
"""Failed attempts in a row after which an environment is given up."""
WAITING_S = 0.5e-3
"""Wall seconds per environment step from which threads can pay for themselves."""
NUM_TIMED_STEPS = 3
"""Vector steps that decide between the loop and threads, after one that warms up."""


class PythonVector(VectorEnv):
    """Environments in this process, NEXT_STEP resets. The numbers do not depend on whether threads step them.

    Args:
        make_env: stream -> a new environment.
        mode: "sync", "threads", or "auto": a loop that turns to threads if the environments wait.
        first_env: an environment made already, for stream 0.
    """

    def __init__(
        self, spec: EnvSpec, name: str, make_env: Callable[[int], Any], mode: str = "sync", first_env: Any = None
    ) -> None:
        self._spec, self._name, self._make_env = spec, name, make_env
        self.num_envs = spec.num_envs
        self._pool: ThreadPoolExecutor | None = None
        self._envs = [first_env if first_env is not None else make_env(0)]
        self.observation_space = self._envs[0].observation_space
        self.action_space = self._envs[0].action_space
        try:
            check_space(self.action_space, "action", name)
            self._layout = ObservationLayout(self.observation_space, name)
            for stream in range(1, self.num_envs):
                self._envs.append(make_env(stream))
                self._check_equal_spaces(stream)
        except EnvError:
            self.close()
            raise
        self.vectorizer = "threads" if mode == "threads" else "sync"
        self._undecided = mode == "auto" and self.num_envs > 1
        self._timed: list[tuple[float, float]] = []
        self._ended = [True] * self.num_envs
        self._num_rebuilds = [0] * self.num_envs
        self._num_steps = 0
        self._crashes: list[str] = []
        self._seeded = False

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        if seeds is None and not self._seeded:
            seeds = stream_seeds(self._spec)
        self._seeded = True
        arrays = self._layout.empty(self.num_envs)

        def reset_one(stream: int) -> None:
            seed = None if seeds is None else int(seeds[stream])
            try:
                result = self._envs[stream].reset(seed=seed)
            except Exception:
                result = self._rebuild(stream)
            self._write(arrays, stream, self._unpack(result, stream, 2)[0])

        self._each(reset_one)
        self._ended = [False] * self.num_envs
        self._check(arrays)
        return self._layout.tree(arrays)

    def step(self, action: Tree) -> Step:
        actions = action_rows(self.action_space, action)
        assert len(actions) == self.num_envs, f"{len(actions)} actions for {self.num_envs} environments"
        self._num_steps += 1
        arrays = self._layout.empty(self.num_envs)
        rows = Rows(self.num_envs)

        def step_one(stream: int) -> None:
            self._step_one(stream, actions[stream], arrays, rows)

        if self._undecided:
            self._timed_each(step_one)
        else:
            self._each(step_one)
        self._check(arrays, rows.reward)
        crashes, self._crashes = self._crashes, []
        return Step(
            obs=self._layout.tree(arrays),
            reward=rows.reward,
            terminated=rows.terminated,
            truncated=rows.truncated,
            valid=rows.valid,
            first=rows.first,
            infos=rows.infos,
            crashes=crashes,
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        for env in self._envs:
            with suppress(Exception):
                env.close()
        self._envs = []

    def _step_one(self, stream: int, action: Any, arrays: list[Array], rows: Rows) -> None:
        env = self._envs[stream]
        ended = self._ended[stream]
        try:
            result = env.reset() if ended else env.step(action)
        except Exception:
            result, ended = self._rebuild(stream), True
        if ended:
            obs, _ = self._unpack(result, stream, 2)
            rows.valid[stream], rows.first[stream] = False, True
            self._ended[stream] = False
        else:
            obs, reward, terminated, truncated, info = self._unpack(result, stream, 5)
            try:
                rows.reward[stream] = reward
            except (TypeError, ValueError):
                rows.reward[stream] = self._scalar(reward, stream)
            if terminated or truncated:
                rows.terminated[stream], rows.truncated[stream] = bool(terminated), bool(truncated)
                rows.infos[stream] = info
                self._ended[stream] = True
        self._write(arrays, stream, obs)

    def _write(self, arrays: list[Array], stream: int, obs: Any) -> None:
        try:
            self._layout.write(arrays, stream, obs)
        except ObservationError as error:
            raise EnvError(f"{self._where(stream)}: {error}") from None

    def _unpack(self, result: Any, stream: int, count: int) -> Any:
        if type(result) is tuple and len(result) == count:
            return result
        method = "reset() must return (obs, info)"
        if count == 5:
            method = "step() must return (obs, reward, terminated, truncated, info)"
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
        raise EnvError(f"{self._where(stream)}: {method}, as Gymnasium's environments do; it returned {got}.")

    def _scalar(self, reward: Any, stream: int) -> float:
        """A reward that came as an array of one element."""
        if np.size(reward) == 1:
            with suppress(TypeError, ValueError):
                return float(np.asarray(reward).item())
        raise EnvError(f"{self._where(stream)}: the reward is {reward!r}; it must be one number.")

    def _check(self, arrays: list[Array], reward: Array | None = None) -> None:
        problem = self._layout.find_problem(arrays)
        if problem is not None:
            raise EnvError(f"{self._where(problem[0])}: {problem[1]}. Observation space: {self.observation_space}.")
        if reward is not None and not np.isfinite(reward.dot(reward)):
            bad = np.flatnonzero(~np.isfinite(reward))
            if bad.size:
                raise EnvError(f"{self._where(int(bad[0]))}: the reward is {reward[bad[0]]}; it must be finite.")

    def _where(self, stream: int) -> str:
        return f"Environment {self._name}, stream {stream}, step {self._num_steps}"

    def _rebuild(self, stream: int) -> Any:
        """Called where an environment raised: replaces it and returns its reset's result."""
        text = traceback.format_exc()
        self._crashes.append(f"{self._where(stream)}:\n{text}")
        for _ in range(MAX_REBUILDS):
            with suppress(Exception):
                self._envs[stream].close()
            self._num_rebuilds[stream] += 1
            try:
                self._envs[stream] = self._make_env(stream)
                return self._envs[stream].reset(seed=rebuild_seed(self._spec, stream, self._num_rebuilds[stream]))
            except Exception:
                text = traceback.format_exc()
        raise EnvError(
            f"{self._where(stream)}: it raised and could not be rebuilt in {MAX_REBUILDS} attempts. The last one:\n{text}"
        )

    def _each(self, one: Callable[[int], None]) -> None:
        if self.vectorizer == "sync":
            for stream in range(self.num_envs):
                one(stream)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.num_envs, thread_name_prefix="raypid-env")
        futures = [self._pool.submit(one, stream) for stream in range(self.num_envs)]
        wait(futures)
        for future in futures:
            future.result()

    def _timed_each(self, one: Callable[[int], None]) -> None:
        """Step in the loop and take the time; afterwards decide for threads if the environments wait."""
        wall, cpu = time.perf_counter(), time.thread_time()
        self._each(one)
        self._timed.append((time.perf_counter() - wall, time.thread_time() - cpu))
        if len(self._timed) <= NUM_TIMED_STEPS:
            return
        self._undecided = False
        wall = sum(w for w, _ in self._timed[1:])
        cpu = sum(c for _, c in self._timed[1:])
        if wall / (NUM_TIMED_STEPS * self.num_envs) > WAITING_S and cpu < wall / 2:
            self.vectorizer = "threads"

    def _check_equal_spaces(self, stream: int) -> None:
        env = self._envs[stream]
        if env.observation_space != self.observation_space or env.action_space != self.action_space:
            raise EnvError(
                f"Environment {self._name}: stream {stream} has other spaces than stream 0 "
                f"({env.observation_space}, {env.action_space}); all must be equal. Pad or wrap them."
            )


class Rows:
    """The columns of one step, filled stream by stream."""

    __slots__ = ("first", "infos", "reward", "terminated", "truncated", "valid")

    def __init__(self, num_envs: int) -> None:
        self.reward = np.zeros(num_envs, np.float32)
        self.terminated = np.zeros(num_envs, np.bool_)
        self.truncated = np.zeros(num_envs, np.bool_)
        self.valid = np.ones(num_envs, np.bool_)
        self.first = np.zeros(num_envs, np.bool_)
        self.infos: dict[int, dict[str, Any]] = {}
