"""The pace: updates owed for steps, the warm-up, and when rollouts wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import raypid
from raypid import roles
from raypid.errors import UserError
from raypid.types import Report

STEP = {"fragment_length": 50, "num_envs_per_worker": 1, "a_l_ratio": 2.0, "start_steps": 100}


def pace(num_rollouts: int = 2, min_updates: int | None = None, **settings: Any) -> roles.Pace:
    setup = raypid.setup("DQN", "CartPole-v1", **{**STEP, **settings})
    return roles.Pace(setup, num_rollouts, min_updates)


def report(steps: int = 50, episodes: int = 0) -> Report:
    return Report(worker_index=0, num_steps=steps, version=0, episode_rewards=[1.0] * episodes)


def test_no_updates_are_owed_for_the_warm_up() -> None:
    counted = pace()
    assert counted.count(report()) == 50 and counted.warms_up() and counted.owed == 0
    assert counted.count(report()) == 100 and not counted.warms_up() and counted.owed == 25


def test_a_warm_up_waits_for_episodes_but_not_for_ever() -> None:
    counted = pace(start_episodes=2)
    for _ in range(4):
        counted.count(report())
    assert counted.warms_up() and not counted.owed
    counted.count(report(episodes=2))
    assert not counted.warms_up() and counted.episodes == 2 and counted.owed == 25
    idle = pace(start_episodes=2)
    while idle.warms_up():
        idle.count(report())
    assert idle.timesteps == 500


def test_steps_before_the_buffer_is_filled_call_for_no_updates() -> None:
    counted = pace(start_steps=0)
    counted.count(report(), is_filled=False)
    assert not counted.warms_up() and counted.owed == 0
    counted.count(report())
    assert counted.owed == 25


def test_updates_are_taken_in_whole_calls() -> None:
    counted = pace(start_steps=0, updates_per_call=8)
    assert counted.due() == counted.take() == 0
    counted.count(report())
    assert [counted.take() for _ in range(4)] == [8, 8, 8, 0] and counted.owed == 1
    single = pace(min_updates=1, start_steps=0, updates_per_call=8)
    single.count(report(steps=21))
    assert single.due() == 8 and [single.take() for _ in range(3)] == [8, 2, 0] and single.owed == 0.5


@pytest.mark.parametrize("num_rollouts", [0, 1, 3])
def test_rollouts_wait_once_a_round_of_fragments_is_owed(num_rollouts: int) -> None:
    counted = pace(num_rollouts, start_steps=0, updates_per_call=8)
    while counted.may_collect():
        assert counted.owed < 8 + 25 * num_rollouts
        counted.count(report(steps=2))
    assert counted.owed == 8 + 25 * num_rollouts == 8 + counted.slack and counted.due() == 8
    counted.take()
    assert counted.may_collect()


def test_a_loop_by_hand_makes_as_many_updates_as_an_agent() -> None:
    settings: dict[str, Any] = {
        "seed": 0, "start_steps": 150, "batch_size": 32, "num_envs_per_worker": 2, "fragment_length": 16,
        "samples_per_insert": 7.0, "updates_per_call": 4, "steps_per_iteration": 250,
    }  # fmt: skip
    setup = raypid.setup("DQN", "CartPole-v1", **{k: v for k, v in settings.items() if k != "steps_per_iteration"})
    rollout, replay, learner = roles.Rollout(setup), roles.Replay(setup), roles.Learner(setup)
    counted, weights = roles.Pace(setup, num_rollouts=0, min_updates=1), learner.weights()
    with raypid.DQN("CartPole-v1", backend="local", **settings) as agent:
        for _ in range(3):
            agent.train()
            while counted.timesteps < agent.timesteps or not counted.may_collect():
                if counted.may_collect():
                    made, fragment = rollout.collect(weights, counted.timesteps)
                    learner.observe(made, fragment)
                    counted.count(made, replay.add(0, fragment) >= setup.config.batch_size)
                if num := counted.take():
                    _, weights = learner.learn(counted.timesteps, replay.sample(num * 32, counted.timesteps))
            there = agent.context.replay
            assert there is not None and counted.owed == there.pace.owed
            assert (counted.timesteps, counted.episodes) == (agent.timesteps, there.pace.episodes)
            assert weights.version == agent.get_weights().version > 0
            np.testing.assert_array_equal(weights.flat, agent.get_weights().flat)


def test_what_is_no_setup_with_replay_or_no_report_is_refused() -> None:
    for wrong, words in (
        (None, "Pace is made from a setup, .* not from None"),
        (raypid.setup("PPO", "CartPole-v1"), "PPO on .* has no replay"),
    ):
        with pytest.raises(UserError, match=words):
            roles.Pace(wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="num_rollouts"):
        pace(-1)
    with pytest.raises(UserError, match="report must be of type Report, not 50"):
        pace().count(50)  # type: ignore[arg-type]
