"""Which network and distribution a space gets, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from raypid.errors import UserError
from raypid.nn.catalog import beyond_plain, build_spec, has_open_bounds, is_picture, needs_look
from raypid.nn.network_spec import NetworkSpec
from raypid.settings.config import ConfigError, ModelConfig
from raypid.spaces import SpaceError, space_leaves

BOX = spaces.Box(-1, 1, (3,))
TWO = spaces.Discrete(2)


def spec(observation: Any = BOX, action: Any = TWO, stack: int = 1, **model: Any) -> NetworkSpec:
    return build_spec(observation, action, ModelConfig(**model), frame_stack=stack)


def bytes_of(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(
    ("observation", "network", "kind"),
    [
        (BOX, "mlp", "vector"),
        (spaces.Box(-1, 1, (4, 5)), "mlp", "vector"),
        (spaces.Box(-1, 1, (2, 3, 4)), "mlp", "vector"),
        (bytes_of(84, 84), "cnn", "image"),
        (bytes_of(64, 64, 3), "cnn", "image"),
        (bytes_of(4, 84, 84), "cnn", "image"),
        (spaces.Box(0, 1, (32, 32, 3), np.float32), "cnn", "image"),
        (bytes_of(10, 5), "mlp", "vector"),
        (bytes_of(128), "mlp", "vector"),
        (TWO, "mlp", "discrete"),
        (spaces.MultiDiscrete([2, 3]), "mlp", "multi_discrete"),
        (spaces.MultiBinary(4), "mlp", "vector"),
    ],
)
def test_defaults_by_observation(observation: Any, network: str, kind: str) -> None:
    s = spec(observation)
    assert s.network == network and [leaf.kind for leaf in s.pipeline.leaves] == [kind]
    assert s.torch_free == (network == "mlp")


@pytest.mark.parametrize(
    ("action", "kind", "size", "num_params"),
    [
        (spaces.Discrete(4, start=2), "categorical", 1, 4),
        (spaces.MultiDiscrete([2, 3]), "multi_categorical", 2, 5),
        (spaces.MultiBinary(3), "bernoulli", 3, 3),
        (spaces.Box(-1, 1, (2, 2)), "gaussian", 4, 4),
    ],
)
def test_distribution_by_action(action: Any, kind: str, size: int, num_params: int) -> None:
    (leaf,) = spec(action=action).actions
    assert (leaf.kind, leaf.size, leaf.num_params, leaf.path) == (kind, size, num_params, "")


def test_continuous_distribution_by_config() -> None:
    assert spec(action=BOX, distribution="squashed_gaussian").num_outputs == 6
    assert spec(action=BOX).num_log_std == 3 and spec(action=BOX, distribution="squashed_gaussian").num_log_std == 0


def test_nested_actions_keep_their_paths() -> None:
    s = spec(action=spaces.Dict(a=spaces.Tuple((TWO, BOX)), b=spaces.MultiBinary(2)))
    assert [(a.path, a.kind) for a in s.actions] == [("a/0", "categorical"), ("a/1", "gaussian"), ("b", "bernoulli")]
    assert s.num_outputs == 2 + 3 + 2 and s.num_log_std == 3


@pytest.mark.parametrize(
    ("observation", "action", "names"),
    [
        (spaces.Text(5), TWO, ["Text", "observation"]),
        (spaces.Dict(a=BOX, b=spaces.Dict(c=spaces.Text(5))), TWO, ["Text", "b/c"]),
        (BOX, spaces.Text(5), ["Text", "action"]),
        (BOX, spaces.Tuple((TWO, spaces.Text(5))), ["Text", "'1'"]),
        (spaces.Sequence(BOX), TWO, ["Sequence"]),
        (spaces.Dict(action_mask=spaces.MultiBinary(2)), TWO, ["nothing but the action mask"]),
        (spaces.Dict(action_mask=spaces.MultiBinary(3), x=BOX), TWO, ["2 choices", "it has 3"]),
        (spaces.Dict(action_mask=spaces.MultiBinary(3), x=BOX), BOX, ["0 choices", "it has 3"]),
    ],
)
def test_refused_by_name(observation: Any, action: Any, names: list[str]) -> None:
    with pytest.raises((ConfigError, SpaceError)) as error:
        spec(observation, action)
    for name in names:
        assert name in str(error.value)


def test_unfitting_networks_are_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'cnn'"):
        spec(bytes_of(84, 84), network="cnnn")
    with pytest.raises(ConfigError, match="needs an image"):
        spec(BOX, network="resnet")
    for hidden in ((0,), (64, -3)):
        with pytest.raises(ConfigError, match="widths of at least 1"):
            spec(BOX, hidden=hidden)
    with pytest.raises(ConfigError, match="at least one hidden layer"):
        spec(BOX, hidden=(), shared=True)


@pytest.mark.parametrize(
    ("observation", "stack", "width"),
    [
        (BOX, 1, 64),
        (spaces.Box(-1, 1, (8,)), 1, 64),
        (spaces.Box(-1, 1, (9,)), 1, 128),
        (spaces.Box(-1, 1, (2, 4)), 1, 64),
        (spaces.Box(-1, 1, (3, 3)), 1, 128),
        (spaces.Box(-1, 1, (4,)), 2, 64),
        (spaces.Box(-1, 1, (4,)), 3, 128),
        (spaces.Dict(a=BOX, b=spaces.Box(-1, 1, (5,))), 1, 64),
        (spaces.Dict(a=BOX, b=spaces.Box(-1, 1, (6,))), 1, 128),
        (spaces.Dict(action_mask=spaces.MultiBinary(2), x=spaces.Box(-1, 1, (8,))), 1, 64),  # a mask is no observation
        (spaces.MultiBinary(4), 1, 64),
        (TWO, 1, 128),
        (spaces.Dict(a=BOX, b=TWO), 1, 128),
        (bytes_of(84, 84), 1, 128),
    ],
)
def test_the_width_of_layers_that_the_settings_leave_open(observation: Any, stack: int, width: int) -> None:
    assert spec(observation, stack=stack, hidden=None).hidden == (width, width)
    assert spec(observation, stack=stack, hidden=(5,)).hidden == (5,)
    assert spec(observation, stack=stack).hidden == ModelConfig().hidden  # nothing is open where nobody leaves it so


def test_image_networks_by_name() -> None:
    assert spec(bytes_of(10, 5), network="cnn").pipeline.images == (("", (1, 10, 5)),)
    assert spec(bytes_of(84, 84), network="resnet", stack=4).pipeline.images == (("", (4, 84, 84)),)
    assert spec(bytes_of(84, 84), network="mlp").pipeline.vector_size == 84 * 84


def test_spec_survives_json() -> None:
    observation = spaces.Dict(a=spaces.Discrete(3, start=1), b=bytes_of(20, 20, 3), c=spaces.MultiDiscrete([2, 2]))
    action = spaces.Dict(x=spaces.Box(-np.inf, 1, (2,)), y=spaces.MultiDiscrete([2, 3], start=[1, 0]))
    s = spec(observation, action, stack=2, custom={"width": 3}, hidden=(5,))
    assert NetworkSpec.from_dict(json.loads(json.dumps(s.to_dict()))) == s


def test_unbounded_integers_have_no_bounds() -> None:
    """Gymnasium writes the dtype's limits where a Box of integers has no bound."""
    (leaf,) = spec(action=spaces.Box(-np.inf, np.inf, (2,), np.int32)).actions
    assert leaf.low == (-np.inf, -np.inf) and leaf.high == (np.inf, np.inf)
    (leaf,) = spec(action=spaces.Box(0, np.inf, (1,), np.int64)).actions
    assert leaf.low == (0.0,) and leaf.high == (np.inf,)


