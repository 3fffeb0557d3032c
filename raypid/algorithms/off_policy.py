"""What algorithms that learn from replay share: settings, from samples to tensors, gradient steps, state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from raypid.algorithms.base import USUAL, Algorithm, Scalar, State, check_size, metric_tensors, square
from raypid.nn.distributions import JointDistribution
from raypid.nn.network_spec import NetworkSpec
from raypid.plugins.extras import need
from raypid.settings.config import Config, ConfigError, ModelConfig, unless
from raypid.settings.ranges import tunable
from raypid.types import Collective, Sample, Sequences, Tensor, Tree, Update, means, tree_leaves

if TYPE_CHECKING:
    from raypid.nn.critics import Critics
    from raypid.nn.networks import FlatParameters, TorchInputs, TorchNetwork
    from raypid.nn.torch_optimizers import FlatAdam


PATIENCE = 5
"""Multiple of start_steps after which learning begins even if too few episodes have ended."""


@dataclass(kw_only=True, slots=True)
class OffPolicyConfig(Config):
    """Settings of all algorithms that learn from replay; an algorithm's Config inherits from it."""

    replays_sequences: ClassVar[bool] = False

    model: ModelConfig = field(default_factory=partial(ModelConfig, hidden=None, activation="relu"))
    """The network."""
    fragment_length: int = 8
    """Rows that one call collects from each environment. Longer ones act with older weights, shorter ones cost more: on
    Ray, a call should take 10 to 300 ms."""
    buffer_size: int = 200_000
    """Steps that the replay buffer holds, over all shards or learners. New ones overwrite the oldest. More take more
    memory."""
    reward_scale: float = tunable(1.0, 0.01, 10.0, "log")
    start_steps: int = tunable(1_000, 100, 10_000, "log")
    """Environment steps with random actions, before learning. More show more of the task before the policy acts."""
    start_episodes: int = 0
    """Episodes that must have ended before learning begins, so that it knows what the task rewards. After five times
    start_steps, learning begins without them."""
    samples_per_insert: float = tunable(32.0, 4.0, 128.0, "log")
    """Rows learnt for each step collected: batch_size * updates / steps. Higher learns more from each step, but takes
    longer. Whichever of learner and workers is ahead waits."""
    a_l_ratio: float | None = None
    """Environment steps for each update. If given, it sets samples_per_insert to batch_size / a_l_ratio."""
    n_step: int = tunable(5, 1, 10)
    """Rewards that a target adds up before it bootstraps. More carry rewards back faster, but some of them were earned by older policies."""
    prioritized: bool = False
    """Draw rows in proportion to their TD error (Schaul et al. 2016). false: draw all rows alike."""
    priority_exponent: float = tunable(0.6, 0.2, 1.0)
    """Exponent of the priorities (alpha in the paper). 0 draws all rows alike; 1 in proportion to the TD error."""
    importance_exponent: float = 0.4
    """Initial exponent of the importance weights (beta in the paper), which correct for rows that are drawn more often.
    1 corrects fully, and is reached after importance_steps."""
    importance_steps: int = 100_000
    """Environment steps until importance_exponent has risen to 1."""
    num_replay_shards: int = 0
    """Number of Ray actors that hold the replay buffer. They share buffer_size. 0: one buffer in the learner's
    process."""
    learner_sync: Literal["all_reduce", "asynchronous"] = "all_reduce"
    """How num_learners work together. all_reduce: every update is that of one learner. asynchronous: no learner waits
    for another; each makes some updates from the newest parameters and adds its change, which counts 1/N (each keeps
    its own averages for Adam)."""
    target_tau: float = tunable(0.005, 0.001, 0.05, "log")
    """How far the target network follows the learnt one. 1 copies it. Smaller keeps targets steadier, larger passes on
    faster what was learnt."""
    target_interval: int = 1
    """Updates between moves of the target network."""
    target_network: bool = True
    """Bootstrap from a copy of the network that follows it slowly, which keeps targets steady. Networks that normalise their layers can learn without
    one."""
    updates_per_call: int = 8
    """Most updates for which rows are drawn at once, which is faster than one by one. With prioritized, priorities may
    then be that many updates old."""
    save_replay: bool = True
    """Write the buffer with each checkpoint, so that a resumed run goes on with it. Only the newest checkpoint keeps
    it."""
    steps_per_iteration: int = 1_000
    """Environment steps of one training iteration. Results have one line for each."""
    max_grad_norm: float | None = tunable(None, 0.3, 20.0, "log", also=(None,))
    """Largest L2 norm of a gradient. Longer gradients are scaled down to it, so that no single batch moves the weights
    far. none: no clipping."""
    adam_eps: float = 1e-8
    """Adam's epsilon, added to the root of the mean squared gradient. Larger values make smaller steps where gradients are small."""
    bf16: bool = False
    """Compute products between hidden layers of critics in bfloat16, which is less exact. It is faster for widths of
    256 and more."""
    th_compile: bool = False
    """Compile the losses with torch.compile. It takes half a minute at the start, and is faster on a GPU."""

    no_effect = {
        "kernel": "for algorithms with replay, which always learn with torch",
    }

    ranges = {
        "be at least 0": ("start_steps", "start_episodes", "num_replay_shards", "importance_steps"),
        "be at least 1": ("buffer_size", "n_step", "target_interval", "updates_per_call", "steps_per_iteration"),
        "be above 0": ("a_l_ratio", "adam_eps", "max_grad_norm", "samples_per_insert", "target_tau"),
        "lie in [0, 1]": ("priority_exponent", "importance_exponent", "target_tau"),
    }

    def own_idle(self) -> dict[str, str]:
        drawn = ("priority_exponent", "importance_exponent", "importance_steps")
        return {
            **unless(self.learner_sync == "all_reduce", "with learner_sync asynchronous", "exact_resume"),
            **unless(self.a_l_ratio is None, "beside a_l_ratio, which sets the same ratio", "samples_per_insert"),
            **unless(self.prioritized, "unless prioritized is true", *drawn),
            **unless(self.num_learners > 1, "unless num_learners is above 1", "learner_sync"),
            **unless(self.start_steps > 0, "without start_steps", "start_episodes"),
            **unless(self.target_network, "unless target_network is true", "target_tau", "target_interval"),
            **unless(self.model.hidden is None or len(self.model.hidden) > 1, "without two hidden layers", "bf16"),
        }

    def own_checks(self) -> None:
        if self.model.cell and not self.replays_sequences:
            raise ConfigError(f"A memory ({self.model.cell}) needs sequences: take R2D2 or PPO, or set frame_stack.")
        least = max(2 * self.fragment_length * self.num_streams, self.rows_to_start(), self.start_steps)
        if self.buffer_size < least:
            raise ConfigError(
                f"buffer_size {self.buffer_size:,} is too small: start_steps, a batch and two fragments of every worker need {least:,}."
            )
        if self.num_replay_shards and (self.num_replay_shards > self.num_workers or self.backend == "local"):
            raise ConfigError(f"num_replay_shards {self.num_replay_shards} needs as many workers on Ray, or more.")
        parts = max(1, self.num_learners) * max(1, self.num_replay_shards)
        if self.batch_size % parts:
            raise ConfigError(
                f"batch_size {self.batch_size} must be a multiple of {parts}: num_learners * num_replay_shards."
            )
        if self.learner_sync == "asynchronous" and (self.num_replay_shards or self.normalize_observations):
            raise ConfigError("learner_sync asynchronous needs num_replay_shards 0 and normalize_observations false.")

    def rows_to_start(self) -> int:
        """Return the number of rows that the buffer must hold before learning starts."""
        return self.batch_size

    def warm_up_steps(self, episodes: int) -> int:
        """Return the number of environment steps with random actions, given the number of episodes that have ended."""
        return self.start_steps if episodes >= self.start_episodes else PATIENCE * self.start_steps

    def beta_at(self, timesteps: int) -> float:
        """Return the exponent of the importance weights after `timesteps` environment steps; 0 if rows are drawn uniformly."""
        if not self.prioritized:
            return 0.0
        done = min(1.0, timesteps / self.importance_steps) if self.importance_steps else 1.0
        return float(self.importance_exponent + (1.0 - self.importance_exponent) * done)

    @property
    def num_streams(self) -> int:
        """Number of environments of all workers."""
        return self.num_envs_per_worker * max(1, self.num_workers)

    @property
    def updates_per_step(self) -> float:
        """Updates per environment step, the ratio that the loop keeps."""
        return 1 / self.a_l_ratio if self.a_l_ratio is not None else self.samples_per_insert / self.batch_size


