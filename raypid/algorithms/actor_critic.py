"""What on-policy actor-critic algorithms share: from a trajectory to a flat batch, and gradient steps on either network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from raypid.algorithms.base import Algorithm, ObservationMoments, schedule
from raypid.config import Config, ConfigError
from raypid.nn.distributions import ActionDistribution
from raypid.nn.pipeline import Inputs, Pipeline
from raypid.nn.small import SmallNetwork, initial_mlp
from raypid.nn.spec import NetworkSpec
from raypid.ops.normalizer import ReturnScaler
from raypid.ops.optim import Adam, clip_norm
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
        """The paper's loss on torch tensors [N], and metrics."""

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
            reward = self.return_scaler.scale(reward, t.first, t.valid)
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
        return Batch(inputs.flatten().take(rows), *columns)

    def minibatches(self, num_rows: int) -> Iterator[Array]:
        """Row indices [about batch_size] of one epoch: a random permutation cut into equal parts; none of no rows."""
        if not num_rows:
            return
        count = max(1, round(num_rows / self.config.batch_size))
        yield from np.array_split(self.rng.permutation(num_rows), count)

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


def kernel_for(config: Any, spec: NetworkSpec) -> str:
    """numpy or torch: what `config.kernel` asks for, or the faster.

    Raises:
        ConfigError: numpy asked for where it does not apply.
    """
    kinds = {leaf.kind for leaf in spec.actions}
    fits = (
        spec.network == "mlp"
        and len(spec.actions) == 1
        and not spec.actions[0].path
        and kinds <= {"categorical", "gaussian"}
    )
    if config.kernel == "numpy" and not fits:
        raise ConfigError(
            "kernel numpy serves fully connected networks with one Discrete or Box action; use kernel torch or auto."
        )
    if config.kernel != "auto":
        return str(config.kernel)
    on_gpu = config.num_gpus > 0 or config.device not in ("auto", "cpu")
    return "numpy" if fits and not on_gpu and max(spec.hidden, default=0) <= 128 else "torch"


def _normalized(advantage: Any) -> Any:
    """Mean 0 and deviation 1. Not by `std()`, which divides by N in NumPy and by N - 1 in torch."""
    if len(advantage) == 1:
        return advantage
    centered = advantage - advantage.mean()
    return centered / ((centered * centered).mean() ** 0.5 + 1e-8)


class NumpySteps:
    """Gradient steps with the hand-written kernel."""

    def __init__(self, algorithm: ActorCritic, seed: int) -> None:
        spec = algorithm.spec
        self.algorithm, self.config = algorithm, algorithm.config
        flat = initial_mlp(spec, spec.pipeline.vector_size, np.random.default_rng(seed))
        self.network = SmallNetwork(spec, flat)
        self.table = self.network.table
        self.distribution = ActionDistribution(spec.actions)
        self.optimizer = Adam(flat, eps=self.config.adam_eps)
        self.gradient = np.zeros_like(flat)
        from raypid.types import flat_views

        self.gradients = flat_views(self.gradient, self.table)

    def to_device(self, batch: Batch) -> Batch:
        return batch

    def step(self, batch: Batch, lr: float) -> dict[str, Any]:
        """One step on a minibatch; returns metrics."""
        network = self.network
        if self.config.normalize_advantages:
            batch.advantage = _normalized(batch.advantage)
        x = batch.inputs.vector
        params, value, layers, arguments = network.forward(x)
        params = self.distribution.masked(params, batch.inputs.mask)
        log_prob, d_log_prob, entropy, d_entropy = network.logp_and_slopes(params, batch.action)
        by_log_prob, by_entropy, by_value, metrics = self.algorithm.slopes(log_prob, entropy, value, batch)
        d = d_log_prob * by_log_prob[:, None]
        if by_entropy:
            d += d_entropy * np.float32(by_entropy)
        size = params.shape[1]
        network.backward(self.gradients, x, layers, arguments, d[:, :size], by_value)
        if network.log_std is not None:
            self.gradients["log_std"][:] = d[:, size:].sum(0)
        metrics["grad_norm"] = clip_norm(self.gradient, self.config.max_grad_norm)
        self.optimizer.step(self.gradient, lr)
        return metrics

    def numpy(self) -> Array:
        return self.network.flat

    def load(self, flat: Array) -> None:
        self.network.flat[:] = flat

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


