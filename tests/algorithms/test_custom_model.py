"""A model in any framework acts and computes gradients; raypid collects them, follows them, evaluates and saves."""

from __future__ import annotations

import importlib.util
import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import raypid
from raypid.algorithms.custom_model import CustomModel, CustomModelConfig
from raypid.cli import main
from raypid.envs import EnvSpec
from raypid.errors import UserError
from raypid.nn.catalog import build_spec
from raypid.nn.user_agent import AgentSource, DefaultAgent
from raypid.nn.user_model import Layout, ModelPolicy
from raypid.roles.acting import RolloutSpec
from raypid.roles.gradient_worker import GradientWorker
from raypid.run.agent import Agent
from raypid.settings.config import ConfigError, ModelConfig
from raypid.spaces import space_from_json, space_to_json
from raypid.types import Gradients

F = np.float32


class Goal(gymnasium.Env[Any, Any]):
    """Say what you are told: reward is minus the distance."""

    observation_space = spaces.Dict({"goal": spaces.Box(-1, 1, (2,), F), "step": spaces.Discrete(5)})
    action_space = spaces.Box(-1.5, 1.5, (2,), F)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def _seen(self) -> Any:
        self.goal = self.np_random.uniform(-1, 1, 2).astype(F)
        return {"goal": self.goal, "step": self.steps % 5}

    def step(self, action: Any) -> Any:
        assert np.abs(action).max() <= 1.5 and action.dtype == F
        self.steps += 1
        reward = -float(np.abs(action - self.goal).sum())
        return self._seen(), reward, False, self.steps == 10, {}


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (3,), F),
        spaces.Box(np.array([-1, -np.inf, 0.25]), np.array([1, 2, np.inf]), dtype=np.float64),
        spaces.Box(0, 255, (4, 8, 8), np.uint8),
        spaces.Box(-(2**62), 2**62 + 1, (2,), np.int64),
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, 0]]),
        spaces.MultiBinary((2, 3)),
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (), F)])}),
    ],
)
def test_a_space_survives_json(space: Any) -> None:
    import json

    assert space_from_json(json.loads(json.dumps(space_to_json(space)))) == space


def test_the_layout_is_the_model_s_own() -> None:
    weights = {"a": [np.ones((2, 3)), (np.full(1, 2.0, np.float16),)], "b": np.array(3.0, F)}
    layout = Layout(weights, "M")
    assert layout.table == (("a/0", (2, 3)), ("a/1/0", (1,)), ("b", ()))
    flat = layout.flat(weights, "step()")
    np.testing.assert_array_equal(flat, np.array([1] * 6 + [2, 3], F))
    flat.setflags(write=False)  # as it comes from the object store
    back = layout.parts(flat)
    assert isinstance(back["a"], list) and isinstance(back["a"][1], tuple)
    assert back["a"][0].dtype == np.float64 and back["a"][1][0].dtype == np.float16 and back["b"].dtype == F
    back["a"][0] += 1  # it is the model's to keep
    assert flat[0] == 1
    np.testing.assert_array_equal(layout.flat({"b": 1.0, "a": weights["a"]}, "step()")[-1], 1)  # by name, not by order


def network_of(model: str, custom: dict[str, Any] | None = None, env: Any = None) -> Any:
    env = env or gymnasium.make("CartPole-v1")
    spec = build_spec(env.observation_space, env.action_space, ModelConfig(network=model, custom=custom or {}))
    return CustomModel.network_spec(CustomModelConfig(), spec)


def rollout(network: Any, worker_index: int = 0) -> GradientWorker:
    env = EnvSpec(env="CartPole-v1", num_envs=3, seed=1)
    spec = RolloutSpec(env=env, network=network, fragment_length=12, seed=1)
    return GradientWorker(spec, partial(AgentSource, DefaultAgent, {}), worker_index)


