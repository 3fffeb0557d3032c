"""Optimizers on a flat buffer against torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raypid.ops.optim import SGD, Adam, clip_norm


def test_adam_equals_torch() -> None:
    rng = np.random.default_rng(0)
    ours = rng.normal(size=50).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(ours.copy()))
    adam = Adam(ours, eps=1e-5)
    reference = torch.optim.Adam([theirs], lr=1.0, eps=1e-5)
    for i in range(30):
        gradient = (rng.normal(size=50) * 10.0 ** rng.integers(-6, 3)).astype(np.float32)
        lr = 0.01 / (i + 1)
        theirs.grad = torch.from_numpy(gradient.copy())
        reference.param_groups[0]["lr"] = lr
        reference.step()
        adam.step(gradient, lr)
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-6)


def test_adam_first_step_by_hand() -> None:
    x = np.array([1.0, -2.0, 0.0], np.float32)
    Adam(x, eps=0.5).step(np.array([2.0, -0.5, 0.0], np.float32), 0.1)
    np.testing.assert_allclose(x, [1 - 0.1 * 2 / 2.5, -2 + 0.1 * 0.5 / 1.0, 0], rtol=1e-6)


def test_adam_writes_in_place_and_leaves_the_gradient() -> None:
    buffer = np.ones(4, np.float32)
    gradient = np.full(4, 3.0, np.float32)
    Adam(buffer[:2]).step(gradient[:2], 0.1)
    assert (buffer[:2] < 1).all() and (buffer[2:] == 1).all() and (gradient == 3).all()


def test_adam_goes_on_from_its_state() -> None:
    rng = np.random.default_rng(1)
    gradients = rng.normal(size=(6, 8)).astype(np.float32)
    whole = np.zeros(8, np.float32)
    adam = Adam(whole)
    for g in gradients[:3]:
        adam.step(g, 0.01)
    part = whole.copy()
    resumed = Adam(part)
    resumed.load_state_dict(adam.state_dict())
    for g in gradients[3:]:
        adam.step(g, 0.01)
        resumed.step(g, 0.01)
    np.testing.assert_array_equal(part, whole)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_equals_torch_and_goes_on_from_its_state(momentum: float) -> None:
    rng = np.random.default_rng(0)
    ours = rng.normal(size=50).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(ours.copy()))
    sgd, reference = SGD(ours, momentum=momentum), torch.optim.SGD([theirs], lr=1.0, momentum=momentum)
    for i in range(20):
        gradient = rng.normal(size=50).astype(np.float32)
        theirs.grad = torch.from_numpy(gradient.copy())
        reference.param_groups[0]["lr"] = 0.1 / (i + 1)
        reference.step()
        if i == 10:
            state, sgd = sgd.state_dict(), SGD(ours, momentum=momentum)
            sgd.load_state_dict(state)
        sgd.step(gradient, 0.1 / (i + 1))
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize(("limit", "expected"), [(None, [3, 4]), (10.0, [3, 4]), (5.0, [3, 4]), (1.0, [0.6, 0.8])])
def test_clip_norm(limit: float | None, expected: list[float]) -> None:
    gradient = np.array([3.0, 4.0], np.float32)
    assert clip_norm(gradient, limit) == 5.0
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
