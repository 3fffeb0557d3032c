"""raypid: distributed deep reinforcement learning on Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from raypid.algorithms.intrinsic import IntrinsicReward as IntrinsicReward
    from raypid.callbacks import Callbacks as Callbacks
    from raypid.envs import register_env as register_env
    from raypid.nn.policy import load_policy as load_policy
    from raypid.run.agent import Agent as Agent
    from raypid.run.distributed import APPOAgent as APPOAgent
    from raypid.run.distributed import DistributedAgent as DistributedAgent
    from raypid.run.distributed import IMPALAAgent as IMPALAAgent

_LAZY = {
    "Agent": "raypid.run.agent:Agent",
    "APPOAgent": "raypid.run.distributed:APPOAgent",
    "Callbacks": "raypid.callbacks:Callbacks",
    "DistributedAgent": "raypid.run.distributed:DistributedAgent",
    "IMPALAAgent": "raypid.run.distributed:IMPALAAgent",
    "IntrinsicReward": "raypid.algorithms.intrinsic:IntrinsicReward",
    "register_env": "raypid.envs:register_env",
    "load_policy": "raypid.nn.policy:load_policy",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are used; an algorithm's name is Agent bound to it."""
    from raypid.registry import ALGORITHMS, import_string

    if name in _LAZY:
        value = import_string(_LAZY[name])
    elif name in ALGORITHMS:
        from raypid.run.agent import Agent

        default = ALGORITHMS.get(name).Config().to_dict()
        value = type(
            name, (Agent,), {"algorithm": name, "DEFAULT_CONFIG": default, "__doc__": f"Agent bound to {name}."}
        )
    else:
        raise AttributeError(f"module 'raypid' has no attribute {name!r}")
    globals()[name] = value
    return value


def register_network(name: str, network: Any = None) -> Any:
    """Make a torch.nn.Module class known as `model.network=name`. Also as a decorator: `@register_network("mine")`.

    The module is called with float tensors, [N, D] or images [N, C, H, W] (see `raypid.nn.networks.CustomNetwork`), and
    returns features [N, F], or (distribution parameters [N, P], value [N]).
    """
    from raypid.config import ConfigError
    from raypid.registry import NETWORKS

    if name in ("auto", "mlp", "cnn", "resnet", "lstm", "gru"):
        raise ConfigError(f"{name!r} is a network of raypid's own; give yours another name.")
    if network is None:
        return lambda cls: register_network(name, cls)
    NETWORKS.register(name, network)
    return network


def register_model(name: str, model: Any = None) -> Any:
    """Make a class known as `model.network=name`; also as a decorator: `@register_model("mine")`.

    Either a whole model in any framework, which acts and computes gradients (`raypid.nn.user_model.Model`; run it with CustomModel), or a
    torch.nn.Module that is only a network, as with `register_network`.
    """
    return register_network(name, model)


def __dir__() -> list[str]:
    from raypid.registry import ALGORITHMS

    return sorted([*globals(), *_LAZY, *ALGORITHMS.names()])