def test_workers_differ_and_a_worker_goes_on_from_its_state() -> None:
    network = network_of("foreign:Reinforce")
    weights = CustomModel(CustomModelConfig(), network, 0).weights()
    one, two, again = rollout(network, 0), rollout(network, 1), rollout(network, 0)
    draws = [role.policy.model.rng.random() for role in (one, two)]  # type: ignore[attr-defined]
    assert draws[0] != draws[1]
    one.collect(weights)
    again.load_state_dict(one.state_dict())
    for role in (one, again):
        role.boundary(1)
    (report, a), (_, b) = one.collect(weights), again.collect(weights)
    np.testing.assert_array_equal(a.flat, b.flat)
    assert a.num_steps == report.num_steps == 36 and a.version == 0
    for role in (one, two, again):
        role.close()


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "sgd"])
def test_gradients_are_descended(optimizer: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"optimizer": optimizer, "lr": 0.1, "momentum": 0.5, "gradients_per_update": 2}
    network = network_of("foreign:Reinforce")
    algorithm = CustomModel(CustomModelConfig(**settings, max_grad_norm=1.0), network, 0)
    assert algorithm.weights().table == (("layers/0/w", (4, 2)), ("layers/1/b", (2,)))
    parts = [Gradients(np.full(10, g, F), 0, 5, {"loss": g}) for g in (1.0, 3.0)]
    update = algorithm.update(parts, 0)
    clipped = 1 / np.sqrt(10)
    step = {"adam": 1.0, "rmsprop": clipped / (0.1 * clipped + 0.01), "sgd": clipped}[optimizer]
    np.testing.assert_allclose(algorithm.network.flat, -0.1 * step, rtol=1e-3)
    assert update.metrics == pytest.approx({"loss": 2.0, "grad_norm": 2 * np.sqrt(10), "lr": 0.1})
    other = CustomModel(CustomModelConfig(**settings), network, 1)
    other.load_state_dict(algorithm.state_dict())
    for a in (algorithm, other):
        a.update(parts, 0)
    np.testing.assert_allclose(algorithm.network.flat, other.network.flat, rtol=0.7)  # the other does not clip
    assert algorithm.version == other.version == 2


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.ci_slow)])
def test_torch_dicts_boxes_and_what_was_saved(backend: str, ray_session: Any, tmp_path: Path) -> None:
    more: dict[str, Any] = {"num_workers": 2, "num_cpus_per_worker": 0.5} if backend == "ray" else {}
    model = {"network": "foreign:Reach", "custom": {"width": 16}}
    with raypid.CustomModel(env=Goal, seed=0, model=model, lr=0.03, fragment_length=16, **more) as agent:
        before = agent.eval(20)["episode_reward_mean"]
        result = agent.train(num_train_steps=25_000 if backend == "local" else 3_000)
        after = agent.eval(20)["episode_reward_mean"]
        assert result["learner/distance"] < (0.2 if backend == "local" else 1.5)
        assert backend == "ray" or after > 0.7 * before
        path = agent.save(tmp_path)
    policy = raypid.load_policy(path)
    goal = np.array([[0.5, -0.5], [0.1, 0.2]], F)
    found = policy.act({"goal": goal, "step": np.zeros(2, int)})
    np.testing.assert_allclose(found, goal, atol=0.6 if backend == "local" else 3)
    with Agent.from_checkpoint(path, num_workers=0, num_cpus_per_worker=1) as resumed:
        assert resumed.eval(20)["episode_reward_mean"] == after


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    settings = {"env": "CartPole-v1", "seed": 0, "num_workers": 2, "backend": "local", "exact_resume": True}
    with raypid.CustomModel(model={"network": "foreign:Reinforce"}, **settings) as agent:
        agent.train()
        path = agent.save(tmp_path)
        agent.train()
        weights = agent.get_weights().flat
    with Agent.from_checkpoint(path) as resumed:
        resumed.train()
        np.testing.assert_array_equal(resumed.get_weights().flat, weights)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("shape", r"Wrong.step\(\) returned shape \(2, 4\) for 'layers/0/w'; get_weights\(\) has shape \(4, 2\)"),
        ("nan", r"Wrong.step\(\) returned NaN or infinite gradients \(first: 'layers/1/b'\)"),
        ("less", r"Wrong.step\(\) returned nothing for 'layers/1/b'"),
        ("more", r"Wrong.step\(\) returned shape .* for 'layers/2/b'; get_weights\(\) has nothing"),
        ("action", r"Wrong.choose_actions\(\) returned actions of shape \(8, 1\); 8 observations take \(8,\)"),
        ("range", r"Wrong.choose_actions\(\) returned action 7; the environment takes 0 to 1"),
        ("float", r"Wrong.choose_actions\(\) returned actions of dtype float64; the environment takes integers"),
        (
            "extra",
            r"Wrong.choose_actions\(\) returned 'x' of shape \(3,\); extras have shape \(8, ...\)",
        ),
        ("sometimes", r"Wrong.choose_actions\(\) returned extras .* always the same"),
        ("text", r"Wrong.step\(\) returned metric 'x' = 'hello'; metrics are numbers"),
        ("array", r"Wrong.step\(\) returned metric 'x' = array"),
        ("none", r"Wrong.get_weights\(\) returned nothing; weights are arrays"),
        ("ints", r"Wrong.get_weights\(\) returned 0 as int64; weights are arrays of floating-point numbers"),
    ],
)
def test_faults_of_a_model(fault: str, says: str) -> None:
    model = {"network": "foreign:Wrong", "custom": {"fault": fault}}
    with pytest.raises(UserError, match=says), raypid.CustomModel(env="CartPole-v1", model=model) as agent:
        agent.train()


