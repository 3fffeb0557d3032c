"""Rollout worker: steps its environments with the policy it was given and hands over fragments."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from raypid.callbacks import Callbacks
from raypid.envs import EnvError, EnvSpec, Step, make_vector, stream_seeds
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.numpy_cells import split_state
from raypid.nn.policy import make_policy
from raypid.ops.normalizer import moments_of
from raypid.registry import NETWORKS
from raypid.types import Array, Final, Report, Trajectory, Tree, Weights, tree_concat, tree_map, tree_stack


@dataclass(kw_only=True, slots=True)
class RolloutSpec:
    """What crosses to a worker: plain data, never an algorithm's Config."""

    env: EnvSpec
    network: NetworkSpec
    fragment_length: int
    seed: int
    observation_noise: float = 0.0
    action_noise: float = 0.0
    max_crashes: int = 10
    callbacks: Callbacks | None = None
    record_memory: bool = False
    """Hand over the policy's memory before each row (behaviour "memory"), for replay of sequences."""
    networks: dict[str, Any] = field(default_factory=dict)
    """Registered networks that the worker needs, by name."""


class _Rows:
    """A fragment that is being collected, from where the streams are."""

    def __init__(self, obs: Tree, first: Array, state: Tree | None) -> None:
        self.obs, self.first, self.states = [obs], [first], [state]
        self.actions: list[Tree] = []
        self.behaviours: list[dict[str, Array]] = []
        self.steps: list[Step] = []
        self.infos: list[tuple[int, dict[int, dict[str, Any]]]] = []
        self.started = time.perf_counter()
        self.env_s = self.inference_s = 0.0


_RESTARTED = 1_000_000
"""Added to the restarts of a worker where its environments' seeds are drawn, to differ from the saves."""


