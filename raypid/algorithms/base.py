"""The learner's side of an algorithm: data in, weights out. No Ray, no files, no environments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from raypid.config import Config, ConfigError, unless
from raypid.nn.network_spec import NetworkSpec
from raypid.ops.normalizer import Moments, merge_moments, zero_moments
from raypid.types import Array, Collective, Update, Weights


@dataclass(kw_only=True)
class AsynchronousConfig:
    """Settings of the asynchronous loop. A Config inherits from it beside the Config that it extends."""

    max_staleness: int | None = None
    """Most updates between the weights that acted and the newest; what is older is dropped and counted (lost/stale). none: nothing is."""
    fragments_in_flight: int = 2
    """Calls of one worker that are under way or wait for the learner: with 2 it goes on while its last data are learnt from, 1 has newer weights."""
    steps_per_iteration: int | None = None
    """Environment steps of one training iteration; none: a call of every worker."""

    def idle(self) -> dict[str, str]:
        """Return the settings of this class that have no effect beside the others (`Config.idle`)."""
        assert isinstance(self, Config)
        return {
            **unless(self.on_ray, "in one process, where calls take turns", "fragments_in_flight"),
            **unless(not self.on_ray, "on Ray for asynchronous algorithms, whose runs differ anyway", "exact_resume"),
        }

    def validate(self) -> None:
        """Check what types cannot say.

        Raises:
            ConfigError: a value out of range.
        """
        if self.fragments_in_flight not in (1, 2):
            raise ConfigError(f"fragments_in_flight is 1 or 2, not {self.fragments_in_flight}.")
        for name, low in (("max_staleness", 0), ("steps_per_iteration", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} must be at least {low} (or none), not {value}.")


def optimizer_idle(optimizer: str) -> dict[str, str]:
    """Return the settings that have no effect with this optimizer (`Config.idle`)."""
    return {
        **unless(optimizer == "adam", "unless optimizer is adam", "adam_eps"),
        **unless(optimizer == "rmsprop", "unless optimizer is rmsprop", "rmsprop_eps", "rmsprop_decay"),
        **unless(optimizer == "sgd", "unless optimizer is sgd", "momentum"),
    }


class Algorithm(ABC):
    """One paper. Subclasses name their Config and how they want to be fed.

    flow: how the loop runs it; collect: what workers send.
    """

    Config: ClassVar[type[Config]]
    flow: ClassVar[Literal["sync", "async", "replay"]]
    collect: ClassVar[Literal["trajectory", "gradients", "fitness"]]

    metric_names: ClassVar[frozenset[str] | None] = None
    """Names of all metrics that an update can report (learner/NAME). A class whose own body declares none may report any."""
    several_learners: ClassVar[bool] = False
    """`update` makes use of `collective`. Where it does not, num_learners above 1 is refused."""
    own_model: ClassVar[bool] = False
    """It trains a whole model (`raypid.register_model`), which acts and differentiates by itself, in place of a network."""
    collective: Collective | None = None
    """The other learners of the run, where there are several. Each is given its own workers' fragments, and their updates
    are what one learner would do with all of them: sums over rows are summed over learners, random numbers are the same."""

    def __init__(self, config: Any, spec: NetworkSpec, seed: int) -> None:
        self.config, self.spec, self.version = config, spec, 0
        self.rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))

    @classmethod
    def network_spec(cls, config: Any, spec: NetworkSpec) -> NetworkSpec:
        """The network that this algorithm acts with, from the default one for the spaces."""
        return spec

    @classmethod
    def update_size(cls, config: Any) -> int:
        """Of an asynchronous algorithm: what one update takes, in the units of `Report.size`."""
        return 1

    @classmethod
    def exploration(cls, config: Any, timesteps: int, worker_index: int) -> dict[str, Any]:
        """What a worker explores by at this time: numbers that travel with the call."""
        return {}

    @classmethod
    def shared(cls, config: Any) -> tuple[Array, ...]:
        """Arrays that all workers read and none writes: they are put into the object store once, and follow the worker's other arguments."""
        return ()

    def meet(self, collective: Collective) -> None:
        """From here on `update` is made together with other learners."""
        self.collective = collective

    @abstractmethod
    def update(self, batch: Any, timesteps: int) -> Update:
        """Learn from a batch: a Trajectory, or a Sample where it replays. `timesteps` (environment steps so far) drives the schedules."""

    @abstractmethod
    def weights(self) -> Weights:
        """A copy of what workers act with."""

    @abstractmethod
    def set_weights(self, weights: Weights) -> None:
        """Start from given weights (and their moments)."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def check_table(theirs: Any, ours: Any) -> None:
    """Raises:
    ConfigError: the weights belong to another network; names the first parts that differ.
    """
    if theirs == ours:
        return
    there, here = dict(theirs), dict(ours)
    names = [n for n in {**here, **there} if there.get(n) != here.get(n)]
    parts = [f"{n} {there.get(n, 'absent')} there, {here.get(n, 'absent')} here" for n in names[:3]]
    raise ConfigError(f"The given weights belong to another network (other spaces or model): {'; '.join(parts)}.")


def schedule(kind: str, timesteps: int, horizon: int | None, end: float) -> float:
    """Factor on a setting: 1 for constant; for linear from 1 at step 0 to `end` at `horizon` steps and after."""
    if kind == "constant":
        return 1.0
    assert horizon is not None
    return max(end, 1.0 - (1.0 - end) * timesteps / horizon)


class ObservationMoments:
    """The normaliser's moments on the learner's side: workers report what they saw, in worker order it is merged."""

    def __init__(self, size: int) -> None:
        self.moments = zero_moments(size)

    def merge(self, delta: Moments) -> None:
        self.moments = merge_moments(self.moments, delta)

    def extra(self) -> dict[str, Array]:
        """For `Weights.extra`."""
        count, mean, m2 = self.moments
        return {"obs_count": np.asarray(count), "obs_mean": mean.copy(), "obs_m2": m2.copy()}

    def load(self, extra: dict[str, Array]) -> None:
        self.moments = (np.float64(extra["obs_count"]), extra["obs_mean"].copy(), extra["obs_m2"].copy())
