"""The same corridor as a class without Gymnasium's interface, which gets `args` and returns OBSERVATION: `--env_name custom_env_wrapper`.

Remove this file if `custom_env.py` is enough for you.
"""

import numpy as np
from gymnasium import spaces

import raypid
from raypid import OBSERVATION


@raypid.register_env("custom_env_wrapper")
class CustomEnvWrapper:
    """Each step goes left, stays or goes right; the episode ends at the target."""

    def __init__(self, args):
        self.size = args.corridor_size
        self.step_cost = getattr(args, "step_cost", 0.02)  # if options/custom_options.py declares it
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.rng = np.random.default_rng()

    @staticmethod
    def add_args(parser):
        """Options of this environment: they show in `raypid train --help` and arrive in `args`."""
        parser.add_argument("--corridor_size", type=int, default=10, help="places in the corridor")

    def seed(self, seed):
        """Called before a reset that is to be repeatable. You may leave it out."""
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.place, self.target = self.rng.choice(self.size, 2, replace=False)
        self.steps = 0
        return OBSERVATION(self.seen())

    def step(self, action, **kwargs):
        self.place = int(np.clip(self.place + action - 1, 0, self.size - 1))
        self.steps += 1
        arrived = bool(self.place == self.target)
        return OBSERVATION(self.seen(), reward=arrived - self.step_cost, terminated=arrived, truncated=self.steps >= 50)

    def seen(self):
        return np.array([self.target - self.place], np.float32) / self.size
