"""Acting with a population of networks in torch: images, and a user's registered modules.

Axes: B streams; P weights of one policy; A distribution parameters.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from raypid.errors import UserError
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.networks import TorchInputs, TorchNetwork, example_inputs
from raypid.nn.pipeline import Inputs, InputsOf
from raypid.plugins.registry import NETWORKS
from raypid.types import Array, flat_views


class TorchPopulation(TorchNetwork):
    """A TorchNetwork whose row b of inputs goes through the weights `streams[b]`. Write these in place.

    torch.func.vmap makes one grouped convolution of the streams' convolutions; `benchmarks/population.py` compares it with a
    loop over the streams.

    Raises:
        UserError: a registered module does what vmap cannot.
    """

    def __init__(self, spec: NetworkSpec, num_streams: int) -> None:
        super().__init__(spec)
        self.module.eval()
        self.streams: Array = np.zeros((num_streams, self.flat.numel()), np.float32)
        views: dict[str, Tensor] = flat_views(torch.from_numpy(self.streams), self.table)
        names = [name for name, _ in self.module.named_parameters()]
        self._weights = dict(zip(names, views.values(), strict=True))
        self._each = vmap(self._act)
        if not NETWORKS.is_own(spec.network):
            self._try()

    def _act(self, weights: dict[str, Tensor], vector: Tensor, images: dict[str, Tensor]) -> Tensor:
        """Evaluate one stream's row with its weights: distribution parameters [A]."""
        row = InputsOf(vector, images).map(lambda x: x[None])
        params: Tensor = functional_call(self.module, weights, (row,))[0]
        return params[0]

    def _try(self) -> None:
        """Act once, for what is wrong with a registered module."""
        x = example_inputs(self.spec, len(self.streams))
        try:
            self._each(self._weights, x.vector, x.images)
        except Exception as error:
            reason = str(error).partition("\n")[0][:200]
            raise UserError(
                f"ES and ARS act by torch.func.vmap, which network {self.spec.network!r} does not allow: {reason}"
            ) from error

    def load(self, flat: Array) -> None:
        """Give all streams the weights [P]."""
        self.streams[:] = flat

    def policy(self, inputs: Inputs, state: Array | None = None) -> tuple[Array, Array | None, Array | None]:
        """Compute distribution parameters [B, A] for inputs [B, *], each stream by its own policy."""
        with torch.inference_mode():
            x = TorchInputs(inputs, self.device)
            return self._each(self._weights, x.vector, x.images).numpy(), None, None