@dataclass(kw_only=True)
class TemperatureConfig:
    """Settings of a policy's temperature. Mix it into a Config: `class MyConfig(TemperatureConfig, OffPolicyConfig)`."""

    alpha: float | None = None
    """Fixed temperature, the weight of entropy beside rewards. Higher explores more. none: it is learnt, so that the
    policy's entropy is target_entropy."""
    alpha_init: float | None = tunable(None, 0.001, 1.0, "log", also=(None,))
    """Temperature that learning starts from. none: 0.01 for SAC with discrete actions, 0.03 with continuous ones; 0.5
    for SQN."""
    target_entropy: float | None = None
    """Entropy of the policy that a learnt temperature aims at, in nats. Higher explores more. none: half of log n for n
    discrete actions (SQN: a quarter), else minus the number of action elements."""

    ranges: ClassVar[Mapping[str, tuple[str, ...]]] = {"be above 0": ("alpha_init",)}

    def own_idle(self) -> dict[str, str]:
        """Return the settings that have no effect with this temperature (`Config.idle`)."""
        return unless(self.alpha is None, "with a fixed temperature, which alpha sets", "alpha_init", "target_entropy")


@dataclass(slots=True)
class TransitionBatch:
    """N rows of a sample as tensors on the learner's device: what `OffPolicy.step` learns from."""

    inputs: TorchInputs
    """[N, *] observations as the networks take them."""
    action: Tensor
    """[N, A] float for continuous actions, [N] int64 for discrete ones."""
    reward: Tensor
    """[N] discounted sum over up to n steps, times the reward factor."""
    discount: Tensor
    """[N] factor on the value of `next_inputs`; 0 where the episode terminated."""
    next_inputs: TorchInputs
    """[N, *] observations after the last of these steps."""
    weight: Tensor
    """[N] importance weights."""

    def take(self, rows: slice) -> TransitionBatch:
        """Select rows."""
        inputs, following = self.inputs.take(rows), self.next_inputs.take(rows)
        return TransitionBatch(
            inputs, self.action[rows], self.reward[rows], self.discount[rows], following, self.weight[rows]
        )


