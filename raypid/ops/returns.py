"""Returns and advantages on [T, B] arrays, with one rule for ends of episodes.

next_value[t] is V(final observation) where the environment handed one out, else V(obs[t+1]). It is multiplied by
`gamma * (1 - terminated[t])`, so truncation bootstraps and termination does not. A trace passes from row t+1 back to
row t only if row t did not end and row t+1 is valid. On invalid rows the TD error is 0.
"""

from __future__ import annotations

import numpy as np

from raypid.types import Array, Trajectory, Tree, tree_map


def next_values(
    value: Array, final_t: Array | None = None, final_b: Array | None = None, final_value: Array | None = None
) -> Array:
    """V of what followed each row: [T, B] from `value` [T+1, B], with the true last observations' values put in.

    final_t, final_b, final_value: [K] row, stream and value of each episode that was reset within its last step.
    """
    following = value[1:]
    if final_t is not None and len(final_t):
        following = following.copy()
        following[final_t, final_b] = final_value
    return following


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    gamma: float,
    lambda_: float,
) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016, equation 16), float32 [T, B].

        delta[t] = reward[t] + gamma * (1 - terminated[t]) * next_value[t] - value[t]
        advantage[t] = delta[t] + gamma * lambda * passes[t] * advantage[t+1]
        passes[t] = not (terminated[t] or truncated[t]) and valid[t+1]

    All arguments are [T, B]. With lambda_ = 1, `advantage + value` is the n-step return to the fragment's end; with any
    lambda_ it is the TD(lambda) return. Invalid rows get 0.
    """
    assert reward.shape == value.shape == next_value.shape == terminated.shape == truncated.shape == valid.shape
    delta = reward + gamma * np.where(terminated, 0.0, next_value) - value
    delta = np.where(valid, delta, 0.0).astype(np.float32)
    passes = np.zeros_like(delta)
    passes[:-1] = ~(terminated | truncated)[:-1] & valid[:-1] & valid[1:]  # valid[:-1]: invalid rows stay 0
    decay = (passes * (gamma * lambda_)).astype(np.float32)
    advantage = delta
    for t in range(len(delta) - 2, -1, -1):
        advantage[t] += decay[t] * advantage[t + 1]
    return advantage


def lost_observations(t: Trajectory) -> tuple[Array, Array, Tree]:
    """(t [K], b [K], obs [K, *]) of true last observations that a transition needs: a terminated one bootstraps nothing."""
    none = np.empty(0, np.int64)
    if t.final is None:
        return none, none, {}
    needed = t.truncated[t.final.t, t.final.b] & ~t.terminated[t.final.t, t.final.b]
    if not needed.any():
        return none, none, {}
    return t.final.t[needed], t.final.b[needed], tree_map(lambda x: x[needed], t.final.obs)
