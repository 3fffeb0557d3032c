"""An environment of your own with Gymnasium's interface: walk along a corridor to a target."""

import gymnasium
import numpy as np

import raypid


@raypid.register_env("custom_env")
class CustomEnv(gymnasium.Env):
    """Each step goes left, stays or goes right; the episode ends at the target."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, corridor_size=10, step_cost=0.02):
        self.size, self.step_cost = corridor_size, step_cost

    @staticmethod
    def add_args(parser):
        """Arguments of the constructor that are to be options: they show in `raypid train --help`. You may leave this out."""
        parser.add_argument("--corridor_size", type=int, default=10, help="places in the corridor")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.target = self.np_random.choice(self.size, 2, replace=False)
        self.steps = 0
        return self.seen(), {}

    def step(self, action):
        self.place = int(np.clip(self.place + action - 1, 0, self.size - 1))
        self.steps += 1
        arrived = bool(self.place == self.target)
        # terminated: nothing follows; truncated: the episode was only cut off
        return self.seen(), arrived - self.step_cost, arrived, self.steps >= 50, {}

    def seen(self):
        return np.array([self.target - self.place], np.float32) / self.size
