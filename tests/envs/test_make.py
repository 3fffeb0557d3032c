"""What can be given as env, and what is said where it cannot be."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from contextlib import closing
from typing import Any

import cases
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from raypid.envs import EnvError, EnvSpec, check, list_envs, make_vector, portable, register_env, resolve, spaces
from raypid.plugins.registry import ENVS


@pytest.fixture(autouse=True)
def _restore_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENVS, "_entries", dict(ENVS._entries))


def dict_style(config: dict[str, Any]) -> gymnasium.Env:
    env = cases.Counter(start=config["stream_index"])
    env.worker = config["worker_index"]
    env.given = config["given"]
    return env


def test_every_way_to_name_an_environment() -> None:
    register_env("by-call", cases.Counter)
    register_env("by-string", "cases:Counter")

    @register_env("by-decorator")
    def create(lengths: tuple[int, ...] = (3,)) -> gymnasium.Env:
        return cases.Counter(lengths)

    for env in ("by-call", "by-string", "by-decorator", create, cases.Counter, "cases:Counter", "cases:counter"):
        vector = make_vector(EnvSpec(env=env, num_envs=2))
        assert vector.reset().tolist() == [[0, 0], [0, 0]]
    assert {"by-call", "CartPole-v1", "raypid/Catch-v0"} <= set(list_envs())
    observation, action = spaces(EnvSpec(env="cases:Counter", num_envs=9, vectorizer="async"))
    assert observation.shape == (2,) and action.n == 2


def test_indices_reach_constructors() -> None:
    spec = EnvSpec(env=dict_style, env_config={"given": 7}, num_envs=3, worker_index=4)
    vector = make_vector(spec)
    assert [(e.start, e.worker, e.given) for e in vector.envs] == [(0, 4, 7), (1, 4, 7), (2, 4, 7)]


def test_vector_class() -> None:
    register_env("vector", CartPoleVectorEnv)
    vector = make_vector(EnvSpec(env="vector", num_envs=3, time_limit=9))
    assert vector.vectorizer == "native" and vector.reset().shape == (3, 4)


def test_choice_of_vectorizer() -> None:
    assert check(EnvSpec(env="CartPole-v1", num_envs=8))[1] == "native"
    assert check(EnvSpec(env="CartPole-v1", num_envs=8, action_repeat=2))[1] == "auto"
    assert check(EnvSpec(env="CartPole-v1", num_envs=8, wrappers=(lambda e: e,)))[1] == "auto"
    assert check(EnvSpec(env="CartPole-v1", num_envs=8, env_config={"nonsense": 1}))[1] == "auto"
    assert check(EnvSpec(env="Pendulum-v1", vectorizer="async"))[1] == "async"


class Network:
    def forward(self, x: Any) -> Any: ...
    def __call__(self, x: Any) -> Any: ...


class Learns:
    def choose_actions(self, obs: Any) -> Any: ...
    def step(self, trajectory: Any) -> Any: ...


class Decides:
    def fetch_grads(self, weights: Any) -> Any: ...


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (EnvSpec(env="CartPoll-v1"), "Unknown environment 'CartPoll-v1'. Did you mean 'CartPole-v1'"),
        (EnvSpec(env="CartPole-v7"), "Unknown environment 'CartPole-v7'. Did you mean 'CartPole-v1'"),
        (EnvSpec(env="CartPole"), "Unknown environment 'CartPole'. Did you mean 'CartPole-v1'"),
        (EnvSpec(env="raypid/Cach-v0"), "Did you mean 'raypid/Catch-v0'"),
        (EnvSpec(env="qwrtpsdfghjk"), "raypid list envs"),
        (EnvSpec(env="no_such_module:Thing"), "there is no module 'no_such_module'"),
        (EnvSpec(env="cases:Walkk"), "module 'cases' has no 'Walkk'. Did you mean 'cases:Walk'"),
        (EnvSpec(env=42), "env is a int, and every worker makes its own"),
        (EnvSpec(env=dict), "env is class dict"),
        (
            EnvSpec(env=Network),
            'env is the class Network, .* raypid.register_network\\("mine", Network\\), then model=',
        ),
        (EnvSpec(env=Network()), "env is an object of class Network, .* Register it first: "),
        (EnvSpec(env=Learns), 'env is the class Learns, .* raypid.register_model\\("mine", Learns\\), then model='),
        (
            EnvSpec(env=Decides),
            'env is the class Decides, .* raypid.register_agent\\("mine", Decides\\), then agent=',
        ),
        (EnvSpec(env=cases.Counter()), "env is a Counter, and every worker makes its own"),
        (EnvSpec(env=lambda: 3), "gave an object of type int without reset, step"),
        (
            EnvSpec(env="Pendulum-v1", vectorizer="native"),
            "vectorizer 'native' cannot step 'Pendulum-v1': take auto, sync",
        ),
        (EnvSpec(env="Pendulum-v1", vectorizer="ale"), "vectorizer 'ale' cannot step 'Pendulum-v1'"),
        (EnvSpec(env="Pendulum-v1", vectorizer="envpool"), "vectorizer 'envpool' cannot step 'Pendulum-v1'"),
        (EnvSpec(env="Pendulum-v1", vectorizer="snyc"), "Unknown vectorizer 'snyc'. Did you mean 'sync'"),
        (EnvSpec(env="Pendulum-v1", num_envs=0), "num_envs is 0"),
        (EnvSpec(env="Pendulum-v1", atari=True), "atari=True needs an Atari game"),
        (EnvSpec(env="CartPole-v1", vectorizer="native", action_repeat=4), "action_repeat=4 needs Python environments"),
        (EnvSpec(env="Pendulum-v1", env_config={"nonsense": 1}), "could not be made: TypeError: .*nonsense"),
    ],
)
def test_bad_input_is_explained(spec: EnvSpec, text: str) -> None:
    with pytest.raises(EnvError, match=text):
        make_vector(spec)


@pytest.mark.parametrize(
    ("module", "package", "env", "extra"),
    [
        ("Box2D", "box2d", "LunarLander-v3", "box2d"),
        ("mujoco", "mujoco", "HalfCheetah-v5", "mujoco"),
        ("ale_py", "ale_py", "ALE/Pong-v5", "atari"),
        ("envpool", "envpool", "envpool:Pong-v5", "envpool"),
    ],
)
def test_missing_packages_name_their_extra(
    module: str, package: str, env: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == module else real(name, *a))
    with pytest.raises(EnvError, match=rf'pip install .*\[{extra}\]"$'):
        resolve(env)


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (gym_spaces.Text(5), "is Text"),
        (gym_spaces.Dict(a=gym_spaces.Tuple((gym_spaces.Discrete(2), gym_spaces.Text(5)))), "at 'a/1' is Text"),
        (gym_spaces.Sequence(gym_spaces.Discrete(2)), "is Sequence"),
        (gym_spaces.Graph(gym_spaces.Discrete(2), None), "is Graph"),
        (gym_spaces.OneOf((gym_spaces.Discrete(2),)), "is OneOf"),
        (gym_spaces.Dict(), "is empty"),
    ],
)
@pytest.mark.parametrize("role", ["observation", "action"])
@pytest.mark.parametrize("vectorizer", ["sync", "async"])
def test_spaces_are_refused_by_name(space: Any, text: str, role: str, vectorizer: str) -> None:
    spec = EnvSpec(env=cases.WithSpace, env_config={"space": space, "role": role}, num_envs=2, vectorizer=vectorizer)
    with pytest.raises(EnvError, match=rf"WithSpace: the {role} space .*{text}"):
        make_vector(spec)


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, raypid.envs as e; e.resolve('CartPole-v1'); e.make_vector(e.EnvSpec(env='CartPole-v1')).reset();"
        "print([m for m in ('torch', 'ray', 'envpool', 'ale_py', 'mujoco', 'Box2D', 'cv2') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.stdout.strip() == "[]", out.stderr
    assert np.__name__ in sys.modules


def test_what_is_registered_here_works_elsewhere() -> None:
    gymnasium.register("Elsewhere-v0", entry_point=cases.Counter)
    register_env("elsewhere", cases.Counter)
    carried = [portable(env) for env in ("Elsewhere-v0", "elsewhere", "CartPole-v1", cases.Counter)]
    del gymnasium.registry["Elsewhere-v0"], ENVS._entries["elsewhere"]
    assert carried[1:] == [cases.Counter, "CartPole-v1", cases.Counter]
    for env in carried:
        make_vector(EnvSpec(env=env, num_envs=2)).reset()
    del gymnasium.registry["Elsewhere-v0"]


class _Slips(gymnasium.Env[Any, Any]):
    """What old environments do: a key that is needed, an observation alone, and one done for two."""

    observation_space, action_space = gym_spaces.Box(-1, 1, (2,)), gym_spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.slip = config["slip"]

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs = self.observation_space.sample()
        return obs if self.slip == "reset" else (obs, {})

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, {}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, r"could not be made: KeyError: .slip."),
        ({"slip": "reset"}, r"returned an ndarray. Write: return obs, \{\}"),
        ({"slip": "step"}, r"a tuple of 4. Split done into terminated"),
    ],
)
@pytest.mark.parametrize(("vectorizer", "limit"), [("sync", None), ("async", None), ("async", 9)])
def test_slips_of_old_environments_are_explained(
    config: dict[str, Any], text: str, vectorizer: Any, limit: int | None
) -> None:
    """Also where a time limit would take the result apart in a process of its own."""
    spec = EnvSpec(env=_Slips, env_config=config, num_envs=1, vectorizer=vectorizer, time_limit=limit)
    with pytest.raises(EnvError, match=text), closing(make_vector(spec)) as vector:
        vector.reset()
        vector.step(np.zeros(1, np.int64))


def test_a_repeated_action_hands_on_what_is_no_step() -> None:
    spec = EnvSpec(env=_Slips, env_config={"slip": "step"}, num_envs=1, action_repeat=2)
    with (
        pytest.raises(EnvError, match="a tuple of 4. Split done into terminated"),
        closing(make_vector(spec)) as vector,
    ):
        vector.reset()
        vector.step(np.zeros(1, np.int64))
