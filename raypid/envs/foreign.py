"""Environments of other packages, known by their classes, none of which is imported: what to say of each."""

from __future__ import annotations

import inspect
import re
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
_DM = (
    "has the interface of dm_env. Wrap it as a gymnasium.Env: pip install shimmy, then a function that returns "
    "shimmy.DmControlCompatibilityV0(...); or write reset() and step() around it. dm_control's tasks are also 'dm_control/...' ids once shimmy is "
    "imported."
)
_GYM = (
    "is of the old package gym, whose spaces raypid does not know. Let it import gymnasium in place of gym (import gymnasium as gym); since 0.26 "
    "the interfaces are the same. Of somebody else's: pip install shimmy, and shimmy.GymV26CompatibilityV0 (V21 if it is older) makes it one."
)
_KINDS = {
    # module of a class among its bases, name of the class ("" for any) -> what it is, what to say
    ("pettingzoo", "ParallelEnv"): ("PettingZoo's parallel environment", _MULTI_AGENT),
    ("pettingzoo", "AECEnv"): ("PettingZoo's environment", _MULTI_AGENT),
    ("ray.rllib", "MultiAgentEnv"): ("RLlib's multi-agent environment", _MULTI_AGENT),
    ("dm_env", "Environment"): ("dm_env's environment", _DM),
    ("gym", "Env"): ("Gym's environment", _GYM),
    ("stable_baselines3", "VecEnv"): (
        "Stable-Baselines3's vector",
        "is stepped by SB3's interface. Give the class or function that makes one environment: raypid makes the vector.",
    ),
    ("torchrl", "EnvBase"): (
        "TorchRL's environment",
        "returns TensorDicts. Give the Gymnasium environment inside of it, or write reset() and step() around it.",
    ),
    ("brax", "Env"): ("Brax' environment", "keeps its state outside. Give a gymnasium.vector.VectorEnv around it, such as brax.envs.wrappers.gym's."),
}  # fmt: skip


def answer(target: object, name: str) -> str:
    """What to say of an environment (a class or an object) of another package; "" if it is of none that is known."""
    cls = target if inspect.isclass(target) else type(target)
    for base in cls.__mro__:
        for (package, kind), (what, advice) in _KINDS.items():
            if base.__name__ == kind and f"{base.__module__}.".startswith(f"{package}."):
                return _sentence(name, what, cls, advice)
    space = getattr(target, "observation_space", None)
    by_agent = callable(space) or (isinstance(space, (Mapping, Sequence)) and not isinstance(space, gymnasium.Space))
    if by_agent and (hasattr(target, "possible_agents") or hasattr(target, "agents")):
        return _sentence(name, "an environment in PettingZoo's or RLlib's form", cls, _MULTI_AGENT)
    return ""


def _sentence(name: str, what: str, cls: type, advice: str) -> str:
    return f"Environment {name!r} is {what} ({cls.__name__}), which raypid cannot train on: it {advice}"


def refuse(target: object, name: str) -> None:
    """Refuse an environment of another package, and a network.

    Raises:
        ForeignEnv: it is such an environment; says what it is and what to do.
        EnvError: it is a network, model or agent of the user's own; says how that is given.
    """
    if text := answer(target, name):
        raise ForeignEnv(text)
    what, told = by_name(target)
    if told and not all(hasattr(target, method) for method in ("reset", "step")):
        raise EnvError(f"env is {what}, which is not an environment.{told}")


_PETTINGZOO = re.compile(r"pettingzoo|pettingzoo\.[\w.]+|[a-z]\w*_v\d+")
"""Its modules: whole, or by their last part, a form that no id of Gymnasium's has ("rps_v2")."""


def refuse_name(name: str) -> None:
    """Refuse the name of a package or of a module of one whose environments raypid does not take, whether it is installed or not.

    Raises:
        ForeignEnv: says what it is and what to do.
    """
    if _PETTINGZOO.fullmatch(name.partition(":")[0]) and (":" not in name or name.startswith("pettingzoo")):
        raise ForeignEnv(
            f"{name!r} looks like PettingZoo, on whose environments raypid cannot train: each {_MULTI_AGENT}"
        )
