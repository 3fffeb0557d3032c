"""The agent learns in both environments, and the model's gradients are right."""

import numpy as np
import pytest

import raypid

SETTINGS = {
    "env_name": "custom_env",
    "agent_name": "custom_agent",
    "model_name": "custom_model",
    "lr": 0.1,
    "seed": 0,
}


@pytest.mark.parametrize("env_name, goal", [("custom_env", 0.8), ("custom_env_wrapper", 150)])
def test_it_learns(env_name, goal):
    with raypid.CustomModel(**{**SETTINGS, "env_name": env_name}) as agent:
        before = agent.eval(50)["episode_reward_mean"]
        agent.train(num_train_steps=30_000)
        assert agent.eval(50)["episode_reward_mean"] > max(before, goal)


def test_gradients_are_slopes():
    """The model's gradient against differences of its loss."""
    with raypid.CustomModel(**SETTINGS) as agent:
        model = raypid.load_policy(agent.save("runs/test")).policy.model
    rng = np.random.default_rng(0)
    obs = rng.random((1, 1))
    p = model.probabilities(obs)
    weights = model.get_weights()
    weights["bias"][0] += 1e-5
    slope = (np.log(model.probabilities(obs)) - np.log(p))[0, 0] / 1e-5
    np.testing.assert_allclose(slope, 1 - p[0, 0], atol=1e-3)
