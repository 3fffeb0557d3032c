"""Spaces: their parts, values put together as environments have them, plain data and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from raypid.envs.observation_checks import from_tree, to_tree
from raypid.spaces import SpaceError, space_from_json, space_leaves, space_to_json
from raypid.types import tree_map

BOX = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, np.inf], np.float32))
NESTED = spaces.Dict(
    a=spaces.Tuple((spaces.Discrete(3, start=-1), BOX)),
    b=spaces.Dict(c=spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]), d=spaces.MultiBinary([2, 2])),
    e=spaces.Box(0, 255, (4, 4, 3), np.uint8),
)


def test_leaves_tell_place_shape_and_values() -> None:
    found = [(leaf.path, leaf.keys, leaf.kind, leaf.shape, str(leaf.dtype)) for leaf in space_leaves(NESTED, "action")]
    assert found == [
        ("a/0", ("a", 0), "Discrete", (), "int64"),
        ("a/1", ("a", 1), "Box", (2,), "float32"),
        ("b/c", ("b", "c"), "MultiDiscrete", (2, 2), "int64"),
        ("b/d", ("b", "d"), "MultiBinary", (2, 2), "int8"),
        ("e", ("e",), "Box", (4, 4, 3), "uint8"),
    ]
    ranges = {leaf.path: (leaf.nvec, leaf.start) for leaf in space_leaves(NESTED, "action") if leaf.nvec}
    assert ranges == {"a/0": ((3,), (-1,)), "b/c": ((2, 3, 4, 5), (0, 1, 2, 3))}
    (alone,) = space_leaves(BOX, "observation")
    assert (alone.path, alone.keys, alone.space) == ("", (), BOX)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (np.zeros((3, 4)), "the action space is numpy.ndarray, .* all from gymnasium.spaces"),
        (spaces.Text(3), "the action space is Text, which cannot be handled"),
        (spaces.Dict(x=spaces.Tuple((BOX, spaces.Sequence(BOX)))), "the action space at 'x/1' is Sequence"),
        (spaces.Dict(), "is empty; it needs at least one part"),
        (spaces.Tuple((spaces.Dict(),)), "is empty"),
    ],
)
def test_unsupported_spaces_are_named(space: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        space_leaves(space, "action")


def test_members_are_assembled_as_environments_have_them() -> None:
    tree = tree_map(lambda batch: batch[0], to_tree(NESTED, [NESTED.sample()]))
    again: Any = from_tree(NESTED, tree)
    assert NESTED.contains(again) and isinstance(again["a"], tuple)


def test_plain_data_is_json_and_comes_back() -> None:
    assert space_from_json(json.loads(json.dumps(space_to_json(NESTED)))) == NESTED
    assert space_to_json(BOX)["low"] == [-1.0, "-inf"]
    assert space_to_json(spaces.Box(0, 255, (84, 84), np.uint8))["high"] == [255]
    with pytest.raises(SpaceError, match="Text"):
        space_to_json(spaces.Tuple((spaces.Text(3),)))