class Drawable(Protocol):
    """A replay buffer in this process."""

    def sample(self, num: int, beta: float) -> Sample: ...
    def sample_sequences(self, num: int, length: int, burn_in: int, beta: float) -> Sequences: ...


OffPolicyT = TypeVar("OffPolicyT", bound=OffPolicyConfig)


class OffPolicy(Algorithm[OffPolicyT]):
    """Base class of algorithms that learn from replay: networks on flat tensors, their optimizers, batches from samples.

    A subclass sets `Config` (an OffPolicyConfig), fills `networks` and `optimizers` in `build`, and writes `step`. Workers get the
    network called "acting".
    """

    flow = "replay"
    collect = "trajectory"
    several_learners = learns_with_torch = True
    losses: ClassVar[tuple[str, ...]] = ()
    """Names of the methods that the setting th_compile compiles."""

    def __init__(self, config: OffPolicyT, spec: NetworkSpec, seed: int) -> None:
        super().__init__(config, spec, seed)
        need({"torch": type(self).__name__})
        import torch

        from raypid.algorithms.torch_backprop import device_for

        self.device = device_for(config)
        self.generator = torch.Generator(self.device).manual_seed(seed % 2**63)
        self.distribution = JointDistribution(spec.actions)
        self.discrete = spec.actions[0].kind == "categorical"
        self.networks: dict[str, FlatParameters] = {}
        self.optimizers: dict[str, FlatAdam] = {}
        self.num_updates = 0
        self.reward_factor = np.float32(1.0)
        """Factor on the rewards of the next samples: one over the deviation of the discounted return, or 1."""
        self._metrics: list[Mapping[str, Tensor]] = []
        self.build(seed)
        if config.th_compile:
            for name in self.losses:
                setattr(self, name, torch.compile(getattr(self, name)))
        self.network = self.networks["acting"]

    @classmethod
    def exploration(cls, config: OffPolicyT, timesteps: int, worker_index: int) -> dict[str, Any]:
        return {"random": True} if timesteps < config.start_steps else {}

    @classmethod
    def replay_kind(cls, config: OffPolicyConfig) -> str:
        """Return the kind of replay: a name in `raypid.plugins.registry.REPLAYS`, or "module:Class"."""
        return "prioritized" if config.prioritized and config.priority_exponent else "uniform"

    @abstractmethod
    def build(self, seed: int) -> None:
        """Fill `networks` (FlatParameters by name, among them "acting") and `optimizers` (FlatAdam by the name of their network)."""

    def add_temperature(self, config: TemperatureConfig, default_entropy: float, default_init: float) -> None:
        """Add a temperature to the networks as "alpha", and its optimizer if it is learnt.

        Args:
            config: this algorithm's Config, which must inherit from TemperatureConfig.
            default_entropy: target entropy in nats if the settings have none.
            default_init: initial temperature if the settings have none.
        """
        from raypid.nn.critics import Temperature
        from raypid.nn.networks import FlatParameters
        from raypid.nn.torch_optimizers import FlatAdam

        target_entropy = default_entropy if config.target_entropy is None else config.target_entropy
        start = default_init if config.alpha_init is None else config.alpha_init
        start = start if config.alpha is None else config.alpha
        self.temperature = Temperature(start, target_entropy).to(self.device)
        self.networks["alpha"] = FlatParameters(self.temperature)
        if config.alpha is None:
            self.optimizers["alpha"] = FlatAdam(self.networks["alpha"], self.config.lr)

    def meet(self, collective: Collective) -> None:
        """Each learner has batch_size / N rows of every batch; the optimizers average their gradients over all of them."""
        super().meet(collective)
        for optimizer in self.optimizers.values():
            optimizer.collective = collective

    @property
    def rows(self) -> int:
        """Rows of each batch that this learner draws: batch_size divided by the number of learners."""
        size = self.config.batch_size
        return size if self.collective is None else size // self.collective.size

    def normal(self, rows: int, columns: int) -> Tensor:
        """Draw standard normal noise [rows, columns]. Several learners draw the noise of the whole batch, and each returns its own rows."""
        import torch

        size, rank = (1, 0) if self.collective is None else (self.collective.size, self.collective.rank)
        noise = torch.randn((size * rows, columns), generator=self.generator, device=self.device)
        return noise[rank * rows : (rank + 1) * rows]

    # -- from replay -----------------------------------------------------------------------------------------------------

    def sample_from(self, replay: Drawable, num_updates: int, beta: float) -> Sample | Sequences:
        """Draw the data of `num_updates` updates from a buffer in this process; returns the argument of `update`."""
        return replay.sample(num_updates * self.rows, beta)

    def batches(self, sample: Sample | Sequences) -> Iterator[TransitionBatch]:
        """Yield one batch of tensors for each update, in the order of the sample. With several learners, each yields its own part of
        every batch; in rank order, these parts form the batch of one learner."""
        rows = self.tensors(sample)
        for start in range(0, len(sample.id), self.rows):
            yield rows.take(slice(start, start + self.rows))

    def tensors(self, sample: Sample | Sequences) -> TransitionBatch:
        """Move a sample to the learner's device, and multiply its rewards by `reward_factor`."""
        from raypid.nn.networks import on_device

        assert isinstance(sample, Sample)
        move, d = partial(on_device, device=self.device), sample.data
        action = [leaf.reshape(len(sample.id), -1) for _, leaf in tree_leaves(d.action)]
        flat = action[0][:, 0].astype(np.int64, copy=False) if self.discrete else np.concatenate(action, 1)
        obs, following = self.inputs(d.obs), self.inputs(d.next_obs)
        reward = move(d.reward * self.reward_factor)
        return TransitionBatch(obs, move(flat), reward, move(d.discount), following, move(sample.weight))

    def inputs(self, obs: Tree) -> TorchInputs:
        """Convert raw observations [N, *] to network inputs, normalised with the newest moments."""
        from raypid.nn.networks import TorchInputs

        if self.moments is not None:
            self.pipeline.load(self.moments)
        return TorchInputs(self.pipeline.batch(obs), self.device)

    # -- updates ---------------------------------------------------------------------------------------------------------

    def update(self, batch: Sample | Sequences, timesteps: int) -> Update:
        import torch

        errors = []
        for b in self.batches(batch):
            error, metrics = self.step(b)
            self._metrics.append(metric_tensors(f"{type(self).__name__}.step()", metrics, self.device))
            self.num_updates += 1
            errors.append(error)
        self.version += 1
        priorities = torch.cat(errors).cpu().numpy() + 1e-6 if self.config.prioritized else None
        return Update({}, len(errors), priorities)

    def vital_signs(self, update: Update) -> dict[str, Scalar]:
        newest = self._metrics[-update.num_updates :] if update.num_updates else []
        losses = {name: [m[name] for m in newest if name in m] for m in newest for name in m if name.endswith("loss")}
        squares = {f"the norm of the weights of {name}": square(self.networks[name]) for name in self.optimizers}
        return {f"the {name}": sum(values) for name, values in losses.items()} | squares

    def in_force(self) -> dict[str, object]:
        rates = {"lr": "acting", "lr_critic": "critics"}
        used = {name: key for name, key in rates.items() if getattr(self.config, name, None) is not None}
        held = {name: self.optimizers[key].lr for name, key in used.items() if key in self.optimizers}
        return super().in_force() | held

    def scale_lr(self, factor: float) -> None:
        for optimizer in self.optimizers.values():
            optimizer.scale_lr(factor / self.lr_factor)
        super().scale_lr(factor)

    @abstractmethod
    def step(self, b: TransitionBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Make one update: a gradient step of each network, then `track` for each target network.

        Returns:
            |TD error| [N], from which the rows' priorities are computed; and metrics by name, tensors [] or numbers. A tensor does not
            make the update wait for the GPU.
        """

    def track(self, target: str, source: str) -> None:
        """Move the target network `target` towards the network `source` by target_tau, once every target_interval updates."""
        c = self.config
        if c.target_network and self.num_updates % c.target_interval == 0:
            self.networks[target].flat.lerp_(self.networks[source].flat, c.target_tau)

    def metrics(self) -> dict[str, float]:
        """Return the means of the updates' metrics since the last call, and over learners."""
        import torch

        values: dict[str, list[Tensor]] = {}
        for metrics in self._metrics:
            for name, value in metrics.items():
                values.setdefault(name, []).append(value)
        self._metrics = []
        numbers = torch.stack([torch.stack(v).float().mean() for v in values.values()]).tolist() if values else []
        ours = dict(zip(values, numbers, strict=True))
        return means([ours] if self.collective is None else self.collective.gather(ours))

    # -- state -----------------------------------------------------------------------------------------------------------

    def learnt_state(self) -> State:
        return {
            "num_updates": self.num_updates,
            "generator": self.generator.get_state().numpy(),
            "networks": {name: network.numpy().copy() for name, network in self.networks.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
        }

    def load_learnt_state(self, state: State) -> None:
        import torch

        for name, network in self.networks.items():
            check_size(f"the network {name!r}", state["networks"].get(name), network.numpy())
        self.num_updates, self._metrics = int(state["num_updates"]), []
        # that of another kind of device has another length
        if len(state["generator"]) == len(self.generator.get_state()):
            self.generator.set_state(torch.from_numpy(np.array(state["generator"])))
        for name, network in self.networks.items():
            network.load(state["networks"][name])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])


