"""The default settings learn toys with numbers out of the ordinary; for what no defaults can learn there is a message."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from toys import BEYOND_FLOAT32, CONTINUOUS, DISCRETE, ON_RAY, PERIOD, TOYS, Corner, Follow, earned, ray_settings, train

import raypid
from raypid.envs import EnvError
from raypid.errors import UserError

DTYPES, ORDERS = ("uint8", "float32"), (True, False)
WHOLE_EPISODES = ("ES", "ARS")
"""Algorithms that an environment without end has a message for."""
CASES = [
    (run, name, continuous)
    for continuous, runs in ((False, DISCRETE), (True, CONTINUOUS))
    for run, name in product(runs, TOYS)
    if TOYS[name].ends or run not in WHOLE_EPISODES
]
QUICK = [case for case in CASES if case[0] == "PPO"]


@pytest.mark.parametrize(("name", "continuous"), list(product(TOYS, (False, True))))
def test_what_is_named_can_be_earned(name: str, continuous: bool) -> None:
    toy = TOYS[name]
    steps = PERIOD if toy.env is Follow else 1
    env: Any = toy.env(continuous=continuous, **toy.env_config)
    env.action_space.seed(1)
    best, random = toy.best[continuous], toy.random[continuous]
    assert steps * earned(env, lambda obs: env.best_action(), 5_000, seed=0) == pytest.approx(best, rel=0.02)
    assert steps * earned(env, lambda obs: env.action_space.sample(), 5_000, seed=0) == pytest.approx(random, rel=0.1)
    assert random < toy.learnt(continuous) < best


@pytest.mark.ci_slow
@pytest.mark.parametrize(("run", "name", "continuous"), QUICK)
def test_ppo_learns(run: str, name: str, continuous: bool) -> None:
    best, steps = train(run, name, continuous, seed=0)
    assert best >= TOYS[name].learnt(continuous), (best, steps)


PICTURES = [
    # a square that is convolved takes seconds, a flattened one tenths of one
    *(pytest.param(side, symbols, *kind) for side, symbols in ((7, True), (7, False), (19, True)) for kind in product(DTYPES, ORDERS)),
    *(pytest.param(19, False, *kind, marks=pytest.mark.ci_slow) for kind in product(DTYPES, ORDERS)),
    *(pytest.param(84, symbols, *kind, marks=pytest.mark.ci_slow) for symbols in (True, False) for kind in zip(DTYPES, ORDERS)),
]  # fmt: skip


@pytest.mark.parametrize(("side", "symbols", "dtype", "channels_last"), PICTURES)
def test_pictures_and_symbols_are_learnt(side: int, symbols: bool, dtype: str, channels_last: bool) -> None:
    about = {"side": side, "symbols": symbols, "dtype": dtype, "channels_last": channels_last}
    with raypid.PPO(Corner, env_config=about, evaluation_interval=0, seed=0) as agent:
        assert bool(agent.network.pipeline.images) is (side > 7 and not symbols)
        assert agent.network.pipeline.normalize is not bool(agent.network.pipeline.images)
        while agent.timesteps < 15_000 and agent.eval(10)["episode_reward_mean"] < 9:
            agent.train()
        assert agent.timesteps < 15_000


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("run", "name", "continuous"), CASES)
def test_the_defaults_learn(run: str, name: str, continuous: bool, seed: int) -> None:
    best, steps = train(run, name, continuous, seed)
    assert best >= TOYS[name].learnt(continuous), (best, steps)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("run", "name"), list(product(ON_RAY, TOYS)))
def test_the_defaults_learn_on_ray(run: str, name: str, ray_session: None) -> None:
    best, steps = train(run, name, False, 0, **ray_settings(run))
    assert best >= TOYS[name].learnt(False), (best, steps)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("run", ["PPO", "DQN", "ES"])
def test_rewards_beyond_float32_have_a_message(run: str) -> None:
    with getattr(raypid, run)(env=Follow, env_config=BEYOND_FLOAT32, seed=0) as agent:
        with pytest.raises(
            EnvError,
            match=r"Environment Follow, stream \d, step \d: the reward is .*e\+38; it must be one finite number, in float32 .* reward_scale",
        ):
            agent.train()


@pytest.mark.slow
@pytest.mark.parametrize("run", WHOLE_EPISODES)
def test_whole_episodes_without_end_have_a_message(run: str) -> None:
    with getattr(raypid, run)(env=Follow, env_config={"num_steps": 0}, seed=0) as agent:
        with pytest.raises(
            UserError, match=r"An episode of toys:Follow did not end within 30,000 steps: set time_limit"
        ):
            agent.train()
