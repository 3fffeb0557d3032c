"""Convolutions on a CPU: with gradients the channels lie last, without them first, and the numbers are the same."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from raypid.nn.catalog import build_spec
from raypid.nn.networks import TorchInputs, TorchNetwork, layer_norm
from raypid.nn.pipeline import Inputs
from raypid.settings.config import ModelConfig


@pytest.mark.parametrize("network", ["cnn", "resnet"])
def test_learning_and_acting_compute_the_same(network: str) -> None:
    space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)
    model = ModelConfig(network=network, hidden=(32,))
    spec = build_spec(space, gymnasium.spaces.Discrete(3), model, frame_stack=4, normalize=False)
    rng = np.random.default_rng(0)
    ((path, shape),) = spec.pipeline.images
    images = {path: rng.integers(0, 256, (6, *shape), dtype=np.uint8)}
    inputs = Inputs(np.zeros((6, 0), np.float32), images)
    learner = TorchNetwork(spec, seed=1)
    params, value = learner(TorchInputs(inputs, learner.device))
    acted_params, acted_value, _ = learner.policy(inputs)
    assert acted_value is not None and value is not None
    np.testing.assert_allclose(params.detach().numpy(), acted_params, atol=1e-5)
    np.testing.assert_allclose(value.detach().numpy(), acted_value, atol=1e-5)
    # and so do other kernels, which know no layouts
    (params.square().mean() + value.square().mean()).backward()
    found = learner.gradient.clone()
    learner.gradient.zero_()
    with torch.backends.mkldnn.flags(enabled=False):
        params, value = learner(TorchInputs(inputs, learner.device))
        assert value is not None
        (params.square().mean() + value.square().mean()).backward()
    assert found.abs().max() > 0
    np.testing.assert_allclose(found.numpy(), learner.gradient.numpy(), atol=1e-4 * float(found.abs().max()))


def test_layers_that_a_policy_normalised_first_can_be_learnt_with() -> None:
    h = torch.randn(2, 4, 23, requires_grad=True)  # a width of no other test
    with torch.inference_mode():
        acted = layer_norm(h)
    learnt = layer_norm(h)
    learnt.sum().backward()
    assert h.grad is not None and torch.equal(acted, learnt)
    assert torch.equal(learnt, torch.nn.functional.layer_norm(h, (23,)))
