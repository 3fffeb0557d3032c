"""Gradient steps of an actor-critic algorithm: with the hand-written NumPy kernel, or with torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from raypid.algorithms.joint_batch import Share
from raypid.algorithms.minibatches import Batch, Streams
from raypid.config import ConfigError
from raypid.nn.distributions import ActionDistribution
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.numpy_mlp import SmallNetwork, initial_mlp
from raypid.ops.optim import Adam, RMSProp, clip_norm
from raypid.types import Array, Collective, Tree, flat_views, tree_map

if TYPE_CHECKING:
    from raypid.algorithms.actor_critic import ActorCritic


def kernel_for(config: Any, spec: NetworkSpec) -> str:
    """numpy or torch: what `config.kernel` asks for, or the faster.

    Raises:
        ConfigError: numpy asked for where it does not apply.
    """
    kinds = {leaf.kind for leaf in spec.actions}
    fits = (
        spec.network == "mlp"
        and not spec.memory
        and len(spec.actions) == 1
        and not spec.actions[0].path
        and kinds <= {"categorical", "gaussian"}
    )
    if config.kernel == "numpy" and not fits:
        raise ConfigError(
            "kernel numpy serves fully connected networks without memory and with one Discrete or Box action; "
            "use kernel torch or auto."
        )
    if config.kernel != "auto":
        return str(config.kernel)
    on_gpu = config.num_gpus > 0 or config.device not in ("auto", "cpu")
    return "numpy" if fits and not on_gpu and not config.th_compile and max(spec.hidden, default=0) <= 128 else "torch"


def _normalized(advantage: Any, share: Share | None, collective: Collective | None) -> Any:
    """Advantages [n] with mean 0 and deviation 1 over the minibatch, of which other learners may hold a part.

    Not by `std()`, which divides by N in NumPy and by N - 1 in torch.
    """
    if share is not None and share.advantage is None:  # of whole streams each learner knows its own
        assert collective is not None
        x = np.asarray(advantage.cpu() if hasattr(advantage, "cpu") else advantage, np.float64)
        count, total, squares = collective.sum(np.array([len(x), x.sum(), x @ x]))
        mean = total / count
        deviation = max(0.0, squares / count - mean * mean) ** 0.5 + 1e-8
        return advantage if count == 1 else (advantage - float(mean)) / float(deviation)
    everyone: Any = advantage if share is None else share.advantage
    if len(everyone) == 1:
        return advantage
    mean = everyone.mean()
    deviation = ((everyone - mean) ** 2).mean() ** 0.5 + 1e-8
    if share is not None:  # NumPy's numbers beside tensors
        mean, deviation = float(mean), float(deviation)
    return (advantage - mean) / deviation


def _writable(x: Array) -> Array:
    """As torch takes it: what comes from Ray's object store is read-only."""
    return np.require(x, requirements=("C", "W"))


def _flat(action: Tree) -> Any:
    """[T, B, *] to [T * B, *]."""
    return tree_map(lambda a: a.reshape(-1, *a.shape[2:]), action)


class Steps(ABC):
    """Gradient steps of an algorithm on one kind of network."""

    network: Any
    optimizer: Any
    table: tuple[tuple[str, tuple[int, ...]], ...]
    gradient: Any
    """[P], an array or a tensor."""

    def __init__(self, algorithm: ActorCritic) -> None:
        self.algorithm, self.config = algorithm, algorithm.config
        self.distribution = ActionDistribution(algorithm.spec.actions)

    def step(self, batch: Batch | Streams, lr: float) -> dict[str, Any]:
        """One step on a minibatch; returns metrics, of torch as tensors that nobody has waited for."""
        metrics, fraction = self.differentiate(batch), 1.0
        if batch.share is not None:
            assert self.algorithm.collective is not None
            fraction = batch.share.fraction
            self.gradient *= fraction  # the loss is a mean over rows, so each learner's counts by its part of them
            self.algorithm.collective.sum(self.gradient)
            metrics = {k: v * fraction for k, v in metrics.items()}
        norm = self.apply(lr)
        return {**metrics, "grad_norm": norm * fraction} if metrics else {}

    def differentiate(self, batch: Batch | Streams) -> dict[str, Any]:
        """Put the gradient of the loss over these rows into `gradient`; returns metrics, none where there are no rows."""
        self.gradient[:] = 0
        if len(batch):
            return self.backward(batch)
        if isinstance(batch, Streams):
            nothing = np.zeros(0)
            self.normalize(
                Batch(None, None, nothing, nothing, nothing, nothing), batch.share
            )  # the other learners wait for it
        return {}

    @abstractmethod
    def backward(self, batch: Batch | Streams) -> dict[str, Any]:
        """Add the gradient of the loss over these rows to `gradient`; returns metrics."""

    @abstractmethod
    def descend(self, gradient: Array, lr: float) -> Any:
        """One step of the optimizer by a gradient [P] from elsewhere, clipped to max_grad_norm; returns the norm that it had."""

    @abstractmethod
    def apply(self, lr: float) -> Any:
        """One step of the optimizer by `gradient`, clipped to max_grad_norm; returns the norm that it had."""

    @abstractmethod
    def to_device(self, batch: Any) -> Any:
        """The batch where the network is, moved once for all epochs."""

    @abstractmethod
    def evaluate(self, streams: Streams, parameters: Array | None = None) -> tuple[Any, Any]:
        """log_prob [T, B] of the actions and value [T+1, B], by these or by other parameters [P]; no gradient."""

    @abstractmethod
    def numpy(self) -> Array:
        """The parameters [P]."""

    @abstractmethod
    def load(self, flat: Array) -> None: ...

    def rows_of(self, streams: Streams, log_prob: Any, value: Any) -> tuple[Batch, Any]:
        """The rows of streams that are learnt from, once the network has said log_prob [T * B] and value [(T+1) * B] of them;
        and which of the T * B they are."""
        columns = self.algorithm.estimate(streams.columns, *streams.by_row(log_prob, value))
        learnt = streams.learnt()
        return streams.learnt_by(columns, learnt), learnt

    def normalize(self, rows: Batch, share: Share | None) -> None:
        if self.config.normalize_advantages:
            rows.advantage = _normalized(rows.advantage, share, self.algorithm.collective)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


