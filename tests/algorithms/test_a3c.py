"""A3C: gradients are A2C's, from the worker's own fragment; the learner applies them as they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from raypid.algorithms.a2c import A2C, A2CConfig
from raypid.algorithms.a3c import A3C, A3CConfig
from raypid.config import ModelConfig
from raypid.envs import EnvSpec
from raypid.nn.catalog import build_spec
from raypid.roles.gradient_rollout import GradientRollout
from raypid.roles.rollout import Rollout, RolloutSpec
from raypid.types import Gradients

F = np.float32
STATE = spaces.Box(-np.inf, np.inf, (4,), F)


def spec_of(normalize: bool = True) -> Any:
    return build_spec(STATE, spaces.Discrete(2), ModelConfig(hidden=(16,)), normalize=normalize)


def rollout_spec(network: Any) -> RolloutSpec:
    return RolloutSpec(env=EnvSpec(env="CartPole-v1", num_envs=4, seed=3), network=network, fragment_length=20, seed=3)


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_one_worker_learns_what_a2c_does(kernel: str) -> None:
    """With one worker and one gradient an update, gradient there and step here are A2C's step."""
    shared = {"optimizer": "adam", "lr": 1e-2, "batch_size": 1000, "kernel": kernel, "normalize_observations": True}
    network = spec_of()
    a3c, a2c = A3C(A3CConfig(**shared), network, 0), A2C(A2CConfig(**shared), network, 0)
    sends = GradientRollout(rollout_spec(network), lambda policy: A3C(A3CConfig(**shared), network, 7))
    plain = Rollout(rollout_spec(network))
    for k in range(4):
        report, gradients = sends.collect(a3c.weights())
        _, trajectory = plain.collect(a2c.weights())
        assert isinstance(gradients, Gradients) and gradients.version == k and report.size == 1
        assert gradients.num_steps == report.num_steps == trajectory.num_valid
        ours, theirs = a3c.update([gradients], 0), a2c.update(trajectory, 0)
        for key, number in theirs.metrics.items():
            assert ours.metrics[key] == pytest.approx(number, rel=1e-4, abs=1e-6), key
        np.testing.assert_allclose(a3c.network.numpy(), a2c.network.numpy(), atol=1e-6)
        assert a3c.moments is not None and a2c.moments is not None
        np.testing.assert_array_equal(a3c.moments.mean, a2c.moments.mean)
    sends.close()
    plain.close()


def test_a_fragment_without_a_step_gives_no_gradient() -> None:
    """One row of one environment that takes a row to reset: every fragment but some is no step at all."""
    a3c = A3C(A3CConfig(), spec_of(normalize=False), 0)
    env = EnvSpec(env="CartPole-v1", num_envs=1, seed=3, vectorizer="sync", time_limit=1)
    spec = RolloutSpec(env=env, network=spec_of(normalize=False), fragment_length=1, seed=3)
    worker = GradientRollout(spec, lambda policy: A3C(A3CConfig(), spec.network, 7))
    reports = [worker.collect(a3c.weights()) for _ in range(4)]
    assert [(report.num_steps, gradients.num_steps) for report, gradients in reports] == [(1, 1)] * 4
    assert [report.episode_lengths for report, _ in reports] == [[1]] * 4
    worker.close()


def gradients_of(a3c: Any, scale: float) -> Gradients:
    return Gradients(np.full(len(a3c.network.numpy()), scale, F), 0, 10, {"policy_loss": scale})


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_several_gradients_are_one_step(reduce: str) -> None:
    settings = {"gradients_per_update": 3, "gradient_reduce": reduce, "max_grad_norm": None, "rmsprop_eps": 1.0}
    a3c = A3C(A3CConfig(**settings), spec_of(normalize=False), 0)
    before = a3c.network.numpy().copy()
    update = a3c.update([gradients_of(a3c, scale) for scale in (1.0, 2.0, 6.0)], 0)
    g = 3.0 if reduce == "mean" else 9.0
    step = a3c.config.lr * g / (np.sqrt(0.01 * g * g) + 1.0)
    np.testing.assert_allclose(before - a3c.network.numpy(), step, rtol=1e-3)
    assert update.metrics["policy_loss"] == 3.0 and update.num_updates == 1 and a3c.version == 1
    assert A3C.update_size(a3c.config) == 3


def test_gradients_count_in_the_order_of_arrival() -> None:
    """One RMSProp for all: what came first has shrunk the step of what came second."""
    results = []
    for order in ((1.0, 4.0), (4.0, 1.0)):
        a3c = A3C(A3CConfig(max_grad_norm=None, rmsprop_eps=1e-3), spec_of(normalize=False), 0)
        for scale in order:
            a3c.update([gradients_of(a3c, scale)], 0)
        results.append(a3c.network.numpy().copy())
    assert np.abs(results[0] - results[1]).min() > 1e-4


def test_a_worker_keeps_how_it_scales_rewards() -> None:
    config, network = A3CConfig(), spec_of(normalize=False)
    one = GradientRollout(rollout_spec(network), lambda policy: A3C(config, network, 0))
    weights = A3C(config, network, 0).weights()
    one.collect(weights)
    state = one.state_dict()
    other = GradientRollout(rollout_spec(network), lambda policy: A3C(config, network, 0))
    other.load_state_dict(state)
    for role in (one, other):
        role.boundary(1)
    a, b = one.collect(weights)[1], other.collect(weights)[1]
    np.testing.assert_array_equal(a.flat, b.flat)
    fresh = GradientRollout(rollout_spec(network), lambda policy: A3C(config, network, 0))
    fresh.load_state_dict({**state, "source": {}})
    fresh.boundary(1)
    assert np.abs(fresh.collect(weights)[1].flat - a.flat).max() > 0
    for role in (one, other, fresh):
        role.close()


@pytest.mark.parametrize("network", ["lstm", "gru"])
def test_one_worker_with_a_memory_learns_what_a2c_does(network: str) -> None:
    """The gradient through the memory, from its state at the start of each fragment, is A2C's over all streams at once."""
    shared = {"optimizer": "adam", "lr": 1e-2, "batch_size": 1000}
    spec = build_spec(STATE, spaces.Discrete(2), ModelConfig(hidden=(16,), network=network, memory_size=8))
    a3c, a2c = A3C(A3CConfig(**shared), spec, 0), A2C(A2CConfig(**shared), spec, 0)
    sends = GradientRollout(rollout_spec(spec), lambda policy: A3C(A3CConfig(**shared), spec, 7))
    plain = Rollout(rollout_spec(spec))
    begun_within = 0
    for _ in range(4):
        _, gradients = sends.collect(a3c.weights())
        _, trajectory = plain.collect(a2c.weights())
        begun_within += int(trajectory.first[1:].sum())
        before = a3c.weights().as_dict()["memory.recurrent"].copy()
        ours, theirs = a3c.update([gradients], 0), a2c.update(trajectory, 0)
        assert ours.metrics["grad_norm"] == pytest.approx(theirs.metrics["grad_norm"], rel=1e-4)
        assert np.abs(a3c.weights().as_dict()["memory.recurrent"] - before).max() > 1e-4
        np.testing.assert_allclose(a3c.network.numpy(), a2c.network.numpy(), atol=1e-5)
    assert begun_within and np.abs(np.asarray(trajectory.state["memory"])).max() > 0
    sends.close()
    plain.close()
