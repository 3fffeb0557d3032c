"""Trees and trajectories: joined without mixing streams up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raypid.types import (
    Final,
    Trajectory,
    Weights,
    concat_trajectories,
    flat_views,
    tree_concat,
    tree_leaves,
    tree_map,
    tree_stack,
)

TREE = {"a": np.arange(3), "b": {"0": np.ones((3, 2)), "1": np.zeros(3)}}


def test_tree_map_and_leaves() -> None:
    doubled = tree_map(lambda x, y: x + y, TREE, TREE)
    assert [path for path, _ in tree_leaves(doubled)] == ["a", "b/0", "b/1"]
    assert doubled["b"]["0"].tolist() == [[2, 2]] * 3
    assert list(tree_leaves(5)) == [("", 5)]
    with pytest.raises(AssertionError, match="different structure"):
        tree_map(lambda x, y: x, TREE, {"a": np.zeros(3), "b": np.zeros(3)})


def test_tree_stack_and_concat() -> None:
    stacked, joined = tree_stack([TREE, TREE]), tree_concat([TREE, TREE])
    assert stacked["b"]["0"].shape == (2, 3, 2) and joined["b"]["0"].shape == (6, 2)
    assert tree_concat([TREE]) is TREE


def test_flat_views_share_memory() -> None:
    flat = np.arange(7, dtype=np.float32)
    weights = Weights(0, flat, (("w", (2, 3)), ("b", (1,))))
    views = weights.as_dict()
    views["w"][1, 0] = 30
    assert flat[3] == 30 and views["b"].tolist() == [6]
    assert flat_views(flat, (("scalar", ()),))["scalar"].shape == ()


def part(seed: int, num_streams: int, final: Any = (), version: int = 0) -> Trajectory:
    """Two rows; every column says which part and stream it is of."""
    here = 10 * seed + np.arange(num_streams)

    def column(rows: int = 2) -> Any:
        return np.tile(here, (rows, 1)).astype(np.float32)

    t = Trajectory(
        obs={"x": column(3)[..., None]}, first=np.zeros((3, num_streams), bool), action=column(), reward=column(),
        terminated=np.zeros((2, num_streams), bool), truncated=np.zeros((2, num_streams), bool), valid=column() % 10 != 1,
        behaviour={"log_prob": column(), "value": column(3)}, state={"x": here[:, None, None].astype(np.float32)}, version=version,
    )  # fmt: skip
    if final:
        rows, streams = np.array(final).T
        t.final = Final(rows, streams, {"x": here[streams][:, None].astype(np.float32)})
        t.behaviour["final_value"] = here[streams].astype(np.float32) + 0.5
    return t


def test_counts() -> None:
    t = part(0, 3)
    assert (t.num_rows, t.num_streams, t.num_valid) == (2, 3, 4)


def test_concat_keeps_the_order_of_streams() -> None:
    joined = concat_trajectories([part(1, 2, version=4), part(2, 1, version=3)])
    assert joined.reward.tolist() == [[10, 11, 20]] * 2 and joined.obs["x"][:, :, 0].tolist() == [[10, 11, 20]] * 3
    assert joined.behaviour["value"].shape == (3, 3) and joined.state["x"][:, 0, 0].tolist() == [10, 11, 20]  # type: ignore[index]
    assert joined.version == 3 and joined.final is None and joined.num_valid == 4
    alone = part(1, 2)
    assert concat_trajectories([alone]) is alone


CASES = [([(0, 1), (1, 0)], [(1, 0)]), ([(0, 1)], []), ([], [(0, 0), (1, 1)])]


@pytest.mark.parametrize(("a", "b"), CASES)
def test_concat_moves_final_observations_along(a: Any, b: Any) -> None:
    joined = concat_trajectories([part(1, 2, a), part(2, 3, b)])
    assert joined.final is not None
    assert list(zip(joined.final.t.tolist(), joined.final.b.tolist())) == a + [(t, s + 2) for t, s in b]
    expected = [10 + s for _, s in a] + [20 + s for _, s in b]
    assert joined.final.obs["x"][:, 0].tolist() == expected  # type: ignore[index, call-overload]
    assert joined.behaviour["final_value"].tolist() == [x + 0.5 for x in expected]
    assert joined.behaviour["log_prob"].shape == (2, 5)
