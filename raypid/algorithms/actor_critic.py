"""What on-policy actor-critic algorithms share: from a trajectory to minibatches, and the choice of the kernel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from raypid.algorithms.backprop import Evaluated, LearningNetwork, NumpyEvaluated, NumpyNetwork, NumpyOptimizer
from raypid.algorithms.base import Algorithm, OptimizerConfig, Scalar, State, metric_floats, metric_tensors
from raypid.algorithms.intrinsic import IntrinsicReward, intrinsic_class
from raypid.algorithms.joint_batch import Share, share_of_streams
from raypid.algorithms.minibatches import Batch, Loss, LossGradient, Minibatch, Streams, cut
from raypid.errors import UserError, shown
from raypid.nn.distributions import array_module
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.numpy_cells import split_state
from raypid.nn.optimizer import Optimizer
from raypid.ops.normalizer import ROUNDING, ReturnScaler, merge_moments, moments_of
from raypid.ops.returns import gae, next_values
from raypid.plugins.extras import install_command, installed, need
from raypid.settings.config import Config, ConfigError
from raypid.settings.ranges import tunable
from raypid.types import Array, Collective, Tensor, Trajectory, Update, flat_views, to_numpy, tree_map


@dataclass(kw_only=True, slots=True)
class ActorCriticConfig(OptimizerConfig, Config):
    """Settings of all actor-critic algorithms; an algorithm's Config inherits from it."""

    gae_lambda: float = tunable(0.95, 0.8, 0.995, "log of 1 - x", also=(1.0,))
    """Lambda of generalised advantages. 1 gives n-step returns. Lower trusts the learnt values more: less variance,
    more bias."""
    value_coef: float = tunable(0.5, 0.1, 1.0)
    """Weight of the value loss. It matters most if policy and value share layers (images, model.shared)."""
    entropy_coef: float = tunable(0.0, 1e-4, 0.1, "log", also=(0.0,))
    """Weight of the entropy bonus. Higher keeps the policy random for longer, so that it explores more."""
    max_grad_norm: float | None = tunable(0.5, 0.3, 5.0, "log")
    """Largest L2 norm of a gradient. Longer gradients are scaled down to it, so that no single batch moves the weights
    far. none: no clipping."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer of the weights: Adam, or RMSProp as in the papers of A3C and IMPALA."""
    rmsprop_eps: float = 0.01
    """RMSProp's epsilon, added to the root of the mean squared gradient. Larger values make smaller steps where gradients are small."""
    rmsprop_decay: float = 0.99
    """Decay rate of RMSProp's mean square. Closer to 1 averages over more steps."""
    normalize_advantages: bool = True
    """Scale the advantages of each minibatch to mean 0 and deviation 1. So steps of the policy do not depend on the
    size of rewards."""
    intrinsic_reward: object | None = None
    """Reward that replaces the task's in the learner, for pretraining: rnd (novelty), an IntrinsicReward class or
    "module:Name". none: the task's own reward."""
    th_compile: bool = False
    """Compile the network with torch.compile. It takes half a minute at the start, and is faster on a GPU. With it,
    kernel auto is torch."""

    ranges: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "lie in [0, 1]": ("gae_lambda", "rmsprop_decay"),
        "be at least 0": ("value_coef",),
        "be above 0": ("max_grad_norm", "rmsprop_eps"),
    }

    def own_checks(self) -> None:
        if self.intrinsic_reward is not None:
            kind = intrinsic_class(self.intrinsic_reward)
            if self.num_learners > 1 and not kind.several_learners:
                raise ConfigError(f"{kind.__name__} does not support several learners: num_learners is 0 or 1.")


ActorCriticT = TypeVar("ActorCriticT", bound=ActorCriticConfig)


