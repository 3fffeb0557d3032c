"""Evaluation: a quota of episodes for each stream, an honest interval, the same numbers for the same seed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from setups import worker_setup

from raypid.envs import EnvError, EnvSpec
from raypid.nn.catalog import build_spec
from raypid.nn.numpy_mlp import initial_mlp
from raypid.roles.acting import RolloutSpec
from raypid.roles.evaluator import MAX_STREAMS, Evaluation, Evaluator, Order, ci95
from raypid.settings.config import ModelConfig
from raypid.types import Weights

F = np.float32


class Mixed(gymnasium.Env):
    """Half of the episodes fail at once (return 0, 1 step), the others last 10 steps (return 10)."""

    observation_space = spaces.Box(-1, 1, (1,), F)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.fails = 0, bool(self.np_random.random() < 0.5)
        return np.zeros(1, F), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(1, F), float(not self.fails), self.fails or self.t == 10, False, {}


class ByStream(gymnasium.Env):
    """Streams differ: number b has episodes of b + 1 steps; reward 1 + 100 * b + number of the episode at the end."""

    observation_space = spaces.Box(-1, 1, (1,), F)
    action_space = spaces.Discrete(2)

    def __init__(self, stream_index: int, crash_at: int = 0) -> None:
        self.stream, self.episode, self.life, self.crash_at = stream_index, -1, 0, crash_at

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.zeros(1, F), {}

    def step(self, action: Any) -> Any:
        self.t, self.life = self.t + 1, self.life + 1
        if self.life == self.crash_at:
            raise RuntimeError("boom")
        end = self.t == self.stream + 1
        return np.zeros(1, F), float(end and 100 * self.stream + self.episode), end, False, {}


def by_stream(num_envs: int, mode: str) -> SyncVectorEnv:
    makers = [lambda i=i: ByStream(i) for i in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode(mode))


def evaluator(env: Any, max_crashes: int = 10, observation: Any = None, **env_config: Any) -> Evaluator:
    network = build_spec(observation or spaces.Box(-1, 1, (1,), F), spaces.Discrete(2), ModelConfig(hidden=(4,)))
    spec = EnvSpec(env=env, env_config=env_config, num_envs=MAX_STREAMS)
    spec_ = RolloutSpec(env=spec, network=network, fragment_length=1, seed=0, max_crashes=max_crashes)
    return Evaluator(worker_setup(spec_))


def weights_for(e: Evaluator, version: int = 5) -> Weights:
    spec = e.spec.network
    size = spec.pipeline.vector_size
    return Weights(version, initial_mlp(spec, size, np.random.default_rng(0)), spec.mlp_table(size))


def evaluate(e: Evaluator, num: int, seed: int = 0, *, explore: bool = False, record: Any = None) -> Evaluation:
    return e.play(weights_for(e), Order(num, seed, explore=explore), record)


@pytest.mark.parametrize(
    ("env", "config"), [(ByStream, {}), (by_stream, {"mode": "SameStep"}), (by_stream, {"mode": "NextStep"})]
)
def test_each_stream_plays_its_quota(env: Any, config: Any) -> None:
    """23 episodes on 10 streams: three streams play 3, the others 2, however long theirs are."""
    e = evaluator(env, **config)
    played = evaluate(e, 23)
    expected = [(100 * b + k, b + 1) for b in range(10) for k in range(3 if b < 3 else 2)]
    assert list(zip(played.rewards.tolist(), played.lengths.tolist())) == expected
    e.close()


def test_short_episodes_are_not_preferred() -> None:
    """Taking the first 200 episodes that end would give a mean near 2 instead of 5."""
    e = evaluator(Mixed)
    played = evaluate(e, 200)
    assert len(played.rewards) == 200 and set(played.rewards.tolist()) == {0.0, 10.0}
    summary = played.summary()
    assert abs(summary["episode_reward_mean"] - 5) < 4 * 5 / np.sqrt(200)
    assert summary["episode_reward_ci95"] == pytest.approx(1.972 * played.rewards.std(ddof=1) / np.sqrt(200), rel=1e-3)
    e.close()


def test_few_episodes_take_few_streams() -> None:
    e = evaluator(ByStream)
    assert evaluate(e, 2).lengths.tolist() == [1, 2]
    assert evaluate(e, 12).lengths.tolist() == [1, 1, 2, 2, *range(3, 11)]
    e.close()


def test_summary() -> None:
    played = Evaluation(np.array([1.0, 2, 6]), np.array([3, 4, 5]), 8, 0.5)
    assert played.summary() == pytest.approx(
        {
            "episode_reward_mean": 3.0,
            "episode_reward_ci95": 4.3027 * np.sqrt(7) / np.sqrt(3),
            "episode_reward_std": np.sqrt(7),
            "episode_reward_min": 1.0,
            "episode_reward_max": 6.0,
            "episode_len_mean": 4.0,
            "episodes": 3,
            "episodes_cut": 0,
            "weights_version": 8,
        },
        rel=1e-3,
    )


# quantiles of Student's t at 0.975, from tables
@pytest.mark.parametrize(
    ("n", "quantile"),
    [(2, 12.7062), (3, 4.3027), (4, 3.1824), (5, 2.7764), (10, 2.2622), (20, 2.0930), (50, 2.0096), (1000, 1.9623)],
)
def test_ci95_against_tables(n: int, quantile: float) -> None:
    values = np.random.default_rng(0).normal(3, 2, n)
    expected = quantile * np.sqrt(((values - values.mean()) ** 2).sum() / (n - 1) / n)
    assert ci95(values) == pytest.approx(expected, rel=1e-2 if n == 4 else 3e-3)


def test_ci95_of_one_episode_is_unknown() -> None:
    assert np.isnan(ci95(np.array([1.0])))


def cartpole() -> Evaluator:
    return evaluator("CartPole-v1", observation=spaces.Box(-9, 9, (4,), F))


@pytest.mark.parametrize("explore", [False, True])
def test_same_seed_same_numbers(explore: bool) -> None:
    a, b = cartpole(), cartpole()
    first = evaluate(a, 12, seed=3, explore=explore)
    again = evaluate(a, 12, seed=3, explore=explore)  # the same environments, used before
    fresh = evaluate(b, 12, seed=3, explore=explore)
    other = evaluate(b, 12, seed=4, explore=explore)
    for same in (again, fresh):
        np.testing.assert_array_equal(first.lengths, same.lengths)
        np.testing.assert_array_equal(first.rewards, same.rewards)
    assert not np.array_equal(first.lengths, other.lengths)
    a.close()
    b.close()


def test_crashed_episodes_do_not_count() -> None:
    """Every environment raises in the step that would end its episode of 5 steps; shorter ones come through."""
    e = evaluator(ByStream, crash_at=20, max_crashes=100)
    played = evaluate(e, 30)
    assert played.lengths.tolist() == [b + 1 for b in range(10) for _ in range(3)]
    assert all(r // 100 == n - 1 for r, n in zip(played.rewards, played.lengths))
    e.close()


def test_too_many_crashes_end_it() -> None:
    e = evaluator(ByStream, crash_at=1, max_crashes=10)
    with pytest.raises(
        EnvError, match=r"(?s)^Traceback.*boom\nraypid: .* raised 20 times in so few steps during evaluation"
    ):
        evaluate(e, 10)
    e.close()


def test_record_is_called_after_each_step() -> None:
    e, calls = evaluator(ByStream), []
    evaluate(e, 3, record=calls.append)
    assert [c.num_envs for c in calls] == [3, 3, 3]
    e.close()
    e.close()
