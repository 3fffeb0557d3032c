"""Which network and which distribution fit a space: every combination has a default."""

from __future__ import annotations

import math

import numpy as np
from gymnasium import spaces

from raypid.config import ModelConfig
from raypid.errors import ConfigError
from raypid.modules import name_of
from raypid.nn.network_spec import ActionLeaf, Leaf, NetworkSpec, PipelineSpec
from raypid.nn.numpy_cells import STEPS
from raypid.registry import NETWORKS, is_model
from raypid.spaces import Space, SpaceLeaf, space_leaves, space_to_json
from raypid.types import Array, Tree, tree_leaves

MIN_SIDE = 16
"""Images with a smaller side are flattened by default: a fully connected network learns them faster, without torch."""
SMALL = 8
"""Elements of an observation up to which narrow layers learn as well as wide ones, twice as fast."""
LARGE = 100.0
"""Size of an observation's element beyond which networks need it normalised."""
NO_BOUND = 1e9
"""Bounds of this size say nothing: they are there because a Box asks for some."""
_INPUTS = {"Discrete": "discrete", "MultiDiscrete": "multi_discrete", "MultiBinary": "vector"}
_DISTRIBUTIONS = {"Discrete": "categorical", "MultiDiscrete": "multi_categorical", "MultiBinary": "bernoulli"}


def observation_leaf(leaf: SpaceLeaf) -> Leaf:
    """Choose how one array of an observation enters the network."""
    shape, dtype = leaf.shape, str(leaf.dtype)
    if not isinstance(leaf.space, spaces.Box):
        kind = _INPUTS[leaf.kind]
        return Leaf(path=leaf.path, kind=kind, shape=shape, nvec=leaf.nvec, start=leaf.start, dtype=dtype)
    is_bytes = leaf.dtype == np.uint8
    scale = 1 / max(1.0, float(np.max(leaf.space.high))) if is_bytes else 1.0
    if (len(shape) == 3 and min(shape[0], shape[2]) <= 16 or len(shape) == 2 and is_bytes) and math.prod(shape) > 0:
        last = len(shape) == 3 and shape[2] <= shape[0]
        return Leaf(path=leaf.path, kind="image", shape=shape, dtype=dtype, channels_last=last, scale=scale)
    return Leaf(path=leaf.path, kind="vector", shape=shape, dtype=dtype, scale=scale)


def action_leaf(leaf: SpaceLeaf, model: ModelConfig) -> ActionLeaf:
    """Choose the distribution over one array of an action."""
    space, shape, dtype = leaf.space, leaf.shape, str(leaf.dtype)
    if not isinstance(space, spaces.Box):
        kind = _DISTRIBUTIONS[leaf.kind]
        return ActionLeaf(path=leaf.path, kind=kind, shape=shape, nvec=leaf.nvec, start=leaf.start, dtype=dtype)
    kind = "gaussian" if model.distribution == "auto" else model.distribution
    # where integers have no bound, Gymnasium writes the limits of their dtype
    low = tuple(float(v) for v in np.where(space.bounded_below, space.low, -np.inf).ravel())
    high = tuple(float(v) for v in np.where(space.bounded_above, space.high, np.inf).ravel())
    return ActionLeaf(path=leaf.path, kind=kind, shape=shape, low=low, high=high, dtype=dtype)


