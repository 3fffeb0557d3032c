"""Gymnasium vector environments of every autoreset mode: native entry points, EnvPool, ALE, processes.

Axes: B streams; k streams whose episode ended in this step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from raypid.envs.closing import close_all, end_processes
from raypid.envs.env_spec import EnvSpec, rebuild_seed, stream_seeds
from raypid.envs.errors import EnvError, reraise_ours
from raypid.envs.infos import Info, Parcel, opened, stream_info
from raypid.envs.observation_checks import from_tree, row_of
from raypid.envs.quiet import quiet
from raypid.envs.results import checked_step
from raypid.envs.vector import Step, VectorEnv
from raypid.spaces import Space
from raypid.types import Array, Tree

Seeding: TypeAlias = "Callable[[list[int]], Any] | None"
"""From the seeds of all streams to what reset() takes as seed. None: it takes none, only the constructor does (EnvPool)."""
AnyVector: TypeAlias = "gymnasium.vector.VectorEnv[Any, Any, Array]"
"""Or what has its interface, as EnvPool's vectors have."""


class GymVector(VectorEnv):
    """A Gymnasium VectorEnv behind our interface. If it raises, the whole vector is replaced.

    Args:
        make: makes a vector environment; where `seeding` is None, it takes the streams' seeds as `seed`.
        seeding: how its reset takes seeds; by default the first, from which it counts on.
        unstack: drop the leading frame axis of 1 from [1, H, W] observations.
    """

    def __init__(
        self,
        spec: EnvSpec,
        name: str,
        vectorizer: str,
        make: Callable[..., AnyVector],
        *,
        seeding: Seeding = itemgetter(0),
        unstack: bool = False,
        first: AnyVector | None = None,
    ) -> None:
        super().__init__(spec, name)
        self._make, self.vectorizer, self._seeding, self._unstack = make, vectorizer, seeding, unstack
        self._env: AnyVector = first if first is not None else self._new(stream_seeds(spec))
        self._seeded = seeding is None  # making it twice costs time
        self._closed = False
        try:
            self._mode = autoreset_mode(self._env, name)
            self._set_spaces(single_observation_space(self._env, unstack), self._env.single_action_space)
            self._look_inside()
        except BaseException:
            self.close()
            raise
        self._pending: Array = np.zeros(self.num_envs, np.bool_)
        self._num_rebuilds = 0

    def _new(self, seeds: Sequence[int]) -> AnyVector:
        with quiet():
            return self._make() if self._seeding is not None else self._make(seed=list(seeds))

    def _reset(self, seeds: Sequence[int] | None) -> Tree:
        seeds = self._seeds(seeds)
        try:
            obs = self._reset_now(seeds)
        except BaseException as error:
            reraise_ours(error)
            obs = self._rebuild()
        return self._begin(obs)

    def _begin(self, obs: object) -> Tree:
        """Check the observations with which all streams begin."""
        self._pending = np.zeros(self.num_envs, np.bool_)
        return self._checked(self._batch(obs), of_reset=True)

    def _step(self, action: Tree) -> Step:
        batch = from_tree(self.action_space, action)
        try:
            obs, rewards, terminations, truncations, infos = self._env.step(batch)
            arrays = self._batch(obs)
            terminated, truncated = np.array(terminations, np.bool_), np.array(truncations, np.bool_)
            first, final = terminated | truncated, None
            if self._mode is not AutoresetMode.NEXT_STEP and first.any():
                final = self._same_step(arrays, first, infos)
        except BaseException as error:
            reraise_ours(error)
            return self._crashed()
        reward = self._rewards(rewards)
        if self._mode is AutoresetMode.NEXT_STEP:
            first, valid = self._pending, ~self._pending
            reward[first] = 0.0
            terminated &= valid
            truncated &= valid
            self._pending = ends = terminated | truncated
        else:
            ends, valid = first, np.ones(self.num_envs, np.bool_)
        obs = self._checked(arrays)
        ended = {b: self._info(infos, b) for b in ends.nonzero()[0].tolist()}
        return Step(obs, reward, terminated, truncated, valid, first, final, ended)

    def close(self) -> None:
        if not self._closed:
            close_vector(self._env)
            self._closed = True

    def _look_inside(self) -> None:
        """Take over two things of Gymnasium's own vectors: infos stay as the environments give them, since merging them into arrays fails
        where shapes differ; and in this process the environments' steps are checked, to say what is wrong with a reward."""
        inner: Any = getattr(self._env, "unwrapped", None)
        is_whole = inner is self._env  # no wrapper around it expects arrays
        if is_whole and getattr(type(inner), "_add_info", None) is gymnasium.vector.VectorEnv._add_info:
            inner._add_info = self._add_info
        if isinstance(inner, SyncVectorEnv):
            for stream, env in enumerate(inner.envs):
                env.step = partial(checked_step, env.step, stream)  # type: ignore[method-assign]

    def _add_info(self, infos: dict[int, Info], info: Mapping[str, object] | Parcel, stream: int) -> dict[int, Info]:
        """Keep the info of an environment by its stream. With SAME_STEP resets, the last one of an episode comes first."""
        infos[stream] = {**opened(info, self._name), **infos.get(stream, {})}
        return infos

    def _info(self, infos: Any, stream: int) -> Info:
        """Return the info of a stream whose episode has ended, out of what the vector returned."""
        is_kept = isinstance(infos, dict) and stream in infos
        info: Info = infos[stream] if is_kept else stream_info(infos, stream, self.num_envs)
        if self._mode is AutoresetMode.SAME_STEP:
            final = info.get("final_info")
            info = dict(final) if isinstance(final, Mapping) else {k: v for k, v in info.items() if k != "final_obs"}
        return info

    def _same_step(self, arrays: list[Array], ended: Array, infos: Mapping[Any, Any]) -> tuple[Array, Tree]:
        """Take out the true last observations of ended streams; `arrays` then have those of their new episodes."""
        streams = np.flatnonzero(ended)
        if self._mode is AutoresetMode.DISABLED:
            last = [array[streams] for array in arrays]
            obs, _ = self._env.reset(options={"reset_mask": ended})
            for array, fresh in zip(arrays, self._batch(obs)):
                array[streams] = fresh[streams]
        else:
            try:
                rows = [
                    infos[b]["final_obs"] if b in infos else row_of(infos["final_obs"], b) for b in streams.tolist()
                ]
            except KeyError:
                text = 'environments with SAME_STEP resets must give infos["final_obs"].'
                raise EnvError(f"{self._where()}: {text}") from None
            with self._located(streams):
                last = self._layout.stack([row_of(row, 0) for row in rows] if self._unstack else rows)
        with self._located(streams):
            return streams, self._checked(last)

    def _batch(self, obs: object) -> list[Array]:
        return self._layout.batch(np.asarray(obs)[:, 0] if self._unstack else obs, self.num_envs)

    def _reset_now(self, seeds: Sequence[int] | None, *, replace: bool = False) -> object:
        """Reset the vector. With `replace`, or if only its constructor takes seeds, a new vector takes its place first."""
        if seeds is not None and (replace or self._seeding is None):
            close_vector(self._env)
            self._env = self._new(seeds)
            self._look_inside()
        if seeds is None or self._seeding is None:
            return self._env.reset()[0]
        return self._env.reset(seed=self._seeding([int(s) for s in seeds]))[0]

    def _crashed(self) -> Step:
        """Build the step in which the whole vector raised: not valid, and all streams begin episodes."""
        obs, no = self._begin(self._rebuild()), np.zeros((4, self.num_envs), np.bool_)
        return Step(obs, np.zeros(self.num_envs, np.float32), no[0], no[1], no[2], ~no[3])

    def _rebuild(self) -> object:
        """Replace the vector, which has just raised, and return the first observations."""

        def replace() -> object:
            self._num_rebuilds += 1
            seeds = [rebuild_seed(self._spec, stream, self._num_rebuilds) for stream in range(self.num_envs)]
            return self._reset_now(seeds, replace=True)

        return self._replaced(replace)


