"""A network for a pair of spaces as a torch.nn.Module: what `raypid.ModelCatalog.get_model` makes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from raypid.nn.network_policy import NetworkPolicy
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.networks import TorchInputs, build_module
from raypid.nn.numpy_cells import initial_memory
from raypid.nn.torch_cells import Memory
from raypid.types import Tree, as_tree, tree_map


class CatalogNetwork(nn.Module):
    """From observations, as the environment returns them, to distribution parameters and state values.

    Axes: B observations; P distribution parameters; K memories of S numbers each.
    """

    def __init__(self, spec: NetworkSpec, seed: int = 0) -> None:
        super().__init__()
        self.spec, self._policy = spec, NetworkPolicy(spec)
        self.network = build_module(spec, seed)

    @property
    def log_std(self) -> Tensor | None:
        """Log standard deviations [A] of a Gaussian, which are weights; None for other distributions."""
        names = dict(self.network.named_parameters())
        return next((weight for name, weight in names.items() if name.rpartition(".")[2] == "log_std"), None)

    def initial_state(self, num: int) -> Tensor | None:
        """Return the state [B, K, S] with which `num` episodes begin; None without a memory."""
        return torch.from_numpy(initial_memory(self.spec, num)) if self.spec.memory else None

    def forward(self, obs: object, state: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Evaluate a batch of observations [B, *]; returns params [B, P], value [B] and the state after them (None without a memory).

        Args:
            state: of the memory before these observations; None where episodes begin.
        """
        device, memory = next(self.parameters()).device, None
        inputs = TorchInputs(self._policy.pipeline.batch(tree_map(np.asarray, as_tree(obs))), device)
        num = len(inputs.vector)
        if self.spec.memory:
            before = torch.from_numpy(initial_memory(self.spec, num)) if state is None else state
            memory = Memory(before.to(device), torch.zeros(1, num, dtype=torch.bool))
        params, value, after = self.network(inputs, memory)
        return self._policy.distribution.masked(params, inputs.mask), value, after

    def to_env(self, action: Tree) -> Tree:
        """Map canonical actions [B, *] to the environment's: scaled and clipped to its bounds. (Those of a Tuple space are a dict.)"""
        return self._policy.to_env(action)
