"""Python environments stepped by a loop; by threads where they wait, or let other threads run; or on several cores by copies of
this process.

Axes: B streams.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
from gymnasium.spaces import Box

from raypid.envs.adapter import is_seeded
from raypid.envs.closing import close_all
from raypid.envs.env_spec import EnvSpec, rebuild_seed
from raypid.envs.errors import EnvError, reraise_ours
from raypid.envs.forked import Forked, ForkedLost, can_fork
from raypid.envs.infos import Info, opened, packed
from raypid.envs.observation_checks import action_rows
from raypid.envs.results import RESET, STEP, fits, reset_obs, step_parts
from raypid.envs.vector import PythonEnv, Step, VectorEnv
from raypid.envs.wrappers import strip_limit
from raypid.spaces import Space
from raypid.types import Tree

Argument = TypeVar("Argument")
Served: TypeAlias = "tuple[list[object], list[str], list[tuple[float, bool]]]"
"""What a copy returns: results, tracebacks of environments that raised, and each environment's limit and whether its episode is over."""
Seconds: TypeAlias = "tuple[float, float]"
"""What a step took: wall and CPU time; or in a loop and on several cores."""
WAITING_S = 0.5e-3
"""Wall seconds per environment step from which threads can pay for themselves."""
NUM_TIMED_STEPS = 3
"""Vector steps that tell whether environments wait, after one that warms up."""
NUM_COMPARED_STEPS = 12
"""Vector steps of the loop, and as many on several cores, that decide between the two. The fastest of each count: a thread that has
just been woken needs some steps."""
PAYS = 0.9
"""Several cores are taken where they need at most this part of the loop's time."""
FORKS_FROM_S = 0.2e-3
"""Wall seconds of a vector step from which a copy of this process, which is told of each step by a pipe, can pay for itself."""