@pytest.mark.parametrize("backend", ["local", "ray"])
def test_what_a_model_raises_comes_with_its_place(backend: str, ray_session: Any) -> None:
    model = {"network": "foreign:Wrong", "custom": {"fault": "raise"}}
    more: dict[str, Any] = {"num_workers": 1, "num_cpus_per_worker": 0.5} if backend == "ray" else {}
    with raypid.CustomModel(env="CartPole-v1", model=model, **more) as agent:
        with pytest.raises(RuntimeError) as caught:
            agent.train()
    first, *_, last = str(caught.value).splitlines()
    assert first == "Traceback (most recent call last):" and str(caught.value).count("RuntimeError: my fault") == 1
    assert re.fullmatch(r"raypid: Wrong.step\(\) raised RuntimeError \(.*foreign.py:\d+\)\.", last)


def test_arrays_may_be_used_again_and_weights_may_want_gradients() -> None:
    with raypid.CustomModel(env="CartPole-v1", model={"network": "foreign:Reuses"}, seed=0) as agent:
        assert agent.train()["learner/steps"] == 128
        assert agent.get_weights().table == (("w", (3,)),)


def test_a_memory_is_told_where_episodes_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = {"network": "foreign:Remembers"}
    with raypid.CustomModel(env="CartPole-v1", seed=0, num_envs_per_worker=2, model=model) as agent:
        results = [agent.train() for _ in range(3)]
        path = agent.save(tmp_path)
    assert results[-1]["learner/oldest"] > 10 and sum(r["learner/begun"] for r in results) > 4
    policy = raypid.load_policy(path)
    assert [policy.act(np.zeros(4)) for _ in range(3)] == [0, 1, 0]
    policy.reset()
    assert policy.act(np.zeros(4)) == 0
    assert main(["eval", str(path), "--episodes", "2"]) == 0
    assert "2 episodes, the model's own actions" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Nested", "Pair"])
