"""A3C: gradients are A2C's, from the worker's own fragment; the learner applies them as they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from raypid.algorithms.a2c import A2C, A2CConfig
from raypid.algorithms.a3c import A3C, A3CConfig
from raypid.envs import EnvSpec
from raypid.nn.catalog import build_spec
from raypid.ops.normalizer import zero_moments
from raypid.roles.acting import RolloutSpec
from raypid.roles.gradient_worker import GradientWorker
from raypid.roles.worker import TrajectoryWorker
from raypid.settings.config import ModelConfig
from raypid.types import Gradients, Moments, concat_trajectories

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
    a3c, a2c = A3C.make(A3CConfig(**shared), network, 0), A2C.make(A2CConfig(**shared), network, 0)
    sends = GradientWorker(rollout_spec(network), lambda policy: A3C.make(A3CConfig(**shared), network, 7))
    plain = TrajectoryWorker(rollout_spec(network))
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
    a3c = A3C.make(A3CConfig(), spec_of(normalize=False), 0)
    env = EnvSpec(env="CartPole-v1", num_envs=1, seed=3, vectorizer="sync", time_limit=1)
    spec = RolloutSpec(env=env, network=spec_of(normalize=False), fragment_length=1, seed=3)
    worker = GradientWorker(spec, lambda policy: A3C.make(A3CConfig(), spec.network, 7))
    reports = [worker.collect(a3c.weights()) for _ in range(4)]
    assert [(report.num_steps, gradients.num_steps) for report, gradients in reports] == [(1, 1)] * 4
    assert [report.episode_lengths for report, _ in reports] == [[1]] * 4
    worker.close()


def gradients_of(a3c: Any, scale: float) -> Gradients:
    return Gradients(np.full(len(a3c.network.numpy()), scale, F), 0, 10, {"policy_loss": scale})


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_several_gradients_are_one_step(reduce: str) -> None:
    settings = {"gradients_per_update": 3, "gradient_reduce": reduce, "max_grad_norm": None, "rmsprop_eps": 1.0}
    a3c = A3C.make(A3CConfig(**settings), spec_of(normalize=False), 0)
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
        a3c = A3C.make(A3CConfig(max_grad_norm=None, rmsprop_eps=1e-3), spec_of(normalize=False), 0)
        for scale in order:
            a3c.update([gradients_of(a3c, scale)], 0)
        results.append(a3c.network.numpy().copy())
    assert np.abs(results[0] - results[1]).min() > 1e-4


def test_rewards_are_scaled_by_the_returns_of_all_workers() -> None:
    """As A2C scales them, which has the fragments of both workers, and both here do it alike."""
    config, network = A3CConfig(gradients_per_update=2), spec_of(normalize=False)
    a3c, a2c = A3C.make(config, network, 0), A2C.make(A2CConfig(), network, 0)
    workers = [GradientWorker(rollout_spec(network), lambda policy: A3C.make(config, network, 0), i) for i in range(2)]
    plain = [TrajectoryWorker(rollout_spec(network), i) for i in range(2)]
    assert a3c.return_scaler is not None and a2c.return_scaler is not None
    for _ in range(3):
        weights = a3c.weights()
        gradients = [worker.collect(weights)[1] for worker in workers]
        a2c._reward(concat_trajectories([worker.collect(weights)[1] for worker in plain]))
        a3c.update(gradients, 0)
        for ours, theirs in zip(a3c.return_scaler.moments, a2c.return_scaler.moments, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    for role in (*workers, *plain):
        role.close()


def test_a_gradient_is_of_rewards_scaled_by_all_returns() -> None:
    """A worker whose learner has seen returns that vary far more makes a smaller value gradient."""
    network = spec_of(normalize=False)
    a3c, norms = A3C.make(A3CConfig(), network, 0), []
    for others in (zero_moments(1), Moments(np.float64(1e6), np.zeros(1), np.full(1, 1e12))):
        a3c.merge_returns(others)
        worker = GradientWorker(rollout_spec(network), lambda policy: A3C.make(A3CConfig(), network, 0))
        norms.append(float(np.linalg.norm(worker.collect(a3c.weights())[1].flat)))
        worker.close()
    assert norms[1] < norms[0] / 2


def test_a_worker_hands_on_what_it_kept_by_itself() -> None:
    """Earlier versions scaled rewards by each worker's own returns, and saved these with it."""
    config, network = A3CConfig(), spec_of(normalize=False)
    learner = A3C.make(config, network, 0)
    worker = GradientWorker(rollout_spec(network), lambda policy: A3C.make(config, network, 0))
    own = {"count": np.array(500.0), "mean": np.array([9.0]), "m2": np.array([800.0]), "carry": np.zeros(4)}
    worker.load_state_dict({**worker.state_dict(), "source": own})
    worker.boundary(1)
    gradients = worker.collect(learner.weights())[1]
    assert gradients.returns is not None and gradients.returns.num_rows == 500 + gradients.num_steps
    saved = worker.state_dict()["source"]
    assert saved["count"] == 0 and saved["carry"].any()
    learner.update([gradients], 0)
    other = A3C.make(config, network, 1)
    other.load_state_dict(learner.state_dict())
    assert other.weights().extra["return_count"] == gradients.returns.num_rows
    again = worker.collect(learner.weights())[1]
    assert again.returns is not None and again.returns.num_rows == again.num_steps
    worker.close()


@pytest.mark.parametrize("network", ["lstm", "gru"])
def test_one_worker_with_a_memory_learns_what_a2c_does(network: str) -> None:
    """The gradient through the memory, from its state at the start of each fragment, is A2C's over all streams at once."""
    shared = {"optimizer": "adam", "lr": 1e-2, "batch_size": 1000}
    spec = build_spec(STATE, spaces.Discrete(2), ModelConfig(hidden=(16,), network=network, memory_size=8))
    a3c, a2c = A3C.make(A3CConfig(**shared), spec, 0), A2C.make(A2CConfig(**shared), spec, 0)
    sends = GradientWorker(rollout_spec(spec), lambda policy: A3C.make(A3CConfig(**shared), spec, 7))
    plain = TrajectoryWorker(rollout_spec(spec))
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
