"""Gymnasium vector environments of every autoreset mode: native entry points, EnvPool, ALE, processes.

Axes: B streams; k streams whose episode ended in this step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from raypid.envs.env_spec import EnvSpec, rebuild_seed, stream_seeds
from raypid.envs.errors import EnvError, user_traceback
from raypid.envs.observation_checks import ObservationError, ObservationLayout, action_batch, check_space
from raypid.envs.quiet import quiet
from raypid.envs.vector import Step, VectorEnv
from raypid.types import Array, Tree

MAX_REBUILDS = 3
"""Failed attempts in a row after which a vector is given up."""

Seeding = Literal["int", "list", "array", "construct"]


class GymVector(VectorEnv):
    """A Gymnasium VectorEnv behind our interface. If it raises, the whole vector is made anew.

    Args:
        make: seeds or None -> a new vector environment; seeds matter where `seeding` is "construct".
        seeding: what its reset takes as seed: the first seed, a list, an array, or nothing (EnvPool).
        unstack: drop the leading frame axis of 1 from [1, H, W] observations.
    """

    def __init__(
        self,
        spec: EnvSpec,
        name: str,
        vectorizer: str,
        make: Callable[[Sequence[int] | None], Any],
        *,
        seeding: Seeding = "int",
        unstack: bool = False,
        first: Any = None,
    ) -> None:
        self._spec, self._name, self._make = spec, name, make
        self.vectorizer, self._seeding, self._unstack = vectorizer, seeding, unstack
        self.num_envs = spec.num_envs
        self._env = first if first is not None else make(stream_seeds(spec))
        try:
            self._mode = autoreset_mode(self._env, name)
            self.action_space = self._env.single_action_space
            check_space(self.action_space, "action", name)
            self.observation_space = single_observation_space(self._env, unstack)
            self._layout = ObservationLayout(self.observation_space, name)
        except EnvError:
            self.close()
            raise
        self._pending: Array = np.zeros(self.num_envs, np.bool_)
        self._num_steps = self._num_rebuilds = 0
        self._crashes: list[str] = []
        self._seeded = False

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        if seeds is None and not self._seeded:
            # EnvPool was made with these seeds; making it twice costs time
            seeds = None if self._seeding == "construct" else stream_seeds(self._spec)
        self._seeded = True
        try:
            if seeds is not None and self._seeding == "construct":
                self._replace(seeds)
            obs = self._reset_now(seeds)
        except EnvError:
            raise
        except Exception:
            obs = self._rebuild()
        arrays = self._batch(obs)
        self._check(arrays)
        if (problem := self._layout.outside(arrays)) is not None:
            raise EnvError(f"{self._where(problem[0])}: {problem[1]}.")
        self._pending = np.zeros(self.num_envs, np.bool_)
        return self._layout.tree(arrays)

    def step(self, action: Tree) -> Step:
        batch = action_batch(self.action_space, action)
        self._num_steps += 1
        try:
            obs, reward, terminated, truncated, infos = self._env.step(batch)
            arrays = self._batch(obs)
            ended = np.logical_or(terminated, truncated)
            final = None
            if self._mode is not AutoresetMode.NEXT_STEP and ended.any():
                final, arrays = self._same_step(arrays, ended, infos)
        except EnvError:
            raise
        except Exception:
            return self._crashed()
        step = self._to_step(arrays, reward, terminated, truncated, ended, final)
        if ended.any():
            step.infos = {int(i): stream_info(infos, int(i)) for i in np.flatnonzero(step.terminated | step.truncated)}
        self._check(arrays, step.reward)
        return step

    def close(self) -> None:
        if self._env is not None:
            close_vector(self._env)
            self._env = None

    def _to_step(
        self, arrays: list[Array], reward: Any, terminated: Any, truncated: Any, ended: Array, final: Any
    ) -> Step:
        reward = np.array(reward, np.float32)
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        if self._mode is AutoresetMode.NEXT_STEP:
            first = self._pending
            if first.any():
                reward[first], terminated[first], truncated[first] = 0.0, False, False
            self._pending = terminated | truncated
            valid = ~first
            first = first.copy()
        else:
            first, valid = ended.astype(np.bool_), np.ones(self.num_envs, np.bool_)
        crashes, self._crashes = self._crashes, []
        return Step(
            obs=self._layout.tree(arrays),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            first=first,
            final=final,
            crashes=crashes,
        )

    def _same_step(self, arrays: list[Array], ended: Array, infos: Any) -> tuple[tuple[Array, Tree], list[Array]]:
        """The true last observations of ended streams, and observations in which these streams have begun anew."""
        streams = np.flatnonzero(ended)
        if self._mode is AutoresetMode.DISABLED:
            last = [array[streams] for array in arrays]
            obs, _ = self._env.reset(options={"reset_mask": ended.astype(np.bool_)})
            for array, fresh in zip(arrays, self._batch(obs)):
                array[streams] = fresh[streams]
        else:
            if "final_obs" not in infos:
                raise EnvError(f'{self._where()}: environments with SAME_STEP resets must give infos["final_obs"].')
            rows = [row_of(infos["final_obs"], int(stream)) for stream in streams]
            try:
                last = self._layout.stack([row[0] for row in rows] if self._unstack else rows)
            except ObservationError as error:
                where = self._where(int(streams[error.row]))
                raise EnvError(f'{where}: in infos["final_obs"] {error}') from None
        self._check(last, rows=streams)
        return (streams, self._layout.tree(last)), arrays

    def _batch(self, obs: Any) -> list[Array]:
        try:
            return self._layout.batch(obs[:, 0] if self._unstack else obs, self.num_envs)
        except ObservationError as error:
            raise EnvError(f"{self._where()}: {error}") from None

    def _check(self, arrays: list[Array], reward: Array | None = None, rows: Array | None = None) -> None:
        problem = self._layout.find_problem(arrays)
        if problem is not None:
            stream = problem[0] if rows is None else int(rows[problem[0]])
            raise EnvError(f"{self._where(stream)}: {problem[1]}. Observation space: {self.observation_space}.")
        if reward is not None and not np.isfinite(reward.dot(reward)):
            bad = np.flatnonzero(~np.isfinite(reward))
            if bad.size:
                raise EnvError(f"{self._where(int(bad[0]))}: the reward is {reward[bad[0]]}; it must be finite.")

    def _where(self, stream: int | None = None) -> str:
        which = "" if stream is None else f", stream {stream}"
        return f"Environment {self._name}{which}, step {self._num_steps}"

    def _reset_now(self, seeds: Sequence[int] | None) -> Any:
        if seeds is None or self._seeding == "construct":
            return self._env.reset()[0]
        forms = {"int": int(seeds[0]), "list": [int(s) for s in seeds], "array": np.array(seeds, np.int32)}
        return self._env.reset(seed=forms[self._seeding])[0]

    def _replace(self, seeds: Sequence[int]) -> None:
        close_vector(self._env, at_once=True)
        self._env = self._make(seeds)

    def _crashed(self) -> Step:
        obs = self._rebuild()
        arrays = self._batch(obs)
        self._check(arrays)
        if (problem := self._layout.outside(arrays)) is not None:
            raise EnvError(f"{self._where(problem[0])}: {problem[1]}.")
        self._pending = np.zeros(self.num_envs, np.bool_)
        nothing = np.zeros(self.num_envs, np.bool_)
        crashes, self._crashes = self._crashes, []
        return Step(
            obs=self._layout.tree(arrays),
            reward=np.zeros(self.num_envs, np.float32),
            terminated=nothing,
            truncated=nothing.copy(),
            valid=nothing.copy(),
            first=~nothing,
            crashes=crashes,
        )

    def _rebuild(self) -> Any:
        """Called where the vector raised: replaces it and returns the first observations."""
        text = user_traceback()
        self._crashes.append(f"{self._where()}:\n{text}")
        for _ in range(MAX_REBUILDS):
            self._num_rebuilds += 1
            seeds = [rebuild_seed(self._spec, stream, self._num_rebuilds) for stream in range(self.num_envs)]
            try:
                self._replace(seeds)
                return self._reset_now(seeds)
            except EnvError:
                raise
            except Exception:
                text = user_traceback()
        raise EnvError(
            f"{self._where()}: it raised and could not be rebuilt in {MAX_REBUILDS} attempts. The last:\n{text}"
        )


def autoreset_mode(env: Any, name: str) -> AutoresetMode:
    """The mode that a vector environment declares.

    Raises:
        EnvError: it declares none; to guess would corrupt every bootstrap.
    """
    mode = (env.metadata or {}).get("autoreset_mode")
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError:
        raise EnvError(
            f"Environment {name}: its metadata['autoreset_mode'] is {mode!r}; a vector environment must declare one of "
            "gymnasium.vector.AutoresetMode (NEXT_STEP, SAME_STEP or DISABLED)."
        ) from None


def single_observation_space(env: Any, unstack: bool) -> Any:
    """The space of one environment; where a frame axis is dropped, without it."""
    space = env.single_observation_space
    if unstack:
        return spaces.Box(space.low[0], space.high[0], dtype=space.dtype)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and (space.low == np.finfo(space.dtype).tiny).any():
        # EnvPool says numeric_limits::min(), the smallest positive number, where it means "no bound"
        low = np.where(space.low == np.finfo(space.dtype).tiny, -np.inf, space.low).astype(space.dtype)
        high = np.where(space.high == np.finfo(space.dtype).max, np.inf, space.high).astype(space.dtype)
        return spaces.Box(low, high, dtype=space.dtype)
    return space


def row_of(batch: Any, stream: int) -> Any:
    """One stream's part of a batch: of an array (of objects too), or of a mapping or tuple of such."""
    if isinstance(batch, Mapping):
        return {key: row_of(value, stream) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(row_of(value, stream) for value in batch)
    return batch[stream]


def stream_info(infos: Mapping[str, Any], stream: int) -> dict[str, Any]:
    """One stream's info out of Gymnasium's columns; keys whose mask `_key` is unset there are left out."""
    if isinstance(infos.get("final_info"), Mapping):
        return stream_info(infos["final_info"], stream)
    info: dict[str, Any] = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if (key.startswith("_") and key[1:] in infos) or key in ("final_obs", "final_info", "players", "env_id"):
            continue
        if mask is not None and not mask[stream]:
            continue
        if isinstance(value, Mapping):
            info[key] = stream_info(value, stream)
        elif isinstance(value, (np.ndarray, list, tuple)) and len(value) > stream:
            info[key] = value[stream]
    return info


def close_vector(env: Any, at_once: bool = False) -> None:
    """Close quietly; processes of an AsyncVectorEnv get 5 s, or none `at_once`, and never outlive it."""
    processes = getattr(env, "processes", None)
    with suppress(Exception), quiet():
        if processes is None:
            env.close()
        else:
            env.close(timeout=5, terminate=at_once)
    for process in processes or ():
        with suppress(Exception):
            if process.is_alive():
                process.kill()
            process.join(5)
            process.close()
    if processes is not None:
        # its __del__ would close once more
        env.closed = True