class PythonVector(VectorEnv):
    """Environments in this process, NEXT_STEP resets. The numbers do not depend on whether threads step them.

    Args:
        make_env: stream -> a new environment.
        mode: "sync", "threads" (one for each stream), "processes" (`spec.num_threads`, this one among them), or "auto": a loop that
            turns to threads if the environments wait; and to `spec.num_threads` threads or processes if these are faster.
        first: an environment for stream 0 that exists already.
    """

    def __init__(
        self, spec: EnvSpec, name: str, make_env: Callable[[int], PythonEnv], mode: str, first: PythonEnv | None = None
    ) -> None:
        super().__init__(spec, name)
        self._make_env = make_env
        self._pool: ThreadPoolExecutor | None = None
        self._copies: dict[int, Forked[Served]] = {}
        """Number of a part -> the copy of this process that steps it."""
        self.envs: list[PythonEnv] = []
        self._limits: list[float] = []
        try:
            for stream in range(self.num_envs):
                self._add(stream, first if first is not None and stream == 0 else make_env(stream))
        except BaseException:
            self.close()
            raise
        self._loop, self._split = _parts(self.num_envs, 1), _parts(self.num_envs, min(spec.num_threads, self.num_envs))
        self._take(_parts(self.num_envs, self.num_envs) if mode == "threads" else self._loop)
        self._choice = self._choose() if mode == "auto" and self.num_envs > 1 else None
        """Decides how to step; None once that is decided."""
        if self._choice is not None:
            next(self._choice)
        self._forks = mode == "processes"
        self._ended = [True] * self.num_envs
        self._elapsed = [0] * self.num_envs
        self._ends_at = self._limits
        """Steps after which episodes are truncated."""
        self._staggers = spec.staggers and _is_endless_kind(self.observation_space, self.action_space)
        self._num_rebuilds = [0] * self.num_envs

    def _take(self, parts: list[range]) -> None:
        """Step by these parts from here on."""
        self._parts = parts
        """The streams that one thread or process steps."""
        self.vectorizer = "sync" if len(parts) == 1 else "processes" if self._copies else "threads"

    def _reset(self, seeds: Sequence[int] | None) -> Tree:
        if self._forks and not self._copies:
            self._fork()
            self._take(self._split)
            self._forks = False
        results = self._each(self._reset_one, self._seeds(seeds) or [None] * self.num_envs)
        observations = [reset_obs(result, stream) for stream, result in enumerate(results)]
        self._ended = [False] * self.num_envs
        self._elapsed = [0] * self.num_envs
        self._ends_at = self._limits
        if self._staggers:
            # a fragment then has rows of all parts of an episode, and not of the one in which all streams are
            self._ends_at = [limit * (1 - stream / self.num_envs) for stream, limit in enumerate(self._limits)]
        return self._checked(self._layout.stack(observations), of_reset=True)

    def _step(self, action: Tree) -> Step:
        actions = action_rows(self.action_space, action, self.num_envs)
        assert len(actions) == self.num_envs, f"{len(actions)} actions for {self.num_envs} environments"
        return self._collect(self._each(self._step_one, actions) if self._choice is None else self._measured(actions))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        self._end_copies()
        self._close(range(len(self.envs)))
        self.envs = []

    def _close(self, part: range) -> None:
        close_all(self.envs[part.start : part.stop], self._name)

    def _reset_one(self, stream: int, seed: int | None) -> object:
        try:
            return self.envs[stream].reset(seed=None if seed is None else int(seed))
        except BaseException as error:
            reraise_ours(error, stream)
            return self._rebuild(stream)

    def _step_one(self, stream: int, action: object) -> object:
        env = self.envs[stream]
        try:
            return env.reset() if self._ended[stream] else env.step(action)
        except BaseException as error:
            reraise_ours(error, stream)
            # as if the episode had ended before: this row holds a reset
            self._ended[stream] = True
            return self._rebuild(stream)

    def _collect(self, results: list[object]) -> Step:
        """Build the arrays of one step from what reset() and step() returned."""
        num_envs = self.num_envs
        observations: list[object] = []
        rewards: list[object] = [0.0] * num_envs
        terminated, truncated, first = np.zeros((3, num_envs), np.bool_)
        infos: dict[int, Info] = {}
        cut: list[int] = []
        for stream, result in enumerate(results):
            if self._ended[stream]:
                obs = reset_obs(result, stream)
                first[stream], self._ended[stream], self._elapsed[stream] = True, False, 0
            else:
                obs, rewards[stream], terminates, truncates, info = step_parts(result, stream)
                self._elapsed[stream] += 1
                if terminates:
                    # episodes end by themselves, and so at different times
                    self._ends_at = self._limits
                if self._elapsed[stream] >= self._ends_at[stream]:
                    if not (terminates or truncates) and self._elapsed[stream] < self._limits[stream]:
                        cut.append(stream)
                    truncates = True
                if terminates or truncates:
                    terminated[stream], truncated[stream] = bool(terminates), bool(truncates)
                    infos[stream], self._ended[stream] = opened(info, self._name), True
                    self._ends_at[stream] = self._limits[stream]
            observations.append(obs)
        obs, reward = self._checked(self._layout.stack(observations)), self._rewards(rewards)
        return Step(obs, reward, terminated, truncated, ~first, first, infos=infos, cut=cut)

    def _rebuild(self, stream: int) -> object:
        """Replace an environment, which has just raised, and return what the new one's reset() returns."""

        def replace() -> object:
            close_all([self.envs[stream]], self._name)
            self._num_rebuilds[stream] += 1
            self.envs[stream], self._limits[stream] = strip_limit(self._make_env(stream))
            return self.envs[stream].reset(seed=rebuild_seed(self._spec, stream, self._num_rebuilds[stream]))

        return self._replaced(replace, stream)

    def _each(self, call: Callable[[int, Argument], object], arguments: Sequence[Argument]) -> list[object]:
        """Call `call(stream, argument)` for every stream: in a loop, in threads, or in copies of this process."""
        mine, *others = self._parts
        if not others:
            return self._calls(call, arguments, mine)
        if self._copies:
            self._send(call, arguments)
            parts = [
                self._received(i, part) or self._calls(call, arguments, part) for i, part in enumerate(self._parts)
            ]
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(len(others), thread_name_prefix="raypid-env")
            futures = [self._pool.submit(self._calls, call, arguments, part) for part in others]
            parts = [self._calls(call, arguments, mine), *(future.result() for future in futures)]
        return [result for part in parts for result in part]

    def _calls(
        self, call: Callable[[int, Argument], object], arguments: Sequence[Argument], part: range
    ) -> list[object]:
        return [call(stream, arguments[stream]) for stream in part]

    # -- which way is the fastest ------------------------------------------------------------------------------------------

    def _choose(self) -> Generator[None, Seconds, None]:
        """Find the fastest way to step. Each `yield` is a step, for which `_measured` sends what it took."""
        yield  # warms caches and libraries up
        wall, cpu = (sum(seconds) / NUM_TIMED_STEPS for seconds in zip(*(yield from _steps(NUM_TIMED_STEPS))))
        if waits(wall / self.num_envs, cpu / self.num_envs):
            return self._take(_parts(self.num_envs, self.num_envs))
        if len(self._split) == 1:
            return
        if all(map(_lets_others_run, self.envs)):
            loop_s, _ = zip(*(yield from _steps(NUM_COMPARED_STEPS)))
            self._take(self._split)
            split_s, _ = zip(*(yield from _steps(NUM_COMPARED_STEPS)))
        elif wall > FORKS_FROM_S and can_fork() and all(map(_is_gymnasiums, self.envs)):
            self._fork()
            loop_s, split_s = zip(*(yield from _steps(NUM_COMPARED_STEPS)))
        else:
            return
        pays = max(split_s) < math.inf and min(split_s) < PAYS * min(loop_s)
        if not pays:
            self._end_copies()
        self._take(self._split if pays else self._loop)

    def _measured(self, actions: list[object]) -> list[object]:
        """Step while it is not decided how to go on."""
        assert self._choice is not None
        if self._copies:
            results, seconds = self._both_ways(actions)
        else:
            wall, cpu = time.perf_counter(), time.thread_time()
            results = self._each(self._step_one, actions)
            seconds = time.perf_counter() - wall, time.thread_time() - cpu
        try:
            self._choice.send(seconds)
        except StopIteration:
            self._choice = None
        return results

    def _both_ways(self, actions: list[object]) -> tuple[list[object], Seconds]:
        """Step in a loop, while the copies step their parts too. What they return is not used.

        Returns:
            The results; the seconds that all take in a loop, and those that it takes until this process and the copies have stepped theirs.
        """
        clock, (mine, *others) = time.perf_counter, self._split
        start = clock()
        self._send(self._step_one, actions)
        own = clock()
        results = self._calls(self._step_one, actions, mine)
        own_s = clock() - own
        try:
            for copy in self._copies.values():
                copy.receive()
        except Exception:  # what steps here will say what is wrong
            start = -math.inf  # never faster
        split_s, rest = clock() - start, clock()
        for part in others:
            results += self._calls(self._step_one, actions, part)
        return results, (own_s + clock() - rest, split_s)

    # -- copies of this process ------------------------------------------------------------------------------------------

    def _fork(self) -> None:
        """Copy this process, with its environments as they are, once for each part but the first."""
        for i, part in enumerate(self._split[1:], 1):
            self._copies[i] = Forked(partial(self._serve, part), partial(self._close, part))

    def _serve(
        self, part: range, num_steps: int, name: str, arguments: Sequence[object], ended: Sequence[bool]
    ) -> Served:
        """In a copy: make the calls for its part."""
        self._num_steps = num_steps
        for stream, has_ended in zip(part, ended):
            self._ended[stream] = has_ended
        results = [_to_send(getattr(self, name)(stream, argument)) for stream, argument in zip(part, arguments)]
        crashes, self._crashes = self._crashes, []
        return results, crashes, [(self._limits[stream], self._ended[stream]) for stream in part]

    def _send(self, call: Callable[[int, Argument], object], arguments: Sequence[Argument]) -> None:
        """Let each copy make the calls for its part."""
        for i, copy in self._copies.items():
            part = self._split[i]
            with suppress(ForkedLost):  # `receive` says so
                copy.send(self._num_steps, call.__name__, [arguments[s] for s in part], [self._ended[s] for s in part])

    def _received(self, i: int, part: range) -> list[object]:
        """Receive the results of the copy that steps a part; empty if there is none. If the copy has ended, replace its environments here."""
        if i not in self._copies:
            return []
        try:
            results, crashes, state = self._copies[i].receive()
        except ForkedLost:
            Forked.end([self._copies.pop(i)])
            if not self._copies:
                self._take(self._loop)
            for stream in part:
                self._ended[stream] = True
            return [self._rebuild(stream) for stream in part]
        self._crashes += crashes
        for stream, (limit, has_ended) in zip(part, state):
            self._limits[stream], self._ended[stream] = limit, has_ended
        return results

    def _end_copies(self) -> None:
        Forked.end(list(self._copies.values()))
        self._copies = {}

    def _add(self, stream: int, env: PythonEnv) -> None:
        env, limit = strip_limit(env)
        self.envs.append(env)
        self._limits.append(limit)
        if stream == 0:
            self._set_spaces(env.observation_space, env.action_space)
            self.is_seeded, self.time_limit = is_seeded(env), limit
        elif env.observation_space != self.observation_space or env.action_space != self.action_space:
            raise EnvError(
                f"Environment {self._name}: stream {stream} has other spaces ({env.observation_space}, {env.action_space}) than stream 0."
            )


