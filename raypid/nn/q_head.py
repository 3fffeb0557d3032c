"""From the outputs of a q network to a value for each action. Written once for NumPy arrays and torch tensors.

Axes: N rows, A actions, Z atoms of a distribution over returns.
"""

from __future__ import annotations

import numpy as np

from raypid.nn.distributions import array_module, log_softmax
from raypid.nn.network_spec import NetworkSpec
from raypid.types import ArrayT


def q_logits(spec: NetworkSpec, params: ArrayT, value: ArrayT | None) -> ArrayT:
    """Outputs params [N, A * Z] and, where the head is dueling, value [N, Z] to [N, A, Z] (Z = 1 for plain values)."""
    params = params.reshape(len(params), -1, max(1, len(spec.atoms)))
    if spec.dueling:
        assert value is not None
        params = value.reshape(len(params), 1, -1) + params - params.mean(1)[:, None]
    return params


def q_values(spec: NetworkSpec, params: ArrayT, value: ArrayT | None) -> ArrayT:
    """Action values [N, A]: the outputs themselves, or the means of their distributions."""
    logits = q_logits(spec, params, value)
    if not spec.atoms:
        return logits[..., 0]
    atoms = np.asarray(spec.atoms, np.float32)
    xp = array_module(logits)
    return (xp.exp(log_softmax(logits)) * (atoms if xp is np else xp.as_tensor(atoms, device=logits.device))).sum(-1)
