"""V-trace: golden numbers, the on-policy case, ends of episodes, NumPy and torch alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raypid.ops.returns import gae
from raypid.ops.vtrace import vtrace

F = np.float32
T, B = 9, 4


def column(*numbers: float) -> Any:
    return np.array(numbers, F)[:, None]


def test_by_hand() -> None:
    """Two rows of one stream, gamma 0.5: rho is clipped on the first, c too."""
    ratio, reward = column(3, 0.5), column(1, 2)
    value, following = column(1, 2), column(2, 4)
    discount, passes = column(0.5, 0.5), column(1, 0)
    target, advantage = vtrace(ratio, reward, value, following, discount, passes, rho_clip=2.0, c_clip=1.0)
    # delta = 2 * (1 + 0.5 * 2 - 1) = 2 and 0.5 * (2 + 0.5 * 4 - 2) = 1; error[0] = 2 + 0.5 * 1 * 1 = 2.5
    np.testing.assert_allclose(target.ravel(), [3.5, 3.0])
    np.testing.assert_allclose(advantage.ravel(), [2 * (1 + 0.5 * 3.0 - 1), 1.0])


def random_rows(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, T, B)) < 0.2
    valid = rng.random((T, B)) < 0.8
    passes = np.zeros((T, B), F)
    passes[:-1] = ~(terminated | truncated)[:-1] & valid[:-1] & valid[1:]
    return {
        "ratio": (rng.uniform(0.2, 3, (T, B)) * valid).astype(F),
        "reward": rng.normal(size=(T, B)).astype(F),
        "value": rng.normal(size=(T, B)).astype(F),
        "next_value": rng.normal(size=(T, B)).astype(F),
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
        "passes": passes,
    }


@pytest.mark.parametrize("lambda_", [1.0, 0.7])
def test_on_policy_it_is_the_lambda_return(lambda_: float) -> None:
    rows = random_rows(0)
    goes_on = rows["passes"][:-1] > 0  # there the same observation follows
    rows["next_value"][:-1][goes_on] = rows["value"][1:][goes_on]
    discount = (0.9 * ~rows["terminated"]).astype(F)
    args = (rows["reward"], rows["value"], rows["next_value"])
    target, advantage = vtrace(rows["valid"].astype(F), *args, discount, rows["passes"], lambda_=lambda_)
    ends = (rows["terminated"], rows["truncated"], rows["valid"])
    expected = gae(*args, *ends, 0.9, lambda_)
    np.testing.assert_allclose(target - rows["value"], expected, atol=1e-5)
    if lambda_ == 1.0:
        np.testing.assert_allclose(advantage, expected, atol=1e-5)


def test_the_recursion_of_the_paper() -> None:
    """Equation 1, summed over the rows that follow, stream by stream."""
    r = random_rows(3)
    discount = (0.9 * ~r["terminated"]).astype(F)
    target, advantage = vtrace(
        r["ratio"], r["reward"], r["value"], r["next_value"], discount, r["passes"], rho_clip=1.5, c_clip=0.8
    )
    rho, c = np.minimum(r["ratio"], 1.5), np.minimum(r["ratio"], 0.8)
    delta = rho * (r["reward"] + discount * r["next_value"] - r["value"])
    for b in range(B):
        for s in range(T):
            total, factor = 0.0, 1.0
            for t in range(s, T):
                total += factor * delta[t, b]
                factor *= discount[t, b] * c[t, b] * r["passes"][t, b]
            assert target[s, b] == pytest.approx(r["value"][s, b] + total, abs=1e-5)
            after = target[s + 1, b] if r["passes"][s, b] else r["next_value"][s, b]
            expected = rho[s, b] * (r["reward"][s, b] + discount[s, b] * after - r["value"][s, b])
            assert advantage[s, b] == pytest.approx(expected, abs=1e-5)
    assert not advantage[~r["valid"]].any()


def test_torch_says_the_same() -> None:
    import torch

    r = random_rows(5)
    names = ("ratio", "reward", "value", "next_value")
    args = [*(r[n] for n in names), (0.9 * ~r["terminated"]).astype(F), r["passes"]]
    kept = [a.copy() for a in args]
    ours = vtrace(*args, 1.2, 0.9, 0.95)
    theirs = vtrace(*(torch.from_numpy(a) for a in args), 1.2, 0.9, 0.95)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b.numpy(), atol=1e-6)
    for a, b in zip(args, kept, strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_the_weight_of_a_policy_gradient() -> None:
    r = random_rows(5)
    args = (r["ratio"], r["reward"], r["value"], r["next_value"], (0.9 * ~r["terminated"]).astype(F), r["passes"])
    (target, weighed), (same, plain) = (vtrace(*args, 1.5, 1.0, 0.95, weigh=weigh) for weigh in (True, False))
    np.testing.assert_array_equal(target, same)
    np.testing.assert_allclose(weighed, np.minimum(r["ratio"], 1.5) * plain, rtol=1e-6)
    assert (plain[~r["valid"]] == 0).all() and (plain[r["valid"]] != 0).all()