def autoreset_mode(env: AnyVector, name: str) -> AutoresetMode:
    """Return the mode that a vector environment declares.

    Raises:
        EnvError: it declares none; a wrong guess would corrupt every bootstrap.
    """
    mode = (env.metadata or {}).get("autoreset_mode")
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError:
        raise EnvError(
            f"Environment {name}: metadata['autoreset_mode'] is {mode!r}; it must be one of {[*AutoresetMode]}."
        ) from None


def single_observation_space(env: AnyVector, unstack: bool) -> Space:
    """Return the space of one environment, without the frame axis if that is dropped."""
    space = env.single_observation_space
    if not isinstance(space, spaces.Box):
        return space
    if unstack:
        return spaces.Box(space.low[0], space.high[0], dtype=space.dtype)
    if space.dtype.kind == "f" and (space.low == np.finfo(space.dtype).tiny).any():
        # EnvPool says numeric_limits::min(), the smallest positive number, where it means "no bound"
        low = np.where(space.low == np.finfo(space.dtype).tiny, -np.inf, space.low).astype(space.dtype)
        high = np.where(space.high == np.finfo(space.dtype).max, np.inf, space.high).astype(space.dtype)
        return spaces.Box(low, high, dtype=space.dtype)
    return space


def close_vector(env: AnyVector) -> None:
    """Close quietly. The processes of an AsyncVectorEnv each close their environment, also if others have crashed, and never outlive it."""
    inner = getattr(env, "unwrapped", env)
    if not isinstance(inner, AsyncVectorEnv):
        with suppress(Exception), quiet():
            close_all([env], type(inner).__name__)
        return
    for pipe in inner.parent_pipes:
        with suppress(Exception):  # that of one that has ended
            pipe.send(("close", None))
    end_processes(inner.processes)
    inner.closed = True  # its own close() and __del__ would wait for answers
