"""Which settings have no effect on a network, now that the environment's spaces are known."""

from __future__ import annotations

import inspect

import numpy as np

from raypid.nn.network_spec import NetworkSpec
from raypid.plugins.registry import NETWORKS
from raypid.settings.config import Config, unless


def idle_settings(config: Config, spec: NetworkSpec) -> dict[str, str]:
    """Return the settings that have no effect with this network, as `Config.idle` does for the others."""
    own, leaves = NETWORKS.is_own(spec.network), spec.pipeline.leaves
    layers = bool(spec.hidden or spec.memory) if own else bool(spec.memory)
    continuous = any(not action.is_discrete for action in spec.actions)
    floats = any(np.issubdtype(np.dtype(leaf.dtype), np.floating) for leaf in leaves)
    has_vector = any(leaf.kind == "vector" for leaf in leaves)
    has_critics = hasattr(config, "critic_norm")  # their layers have these widths too
    is_told = own or has_critics or spec.head == "model" or _is_told(spec)
    return {
        **unless(not own, f"for {spec.network}: it holds the arguments of a registered network", "model.custom"),
        **unless(spec.images, "without an image that is convolved", "model.channels"),
        **unless(spec.hidden, "without hidden layers", "model.activation", "layer_norm"),
        **unless(spec.num_values and layers, "for this network: policy and value share no layer", "model.shared"),
        **unless(spec.num_log_std, "unless an actor-critic draws Box actions from a Gaussian", "model.log_std_init"),
        **unless(continuous, "with discrete actions", "model.distribution", "action_noise"),
        **unless(floats, "without floating-point observations", "observation_noise"),
        **unless(has_vector, "on images and one-hot observations, which are not normalised", "normalize_observations"),
        **unless(
            is_told, "for a registered network without `spec`", "model.hidden", "model.channels", "model.activation"
        ),
    }


def _is_told(spec: NetworkSpec) -> bool:
    """Whether a registered network takes the NetworkSpec, which holds the settings of the model."""
    return "spec" in inspect.signature(NETWORKS.get(spec.network)).parameters