class NumpySteps(Steps):
    """Gradient steps with the hand-written kernel."""

    def __init__(self, algorithm: ActorCritic, seed: int) -> None:
        super().__init__(algorithm)
        spec, c = algorithm.spec, algorithm.config
        flat = initial_mlp(spec, spec.pipeline.vector_size, np.random.default_rng(seed))
        self.network = SmallNetwork(spec, flat)
        self.table = self.network.table
        self.optimizer = numpy_optimizer(c, flat)
        self.gradient = np.zeros_like(flat)
        self.gradients = flat_views(self.gradient, self.table)

    def to_device(self, batch: Any) -> Any:
        return batch

    def descend(self, gradient: Array, lr: float) -> float:
        self.gradient[:] = gradient
        return self.apply(lr)

    def apply(self, lr: float) -> float:
        norm = clip_norm(self.gradient, self.config.max_grad_norm)
        self.optimizer.step(self.gradient, lr)
        return norm

    def backward(self, batch: Batch | Streams) -> dict[str, Any]:
        network, rows, learnt = self.network, batch, slice(None)
        inputs, action, num = batch.inputs, batch.action, len(batch)
        if isinstance(batch, Streams):
            inputs, action, num = inputs.flatten(), _flat(action), batch.valid.size
        params, value, layers, arguments = network.forward(inputs.vector)
        size, masked = params.shape[1], self.distribution.masked(params, inputs.mask)
        log_prob, d_log_prob, entropy, d_entropy = network.logp_and_slopes(masked[:num], action)
        if isinstance(batch, Streams):
            rows, learnt = self.rows_of(batch, log_prob, value)
        assert isinstance(rows, Batch)
        self.normalize(rows, batch.share)
        of_rows = (log_prob[learnt], entropy[learnt], value[:num][learnt])
        by_log_prob, by_entropy, by_value, metrics = self.algorithm.slopes(*of_rows, rows)
        d = d_log_prob[learnt] * by_log_prob[:, None]
        if by_entropy:
            d += d_entropy[learnt] * np.float32(by_entropy)
        if network.log_std is not None:
            self.gradients["log_std"][:] = d[:, size:].sum(0)
        d = d[:, :size]
        if isinstance(batch, Streams):  # nothing is asked of the other rows
            of_all, d, by_all, by_value = d, np.zeros_like(params), by_value, np.zeros_like(value)
            d[:num][learnt], by_value[:num][learnt] = of_all, by_all
        network.backward(self.gradients, inputs.vector, layers, arguments, d, by_value)
        return metrics

    def evaluate(self, streams: Streams, parameters: Array | None = None) -> tuple[Any, Any]:
        inputs = streams.inputs.flatten()
        network = self.network if parameters is None else SmallNetwork(self.algorithm.spec, parameters)
        params, value, _, _ = network.forward(inputs.vector)
        acted = self.distribution.masked(params, inputs.mask)[: streams.valid.size]
        log_prob = self.distribution.log_prob(acted, network.log_std, _flat(streams.action))
        return streams.by_row(log_prob.astype(np.float32, copy=False), value)

    def numpy(self) -> Array:
        return self.network.flat

    def load(self, flat: Array) -> None:
        self.network.flat[:] = flat


