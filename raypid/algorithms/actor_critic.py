"""What on-policy actor-critic algorithms share: from a trajectory to a flat batch, and gradient steps on either network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import numpy as np

from raypid.algorithms.base import Algorithm, ObservationMoments, schedule
from raypid.algorithms.share import Share, share_of
from raypid.algorithms.steps import NumpySteps, TorchSteps, kernel_for, mean_metrics
from raypid.config import Config, ConfigError
from raypid.nn.pipeline import Pipeline
from raypid.nn.spec import NetworkSpec
from raypid.ops.normalizer import ReturnScaler, merge_moments, moments_of
from raypid.ops.returns import gae, next_values
from raypid.types import Array, Trajectory, Tree, Weights, tree_map


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
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    normalize_advantages: bool = True
    """Advantages of each minibatch have mean 0 and deviation 1."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """linear: the learning rate falls over schedule_steps."""
    schedule_steps: int | None = None
    """Environment steps of the linear schedules; the command line takes the stop at timesteps_total where there is one."""
    schedule_end: float = 0.0
    """Fraction at the end of the linear schedules."""

    def validate(self) -> None:
        Config.validate(self)
        for name in ("gae_lambda", "schedule_end"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must lie in [0, 1], not {getattr(self, name)!r}.")
        for name in ("max_grad_norm", "schedule_steps", "value_clip", "target_kl"):
            value = getattr(self, name, None)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above 0 (or none), not {value!r}.")
        linear = [name for name in ("lr_schedule", "clip_schedule") if getattr(self, name, None) == "linear"]
        if linear and not self.schedule_steps:
            raise ConfigError(f"{linear[0]} linear needs schedule_steps (or a stop at timesteps_total).")


@dataclass(slots=True)
class Batch:
    """Valid rows of a trajectory, flattened: N rows. Arrays, or tensors once they are on the learner's device."""

    inputs: Any
    action: Any
    """[N, *] canonical."""
    log_prob: Any
    """[N] of the acting policy."""
    value: Any
    """[N] of the acting policy."""
    advantage: Any
    """[N]."""
    target: Any
    """[N] lambda return: what the value shall be."""
    share: Share | None = None
    """Where several learners hold a batch together: which of its rows are these."""

    def __len__(self) -> int:
        return len(self.log_prob)

    def take(self, rows: Any) -> Batch:
        action = tree_map(lambda a: a[rows], self.action)
        columns = (getattr(self, name)[rows] for name in ("log_prob", "value", "advantage", "target"))
        return Batch(self.inputs.take(rows), action, *columns)


class ActorCritic(Algorithm):
    """Policy and value network, Adam, normalisers. Subclasses write `update`, `loss` (torch) and `slopes` (its derivative)."""

    flow = "sync"
    collect = "trajectory"
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
        kind = kernel_for(config, spec)
        self.learner: NumpySteps | TorchSteps = (NumpySteps if kind == "numpy" else TorchSteps)(self, seed)

    @abstractmethod
    def loss(self, log_prob: Any, entropy: Any, value: Any, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """The paper's loss on torch tensors [N], and metrics; all are means over rows."""

    @abstractmethod
    def slopes(
        self, log_prob: Array, entropy: Array, value: Array, batch: Batch
    ) -> tuple[Array, float, Array, dict[str, float]]:
        """The derivative of `loss` by log_prob [N], entropy (the same for each row) and value [N], in NumPy; and metrics."""

    # -- data ----------------------------------------------------------------------------------------------------

    def prepare(self, trajectory: Trajectory) -> Batch:
        """Inputs, advantages and targets of the valid rows. Values are the acting policy's."""
        t, c, behaviour = trajectory, self.config, trajectory.behaviour
        reward = t.reward if c.reward_scale == 1 else t.reward * np.float32(c.reward_scale)
        if c.reward_clip is not None:
            reward = np.clip(reward, -c.reward_clip, c.reward_clip)
        if self.return_scaler is not None:
            reward = self.return_scaler.scale(reward, t.first, t.valid, self.collective)
        value = behaviour["value"]
        final = (t.final.t, t.final.b, behaviour["final_value"]) if t.final is not None else ()
        following = next_values(value, *final)
        advantage = gae(reward, value[:-1], following, t.terminated, t.truncated, t.valid, c.gamma, c.gae_lambda)
        if self.moments is not None:
            self.pipeline.load(self.moments.moments)
        inputs, _ = self.pipeline.sequence(tree_map(lambda x: x[:-1], t.obs), t.state, t.first[:-1])
        rows = np.flatnonzero(t.valid.ravel())

        def flat(x: Tree) -> Any:
            return tree_map(lambda a: a.reshape(-1, *a.shape[2:])[rows], x)

        target = advantage + value[:-1]
        columns = (flat(x) for x in (t.action, behaviour["log_prob"], value[:-1], advantage, target))
        batch = Batch(inputs.flatten().take(rows), *columns)
        if self.collective is not None:
            batch.share = share_of(advantage, t.valid, self.collective)
        return batch

    def minibatches(self, batch: Batch) -> Iterator[Batch]:
        """One epoch: a random permutation of the rows, cut into equal parts of about batch_size; none of no rows.

        Of several learners each yields the rows that it holds of the same parts, which may be none.
        """
        share = batch.share
        num_rows = len(batch) if share is None else share.total
        if not num_rows:
            return
        count = max(1, round(num_rows / self.config.batch_size))
        for part in np.array_split(self.rng.permutation(num_rows), count):
            if share is None:
                yield batch.take(part)
            else:
                rows, of_part = share.take(part)
                yield replace(batch.take(rows), share=of_part)

    def mean_metrics(self, metrics: list[dict[str, Any]]) -> dict[str, float]:
        """Means over gradient steps (and learners) of what `learner.step` returned."""
        return mean_metrics(metrics, self.collective)

    def explained_variance(self, batch: Batch) -> float:
        """1 - Var[target - value] / Var[target]: 1 is a perfect value function, 0 one that knows the mean."""
        target, error = (
            np.asarray(x.cpu() if hasattr(x, "cpu") else x) for x in (batch.target, batch.target - batch.value)
        )
        here = moments_of(np.stack([target, error], 1))
        everywhere = [here] if self.collective is None else self.collective.gather(here)
        variance, left = reduce(merge_moments, everywhere)[2]
        return 1.0 - float(left / variance) if variance > 0 else float("nan")

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
        if weights.table != self.learner.table:
            theirs, ours = dict(weights.table), dict(self.learner.table)
            names = [n for n in {**ours, **theirs} if theirs.get(n) != ours.get(n)]
            parts = [f"{n} {theirs.get(n, 'absent')} there, {ours.get(n, 'absent')} here" for n in names[:3]]
            raise ConfigError(
                f"The given weights belong to another network (other spaces or model): {'; '.join(parts)}."
            )
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