class ActorCritic(Algorithm[ActorCriticT]):
    """Base class of actor-critic algorithms: a policy and a value network, an optimizer, normalisers, advantages, minibatches.

    A subclass sets `Config` (an ActorCriticConfig) and writes `update` and `loss`. It may also write `loss_gradient`, the NumPy form
    of the loss, with which small networks learn five times faster. raypid uses `loss_gradient` only if the class that defines it
    also defines `loss` or inherits it from a base class; a subclass that overrides `loss` alone learns with torch.
    """

    flow: ClassVar[Literal["sync", "async", "replay"]] = "sync"
    collect: ClassVar[Literal["trajectory", "gradients", "fitness"]] = "trajectory"
    several_learners = staggers = True
    where_endless: ClassVar[Mapping[str, object]] = {"model.log_std_init": -1.0}
    network: LearningNetwork[Any]
    optimizer: Optimizer[Any, Any]

    def __init__(self, config: ActorCriticT, spec: NetworkSpec, seed: int) -> None:
        super().__init__(config, spec, seed)
        if any(leaf.kind == "deterministic" for leaf in spec.actions):
            raise ConfigError("model.distribution deterministic has no probabilities: take auto or squashed_gaussian.")
        self.return_scaler = ReturnScaler(config.gamma) if config.normalize_rewards else None
        self.intrinsic: IntrinsicReward | None = None
        if config.intrinsic_reward is not None:
            self.intrinsic = intrinsic_class(config.intrinsic_reward)(spec, config.gamma, seed)
        self.kernel = "torch" if why_torch(type(self), config, spec) else "numpy"
        self._build(seed)
        self.log_std: Any = flat_views(self.network.flat, self.network.table).get("log_std")
        """Log standard deviations of Gaussian actions, a view of the weights; None for other actions."""

    def _build(self, seed: int) -> None:
        """Make the network and the optimizer."""
        c = self.config
        if self.kernel == "numpy":
            self.network = small = NumpyNetwork(self.spec, seed)
            self.optimizer = NumpyOptimizer(small.gradient, c.rule(small.flat), c.max_grad_norm)
            return
        need({"torch": self.wants_torch(c, self.spec)})
        from raypid.algorithms.torch_backprop import TorchBackprop, device_for
        from raypid.nn.torch_optimizers import FlatAdam, FlatRMSProp

        self.network = network = TorchBackprop(self.spec, seed, device_for(c), c.th_compile)
        rule, eps = (FlatAdam, c.adam_eps) if c.optimizer == "adam" else (FlatRMSProp, c.rmsprop_eps)
        self.optimizer = rule(network, c.lr, eps, c.max_grad_norm, measure=True, decay=c.rmsprop_decay)

    @classmethod
    def wants_torch(cls, config: ActorCriticT, spec: NetworkSpec) -> str:
        return super().wants_torch(config, spec) or why_torch(cls, config, spec)

    @classmethod
    def for_spaces(cls, config: ActorCriticT, spec: NetworkSpec) -> dict[str, tuple[object, str]]:
        if config.kernel != "auto":
            return {}
        return {"kernel": ("torch" if why_torch(cls, config, spec) else "numpy", "the faster for this network")}

    @classmethod
    def surprise(cls, config: ActorCriticT, spec: NetworkSpec) -> str:
        reason, widest = why_torch(cls, config, spec), max(spec.hidden, default=0)
        if config.kernel == "auto" and not reason and widest > WIDE:
            return f"torch is not installed, so layers of {widest} learn with NumPy, slowly: {install_command('torch')}"
        if reason and reason == _own_loss(cls):
            return f"{cls.__name__} has a loss of its own without a NumPy form (loss_gradient) beside it, so it learns with torch."
        return ""

    @classmethod
    def portable(cls, config: ActorCriticT) -> ActorCriticT:
        config, entry = super().portable(config), config.intrinsic_reward
        return config if entry is None else replace(config, intrinsic_reward=intrinsic_class(entry))

    def meet(self, collective: Collective) -> None:
        super().meet(collective)
        self.optimizer.collective = collective
        if self.intrinsic is not None:
            self.intrinsic.collective = collective

    # -- the loss ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, log_prob: Tensor, entropy: Tensor, value: Tensor, batch: Batch[Tensor]) -> Loss:
        """Return the loss [] and metrics by name, tensors [] or numbers, all means over rows.

        Args:
            log_prob: [n] log-probabilities of the actions under the policy that learns.
            entropy: [n] entropies of its action distributions.
            value: [n] its values.
            batch: the rows: actions, advantages, targets, and log_prob and value of the policy that acted.
        """

    def loss_gradient(self, log_prob: Array, entropy: Array, value: Array, batch: Batch[Array]) -> LossGradient:
        """Return the derivatives of the loss with respect to log_prob [n], entropy (one number for all rows) and value [n]; and metrics.

        It must compute the same loss as `loss`, which has the same arguments as tensors.
        """
        raise NotImplementedError

    def objective(
        self, out: Evaluated[Any], minibatch: Minibatch
    ) -> tuple[Callable[[], None] | Tensor | None, Mapping[str, Any]]:
        """Compute the loss of a minibatch with the kernel in use; returns the argument for `optimizer.minimise`, and metrics.

        Calls `loss` or `loss_gradient` on the valid rows, with normalised advantages. A learner without rows of the minibatch gets
        (None, {}).
        """
        normalize, share = self.config.normalize_advantages, minibatch.share
        if not len(minibatch):
            if normalize and share is not None and share.advantage is None:
                # the other learners wait for this one's sums
                self._normalized(np.zeros(0, np.float32), share)
            return None, {}
        rows, which = minibatch.rows()
        if normalize:
            rows.advantage = self._normalized(rows.advantage, share)
        outputs = (out.log_prob[which], out.entropy[which], out.value[: len(out.log_prob)][which])
        if self.kernel == "numpy":
            assert isinstance(out, NumpyEvaluated) and isinstance(self.network, NumpyNetwork)
            by_log_prob, by_entropy, by_value, metrics = self.loss_gradient(*outputs, rows)
            numbers = metric_floats(f"{type(self).__name__}.loss_gradient()", metrics)
            return partial(self.network.backward, out, which, by_log_prob, by_entropy, by_value), numbers
        result = self.loss(*outputs, rows)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise UserError(f"{type(self).__name__}.loss() returned {shown(result)}, not a loss and metrics by name.")
        return result[0], metric_tensors(f"{type(self).__name__}.loss()", result[1], result[0].device)

    def _normalized(self, advantage: Any, share: Share | None) -> Any:
        """Scale advantages [n] to mean 0 and deviation 1 over the minibatch, of which other learners may hold a part.

        `std()` is not used: it divides by n in NumPy and by n - 1 in torch.
        """
        if share is not None and share.advantage is None:
            # whole streams: each learner knows its own advantages only
            assert self.collective is not None
            x = to_numpy(advantage).astype(np.float64)
            count, total, squares = self.collective.sum(np.array([len(x), x.sum(), x @ x]))
            mean = total / count
            deviation = max(0.0, squares / count - mean * mean) ** 0.5 + 1e-8
            return advantage if count == 1 else (advantage - float(mean)) / float(deviation)
        everyone = advantage if share is None or share.advantage is None else share.advantage
        count = len(everyone)
        if count == 1:
            return advantage
        mean = everyone.sum() / count
        centred = everyone - mean
        deviation = (centred @ centred / count) ** 0.5 + 1e-8
        if share is None:
            return centred / deviation
        # NumPy's numbers beside tensors
        return (advantage - float(mean)) / float(deviation)

    # -- data ----------------------------------------------------------------------------------------------------------

    @property
    def by_streams(self) -> bool:
        """Whether minibatches are whole streams with their rows in order. True for networks with a memory."""
        return bool(self.spec.memory)

    def prepare(self, trajectory: Trajectory) -> Minibatch:
        """Turn a trajectory into a batch on the network's device: its valid rows, or whole streams (`by_streams`).

        Normalises observations, scales rewards, and computes `columns`.
        """
        t = trajectory
        columns = self.columns(t, self._reward(t))
        if self.moments is not None:
            self.pipeline.load(self.moments)
        frames, memory = split_state(self.spec, t.state)
        obs, first = (t.obs, t.first) if self.by_streams else (tree_map(lambda x: x[:-1], t.obs), t.first[:-1])
        inputs, _ = self.pipeline.sequence(obs, frames, first)
        streams = Streams(inputs, t.first, t.valid, t.action, columns, memory)
        if not self.by_streams:
            return self.network.to_device(streams.flattened(self.collective))
        if self.collective is not None:
            streams.share = share_of_streams(t.valid, self.collective)
        return self.network.to_device(streams)

    def _reward(self, t: Trajectory) -> Array:
        """[T, B] as the learner sees it."""
        c = self.config
        reward = t.reward if self.intrinsic is None else self.intrinsic.reward(t)
        if c.reward_scale != 1:
            reward = reward * np.float32(c.reward_scale)
        if c.reward_clip is not None:
            reward = np.clip(reward, -c.reward_clip, c.reward_clip)
        if self.return_scaler is not None:
            reward = self.return_scaler.scale(reward, t.first, t.valid, self.collective, t.stream)
        return reward

    def columns(self, t: Trajectory, reward: Array) -> dict[str, Array]:
        """Compute the columns of a batch from rewards [T, B]: log_prob, value, advantage and target, each [T, B].

        Here advantages are generalised advantage estimates with the values of the policy that acted. Override it for others.
        """
        c, behaviour = self.config, t.behaviour
        value = behaviour["value"]
        final = (t.final.t, t.final.b, behaviour["final_value"]) if t.final is not None else ()
        following = next_values(value, *final)
        advantage = gae(reward, value[:-1], following, t.terminated, t.truncated, t.valid, c.gamma, c.gae_lambda)
        return {
            "log_prob": behaviour["log_prob"],
            "value": value[:-1],
            "advantage": advantage,
            "target": advantage + value[:-1],
        }

    def minibatches(self, batch: Minibatch) -> Iterator[Minibatch]:
        """Yield one epoch of minibatches of about `batch_size` rows, in random order."""
        return cut(batch, self.config.batch_size, self.rng)

    def finish(self, trajectory: Trajectory) -> None:
        """End an update: merge the workers' moments into the normaliser, and increase the version. Call it once per update."""
        self.merge(trajectory.moments)
        self.version += 1

    def vital_signs(self, update: Update) -> dict[str, Scalar]:
        signs = super().vital_signs(update)
        if self.log_std is not None:  # beyond about 88 the deviation, or what divides by it, is no longer a float32
            signs["the deviation of the actions"] = array_module(self.log_std).exp(abs(self.log_std).max())
        return signs

    # -- metrics -------------------------------------------------------------------------------------------------------

    def mean_metrics(self, steps: list[dict[str, Any]]) -> dict[str, float]:
        """Return the means over gradient steps, and over learners, of what `step_metrics` returned for each step."""
        more = {} if self.intrinsic is None else self.intrinsic.metrics()
        return mean_metrics(steps, self.collective) | more

    def explained_variance(self, batch: Minibatch) -> float:
        """Return 1 - Var[target - value] / Var[target]: 1 for a perfect value function, 0 for one that predicts the mean.

        It is also 0 if all targets are equal up to rounding.
        """
        rows, _ = batch.rows()
        target, value = to_numpy(rows.target), to_numpy(rows.value)
        error = target - value
        here = moments_of(np.stack([target, error], 1))
        everywhere = [here] if self.collective is None else self.collective.gather(here)
        count, means, squares = reduce(merge_moments, everywhere)
        spread, left = np.sqrt(squares / max(1.0, count))
        is_constant = spread <= ROUNDING * (abs(means).sum() + left)
        return 0.0 if is_constant else 1.0 - float(left / spread) ** 2

    # -- state ---------------------------------------------------------------------------------------------------------

    def _rewards(self) -> dict[str, ReturnScaler | IntrinsicReward]:
        """Return the parts with a state that compute or scale rewards, by name."""
        parts = {"return_scaler": self.return_scaler, "intrinsic": self.intrinsic}
        return {name: part for name, part in parts.items() if part is not None}

    def learnt_state(self) -> State:
        return {**super().learnt_state(), **{name: part.state_dict() for name, part in self._rewards().items()}}

    def load_learnt_state(self, state: State) -> None:
        super().load_learnt_state(state)
        for name, part in self._rewards().items():
            if name in state:
                part.load_state_dict(state[name])


