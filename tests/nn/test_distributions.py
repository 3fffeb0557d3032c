"""Distributions against torch.distributions, in NumPy and in torch; sampling; masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions as td

from raypid.nn.distributions import ActionDistribution, JointDistribution
from raypid.nn.network_spec import ActionLeaf

N = 11
LEAVES = {
    "categorical": ActionLeaf(path="", kind="categorical", shape=(), nvec=(4,), start=(0,)),
    "multi_categorical": ActionLeaf(path="", kind="multi_categorical", shape=(3,), nvec=(2, 4, 3), start=(0, 0, 0)),
    "bernoulli": ActionLeaf(path="", kind="bernoulli", shape=(3,)),
    "gaussian": ActionLeaf(path="", kind="gaussian", shape=(3,)),
    "squashed_gaussian": ActionLeaf(path="", kind="squashed_gaussian", shape=(3,)),
    "deterministic": ActionLeaf(path="", kind="deterministic", shape=(3,)),
}
LOG_STD = np.array([-0.5, 0.1, 0.4], np.float32)


def random_params(leaf: ActionLeaf, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 1.2, (N, leaf.num_params)).astype(np.float32)


def reference(kind: str, params: torch.Tensor, log_std: torch.Tensor) -> tuple[Any, Any]:
    """log_prob and entropy by torch.distributions; entropy None where there is no closed form."""
    if kind == "categorical":
        d: Any = td.Categorical(logits=params)
        return d.log_prob, d.entropy()
    if kind == "multi_categorical":
        parts = [td.Categorical(logits=p) for p in params.split([2, 4, 3], -1)]
        return (
            lambda a: sum(p.log_prob(a[..., i]) for i, p in enumerate(parts)),
            sum(p.entropy() for p in parts),
        )
    if kind == "bernoulli":
        d = td.Independent(td.Bernoulli(logits=params), 1)
        return lambda a: d.log_prob(a.float()), d.entropy()
    if kind == "gaussian":
        d = td.Independent(td.Normal(params, log_std.exp()), 1)
        return d.log_prob, d.entropy()
    mean, raw = params.split(3, -1)
    normal = td.Normal(mean, (-5 + 3.5 * (raw.tanh() + 1)).exp())
    d = td.Independent(td.TransformedDistribution(normal, [td.TanhTransform()]), 1)
    return d.log_prob, None


def test_all_have_one_base() -> None:
    assert all(
        isinstance(part, ActionDistribution) for leaf in LEAVES.values() for part in JointDistribution((leaf,)).parts
    )


@pytest.mark.parametrize("kind", [k for k in LEAVES if k != "deterministic"])
def test_against_torch_distributions(kind: str) -> None:
    leaf = LEAVES[kind]
    d = JointDistribution((leaf,))
    params = random_params(leaf)
    action = d.sample(params, LOG_STD, np.random.default_rng(1))
    if kind == "squashed_gaussian":
        # the reference works in float64 and its inverse is exact; near the edge float32 has no digits left
        action = np.clip(action, -0.999, 0.999)
    log_prob, entropy = reference(kind, torch.from_numpy(params).double(), torch.from_numpy(LOG_STD).double())
    expected = log_prob(torch.from_numpy(action).double() if action.dtype == np.float32 else torch.from_numpy(action))
    ours = d.log_prob(params, LOG_STD, action)
    tensors = torch.from_numpy(params), torch.from_numpy(LOG_STD)
    in_torch = d.log_prob(*tensors, torch.from_numpy(action))
    assert ours.shape == in_torch.shape == (N,)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ours, in_torch.numpy(), rtol=1e-3, atol=1e-4)
    own_entropy = d.entropy(params, LOG_STD)
    np.testing.assert_allclose(own_entropy, d.entropy(*tensors).numpy(), rtol=1e-4, atol=1e-5)
    assert own_entropy.shape == (N,)
    if entropy is not None:
        np.testing.assert_allclose(own_entropy, entropy.numpy(), rtol=1e-4, atol=1e-5)


def test_leading_axes() -> None:
    """A fragment [T, B, P] gives the numbers of its rows."""
    for kind, leaf in LEAVES.items():
        d, params = JointDistribution((leaf,)), random_params(leaf)[:10]
        action = d.sample(params, LOG_STD, np.random.default_rng(1))
        flat = d.log_prob(params, LOG_STD, action)
        shaped = d.log_prob(params.reshape(5, 2, -1), LOG_STD, action.reshape(5, 2, *action.shape[1:]))
        np.testing.assert_allclose(shaped.ravel(), flat, rtol=1e-5, atol=1e-6, err_msg=kind)
        assert d.entropy(params.reshape(5, 2, -1), LOG_STD).shape == (5, 2)


def frequencies(kind: str, params: Any, num: int = 20_000) -> Any:
    leaf = LEAVES[kind]
    many = np.broadcast_to(np.asarray(params, np.float32), (num, leaf.num_params))
    return JointDistribution((leaf,)).sample(many, LOG_STD, np.random.default_rng(0))


def test_categorical_frequencies() -> None:
    p = np.array([0.1, 0.2, 0.3, 0.4])
    drawn = frequencies("categorical", np.log(p) + 3)
    assert drawn.dtype == np.int64
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / len(drawn), p, atol=0.02)


def test_multi_categorical_frequencies() -> None:
    p = [np.array([0.2, 0.8]), np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.5, 0.4, 0.1])]
    drawn = frequencies("multi_categorical", np.log(np.concatenate(p)))
    for i, expected in enumerate(p):
        counts = np.bincount(drawn[:, i], minlength=len(expected)) / len(drawn)
        np.testing.assert_allclose(counts, expected, atol=0.02)
    assert abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.04  # drawn independently


def test_bernoulli_frequencies() -> None:
    p = np.array([0.1, 0.5, 0.8])
    drawn = frequencies("bernoulli", np.log(p / (1 - p)))
    assert set(np.unique(drawn)) == {0, 1}
    np.testing.assert_allclose(drawn.mean(0), p, atol=0.02)


def test_gaussian_moments() -> None:
    drawn = frequencies("gaussian", [1.0, -2.0, 0.0])
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn.mean(0), [1, -2, 0], atol=0.06)
    np.testing.assert_allclose(drawn.std(0), np.exp(LOG_STD), rtol=0.05)


def test_squashed_gaussian_moments() -> None:
    raw = [np.arctanh((np.log(s) + 5) / 3.5 - 1) for s in (0.5, 1.0, 0.2)]
    drawn = frequencies("squashed_gaussian", [0.5, -1.0, 0.0, *raw])
    assert (np.abs(drawn) < 1).all()
    np.testing.assert_allclose(np.arctanh(drawn).mean(0), [0.5, -1, 0], atol=0.04)
    np.testing.assert_allclose(np.arctanh(drawn).std(0), [0.5, 1, 0.2], rtol=0.05)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 0.3), (0.4, 0.6), (-1.0, 0.5)])
def test_squashed_gaussian_integrates_to_one(mean: float, deviation: float) -> None:
    leaf = ActionLeaf(path="", kind="squashed_gaussian", shape=(1,))
    raw = np.arctanh((np.log(deviation) + 5) / 3.5 - 1)
    action = np.linspace(-1, 1, 40_001)[1:-1, None]
    params = np.broadcast_to(np.array([mean, raw]), (len(action), 2))
    density = np.exp(JointDistribution((leaf,)).log_prob(params, None, action))
    assert density.sum() * (2 / 40_000) == pytest.approx(1.0, abs=1e-3)


def test_squashed_gaussian_entropy_of_small_deviations() -> None:
    leaf = LEAVES["squashed_gaussian"]
    d = JointDistribution((leaf,))
    raw = np.arctanh((np.log(0.02) + 5) / 3.5 - 1)
    params = np.broadcast_to(np.array([0.3, -0.8, 0.0, raw, raw, raw], np.float32), (20_000, 6))
    drawn = d.sample(params, None, np.random.default_rng(0))
    assert -d.log_prob(params, None, drawn).mean() == pytest.approx(d.entropy(params, None)[0], abs=0.05)


def test_squashed_gaussian_at_the_edge_is_finite() -> None:
    leaf = LEAVES["squashed_gaussian"]
    d = JointDistribution((leaf,))
    params = torch.full((2, 6), 20.0, requires_grad=True)
    log_prob = d.log_prob(params, None, torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, 1.0]]))
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all() and params.grad is not None and torch.isfinite(params.grad).all()
    assert np.isfinite(d.log_prob(params.detach().numpy(), None, np.ones((2, 3), np.float32))).all()


def test_modes() -> None:
    d = {k: JointDistribution((leaf,)) for k, leaf in LEAVES.items()}
    assert d["categorical"].mode(np.array([[0.0, 3, 1, 2]])).tolist() == [1]
    multi = np.array([[1.0, 0, 0, 0, 5, 0, 0, 0, 2]])
    assert d["multi_categorical"].mode(multi).tolist() == [[0, 2, 2]]
    assert d["bernoulli"].mode(np.array([[-1.0, 2, 0.1]])).tolist() == [[0, 1, 1]]
    mean = np.array([[0.5, -2.0, 0.0]], np.float32)
    assert d["gaussian"].mode(mean).tolist() == mean.tolist()
    np.testing.assert_allclose(d["squashed_gaussian"].mode(np.concatenate([mean, mean], 1)), np.tanh(mean))
    assert d["deterministic"].mode(mean).tolist() == mean.tolist()
    assert d["deterministic"].sample(mean, None, np.random.default_rng(0)).tolist() == mean.tolist()


@pytest.mark.parametrize("kind", ["categorical", "multi_categorical"])
def test_masked_choices_are_never_taken(kind: str) -> None:
    leaf = LEAVES[kind]
    d = JointDistribution((leaf,))
    rng = np.random.default_rng(0)
    params = np.repeat(rng.normal(0, 30, (50, leaf.num_params)).astype(np.float32), 100, 0)
    mask = rng.random((50, leaf.mask_size)) < 0.5
    for end, n in zip(np.cumsum(leaf.nvec), leaf.nvec):  # at least one choice of each
        mask[np.arange(50), end - n + rng.integers(n, size=50)] = True
    mask = np.repeat(mask, 100, 0)
    masked = d.masked(params, mask)
    offsets = np.concatenate([[0], np.cumsum(leaf.nvec)[:-1]])
    for action in (d.sample(masked, None, rng), d.mode(masked)):
        chosen = (action[:, None] if kind == "categorical" else action) + offsets
        assert np.take_along_axis(mask, chosen, 1).all()
    # probability 0, no gradient, and the others share what is left
    tensor = torch.from_numpy(params).requires_grad_()
    in_torch = d.masked(tensor, torch.from_numpy(mask))
    np.testing.assert_array_equal(in_torch.detach().numpy(), masked)
    log_prob = d.log_prob(in_torch, None, torch.from_numpy(action))
    (log_prob + d.entropy(in_torch, None)).sum().backward()
    assert tensor.grad is not None and (tensor.grad[~torch.from_numpy(mask)] == 0).all()
    assert torch.isfinite(tensor.grad).all() and np.isfinite(d.entropy(masked, None)).all()


def test_no_mask_leaves_the_parameters() -> None:
    params = random_params(LEAVES["categorical"])
    assert JointDistribution((LEAVES["categorical"],)).masked(params, None) is params


def at(leaf: ActionLeaf, path: str) -> ActionLeaf:
    return ActionLeaf(**{**{n: getattr(leaf, n) for n in leaf.__dataclass_fields__}, "path": path})


def joint() -> tuple[JointDistribution, list[tuple[ActionLeaf, Any, Any]]]:
    """Five parts, with two Gaussians that share log_std, and the parameters of each part."""
    kinds = ["gaussian", "categorical", "bernoulli", "gaussian", "multi_categorical"]
    leaves = tuple(at(LEAVES[k], f"p/{i}") for i, k in enumerate(kinds))
    scales = [LOG_STD, None, None, LOG_STD - 1, None]
    return JointDistribution(leaves), [(a, random_params(a, i), s) for i, (a, s) in enumerate(zip(leaves, scales))]


def test_joint_is_the_product_of_its_parts() -> None:
    d, parts = joint()
    params = np.concatenate([p for _, p, _ in parts], 1)
    log_std = np.concatenate([LOG_STD, LOG_STD - 1])
    action = d.sample(params, log_std, np.random.default_rng(0))
    assert list(action) == [leaf.path for leaf, _, _ in parts]
    single = [(JointDistribution((at(leaf, ""),)), leaf.path, p, s) for leaf, p, s in parts]
    log_prob = sum(s.log_prob(p, scale, action[path]) for s, path, p, scale in single)
    entropy = sum(s.entropy(p, scale) for s, path, p, scale in single)
    np.testing.assert_allclose(d.log_prob(params, log_std, action), log_prob, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(d.entropy(params, log_std), entropy, rtol=1e-4, atol=1e-4)
    for s, path, p, _ in single:
        np.testing.assert_array_equal(d.mode(params)[path], s.mode(p))
    tensors = {k: torch.from_numpy(v) for k, v in action.items()}
    in_torch = d.log_prob(torch.from_numpy(params), torch.from_numpy(log_std), tensors)
    np.testing.assert_allclose(in_torch.numpy(), log_prob, rtol=1e-3, atol=1e-3)


def test_joint_mask_reaches_only_its_choices() -> None:
    d, parts = joint()
    params = np.concatenate([p for _, p, _ in parts], 1)
    mask = np.ones((N, 4 + 9), bool)
    mask[:, 1], mask[:, 4 + 2] = False, False  # the categorical's 1; of the multi-categorical's second part the 0
    masked = d.masked(params, mask)
    changed = np.flatnonzero((masked != params).any(0)).tolist()
    assert changed == [3 + 1, 3 + 4 + 3 + 3 + 2]
    action = d.sample(masked, np.concatenate([LOG_STD, LOG_STD]), np.random.default_rng(0))
    assert (action["p/1"] != 1).all() and (action["p/4"][:, 1] != 0).all()