def _parts(num_streams: int, num: int) -> list[range]:
    """Cut the streams into `num` parts of about the same size."""
    ends = [num_streams * i // num for i in range(num + 1)]
    return [range(a, b) for a, b in pairwise(ends)]


def _steps(num: int) -> Generator[None, Seconds, list[Seconds]]:
    """Collect what `num` steps took."""
    seconds = []
    for _ in range(num):
        seconds.append((yield))
    return seconds


def waits(wall_s: float, cpu_s: float) -> bool:
    """Whether a step of one environment waits so long, and computes so little, that threads pay."""
    return wall_s > WAITING_S and cpu_s < wall_s / 2


def _to_send(result: Any) -> object:
    """Prepare a result of reset() or step() to be sent: pack the info of a step if it has entries, and leave out that of a reset."""
    if fits(result, STEP) and isinstance(result[4], Mapping):
        return (*result[:4], packed(result[4]) if result[4] else {})
    return (result[0], {}) if fits(result, RESET) else result


def _is_endless_kind(observation_space: Space, action_space: Space) -> bool:
    """Whether the spaces are those of most tasks whose episodes only end at a limit."""
    return isinstance(observation_space, Box) and not observation_space.is_bounded() and isinstance(action_space, Box)


def _is_gymnasiums(env: PythonEnv) -> bool:
    """Whether an environment is one of Gymnasium's own, which do nothing outside of this process that a copy would do again."""
    return type(getattr(env, "unwrapped", env)).__module__.startswith("gymnasium.envs.")


def _lets_others_run(env: PythonEnv) -> bool:
    """Whether an environment computes with MuJoCo, which lets other threads run Python meanwhile and shares nothing between
    environments."""
    mujoco = sys.modules.get("mujoco")
    own = getattr(getattr(env, "unwrapped", env), "__dict__", {})
    return mujoco is not None and any(isinstance(value, mujoco.MjData) for value in own.values())
