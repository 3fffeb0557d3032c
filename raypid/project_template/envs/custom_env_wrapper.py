"""An environment of your own as a class that gets `args` and returns OBSERVATION, around a simulator of any interface.

CartPole-v1 stands for the simulator. Try it with `--env_name custom_env_wrapper`; remove this file if `custom_env.py` is enough.
"""

import gymnasium

import raypid
from raypid import OBSERVATION


@raypid.register_env("custom_env_wrapper")
class CustomEnvWrapper:
    """Balance a pole."""

    def __init__(self, args):
        # args has worker_index, stream_index, what add_args declares, and what options/custom_options.py declares
        self.env = gymnasium.make("CartPole-v1")
        self.next_seed = None
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space

    def seed(self, seed):
        """Called before a reset that is to be repeatable. You may leave it out."""
        self.next_seed = seed

    def reset(self):
        observation, _ = self.env.reset(seed=self.next_seed)
        self.next_seed = None
        return OBSERVATION(observation)

    def step(self, action, **kwargs):
        observation, reward, terminated, truncated, info = self.env.step(action)
        # terminated: nothing follows; truncated: the episode was only cut off
        return OBSERVATION(observation, reward, terminated, truncated, info)