def numpy_optimizer(c: Any, flat: Array) -> Adam | RMSProp:
    """The optimizer that the settings name, on parameters [P]."""
    if c.optimizer == "adam":
        return Adam(flat, eps=c.adam_eps)
    return RMSProp(flat, decay=c.rmsprop_decay, eps=c.rmsprop_eps)


class TorchSteps(Steps):
    """Gradient steps with autograd and a fused optimizer on one flat parameter."""

    def __init__(self, algorithm: ActorCritic, seed: int) -> None:
        from raypid.nn.networks import TorchNetwork
        from raypid.nn.torch_optimizers import FlatAdam, FlatRMSProp

        super().__init__(algorithm)
        c = algorithm.config
        self.network = TorchNetwork(algorithm.spec, seed, device_for(c))
        if c.th_compile:
            self.network.module.compile()
        self.table, self.gradient = self.network.table, self.network.gradient
        self._other: Any = None
        """A network for other parameters, once these were asked for."""
        if c.optimizer == "adam":
            self.optimizer = FlatAdam(self.network, c.lr, c.adam_eps, c.max_grad_norm)
        else:
            self.optimizer = FlatRMSProp(self.network, c.lr, c.rmsprop_eps, c.max_grad_norm, c.rmsprop_decay)

    def to_device(self, batch: Any) -> Any:
        import torch

        from raypid.nn.networks import TorchInputs, on_device

        def move(x: Array) -> Any:
            return on_device(torch.from_numpy(_writable(x)), self.network.device)

        inputs, action = TorchInputs(batch.inputs, self.network.device), tree_map(move, batch.action)
        if isinstance(batch, Streams):
            columns = {name: move(column) for name, column in batch.columns.items()}
            state = None if batch.state is None else move(batch.state)
            return replace(batch, inputs=inputs, action=action, columns=columns, state=state)
        columns = {n: move(getattr(batch, n)) for n in ("log_prob", "value", "advantage", "target")}
        return replace(batch, inputs=inputs, action=action, **columns)

    def descend(self, gradient: Array, lr: float) -> Any:
        import torch

        self.gradient.copy_(torch.from_numpy(_writable(gradient)))
        return self.apply(lr)

    def apply(self, lr: float) -> Any:
        norm = self.optimizer.clip()
        self.optimizer.step(lr)
        return norm

    def backward(self, batch: Batch | Streams) -> dict[str, Any]:
        log_std, rows, learnt = self.network.log_std, batch, slice(None)
        if isinstance(batch, Streams):
            params, value = self._unrolled(self.network, batch)
            num, action, mask = batch.valid.size, _flat(batch.action), batch.inputs.mask
            mask = None if mask is None else mask[:-1].flatten(0, 1)
            params, all_values, value = params[:num], value, value[:num]
        else:
            params, value = self.network(batch.inputs)
            action, mask = batch.action, batch.inputs.mask
        params = self.distribution.masked(params, mask)
        log_prob, entropy = (
            self.distribution.log_prob(params, log_std, action),
            self.distribution.entropy(params, log_std),
        )
        if isinstance(batch, Streams):
            rows, learnt = self.rows_of(batch, log_prob.detach(), all_values.detach())
        assert isinstance(rows, Batch)
        self.normalize(rows, batch.share)
        loss, metrics = self.algorithm.loss(log_prob[learnt], entropy[learnt], value[learnt], rows)
        loss.backward()
        return {k: v.detach() for k, v in metrics.items()}

    def evaluate(self, streams: Streams, parameters: Array | None = None) -> tuple[Any, Any]:
        import torch

        network = self.network
        if parameters is not None:
            if self._other is None:
                self._other = type(self.network)(self.algorithm.spec, 0, str(self.network.device))
            network = self._other
            network.load(parameters)
        with torch.no_grad():
            params, value = self._unrolled(network, streams)
            mask = streams.inputs.mask
            mask = None if mask is None else mask.flatten(0, 1)
            acted = self.distribution.masked(params, mask)[: streams.valid.size]
            log_prob = self.distribution.log_prob(acted, network.log_std, _flat(streams.action))
        return streams.by_row(log_prob, value)

    def _unrolled(self, network: Any, streams: Streams) -> tuple[Any, Any]:
        """params [(T+1) * B, P] and value [(T+1) * B] of streams, with the recurrent state carried along."""
        import torch

        from raypid.nn.torch_cells import Memory

        memory = None
        if self.algorithm.spec.memory:
            memory = Memory(streams.state, torch.from_numpy(_writable(streams.first)))
        out: tuple[Any, Any] = network(streams.inputs.flatten(), memory)
        return out

    def numpy(self) -> Array:
        flat: Array = self.network.numpy()
        return flat

    def load(self, flat: Array) -> None:
        self.network.load(flat)


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
