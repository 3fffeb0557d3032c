"""Which network and which distribution fit a space: every combination has a default."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from raypid.config import ConfigError, ModelConfig
from raypid.nn.network_spec import ActionLeaf, Leaf, NetworkSpec, PipelineSpec
from raypid.nn.space_json import space_to_json
from raypid.registry import NETWORKS

OWN_NETWORKS = ("mlp", "cnn", "resnet")
MIN_SIDE = 16
"""Images with a smaller side are flattened by default: a fully connected network learns them faster, without torch."""


def space_leaves(space: spaces.Space[Any], path: str = "") -> Iterator[tuple[str, spaces.Space[Any]]]:
    """(path, space) of each leaf of a nested space; Tuple members are called "0", "1", ..."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from space_leaves(part, f"{path}/{key}" if path else str(key))
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from space_leaves(part, f"{path}/{i}" if path else str(i))
    else:
        yield path, space


def _unknown(role: str, path: str, space: spaces.Space[Any]) -> ConfigError:
    where = f"{role} {path!r}" if path else f"The {role}"
    return ConfigError(
        f"{where} has the space {type(space).__name__}, which no network here takes. "
        "Use Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these (wrap the environment to convert it)."
    )


def observation_leaf(path: str, space: spaces.Space[Any]) -> Leaf:
    """How one array of an observation enters the network.

    Raises:
        ConfigError: a space without a default encoding, named.
    """
    if isinstance(space, spaces.Discrete):
        return Leaf(
            path=path, kind="discrete", shape=(), nvec=(int(space.n),), start=(int(space.start),), dtype="int64"
        )
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.ravel(), np.broadcast_to(space.start, space.nvec.shape).ravel()
        shape = tuple(space.nvec.shape)
        return Leaf(path=path, kind="multi_discrete", shape=shape, nvec=_ints(nvec), start=_ints(start), dtype="int64")
    if isinstance(space, spaces.MultiBinary):
        return Leaf(path=path, kind="vector", shape=tuple(space.shape), dtype="int8")
    if not isinstance(space, spaces.Box):
        raise _unknown("observation", path, space)
    shape, dtype = tuple(space.shape), space.dtype
    is_bytes = dtype == np.uint8
    scale = 1 / max(1.0, float(np.max(space.high))) if is_bytes else 1.0
    if (len(shape) == 3 and min(shape[0], shape[2]) <= 16 or len(shape) == 2 and is_bytes) and math.prod(shape) > 0:
        last = len(shape) == 3 and shape[2] <= shape[0]
        return Leaf(
            path=path,
            kind="image",
            shape=shape,
            dtype=str(dtype),
            channels_last=last,
            scale=scale,
        )
    return Leaf(path=path, kind="vector", shape=shape, dtype=str(dtype), scale=scale)


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def action_leaf(path: str, space: spaces.Space[Any], model: ModelConfig) -> ActionLeaf:
    """The distribution over one array of an action.

    Raises:
        ConfigError: a space without a distribution, named.
    """
    if isinstance(space, spaces.Discrete):
        return ActionLeaf(
            path=path, kind="categorical", shape=(), nvec=(int(space.n),), start=(int(space.start),), dtype="int64"
        )
    if isinstance(space, spaces.MultiDiscrete):
        start = np.broadcast_to(space.start, space.nvec.shape).ravel()
        shape = tuple(space.nvec.shape)
        return ActionLeaf(
            path=path,
            kind="multi_categorical",
            shape=shape,
            nvec=_ints(space.nvec.ravel()),
            start=_ints(start),
            dtype="int64",
        )
    if isinstance(space, spaces.MultiBinary):
        return ActionLeaf(path=path, kind="bernoulli", shape=tuple(space.shape), dtype="int8")
    if not isinstance(space, spaces.Box):
        raise _unknown("action", path, space)
    kind = "gaussian" if model.distribution == "auto" else model.distribution
    # where integers have no bound, Gymnasium writes the limits of their dtype
    low = tuple(float(v) for v in np.where(space.bounded_below, space.low, -np.inf).ravel())
    high = tuple(float(v) for v in np.where(space.bounded_above, space.high, np.inf).ravel())
    return ActionLeaf(path=path, kind=kind, shape=tuple(space.shape), low=low, high=high, dtype=str(space.dtype))