WIDE = 128
"""Wider layers learn with torch, where it is installed."""


def _own_loss(cls: type[ActorCritic[Any]]) -> str:
    """The loss of a class that lacks the NumPy form beside it, as the subject of a sentence; "" if it is there."""
    order = [next(i for i, c in enumerate(cls.__mro__) if n in vars(c)) for n in ("loss_gradient", "loss")]
    return f"the loss of {cls.__name__} without a NumPy form (loss_gradient) beside it" if order[0] > order[1] else ""


def why_torch(cls: type[ActorCritic[Any]], config: ActorCriticConfig, spec: NetworkSpec) -> str:
    """What makes a network learn with torch, as the subject of a sentence; "" if it learns with the NumPy kernel, which is faster where it
    serves: for fully connected layers without memory, and one Discrete or Box action.

    Raises:
        ConfigError: kernel numpy was asked for where it cannot serve.
    """
    action, widest, own = spec.actions[0], max(spec.hidden, default=0), _own_loss(cls)
    named = {
        "categorical": "",
        "gaussian": "",
        "multi_categorical": "MultiDiscrete actions",
        "bernoulli": "MultiBinary actions",
    }
    kind = named.get(action.kind, f"model.distribution {action.kind}")
    if len(spec.actions) > 1 or action.path:
        kind = "actions of several parts"
    unserved = {
        "th_compile": config.th_compile,
        f"model.network {spec.network}": spec.network != "mlp",
        f"learning with a memory ({spec.memory})": bool(spec.memory),
        f"learning with {kind}": bool(kind),
        own: bool(own),
    }
    asked = {
        "kernel torch": config.kernel == "torch",
        f"device {config.device}": config.device not in ("auto", "cpu"),
        f"num_gpus {config.num_gpus:g}": config.num_gpus > 0,
    }
    wide = {f"a layer of {widest}": widest > WIDE and installed("torch")}
    reasons = unserved if config.kernel == "numpy" else asked | unserved | wide
    found = next((reason for reason, holds in reasons.items() if holds), "")
    if found and config.kernel == "numpy":
        raise ConfigError(f"kernel numpy does not serve {found}: use kernel torch or auto.")
    return found