def continuous(config: OffPolicyConfig, spec: NetworkSpec, kind: str) -> NetworkSpec:
    """The network of an actor over continuous actions.

    Raises:
        ConfigError: discrete actions.
    """
    if any(leaf.is_discrete for leaf in spec.actions):
        raise ConfigError(f"This algorithm takes continuous (Box) actions, not {_named(spec)}: take DQN, SAC or PPO.")
    if config.model.distribution not in ("auto", kind):
        raise ConfigError(f"model.distribution is {kind} here: leave it at auto, or take PPO.")
    actions = tuple(replace(leaf, kind=kind) for leaf in spec.actions)
    return replace(spec, actions=actions, head="actor")


def _named(spec: NetworkSpec) -> str:
    """The kinds of the action's spaces, for a message."""
    found = [leaf.space for leaf in spec.actions]
    return found[0] if len(found) == 1 and not spec.actions[0].path else f"several of them ({', '.join(found)})"


def one_discrete(spec: NetworkSpec) -> None:
    """Refuse anything but one Discrete action.

    Raises:
        ConfigError: names the actions that there are.
    """
    if [leaf.kind for leaf in spec.actions] != ["categorical"] or spec.actions[0].path:
        raise ConfigError(f"This algorithm takes one Discrete action, not {_named(spec)}: take PPO, or SAC for a Box.")


