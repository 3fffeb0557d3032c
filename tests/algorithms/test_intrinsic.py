"""Intrinsic rewards: novelty falls where one has been, replaces the task's rewards, and is part of the state."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import raypid
from raypid.algorithms.impala import IMPALA, IMPALAConfig
from raypid.algorithms.intrinsic import IntrinsicReward, RandomNetworkDistillation
from raypid.algorithms.ppo import PPO, PPOConfig
from raypid.errors import UserError
from raypid.nn.catalog import build_spec
from raypid.settings.config import ConfigError, ModelConfig
from raypid.types import Array, Final, Trajectory, tree_map

T, B = 16, 4
F = np.float32
BOX = spaces.Box(-9, 9, (3,))
MIXED = spaces.Dict(image=spaces.Box(0, 255, (36, 36, 1), np.uint8), place=spaces.Discrete(5))


def trajectory(seed: int = 0, center: float = 0.0, space: spaces.Space[Any] = BOX) -> Trajectory:
    rng = np.random.default_rng(seed)
    if space is BOX:
        obs: Any = (center + rng.normal(size=(T + 1, B, 3))).astype(F)
    else:
        obs = {
            "image": rng.integers(0, 256, (T + 1, B, 36, 36, 1), np.uint8),
            "place": rng.integers(0, 5, (T + 1, B)),
        }
    no = np.zeros((T, B), bool)
    return Trajectory(
        obs=obs,
        first=np.zeros((T + 1, B), bool),
        action=rng.integers(3, size=(T, B)),
        reward=np.full((T, B), 100, F),
        terminated=no,
        truncated=no,
        valid=np.ones((T, B), bool),
        behaviour={"log_prob": np.full((T, B), -1.1, F), "value": np.zeros((T + 1, B), F)},
        stream=np.arange(B),
    )


def spec_of(space: spaces.Space[Any] = BOX, **more: Any) -> Any:
    return build_spec(space, spaces.Discrete(3), ModelConfig(), **more)


def make(space: spaces.Space[Any] = BOX, **more: Any) -> RandomNetworkDistillation:
    return RandomNetworkDistillation(spec_of(space, **more), 0.99, 0)


def novelty(rnd: RandomNetworkDistillation, t: Trajectory) -> float:
    return float(rnd.novelty(rnd._next_inputs(t)[t.valid])[0].mean())


def test_novelty_falls_for_what_was_seen_and_stays_for_what_was_not() -> None:
    rnd, often, never = make(), [trajectory(i) for i in range(8)], trajectory(99, center=4.0)
    for t in often:
        rnd.reward(t)
    before = novelty(rnd, trajectory(50))
    for _ in range(30):
        for t in often:
            rnd.reward(t)
    after = novelty(rnd, trajectory(50))
    assert after < 0.2 * before and novelty(rnd, never) > 5 * after


def test_the_gradient_is_the_derivative_of_the_novelty() -> None:
    rnd, t = make(), trajectory()
    rnd.reward(t)
    rows = rnd._next_inputs(t)[t.valid]
    _, error, layers = rnd.novelty(rows)
    gradient = rnd.predictor.backward(layers, error * F(2 / error.shape[1]))
    rng = np.random.default_rng(1)
    for k in rng.choice(len(gradient), 20, replace=False):
        sums = []
        for step in (1e-2, -1e-2):
            rnd.predictor.flat[k] += F(step)
            sums.append(rnd.novelty(rows)[0].astype(float).sum())
            rnd.predictor.flat[k] -= F(step)
        assert (sums[0] - sums[1]) / 2e-2 == pytest.approx(gradient[k], rel=0.05, abs=0.02)


def test_rewards_belong_to_the_true_next_observations() -> None:
    """Where an environment resets within the step, the row's novelty is that of the last observation, not of the new episode."""
    t = trajectory()
    last = np.full((1, 3), 7.0, F)
    t.final = Final(np.array([3]), np.array([1]), last)
    inputs = make()._next_inputs(t)
    np.testing.assert_array_equal(inputs[3, 1], last[0])
    others = np.ones((T, B), bool)
    others[3, 1] = False
    np.testing.assert_array_equal(inputs[others], t.obs[1:][others])
    np.testing.assert_array_equal(t.obs[4, 1], trajectory().obs[4, 1])  # the trajectory is as it was


