"""Gradient steps of an actor-critic algorithm: with the hand-written NumPy kernel, or with torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from raypid.config import ConfigError
from raypid.nn.distributions import ActionDistribution
from raypid.nn.pipeline import Inputs
from raypid.nn.small import SmallNetwork, initial_mlp
from raypid.nn.spec import NetworkSpec
from raypid.ops.optim import Adam, clip_norm
from raypid.types import Array, Collective, flat_views, tree_map

if TYPE_CHECKING:
    from raypid.algorithms.actor_critic import ActorCritic, Batch


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


def _normalized(batch: Batch) -> Any:
    """Advantages with mean 0 and deviation 1 over the minibatch, of which other learners may hold a part.

    Not by `std()`, which divides by N in NumPy and by N - 1 in torch.
    """
    everyone = batch.advantage if batch.share is None else batch.share.advantage
    if len(everyone) == 1:
        return batch.advantage
    mean = everyone.mean()
    deviation = ((everyone - mean) ** 2).mean() ** 0.5 + 1e-8
    if batch.share is not None:  # NumPy's numbers beside tensors
        mean, deviation = float(mean), float(deviation)
    return (batch.advantage - mean) / deviation


def _summed(batch: Batch, metrics: dict[str, Any], gradient: Any, collective: Collective) -> dict[str, Any]:
    """Of a minibatch that several learners hold: the whole gradient, in place, and metrics that add up to the whole's.

    The loss is a mean over rows, so each learner's counts by its part of the rows.
    """
    assert batch.share is not None
    gradient *= batch.share.fraction
    collective.sum(gradient)
    return {k: v * batch.share.fraction for k, v in metrics.items()}


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
        self.gradients = flat_views(self.gradient, self.table)

    def to_device(self, batch: Batch) -> Batch:
        return batch

    def step(self, batch: Batch, lr: float) -> dict[str, Any]:
        """One step on a minibatch; returns metrics."""
        if self.config.normalize_advantages:
            batch.advantage = _normalized(batch)
        metrics: dict[str, Any] = {}
        if len(batch):
            metrics = self._backward(batch)
        else:
            self.gradient[:] = 0
        fraction = 1.0
        if batch.share is not None:
            assert self.algorithm.collective is not None
            metrics = _summed(batch, metrics, self.gradient, self.algorithm.collective)
            fraction = batch.share.fraction
        norm = clip_norm(self.gradient, self.config.max_grad_norm)
        self.optimizer.step(self.gradient, lr)
        return {**metrics, "grad_norm": norm * fraction} if metrics else {}

    def _backward(self, batch: Batch) -> dict[str, Any]:
        """The gradient of the loss over these rows; returns metrics."""
        network, x = self.network, batch.inputs.vector
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
        from raypid.nn.flat_adam import FlatAdam
        from raypid.nn.networks import TorchNetwork

        self.algorithm, self.config = algorithm, algorithm.config
        self.network = TorchNetwork(algorithm.spec, seed, device_for(self.config))
        self.table = self.network.table
        self.distribution = ActionDistribution(algorithm.spec.actions)
        self.optimizer = FlatAdam(self.network, self.config.lr, self.config.adam_eps, self.config.max_grad_norm)

    def to_device(self, batch: Batch) -> Batch:
        """The batch as tensors, moved once for all epochs."""
        import torch

        from raypid.algorithms.actor_critic import Batch
        from raypid.nn.networks import TorchInputs, on_device

        def move(x: Array) -> Any:
            return on_device(torch.from_numpy(np.ascontiguousarray(x)), self.network.device)

        names = ("log_prob", "value", "advantage", "target")
        inputs: Inputs = batch.inputs
        columns = (move(getattr(batch, n)) for n in names)
        moved = Batch(TorchInputs(inputs, self.network.device), tree_map(move, batch.action), *columns)
        moved.share = batch.share
        return moved

    def step(self, batch: Batch, lr: float) -> dict[str, Any]:
        """One step on a minibatch; returns metrics, as tensors that nobody has waited for."""
        if self.config.normalize_advantages:
            batch.advantage = _normalized(batch)
        self.network.gradient.zero_()
        metrics = self._backward(batch) if len(batch) else {}
        fraction = 1.0
        if batch.share is not None:
            assert self.algorithm.collective is not None
            metrics = _summed(batch, metrics, self.network.gradient, self.algorithm.collective)
            fraction = batch.share.fraction
        norm = self.optimizer.clip()
        self.optimizer.step(lr)
        return {**metrics, "grad_norm": norm * fraction} if metrics else {}

    def _backward(self, batch: Batch) -> dict[str, Any]:
        """The gradient of the loss over these rows; returns metrics."""
        params, value = self.network(batch.inputs)
        params = self.distribution.masked(params, batch.inputs.mask)
        log_std = self.network.log_std
        log_prob = self.distribution.log_prob(params, log_std, batch.action)
        loss, metrics = self.algorithm.loss(log_prob, self.distribution.entropy(params, log_std), value, batch)
        loss.backward()
        return {k: v.detach() for k, v in metrics.items()}

    def numpy(self) -> Array:
        return self.network.numpy()

    def load(self, flat: Array) -> None:
        self.network.load(flat)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


def device_for(config: Any) -> str:
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


def mean_metrics(metrics: list[dict[str, Any]], collective: Collective | None = None) -> dict[str, float]:
    """Means over gradient steps; tensors are fetched in one transfer. Of several learners, the sum of their parts of the means."""
    here = _sums([m for m in metrics if m])  # a step without rows here has none
    everywhere = [here] if collective is None else collective.gather(here)
    names = next((list(sums) for sums in everywhere if sums), [])
    return {n: float(sum(sums.get(n, 0.0) for sums in everywhere)) / len(metrics) for n in names}


def _sums(metrics: list[dict[str, Any]]) -> dict[str, float]:
    if not metrics:
        return {}
    names = list(metrics[0])
    if isinstance(metrics[0][names[0]], float):
        return {n: float(np.sum([m[n] for m in metrics])) for n in names}
    import torch

    sums = torch.stack([torch.stack([m[n].float() for n in names]) for m in metrics]).sum(0).tolist()
    return dict(zip(names, sums, strict=True))
