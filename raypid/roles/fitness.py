"""Fitness worker: plays whole episodes with perturbed weights, each stream with a perturbation of its own.

Axes: B streams; n pairs of antithetic perturbations; P weights.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from raypid.errors import UserError
from raypid.nn.population import Population
from raypid.ops.normalizer import Moments, merge_moments, moments_of, zero_moments
from raypid.roles.evaluator import MAX_EPISODE_STEPS
from raypid.roles.rollout import Rollout, RolloutSpec
from raypid.types import Array, Fitness, Report, Weights

_IDLE = -1
_CHUNK = 128
"""Steps whose observations are kept until their moments are taken."""


class _Seen:
    """The moments of observations that come a few rows at a time."""

    def __init__(self, size: int) -> None:
        self._taken, self._rows = zero_moments(size), list[Array]()

    def add(self, rows: Array) -> None:
        """Rows [k, D]."""
        self._rows.append(rows)
        if len(self._rows) == _CHUNK:
            self._taken, self._rows = self.moments(), []

    def moments(self) -> Moments:
        if not self._rows:
            return self._taken
        return merge_moments(self._taken, moments_of(np.concatenate(self._rows)))


class FitnessRollout(Rollout):
    """B streams that play turns: turn 2 k is the first of pair k (+), turn 2 k + 1 the second (-).

    A stream whose episode ends takes the next turn; when none is left it idles, and what it does counts for nothing. Episodes never
    go on in the next call. `noise` is the shared table; it is read, never copied.
    """

    def __init__(self, spec: RolloutSpec, worker_index: int, restarts: int, noise: Array) -> None:
        self.noise = noise
        Rollout.__init__(self, spec, worker_index, restarts)
        self.population = Population(spec.network, self.env.num_envs)
        self.policy.network = self.population

    def _start(self, seeds: list[int] | None) -> None:
        Rollout._start(self, seeds)
        self.turn = np.full(self.env.num_envs, _IDLE)
        self.begun = False
        """Steps were taken since the streams were started."""

    def collect(self, weights: Weights, exploration: Mapping[str, Any] | None = None) -> tuple[Report, Fitness]:  # type: ignore[override]
        """Evaluate exploration["pairs"] pairs of perturbations of deviation exploration["sigma"].

        Raises:
            UserError: an episode does not end.
        """
        assert exploration is not None
        clock = time.perf_counter
        start, pairs, sigma = clock(), int(exploration["pairs"]), float(exploration["sigma"])
        if self.begun:
            self._start(None)
        self.begun = True
        self.policy.load(weights)
        index = self.rng.integers(len(self.noise) - len(weights.flat) + 1, size=pairs)
        fitness = Fitness(index, np.zeros((pairs, 2)), np.zeros((pairs, 2), np.int64), weights.version)
        report = Report(self.worker_index, 0, weights.version, timing={"env": 0.0, "inference": 0.0}, size=pairs)
        turns = iter(range(2 * pairs))

        def next_turn(b: int) -> None:
            turn = self.turn[b] = next(turns, _IDLE)
            if turn != _IDLE:
                k, side = divmod(turn, 2)
                noise = self.noise[index[k] : index[k] + len(weights.flat)]
                np.multiply(noise, np.float32(-sigma if side else sigma), out=self.population.flat[b])
                self.population.flat[b] += weights.flat

        for b in range(self.env.num_envs):
            next_turn(b)
        seen = _Seen(self.policy.pipeline.normalized_size) if self.spec.network.pipeline.normalize else None
        while (playing := self.turn != _IDLE).any():
            obs = self.obs
            valid, ended = self._step(playing, report)
            if seen is not None:
                seen.add(self.policy.pipeline.raw_vector(obs)[valid])
            for b in np.flatnonzero(ended).tolist():
                pair_and_side = divmod(int(self.turn[b]), 2)
                fitness.value[pair_and_side] = self.episode_reward[b]
                fitness.length[pair_and_side] = self.episode_length[b]
                self.episode_reward[b], self.episode_length[b] = 0.0, 0
                next_turn(b)
        if seen is not None:
            fitness.moments = seen.moments()
        report.timing["total"] = clock() - start
        return report, fitness

    def _step(self, playing: Array, report: Report) -> tuple[Array, Array]:
        """One step of all streams, counted in the report; which of those that play [B] made a real transition, and ended."""
        clock = time.perf_counter
        before = clock()
        action, self.state, _ = self.policy.act(self.obs, self.state, self.first, self.rng, explore=False)
        env_action = self.policy.to_env(self._perturbed(action) if self.spec.action_noise else action)
        acted = clock()
        step = self.env.step(env_action)
        report.timing["env"] += clock() - acted
        report.timing["inference"] += acted - before
        self.obs, self.first = self._noisy(step.obs), step.first
        valid = step.valid & playing
        self.episode_reward += np.where(valid, step.reward, 0.0)
        self.episode_length += valid
        report.num_steps += int(np.count_nonzero(valid))
        ended = (step.terminated | step.truncated) & valid
        for stream in np.flatnonzero(ended):
            total, steps = float(self.episode_reward[stream]), int(self.episode_length[stream])
            self._episode(report, int(stream), total, steps, step.infos.get(int(stream), {}))
        if step.crashes:
            report.crashes += step.crashes
            again = step.first & ~step.valid  # what a rebuilt environment was playing is played again
            self.episode_reward[again], self.episode_length[again] = 0.0, 0
            self._check_crashes(step.crashes)
        if self.episode_length.max() > MAX_EPISODE_STEPS:
            raise UserError(
                f"An episode of {self.spec.env.env} did not end within {MAX_EPISODE_STEPS:,} steps: set time_limit."
            )
        return valid, ended
