"""Training of a model in any framework by an agent: they act and compute gradients in the workers, one optimizer here follows them.

Asynchronous gradient descent, as in Downpour SGD (Dean et al. 2012) and A3C (Mnih et al. 2016, arXiv:1602.01783).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Literal

import numpy as np

from raypid.algorithms.backprop import NumpyOptimizer
from raypid.algorithms.base import FollowsGradients, GradientsConfig, OptimizerConfig, Parameters
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.user_model import ModelPolicy
from raypid.settings.config import Config, ModelConfig
from raypid.settings.ranges import tunable


@dataclass(kw_only=True, slots=True)
class CustomModelConfig(GradientsConfig, OptimizerConfig, Config):
    """Settings of CustomModel."""

    agent: str = "default_agent"
    """Agent that computes gradients from the model's fragments: default_agent (the model's `step`), a registered name
    or "module:Class"."""
    agent_config: dict[str, object] = field(default_factory=dict)
    """Values of the arguments that the agent's add_args declares."""
    fragment_length: int = tunable(128, 16, 512, "powers of 2")
    batch_size: int = 256
    """Given to agent and model as args.batch_size. The models ppo and a2c compute each gradient from this many rows.
    Your own may use it freely."""
    lr: float = 3e-3
    optimizer: Literal["adam", "rmsprop", "sgd"] = "adam"
    """Optimizer that applies the gradients of all workers."""
    rmsprop_eps: float = 0.01
    """RMSProp's epsilon, added to the root of the mean squared gradient. Larger values make smaller steps where gradients are small."""
    rmsprop_decay: float = 0.99
    """Decay rate of RMSProp's mean square. Closer to 1 averages over more steps."""
    momentum: float = 0.0
    """Momentum of optimizer sgd. Higher averages over more updates. 0: none."""
    max_grad_norm: float | None = tunable(None, 0.3, 20.0, "log", also=(None,))
    """Largest L2 norm of a gradient. Longer gradients are scaled down to it. none: no clipping."""

    no_effect = {
        **dict.fromkeys(
            ("normalize_observations", "normalize_rewards", "reward_scale", "reward_clip", "frame_stack"),
            "for a model of your own, which is given observations and rewards as they are, and learns by itself: change them in "
            "the model, or in the environment with a Gymnasium wrapper",
        ),
        "noise_persistence": "for a model of your own, which draws its actions itself",
        "kernel": "for a model of your own, which learns by itself in the workers",
        **{
            f"model.{f.name}": "for a model of your own, whose arguments are in model.custom"
            for f in fields(ModelConfig)
            if f.name not in ("network", "custom")
        },
    }

    ranges = {"lie in [0, 1]": ("momentum", "rmsprop_decay"), "be above 0": ("max_grad_norm", "rmsprop_eps")}


class CustomModel(FollowsGradients[CustomModelConfig]):
    """Train a registered model with a registered agent: the workers' gradients are applied in the order of arrival.

    The model acts and computes gradients in the workers, in any framework; the learner has only the optimizer. `--agent_name` and
    `--model_name` on the command line select this algorithm.
    """

    Config = CustomModelConfig
    metric_names = frozenset({"grad_norm", "lr"})
    more_metrics = own_model = True
    network: Parameters
    optimizer: NumpyOptimizer

    def __init__(self, config: CustomModelConfig, spec: NetworkSpec, seed: int) -> None:
        super().__init__(config, spec, seed)
        policy = ModelPolicy(spec, seed)
        self.network = Parameters(policy.weights(), policy.layout.table)
        flat = self.network.flat
        self.optimizer = NumpyOptimizer(np.zeros_like(flat), config.rule(flat), config.max_grad_norm)

    @classmethod
    def network_spec(cls, config: CustomModelConfig, spec: NetworkSpec) -> NetworkSpec:
        told = {"gamma": config.gamma, "batch_size": config.batch_size, "device": config.device}
        return replace(spec, facts={**config.custom_args, **spec.facts, **told})


DEFAULT_CONFIG: dict[str, object]
"""The settings of CustomModel with their defaults, a dict of your own each time."""
