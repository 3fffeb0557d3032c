"""A worker whose trajectories are made by a user's program, and the environment that the program steps."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Protocol

import gymnasium
import numpy as np

from raypid.algorithms.base import Algorithm
from raypid.envs.infos import Info
from raypid.errors import UserError
from raypid.nn.network_policy import Exploration
from raypid.roles.acting import RolloutSpec
from raypid.roles.worker import TrajectoryWorker
from raypid.settings.config import Config
from raypid.types import Array, Report, Trajectory, Tree, Update, Weights, tree_map


class DistributedWrapper:
    """A Gym-like environment for one actor: B streams that reset by themselves, and the policy that acts in them.

    Every step is recorded; `trajectory` returns the steps since the previous trajectory.
    """

    def __init__(self, rollout: ProgramWorker) -> None:
        self._rollout = rollout
        self._drawn: Tree | None = None
        """Actions that are drawn but not taken."""
        self.num_envs = rollout.env.num_envs
        """B."""
        self.num_steps = rollout.spec.fragment_length
        """T: rows of a trajectory."""
        self.observation_space: gymnasium.Space[object] = rollout.env.observation_space
        """Of one environment."""
        self.action_space: gymnasium.Space[object] = rollout.env.action_space
        """Of one environment."""
        self.report: Report | None = None
        """Episodes and timing of the last trajectory."""
        self._counted = rollout.empty_report()
        """Episodes and timing of all trajectories since the last one that was yielded."""

    @property
    def obs(self) -> Tree:
        """Current observations [B, *]."""
        return self._rollout.obs

    def reset(self) -> tuple[Tree, dict[str, object]]:
        """Start new episodes in all streams and drop the steps since the last trajectory. Returns observations [B, *] and {}."""
        self._rollout.reset_streams(None)
        self._rollout.clear_rows()
        self._drawn = None
        return self.obs, {}

    def act(self) -> Tree:
        """The newest policy's actions for the current observations: canonical [B, *], continuous ones before scaling and clipping.

        They are drawn once per step. The loss assumes that the policy drew whatever action is passed to `step`.
        """
        if self._drawn is None:
            self._drawn = self._rollout.act().action
        return self._drawn

    def step(self, action: Tree) -> tuple[Tree, Array, Array, Array, dict[int, Info]]:
        """Take canonical actions [B, *].

        Returns obs [B, *], reward [B], terminated [B], truncated [B] and {stream: info} of the episodes that ended.

        Raises:
            UserError: the trajectory has all its rows.
        """
        if len(self._rollout.rows.steps) == self.num_steps:
            raise UserError(
                f"run() went on after num_steps={self.num_steps} steps: there it must `yield env.trajectory()`, or return."
            )
        drawn = self.act()  # the policy sees every step, even where the program chooses the action
        self._drawn = None
        step = self._rollout.step(
            tree_map(lambda x, like: np.asarray(x, like.dtype).reshape(like.shape), action, drawn)
        )
        return self.obs, step.reward, step.terminated, step.truncated, step.infos

    def trajectory(self) -> Trajectory:
        """The steps since the last trajectory, to be yielded. Rewards and everything else may be changed first."""
        if not self._rollout.rows.steps:
            raise UserError("run() ends a trajectory before any step: call env.step(action) num_steps times first.")
        self._drawn = None  # the next trajectory begins with an action of the newest policy
        self.report, trajectory = self._rollout.finish()
        self._counted.join(self.report)
        self._rollout.clear_rows()
        return trajectory

    def rollout(self) -> Trajectory:
        """Take `num_steps` steps with the newest policy; returns them as a trajectory."""
        for _ in range(self.num_steps):
            self.step(self.act())
        return self.trajectory()


class Program(Protocol):
    """What a user may override. Each actor and each learner has its own copy."""

    algorithm_instance: Algorithm[Config] | None
    """In a learner's process: the algorithm with its networks. None elsewhere."""

    def run(self, env: DistributedWrapper, actor_idx: int) -> Iterator[Trajectory]:
        """In an actor: yield trajectories of num_steps rows, forever. After each yield the policy has the newest weights.

        If it is no generator, it is called for each trajectory: it takes num_steps steps and returns None, or returns the trajectory.
        """

    def update(self, batch: Trajectory, timesteps: int) -> Update:
        """In a learner: learn from a batch, the trajectories of several actors side by side."""


class ProgramWorker(TrajectoryWorker):
    """A worker whose fragments are the trajectories that a program yields."""

    def __init__(self, spec: RolloutSpec, program: Program, worker_index: int = 0, restarts: int = 0) -> None:
        super().__init__(spec, worker_index, restarts)
        self.program = copy.copy(program)
        self._start_program()

    def _start_program(self) -> None:
        self.wrapper = DistributedWrapper(self)
        self.trajectories = self._program_trajectories()

    def _program_trajectories(self) -> Iterator[object]:
        """What the program yields, or what it returns at each call."""
        while True:
            made: object = self.program.run(self.wrapper, self.worker_index)
            if isinstance(made, Iterator):
                yield from made
                return
            yield self.wrapper.trajectory() if made is None else made

    def start_fragment(self, weights: Weights, exploration: Exploration | None = None) -> None:
        if self._collecting:  # a generator that raised is spent
            self._start_program()
        self.wrapper._drawn = None
        super().start_fragment(weights, exploration)

    def collect(self, weights: Weights, exploration: Exploration | None = None) -> tuple[Report, Trajectory]:
        """The next trajectory that the program yields."""
        self.start_fragment(weights, exploration)
        trajectory: object = next(self.trajectories, None)
        length = self.spec.fragment_length
        if not isinstance(trajectory, Trajectory):
            what = "ended" if trajectory is None else f"gave {trajectory!r:.80}"
            raise UserError(f"run() {what}. It must yield trajectories forever: env.rollout() or env.trajectory().")
        if trajectory.num_rows != length:
            raise UserError(f"run() gave {trajectory.num_rows} rows; trajectories must have num_steps={length} rows.")
        report, self.wrapper._counted = self.wrapper._counted, self.empty_report()
        report.version = trajectory.version
        self._collecting = False
        return report, trajectory