INF = np.inf


def box(low: Any, high: Any, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (BOX, ""),
        (box([-10.0], [10.0]), ""),
        (box([-28.0], [28.0]), ""),
        (box([-31.0], [31.0]), "bounds up to 31"),
        (box([-4.8, -INF], [4.8, INF]), "observations have no bounds"),
        (box([-1e12], [1e12]), "observations have no bounds"),
        (box([1e5 - 1], [1e5 + 1]), "bounds up to 1e+05"),
        (box([0], [500], np.int32), "bounds up to 500"),
        (box([np.iinfo(np.int64).min], [np.iinfo(np.int64).max], np.int64), "observations have no bounds"),
        (bytes_of(128), "bounds up to 255"),
        (bytes_of(7, 7, 3), "bounds up to 255"),
        (bytes_of(84, 84), ""),
        (bytes_of(0), ""),
        (spaces.MultiBinary(4), ""),
        (spaces.Discrete(1000), ""),
        (spaces.Dict(a=BOX, b=spaces.Dict(c=box([-99], [9])), image=bytes_of(84, 84)), "bounds of b/c up to 99"),
    ],
)
def test_numbers_are_normalised_by_their_bounds(observation: Any, said: str) -> None:
    assert beyond_plain(observation, spec(observation).pipeline) == said


