"""Workers: the environments and the policy of a rollout, and how it collects fragments."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import TypedDict

import numpy as np

from raypid.envs import Step, stream_seeds
from raypid.nn.network_policy import Acted, Exploration
from raypid.nn.numpy_cells import split_state
from raypid.nn.policy import make_policy
from raypid.ops.normalizer import moments_of
from raypid.roles.acting import EnvironmentLoop, Episode, RolloutSpec
from raypid.roles.divergence import quiet
from raypid.roles.lasting_noise import LastingNoise, LastingNoiseState
from raypid.storage.checkpoint import refusing
from raypid.types import Array, Collected, Final, Report, Trajectory, Tree, Weights, tree_concat, tree_map, tree_stack

_RESTARTED = 1_000_000
"""Added to a worker's restarts where its environments' seeds are drawn: these differ from the seeds after a save."""


class WorkerState(TypedDict, total=False):
    """The state of a worker that a saved run keeps."""

    rng: Mapping[str, object]
    noise: LastingNoiseState
    source: dict[str, object]
    """`GradientSource.local_state`, if the worker computes gradients."""


class RolloutWorker(EnvironmentLoop, ABC):
    """The environments and the policy of one worker; subclasses say what it collects.

    `worker_index` and `restarts` (how often this worker was rebuilt) choose its random numbers.
    """

    def __init__(self, spec: RolloutSpec, worker_index: int = 0, restarts: int = 0) -> None:
        self.spec, self.worker_index = spec, worker_index
        self.returns = copy(spec.returns)

        def seed(purpose: int) -> np.random.SeedSequence:
            return np.random.SeedSequence(spec.seed, spawn_key=(purpose, worker_index, restarts))

        super().__init__(
            replace(spec.env, worker_index=worker_index),
            make_policy(spec.network, seed(5).generate_state(1)[0]),
            np.random.default_rng(seed(2)),
            observation_noise=spec.observation_noise,
            action_noise=spec.action_noise,
        )
        self.lasting = LastingNoise(spec.noise_persistence, self.env.num_envs)
        self.reset_streams(stream_seeds(self.env_spec, _RESTARTED + restarts if restarts else None))

    def reset_streams(self, seeds: list[int] | None) -> None:
        """Begin new episodes in all streams, as `EnvironmentLoop` does, and new exploration noise."""
        super().reset_streams(seeds)
        self.lasting.begin()
        self.policy.distribution.draw_by(self.lasting.kept)

    def step(self, action: Tree) -> Step:
        """Step all environments with canonical actions [B, *].

        Raises:
            EnvError: they have raised more than `max_crashes` allows; its text ends with the last traceback.
        """
        step = super().step(action)
        self.refuse_crashes(step.crashes, self.spec.max_crashes, f"Environments of worker {self.worker_index}")
        if self.ended and self.lasting.kept is not None and not self.lasting.go_on(self.ended):
            self.policy.distribution.draw_by(None)
        return step

    def empty_report(self, version: int = 0) -> Report:
        """A report of nothing so far, which others may join."""
        return Report(self.worker_index, 0, version, timing={"env": 0.0, "inference": 0.0, "total": 0.0})

    @abstractmethod
    def collect(self, weights: Weights, exploration: Exploration | None = None) -> tuple[Report, Collected]:
        """Act with these weights; returns a report, and the data for the learner."""

    def report_episode(self, report: Report, episode: Episode) -> None:
        """Add an episode to the report, and call the callbacks."""
        report.episode_rewards.append(episode.reward)
        report.episode_lengths.append(episode.length)
        if self.spec.callbacks is not None:
            info = {**episode.info, "episode_reward": episode.reward, "episode_length": episode.length}
            info |= {"worker_index": self.worker_index, "stream_index": episode.stream}
            for name, value in (self.spec.callbacks.on_episode_end(info) or {}).items():
                report.episode_metrics.setdefault(name, []).append(float(value))

    def boundary(self, save_count: int) -> None:
        """Restart all streams with new seeds: how an exact save cuts a run. Unfinished episodes do not count."""
        self.reset_streams(stream_seeds(self.env_spec, save_count))

    def state_dict(self) -> WorkerState:
        """The states of the random generator and of the exploration noise. Environments cannot be saved (see `boundary`)."""
        return {"rng": self.rng.bit_generator.state, "noise": self.lasting.state_dict()}

    def load_state_dict(self, state: WorkerState) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            CheckpointError: it is no such state.
        """
        with refusing(f"The state of worker {self.worker_index} in the checkpoint"):
            self.rng.bit_generator.state = state["rng"]
            if "noise" in state:
                self.lasting.load_state_dict(state["noise"])


