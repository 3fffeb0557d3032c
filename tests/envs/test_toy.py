"""The small environments that need a memory: what they show, and what is right."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from raypid.envs import EnvSpec, make_vector
from raypid.envs.toy import PositionCartPole, RepeatFirst, TMaze


def test_position_cartpole_is_cartpole_without_velocities() -> None:
    ours, whole = PositionCartPole(), gymnasium.make("CartPole-v1")
    seen, full = ours.reset(seed=3)[0], whole.reset(seed=3)[0]
    length = 0
    while True:
        length += 1
        np.testing.assert_array_equal(seen, full[[0, 2]])
        assert seen in ours.observation_space
        action = int(full[2] + full[3] > 0)  # with the velocity it is easy
        (seen, *ended), (full, *expected) = ours.step(action), whole.step(action)
        assert ended[:3] == expected[:3]
        if ended[1] or ended[2]:
            break
    assert length == 500 and ended[2]


@pytest.mark.parametrize("length", [1, 10])
def test_t_maze(length: int) -> None:
    env, goals = TMaze(length), set()
    for seed in range(6):
        obs, _ = env.reset(seed=seed)
        goal = {(0, 1, 1): 1, (1, 1, 0): 2}[tuple(obs)]
        goals.add(goal)
        for place in range(length):
            for turn in (1, 2):  # turns stand still, and what the start shows stays
                again, *rest, info = env.step(turn)
                assert again.tolist() == obs.tolist() and rest == [0.0, False, False] and not info
            obs, *rest, _ = env.step(0)
            assert rest == [0.0, False, False]
            assert obs.tolist() == ([0, 1, 0] if place == length - 1 else [1, 0, 1])
        assert env.step(0)[0].tolist() == [0, 1, 0]
        choice = goal if seed % 2 else 3 - goal
        _, reward, terminated, truncated, info = env.step(choice)
        assert (reward, terminated, truncated) == (float(seed % 2), True, False) and info == {
            "success": float(seed % 2)
        }
    assert goals == {1, 2}


def test_t_maze_ends_in_time() -> None:
    env = TMaze(max_episode_steps=5)
    env.reset(seed=0)
    ends = [env.step(1)[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]


def test_repeat_first() -> None:
    env, values = RepeatFirst(num_values=3, num_steps=8), set()
    for seed in range(20):
        (value, begins), _ = env.reset(seed=seed)
        assert begins == 1
        total, noise = 0.0, []
        for step in range(8):
            obs, reward, terminated, truncated, _ = env.step(value if seed % 2 else (value + 1) % 3)
            assert obs in env.observation_space and obs[1] == 0 and terminated == (step == 7) and not truncated
            total += reward
            noise.append(int(obs[0]))
        assert total == pytest.approx(seed % 2) and len(set(noise)) > 1
        values.add(int(value))
    assert values == {0, 1, 2}


@pytest.mark.parametrize("env", ["PositionCartPole", "TMaze", "RepeatFirst"])
def test_they_are_registered(env: str) -> None:
    vector: Any = make_vector(EnvSpec(env=f"raypid/{env}-v0", num_envs=2))
    vector.reset()
    for _ in range(30):
        step = vector.step(np.zeros(2, np.int64))
    assert step.obs.shape[0] == 2
    vector.close()