class Rollout:
    """B streams and a policy. `worker_index` and `restarts` (of this worker so far) choose its random numbers."""

    def __init__(self, spec: RolloutSpec, worker_index: int = 0, restarts: int = 0) -> None:
        for name, entry in spec.networks.items():
            NETWORKS.register(name, entry)
        self.spec, self.worker_index = spec, worker_index
        self.env_spec = replace(spec.env, worker_index=worker_index)
        self.env = make_vector(self.env_spec)
        self.policy = make_policy(spec.network, self._seed(5, restarts).generate_state(1)[0])
        self.rng = np.random.default_rng(self._seed(2, restarts))
        self.num_crashes = 0
        self._collecting = False
        self._start(stream_seeds(self.env_spec, _RESTARTED + restarts if restarts else None))

    def _seed(self, purpose: int, restarts: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.spec.seed, spawn_key=(purpose, self.worker_index, restarts))

    def _start(self, seeds: list[int] | None) -> None:
        self.obs = self._noisy(self.env.reset(seeds))
        self.first: Array = np.ones(self.env.num_envs, bool)
        self.state = self.policy.initial_state(self.env.num_envs)
        self.episode_reward = np.zeros(self.env.num_envs)
        self.episode_length = np.zeros(self.env.num_envs, np.int64)

    def _noisy(self, obs: Tree) -> Tree:
        if not self.spec.observation_noise:
            return obs

        def add(x: Array) -> Array:
            if not np.issubdtype(x.dtype, np.floating):
                return x
            return x + (self.spec.observation_noise * self.rng.standard_normal(x.shape)).astype(x.dtype)

        return tree_map(add, obs)

    def _perturbed(self, action: Tree) -> Tree:
        def add(x: Array) -> Array:
            if not np.issubdtype(x.dtype, np.floating):
                return x
            return x + np.float32(self.spec.action_noise) * self.rng.standard_normal(x.shape, dtype=np.float32)

        return tree_map(add, action)

    def ready(self) -> int:
        """Its index: a call that returns once the worker stands."""
        return self.worker_index

    def collect(self, weights: Weights, exploration: Mapping[str, Any] | None = None) -> tuple[Report, Trajectory]:
        """Act for `fragment_length` rows; episodes go on in the next call. `exploration` holds what the policy explores by."""
        self.begin(weights, exploration)
        for _ in range(self.spec.fragment_length):
            self.step(self.act())
        return self.finish()

    def begin(self, weights: Weights, exploration: Mapping[str, Any] | None = None) -> None:
        """Begin a fragment, with these weights."""
        if self._collecting:  # the call before was broken off: its rows are lost, and what follows does not join on
            self._start(None)
        self._collecting = True
        self.policy.load(weights)
        self.policy.exploration = exploration or {}
        self.begin_rows()

    def begin_rows(self) -> None:
        """Forget the rows so far; the fragment begins where the streams are."""
        self.rows = _Rows(self.obs, self.first, self.state)

    def act(self) -> Tree:
        """Canonical actions [B, *] for where the streams are; then comes `step`, with these or others."""
        rows, before = self.rows, time.perf_counter()
        action, self.state, behaviour = self.policy.act(self.obs, self.state, self.first, self.rng, explore=True)
        if self.spec.network.memory:  # the states of frame stacks alone are not kept: nobody needs them
            rows.states.append(self.state)
        rows.behaviours.append(behaviour)
        rows.inference_s += time.perf_counter() - before
        return action

    def take_back(self, state: Tree | None) -> None:
        """As if the last `act` had not been; `state` is what the policy remembered before it."""
        self.state = state
        self.rows.behaviours.pop()
        if self.spec.network.memory:
            self.rows.states.pop()

    def step(self, action: Tree) -> Step:
        """Take canonical actions [B, *]: a row of the fragment."""
        rows, before = self.rows, time.perf_counter()
        env_action = self.policy.to_env(self._perturbed(action) if self.spec.action_noise else action)
        acted = time.perf_counter()
        step = self.env.step(env_action)
        rows.env_s += time.perf_counter() - acted
        rows.inference_s += acted - before
        self.obs, self.first = self._noisy(step.obs), step.first
        if step.final is not None:
            step.final = (step.final[0], self._noisy(step.final[1]))
        if step.infos:
            rows.infos.append((len(rows.steps), step.infos))
        rows.actions.append(action)
        rows.steps.append(step)
        rows.obs.append(self.obs)
        rows.first.append(self.first)
        return step

    def finish(self) -> tuple[Report, Trajectory]:
        """The rows since `begin` as a fragment."""
        rows, steps, before = self.rows, self.rows.steps, time.perf_counter()
        trajectory = Trajectory(
            obs=tree_stack(rows.obs),
            first=np.stack(rows.first),
            action=tree_stack(rows.actions),
            reward=np.stack([s.reward for s in steps]),
            terminated=np.stack([s.terminated for s in steps]),
            truncated=np.stack([s.truncated for s in steps]),
            valid=np.stack([s.valid for s in steps]),
            final=_finals(steps),
            behaviour={k: np.stack([b[k] for b in rows.behaviours]) for k in rows.behaviours[0]},
            state=rows.states[0],
            stream=self.worker_index * self.env.num_envs + np.arange(self.env.num_envs),
            version=self.policy.version,
        )
        self._complete(trajectory, rows.states)
        inference_s = rows.inference_s + time.perf_counter() - before
        crashes = [crash for step in steps for crash in step.crashes]
        report = Report(self.worker_index, trajectory.num_valid, trajectory.version, crashes=crashes)
        self._episodes(trajectory, rows.infos, report)
        self._check_crashes(crashes)
        self._collecting = False
        report.timing = {"env": rows.env_s, "inference": inference_s, "total": time.perf_counter() - rows.started}
        return report, trajectory

    def _complete(self, trajectory: Trajectory, states: list[Tree | None]) -> None:
        """Add what the policy can say of the whole fragment. states: before each row and after the last, where it has a memory."""
        self.policy.complete(trajectory, states)
        if self.spec.record_memory:
            memories: list[Any] = [split_state(self.spec.network, s)[1] for s in states[:-1]]
            trajectory.behaviour["memory"] = np.stack(memories)
        if self.spec.network.pipeline.normalize:
            raw = self.policy.pipeline.raw_vector(tree_map(lambda x: x[:-1], trajectory.obs))
            trajectory.moments = moments_of(raw[trajectory.valid])

    def _episodes(
        self, trajectory: Trajectory, infos: list[tuple[int, dict[int, dict[str, Any]]]], report: Report
    ) -> None:
        """Returns and lengths of the episodes that ended; what is unfinished is carried to the next call."""
        t = trajectory
        ended = (t.terminated | t.truncated) & t.valid
        reward = np.concatenate([self.episode_reward[None], np.where(t.valid, t.reward, 0.0)]).cumsum(0)
        length = np.concatenate([self.episode_length[None], t.valid]).cumsum(0)
        infos_at = {(row, b): info for row, by_stream in infos for b, info in by_stream.items()}
        # a stream starts anew after an end or a crash: what was summed up to there no longer counts
        starts = np.argwhere(ended | (t.first[1:] & ~t.valid))
        reward_base, length_base = np.zeros(t.num_streams), np.zeros(t.num_streams, np.int64)
        for row, b in starts:
            if ended[row, b]:
                total, steps = float(reward[row + 1, b] - reward_base[b]), int(length[row + 1, b] - length_base[b])
                self._episode(report, int(b), total, steps, infos_at.get((row, b), {}))
            reward_base[b], length_base[b] = reward[row + 1, b], length[row + 1, b]
        self.episode_reward, self.episode_length = reward[-1] - reward_base, length[-1] - length_base

    def _episode(self, report: Report, stream: int, total: float, steps: int, env_info: dict[str, Any]) -> None:
        """An episode that has ended goes into the report, and to the callbacks."""
        report.episode_rewards.append(total)
        report.episode_lengths.append(steps)
        if self.spec.callbacks is not None:
            info = {**env_info, "episode_reward": total, "episode_length": steps}
            info |= {"worker_index": self.worker_index, "stream_index": stream}
            for name, value in (self.spec.callbacks.on_episode_end(info) or {}).items():
                report.episode_metrics.setdefault(name, []).append(float(value))

    def _check_crashes(self, crashes: list[str]) -> None:
        self.num_crashes += len(crashes)
        if self.num_crashes > self.spec.max_crashes:
            raise EnvError(
                f"Environments of worker {self.worker_index} raised {self.num_crashes} times, max_restarts allows "
                f"{self.spec.max_crashes}. The last error:\n{crashes[-1]}"
            )

    def boundary(self, save_count: int) -> None:
        """End all partial episodes (they count for nothing) and start the streams anew: how an exact save cuts a run."""
        self._start(stream_seeds(self.env_spec, save_count))

    def state_dict(self) -> dict[str, Any]:
        """The random generator; environments cannot be saved (see `boundary`)."""
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]

    def close(self) -> None:
        self.env.close()


def _finals(steps: list[Any]) -> Final | None:
    """True last observations of the environments that reset in the same step."""
    found = [(t, *step.final) for t, step in enumerate(steps) if step.final is not None]
    if not found:
        return None
    rows = np.concatenate([np.full(len(b), t) for t, b, _ in found])
    return Final(rows, np.concatenate([b for _, b, _ in found]), tree_concat([obs for _, _, obs in found]))