def test_rows_that_are_no_transitions_count_for_nothing() -> None:
    one, other = make(), make()
    t, changed = trajectory(), trajectory()
    for x in (t, changed):
        x.valid = np.random.default_rng(5).random((T, B)) < 0.7
    after = changed.obs[1:]
    after[~changed.valid] = 9.0
    rewards = one.reward(t), other.reward(changed)
    np.testing.assert_array_equal(rewards[0], rewards[1])
    assert not rewards[0][~t.valid].any() and (rewards[0][t.valid] > 0).all()
    np.testing.assert_array_equal(one.predictor.flat, other.predictor.flat)


@pytest.mark.parametrize(("space", "more"), [(MIXED, {}), (BOX, {"frame_stack": 3}), (BOX, {"normalize": True})])
def test_every_kind_of_observation_has_a_novelty(space: spaces.Space[Any], more: dict[str, Any]) -> None:
    rnd = make(space, **more)
    reward = rnd.reward(trajectory(space=space))
    assert reward.shape == (T, B) and reward.dtype == np.float32 and (reward > 0).all()


@pytest.mark.parametrize(("algorithm", "config"), [(PPO, PPOConfig), (IMPALA, IMPALAConfig)])
def test_it_replaces_the_tasks_reward_and_a_state_goes_on_bit_for_bit(algorithm: Any, config: Any) -> None:
    settings = {"seed": 0, "intrinsic_reward": "rnd", "batch_size": 32}
    first, second = (algorithm.make(config(**settings), spec_of(), 0) for _ in range(2))
    rich = trajectory(1)
    rich.reward = -rich.reward
    one, two = first.update(trajectory(1), 64), second.update(rich, 64)
    assert one.metrics == two.metrics and one.metrics["novelty"] > 0
    third = algorithm.make(config(**settings), spec_of(), 9)
    third.load_state_dict(first.state_dict())
    first.update(trajectory(2), 128)
    third.update(trajectory(2), 128)
    np.testing.assert_array_equal(first.weights().flat, third.weights().flat)
    np.testing.assert_array_equal(first.intrinsic.predictor.flat, third.intrinsic.predictor.flat)


class ByPlace(IntrinsicReward):
    """A user's own: the first element of the next observation."""

    def __init__(self, spec: Any, gamma: float, seed: int) -> None:
        self.calls = 0

    def reward(self, trajectory: Trajectory) -> Array:
        self.calls += 1
        return tree_map(lambda x: x[1:, :, 0], trajectory.obs)

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


def test_a_users_own_reward() -> None:
    algorithm = IMPALA.make(IMPALAConfig(seed=0, intrinsic_reward=ByPlace, normalize_rewards=False), spec_of(), 0)
    t = trajectory()
    np.testing.assert_array_equal(algorithm._reward(t), t.obs[1:, :, 0])
    algorithm.update(t, 64)
    assert algorithm.state_dict()["intrinsic"] == {"calls": 2}


@pytest.mark.parametrize(
    ("run", "settings", "error", "words"),
    [
        ("IMPALA", {"intrinsic_reward": "rnb"}, UserError, "Did you mean 'rnd'"),
        ("IMPALA", {"intrinsic_reward": dict}, ConfigError, "takes rnd, an IntrinsicReward class"),
        ("IMPALA", {"intrinsic_reward": ByPlace, "num_learners": 2, "num_workers": 2}, ConfigError, "does not support several learners"),
        ("A3C", {"intrinsic_reward": "rnd"}, ConfigError, "take IMPALA or APPO"),
    ],
)  # fmt: skip
def test_what_cannot_be(run: str, settings: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        raypid.Agent(run, env="CartPole-v1", **settings)


class Chain(gymnasium.Env[int, int]):
    """A corridor of `length` places; the task's reward is nothing but at its end."""

    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 50) -> None:
        self.length = length
        self.observation_space = spaces.Discrete(length)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.steps = self.farthest = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.place, self.steps = max(0, self.place + 2 * int(action) - 1), self.steps + 1
        self.farthest = max(self.farthest, self.place)
        found = self.place == self.length - 1
        return self.place, float(found), found, self.steps == 2 * self.length, {"farthest": self.farthest}


class Farthest(raypid.Callbacks):
    def on_episode_end(self, info: dict[str, Any]) -> dict[str, float]:
        return {"farthest": info["farthest"]}


@pytest.mark.slow
def test_it_goes_where_the_task_alone_does_not() -> None:
    farthest = {}
    for reward in (None, "rnd"):
        settings = {"intrinsic_reward": reward, "callbacks": Farthest, "seed": 0, "num_envs_per_worker": 8}
        with raypid.Agent("PPO", env=Chain, **settings) as agent:
            means = [agent.train().get("custom/farthest", 0.0) for _ in range(100)]
            farthest[reward] = max(means)
    assert farthest["rnd"] > 1.5 * farthest[None], farthest