@dataclass(kw_only=True, slots=True)
class CriticsConfig(OffPolicyConfig):
    """Settings of algorithms whose policy climbs critics."""

    lr: float = tunable(1e-3, 3e-5, 1e-2, "log")
    normalize_rewards: bool = tunable(True, choices=(False, True))
    target_tau: float = tunable(0.01, 0.001, 0.05, "log")
    start_steps: int = tunable(4_000, 100, 10_000, "log")
    start_episodes: int = 1
    n_step: int | None = tunable(None, 1, 10, also=(None,))  # type: ignore[assignment]
    """Rewards that a target adds up before it bootstraps. More carry rewards back faster, but some of them were earned
    by older policies. Default: chosen from the environment (--explain shows the value and why)."""
    num_envs_per_worker: int = 16
    num_critics: int = 2
    """Number of critics, of which the smallest value counts. Two or more keep values from being overestimated."""
    critic_norm: Literal["none", "layer", "batch"] = "layer"
    """Normalisation of the critics' hidden layers. batch is CrossQ: it needs SAC, and target_network false."""
    policy_delay: int = tunable(2, 1, 4)
    """Critic updates for each policy update. More let the critics settle before the policy follows them."""
    lr_critic: float | None = None
    """Learning rate of the critics. none: lr."""

    ranges = {"be at least 1": ("num_critics", "policy_delay"), "be above 0 and finite": ("lr_critic",)}


