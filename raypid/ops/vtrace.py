"""V-trace (Espeholt et al. 2018, arXiv:1802.01561, section 4.1) on [T, B] arrays; episodes end as in `ops.returns`.

It uses only arithmetic that NumPy arrays and torch tensors share, so learners of both kinds call it.
"""

from __future__ import annotations

from raypid.types import ArrayT


def vtrace(
    ratio: ArrayT,
    reward: ArrayT,
    value: ArrayT,
    next_value: ArrayT,
    discount: ArrayT,
    passes: ArrayT,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    lambda_: float = 1.0,
    weigh: bool = True,
) -> tuple[ArrayT, ArrayT]:
    """Compute (value targets, policy advantages), both float32 [T, B].

        delta[t]     = rho[t] * (reward[t] + discount[t] * next_value[t] - value[t])
        error[t]     = delta[t] + discount[t] * lambda * passes[t] * c[t] * error[t+1]
        target[t]    = value[t] + error[t]
        following[t] = target[t+1] if passes[t] else next_value[t]
        advantage[t] = rho[t] * (reward[t] + discount[t] * following[t] - value[t])

    Args:
        ratio: pi(a|s) / mu(a|s), the probability under the policy that learns over that under the policy that acted;
            0 on invalid rows. rho and c are the ratio clipped from above at `rho_clip` and `c_clip`.
        next_value: value of the observation that followed each row, from `ops.returns.next_values`.
        discount: gamma, or 0 where the episode terminated.
        passes: 1 where the episode goes on after row t and row t+1 is valid; 0 elsewhere and on the last row.
        weigh: multiply advantages by rho. Pass False for a loss that contains the ratio itself.
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
