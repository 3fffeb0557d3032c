"""A model of your own, here in NumPy: it acts, it computes gradients, and its weights are arrays.

JAX, TensorFlow and PyTorch work alike: what crosses to raypid are NumPy arrays.
"""

import numpy as np

import raypid


@raypid.register_model("custom_model")
class CustomModel:
    """A softmax over scores that are linear in the observation."""

    def __init__(self, args):
        # args has observation_space, action_space, gamma, batch_size, device, seed, and the options below
        self.args = args
        size, num_actions = args.observation_space.shape[0], int(args.action_space.n)  # a vector; numbered choices
        self.weights = {"score": np.zeros((size, num_actions)), "bias": np.zeros(num_actions)}

    @staticmethod
    def add_args(parser):
        """Options of this model: they show in `raypid train --help` and arrive in `args`."""
        parser.add_argument("--entropy_coef", type=float, default=0.01, help="weight of the entropy bonus")

    def probabilities(self, obs):
        score = obs @ self.weights["score"] + self.weights["bias"]
        odds = np.exp(score - score.max(-1, keepdims=True))
        return odds / odds.sum(-1, keepdims=True)

    def choose_actions(self, observation, deterministic=False, rng=None):
        """Observations [B, size] to actions [B]."""
        p = self.probabilities(observation)
        return p.argmax(-1) if deterministic else (p.cumsum(-1) > rng.random((len(p), 1))).argmax(-1)

    def step(self, trajectory, Rs):
        """The gradient of -log p(action) * advantage - entropy_coef * entropy, a mean over the valid rows: REINFORCE.

        Rs [T, B] are discounted returns; the advantage is how much more than usual an action brought.
        """
        valid = trajectory.valid
        obs, action, returns = trajectory.obs[:-1][valid], trajectory.action[valid], Rs[valid]
        advantage = (returns - returns.mean()) / (returns.std() + 1e-8)
        p = self.probabilities(obs)
        entropy = -(p * np.log(p)).sum(-1, keepdims=True)
        slope = (p - np.eye(p.shape[-1])[action]) * advantage[:, None]
        slope += self.args.entropy_coef * p * (np.log(p) + entropy)
        gradient = {"score": obs.T @ slope / len(obs), "bias": slope.mean(0)}
        return gradient, {"entropy": entropy.mean()}  # numbers by name are logged as learner/entropy

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = weights