@pytest.mark.parametrize(
    ("observation", "is_open"),
    [
        (BOX, False), (bytes_of(84, 84), False), (TWO, False), (box([-1, -INF], [1, INF]), True), (box([-1, 0], [1, INF]), True),
        (spaces.Dict(a=BOX, b=box([-1e10], [1e10])), True), (spaces.Box(-INF, INF, (32, 32, 3), np.float32), False),
    ],
)  # fmt: skip
def test_bounds_that_say_nothing(observation: Any, is_open: bool) -> None:
    assert has_open_bounds(observation) == is_open


NUMBERS = ("mlp", "vector", 1.0)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int32])
@pytest.mark.parametrize(
    ("shape", "largest", "expected"),
    [
        ((7, 7, 3), 10, NUMBERS),  # a grid of symbols
        ((7, 7, 3), 255, NUMBERS),  # too small to convolve
        ((19, 19, 3), 10, NUMBERS),
        ((3, 19, 19), 10, NUMBERS),
        ((19, 19, 3), 255, ("cnn", "image", 1 / 255)),
        ((3, 19, 19), 255, ("cnn", "image", 1 / 255)),
        ((84, 84, 3), 10, NUMBERS),
        ((84, 84, 3), 33, ("cnn", "image", 1 / 255)),
        ((84, 84, 3), 0, ("cnn", "image", 1 / 255)),  # a black screen says nothing
        ((84, 84), 255, ("cnn", "image", 1 / 255)),
        ((21, 79), 10, NUMBERS),
        ((147,), 10, NUMBERS),
        ((0, 19, 3), 0, NUMBERS),
    ],
)
def test_bytes_are_pictures_or_symbols_by_what_is_seen(
    shape: tuple[int, ...], largest: int, expected: tuple[str, str, float], dtype: Any
) -> None:
    space = spaces.Box(0, 255, shape, dtype)
    first = np.full((1, *shape), largest, dtype)
    found = build_spec(space, TWO, ModelConfig(), first=first)
    (leaf,) = found.pipeline.leaves
    assert (found.network, leaf.kind, leaf.scale) == (expected[0], expected[1], pytest.approx(expected[2]))
    assert is_picture(space_leaves(space, "observation")[0], first) == (expected is not NUMBERS)
    assert needs_look(space) == (len(shape) > 1 and 0 not in shape)
    assert needs_look(space, first) == (needs_look(space) and largest <= 32)
    # a run that goes on keeps what it began with
    assert build_spec(space, TWO, ModelConfig(), like=found).pipeline == found.pipeline


@pytest.mark.parametrize(
    ("space", "seen", "scale"),
    [
        (spaces.Box(0, 1, (36, 36, 3), np.float32), None, 1.0),
        (spaces.Box(-1, 1, (36, 36, 3), np.float32), None, 1.0),
        (spaces.Box(-128, 127, (36, 36, 3), np.int8), None, 1 / 128),
        (spaces.Box(0, 65535, (36, 36, 1), np.uint16), None, 1 / 65535),
        (spaces.Box(-INF, INF, (36, 36, 3), np.float32), 200, 1 / 200),  # what has no bounds is scaled by what is seen
        (spaces.Box(-INF, INF, (36, 36, 3), np.int32), 200, 1 / 200),
        (spaces.Box(-INF, INF, (36, 36, 3), np.float32), None, 1.0),
    ],
)
def test_pictures_of_any_dtype_are_scaled(space: spaces.Box, seen: float | None, scale: float) -> None:
    first = None if seen is None else np.full((1, *space.shape), seen, space.dtype)
    (leaf,) = build_spec(space, TWO, ModelConfig(), first=first).pipeline.leaves
    assert (leaf.kind, leaf.scale) == ("image", pytest.approx(scale))


def test_symbols_are_scaled_by_what_is_seen_where_a_cnn_is_asked_for() -> None:
    first = np.full((1, 7, 7, 3), 10, np.uint8)
    (leaf,) = build_spec(bytes_of(7, 7, 3), TWO, ModelConfig(network="cnn"), first=first).pipeline.leaves
    assert (leaf.kind, leaf.scale) == ("image", pytest.approx(0.1))
