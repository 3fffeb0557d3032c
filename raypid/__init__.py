"""raypid: distributed deep reinforcement learning on Ray."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, overload

from raypid.compat import paths
from raypid.plugins.registry import (
    AGENT_METHODS,
    AGENTS,
    ALGORITHMS,
    MODEL_METHODS,
    NETWORKS,
    Registry,
    check_methods,
    check_name,
    import_string,
    within_remote,
)
from raypid.plugins.registry import get_registry as get_registry

if TYPE_CHECKING:
    from raypid import roles as roles
    from raypid.agents import *  # noqa: F403
    from raypid.algorithms.intrinsic import IntrinsicReward as IntrinsicReward
    from raypid.callbacks import Callbacks as Callbacks
    from raypid.check.check import check_env as check_env
    from raypid.envs import register_env as register_env
    from raypid.envs.adapter import OBSERVATION as OBSERVATION
    from raypid.errors import UserError as UserError
    from raypid.nn.model_catalog import ModelCatalog as ModelCatalog
    from raypid.nn.policy import load_policy as load_policy
    from raypid.outcome import Outcome as Outcome
    from raypid.plugins.project import load_project as load_project
    from raypid.run.agent import Agent as Agent
    from raypid.run.distributed import APPOAgent as APPOAgent
    from raypid.run.distributed import DistributedAgent as DistributedAgent
    from raypid.run.distributed import DistributedWrapper as DistributedWrapper
    from raypid.run.distributed import IMPALAAgent as IMPALAAgent
    from raypid.run.events import Listener as Listener
    from raypid.run.setup import setup as setup
    from raypid.run.train import train as train

__version__ = "0.1.0"
paths.install()

Entry = TypeVar("Entry", bound="type | str")
"""A class, or "module:Class"."""

_LAZY = {
    "OBSERVATION": "raypid.envs.adapter:OBSERVATION",
    "Agent": "raypid.run.agent:Agent",
    "APPOAgent": "raypid.run.distributed:APPOAgent",
    "Callbacks": "raypid.callbacks:Callbacks",
    "DistributedAgent": "raypid.run.distributed:DistributedAgent",
    "DistributedWrapper": "raypid.roles.program_worker:DistributedWrapper",
    "IMPALAAgent": "raypid.run.distributed:IMPALAAgent",
    "IntrinsicReward": "raypid.algorithms.intrinsic:IntrinsicReward",
    "Listener": "raypid.run.events:Listener",
    "ModelCatalog": "raypid.nn.model_catalog:ModelCatalog",
    "check_env": "raypid.check.check:check_env",
    "Outcome": "raypid.outcome:Outcome",
    "UserError": "raypid.errors:UserError",
    "register_env": "raypid.envs:register_env",
    "load_policy": "raypid.nn.policy:load_policy",
    "load_project": "raypid.plugins.project:load_project",
    "setup": "raypid.run.setup:setup",
    "train": "raypid.run.train:train",
}

if not TYPE_CHECKING:  # a type checker would accept any name, and so hide typos

    def __getattr__(name):
        """Import a public name when it is first used. An algorithm's name is `Agent` bound to that algorithm; PPOAgent is PPO."""
        run = name.removesuffix("Agent")
        if name in _LAZY:
            value = import_string(_LAZY[name])
        elif name in ("roles", "tune"):
            value = importlib.import_module(f"raypid.{name}")
        elif name in ALGORITHMS:
            if ALGORITHMS.is_own(name):
                value = import_string(f"raypid.agents:{name}")
            else:
                value = type(name, (__getattr__("Agent"),), {"algorithm": name, "__module__": "raypid"})
        elif run in ALGORITHMS:
            value = __getattr__(run)
        else:
            raise AttributeError(f"module 'raypid' has no attribute {name!r}")
        globals()[name] = value
        return value


@overload
def register_algorithm(name: str) -> Callable[[Entry], Entry]: ...
@overload
def register_algorithm(name: str, algorithm: Entry) -> Entry: ...
def register_algorithm(name: str, algorithm: Entry | None = None) -> Entry | Callable[[Entry], Entry]:
    """Register a subclass of `raypid.algorithms.base.Algorithm` under a name. Also a decorator: `@register_algorithm("Mine")`.

    After that `raypid.Agent("Mine", ...)`, `raypid.Mine(...)` and checkpoints of such runs work in this process. A class
    in a module needs no registration: `raypid.Agent("module:Class", ...)`, or `raypid train --run module:Class`.

    Raises:
        UserError: the name is one of raypid's own, or the class is not an Algorithm.
    """
    check_name(name, "register_algorithm")
    return _register(ALGORITHMS, name, algorithm)


@overload
def register_network(name: str) -> Callable[[Entry], Entry]: ...
@overload
def register_network(name: str, network: Entry) -> Entry: ...
def register_network(name: str, network: Entry | None = None) -> Entry | Callable[[Entry], Entry]:
    """Register a class as `model.network=name`. Also a decorator: `@register_network("mine")`, `@register_model("mine")`.

    The class is one of two kinds. A torch.nn.Module is only the network: it is called with float tensors, [N, D] or images
    [N, C, H, W] (`raypid.nn.networks.UserModule`), and returns features [N, F], or for an actor-critic (distribution parameters
    [N, P], value [N]). A model acts and computes gradients itself, in any framework (`raypid.nn.user_model.Model`); train it with
    `--model_name mine`, or `raypid.CustomModel(model={"network": "mine"})`.

    Raises:
        UserError: the name is one of raypid's own or that of other code, or a model lacks a method.
    """
    check_name(name, "register_model")
    return _register(NETWORKS, name, network, _check_model)


register_model = register_network


@overload
def register_agent(name: str) -> Callable[[Entry], Entry]: ...
@overload
def register_agent(name: str, agent: Entry) -> Entry: ...
def register_agent(name: str, agent: Entry | None = None) -> Entry | Callable[[Entry], Entry]:
    """Register a class as `agent=name`. Also a decorator: `@register_agent("custom_agent")`.

    The agent decides which gradients are computed from the fragments that a worker's model has collected
    (`raypid.nn.user_agent.WorkerAgent`). The learner's optimizer applies the gradients. Use it with `--agent_name custom_agent
    --model_name custom_model`, or `raypid.CustomModel(agent="custom_agent", model={"network": "custom_model"})`.

    Raises:
        UserError: the name is one of raypid's own or that of other code, or the class lacks a method.
    """
    check_name(name, "register_agent")
    return _register(AGENTS, name, agent, lambda entry: check_methods("an agent", entry, AGENT_METHODS))


def _check_model(entry: object) -> None:
    is_network = any(base.__module__.startswith("torch.nn.") for base in getattr(entry, "__mro__", ()))
    if not is_network or hasattr(entry, "choose_actions"):
        check_methods("a model", entry, MODEL_METHODS)


def _register(
    registry: Registry[type], name: str, entry: Entry | None, check: Callable[[object], None] | None = None
) -> Entry | Callable[[Entry], Entry]:
    def add(new: Entry) -> Entry:
        inside = within_remote(new)
        if check is not None and not isinstance(inside, str):
            check(inside)
        registry.add(name, inside)
        return new

    return add if entry is None else add(entry)


def __dir__() -> list[str]:
    agents = {name + end for name in ALGORITHMS.names() for end in ("", "Agent")}
    return sorted({*globals(), *_LAZY, *agents, "roles", "tune"})
