"""Agents in workers, the models ppo and a2c, and several learners that follow gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from foreign_agents import Careful, Faulty
from gymnasium import spaces
from member import Member, Members, fragment

import raypid
from raypid.algorithms.a3c import A3C, A3CConfig
from raypid.algorithms.models import PPOModel
from raypid.algorithms.ppo import PPO, PPOConfig
from raypid.errors import CodeError, UserError
from raypid.nn.catalog import build_spec
from raypid.nn.user_agent import AgentSource, DefaultAgent
from raypid.plugins.registry import AGENTS, NETWORKS
from raypid.settings.config import ConfigError, ModelConfig
from raypid.types import Gradients

F = np.float32
SMALL: dict[str, Any] = {"env": "CartPole-v1", "num_envs_per_worker": 3, "fragment_length": 16, "seed": 0}


def names_of(result: dict[str, Any]) -> set[str]:
    return {key for key in result if key.startswith("learner/")}


@pytest.mark.parametrize("backend", ["local", "ray"])
def test_an_agent_of_ones_own(backend: str, ray_session: Any) -> None:
    """One gradient a call, as many as it has, at the newest weights; arguments of its own."""
    more = {"num_workers": 2, "num_cpus_per_worker": 0.5} if backend == "ray" else {}
    model = {"network": "foreign:Reinforce"}
    settings = {**SMALL, "agent": "foreign_agents:Careful", "agent_config": {"passes": 3}, "model": model, **more}
    with raypid.CustomModel(settings) as agent:
        results = [agent.train() for _ in range(3)]
        updates = agent.num_updates
    assert {"learner/left", "learner/sent"} <= names_of(results[-1])
    workers = 2 if backend == "ray" else 1
    assert 3 * 3 * workers - 6 <= updates <= 3 * 3 * workers + 6  # three gradients of each fragment
    assert results[-1]["timesteps_total"] <= 4 * workers * 16 * 3
    with pytest.raises(ConfigError, match="agent_config: Careful has no argument 'passses'. Did you mean 'passes'"):
        raypid.CustomModel({**settings, "agent_config": {"passses": 1}})


def source(**config: Any) -> tuple[AgentSource, Any]:
    space = gymnasium.make("CartPole-v1")
    spec = build_spec(space.observation_space, space.action_space, ModelConfig(network="foreign:Reinforce"))
    from raypid.algorithms.custom_model import CustomModel, CustomModelConfig
    from raypid.nn.policy import make_policy

    policy = make_policy(CustomModel.network_spec(CustomModelConfig(gamma=0.5), spec))
    return AgentSource(Careful, config, policy), policy


class Valued:
    """Gives values to returns."""

    def values(self, observation: Any) -> Any:
        return observation[:, 0]


def test_returns_are_discounted_and_go_on_with_the_model_s_values() -> None:
    _, policy = source()
    t = fragment(1, masked=False)
    for model, bootstrap in ((policy.model, 0.0), (Valued(), 1.0)):
        policy.model = model
        returns = policy.returns(t)
        after = bootstrap * t.obs[1:, :, 0]
        if t.final is not None:
            after[t.final.t, t.final.b] = bootstrap * t.final.obs[:, 0]
        wanted = np.zeros_like(t.reward)
        for b in range(t.reward.shape[1]):
            for k in reversed(range(len(t.reward))):
                goes_on = k + 1 < len(t.reward) and not (t.terminated | t.truncated)[k, b] and t.valid[k + 1, b]
                rest = wanted[k + 1, b] if goes_on else 0.0 if t.terminated[k, b] else after[k, b]
                wanted[k, b] = t.reward[k, b] + 0.5 * rest
        np.testing.assert_allclose(returns[t.valid], wanted[t.valid], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("passes", "error", "says"),
    [
        (0, UserError, r"fetch_grads\(\) of the agent returned nothing but None for 100 fragments"),
        (
            1,
            CodeError,
            r"(?s)Traceback.*ValueError: my fault\nraypid: Faulty.fetch_grads\(\) raised ValueError \(.*foreign_agents.py",
        ),
        (
            2,
            UserError,
            r"Faulty.fetch_grads\(\) returned shape \(2, 2\) for 'layers/0/w'; get_weights\(\) has shape \(4, 2\)",
        ),
        (3, UserError, r"Faulty.fetch_grads\(\) returned NaN or infinite gradients \(first: 'layers/0/w'\)"),
    ],
)
def test_faults_of_an_agent(passes: int, error: type[Exception], says: str) -> None:
    model = {"network": "foreign:Reinforce"}
    settings = {**SMALL, "fragment_length": 16, "agent": "foreign_agents:Faulty", "agent_config": {"passes": passes}}
    with raypid.CustomModel(settings, model=model) as agent, pytest.raises(error, match=says):
        agent.train()


def test_methods_are_checked_where_a_class_is_registered() -> None:
    with pytest.raises(
        UserError, match="Lacking lacks send_trajectory; an agent has set_weights, send_trajectory, fetch_grads"
    ):

        @raypid.register_agent("lacking")
        class Lacking:
            set_weights = fetch_grads = len

    with pytest.raises(UserError, match="Silent lacks choose_actions; a model has choose_actions, step, get_weights"):

        @raypid.register_model("silent")
        class Silent:
            step = get_weights = set_weights = len

    with pytest.raises(UserError, match="Still lacks step; an environment has reset, step"):

        @raypid.register_env("still")
        class Still:
            reset = len


def test_a_name_for_other_code_names_both_places() -> None:
    raypid.register_agent("twice", Careful)
    raypid.register_agent("twice", Careful)
    try:
        with pytest.raises(
            UserError,
            match=r"agent 'twice' is registered already, by foreign_agents:Careful: give foreign_agents:Faulty",
        ):
            raypid.register_agent("twice", Faulty)
        with pytest.raises(UserError, match="'default_agent' is the name of raypid's own agent"):
            raypid.register_agent("default_agent", Careful)
        with pytest.raises(UserError, match="'ppo' is the name of raypid's own network"):
            raypid.register_model("ppo", torch_free_model())
    finally:
        AGENTS._entries.pop("twice")


def torch_free_model() -> type:
    from foreign import Reinforce

    return Reinforce


# -- the models ppo and a2c ----------------------------------------------------------------------------------------


def test_ppo_s_gradients_are_those_of_the_algorithm() -> None:
    """One worker, gradients followed at once: the numbers of PPO's own update on the same fragment."""
    env = gymnasium.make("CartPole-v1")
    from argparse import Namespace

    own: Any = {
        "gae_lambda": 0.95,
        "value_coef": 0.5,
        "entropy_coef": 0.01,
        "normalize_advantages": True,
        "scale_rewards": False,
    }
    own |= {"num_epochs": 2, "clip": 0.2, "value_clip": None, "hidden": [8], "gamma": 0.9, "batch_size": 16, "seed": 3}
    model = PPOModel(Namespace(**own, observation_space=env.observation_space, action_space=env.action_space))
    start = {name: array.copy() for name, array in model.get_weights().items()}
    rng = np.random.default_rng(0)
    t = fragment(1, masked=False)
    obs = t.obs.reshape(-1, 4)
    actions, extras = model.choose_actions(obs[: t.action.size], rng=rng)
    t.action = actions.reshape(t.action.shape)
    t.behaviour = {name: x.reshape(*t.action.shape, *x.shape[1:]) for name, x in extras.items()}
    settings = {
        "gae_lambda": 0.95,
        "normalize_rewards": False,
        "num_epochs": 2,
        "batch_size": 16,
        "gamma": 0.9,
        "max_grad_norm": None,
    }
    spec = build_spec(env.observation_space, env.action_space, ModelConfig(hidden=(8,)))
    algorithm = PPO.make(PPOConfig().replace({**settings, "lr": 0.01}), spec, 3)
    twin, taken = PPO.make(PPOConfig().replace({**settings, "lr": 0.01}), spec, 3), 0
    values = model.values(obs).reshape(t.first.shape)
    behaviour = {"log_prob": t.behaviour["log_prob"], "value": values}
    if t.final is not None:
        behaviour["final_value"] = model.values(t.final.obs)
    from dataclasses import replace

    algorithm.update(replace(t, behaviour=behaviour, moments=None), 0)
    for gradient, metrics in model.step(t):
        flat = np.concatenate([gradient[name].ravel() for name, _ in twin.network.table])
        twin.optimizer.load_gradient(flat)
        twin.optimizer.descend(0.01)
        model.set_weights(_named(twin))
        taken += 1
        assert {"policy_loss", "kl"} <= metrics.keys()
    assert taken >= 2
    np.testing.assert_allclose(twin.network.numpy(), algorithm.network.numpy(), rtol=1e-5, atol=1e-6)
    assert any((model.get_weights()[name] != start[name]).any() for name in start)


