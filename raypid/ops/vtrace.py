"""V-trace (Espeholt et al. 2018, arXiv:1802.01561, section 4.1) on [T, B] arrays, by the one rule for ends of episodes.

Only arithmetic that NumPy arrays and torch tensors share is used, so a learner calls it on what its network puts out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

X = TypeVar("X", np.ndarray, "Tensor")
"""A NumPy array or a torch tensor, float32."""


def vtrace(
    ratio: X,
    reward: X,
    value: X,
    next_value: X,
    discount: X,
    passes: X,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    lambda_: float = 1.0,
    weigh: bool = True,
) -> tuple[X, X]:
    """(targets of the value, advantages of the policy), both [T, B].

        delta[t]     = rho[t] * (reward[t] + discount[t] * next_value[t] - value[t])
        error[t]     = delta[t] + discount[t] * lambda * passes[t] * c[t] * error[t+1]
        target[t]    = value[t] + error[t]
        following[t] = target[t+1] if passes[t] else next_value[t]
        advantage[t] = rho[t] * (reward[t] + discount[t] * following[t] - value[t])

    ratio: pi(a|s) / mu(a|s) of the policy that learns and the one that acted, 0 on invalid rows; rho and c are it, clipped
    from above. next_value: value of what followed each row, as `ops.returns.next_values` has it. discount: gamma, 0 where
    the episode terminated. passes: 1 where row t did not end and row t+1 is valid, 0 elsewhere and on the last row. weigh: advantages
    have the factor rho; a loss with the ratio in it leaves that out.
    """
    rho, c = ratio.clip(max=rho_clip), ratio.clip(max=c_clip)
    error = rho * (reward + discount * next_value - value)
    decay = discount * passes * c * lambda_
    for t in range(len(error) - 2, -1, -1):
        error[t] += decay[t] * error[t + 1]
    target = value + error
    following = next_value + 0.0
    following[:-1] += passes[:-1] * (target[1:] - next_value[:-1])
    advantage = (reward + discount * following - value) * (ratio > 0)
    return target, rho * advantage if weigh else advantage
