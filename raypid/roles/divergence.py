"""Whether learning has left the finite numbers: looked for after each update, and in actions before the environment sees them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from raypid.errors import Diverged
from raypid.types import Array, Tree, Update, to_numpy, tree_leaves

if TYPE_CHECKING:
    from raypid.algorithms.base import Algorithm
    from raypid.settings.config import Config

quiet = np.errstate(all="ignore")
"""Decorator: what is not finite is found by the checks here, so NumPy says nothing of it."""
HUGE_REWARD = 1e6
"""Rewards beyond this, as the learner sees them, are named as the likely cause."""


@quiet
def check_update(algorithm: Algorithm[Config], update: Update, batch: object, timesteps: int) -> None:
    """Check what an update has made: one sum, and so on a GPU one number to wait for.

    Raises:
        Diverged: something is not finite. It has the batch.
    """
    signs = algorithm.vital_signs(update)
    if math.isfinite(float(sum(signs.values()))):
        return
    state = as_state(batch)
    assert isinstance(state, dict)
    found = {name: float(value) for name, value in signs.items()}
    bad = [f"{name} is {value:g}" for name, value in found.items() if not math.isfinite(value)]
    what = next(_bad_columns(state), bad[0] if bad else "the weights are beyond float32")
    largest = _largest_reward(algorithm.config, state)
    if largest > HUGE_REWARD:
        what += f" (rewards reach {largest:.3g})"
    raise Diverged(what, advice(algorithm.config, huge=largest > HUGE_REWARD), state, timesteps)


@quiet
def is_sound(algorithm: Algorithm[Config]) -> bool:
    """Whether the weights are finite."""
    return math.isfinite(float(sum(algorithm.vital_signs(Update({}, 0)).values())))


def check_action(action: Tree, obs: Tree, version: int) -> None:
    """Check canonical actions [B, *], so that no environment is blamed for them.

    Raises:
        Diverged: one of them is not finite. It has the observations [B, *] that the policy saw.
    """
    if isinstance(action, np.ndarray) and math.isfinite(np.vdot(action, action)):
        return
    for name, leaf in tree_leaves(action):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            part = f" {name!r}" if name else ""
            what = f"the policy's action{part} is {_example(leaf)} (weights of version {version})"
            raise Diverged(what, "Lower lr.", {"obs": as_state(obs), "action": as_state(action)})


def as_state(value: object) -> object:
    """The batch as nested mappings and lists of arrays, for `raypid.state_tree`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_state(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):  # Moments
        return {name: as_state(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): as_state(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [as_state(part) for part in value]
        return {"parts": parts} if parts and isinstance(parts[0], dict) else parts
    return to_numpy(value) if hasattr(value, "detach") else value


def _example(x: Array) -> str:
    return f"{float(x[~np.isfinite(x)].flat[0]):g}"


def _arrays(state: object, path: str = "") -> Iterator[tuple[str, Array]]:
    """(path, array) of what is floating-point, but for metrics; observations were checked where they came from."""
    parts = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for name, part in parts:
        if name not in ("obs", "next_obs", "final", "state", "moments", "metrics"):
            yield from _arrays(part, f"{path}/{name}" if path else str(name))
    if isinstance(state, float) or (isinstance(state, np.ndarray) and state.dtype.kind == "f"):
        yield path, np.asarray(state)


def _bad_columns(state: dict[str, object]) -> Iterator[str]:
    """Name the columns of a batch that are not finite, rewards first."""
    for path, array in sorted(_arrays(state), key=lambda found: "reward" not in found[0]):
        if not np.isfinite(array).all():
            name = path.rpartition("/")[2]
            yield f"{'the gradient of a worker' if name == 'flat' else f'{name} of the batch'} holds {_example(array)}"


def _largest_reward(config: Config, state: dict[str, object]) -> float:
    """The largest size of a reward as the learner sees it; 0 where rewards are scaled to their deviation."""
    if config.normalize_rewards:
        return 0.0
    names = ("reward", "data/reward", "value")  # of trajectories and sequences, samples, fitness
    rewards = [x for path, x in _arrays(state) if path in names or path.endswith("/largest_reward")]  # of gradients
    largest = max((float(np.nanmax(np.abs(x))) for x in rewards if x.size), default=0.0)
    if "data" in state:  # a sample of a replay buffer, which has scaled them
        return largest
    return min(largest * abs(config.reward_scale), math.inf if config.reward_clip is None else config.reward_clip)


def advice(config: Config, *, huge: bool) -> str:
    """The settings to look at after a divergence. `huge`: rewards reach HUGE_REWARD."""
    rewards = ("normalize_rewards", "reward_clip", "reward_scale")
    scales = [name for name in rewards if name not in config.no_effect]
    if huge and scales:
        given = {name: getattr(config, name) for name in scales}
        unset = [name for name, value in given.items() if value in (None, False, 1.0)]
        steps = [f"set {' or '.join(unset)}"] if unset else []
        steps += [f"lower {name}, which is {value:g}" for name, value in given.items() if name not in unset]
        return f"{' or '.join(steps).capitalize()}."
    rates = [f"{name}, which is {value:g}" for name, value in config.learning_rates().items()]
    clip = "; or set max_grad_norm, which is none" if getattr(config, "max_grad_norm", 0.0) is None else ""
    return f"Lower {' and '.join(rates)}{clip}."
