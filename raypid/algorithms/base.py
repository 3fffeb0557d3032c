"""The learner's side of an algorithm: data in, weights out. No Ray, no files, no environments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from raypid.algorithms.module_names import offer_defaults
from raypid.algorithms.overrides import check_overrides
from raypid.errors import UserError, shown
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.optimizer import Optimizer
from raypid.nn.pipeline import Pipeline
from raypid.ops.normalizer import Moments, merge_moments, zero_moments
from raypid.ops.optim import SGD, Adam, RMSProp, Stateful
from raypid.settings.config import Config, ConfigError, unless
from raypid.settings.ranges import tunable
from raypid.types import Array, Collective, Gradients, Table, Tensor, Update, Weights, means

Scalar: TypeAlias = "float | Array | Tensor"
"""A float, or a number of NumPy or torch."""


def metric_floats(source: str, metrics: Mapping[str, object]) -> dict[str, float]:
    """Convert the metrics of a loss in NumPy to floats.

    Args:
        source: what returned the metrics, for messages.

    Raises:
        UserError: one is no number.
    """
    return {name: _number(source, name, x) for name, x in metrics.items()}


def metric_tensors(source: str, metrics: Mapping[str, object], device: object) -> dict[str, Tensor]:
    """Detach the metrics of a loss in torch. Plain numbers become tensors, so that all are fetched in one transfer.

    Args:
        source: as in `metric_floats`.
        device: that of the loss.

    Raises:
        UserError: one is neither a number nor a tensor of one.
    """
    import torch

    def tensor(name: str, x: object) -> Tensor:
        if isinstance(x, torch.Tensor):
            x = x.detach() if x.requires_grad else x
            if not x.ndim:
                return x
        return torch.tensor(_number(source, name, x), device=device)  # type: ignore[arg-type]

    return {name: tensor(name, x) for name, x in metrics.items()}


def _number(source: str, name: str, x: object) -> float:
    try:
        return float(x)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several numbers
        raise UserError(f"{source} returned {shown(x)} as the metric {name!r}: give one number.") from None


USUAL = "the usual choice"
"""Why a setting that depends on the environment has its value, where nothing about this one asks for another."""


@dataclass(kw_only=True)
class AsynchronousConfig:
    """Settings of the asynchronous loop. Mix it into a Config: `class MyConfig(AsynchronousConfig, ActorCriticConfig)`."""

    max_staleness: int | None = None
    """Most updates between the weights that acted and the newest. Older data are dropped and counted (lost/stale). none: no limit."""
    fragments_in_flight: int = 2
    """Most calls of one worker that run or wait for the learner. 2: it acts while the learner learns from its last
    data. 1: it waits for that, and acts with newer weights."""
    steps_per_iteration: int | None = None
    """Environment steps of one training iteration. Results have one line for each. none: one call of every worker."""

    ranges: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "be at least 0": ("max_staleness",),
        "be at least 1": ("steps_per_iteration",),
        "be 1 or 2": ("fragments_in_flight",),
    }

    def own_idle(self) -> dict[str, str]:
        """Return the settings of this class that have no effect beside the others (`Config.idle`)."""
        assert isinstance(self, Config)
        return {
            **unless(self.on_ray, "in one process, where calls take turns", "fragments_in_flight"),
            **unless(not self.on_ray, "on Ray for asynchronous algorithms, whose runs differ anyway", "exact_resume"),
        }


@dataclass(kw_only=True)
class GradientsConfig(AsynchronousConfig):
    """Settings of algorithms whose workers send gradients. Mix it into a Config: `class MyConfig(GradientsConfig, Config)`."""

    gradients_per_update: int = tunable(1, 1, 8, "powers of 2")
    """Number of gradients that one step of the optimizer combines. 1 applies each as it arrives. More make steps fewer
    and less noisy."""
    gradient_reduce: Literal["mean", "sum"] = "mean"
    """Whether a step of the optimizer takes the mean or the sum of its gradients. The sum grows with gradients_per_update."""

    ranges: ClassVar[Mapping[str, tuple[str, ...]]] = {"be at least 1": ("gradients_per_update",)}

    def own_idle(self) -> dict[str, str]:
        """Return the settings of this class that have no effect beside the others (`Config.idle`)."""
        return unless(self.gradients_per_update > 1, "unless gradients_per_update is above 1", "gradient_reduce")


@dataclass(kw_only=True)
class OptimizerConfig:
    """Settings of the optimizer and of schedules. Mix it into a Config: `class MyConfig(OptimizerConfig, Config)`."""

    optimizer: str = "adam"
    """Optimizer of the weights."""
    adam_eps: float = 1e-5
    """Adam's epsilon, added to the root of the mean squared gradient. Larger values make smaller steps where gradients are small."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """How the learning rate changes. constant: it stays at lr. linear: it falls to schedule_end * lr over
    schedule_steps."""
    schedule_steps: int | None = None
    """Environment steps over which linear schedules fall. none: up to the run's stop at timesteps_total, which must
    then be given (--stop N, fit(stop=N), train(num_train_steps=N)). If a run goes on to a later stop, that end moves
    too."""
    schedule_end: float = 0.0
    """Factor on the setting at the end of a linear schedule. 0: it falls to nothing. 0.1: it falls to a tenth."""

    ranges: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "lie in [0, 1]": ("schedule_end",),
        "be above 0": ("adam_eps", "schedule_steps"),
    }

    def rule(self, flat: Array) -> Adam | RMSProp | SGD:
        """Build the NumPy form of the optimizer for weights [P]."""
        c: Any = self
        if c.optimizer == "adam":
            return Adam(flat, eps=c.adam_eps)
        if c.optimizer == "rmsprop":
            return RMSProp(flat, decay=c.rmsprop_decay, eps=c.rmsprop_eps)
        return SGD(flat, momentum=c.momentum)

    def _linear(self) -> list[str]:
        """The schedules that are linear."""
        return [name for name in ("lr_schedule", "clip_schedule") if getattr(self, name, "") == "linear"]

    def own_idle(self) -> dict[str, str]:
        """Return the settings that have no effect with this optimizer and these schedules (`Config.idle`)."""
        linear, optimizer = self._linear(), self.optimizer
        return {
            **unless(optimizer == "adam", "unless optimizer is adam", "adam_eps"),
            **unless(optimizer == "rmsprop", "unless optimizer is rmsprop", "rmsprop_eps", "rmsprop_decay"),
            **unless(optimizer == "sgd", "unless optimizer is sgd", "momentum"),
            **unless(linear, "without a linear schedule: set lr_schedule to linear", "schedule_steps", "schedule_end"),
        }

    def ended(self, timesteps: int, run_end: int | None) -> str:
        """Return an error message for a linear schedule that has fallen to 0, or has no end; "" otherwise
        (`Config.ended`)."""
        linear, end = self._linear(), self.schedule_steps or run_end
        if not linear or (end is not None and (timesteps < end or self.schedule_end)):
            return ""
        if end is None:
            return f"{linear[0]} linear must know where it ends: give a stop at a number of steps (stop=100000), or schedule_steps."
        later = "larger schedule_steps" if self.schedule_steps else "later stop (train(num_train_steps=N), fit(stop=N))"
        return f"{linear[0]} linear ends at step {end:,}, and nothing is learnt from then on. Give a {later}, or {linear[0]} constant."

    def lr_at(self, timesteps: int, run_end: int | None = None) -> float:
        """Return the learning rate after `timesteps` environment steps; `run_end` as in `Config.ended`."""
        assert isinstance(self, Config)
        return self.lr * schedule(self.lr_schedule, timesteps, self.schedule_steps or run_end, self.schedule_end)


class FlatWeights(Protocol):
    """The weights of one network on any device; `table` has the names and shapes of their parts."""

    table: Table

    def numpy(self) -> Array:
        """Return the weights [P] float32; without a copy on a CPU."""

    def load(self, flat: Array) -> None:
        """Copy weights [P] in."""


class Parameters:
    """The weights of one network in a flat float32 array [P]; `table` has the names and shapes of its parts."""

    def __init__(self, flat: Array, table: Table) -> None:
        self.flat, self.table = flat, table

    def numpy(self) -> Array:
        """Return the weights themselves, not a copy."""
        return self.flat

    def load(self, flat: Array) -> None:
        """Copy weights [P] in."""
        self.flat[:] = flat


State: TypeAlias = dict[str, Any]
"""What `raypid.storage.checkpoint` saves: nested dicts and lists of arrays, numbers and text."""
ConfigT = TypeVar("ConfigT", bound=Config)


A = TypeVar("A", bound="Algorithm[Any]")


class Algorithm(ABC, Generic[ConfigT]):
    """Base class of all algorithms: the learner's side, without Ray, files or environments.

    A subclass sets `Config`, `flow`, `collect`, `network` and `optimizer`, and writes `update`. Most algorithms derive from
    `ActorCritic`, `OffPolicy` or `FollowsGradients`, which set all of these but `Config`.

    Args:
        config: the settings, an instance of `Config`.
        spec: the network that acts: inputs, layers, distributions of actions (`raypid.nn.network_spec.NetworkSpec`).
        seed: seed of the initial weights and of all random numbers of the algorithm.
    """

    Config: ClassVar[type[Config]]
    """The class of the algorithm's settings."""
    flow: ClassVar[Literal["sync", "async", "replay"]]
    """The training loop. sync: all workers act with the weights of the last update; async: workers do not wait for each other;
    replay: the learner learns from a replay buffer."""
    collect: ClassVar[Literal["trajectory", "gradients", "fitness"]]
    """What workers send. trajectory: fragments; gradients: gradients of the algorithm's loss over a fragment; fitness:
    returns of perturbed weights."""

    metric_names: ClassVar[frozenset[str] | None] = None
    """Names of all metrics that an update can report (learner/NAME), so that a mistyped stop criterion is refused. It is not inherited: a
    class that does not set it may report any metric."""
    more_metrics: ClassVar[bool] = False
    """Whether updates may also report metrics that `metric_names` lacks, such as those of a user's model."""
    shown_metrics: ClassVar[tuple[str, ...]] = ()
    """The metrics that the terminal shows, in this order; (): all that updates report."""
    several_learners: ClassVar[bool] = False
    """Whether `update` uses `collective`. If it does not, num_learners above 1 is refused."""
    learns_with_torch: ClassVar[bool] = False
    """Whether the algorithm needs torch with any settings."""
    where_endless: ClassVar[Mapping[str, object]] = {}
    """Values of settings that are None, for environments with Box actions and observations without bounds where no episode terminates within some
    random steps. A run makes these steps unless the first of the settings is given."""
    where_long: ClassVar[Mapping[str, object]] = {}
    """Values of settings that are None, where the time limit is long (`raypid.run.assembly.LONG_EPISODES`) and observations are neither normalised
    nor images. If the first of them is given, the others keep their usual values."""
    where_native: ClassVar[Mapping[str, object]] = {}
    """Values of settings that are None, where environments step as one vector of arrays; if one of these is given, the others keep their usual
    values."""
    where_fast: ClassVar[Mapping[str, object]] = {}
    """Other values of the settings of `where_native`, where `where_endless` holds and a step takes less than a millisecond."""
    staggers: ClassVar[bool] = False
    """Whether streams should be in different parts of their episodes, because the algorithm learns from the newest rows
    alone."""
    own_model: ClassVar[bool] = False
    """Whether it trains a user's model (`raypid.register_model`), which acts and computes gradients itself, in place of a network."""
    collective: Collective | None = None
    """Communication with the other learners of the run; None for a single learner. Each learner gets the fragments of its own workers.
    Their joint update must equal that of one learner with all fragments: sum over learners what is summed over rows."""
    network: FlatWeights
    """The weights that workers act with."""
    optimizer: Stateful
    """Anything with `state_dict` and `load_state_dict`; saved with the run."""
    moments: Moments | None
    """Running moments of the observations; None if observations are not normalised."""
    lr_factor = 1.0
    """Factor by which `scale_lr` has multiplied the learning rates of the user's settings."""
    run_end: int | None = None
    """Environment step at which linear schedules end that lack schedule_steps: the run's stop; None: not known."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        offer_defaults(cls.__module__, cls.__name__)

    def __new__(cls, *given: object, **named: object) -> Algorithm[ConfigT]:
        """Refuse what an agent is made from: elsewhere `algorithms.ppo.PPO` is the agent.

        Raises:
            UserError: names the agent.
        """
        if "env" in named or isinstance(given[0] if given else named.get("config"), (str, Mapping)):
            name = cls.__name__
            raise UserError(f"{cls.__module__}.{name} is the algorithm itself. Its agent is raypid.{name}.")
        return super().__new__(cls)

    def __init__(self, config: ConfigT, spec: NetworkSpec, seed: int) -> None:
        check_overrides(type(self))
        self.config, self.spec, self.version = config, spec, 0
        self.pipeline = Pipeline(spec.pipeline)
        self.moments = zero_moments(self.pipeline.normalized_size) if spec.pipeline.normalize else None
        self.rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))

    # -- what the driver asks of the class -----------------------------------------------------------------------------

    @classmethod
    def network_spec(cls, config: ConfigT, spec: NetworkSpec) -> NetworkSpec:
        """Return the network that this algorithm acts with, given the default network for the spaces."""
        return spec

    @classmethod
    def wants_torch(cls, config: ConfigT, spec: NetworkSpec) -> str:
        """Return what needs torch in a run with these settings, as the subject of a sentence ("model.network cnn"); "" if nothing does."""
        return "" if spec.torch_free or spec.head == "model" else f"model.network {spec.network}"

    @classmethod
    def for_spaces(cls, config: ConfigT, spec: NetworkSpec) -> dict[str, tuple[object, str]]:
        """Return values for settings that are None and depend on the environment: name -> (value, reason)."""
        return {}

    @classmethod
    def make(cls: type[A], config: ConfigT, spec: NetworkSpec, seed: int) -> A:
        """Build the algorithm from settings of which some are open. A run resolves them before, and the constructor chooses nothing."""
        return cls(
            config.replace({name: value for name, (value, _) in cls.for_spaces(config, spec).items()}), spec, seed
        )

    @classmethod
    def surprise(cls, config: ConfigT, spec: NetworkSpec) -> str:
        """Return a note for the user on what `for_spaces` chooses and may not be expected; "" for none."""
        return ""

    @classmethod
    def portable(cls, config: ConfigT) -> ConfigT:
        """Return the settings for other processes, which need not know the names that are registered here."""
        # the user's object may hold open files later on
        return config if config.callbacks is None else replace(config, callbacks=None)

    @classmethod
    def update_size(cls, config: ConfigT) -> int:
        """Return the amount of data that one update of an asynchronous algorithm takes, in the units of `Report.size`."""
        return 1

    @classmethod
    def exploration(cls, config: ConfigT, timesteps: int, worker_index: int) -> dict[str, Any]:
        """Return a worker's exploration parameters, such as epsilon, after `timesteps` environment steps. They are sent with each call."""
        return {}

    @classmethod
    def shared(cls, config: ConfigT) -> tuple[Array, ...]:
        """Return arrays that all workers read and none writes. They are put into the object store once, and passed to each worker
        after its other arguments."""
        return ()

    # -- learning ------------------------------------------------------------------------------------------------------

    def meet(self, collective: Collective) -> None:
        """Set `collective`: from now on, `update` runs together with the other learners."""
        self.collective = collective

    @abstractmethod
    def update(self, batch: Any, timesteps: int) -> Update:
        """Learn from a batch; returns metrics and the number of gradient steps.

        Args:
            batch: a Trajectory, a Sample or Sequences (from replay), a list of Gradients, or Fitness, depending on `flow` and
                `collect`.
            timesteps: environment steps so far, for schedules.
        """

    def lr(self, timesteps: int) -> float:
        """Return the learning rate after `timesteps` environment steps. The Config must inherit from OptimizerConfig."""
        config: Config = self.config
        assert isinstance(config, OptimizerConfig)
        return config.lr_at(timesteps, self.run_end)

    def vital_signs(self, update: Update) -> dict[str, Scalar]:
        """Return numbers that are finite as long as learning is sound: name -> number. The run stops if one is not finite, and names the
        first such number. So put likely causes first: losses, the norm of the gradient, squares of the weights. Tensors need not be
        moved to the CPU."""
        signs = {f"the {name}": x for name, x in update.metrics.items() if name.endswith("loss")}
        if "grad_norm" in update.metrics:
            signs["the norm of the gradient"] = update.metrics["grad_norm"]
        return signs | {"the norm of the weights": square(self.network)}

    def in_force(self) -> dict[str, object]:
        """Return the settings that the next update uses, by name, read from the parts that hold them (an optimizer's learning rate)."""
        return self.config.to_dict()

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rates of the user's settings by `factor`. It replaces the factor of an earlier call."""
        rates = self.config.learning_rates().items()
        self.config = self.config.replace({name: rate * factor / self.lr_factor for name, rate in rates})
        self.lr_factor = factor

    def merge(self, seen: Moments | None) -> None:
        """Merge moments of observations from a worker into the normaliser's."""
        if self.moments is not None and seen is not None:
            self.moments = merge_moments(self.moments, seen)

    def merge_returns(self, seen: Moments | None) -> None:
        """Merge moments of discounted returns from a worker. Only algorithms whose workers scale rewards (A3C) override this."""

    # -- state ---------------------------------------------------------------------------------------------------------

    def weights(self) -> Weights:
        """Return a copy of the weights that workers act with."""
        return Weights(self.version, self.network.numpy().copy(), self.network.table, self._moments_state())

    def set_weights(self, weights: Weights) -> None:
        """Load weights, and the moments that come with them. The version goes on from theirs, and never back: a parameter server
        refuses weights that are older than its own.

        Raises:
            ConfigError: they belong to another network.
        """
        check_table(weights.table, self.network.table)
        self.network.load(weights.flat)
        self.load_moments(weights.extra)
        self.version = weights.version if weights.version >= self.version else self.version + 1

    def state_dict(self) -> State:
        """Return everything that the next update depends on. Subclasses extend `learnt_state` instead."""
        state: State = {"version": self.version, "rng": self.rng.bit_generator.state, **self.learnt_state()}
        return state if self.moments is None else {**state, "moments": self._moments_state()}

    def load_state_dict(self, state: State) -> None:
        """Restore a state that `state_dict` returned.

        Raises:
            ConfigError: the state belongs to other networks.
        """
        self.load_learnt_state(state)
        self.version = int(state["version"])
        self.rng.bit_generator.state = state["rng"]
        self.load_moments(state.get("moments", {}))

    def _moments_state(self) -> dict[str, Array]:
        return {} if self.moments is None else self.moments.as_arrays("obs_")

    def load_moments(self, extra: Mapping[str, Array]) -> None:
        """Load the normaliser's moments, if `extra` has them and observations are normalised."""
        if self.moments is not None and "obs_mean" in extra:
            self.moments = Moments.from_arrays(extra, "obs_")

    def learnt_state(self) -> State:
        """Return the part of the state that an algorithm defines: here weights and optimizer. Extend it if `update` depends on more."""
        return {"flat": self.network.numpy().copy(), "optimizer": self.optimizer.state_dict()}

    def load_learnt_state(self, state: State) -> None:
        """Restore what `learnt_state` returned. An optimizer of another kind than the saved one starts afresh."""
        check_size("the network", state["flat"], self.network.numpy())
        self.network.load(state["flat"])
        if state["optimizer"].keys() == self.optimizer.state_dict().keys():
            self.optimizer.load_state_dict(state["optimizer"])


