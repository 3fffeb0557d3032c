"""An agent of your own, over a model of your own: it learns from each fragment twice, with the weights that the first time has left."""

import sys
from pathlib import Path

import raypid

sys.path.insert(0, str(Path(__file__).parent / "models"))
import numpy_model  # noqa: F401  # registers "numpy_model"


@raypid.register_agent("twice")
class Twice:
    def __init__(self, args, model):
        self.args, self.model, self.left = args, model, 0

    @staticmethod
    def add_args(parser):
        parser.add_argument("--passes", type=int, default=2, help="gradients of each fragment")

    def set_weights(self, weights):
        self.model.set_weights(weights)

    def send_trajectory(self, trajectory, Rs=None):  # Rs [T, B]: discounted returns
        self.trajectory, self.Rs, self.left = trajectory, Rs, self.args.passes

    def fetch_grads(self, weights):
        if not self.left:
            return None  # the worker acts again
        self.left -= 1
        self.model.set_weights(weights)
        return self.model.step(self.trajectory, self.Rs)


def main(steps=100_000, seed=1):
    with raypid.CustomModel(
        "CartPole-v1", agent="twice", model={"network": "numpy_model"}, lr=0.005, fragment_length=32, seed=seed
    ) as agent:
        agent.train(num_train_steps=steps)
        mean = agent.eval(num_eval_episodes=10)["episode_reward_mean"]
    print(f"return {mean:.0f} after {steps} steps")
    return mean


if __name__ == "__main__":
    main()
