"""SAC learns with a network that a user registered, in the policy and in the critics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import raypid
from raypid.plugins.registry import NETWORKS


class Encoder(torch.nn.Module):
    def __init__(self, spec: Any) -> None:
        super().__init__()
        size = spec.pipeline.vector_size + sum(int(np.prod(shape)) for _, shape in spec.images)
        self.layer = torch.nn.Linear(size, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x.flatten(1)))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NETWORKS, "_entries", {**NETWORKS._entries, "t-encoder": Encoder})


@pytest.mark.parametrize(
    "run, env", [("SAC", "Pendulum-v1"), ("SAC", "raypid/Catch-v0"), ("TD3", "Pendulum-v1"), ("DQN", "raypid/Catch-v0")]
)
def test_the_networks_are_the_registered_one_and_change(run: str, env: str, tmp_path: Any) -> None:
    settings = {
        "env": env,
        "seed": 0,
        "start_steps": 64,
        "start_episodes": 0,
        "batch_size": 16,
        "num_threads": 1,
        "buffer_size": 2_000,
    }
    model = {"network": "t-encoder", "hidden": [16]}
    with raypid.Agent(run, settings, model=model, steps_per_iteration=128) as agent:
        networks = agent.context.learner.role.algorithm.networks
        before = {name: network.numpy().copy() for name, network in networks.items()}
        assert all(
            "layer.weight" in " ".join(n for n, _ in networks[name].table) for name in networks if name != "alpha"
        )
        assert np.isfinite(agent.train(256)["learner/q"])
        assert all((network.numpy() != before[name]).any() for name, network in networks.items())
        saved = agent.save(tmp_path)
        after = {name: network.numpy().copy() for name, network in networks.items()}
    with raypid.Agent.from_checkpoint(saved) as agent:
        networks = agent.context.learner.role.algorithm.networks
        for name, flat in after.items():
            np.testing.assert_array_equal(networks[name].numpy(), flat)


@pytest.mark.slow
def test_sac_learns_pendulum_with_a_registered_network() -> None:
    settings = {"start_steps": 500, "lr": 2e-3, "samples_per_insert": 128, "batch_size": 128, "num_threads": 1}
    with raypid.Agent(
        "SAC", settings, env="Pendulum-v1", seed=0, model={"network": "t-encoder", "hidden": [64]}
    ) as agent:
        agent.train(5_000)
        assert agent.eval(20)["episode_reward_mean"] > -400


@pytest.mark.slow
def test_several_learners_keep_critics_on_a_registered_network_together(ray_session: Any) -> None:
    settings = {"start_steps": 64, "batch_size": 16, "num_workers": 2, "num_learners": 2, "num_cpus_per_worker": 0.5}
    with raypid.Agent("SAC", settings, env="Pendulum-v1", seed=0, model={"network": "t-encoder"}) as agent:
        assert np.isfinite(agent.train(500)["learner/q"])
