"""PPO's and A2C's derivatives by hand against autograd, and gradient steps of the NumPy kernel against torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from raypid.algorithms.a2c import A2C, A2CConfig
from raypid.algorithms.actor_critic import step_metrics
from raypid.algorithms.minibatches import Batch
from raypid.algorithms.ppo import PPO, PPOConfig
from raypid.nn.catalog import build_spec
from raypid.nn.numpy_mlp import SmallNetwork
from raypid.nn.pipeline import Inputs
from raypid.settings.config import ModelConfig

N = 48
ALGORITHMS: dict[str, Any] = {"PPO": (PPO, PPOConfig), "A2C": (A2C, A2CConfig)}


def make(name: str, spec: Any, **settings: Any) -> Any:
    cls, config = ALGORITHMS[name]
    return cls.make(config(**{"num_epochs": 3, **settings} if name == "PPO" else settings), spec, 0)


def step(algorithm: Any, batch: Any, rows: Any, lr: float) -> dict[str, Any]:
    """One gradient step on these rows, as `update` does it."""
    minibatch = batch if rows is None else batch.take(rows)
    out = algorithm.network.evaluate(minibatch)
    loss, metrics = algorithm.objective(out, minibatch)
    return step_metrics(metrics, algorithm.optimizer.minimise(loss, lr, minibatch.fraction), minibatch.fraction)


def columns(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "value": rng.normal(size=N).astype(np.float32),
        "advantage": rng.normal(0.3, 2, N).astype(np.float32),
        "target": rng.normal(size=N).astype(np.float32),
    }


@pytest.mark.parametrize(("name", "value_clip"), [("PPO", None), ("PPO", 0.1), ("PPO", 0.5), ("A2C", None)])
def test_loss_gradient_equals_autograd_of_the_loss(name: str, value_clip: float | None) -> None:
    settings = {"entropy_coef": 0.03, "value_coef": 0.7} | ({"value_clip": value_clip} if name == "PPO" else {})
    algorithm = make(name, build_spec(spaces.Box(-1, 1, (2,)), spaces.Discrete(2), ModelConfig()), **settings)
    rng = np.random.default_rng(1)
    acted = rng.normal(-1, 0.5, N).astype(np.float32)
    log_prob = acted + rng.normal(0, 0.4, N).astype(np.float32)  # ratios on both sides of the clip range
    entropy = rng.random(N).astype(np.float32)
    data = columns()
    value = data["value"] + rng.normal(0, 0.4, N).astype(np.float32)
    by_log_prob, by_entropy, by_value, metrics = algorithm.loss_gradient(
        log_prob, entropy, value, Batch(None, None, acted, **data)
    )
    leaves = [torch.from_numpy(x).requires_grad_() for x in (log_prob, entropy, value)]
    tensors = {k: torch.from_numpy(v) for k, v in data.items()}
    loss, in_torch = algorithm.loss(*leaves, Batch(None, None, torch.from_numpy(acted), **tensors))
    loss.backward()
    np.testing.assert_allclose(by_log_prob, leaves[0].grad, atol=1e-6)
    np.testing.assert_allclose(np.full(N, by_entropy), leaves[1].grad, atol=1e-7)
    np.testing.assert_allclose(by_value, leaves[2].grad, atol=1e-6)
    assert set(metrics) == set(in_torch)
    for key, number in metrics.items():
        assert number == pytest.approx(float(in_torch[key].detach()), abs=1e-5), key
    if name == "PPO":
        assert 0.2 < metrics["clip_fraction"] < 0.9 and (by_log_prob == 0).any() and (by_log_prob != 0).any()


def test_ppo_loss_by_hand() -> None:
    algorithm = make("PPO", build_spec(spaces.Box(-1, 1, (2,)), spaces.Discrete(2), ModelConfig()), entropy_coef=0.1)
    ratio = torch.tensor([1.1, 1.5, 0.5, 1.5, 0.5])
    advantage = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0])
    # min(ratio A, clip A): 2.2, 1.2 * 2, 0.5 * 2, 1.5 * -2, 0.8 * -2
    zeros = torch.zeros(5)
    batch = Batch(None, None, zeros, zeros, advantage, torch.full((5,), 2.0))
    loss, metrics = algorithm.loss(ratio.log(), torch.full((5,), 0.5), zeros, batch)
    policy_loss = -(2.2 + 2.4 + 1.0 - 3.0 - 1.6) / 5
    assert float(metrics["policy_loss"]) == pytest.approx(policy_loss, abs=1e-6)
    assert float(metrics["value_loss"]) == pytest.approx(2.0)
    assert float(loss) == pytest.approx(policy_loss + 0.5 * 2.0 - 0.1 * 0.5, abs=1e-6)
    assert float(metrics["clip_fraction"]) == pytest.approx(0.8)


OBSERVATION = spaces.Box(-1, 1, (5,))
MASKED = spaces.Dict(action_mask=spaces.MultiBinary(4), obs=OBSERVATION)
STEPS = [
    ("PPO", "categorical", {}, {}),
    ("PPO", "gaussian", {}, {}),
    ("PPO", "masked", {"entropy_coef": 0.05}, {}),
    ("PPO", "categorical", {"entropy_coef": 0.05, "value_clip": 0.1}, {"shared": True}),
    ("PPO", "gaussian", {"entropy_coef": 0.05, "value_clip": 0.1}, {"shared": True, "activation": "silu"}),
    ("PPO", "categorical", {"max_grad_norm": 0.05}, {"activation": "relu"}),
    ("PPO", "gaussian", {"max_grad_norm": None, "normalize_advantages": False}, {"hidden": (8, 8, 8)}),
    ("A2C", "categorical", {}, {}),
    ("A2C", "gaussian", {"max_grad_norm": 0.05}, {}),
    ("A2C", "masked", {"entropy_coef": 0.2, "normalize_advantages": True}, {"shared": True}),
    ("A2C", "gaussian", {"max_grad_norm": None}, {"hidden": (), "activation": "relu"}),
]


def random_batch(kind: str, algorithm: Any, seed: int) -> Batch:
    """Rows whose log_prob differs from the network's, so that the clipping binds on some."""
    rng = np.random.default_rng(seed)
    vector, mask = rng.normal(size=(N, 5)).astype(np.float32), None
    if kind == "masked":
        mask = rng.random((N, 4)) < 0.6
        mask[np.arange(N), rng.integers(4, size=N)] = True
    inputs = Inputs(vector, {}, mask)
    network = SmallNetwork(algorithm.spec, algorithm.network.numpy().copy())
    distribution = algorithm.network.distribution
    params = distribution.masked(network.policy(inputs)[0], mask)
    action = distribution.sample(params, network.log_std, rng)
    acted = distribution.log_prob(params, network.log_std, action) + rng.normal(0, 0.25, N)
    return Batch(inputs, action, acted.astype(np.float32), **columns(seed))


