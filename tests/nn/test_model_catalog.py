"""ModelCatalog picks what agents pick, and what it makes can act and learn by itself."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import raypid
import raypid.envs
from raypid.settings.config import ConfigError


@pytest.mark.parametrize(
    ("env", "model", "dim", "shape"),
    [
        ("CartPole-v1", None, 2, (3,)),
        ("CartPole-v1", {"network": "gru"}, 2, (3,)),
        ("Pendulum-v1", None, 1, (3, 1)),
        ("Pendulum-v1", {"distribution": "squashed_gaussian"}, 2, (3, 1)),
        ("Pendulum-v1", {"distribution": "deterministic"}, 1, (3, 1)),
        ("raypid/Catch-v0", {"network": "cnn"}, 3, (3,)),
        ("raypid/MultiMatch-v0", None, 8, (3, 2)),
    ],
)  # fmt: skip
def test_it_does_what_agents_do(env: str, model: Any, dim: int, shape: tuple[int, ...]) -> None:
    made = gymnasium.make(env)
    obs = np.stack([made.reset(seed=i)[0] for i in range(3)])
    dist_class, dist_dim = raypid.ModelCatalog.get_action_dist(made.action_space, model)
    network = raypid.ModelCatalog.get_model(made.observation_space, made.action_space, model, seed=1)
    params, value, state = network(obs)
    assert dist_dim == dim == params.shape[1] and value.shape == (3,)
    dist = dist_class(params, network.log_std)
    action = dist.sample(np.random.default_rng(0))
    assert action.shape == shape == dist.mode().shape
    assert all(made.action_space.contains(a) for a in network.to_env(action))
    (dist.log_prob(action).sum() + dist.entropy().sum() + value.sum()).backward()
    assert next(network.parameters()).grad is not None
    assert (state is not None) == bool(model and model.get("network") == "gru")
    if state is not None:
        assert (network(obs, state)[0] != network(obs)[0]).any()
    if model == {"distribution": "deterministic"}:  # PPO takes none
        return
    with raypid.PPO(env=env, model=model or {}, seed=1) as agent:
        ours, theirs = network.spec, agent.network
        assert (ours.network, ours.hidden, ours.memory, ours.actions) == (
            theirs.network, theirs.hidden, theirs.memory, theirs.actions,
        )  # fmt: skip


def test_numpy_serves_too() -> None:
    dist_class, dist_dim = raypid.ModelCatalog.get_action_dist(gymnasium.spaces.Discrete(3))
    dist = dist_class(np.array([[0.0, 0.0, 9.0]], np.float32))
    assert dist_dim == 3 and dist.mode() == [2] and dist.log_prob(np.array([2]))[0] > -0.01
    assert dist.sample().shape == (1,)


def test_a_mask_rules_choices_out() -> None:
    space = gymnasium.spaces.Dict(x=gymnasium.spaces.Box(-1, 1, (2,)), action_mask=gymnasium.spaces.MultiBinary(3))
    network = raypid.ModelCatalog.get_model(space, gymnasium.spaces.Discrete(3))
    params, _, _ = network({"x": np.zeros((2, 2)), "action_mask": np.array([[1, 1, 0], [0, 1, 1]])})
    assert params[0, 2] < -1e7 and params[1, 0] < -1e7 and params[0, 0] > -1


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="Unknown setting 'hiden'. Did you mean 'hidden'"):
        raypid.ModelCatalog.get_action_dist(gymnasium.spaces.Discrete(3), {"hiden": [3]})
