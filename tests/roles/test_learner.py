"""The learner joins fragments in the workers' order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from setups import learner_setup

from raypid.algorithms.ppo import PPO, PPOConfig
from raypid.envs import EnvSpec
from raypid.nn.catalog import build_spec
from raypid.nn.network_spec import NetworkSpec
from raypid.ops.normalizer import moments_of
from raypid.roles.acting import RolloutSpec
from raypid.roles.learner import Learner
from raypid.roles.worker import TrajectoryWorker
from raypid.settings.config import ModelConfig
from raypid.types import Trajectory

SPEC = build_spec(spaces.Box(-9, 9, (4,)), spaces.Discrete(2), ModelConfig(hidden=(8,)), normalize=True)


def learner(spec: NetworkSpec = SPEC, seed: int = 0, **settings: Any) -> Learner:
    config = PPO.make(PPOConfig(**{"num_epochs": 2, "batch_size": 32, **settings}), spec, 0).config
    return Learner(learner_setup(PPO, config, spec, seed))


def fragments(weights: Any, num_workers: int = 2) -> list[Trajectory]:
    env = EnvSpec(env="CartPole-v1", num_envs=2, vectorizer="sync")
    spec = RolloutSpec(env=env, network=SPEC, fragment_length=40, seed=0)
    return [TrajectoryWorker(spec, i).collect(weights)[1] for i in range(num_workers)]


def test_update_counts_all_fragments_and_versions() -> None:
    ours = learner()
    parts = fragments(ours.weights())
    update, weights = ours.update(0, *parts)
    rows = sum(p.num_valid for p in parts)
    assert update.num_updates == 2 * round(rows / 32) and weights.version == 1
    # all observations of all workers are in the normaliser
    seen = np.concatenate([p.obs[:-1][p.valid] for p in parts])
    for key, expected in zip(("obs_count", "obs_mean", "obs_m2"), moments_of(seen)):
        np.testing.assert_allclose(weights.extra[key], expected)


def test_order_of_the_fragments_is_the_order_of_the_rows() -> None:
    one, same, other = learner(), learner(), learner()
    a, b = fragments(one.weights())
    flat = one.update(0, a, b)[1].flat
    np.testing.assert_array_equal(same.update(0, a, b)[1].flat, flat)
    assert not np.array_equal(other.update(0, b, a)[1].flat, flat)


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_state_goes_to_another_learner(kernel: str) -> None:
    one, two = learner(kernel=kernel), learner(seed=5, kernel=kernel)
    parts = fragments(one.weights())
    one.update(0, *parts)
    two.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(one.update(9, *parts)[1].flat, two.update(9, *parts)[1].flat)


def test_update_is_for_ppo_what_the_seed_says() -> None:
    a, b, c = learner(), learner(), learner(seed=1)
    np.testing.assert_array_equal(a.weights().flat, b.weights().flat)
    assert not np.array_equal(a.weights().flat, c.weights().flat)
