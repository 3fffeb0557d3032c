"""Which network and which distribution fit a space: every combination has a default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from gymnasium import spaces

from raypid.errors import ConfigError
from raypid.nn.network_spec import DISTRIBUTIONS, ActionLeaf, Leaf, NetworkSpec, PipelineSpec
from raypid.nn.numpy_cells import STEPS
from raypid.plugins.modules import name_of
from raypid.plugins.registry import NETWORKS, is_model
from raypid.settings.config import ModelConfig
from raypid.spaces import Space, SpaceLeaf, space_leaves, space_to_json
from raypid.types import Array, Tree, tree_leaves

MIN_SIDE = 16
"""Smallest side of a picture: a fully connected network learns smaller ones faster, without torch."""
MAX_CHANNELS = 16
"""Most channels of a picture."""
MAX_SYMBOL = 32
"""Numbers up to which an array with the bounds of bytes holds symbols, such as kinds of objects in the cells of a grid."""
SMALL = 8
"""Elements of an observation up to which narrow layers learn as well as wide ones, twice as fast."""
PLAIN = 30.0
"""Size of numbers up to which networks take them as they are: PPO needs 4 times as long on Acrobot (up to 28) if they are normalised."""
NO_BOUND = 1e9
"""Bounds of this size say nothing: they are there because a Box asks for some."""
_INPUTS = {"Box": "vector", "Discrete": "discrete", "MultiDiscrete": "multi_discrete", "MultiBinary": "vector"}


def observation_leaf(leaf: SpaceLeaf, seen: Array | None = None) -> Leaf:
    """Choose how one array of an observation enters the network, given what was `seen` of it [N, *]: as an image if its shape allows
    that, else as a vector of numbers, or one-hot."""
    shape, dtype = leaf.shape, str(leaf.dtype)
    has_channels = len(shape) == 3 and min(shape[0], shape[2]) <= MAX_CHANNELS
    may_be = has_channels or len(shape) == 2 and (leaf.dtype == np.uint8 or _has_byte_bounds(leaf))
    if leaf.kind != "Box" or not may_be or 0 in shape:
        kind = _INPUTS[leaf.kind]
        return Leaf(path=leaf.path, kind=kind, shape=shape, nvec=leaf.nvec, start=leaf.start, dtype=dtype)
    last = has_channels and shape[2] <= shape[0]
    scale = 1 / max(1.0, _largest(leaf, seen))
    return Leaf(path=leaf.path, kind="image", shape=shape, dtype=dtype, channels_last=last, scale=scale)


def is_picture(leaf: SpaceLeaf, seen: Array | None = None) -> bool:
    """Return whether one array of an observation is a picture, given what was `seen` of it [N, *].

    Pictures are scaled by their bounds and convolved; all other arrays are numbers. A picture is (height, width, channels) or (channels,
    height, width) with up to MAX_CHANNELS channels, or (height, width) of bytes. Its sides have at least MIN_SIDE elements. If
    its bounds are those of bytes, and the largest number that was seen is 1 to MAX_SYMBOL, it is a grid of symbols.
    """
    image = observation_leaf(leaf, seen)
    return image.kind == "image" and min(image.image_shape[1:]) >= MIN_SIDE and not _holds_symbols(leaf, seen)


def _has_byte_bounds(leaf: SpaceLeaf) -> bool:
    box = leaf.space
    return isinstance(box, spaces.Box) and bool(box.low.size) and (box.low.min(), box.high.max()) == (0, 255)


def _holds_symbols(leaf: SpaceLeaf, seen: Array | None) -> bool:
    """Return whether numbers that could be bytes of a picture are small ones. Zeros alone say nothing: pictures may begin black."""
    return seen is not None and _has_byte_bounds(leaf) and 0 < np.max(seen, initial=0) <= MAX_SYMBOL


def _largest(leaf: SpaceLeaf, seen: Array | None) -> float:
    """Return the largest size of an image's elements: by its bounds, or by what was seen if these say nothing."""
    bound = bound_of(leaf)
    if seen is not None and (bound >= NO_BOUND or _holds_symbols(leaf, seen)):
        return float(np.max(np.abs(seen), initial=0.0))
    return bound if bound < NO_BOUND else 1.0


