"""Pace: how many updates the environment steps so far call for, and which of rollouts and learner has to wait."""

from __future__ import annotations

from raypid.algorithms.off_policy import OffPolicyConfig
from raypid.errors import UserError
from raypid.roles.role import Role
from raypid.roles.setup import Setup
from raypid.types import Report


class Pace(Role):
    """Keeps the ratio of updates to environment steps, `config.updates_per_step`, as raypid's own loop with replay does.

    Whichever of rollouts and learner is ahead waits. The learner makes only the updates that are owed for steps after the
    warm-up. Rollouts pause while more than one fragment of each is left to learn from. It only counts, and calls no role.

    Args:
        setup: what `raypid.setup(...)` returned, for an algorithm with replay.
        num_rollouts: number of rollouts that collect while the learner learns; 0 if they take turns with it.
        min_updates: fewest updates to make at once; None: as many as `updates_per_call`.

    Raises:
        UserError: `setup` is no Setup, the algorithm has no replay, or a number is no whole number of at least 0.
    """

    def __init__(self, setup: Setup, num_rollouts: int = 1, min_updates: int | None = None) -> None:
        super().__init__(setup, num_rollouts=num_rollouts, min_updates=min_updates or 0)
        config = setup.config
        if not isinstance(config, OffPolicyConfig):
            raise UserError(f"{setup} has no replay for Pace: give what rollouts collect to Learner.update.")
        self._config = config
        self.min_updates = min_updates or config.updates_per_call
        self.slack = config.fragment_length * config.num_envs_per_worker * num_rollouts * config.updates_per_step
        """Updates that may be owed, beyond `min_updates`, while rollouts go on: those of one fragment of each."""
        self.timesteps = 0
        """Environment steps so far."""
        self.episodes = 0
        """Episodes that have ended so far."""
        self.owed = 0.0
        """Updates that the steps so far call for and that have not been made yet."""

    def count(self, report: Report, is_filled: bool = True) -> int:
        """Count the steps of a fragment. After the warm-up, the updates that they call for are owed.

        Args:
            report: what `Rollout.collect` returned beside the data. Count each once.
            is_filled: whether the replay holds enough rows to learn from. If not, no updates are owed for these steps.

        Returns:
            The environment steps of the whole run so far.

        Raises:
            UserError: it is no Report.
        """
        self.check("Pace.count", report=report)
        self.timesteps += report.num_steps
        self.episodes += len(report.episode_rewards)
        if is_filled and not self.warms_up():
            self.owed += report.num_steps * self._config.updates_per_step
        return self.timesteps

    def warms_up(self) -> bool:
        """Whether it is too early to learn: fewer steps than `start_steps`, or, in five times as many, fewer episodes than `start_episodes`."""
        return self.timesteps < self._config.warm_up_steps(self.episodes)

    def due(self) -> int:
        """The number of updates to make next: 0, or from `min_updates` to `updates_per_call`."""
        return min(int(self.owed), self._config.updates_per_call) if self.owed >= self.min_updates else 0

    def take(self) -> int:
        """The same number, and count these updates as made."""
        num = self.due()
        self.owed -= num
        return num

    def may_collect(self) -> bool:
        """Whether rollouts may go on. If not, wait for the learner: updates are due then."""
        return self.owed < self.min_updates + self.slack

    def metrics(self) -> dict[str, float]:
        """`timesteps` and `episodes` so far, and the updates that are `owed`."""
        return {"timesteps": self.timesteps, "episodes": self.episodes, "owed": self.owed}
