"""Actor: a rollout worker that does what a user's program says."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import gymnasium
import numpy as np

from raypid.errors import UserError
from raypid.nn.network_policy import Exploration
from raypid.roles.rollout import Rollout, RolloutSpec
from raypid.types import Array, Report, Trajectory, Tree, Update, Weights, tree_map


class DistributedWrapper:
    """A Gym-like environment for one actor: B streams, reset by themselves, and the policy that acts in them.

    Every step is recorded. `trajectory` hands out what was recorded since the last one.
    """

    def __init__(self, rollout: Actor) -> None:
        self._rollout = rollout
        self._acted = False
        self.num_envs = rollout.env.num_envs
        """B."""
        self.num_steps = rollout.spec.fragment_length
        """T: rows of a trajectory."""
        self.observation_space: gymnasium.Space[Any] = rollout.env.observation_space
        """Of one environment."""
        self.action_space: gymnasium.Space[Any] = rollout.env.action_space
        """Of one environment."""
        self.report: Report | None = None
        """Episodes and times of the trajectory that was handed out last."""
        self._counted = self._nothing()
        """Those of all that were handed out since the last one was yielded."""

    @property
    def obs(self) -> Tree:
        """[B, *] where the streams are."""
        return self._rollout.obs

    def reset(self) -> tuple[Tree, dict[str, Any]]:
        """Begin new episodes in all streams; what was recorded since the last trajectory is dropped. Observations [B, *], {}."""
        self._rollout.restart()
        self._acted = False
        return self.obs, {}

    def act(self) -> Tree:
        """What the newest policy does where the streams are: canonical actions [B, *] (continuous ones before scaling and
        clipping), drawn once a step. The loss takes whatever is stepped with as the policy's own draw."""
        if not hasattr(self._rollout, "rows"):
            raise UserError(
                "run() stepped before its first trajectory was asked for: it is a generator, so it says `yield env.rollout()`, "
                "not `return`."
            )
        if not self._acted:
            self._before = self._rollout.state
            self._action, self._acted = self._rollout.act().action, True
        return self._action

    def step(self, action: Tree) -> tuple[Tree, Array, Array, Array, dict[int, Mapping[str, object]]]:
        """(obs [B, *], reward [B], terminated [B], truncated [B], {stream: info} of episodes that ended)."""
        self.act()  # the policy sees every step, whoever acts
        self._acted = False
        action = tree_map(
            lambda given, drawn: np.asarray(given, drawn.dtype).reshape(drawn.shape), action, self._action
        )
        step = self._rollout.step(action)
        return self.obs, step.reward, step.terminated, step.truncated, step.infos

    def trajectory(self) -> Trajectory:
        """What was recorded since the last trajectory, to be yielded; rewards and all else may be changed before."""
        if not self._rollout.rows.steps:
            raise UserError(
                "run() asked for a trajectory before any step: call env.step(action) num_steps times first."
            )
        self._forget_look()
        self.report, trajectory = self._rollout.finish()
        self._counted.join(self.report)
        self._rollout.clear_rows()
        return trajectory

    def _nothing(self) -> Report:
        """A report of no step."""
        return Report(self._rollout.worker_index, 0, 0, timing={"env": 0.0, "inference": 0.0, "total": 0.0})

    def _forget_look(self) -> None:
        """An action that was only looked at is none of the trajectory's; the next one begins with another, of the newest policy."""
        if self._acted:
            self._rollout.undo_act(self._before)
            self._acted = False

    def rollout(self) -> Trajectory:
        """`num_steps` steps of the newest policy, as a trajectory."""
        for _ in range(self.num_steps):
            self.step(self.act())
        return self.trajectory()


class Program(Protocol):
    """What a user may override. Each actor and each learner has a copy of its own."""

    learner: Any
    """In a learner: the algorithm. None elsewhere."""

    def run(self, env: DistributedWrapper, actor_idx: int) -> Iterator[Trajectory]:
        """In an actor: yield trajectories of num_steps rows, for ever. The newest weights are there after each."""

    def update(self, batch: Any, timesteps: int) -> Update:
        """In the learner: learn from a batch, which has the rows of several actors side by side."""


class Actor(Rollout):
    """A rollout worker whose fragments come out of a program."""

    def __init__(self, spec: RolloutSpec, program: Program, worker_index: int = 0, restarts: int = 0) -> None:
        super().__init__(spec, worker_index, restarts)
        self.program = copy.copy(program)
        self._begin_program()

    def _begin_program(self) -> None:
        self.wrapper = DistributedWrapper(self)
        self.trajectories = self.program.run(self.wrapper, self.worker_index)
        if not isinstance(self.trajectories, Iterator):
            raise UserError(
                f"run() returned {self.trajectories!r}; it is a generator: `while True: yield env.rollout()` is the simplest."
            )

    def restart(self) -> None:
        """Begin new episodes; the fragment begins anew."""
        self.reset_streams(None)
        self.clear_rows()

    def start_fragment(self, weights: Weights, exploration: Exploration | None = None) -> None:
        if self._collecting:  # a generator that raised is spent
            self._begin_program()
        self.wrapper._forget_look()
        super().start_fragment(weights, exploration)

    def collect(self, weights: Weights, exploration: Exploration | None = None) -> tuple[Report, Trajectory]:
        """What the program yields next."""
        self.start_fragment(weights, exploration)
        trajectory: Any = next(self.trajectories, None)
        length = self.spec.fragment_length
        if not isinstance(trajectory, Trajectory):
            what = "ended" if trajectory is None else f"yielded {trajectory!r:.80}"
            raise UserError(f"run() {what}; it yields what env.rollout() or env.trajectory() gives, for ever.")
        if trajectory.num_rows != length:
            raise UserError(f"run() yielded {trajectory.num_rows} rows; every trajectory has num_steps={length} rows.")
        report, self.wrapper._counted = self.wrapper._counted, self.wrapper._nothing()
        report.version = trajectory.version
        self._collecting = False
        return report, trajectory
