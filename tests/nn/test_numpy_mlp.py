"""The hand-written kernel against torch: same weights, same numbers, same gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from raypid.nn.catalog import build_spec
from raypid.nn.distributions import JointDistribution
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.networks import TorchInputs, TorchNetwork
from raypid.nn.numpy_mlp import SmallNetwork, initial_mlp, orthogonal
from raypid.nn.pipeline import Inputs
from raypid.settings.config import ModelConfig

ACTIONS = {"categorical": spaces.Discrete(4), "gaussian": spaces.Box(-1, 1, (3,))}
HIDDEN = [(), (16,), (16, 12), (8, 12, 10)]


def make_spec(hidden: Any, kind: str, activation: str, shared: bool) -> NetworkSpec:
    model = ModelConfig(network="mlp", hidden=hidden or (1,), activation=activation, shared=shared)  # type: ignore[arg-type]
    spec = build_spec(spaces.Box(-1, 1, (5,)), ACTIONS[kind], model)
    return NetworkSpec(**{**{n: getattr(spec, n) for n in spec.__dataclass_fields__}, "hidden": hidden})


def pair(spec: NetworkSpec, seed: int = 0) -> tuple[SmallNetwork, TorchNetwork]:
    """Both networks with the same weights, all of them of the same order of size."""
    theirs = TorchNetwork(spec)
    flat = np.random.default_rng(seed).normal(0, 0.4, len(theirs.numpy())).astype(np.float32)
    theirs.load(flat)
    return SmallNetwork(spec, flat), theirs


every_network = pytest.mark.parametrize(
    ("hidden", "kind", "activation", "shared"),
    [
        (hidden, kind, activation, shared)
        for hidden in HIDDEN
        for kind in ACTIONS
        for activation in ("tanh", "relu", "silu")
        for shared in (False, True)
        if hidden or (activation == "tanh" and not shared)
    ],
)


@every_network
def test_forward_equals_torch(hidden: Any, kind: str, activation: str, shared: bool) -> None:
    ours, theirs = pair(make_spec(hidden, kind, activation, shared))
    assert ours.table == theirs.table
    x = np.random.default_rng(1).normal(0, 2, (7, 5)).astype(np.float32)
    inputs, kept = Inputs(x, {}), x.copy()
    params, value, _ = theirs.policy(inputs)
    own_params, own_value, _ = ours.forward(x)
    np.testing.assert_allclose(own_params, params, atol=1e-5)
    np.testing.assert_allclose(own_value, value, atol=1e-5)
    np.testing.assert_allclose(ours.policy(inputs)[0], params, atol=1e-5)
    np.testing.assert_allclose(ours.value(inputs), theirs.value(inputs), atol=1e-5)
    np.testing.assert_array_equal(x, kept)


@every_network
def test_backward_equals_autograd(hidden: Any, kind: str, activation: str, shared: bool) -> None:
    """The gradient of a random linear function of params, value, log_prob and entropy."""
    ours, theirs = pair(make_spec(hidden, kind, activation, shared))
    rng = np.random.default_rng(2)
    x = rng.normal(size=(9, 5)).astype(np.float32)
    action: Any = rng.integers(4, size=9) if kind == "categorical" else rng.normal(size=(9, 3)).astype(np.float32)
    by_log_prob, by_value = rng.normal(size=(2, 9)).astype(np.float32)
    by_entropy = 0.7

    params, value = theirs(TorchInputs(Inputs(x, {}), torch.device("cpu")))
    distribution = JointDistribution(ours.spec.actions)
    log_prob = distribution.log_prob(params, theirs.log_std, torch.from_numpy(action))
    entropy = distribution.entropy(params, theirs.log_std)
    loss = (log_prob * torch.from_numpy(by_log_prob)).sum() + (value * torch.from_numpy(by_value)).sum()
    (loss + by_entropy * entropy.sum()).backward()

    own_params, _, layers = ours.forward(x)
    own_log_prob, d_log_prob, own_entropy, d_entropy = ours.logp_and_slopes(own_params, action)
    np.testing.assert_allclose(own_log_prob, log_prob.detach().numpy(), atol=1e-4)
    np.testing.assert_allclose(own_entropy, entropy.detach().numpy(), atol=1e-5)
    d = d_log_prob * by_log_prob[:, None] + d_entropy * np.float32(by_entropy)
    size = own_params.shape[1]
    grads = {name: np.full(shape, np.nan, np.float32) for name, shape in ours.table}
    ours.backward(grads, x, layers, d[:, :size], by_value)
    if "log_std" in grads:
        grads["log_std"][:] = d[:, size:].sum(0)
    for name, gradient in grads.items():
        np.testing.assert_allclose(gradient, theirs.gradients[name].numpy(), rtol=1e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (2, 6, 4)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    w = orthogonal(np.random.default_rng(0), shape, 2.0)
    assert w.shape == shape and w.dtype == np.float32
    for m in w.reshape(-1, *shape[-2:]):
        gram = m.T @ m if shape[-2] >= shape[-1] else m @ m.T
        np.testing.assert_allclose(gram, 4 * np.eye(min(shape[-2:])), atol=1e-5)


def test_initial_weights() -> None:
    spec = build_spec(spaces.Box(-1, 1, (5,)), spaces.Box(-1, 1, (3,)), ModelConfig(log_std_init=-0.5))
    views = SmallNetwork(spec, initial_mlp(spec, 5, np.random.default_rng(0)))
    parts = dict(zip([n for n, _ in views.table], [None] * 99))
    from raypid.types import flat_views

    parts = flat_views(views.flat, views.table)
    assert parts["trunk.0.weight"].shape == (2, 5, 64) and parts["policy.weight"].shape == (64, 3)
    assert not np.array_equal(parts["trunk.0.weight"][0], parts["trunk.0.weight"][1])
    np.testing.assert_allclose(np.linalg.norm(parts["policy.weight"], axis=0), 0.01, rtol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(parts["value.weight"]), 1.0, rtol=1e-4)
    assert (parts["log_std"] == -0.5).all()
    assert all((v == 0).all() for n, v in parts.items() if n.endswith("bias"))
    # torch starts from the same numbers for the same seed
    np.testing.assert_array_equal(TorchNetwork(spec, seed=3).numpy(), initial_mlp(spec, 5, np.random.default_rng(3)))


def test_load_keeps_the_array_and_takes_the_new_weights() -> None:
    ours, _ = pair(make_spec((16,), "gaussian", "tanh", False))
    x = np.ones((2, 5), np.float32)
    before = ours.policy(Inputs(x, {}))[0].copy()
    flat = ours.flat * 2
    ours.load(flat)
    assert ours.flat is flat and not np.allclose(ours.policy(Inputs(x, {}))[0], before)
    assert ours.log_std is not None and np.shares_memory(ours.log_std, flat)


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
def test_large_inputs_stay_finite(activation: str) -> None:
    ours, theirs = pair(make_spec((16, 12), "categorical", activation, False))
    x = np.full((2, 5), 1e4, np.float32) * np.array([[1], [-1]], np.float32)
    with np.errstate(all="ignore"):
        params, value, _ = ours.forward(x)
    expected = theirs.policy(Inputs(x, {}))
    np.testing.assert_allclose(params, expected[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(value, expected[1], rtol=1e-3, atol=1e-3)