def _named(algorithm: Any) -> dict[str, Any]:
    from raypid.types import flat_views

    return dict(flat_views(algorithm.network.numpy().copy(), algorithm.network.table))


class Both(gymnasium.Env[Any, Any]):
    observation_space = spaces.Dict({"x": spaces.Box(-1, 1, (2,), F), "k": spaces.Discrete(3)})
    action_space = spaces.Dict({"a": spaces.Box(-2, 2, (2,), F), "b": spaces.Discrete(3)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains({"a": action["a"].astype(F), "b": action["b"]})
        self.steps += 1
        return self.observation_space.sample(), float(action["a"].sum()), False, self.steps == 7, {}


@pytest.mark.parametrize("model", ["ppo", "a2c"])
@pytest.mark.parametrize("env", ["Pendulum-v1", Both], ids=["box", "nested"])
def test_the_built_in_models_take_any_space(model: str, env: Any, tmp_path: Any) -> None:
    with raypid.CustomModel(
        env=env, model_name=model, num_envs_per_worker=2, fragment_length=20, batch_size=16, seed=0
    ) as agent:
        agent.train()
        result = agent.train()
        path = agent.save(tmp_path)
        weights = agent.get_weights().flat
    assert {"learner/policy_loss", "learner/value_loss", "learner/entropy"} <= names_of(result)
    with raypid.Agent.from_checkpoint(path) as resumed:
        np.testing.assert_array_equal(resumed.get_weights().flat, weights)
        resumed.train()


def test_a_run_of_several_passes_goes_on_exactly(tmp_path: Any) -> None:
    settings = {
        **SMALL,
        "model_name": "ppo",
        "batch_size": 16,
        "exact_resume": True,
        "num_workers": 2,
        "backend": "local",
    }
    with raypid.CustomModel(settings) as agent:
        agent.train()
        path = agent.save(tmp_path)
        agent.train()
        weights = agent.get_weights().flat
    with raypid.Agent.from_checkpoint(path) as resumed:
        resumed.train()
        np.testing.assert_array_equal(resumed.get_weights().flat, weights)


@pytest.mark.ci_slow
@pytest.mark.parametrize("model", ["ppo", "a2c"])
def test_the_built_in_models_learn(model: str) -> None:
    with raypid.CustomModel(env="CartPole-v1", model_name=model, seed=0) as agent:
        for _ in range(10):
            agent.train(num_train_steps=30_000)
            if agent.eval(20)["episode_reward_mean"] >= 475:
                return
    raise AssertionError("475 was not reached")


# -- several learners ----------------------------------------------------------------------------------------------


def test_several_learners_follow_all_gradients(members: Members) -> None:
    """Each brings the gradients of its own workers; together they take the step of one learner with all of them."""
    env = gymnasium.make("CartPole-v1")
    spec = build_spec(env.observation_space, env.action_space, ModelConfig(hidden=(8,)))
    config = A3CConfig(gradients_per_update=4, lr=0.01, kernel="numpy")
    alone = A3C.make(config, spec, 5)
    size = alone.network.numpy().size
    parts = [
        Gradients(np.random.default_rng(k).normal(size=size).astype(F), 0, 5, {"loss": float(k)}) for k in range(4)
    ]
    update = alone.update(parts, 0)
    build = partial(A3C, config, spec, 5)
    found = members.call(Member.follow, (build, parts[:1]), (build, parts[1:2]), (build, parts[2:]))
    for flat, metrics in found:
        np.testing.assert_allclose(flat, alone.network.numpy(), rtol=1e-5, atol=1e-7)
        assert metrics == pytest.approx(update.metrics, rel=1e-5)
    np.testing.assert_array_equal(found[0][0], found[1][0])


@pytest.mark.slow
def test_agents_learn_with_two_learners(ray_session: Any) -> None:
    settings = {**SMALL, "model_name": "ppo", "num_workers": 2, "num_learners": 2, "num_cpus_per_worker": 0.5}
    with raypid.CustomModel(settings, fragment_length=64) as agent:
        for _ in range(6):
            agent.train(num_train_steps=8_000)
            if agent.eval(10)["episode_reward_mean"] > 150:
                return
    raise AssertionError("150 was not reached")


def test_default_agent_hands_over_what_step_takes() -> None:
    class Model:
        def set_weights(self, weights: Any) -> None:
            self.weights = weights

        def step(self, trajectory: Any, Rs: Any = None) -> Any:
            return trajectory, Rs, self.weights

    model: Any = Model()
    agent = DefaultAgent(None, model)
    assert agent.fetch_grads(0) is None
    agent.send_trajectory("a", "r")  # type: ignore[arg-type]
    agent.send_trajectory("b", "s")  # type: ignore[arg-type]
    assert [agent.fetch_grads(k) for k in (1, 2, 3)] == [("a", "r", 1), ("b", "s", 2), None]


def test_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from raypid.cli import main

    assert main(["list", "models"]) == 0 and {"a2c", "ppo"} <= set(capsys.readouterr().out.split())
    assert main(["list", "networks"]) == 0 and "ppo" not in capsys.readouterr().out.split()
    assert main(["list", "agents"]) == 0 and "default_agent" in capsys.readouterr().out
    assert NETWORKS.is_own("ppo")
