"""The acting loop: what it says of episodes is what happened, whatever the environment does at their ends."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from raypid.envs import EnvSpec
from raypid.errors import UserError
from raypid.nn.catalog import build_spec
from raypid.nn.numpy_mlp import initial_mlp
from raypid.nn.policy import make_policy
from raypid.roles import acting
from raypid.roles.acting import EnvironmentLoop
from raypid.settings.config import ModelConfig
from raypid.types import Weights

F = np.float32


class Ramp(gymnasium.Env):
    """Stream b plays episodes of b + 1 steps; the reward is the step in the episode. It may raise once, in step `crash_at`."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), F)
    action_space = spaces.Discrete(2)
    crashed = False

    def __init__(self, stream_index: int = 0, crash_at: int = 0) -> None:
        self.stream, self.crash_at, self.life = stream_index, crash_at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, F), {}

    def step(self, action: Any) -> Any:
        self.t, self.life = self.t + 1, self.life + 1
        if self.life == self.crash_at and self.stream == 2 and not Ramp.crashed:
            Ramp.crashed = True
            raise RuntimeError("boom")
        return np.full(2, self.t, F), float(self.t), self.t > self.stream, False, {"stream": self.stream}


def vector_of(num_envs: int, mode: str) -> SyncVectorEnv:
    makers = [lambda i=i: Ramp(i) for i in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode(mode))


def loop_of(env: Any, **env_config: Any) -> EnvironmentLoop:
    network = build_spec(Ramp.observation_space, Ramp.action_space, ModelConfig(hidden=(4,)))
    policy, rng = make_policy(network), np.random.default_rng(0)
    table = network.mlp_table(2)
    policy.load(Weights(0, initial_mlp(network, 2, rng), table))
    loop = EnvironmentLoop(EnvSpec(env=env, num_envs=3, env_config=env_config), policy, rng)
    loop.reset_streams([1, 2, 3])
    return loop


def play(loop: EnvironmentLoop, num_steps: int) -> list[tuple[int, int, float, int]]:
    """(step, stream, return, length) of the episodes that ended."""
    found = []
    for t in range(num_steps):
        loop.step(loop.act().action)
        found += [(t, e.stream, e.reward, e.length) for e in loop.ended]
        assert all(e.info["stream"] == e.stream for e in loop.ended)
    return found


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_episodes_are_counted_in_every_autoreset_mode(mode: str) -> None:
    loop, reset_row = loop_of(vector_of, mode=mode), int(mode == "NextStep")
    expected = []
    for b in range(3):
        rows = b + 1 + reset_row
        expected += [(t, b, (b + 1) * (b + 2) / 2, b + 1) for t in range(b, 12, rows)]
    assert play(loop, 12) == sorted(expected)
    timing = loop.timing()
    assert 0 < timing["env"] and 0 < timing["inference"] and timing["env"] + timing["inference"] <= timing["total"]
    loop.close()


def test_a_crash_starts_the_episode_anew_and_is_counted() -> None:
    Ramp.crashed = False
    loop = loop_of(Ramp, crash_at=2)
    assert [e[1:] for e in play(loop, 6) if e[1] == 2] == [(2, 6.0, 3)] and loop.num_crashes == 1
    loop.close()


def test_resetting_the_streams_drops_unfinished_episodes() -> None:
    loop = loop_of(Ramp)
    play(loop, 2)
    loop.reset_streams(None)
    assert [e for e in play(loop, 3) if e[1] == 2] == [(2, 2, 6.0, 3)]
    loop.close()


def test_only_the_streams_that_count_may_not_play_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "MAX_EPISODE_STEPS", 1)
    loop = loop_of(Ramp)
    play(loop, 2)
    loop.check_lengths(np.array([True, True, False]))
    with pytest.raises(UserError, match="did not end within 1 steps: set time_limit"):
        loop.check_lengths()
    loop.close()
