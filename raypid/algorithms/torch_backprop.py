"""Networks that learn from minibatches, with torch's autograd. Imports torch; see `backprop` for the other kernel.

Axes: n rows; T rows of B streams; P weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from raypid.algorithms.backprop import Evaluated, LearningNetwork
from raypid.algorithms.minibatches import COLUMNS, Batch, Minibatch, Streams
from raypid.nn.distributions import JointDistribution
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.networks import TorchInputs, TorchNetwork, on_device
from raypid.nn.pipeline import Inputs
from raypid.nn.torch_cells import Memory
from raypid.settings.config import Config, ConfigError
from raypid.types import Array, flat_rows, tree_map


def device_for(config: Config) -> torch.device:
    """Return the device of the learner.

    Raises:
        ConfigError: torch cannot use the device in the settings.
    """
    device = config.learns_on
    kind, _, index = device.partition(":")
    if kind == "cuda" and not torch.cuda.is_available():
        lacks = "sees no GPU here"
    elif kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        lacks = f"sees {torch.cuda.device_count()} GPUs here, counted from 0"
    elif kind == "mps" and not torch.backends.mps.is_available():
        lacks = "cannot use it here (it is Apple's)"
    else:
        return torch.device(device)
    raise ConfigError(f"device {device}: torch {torch.__version__} {lacks}. Set device cpu and num_gpus 0.")


class TorchBackprop(TorchNetwork, LearningNetwork[Tensor]):
    """Any network that a NetworkSpec describes, memories included."""

    def __init__(self, spec: NetworkSpec, seed: int, device: torch.device, compiled: bool) -> None:
        TorchNetwork.__init__(self, spec, seed, str(device))
        self.distribution = JointDistribution(spec.actions)
        if compiled:
            self.module.compile()
        self._other: TorchNetwork | None = None
        """Network for other parameters, made at the first `predict` with some."""

    def to_device(self, batch: Minibatch) -> Minibatch:
        move = partial(on_device, device=self.device)
        assert isinstance(batch.inputs, Inputs)
        inputs, action = TorchInputs(batch.inputs, self.device), tree_map(move, batch.action)
        if isinstance(batch, Streams):
            columns = {name: move(column) for name, column in batch.columns.items()}
            state = None if batch.state is None else move(batch.state)
            return replace(batch, inputs=inputs, action=action, columns=columns, state=state)
        return Batch(inputs, action, *(move(getattr(batch, name)) for name in COLUMNS), share=batch.share)

    def evaluate(self, minibatch: Minibatch) -> Evaluated[Tensor]:
        if not len(minibatch) and not minibatch.num_units:
            # of a minibatch of several learners nothing is here; a user's module need not take an empty batch
            nothing = torch.zeros(0, device=self.device)
            return Evaluated(nothing, nothing, nothing)
        return self._evaluated(self, minibatch)

    def predict(self, streams: Streams[Tensor], parameters: Array | None = None) -> tuple[Tensor, Tensor]:
        network: TorchNetwork = self
        if parameters is not None:
            if self._other is None:
                self._other = TorchNetwork(self.spec, 0, str(self.device))
            network = self._other
            network.load(parameters)
        with torch.no_grad():
            out = self._evaluated(network, streams)
        return streams.by_row(out.log_prob, out.value)

    def _evaluated(self, network: TorchNetwork, minibatch: Minibatch) -> Evaluated[Tensor]:
        inputs, action, num, memory = minibatch.inputs, minibatch.action, len(minibatch), None
        assert isinstance(inputs, TorchInputs)
        if isinstance(minibatch, Streams):
            inputs, action, num = inputs.flatten(), flat_rows(action), minibatch.valid.size
            if minibatch.state is not None:
                first = torch.from_numpy(np.require(minibatch.first, requirements=("C", "W")))
                memory = Memory(minibatch.state, first)
        params, value = network(inputs, memory)
        assert value is not None
        params = self.distribution.masked(params[:num], None if inputs.mask is None else inputs.mask[:num])
        log_prob = self.distribution.log_prob(params, network.log_std, action)
        return Evaluated(log_prob, self.distribution.entropy(params, network.log_std), value)