def square(network: FlatWeights) -> Scalar:
    """The sum of a network's squared weights, on their device."""
    flat = getattr(network, "flat", None)
    flat = network.numpy() if flat is None else flat
    return flat @ flat


def check_size(name: str, saved: Array | None, ours: Array) -> None:
    """Refuse saved weights of another size.

    Raises:
        ConfigError: says how many there are, and how many are needed.
    """
    if saved is None or np.shape(saved) != ours.shape:
        there = "no weights" if saved is None else f"{np.size(saved)} weights"
        raise ConfigError(f"The checkpoint has {there} for {name}, this run has {len(ours)}: the settings differ.")


def check_table(theirs: Table, ours: Table) -> None:
    """Refuse weights of another network.

    Raises:
        ConfigError: names the first parts that differ.
    """
    if theirs == ours:
        return
    there, here = dict(theirs), dict(ours)
    names = [n for n in {**here, **there} if there.get(n) != here.get(n)]
    parts = [f"{n} {there.get(n, 'absent')} there, {here.get(n, 'absent')} here" for n in names[:3]]
    raise ConfigError(f"The given weights belong to another network (other spaces or model): {'; '.join(parts)}.")


class FollowsGradients(Algorithm[ConfigT]):
    """Base class of algorithms whose workers compute gradients; the learner applies them in the order of arrival (A3C, CustomModel)."""

    several_learners = True
    flow: ClassVar[Literal["sync", "async", "replay"]] = "async"
    collect: ClassVar[Literal["trajectory", "gradients", "fitness"]] = "gradients"
    optimizer: Optimizer[Any, Any]

    @classmethod
    def update_size(cls, config: Config) -> int:
        assert isinstance(config, GradientsConfig)
        return config.gradients_per_update

    def update(self, batch: list[Gradients], timesteps: int) -> Update:
        """Combine several gradients by `gradient_reduce` and take one step; metrics are means over the gradients.

        With several learners, all sum their workers' gradients and take the same step.
        """
        lr, total = self.lr(timesteps), np.add.reduce([part.flat for part in batch])
        metrics, num = [part.metrics for part in batch], len(batch)
        seen = [(part.moments, part.returns) for part in batch]
        if self.collective is not None:
            total = self.collective.sum(total)
            everywhere = self.collective.gather((metrics, seen))
            metrics, seen = ([x for parts in column for x in parts] for column in zip(*everywhere, strict=True))
            num = len(seen)
        config: Config = self.config
        assert isinstance(config, GradientsConfig)
        self.optimizer.load_gradient(total / num if config.gradient_reduce == "mean" else total)
        norm = float(self.optimizer.descend(lr))
        for moments, returns in seen:
            self.merge(moments)
            self.merge_returns(returns)
        self.version += 1
        return Update({**means(metrics), "grad_norm": norm, "lr": lr}, 1)


def schedule(kind: str, timesteps: int, horizon: int | None, end: float) -> float:
    """Factor on a setting: 1 for constant; for linear from 1 at step 0 to `end` at `horizon` steps and after."""
    if kind == "constant":
        return 1.0
    assert horizon is not None
    return max(end, 1.0 - (1.0 - end) * timesteps / horizon)