def step_metrics(metrics: Mapping[str, Any], norm: Any, fraction: float) -> dict[str, Any]:
    """Return the metrics of one gradient step for `ActorCritic.mean_metrics`, with `norm` added as `grad_norm`.

    Args:
        metrics: what `objective` returned; {} if this learner held no row, which gives {}.
        norm: what `optimizer.minimise` returned.
        fraction: this learner's share of the minibatch's rows (`minibatch.fraction`), by which the metrics are weighted.
    """
    if not metrics:
        return {}
    found = {**metrics, "grad_norm": norm}
    return found if fraction == 1 else {name: x * fraction for name, x in found.items()}


def mean_metrics(steps: list[dict[str, Any]], collective: Collective | None = None) -> dict[str, float]:
    """Means over gradient steps; tensors are fetched in one transfer. With several learners, the sum of their parts of the means."""
    here = _sums([m for m in steps if m])
    everywhere = [here] if collective is None else collective.gather(here)
    names = next((list(sums) for sums in everywhere if sums), [])
    return {n: float(sum(sums.get(n, 0.0) for sums in everywhere)) / len(steps) for n in names}


def _sums(steps: list[dict[str, Any]]) -> dict[str, float]:
    if not steps:
        return {}
    names = list(steps[0])
    if isinstance(steps[0][names[0]], float):
        return {n: sum(m[n] for m in steps) for n in names}
    import torch

    sums = torch.stack([torch.stack([m[n].float() for n in names]) for m in steps]).sum(0).tolist()
    return dict(zip(names, sums, strict=True))
