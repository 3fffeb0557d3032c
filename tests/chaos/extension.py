"""What a user may write in a script, in a notebook or in a module: an algorithm, a network, a model, callbacks, a reward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

import raypid
from raypid.algorithms.ppo import PPO, PPOConfig


@dataclass(kw_only=True, slots=True)
class MineConfig(PPOConfig):
    bonus: float = 0.5
    """A number that the loss reports."""


class Mine(PPO):
    Config = MineConfig

    def loss(self, *args, **kwargs):
        loss, metrics = super().loss(*args, **kwargs)
        return loss, {**metrics, "mine": loss.detach() * 0 + self.config.bonus}


class Counting(PPO):
    def update(self, batch, timesteps):
        update = super().update(batch, timesteps)
        update.metrics["rows"] = float(batch.num_valid)
        return update


class Wide(torch.nn.Module):
    def __init__(self, spec, width=8):
        super().__init__()
        self.layer = torch.nn.Linear(spec.pipeline.vector_size, width)

    def forward(self, x):
        return torch.relu(self.layer(x))


class Chance:
    def __init__(self, args):
        self.weights = {"w": np.zeros(2, np.float32)}

    def choose_actions(self, observation, rng=None):
        return rng.integers(2, size=len(observation))

    def step(self, trajectory):
        return {"w": np.ones(2)}, {"chance": 0.25}

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = weights


class Told(raypid.Callbacks):
    def on_episode_end(self, info):
        return {"told": 7.0}

    def on_iteration(self, result):
        result["seen"] = 1.0


class Constant(raypid.IntrinsicReward):
    several_learners = True

    def __init__(self, spec, gamma, seed):
        pass

    def reward(self, trajectory):
        return np.full(trajectory.reward.shape, 3.0, np.float32)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def metrics(self):
        return {"constant": 3.0}
