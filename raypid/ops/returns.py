"""Returns and advantages on [T, B] arrays, with one rule for the ends of episodes.

next_value[t] is V(final observation) if the environment returned one, else V(obs[t+1]). It is multiplied by
`gamma * (1 - terminated[t])`, so truncation bootstraps and termination does not. A trace passes from row t+1 back to
row t only if the episode did not end at row t and row t+1 is valid. On invalid rows the TD error is 0.
"""

from __future__ import annotations

import numpy as np

from raypid.types import Array, Trajectory, Tree, tree_map


def next_values(
    value: Array, final_t: Array | None = None, final_b: Array | None = None, final_value: Array | None = None
) -> Array:
    """Return the value of the observation that followed each row, [T, B]. It works for observations [T+1, B, *] as well.

    Args:
        value: [T+1, B] values of all observations.
        final_t: [K] rows whose environment reset within the step, so that value[t+1] belongs to the next episode.
        final_b: [K] streams of these rows.
        final_value: [K] values of their true last observations.
    """
    following = value[1:]
    if final_t is not None and len(final_t):
        following = following.copy()
        following[final_t, final_b] = final_value
    return following


def passes(terminated: Array, truncated: Array, valid: Array) -> Array:
    """Return 1 where a trace passes from row t+1 back to row t, else 0, float32 [T, B]. Invalid rows and the last one
    have 0."""
    found = np.zeros(valid.shape, np.float32)
    found[:-1] = ~(terminated | truncated)[:-1] & valid[:-1] & valid[1:]
    return found


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
    """Compute generalised advantage estimates (Schulman et al. 2016, equation 16), float32 [T, B].

        delta[t] = reward[t] + gamma * (1 - terminated[t]) * next_value[t] - value[t]
        advantage[t] = delta[t] + gamma * lambda * passes[t] * advantage[t+1]
        passes[t] = not (terminated[t] or truncated[t]) and valid[t+1]

    All arrays are [T, B]. `advantage + value` is the TD(lambda) return; with lambda_ = 1 this is the n-step return up to
    the end of the fragment. Invalid rows get 0.
    """
    assert reward.shape == value.shape == next_value.shape == terminated.shape == truncated.shape == valid.shape
    delta = reward + gamma * np.where(terminated, 0.0, next_value) - value
    delta = np.where(valid, delta, 0.0).astype(np.float32)
    decay = (passes(terminated, truncated, valid) * (gamma * lambda_)).astype(np.float32)
    advantage, following = delta, delta[-1]
    for row, passed in zip(advantage[-2::-1], decay[-2::-1]):
        row += passed * following
        following = row
    return advantage


def lost_observations(t: Trajectory) -> tuple[Array, Array, Tree]:
    """Select the true last observations that are bootstrapped from: (t [K], b [K], obs [K, *]) of truncated episodes."""
    none = np.empty(0, np.int64)
    if t.final is None:
        return none, none, {}
    needed = t.truncated[t.final.t, t.final.b] & ~t.terminated[t.final.t, t.final.b]
    if not needed.any():
        return none, none, {}
    return t.final.t[needed], t.final.b[needed], tree_map(lambda x: x[needed], t.final.obs)