def test_nested_actions_come_back_as_they_were(name: str) -> None:
    class Both(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(0, 1, (1,), F)
        action_space = spaces.Tuple(
            [spaces.Discrete(2), spaces.Dict({"x": spaces.Box(-1, 1, (1,), F), "y": spaces.Discrete(2)})]
        )

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(1, F), {}

        def step(self, action: Any) -> Any:
            assert action[0] == 0 and action[1]["x"] == 1.0 and action[1]["y"] == 1, action
            return np.zeros(1, F), 0.0, False, False, {}

    with raypid.CustomModel(env=Both, model={"network": f"foreign:{name}"}, fragment_length=8) as agent:
        agent.train()


def test_an_observation_is_given_in_its_dtype(tmp_path: Path) -> None:
    with raypid.CustomModel(env=Goal, model={"network": "foreign:Reach"}) as agent:
        policy = raypid.load_policy(agent.save(tmp_path))
    assert policy.act({"goal": [0.5, 0.5], "step": 1}).dtype == F


@pytest.mark.parametrize(
    ("custom", "says"),
    [
        ({"width": 2.5}, "model.custom: argument --width: invalid int value: '2.5'"),
        ({"mode": "c"}, "model.custom: argument --mode: invalid choice: 'c'"),
    ],
)
def test_types_and_choices_of_arguments_hold(custom: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ModelPolicy(network_of("foreign:Typed", custom, Goal()), 0)


def test_arguments_as_they_are_given() -> None:
    policy = ModelPolicy(
        network_of("foreign:Typed", {"mode": "b", "fast": True, "sizes": [3, -4], "width": 5}, Goal()), 7
    )
    args = policy.model.args  # type: ignore[attr-defined]
    assert (args.mode, args.fast, args.sizes, args.width, args.seed, args.gamma) == ("b", True, [3, -4], 5, 7, 0.99)
    assert args.batch_size == 256 and args.device == "auto"
    for model, says in (("Clash", "`gamma` is already provided in args"), ("NotStatic", "put @staticmethod before it")):
        with pytest.raises(ConfigError, match=says):
            ModelPolicy(network_of(f"foreign:{model}", {}, Goal()), 0)


@pytest.mark.parametrize(
    ("run", "settings", "says"),
    [
        ("CustomModel", {}, r"CustomModel trains a whole model: model.network takes a2c, .*ppo"),
        (
            "CustomModel",
            {"model.network": "foreign:NoStep"},
            "NoStep lacks step, get_weights, set_weights; a model",
        ),
        ("PPO", {"model.network": "foreign:Reinforce"}, "is a whole model, which learns by itself: run CustomModel"),
        (
            "CustomModel",
            {"frame_stack": 4},
            "frame_stack has no effect for a model of your own, which is given observations",
        ),
        ("CustomModel", {"reward_scale": 0.1}, "reward_scale has no effect for a model of your own"),
        (
            "CustomModel",
            {"model.network": "foreign:Reinforce", "model.hidden": [32]},
            "model.hidden has no effect for a model of your own, whose arguments are in model.custom",
        ),
        ("CustomModel", {"kernel": "torch"}, "kernel has no effect for a model of your own, which learns by itself"),
        ("CustomModel", {"momentum": 2.0}, r"momentum must lie in \[0, 1\], not 2.0"),
        ("CustomModel", {"gradients_per_update": 0}, "gradients_per_update must be at least 1, not 0"),
    ],
)
def test_what_does_not_fit(run: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Agent(run, env="CartPole-v1", config=settings)


def test_arguments_are_the_model_s() -> None:
    env = Goal()
    with pytest.raises(ConfigError, match="Reach has no argument 'widht'. Did you mean 'width'"):
        CustomModel(CustomModelConfig(), network_of("foreign:Reach", {"widht": 3}, env), 0)
    algorithm = CustomModel(CustomModelConfig(), network_of("foreign:Reach", {"width": "5"}, env), 0)
    assert dict(algorithm.weights().table)["0.weight"] == (5, 2)


@pytest.mark.ci_slow
def test_the_model_of_the_documentation_learns(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    found = re.search(r"```python\n# softmax.py\n(.*?)```", text, re.DOTALL)
    assert found is not None
    (tmp_path / "softmax.py").write_text(found[1])
    spec = importlib.util.spec_from_file_location("softmax", tmp_path / "softmax.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    with raypid.CustomModel(env="CartPole-v1", seed=1, model={"network": "softmax"}, lr=0.02) as agent:
        for _ in range(4):
            agent.train(num_train_steps=100_000)
            if agent.eval(20)["episode_reward_mean"] >= 475:
                return
    raise AssertionError("475 was not reached")
