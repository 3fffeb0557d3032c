"""Fitness worker: plays whole episodes with perturbed weights, each stream with a perturbation of its own.

Axes: B streams; n pairs of antithetic perturbations; P weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from raypid.errors import Halted
from raypid.nn.network_policy import Exploration
from raypid.nn.population import make_population
from raypid.ops.normalizer import Moments, merge_moments, moments_of, zero_moments
from raypid.roles.acting import RolloutSpec
from raypid.roles.worker import RolloutWorker
from raypid.types import Array, Fitness, Report, Weights

_IDLE = -1
_CHUNK = 128
"""Steps whose observations are kept before they are merged into the moments."""


def _merged(moments: Moments, observations: list[Array]) -> Moments:
    """Add observations [k, D] of several steps to the moments of those before."""
    return merge_moments(moments, moments_of(np.concatenate(observations))) if observations else moments


class FitnessWorker(RolloutWorker):
    """B streams that play turns: turn 2 k is the first of pair k (+), turn 2 k + 1 the second (-).

    A stream whose episode ends takes the next turn. Once none is left it idles, and what it does counts for nothing. Episodes
    never go on in the next call. `noise` is the shared table; it is read, never copied.
    """

    def __init__(self, spec: RolloutSpec, worker_index: int, restarts: int, noise: Array) -> None:
        self.noise = noise
        self.halted: Callable[[], bool] = lambda: False
        """Whether to break off, asked after each step; set where this runs in the process of the run."""
        super().__init__(spec, worker_index, restarts)
        self.population = make_population(spec.network, self.env.num_envs)
        self.policy.network = self.population

    def reset_streams(self, seeds: list[int] | None) -> None:
        super().reset_streams(seeds)
        self.turn = np.full(self.env.num_envs, _IDLE)
        self._stepped = False
        """Whether the streams have left their first observations."""

    def collect(self, weights: Weights, exploration: Exploration | None = None) -> tuple[Report, Fitness]:
        """Evaluate exploration["pairs"] pairs of perturbations with deviation exploration["sigma"].

        Raises:
            UserError: an episode does not end.
            Halted: `halted` says so.
        """
        assert exploration is not None
        self.reset_timing()
        pairs, sigma = int(exploration["pairs"]), float(exploration["sigma"])
        if self._stepped:
            self.reset_streams(None)
        self._stepped = True
        self.policy.load(weights)
        index = self.rng.integers(len(self.noise) - len(weights.flat) + 1, size=pairs)
        fitness = Fitness(index, np.zeros((pairs, 2)), np.zeros((pairs, 2), np.int64), weights.version)
        report = Report(self.worker_index, 0, weights.version, size=pairs)
        turns = iter(range(2 * pairs))

        def next_turn(b: int) -> None:
            turn = self.turn[b] = next(turns, _IDLE)
            if turn != _IDLE:
                k, side = divmod(turn, 2)
                noise = self.noise[index[k] : index[k] + len(weights.flat)]
                np.multiply(noise, np.float32(-sigma if side else sigma), out=self.population.streams[b])
                self.population.streams[b] += weights.flat

        for b in range(self.env.num_envs):
            next_turn(b)
        normalize, pipeline = self.spec.network.pipeline.normalize, self.policy.pipeline
        moments, observed = zero_moments(pipeline.normalized_size), list[Array]()
        while (playing := self.turn != _IDLE).any():
            if self.halted():
                raise Halted
            obs = self.obs
            step = self.step(self.act(explore=False).action)
            valid = step.valid & playing
            report.num_steps += int(np.count_nonzero(valid))
            report.crashes += step.crashes
            self.check_lengths(playing)
            if normalize:
                observed.append(pipeline.raw_vector(obs)[valid])
                if len(observed) == _CHUNK:
                    moments, observed = _merged(moments, observed), []
            for episode in self.ended:
                if playing[episode.stream]:
                    self.report_episode(report, episode)
                    k, side = divmod(int(self.turn[episode.stream]), 2)
                    fitness.value[k, side], fitness.length[k, side] = episode.reward, episode.length
                    next_turn(episode.stream)
        if normalize:
            fitness.moments = _merged(moments, observed)
        report.timing = self.timing()
        return report, fitness