@pytest.mark.parametrize(("name", "kind", "settings", "model"), STEPS)
def test_numpy_steps_equal_torch_steps(name: str, kind: str, settings: Any, model: Any) -> None:
    action_space: Any = spaces.Box(-1, 1, (3,)) if kind == "gaussian" else spaces.Discrete(4)
    model = ModelConfig(**{"hidden": (16, 16), **model})
    spec = build_spec(MASKED if kind == "masked" else OBSERVATION, action_space, model)
    ours, theirs = (make(name, spec, kernel=kernel, **settings) for kernel in ("numpy", "torch"))
    flat = np.random.default_rng(0).normal(0, 0.4, len(ours.network.numpy())).astype(np.float32)
    for algorithm in (ours, theirs):
        algorithm.network.load(flat)
    batches = [random_batch(kind, ours, seed) for seed in range(3)]
    rows = np.random.default_rng(5).permutation(N)[:30]
    for batch in batches:
        a = step(ours, ours.network.to_device(batch), rows, 3e-3)
        b = step(theirs, theirs.network.to_device(batch), rows, 3e-3)
        assert set(a) == set(b)
        for key, number in a.items():
            assert number == pytest.approx(float(b[key]), rel=1e-3, abs=1e-5), key
        np.testing.assert_allclose(ours.network.numpy(), theirs.network.numpy(), atol=1e-5)
    assert np.abs(ours.network.numpy() - flat).max() > 3e-3
    if "max_grad_norm" in settings and settings["max_grad_norm"]:
        assert a["grad_norm"] > settings["max_grad_norm"]
    if name == "PPO":
        assert 0.05 < a["clip_fraction"] < 0.95


@pytest.mark.parametrize("kernels", [("numpy", "torch"), ("torch", "numpy")])
def test_a_checkpoint_continues_on_the_other_kernel(kernels: tuple[str, str]) -> None:
    spec = build_spec(OBSERVATION, spaces.Box(-1, 1, (3,)), ModelConfig(hidden=(16, 16)))
    first, second = (make("PPO", spec, kernel=kernel) for kernel in kernels)
    second.load_state_dict(first.state_dict())  # before any step
    for seed in range(2):
        step(first, first.network.to_device(random_batch("gaussian", first, seed)), None, 1e-3)
    second.load_state_dict(first.state_dict())
    batch = random_batch("gaussian", first, 9)
    for algorithm in (first, second):
        step(algorithm, algorithm.network.to_device(batch), None, 1e-3)
    np.testing.assert_allclose(second.network.numpy(), first.network.numpy(), atol=1e-6)
    np.testing.assert_array_equal(second.rng.random(3), first.rng.random(3))


def test_steps_do_not_change_the_batch() -> None:
    """Epochs take the same rows again."""
    for kernel in ("numpy", "torch"):
        spec = build_spec(OBSERVATION, spaces.Discrete(4), ModelConfig())
        algorithm = make("PPO", spec, kernel=kernel)
        whole = algorithm.network.to_device(random_batch("categorical", algorithm, 0))
        names = ("log_prob", "value", "advantage", "target", "action")
        kept = {n: np.asarray(getattr(whole, n)).copy() for n in names}
        step(algorithm, whole, np.arange(20), 1e-3)
        for key, before in kept.items():
            np.testing.assert_array_equal(np.asarray(getattr(whole, key)), before)