def action_leaf(leaf: SpaceLeaf, model: ModelConfig) -> ActionLeaf:
    """Choose the distribution over one array of an action."""
    space, shape, dtype = leaf.space, leaf.shape, str(leaf.dtype)
    if not isinstance(space, spaces.Box):
        kind = DISTRIBUTIONS[leaf.kind]
        return ActionLeaf(path=leaf.path, kind=kind, shape=shape, nvec=leaf.nvec, start=leaf.start, dtype=dtype)
    kind = "gaussian" if model.distribution == "auto" else model.distribution
    # where integers have no bound, Gymnasium writes the limits of their dtype
    low = tuple(float(v) for v in np.where(space.bounded_below, space.low, -np.inf).ravel())
    high = tuple(float(v) for v in np.where(space.bounded_above, space.high, np.inf).ravel())
    return ActionLeaf(path=leaf.path, kind=kind, shape=shape, low=low, high=high, dtype=dtype)


def build_spec(
    observation_space: Space,
    action_space: Space,
    model: ModelConfig,
    *,
    frame_stack: int = 1,
    normalize: bool = False,
    first: Tree | None = None,
    like: NetworkSpec | None = None,
) -> NetworkSpec:
    """Build the NetworkSpec for a pair of spaces: the default one, or what `model` asks for.

    Args:
        first: observations [N, *], by which pictures are told from grids of symbols.
        like: a network that exists. What it takes for pictures stays so.

    Raises:
        SpaceError: a space that cannot be handled.
        ConfigError: a network that does not fit the spaces.
    """
    observed = space_leaves(observation_space, "observation")
    actions = tuple(action_leaf(leaf, model) for leaf in space_leaves(action_space, "action"))
    mask_size = _mask_size(observed, actions)
    observed = [leaf for leaf in observed if leaf.path != "action_mask"]
    if not observed:
        raise ConfigError("The observation holds nothing but the action mask.")
    network = "mlp" if model.network in STEPS else model.network
    leaves = _leaves(observed, network, first, like)
    if network == "auto":
        network = "cnn" if any(leaf.kind == "image" for leaf in leaves) else "mlp"
    _check(model, network, leaves)
    # a class that acts is a whole model (`raypid.nn.user_model.Model`), not a network that gets heads
    whole = is_model(network)
    described = {"observation_space": observation_space, "action_space": action_space} if whole else {}
    return NetworkSpec(
        pipeline=PipelineSpec(leaves=leaves, frame_stack=frame_stack, normalize=normalize, mask_size=mask_size),
        actions=actions,
        network=network,
        hidden=_widths(leaves, frame_stack) if model.hidden is None else model.hidden,
        channels=model.channels,
        activation=model.activation,
        shared=model.shared,
        log_std_init=model.log_std_init or 0.0,
        custom=dict(model.custom),
        target=_target(network),
        head="model" if whole else "actor_critic",
        facts={role: space_to_json(space) for role, space in described.items()},
        memory=model.cell,
        memory_size=model.memory_size if model.cell else 0,
    )


def _leaves(
    observed: Sequence[SpaceLeaf], network: str, first: Tree | None, like: NetworkSpec | None
) -> tuple[Leaf, ...]:
    """Choose how the parts of observations enter the network; a convolutional or registered one gets all that can be an image."""
    seen = {} if first is None else dict(tree_leaves(first))
    leaves = tuple(observation_leaf(leaf, seen.get(leaf.path)) for leaf in observed)
    if network in ("auto", "mlp"):
        pictures = [network == "auto" and is_picture(leaf, seen.get(leaf.path)) for leaf in observed]
        leaves = tuple(leaf if keep else _numbers(leaf) for leaf, keep in zip(leaves, pictures, strict=True))
    if like is None or network not in ("auto", like.network):
        return leaves
    before = {(leaf.path, leaf.shape, leaf.dtype): leaf for leaf in like.pipeline.leaves}
    return tuple(before.get((leaf.path, leaf.shape, leaf.dtype), leaf) for leaf in leaves)