CriticsT = TypeVar("CriticsT", bound=CriticsConfig)


class PolicyAndCritics(OffPolicy[CriticsT]):
    """A policy, and an ensemble of critics that it climbs."""

    losses = ("critic_loss", "policy_loss")
    where_endless: ClassVar[Mapping[str, object]] = {"n_step": 1}

    @classmethod
    def for_spaces(cls, config: CriticsT, spec: NetworkSpec) -> dict[str, tuple[object, str]]:
        return {"n_step": (5, USUAL)} if config.n_step is None else {}

    def build(self, seed: int) -> None:
        from raypid.nn.networks import FlatParameters
        from raypid.nn.torch_optimizers import FlatAdam

        c = self.config
        self.policy = self.make_policy(seed)
        self.critics, self.target_critics = self.make_critics(seed), self.make_critics(seed)
        self.networks = {"acting": self.policy, "critics": FlatParameters(self.critics)}
        self.optimizers = {
            "acting": FlatAdam(self.policy, c.lr, c.adam_eps, c.max_grad_norm),
            "critics": FlatAdam(self.networks["critics"], c.lr_critic or c.lr, c.adam_eps, c.max_grad_norm),
        }

    def make_policy(self, seed: int) -> TorchNetwork:
        from raypid.nn.networks import TorchNetwork

        policy = TorchNetwork(self.spec, seed, str(self.device))
        if self.config.bf16:
            policy.compute_in_half()
        return policy

    @property
    def num_actions(self) -> int:
        """Discrete actions, or elements of a continuous one."""
        return sum(leaf.num_params if self.discrete else leaf.size for leaf in self.spec.actions)

    def make_critics(self, seed: int) -> Critics:
        from raypid.nn.critics import Critics

        c, spec, size = self.config, self.spec, self.num_actions
        made = Critics(
            spec, c.num_critics, size, discrete=self.discrete, norm=c.critic_norm, half=c.bf16, seed=seed + 1
        )
        return made.to(self.device)
