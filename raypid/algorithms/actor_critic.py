"""What on-policy actor-critic algorithms share: from a trajectory to a flat batch, and gradient steps on either network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, Literal

import numpy as np

from raypid.algorithms.base import Algorithm, ObservationMoments, check_table, optimizer_idle, schedule
from raypid.algorithms.intrinsic import IntrinsicReward, intrinsic_class
from raypid.algorithms.joint_batch import share_of
from raypid.algorithms.minibatches import Batch, Streams, share_of_streams
from raypid.algorithms.steps import NumpySteps, TorchSteps, kernel_for, mean_metrics
from raypid.config import Config, ConfigError, unless
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.numpy_cells import split_state
from raypid.nn.pipeline import Pipeline
from raypid.ops.normalizer import ReturnScaler, merge_moments, moments_of
from raypid.ops.returns import gae, next_values
from raypid.types import Array, Collective, Trajectory, Tree, Weights, tree_map


@dataclass(kw_only=True, slots=True)
class ActorCriticConfig(Config):
    """Settings of PPO and A2C alike."""

    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation; 1 is the n-step return."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: float | None = 0.5
    """Largest L2 norm of a gradient; none does not clip."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """How gradients become steps."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    rmsprop_eps: float = 0.01
    """RMSProp's epsilon, beside the root of the mean square."""
    rmsprop_decay: float = 0.99
    """Of RMSProp's mean square."""
    normalize_advantages: bool = True
    """Advantages of each minibatch have mean 0 and deviation 1."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """linear: the learning rate falls over schedule_steps."""
    schedule_steps: int | None = None
    """Environment steps of the linear schedules; the command line takes the stop at timesteps_total where there is one."""
    schedule_end: float = 0.0
    """Fraction at the end of the linear schedules."""
    intrinsic_reward: object = None
    """What replaces the task's reward in the learner, for pretraining: rnd (novelty), an IntrinsicReward class or "module:Name"; none: the task's."""
    th_compile: bool = False
    """Compile the network with torch.compile: half a minute at the start, faster on a GPU. It makes kernel auto torch."""

    def idle(self) -> dict[str, str]:
        linear = "linear" in (self.lr_schedule, getattr(self, "clip_schedule", ""))
        return {
            **Config.idle(self),
            **optimizer_idle(self.optimizer),
            **unless(linear, "without a linear schedule: set lr_schedule to linear", "schedule_steps", "schedule_end"),
        }

    def validate(self) -> None:
        Config.validate(self)
        for name in ("gae_lambda", "schedule_end", "rmsprop_decay"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must lie in [0, 1], not {getattr(self, name)!r}.")
        for name in ("max_grad_norm", "schedule_steps", "value_clip", "target_kl"):
            value = getattr(self, name, None)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above 0 (or none), not {value!r}.")
        if self.intrinsic_reward is not None:
            kind = intrinsic_class(self.intrinsic_reward)
            if self.num_learners > 1 and not kind.several_learners:
                raise ConfigError(
                    f"{kind.__name__} learns in one place: num_learners is 0 or 1, not {self.num_learners}."
                )
        if self.th_compile and self.kernel == "numpy":
            raise ConfigError("kernel numpy has nothing to compile: set th_compile to false, or kernel to torch.")
        linear = [name for name in ("lr_schedule", "clip_schedule") if getattr(self, name, None) == "linear"]
        if linear and not self.schedule_steps:
            raise ConfigError(f"{linear[0]} linear needs schedule_steps (or a stop at timesteps_total).")


class ActorCritic(Algorithm):
    """Policy and value network, Adam, normalisers. Subclasses write `update`, `loss` (torch) and `slopes` (its derivative)."""

    flow: ClassVar[Literal["sync", "async", "replay"]] = "sync"
    collect: ClassVar[Literal["trajectory", "gradients", "fitness"]] = "trajectory"
    several_learners = True

    def __init__(self, config: Any, spec: NetworkSpec, seed: int) -> None:
        super().__init__(config, spec, seed)
        if any(leaf.kind == "deterministic" for leaf in spec.actions):
            raise ConfigError(
                "model.distribution deterministic gives no probabilities to learn from; use auto or squashed_gaussian."
            )
        self.pipeline = Pipeline(spec.pipeline)
        self.moments = ObservationMoments(self.pipeline.normalized_size) if spec.pipeline.normalize else None
        self.return_scaler = ReturnScaler(config.gamma) if config.normalize_rewards else None
        self.intrinsic: IntrinsicReward | None = None
        if config.intrinsic_reward is not None:
            self.intrinsic = intrinsic_class(config.intrinsic_reward)(spec, config.gamma, seed)
        kind = kernel_for(config, spec)
        self.learner: NumpySteps | TorchSteps = (NumpySteps if kind == "numpy" else TorchSteps)(self, seed)

    def meet(self, collective: Collective) -> None:
        super().meet(collective)
        if self.intrinsic is not None:
            self.intrinsic.collective = collective

    @abstractmethod
    def loss(self, log_prob: Any, entropy: Any, value: Any, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """The paper's loss on torch tensors [N], and metrics; all are means over rows."""

    @abstractmethod
    def slopes(
        self, log_prob: Array, entropy: Array, value: Array, batch: Batch
    ) -> tuple[Array, float, Array, dict[str, float]]:
        """The derivative of `loss` by log_prob [N], entropy (the same for each row) and value [N], in NumPy; and metrics."""

    # -- data ----------------------------------------------------------------------------------------------------

    @property
    def by_streams(self) -> bool:
        """Minibatches are whole streams: rows stay as they followed each other."""
        return bool(self.spec.memory)

    def prepare(self, trajectory: Trajectory) -> Batch | Streams:
        """Inputs and columns of the valid rows, or of whole streams."""
        t = trajectory
        columns = self.columns(t, self._reward(t))
        if self.moments is not None:
            self.pipeline.load(self.moments.moments)
        frames, memory = split_state(self.spec, t.state)
        obs, first = (t.obs, t.first) if self.by_streams else (tree_map(lambda x: x[:-1], t.obs), t.first[:-1])
        inputs, _ = self.pipeline.sequence(obs, frames, first)
        if self.by_streams:
            share = None if self.collective is None else share_of_streams(t.valid, self.collective)
            return Streams(inputs, t.first, t.valid, t.action, columns, memory, share)
        rows = np.flatnonzero(t.valid.ravel())

        def flat(x: Tree) -> Any:
            return tree_map(lambda a: a.reshape(-1, *a.shape[2:])[rows], x)

        names = ("log_prob", "value", "advantage", "target")
        batch = Batch(inputs.flatten().take(rows), flat(t.action), *(flat(columns[n]) for n in names))
        if self.collective is not None:
            batch.share = share_of(columns["advantage"], t.valid, self.collective)
        return batch

    def _reward(self, t: Trajectory) -> Array:
        """[T, B] as the learner sees it."""
        c = self.config
        reward: Array = t.reward if self.intrinsic is None else self.intrinsic.reward(t)
        if c.reward_scale != 1:
            reward = reward * np.float32(c.reward_scale)
        if c.reward_clip is not None:
            reward = np.clip(reward, -c.reward_clip, c.reward_clip)
        if self.return_scaler is not None:
            reward = self.return_scaler.scale(reward, t.first, t.valid, self.collective, t.stream)
        return reward

    def columns(self, t: Trajectory, reward: Array) -> dict[str, Array]:
        """What is learnt by, [T, B] each: here generalised advantages, from the acting policy's values."""
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

    def estimate(self, columns: dict[str, Any], log_prob: Any, value: Any) -> dict[str, Any]:
        """Columns [T, B] of streams with those added that need what the network says now: log_prob [T, B], value [T+1, B]."""
        return columns

    def minibatches(self, batch: Batch | Streams) -> Iterator[Batch | Streams]:
        """One epoch: a random permutation of the rows (or streams), cut into equal parts of about batch_size rows; none of no rows.

        Of several learners each yields what it holds of the same parts, which may be nothing.
        """
        share = batch.share
        num_rows = len(batch) if share is None else int(share.rows.sum())
        if not num_rows:
            return
        num_here = batch.num_streams if isinstance(batch, Streams) else len(batch)
        num_units = num_here if share is None else share.total
        count = min(num_units, max(1, round(num_rows / self.config.batch_size)))
        for part in np.array_split(self.rng.permutation(num_units), count):
            if share is not None:
                units, of_part = share.take(part)
                yield replace(batch.take(units), share=of_part)
            elif count == 1 and isinstance(batch, Streams):
                yield batch  # all of them: nothing is copied
            else:
                yield batch.take(part)

    def mean_metrics(self, metrics: list[dict[str, Any]]) -> dict[str, float]:
        """Means over gradient steps (and learners) of what `learner.step` returned."""
        more = {} if self.intrinsic is None else self.intrinsic.metrics()
        return mean_metrics(metrics, self.collective) | more

    def explained_variance(self, batch: Batch | Streams) -> float:
        """1 - Var[target - value] / Var[target]: 1 is a perfect value function, 0 one that knows the mean."""
        found: tuple[Any, Any] = (batch.target, batch.value) if isinstance(batch, Batch) else self._learnt(batch)
        target, value = (np.asarray(x.cpu() if hasattr(x, "cpu") else x) for x in found)
        error = target - value
        here = moments_of(np.stack([target, error], 1))
        everywhere = [here] if self.collective is None else self.collective.gather(here)
        variance, left = reduce(merge_moments, everywhere)[2]
        return 1.0 - float(left / variance) if variance > 0 else float("nan")

    @staticmethod
    def _learnt(streams: Streams) -> tuple[Any, Any]:
        rows = streams.learnt()
        return streams.columns["target"].ravel()[rows], streams.columns["value"].ravel()[rows]

    def lr(self, timesteps: int) -> float:
        c = self.config
        return c.lr * schedule(c.lr_schedule, timesteps, c.schedule_steps, c.schedule_end)

    def finish(self, trajectory: Trajectory) -> None:
        """After the update: merge what the workers saw into the normaliser, and count a version."""
        if self.moments is not None and trajectory.moments is not None:
            self.moments.merge(trajectory.moments)
        self.version += 1

    # -- state ---------------------------------------------------------------------------------------------------

    def weights(self) -> Weights:
        extra = {} if self.moments is None else self.moments.extra()
        return Weights(self.version, self.learner.numpy().copy(), self.learner.table, extra)

    def set_weights(self, weights: Weights) -> None:
        check_table(weights.table, self.learner.table)
        self.learner.load(weights.flat)
        if self.moments is not None and "obs_mean" in weights.extra:
            self.moments.load(weights.extra)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "version": self.version,
            "flat": self.learner.numpy().copy(),
            "optimizer": self.learner.state_dict(),
            "rng": self.rng.bit_generator.state,
        }
        if self.moments is not None:
            state["moments"] = self.moments.extra()
        if self.return_scaler is not None:
            state["return_scaler"] = self.return_scaler.state_dict()
        if self.intrinsic is not None:
            state["intrinsic"] = self.intrinsic.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["flat"]) != len(self.learner.numpy()):
            raise ConfigError(
                f"The checkpoint has {len(state['flat'])} weights, this network {len(self.learner.numpy())}: the model setting differs."
            )
        self.version = int(state["version"])
        self.learner.load(state["flat"])
        self.learner.load_state_dict(state["optimizer"])
        self.rng.bit_generator.state = state["rng"]
        if self.moments is not None and "moments" in state:
            self.moments.load(state["moments"])
        if self.return_scaler is not None and "return_scaler" in state:
            self.return_scaler.load_state_dict(state["return_scaler"])
        if self.intrinsic is not None and "intrinsic" in state:
            self.intrinsic.load_state_dict(state["intrinsic"])