class _Recording:
    """A fragment that is being collected, and where its streams were when it began."""

    def __init__(self, obs: Tree, first: Array, state: Tree | None) -> None:
        self.obs, self.first, self.state = [obs], [first], state
        self.acted: list[Acted] = []
        self.actions: list[Tree] = []
        self.steps: list[Step] = []
        self.episodes: list[Episode] = []


class FragmentWorker(RolloutWorker):
    """A worker that records what it does: `start_fragment`, then `act` and `step` for each row, then `finish`."""

    _collecting = False

    def collect_fragment(self, weights: Weights, exploration: Exploration | None = None) -> tuple[Report, Trajectory]:
        """Act for `fragment_length` rows; episodes go on in the next call."""
        self.start_fragment(weights, exploration)
        for _ in range(self.spec.fragment_length):
            self.step(self.act().action)
        return self.finish()

    def start_fragment(self, weights: Weights, exploration: Exploration | None = None) -> None:
        """Start a fragment that acts with these weights."""
        if self._collecting:
            # the call before was interrupted: its rows are lost, so the streams start anew
            self.reset_streams(None)
        self._collecting = True
        self.policy.load(weights)
        self.policy.exploration = exploration or {}
        self.clear_rows()

    def clear_rows(self) -> None:
        """Drop the rows so far; the fragment now begins where the streams are."""
        self.rows = _Recording(self.obs, self.first, self.state)
        self.reset_timing()

    def step(self, action: Tree) -> Step:
        """Step with canonical actions [B, *], those that `act` has drawn or others, which adds a row to the fragment."""
        step, rows = super().step(action), self.rows
        if not self.spec.network.memory:
            self.acted.state = None  # a stack of frames: nobody needs it later, and it would hold many images
        rows.acted.append(self.acted)
        rows.actions.append(action)
        rows.steps.append(step)
        rows.obs.append(self.obs)
        rows.first.append(self.first)
        rows.episodes += self.ended
        return step

    def finish(self) -> tuple[Report, Trajectory]:
        """Hand over the rows so far as a fragment."""
        rows, steps, before = self.rows, self.rows.steps, time.perf_counter()
        trajectory = Trajectory(
            obs=tree_stack(rows.obs),
            first=np.array(rows.first),
            action=tree_stack(rows.actions),
            reward=np.array([s.reward for s in steps]),
            terminated=np.array([s.terminated for s in steps]),
            truncated=np.array([s.truncated for s in steps]),
            valid=np.array([s.valid for s in steps]),
            final=_finals(steps),
            behaviour={k: np.array([a.behaviour[k] for a in rows.acted]) for k in rows.acted[0].behaviour},
            state=rows.state,
            stream=self.worker_index * self.env.num_envs + np.arange(self.env.num_envs),
            version=self.policy.version,
        )
        self._complete(trajectory, rows)
        self._inference_s += time.perf_counter() - before
        crashes = [crash for step in steps for crash in step.crashes]
        report = Report(self.worker_index, trajectory.num_valid, trajectory.version, crashes=crashes)
        for episode in rows.episodes:
            self.report_episode(report, episode)
        self._collecting = False
        if self.returns is not None:
            report.returns = self.returns.moments(trajectory.reward, trajectory.first, trajectory.valid)
        report.moments = trajectory.moments
        report.timing = self.timing()
        return report, trajectory

    @quiet
    def _complete(self, trajectory: Trajectory, rows: _Recording) -> None:
        """Add what the policy computes for the whole fragment at once."""
        states = [rows.state, *(acted.state for acted in rows.acted)]
        params = [acted.params for acted in rows.acted if acted.params is not None]
        self.policy.complete(trajectory, states, np.array(params) if params else None)
        if self.spec.record_memory:
            memories = (split_state(self.spec.network, state)[1] for state in states[:-1])
            trajectory.behaviour["memory"] = np.array([memory for memory in memories if memory is not None])
        if self.spec.network.pipeline.normalize:
            raw = self.policy.pipeline.raw_vector(tree_map(lambda x: x[:-1], trajectory.obs))
            trajectory.moments = moments_of(raw[trajectory.valid])


class TrajectoryWorker(FragmentWorker):
    """The worker that sends its fragments to the learner."""

    def collect(self, weights: Weights, exploration: Exploration | None = None) -> tuple[Report, Trajectory]:
        """Collect a fragment."""
        return self.collect_fragment(weights, exploration)


def _finals(steps: list[Step]) -> Final | None:
    """Join the true last observations of environments that reset within the step."""
    found = [(t, *step.final) for t, step in enumerate(steps) if step.final is not None]
    if not found:
        return None
    rows = np.concatenate([np.full(len(b), t) for t, b, _ in found])
    return Final(rows, np.concatenate([b for _, b, _ in found]), tree_concat([obs for _, _, obs in found]))