def beyond_plain(observation_space: Space, pipeline: PipelineSpec) -> str:
    """Say which numbers of observations are not within about [-PLAIN, PLAIN] by their bounds; "" if all are."""
    numbers = {leaf.path for leaf in pipeline.leaves if leaf.kind == "vector"}
    leaves = space_leaves(observation_space, "observation")
    sizes = {leaf.path: bound_of(leaf) for leaf in leaves if leaf.path in numbers}
    path, largest = max(sizes.items(), key=lambda item: item[1], default=("", 0.0))
    if largest >= NO_BOUND:
        return "observations have no bounds"
    return f"bounds{f' of {path}' if path else ''} up to {largest:.3g}" if largest > PLAIN else ""


def has_open_bounds(observation_space: Space) -> bool:
    """Return whether numbers of observations have elements without bounds."""
    leaves = space_leaves(observation_space, "observation")
    return any(observation_leaf(leaf).kind == "vector" and bound_of(leaf) >= NO_BOUND for leaf in leaves)


def needs_look(observation_space: Space, seen: Tree | None = None) -> bool:
    """Return whether only observations show what a part of them is, a picture or a grid of symbols, or how large its numbers are, and
    those `seen` [N, *] do not say enough."""
    known = {} if seen is None else dict(tree_leaves(seen))
    for leaf in space_leaves(observation_space, "observation"):
        if observation_leaf(leaf).kind == "image":
            largest = np.max(known.get(leaf.path, 0))
            if _has_byte_bounds(leaf) and largest <= MAX_SYMBOL or bound_of(leaf) >= NO_BOUND and not largest:
                return True
    return False


def bound_of(leaf: SpaceLeaf) -> float:
    """Return the largest size that the bounds of a Box allow; 0 for other spaces. From NO_BOUND on, an element has no bound."""
    if not isinstance(leaf.space, spaces.Box):
        return 0.0
    return float(np.max(np.abs(np.array([leaf.space.low, leaf.space.high], np.float64)), initial=0.0))


def _widths(leaves: tuple[Leaf, ...], frame_stack: int) -> tuple[int, ...]:
    """The layers where the settings leave them open."""
    size = sum(math.prod(leaf.shape) for leaf in leaves) * frame_stack
    return (64, 64) if size <= SMALL and all(leaf.kind == "vector" for leaf in leaves) else (128, 128)


def _mask_size(observed: list[SpaceLeaf], actions: tuple[ActionLeaf, ...]) -> int:
    """Count the elements of the observation's action mask, 0 where it has none.

    Raises:
        ConfigError: it is not one array with an element for each choice.
    """
    masks = [leaf for leaf in observed if leaf.keys[:1] == ("action_mask",)]
    size, expected = sum(math.prod(leaf.shape) for leaf in masks), sum(action.mask_size for action in actions)
    if masks and (len(masks[0].keys) > 1 or size != expected):
        raise ConfigError(
            f"action_mask must be one array with the actions' {expected} choices in order; it has {size}."
        )
    return size


def _check(model: ModelConfig, network: str, leaves: tuple[Leaf, ...]) -> None:
    if network in ("cnn", "resnet") and not any(leaf.kind == "image" for leaf in leaves):
        shapes = ", ".join(f"{leaf.path} {leaf.shape}".strip() for leaf in leaves)
        raise ConfigError(f"model.network {network!r} needs an image in the observation; it has {shapes}.")
    if any(width < 1 for width in model.hidden or ()):
        raise ConfigError(f"model.hidden takes widths of at least 1, not {list(model.hidden or ())}.")
    if any(width < 1 for width in model.channels) or len(model.channels) > 3:
        raise ConfigError(f"model.channels takes up to three numbers of at least 1, not {list(model.channels)}.")
    if model.hidden == () and network == "mlp" and model.shared and not model.cell:
        raise ConfigError("model.shared needs at least one hidden layer, or a memory.")


def _target(network: str) -> str:
    """Say where a registered class can be imported from; empty for raypid's own and for classes of a script."""
    if NETWORKS.is_own(network):
        return ""
    cls = NETWORKS.get(network)
    return "" if cls.__module__ == "__main__" else name_of(cls)


def _numbers(leaf: Leaf) -> Leaf:
    return replace(leaf, kind="vector", channels_last=False, scale=1.0) if leaf.kind == "image" else leaf
