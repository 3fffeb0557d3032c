"""Environments without Gymnasium's interface: OBSERVATION, args, seed(n), @ray.remote; creators of any signature."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import raypid
from raypid import OBSERVATION
from raypid.envs import EnvError, EnvSpec, make_vector, sample
from raypid.plugins.registry import ENVS

F = np.float32


class Plain:
    """Counts; what `reset` begins at is drawn."""

    observation_space, action_space = spaces.Box(-100, 100, (1,), F), spaces.Discrete(2)
    returns: Any = OBSERVATION

    def __init__(self, args: Any) -> None:
        self.args, self.rng = args, np.random.default_rng()

    @staticmethod
    def add_args(parser: Any) -> None:
        parser.add_argument("--length", type=int, default=4)

    def reset(self) -> Any:
        self.x, self.steps = float(self.rng.integers(50)), 0
        return OBSERVATION(np.array([self.x], F), info={"begun": True})

    def step(self, action: Any, **kwargs: Any) -> Any:
        self.steps += 1
        return OBSERVATION(
            np.array([self.x + self.steps], F), 1.5, truncated=self.steps >= self.args.length, info={"k": 1}
        )


class Seeded(Plain):
    def seed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)


def spec(env: Any, **config: Any) -> EnvSpec:
    return EnvSpec(env=env, env_config=config, num_envs=2, vectorizer="sync", seed=3)


def episode(env: EnvSpec) -> tuple[list[float], list[bool], dict[Any, Any]]:
    vector, action = make_vector(env), np.zeros(2, np.int64)
    obs, ends, infos = [float(vector.reset()[0, 0])], [], {}
    for _ in range(5):
        step = vector.step(action)
        obs.append(float(step.obs[0, 0]))
        ends.append(bool(step.truncated[0]))
        infos |= step.infos
    vector.close()
    return obs, ends, infos


def test_observations_are_gymnasium_s_tuples() -> None:
    assert OBSERVATION(3) == (3, 0.0, False, False, {})
    obs, ends, infos = episode(spec(Plain, length=3))
    assert (
        np.diff(obs)[:3].tolist() == [1, 1, 1] and ends == [False, False, True, False, False] and infos[0] == {"k": 1}
    )


def test_a_seed_is_given_where_there_is_a_way() -> None:
    assert episode(spec(Seeded)) == episode(spec(Seeded))
    assert episode(spec(Plain))[0] != episode(spec(Plain))[0]
    assert (
        sample(spec(Seeded)).is_seeded and not sample(spec(Plain)).is_seeded and sample(spec("CartPole-v1")).is_seeded
    )
    small: dict[str, Any] = {"fragment_length": 8, "num_envs_per_worker": 1, "seed": 0}
    with raypid.PPO(env=Plain, **small) as agent:
        assert [n for n in agent.notes if "cannot be seeded: its reset() takes no seed, and it has no seed(n)" in n]
    with raypid.PPO(env=Seeded, **small) as agent:
        assert not [n for n in agent.notes if "seeded" in n]


def test_arguments_are_the_class_s() -> None:
    assert episode(spec(Plain, length=1))[1][0]
    with pytest.raises(EnvError, match="env_config: Plain has no argument 'lenght'. Did you mean 'length'"):
        make_vector(spec(Plain, lenght=1))
    with pytest.raises(EnvError, match="argument --length: invalid int value: 'x'"):
        make_vector(spec(Plain, length="x"))


def test_the_class_within_ray_s_remote_is_used() -> None:
    ray = pytest.importorskip("ray")
    made = raypid.register_env("remote", ray.remote(Seeded))
    try:
        assert type(made) is not type and ENVS.get("remote") is Seeded
        assert episode(spec("remote"))[0] == episode(spec(Seeded))[0]
    finally:
        ENVS._entries.pop("remote")


@pytest.mark.parametrize(
    "returned", [np.zeros(1, F), (np.zeros(1, F), 0.0, True), None], ids=["array", "three", "none"]
)
@pytest.mark.parametrize("method", ["reset", "step"])
def test_other_results_are_named(method: str, returned: Any) -> None:
    wrong = type("Wrong", (Seeded,), {method: lambda self, *action: returned})
    with pytest.raises(EnvError, match=rf"{method}\(\) must return \(obs, "):
        episode(spec(wrong))


@pytest.mark.parametrize("vectorizer", ["sync", "async"])
def test_a_limit_and_processes(vectorizer: str) -> None:
    env = EnvSpec(env=Seeded, num_envs=2, vectorizer=vectorizer, time_limit=2, seed=3)
    vector = make_vector(env)
    vector.reset()
    ends = [vector.step(np.zeros(2, np.int64)).truncated.tolist() for _ in range(3)]
    vector.close()
    assert ends == [[False, False], [True, True], [False, False]]


def cart(**more: Any) -> Any:
    return gymnasium.make("CartPole-v1", **more)


@pytest.mark.parametrize(
    "creator",
    [
        lambda config: cart(max_episode_steps=config["steps"]),
        lambda _: cart(max_episode_steps=_["steps"]),
        lambda anything: cart(max_episode_steps=anything["steps"]),
        lambda steps: cart(max_episode_steps=steps),
        lambda **more: cart(max_episode_steps=more["steps"]),
    ],
    ids=["config", "underscore", "any name", "its own name", "keywords"],
)
def test_creators_of_any_signature(creator: Any) -> None:
    vector = make_vector(EnvSpec(env=creator, env_config={"steps": 1}, num_envs=1, vectorizer="sync"))
    vector.reset()
    assert vector.step(np.zeros(1, np.int64)).truncated.all()
    vector.close()


def test_creators_without_a_parameter() -> None:
    make_vector(EnvSpec(env=lambda: cart(), num_envs=2)).close()
