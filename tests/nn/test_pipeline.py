"""From raw observations to network inputs: encodings by hand; a step at a time equals a whole fragment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from raypid.nn.catalog import build_spec
from raypid.nn.pipeline import Inputs, Pipeline, nest
from raypid.ops.normalizer import moments_of
from raypid.settings.config import ModelConfig
from raypid.types import tree_leaves, tree_map

F = np.float32


def pipeline(space: Any, *, network: str = "auto", **settings: Any) -> Pipeline:
    return Pipeline(build_spec(space, spaces.Discrete(2), ModelConfig(network=network), **settings).pipeline)


def encode(space: Any, obs: Any, **settings: Any) -> Inputs:
    inputs, state = pipeline(space, **settings).step(obs, None, np.ones(2, bool))
    assert state is None
    return inputs


def test_discrete_is_one_hot_from_its_start() -> None:
    inputs = encode(spaces.Discrete(3, start=5), np.array([5, 7]))
    assert inputs.vector.tolist() == [[1, 0, 0], [0, 0, 1]] and inputs.vector.dtype == F
    assert not inputs.images and inputs.mask is None


def test_multi_discrete_is_one_hot_each() -> None:
    space = spaces.MultiDiscrete([2, 3], start=[1, -1])
    assert encode(space, np.array([[1, -1], [2, 1]])).vector.tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 0, 1]]
    square = spaces.MultiDiscrete(np.array([[2, 2], [3, 2]]))
    vector = encode(square, np.array([[[0, 1], [2, 0]], [[1, 1], [0, 1]]])).vector
    assert vector.tolist() == [[1, 0, 0, 1, 0, 0, 1, 1, 0], [0, 1, 0, 1, 1, 0, 0, 0, 1]]


def test_multi_binary_and_boxes_are_flattened() -> None:
    bits = np.array([[0, 1, 1], [1, 0, 0]], np.int8)
    assert encode(spaces.MultiBinary(3), bits).vector.tolist() == bits.tolist()
    box = np.arange(8, dtype=np.float64).reshape(2, 2, 2)
    inputs = encode(spaces.Box(-9, 9, (2, 2), np.float64), box)
    assert inputs.vector.tolist() == box.reshape(2, 4).tolist() and inputs.vector.dtype == F
    assert encode(spaces.Box(-9, 9, (), F), np.array([1.5, 2], F)).vector.tolist() == [[1.5], [2]]


def test_numbers_enter_as_they_are() -> None:
    vector = encode(spaces.Box(0, 255, (2,), np.uint8), np.array([[0, 255], [51, 102]], np.uint8)).vector
    np.testing.assert_array_equal(vector, [[0, 255], [51, 102]])
    board = np.zeros((2, 10, 5), np.uint8)
    board[0, 3, 2] = board[1, 9, 4] = 1
    vector = encode(spaces.Box(0, 1, (10, 5), np.uint8), board).vector
    assert vector.sum(1).tolist() == [1, 1] and vector[0, 17] == vector[1, 49] == 1


NESTED = spaces.Dict(
    a=spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-9, 9, (2,), F))),
    b=spaces.MultiBinary(2),
    c=spaces.MultiDiscrete([2, 3]),
    d=spaces.Dict(e=spaces.Box(-9, 9, (2, 1), np.float64), f=spaces.Box(0, 255, (20, 24, 3), np.uint8)),
)


def nested_obs(*lead: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return {
        "a": {"0": rng.integers(1, 4, lead), "1": rng.normal(size=(*lead, 2)).astype(F)},
        "b": rng.integers(2, size=(*lead, 2)).astype(np.int8),
        "c": rng.integers([2, 3], size=(*lead, 2)),
        "d": {"e": rng.normal(size=(*lead, 2, 1)), "f": rng.integers(256, size=(*lead, 20, 24, 3)).astype(np.uint8)},
    }


def test_nested_spaces_put_numbers_before_one_hots() -> None:
    obs = nested_obs(2)
    inputs = encode(NESTED, obs)
    hot = [np.eye(3)[obs["a"]["0"] - 1], np.eye(2)[obs["c"][:, 0]], np.eye(3)[obs["c"][:, 1]]]
    expected = np.concatenate([obs["a"]["1"], obs["b"], obs["d"]["e"][..., 0], *hot], 1)
    np.testing.assert_allclose(inputs.vector, expected, rtol=1e-6)
    assert list(inputs.images) == ["d/f"] and inputs.images["d/f"].dtype == np.uint8
    np.testing.assert_array_equal(inputs.images["d/f"], np.moveaxis(obs["d"]["f"], -1, 1))


@pytest.mark.parametrize(
    ("shape", "expected"), [((3, 32, 48), (3, 32, 48)), ((32, 48, 3), (3, 32, 48)), ((32, 48), (1, 32, 48))]
)
def test_images(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    image = np.random.default_rng(0).integers(256, size=(2, *shape)).astype(np.uint8)
    p = pipeline(space)
    inputs, _ = p.step(image, None, np.ones(2, bool))
    assert p.spec.images == (("", expected),) and p.spec.leaves[0].scale == pytest.approx(1 / 255)
    assert inputs.images[""].shape == (2, *expected) and inputs.vector.shape == (2, 0)
    channel = {(3, 32, 48): image[:, 1:2], (32, 48, 3): image[..., 1], (32, 48): image}[shape].reshape(2, 32, 48)
    np.testing.assert_array_equal(inputs.images[""][:, 1 if expected[0] == 3 else 0], channel)
    flat, _ = pipeline(space, network="mlp").step(image, None, np.ones(2, bool))
    np.testing.assert_allclose(flat.vector, image.reshape(2, -1))


def test_action_mask_is_no_input() -> None:
    space = spaces.Dict(action_mask=spaces.MultiBinary(2), x=spaces.Box(-1, 1, (3,), F))
    obs = {"action_mask": np.array([[0, 1], [1, 1]], np.int8), "x": np.ones((2, 3), F)}
    for stack in (1, 3):
        p = pipeline(space, frame_stack=stack)
        inputs, _ = p.step(obs, p.initial_state(2), np.ones(2, bool))
        assert inputs.vector.shape == (2, 3 * stack)
        assert inputs.mask is not None and inputs.mask.tolist() == [[False, True], [True, True]]


def test_mask_of_any_shape() -> None:
    """A mask may come as [parts, choices]."""
    mask = np.array([[[0, 1], [1, 0]], [[1, 1], [0, 1]]], np.int8)
    space = spaces.Dict(action_mask=spaces.MultiBinary([2, 2]), x=spaces.Box(-1, 1, (3,), F))
    p = Pipeline(build_spec(space, spaces.MultiDiscrete([2, 2]), ModelConfig()).pipeline)
    inputs, _ = p.step({"action_mask": mask, "x": np.ones((2, 3), F)}, None, np.ones(2, bool))
    assert inputs.mask is not None and inputs.mask.tolist() == mask.astype(bool).reshape(2, 4).tolist()


def test_normalisation() -> None:
    space = spaces.Dict(a=spaces.Box(-99, 99, (2,), F), k=spaces.Discrete(2))
    p = pipeline(space, normalize=True)
    rows = np.array([[1.0, -50], [3, 50]])
    obs = {"a": rows.astype(F), "k": np.array([0, 1])}
    assert p.step(obs, None, np.ones(2, bool))[0].vector.tolist() == [[1, -10, 1, 0], [3, 10, 0, 1]]  # nothing seen yet
    assert p.normalized_size == 2
    p.load(moments_of(rows))
    np.testing.assert_allclose(p.step(obs, None, np.ones(2, bool))[0].vector, [[-1, -1, 1, 0], [1, 1, 0, 1]], rtol=1e-6)
    np.testing.assert_array_equal(p.raw_vector(obs), rows)
    far = {"a": np.array([[100, 0], [-100, 0]], F), "k": np.array([0, 0])}
    assert p.step(far, None, np.ones(2, bool))[0].vector[:, 0].tolist() == [10, -10]
    np.testing.assert_array_equal(obs["a"], rows)  # the raw observation is not written


def test_frame_stack_by_hand() -> None:
    p = pipeline(spaces.Box(-99, 99, (1,), F), frame_stack=3)
    state, seen = p.initial_state(2), []
    #          stream 0: an episode of 2 rows, then a new one; stream 1: one long episode
    for obs, first in [([1, 10], [1, 1]), ([2, 11], [0, 0]), ([7, 12], [1, 0]), ([8, 13], [0, 0])]:
        inputs, state = p.step(np.array(obs, F)[:, None], state, np.array(first, bool))
        seen.append(inputs.vector.tolist())
    assert [s[0] for s in seen] == [[1, 1, 1], [1, 1, 2], [7, 7, 7], [7, 7, 8]]
    assert [s[1] for s in seen] == [[10, 10, 10], [10, 10, 11], [10, 11, 12], [11, 12, 13]]


def test_stacked_images_are_stacked_on_channels() -> None:
    p = pipeline(spaces.Box(0, 255, (20, 20, 3), np.uint8), frame_stack=2)
    state = p.initial_state(1)
    for value in (7, 9):
        inputs, state = p.step(np.full((1, 20, 20, 3), value, np.uint8), state, np.array([value == 7]))
    assert inputs.images[""].shape == (1, 6, 20, 20) == (1, *p.spec.images[0][1])
    assert inputs.images[""][0, :, 0, 0].tolist() == [7, 7, 7, 9, 9, 9]


def equal(a: Inputs, b: Inputs) -> None:
    np.testing.assert_array_equal(a.vector, b.vector)
    assert list(a.images) == list(b.images)
    for path in a.images:
        np.testing.assert_array_equal(a.images[path], b.images[path])


@pytest.mark.parametrize("frame_stack", [1, 2, 4])
@pytest.mark.parametrize("space", ["nested", "vector", "masked"])
def test_a_fragment_equals_its_steps(space: str, frame_stack: int) -> None:
    """Two fragments in a row, with resets inside and on their first rows, NEXT_STEP reset rows among them."""
    t, b = 7, 3
    rng = np.random.default_rng(0)
    the_space: Any = {"nested": NESTED, "vector": spaces.Box(-9, 9, (2,), F)}.get(space)
    if space == "masked":
        the_space = spaces.Dict(action_mask=spaces.MultiBinary(2), x=spaces.Box(-9, 9, (2,), F))
    acting, whole = (pipeline(the_space, frame_stack=frame_stack, normalize=True) for _ in range(2))
    rows = rng.normal(1, 2, (30, acting.normalized_size))
    acting.load(moments_of(rows))
    whole.load(moments_of(rows))
    state = acting.initial_state(b)
    for fragment in range(2):
        if space == "nested":
            obs = nested_obs(t, b, seed=fragment)
        else:
            obs = rng.normal(size=(t, b, 2)).astype(F)
            obs = {"action_mask": rng.integers(2, size=(t, b, 2)), "x": obs} if space == "masked" else obs
        first = rng.random((t, b)) < 0.3
        first[0] = True if fragment == 0 else [False, True, False]
        at_start = state
        steps = []
        for row in range(t):
            inputs, state = acting.step(tree_map(lambda x, row=row: x[row], obs), state, first[row])
            steps.append(inputs)
        sequence, stacks = whole.sequence(obs, at_start, first)
        assert sequence.vector.shape[:2] == (t, b)
        for row, inputs in enumerate(steps):
            equal(inputs, Inputs(sequence.vector[row], {k: v[row] for k, v in sequence.images.items()}))
            if space == "masked":
                assert inputs.mask is not None and sequence.mask is not None
                np.testing.assert_array_equal(inputs.mask, sequence.mask[row])
        # a true last observation after row (r, s) is stacked as if it had been the next row of that stream
        at, stream = np.array([0, 4, 4, 6]), np.array([2, 0, 1, 1])
        final = tree_map(lambda x, at=at, stream=stream: x[(at + 2) % t, stream], obs)
        after = whole.after(final, stacks, at, stream)
        for k, (r, s) in enumerate(zip(at, stream)):
            replay = acting.initial_state(b) if fragment == 0 else at_start
            longer = tree_map(lambda x, r=r: x[: r + 1], obs)
            _, past = whole.sequence(longer, replay, first[: r + 1])
            following = tree_map(lambda x, k=k: np.repeat(x[k : k + 1], b, 0), final)
            previous = None if past is None else tree_map(lambda x: x[-1][:, 1:], past)
            expected, _ = acting.step(following, previous, np.zeros(b, bool))
            only = Inputs(after.vector[k], {p: v[k] for p, v in after.images.items()})
            equal(only, Inputs(expected.vector[s], {p: v[s] for p, v in expected.images.items()}))


def test_flatten_and_take() -> None:
    obs = nested_obs(4, 3)
    p = pipeline(NESTED)
    sequence, _ = p.sequence(obs, None, np.zeros((4, 3), bool))
    flat = sequence.flatten()
    assert flat.vector.shape[0] == flat.images["d/f"].shape[0] == 12
    np.testing.assert_array_equal(flat.vector[5], sequence.vector[1, 2])
    taken = flat.take(np.array([5, 0]))
    np.testing.assert_array_equal(taken.images["d/f"][0], sequence.images["d/f"][1, 2])


def test_nest_is_the_inverse_of_tree_leaves() -> None:
    tree = {"a": {"0": 1, "1": {"x": 2}}, "b": 3}
    assert nest(dict(tree_leaves(tree))) == tree
    assert nest({"": 5}) == 5