class TorchSteps:
    """Gradient steps with autograd and fused Adam on one flat parameter."""

    def __init__(self, algorithm: ActorCritic, seed: int) -> None:
        import torch

        from raypid.nn.networks import TorchNetwork

        self.algorithm, self.config = algorithm, algorithm.config
        self.network = TorchNetwork(algorithm.spec, seed, _device(self.config))
        self.table = self.network.table
        self.distribution = ActionDistribution(algorithm.spec.actions)
        self.flat = torch.nn.Parameter(self.network.flat)
        self.flat.grad = self.network.gradient
        self.optimizer = torch.optim.Adam([self.flat], lr=self.config.lr, eps=self.config.adam_eps, fused=True)

    def to_device(self, batch: Batch) -> Batch:
        """The batch as tensors, moved once for all epochs."""
        import torch

        from raypid.nn.networks import TorchInputs

        def move(x: Array) -> Any:
            return torch.from_numpy(np.ascontiguousarray(x)).to(self.network.device, non_blocking=True)

        names = ("log_prob", "value", "advantage", "target")
        inputs: Inputs = batch.inputs
        return Batch(
            TorchInputs(inputs, self.network.device),
            tree_map(move, batch.action),
            *(move(getattr(batch, n)) for n in names),
        )

    def step(self, batch: Batch, lr: float) -> dict[str, Any]:
        """One step on a minibatch; returns metrics, as tensors that nobody has waited for."""
        import torch

        if self.config.normalize_advantages:
            batch.advantage = _normalized(batch.advantage)
        params, value = self.network(batch.inputs)
        params = self.distribution.masked(params, batch.inputs.mask)
        log_std = self.network.log_std
        log_prob = self.distribution.log_prob(params, log_std, batch.action)
        loss, metrics = self.algorithm.loss(log_prob, self.distribution.entropy(params, log_std), value, batch)
        self.network.gradient.zero_()
        loss.backward()
        with torch.no_grad():
            norm = torch.linalg.vector_norm(self.network.gradient)
            if self.config.max_grad_norm is not None:
                self.network.gradient.mul_((self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()
        return {**{k: v.detach() for k, v in metrics.items()}, "grad_norm": norm}

    def numpy(self) -> Array:
        return self.network.numpy()

    def load(self, flat: Array) -> None:
        self.network.load(flat)

    def state_dict(self) -> dict[str, Any]:
        state = self.optimizer.state.get(self.flat)
        if not state:
            return {"m": np.zeros_like(self.numpy()), "v": np.zeros_like(self.numpy()), "steps": 0}
        m, v = (state[k].detach().cpu().numpy().copy() for k in ("exp_avg", "exp_avg_sq"))
        return {"m": m, "v": v, "steps": int(state["step"].item())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The same state as the NumPy kernel's, so that a checkpoint continues on either."""
        import torch

        def tensor(x: Any) -> Any:
            return torch.tensor(np.array(x), device=self.network.device)

        step = torch.tensor(float(state["steps"]), device=self.network.device)
        self.optimizer.state[self.flat] = {
            "step": step,
            "exp_avg": tensor(state["m"]),
            "exp_avg_sq": tensor(state["v"]),
        }


def _device(config: Any) -> str:
    """Where to learn.

    Raises:
        ConfigError: a GPU was asked for, and torch sees none.
    """
    import torch

    device = ("cuda" if config.num_gpus > 0 else "cpu") if config.device == "auto" else str(config.device)
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"device {device}: torch {torch.__version__} sees no GPU here. Set device cpu and num_gpus 0."
        )
    return device


def mean_metrics(metrics: list[dict[str, Any]]) -> dict[str, float]:
    """Means over gradient steps; tensors are fetched in one transfer."""
    if not metrics:
        return {}
    names = list(metrics[0])
    if isinstance(metrics[0][names[0]], float):
        return {n: float(np.mean([m[n] for m in metrics])) for n in names}
    import torch

    means = torch.stack([torch.stack([m[n].float() for n in names]) for m in metrics]).mean(0).tolist()
    return dict(zip(names, means, strict=True))
