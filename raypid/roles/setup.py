"""What the roles of a run are made from: plain data, which travels to other processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from raypid.algorithms.base import Algorithm
    from raypid.nn.network_policy import NetworkPolicy
    from raypid.nn.network_spec import NetworkSpec
    from raypid.replay.base import Replay as ReplayBuffer
    from raypid.replay.buffer import ReplaySpec
    from raypid.roles.acting import RolloutSpec
    from raypid.roles.gradient_worker import GradientSource
    from raypid.roles.program_worker import Program
    from raypid.settings.config import Config
    from raypid.types import Weights


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class WorkerSetup:
    """What the roles that do not learn are made from. It has no algorithm, which their processes then need not import."""

    spec: RolloutSpec
    """What a rollout worker is made from."""
    evaluation: RolloutSpec
    """The same for the evaluator, whose environment may be another."""
    collect: Literal["trajectory", "gradients", "fitness"] = "trajectory"
    """What workers send (`Algorithm.collect`)."""
    source: Callable[[NetworkPolicy], GradientSource] | None = None
    """Builds what computes gradients in a worker, for the policy that acts there."""
    program: Program | None = None
    """A user's program, which collects and learns in place of worker and algorithm."""
    replay: ReplaySpec | None = None
    """What a replay buffer is made from; None for algorithms that learn from what comes in."""
    buffer: Callable[[ReplaySpec, int], ReplayBuffer] | None = None
    """The kind of buffer: makes one from its spec and its number among those that share the data."""
    checks: bool = True
    """Whether roles check what their methods are given."""

    @property
    def network(self) -> NetworkSpec:
        """The policy's network."""
        return self.spec.network


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Setup(WorkerSetup):
    """What the roles of one run have in common: plain data, which travels to other processes."""

    algorithm: type[Algorithm[Any]]
    config: Config
    """All settings."""
    num_threads: int
    """Threads of the learner."""
    initial: Weights | None = None
    """What the learner begins with: the weights of `init_from`."""

    def for_workers(self, *, replays: bool = False) -> WorkerSetup:
        """The part that roles need that do not learn; only with `replays` what a buffer is made from."""
        part = WorkerSetup(**{field.name: getattr(self, field.name) for field in fields(WorkerSetup)})
        return part if replays else replace(part, replay=None, buffer=None)

    def __repr__(self) -> str:
        """Algorithm, environment, observations, actions, network."""
        from raypid.plugins.registry import NETWORKS

        widths = f" {list(self.network.hidden)}" if NETWORKS.is_own(self.network.network) else ""
        return f"<Setup: {self.algorithm.__name__} on {self.spec.env.name}, {self.network.brief()}{widths}>"
