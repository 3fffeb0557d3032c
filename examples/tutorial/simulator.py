"""The environment of the tutorial: CartPole, in a simulator that takes its time."""

import time

import gymnasium


class Simulator(gymnasium.Wrapper):
    """CartPole-v1 whose steps take 5 ms each, as those of a physics engine or of a server far away do."""

    def __init__(self, seconds=0.005):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)