def build_spec(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    model: ModelConfig,
    *,
    frame_stack: int = 1,
    normalize: bool = False,
) -> NetworkSpec:
    """The NetworkSpec for a pair of spaces: the default one, or what `model` asks for.

    Raises:
        ConfigError: a space that cannot be handled, or a network that does not fit it.
    """
    named = list(space_leaves(observation_space))
    mask = dict(named).get("action_mask")
    if mask is None and any(path.startswith("action_mask/") for path, _ in named):
        raise ConfigError(
            "action_mask must be one array, with an element for each choice of the actions in their order."
        )
    leaves = tuple(observation_leaf(path, space) for path, space in named if path != "action_mask")
    if not leaves:
        raise ConfigError("The observation holds nothing but the action mask.")
    actions = tuple(action_leaf(path, space, model) for path, space in space_leaves(action_space))
    mask_size = 0 if mask is None else int(np.prod(mask.shape or ()))
    expected = sum(a.mask_size for a in actions)
    if mask is not None and mask_size != expected:
        raise ConfigError(
            f"action_mask has {mask_size} elements, the actions have {expected} choices: give one element for each choice."
        )
    cell = model.cell
    network = "mlp" if model.network in ("lstm", "gru") else model.network
    if network not in NETWORKS and network != "auto":
        NETWORKS.get(network)  # raises with the nearest names
    if network in ("auto", "mlp"):  # what is too small to convolve is flattened
        flat = [leaf.kind == "image" and (network == "mlp" or min(leaf.image_shape[1:]) < MIN_SIDE) for leaf in leaves]
        leaves = tuple(_flat(leaf) if is_flat else leaf for leaf, is_flat in zip(leaves, flat, strict=True))
    if network == "auto":
        network = "cnn" if any(leaf.kind == "image" for leaf in leaves) else "mlp"
    _check(model, network, leaves)
    facts, whole = {}, network not in OWN_NETWORKS and _is_whole(NETWORKS.get(network))
    if whole:
        facts = {"observation_space": space_to_json(observation_space), "action_space": space_to_json(action_space)}
    return NetworkSpec(
        pipeline=PipelineSpec(leaves=leaves, frame_stack=frame_stack, normalize=normalize, mask_size=mask_size),
        actions=actions,
        network=network,
        hidden=model.hidden,
        channels=model.channels,
        activation=model.activation,
        shared=model.shared,
        log_std_init=model.log_std_init,
        custom=dict(model.custom),
        target=_target(network),
        head="model" if whole else "actor_critic",
        facts=facts,
        memory=cell,
        memory_size=model.memory_size if cell else 0,
    )


def _check(model: ModelConfig, network: str, leaves: tuple[Leaf, ...]) -> None:
    if network in ("cnn", "resnet") and not any(leaf.kind == "image" for leaf in leaves):
        shapes = ", ".join(f"{leaf.path} {leaf.shape}".strip() for leaf in leaves)
        raise ConfigError(f"model.network {network!r} needs an image in the observation; it has {shapes}.")
    if any(width < 1 for width in model.hidden):
        raise ConfigError(f"model.hidden takes widths of at least 1, not {list(model.hidden)}.")
    if any(width < 1 for width in model.channels) or len(model.channels) > 3:
        raise ConfigError(f"model.channels takes up to three numbers of at least 1, not {list(model.channels)}.")
    if not model.hidden and network == "mlp" and model.shared and not model.cell:
        raise ConfigError("model.shared needs at least one hidden layer, or a memory.")


def _is_whole(entry: Any) -> bool:
    """Is a registered class a whole model (`raypid.nn.user_model.Model`), or a network that an algorithm puts heads on?"""
    return hasattr(entry, "choose_actions")


def _target(network: str) -> str:
    """Where a registered class can be imported from; empty for our own and for classes of a script."""
    if network in OWN_NETWORKS:
        return ""
    cls = NETWORKS.get(network)
    return "" if cls.__module__ == "__main__" else f"{cls.__module__}:{cls.__qualname__}"


def _flat(leaf: Leaf) -> Leaf:
    return Leaf(path=leaf.path, kind="vector", shape=leaf.shape, dtype=leaf.dtype, scale=leaf.scale)