def build_spec(
    observation_space: Space, action_space: Space, model: ModelConfig, *, frame_stack: int = 1, normalize: bool = False
) -> NetworkSpec:
    """Build the NetworkSpec for a pair of spaces: the default one, or what `model` asks for.

    Raises:
        SpaceError: a space that cannot be handled.
        ConfigError: a network that does not fit the spaces.
    """
    observed = space_leaves(observation_space, "observation")
    actions = tuple(action_leaf(leaf, model) for leaf in space_leaves(action_space, "action"))
    mask_size = _mask_size(observed, actions)
    leaves = tuple(observation_leaf(leaf) for leaf in observed if leaf.path != "action_mask")
    if not leaves:
        raise ConfigError("The observation holds nothing but the action mask.")
    network = "mlp" if model.network in STEPS else model.network
    if network not in NETWORKS and network != "auto":
        # raises with the nearest names
        NETWORKS.get(network)
    if network in ("auto", "mlp"):
        # images that are too small to convolve are flattened
        flat = [leaf.kind == "image" and (network == "mlp" or min(leaf.image_shape[1:]) < MIN_SIDE) for leaf in leaves]
        leaves = tuple(_flat(leaf) if is_flat else leaf for leaf, is_flat in zip(leaves, flat, strict=True))
    if network == "auto":
        network = "cnn" if any(leaf.kind == "image" for leaf in leaves) else "mlp"
    _check(model, network, leaves)
    facts: dict[str, object] = {}
    # a class that acts is a whole model (`raypid.nn.user_model.Model`), not a network that gets heads
    whole = is_model(network)
    if whole:
        facts = {"observation_space": space_to_json(observation_space), "action_space": space_to_json(action_space)}
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
        facts=facts,
        memory=model.cell,
        memory_size=model.memory_size if model.cell else 0,
    )


def large_element(observation_space: Space, pipeline: PipelineSpec, first: Tree | None) -> str:
    """Say which part of observations has numbers beyond LARGE, by the bounds of its space or in the observations `first` [N, *]; "" if
    none has."""
    bounds = {leaf.path: _bounds(leaf) for leaf in space_leaves(observation_space, "observation")}
    observed = {} if first is None else dict(tree_leaves(first))
    for leaf in (leaf for leaf in pipeline.leaves if leaf.kind == "vector"):
        known = bounds[leaf.path][bounds[leaf.path] < NO_BOUND]
        sizes = {"bounds": known, "a first observation": np.abs(observed.get(leaf.path, 0.0))}
        for what, size in sizes.items():
            if (largest := leaf.scale * float(np.max(size, initial=0.0))) > LARGE:
                return f"{what}{f' of {leaf.path}' if leaf.path else ''} up to {largest:.3g}"
    return ""


def has_open_bounds(observation_space: Space) -> bool:
    """Whether a part of observations that could be normalised has elements without bounds."""
    leaves = space_leaves(observation_space, "observation")
    return any(observation_leaf(leaf).kind == "vector" and (_bounds(leaf) >= NO_BOUND).any() for leaf in leaves)


def _bounds(leaf: SpaceLeaf) -> Array:
    """The sizes of the bounds of a Box; nothing of other spaces."""
    if not isinstance(leaf.space, spaces.Box):
        return np.zeros(0)
    return np.abs(np.array([leaf.space.low, leaf.space.high], np.float64))


def _widths(leaves: tuple[Leaf, ...], frame_stack: int) -> tuple[int, ...]:
    """The layers where the settings leave them open."""
    is_small = (
        all(leaf.kind == "vector" for leaf in leaves)
        and sum(math.prod(leaf.shape) for leaf in leaves) * frame_stack <= SMALL
    )
    return (64, 64) if is_small else (128, 128)


def _mask_size(observed: list[SpaceLeaf], actions: tuple[ActionLeaf, ...]) -> int:
    """Count the elements of the observation's action mask, 0 where it has none.

    Raises:
        ConfigError: it is not one array with an element for each choice.
    """
    masks = [leaf for leaf in observed if leaf.keys[:1] == ("action_mask",)]
    if not masks:
        return 0
    if len(masks[0].keys) > 1:
        raise ConfigError(
            "action_mask must be one array, with an element for each choice of the actions in their order."
        )
    size, expected = math.prod(masks[0].shape), sum(action.mask_size for action in actions)
    if size != expected:
        raise ConfigError(
            f"action_mask has {size} elements, the actions have {expected} choices: give one element for each choice."
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


def _flat(leaf: Leaf) -> Leaf:
    return Leaf(path=leaf.path, kind="vector", shape=leaf.shape, dtype=leaf.dtype, scale=leaf.scale)
