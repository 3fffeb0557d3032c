"""Environments of other packages, known by their classes, none of which is imported: what to say of each."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import gymnasium

from raypid.envs.errors import EnvError
from raypid.plugins.registry import by_name


class ForeignEnv(EnvError):
    """An environment, but of an interface that raypid does not take."""


_MULTI_AGENT = (
    "has several agents, and raypid trains one. Train one of them and let fixed policies move the others: a gymnasium.Env whose step() acts for "
    "all. Or let one policy move all agents: a gymnasium.Env with their observations and actions joined in Dict or Tuple spaces."
)
_OTHER = (
    "has another interface than Gymnasium's. Give a gymnasium.Env: write reset() and step() around it, or take a wrapper that there is. "
    "pip install shimmy has DmControlCompatibilityV0, GymV26CompatibilityV0 and GymV21CompatibilityV0, and its 'dm_control/...' ids; an old Gym "
    "environment of your own imports gymnasium in place of gym; of a vector, give the class or function that makes one environment."
)
_KINDS = {
    # module of a class among its bases, name of the class -> what it is, what to say
    ("pettingzoo", "ParallelEnv"): ("PettingZoo's parallel environment", _MULTI_AGENT),
    ("pettingzoo", "AECEnv"): ("PettingZoo's environment", _MULTI_AGENT),
    ("ray.rllib", "MultiAgentEnv"): ("RLlib's multi-agent environment", _MULTI_AGENT),
    ("dm_env", "Environment"): ("dm_env's environment", _OTHER),
    ("gym", "Env"): ("Gym's environment, of the old package gym", _OTHER),
    ("stable_baselines3", "VecEnv"): ("Stable-Baselines3's vector", _OTHER),
    ("torchrl", "EnvBase"): ("TorchRL's environment", _OTHER),
}


def refuse(target: object, name: str) -> None:
    """Refuse an environment (a class or an object) of another package, and a network.

    Raises:
        ForeignEnv: it is such an environment; says what it is and what to do.
        EnvError: it is a network, model or agent of the user's own; says how that is given.
    """
    cls = target if inspect.isclass(target) else type(target)
    kinds = (
        known
        for base in cls.__mro__
        for (package, kind), known in _KINDS.items()
        if base.__name__ == kind and f"{base.__module__}.".startswith(f"{package}.")
    )
    what, advice = next(kinds, ("", ""))
    space = getattr(target, "observation_space", None)
    by_agent = callable(space) or (isinstance(space, (Mapping, Sequence)) and not isinstance(space, gymnasium.Space))
    if not what and by_agent and (hasattr(target, "possible_agents") or hasattr(target, "agents")):
        what, advice = "an environment in PettingZoo's or RLlib's form", _MULTI_AGENT
    if what:
        raise ForeignEnv(f"Environment {name!r} is {what} ({cls.__name__}), which raypid cannot train on: it {advice}")
    what, told = by_name(target)
    if told and not all(hasattr(target, method) for method in ("reset", "step")):
        raise EnvError(f"env is {what}, which is not an environment.{told}")
