"""An actor-critic in NumPy: a policy and a value of one hidden layer each, for vectors as observations and Discrete actions.

jax_model.py and tensorflow_model.py are the same model in these frameworks: the same weights give the same gradient.
"""

import numpy as np

import raypid


@raypid.register_model("numpy_model")
class NumpyModel:
    def __init__(self, args):
        rng, size = np.random.default_rng(args.seed), args.observation_space.shape[0]
        self.entropy_coef = args.entropy_coef
        self.weights = {
            "policy": network(rng, size, args.hidden, args.action_space.n, 0.01),
            "value": network(rng, size, args.hidden, 1, 1.0),
        }

    @staticmethod
    def add_args(parser):
        parser.add_argument("--hidden", type=int, default=64, help="width of the hidden layers")
        parser.add_argument("--entropy_coef", type=float, default=0.01, help="weight of the entropy bonus")

    def choose_actions(self, observation, deterministic=False, rng=None):  # [B, size] -> [B]
        logits = forward(self.weights["policy"], observation)[1]
        return (logits if deterministic else logits + rng.gumbel(size=logits.shape)).argmax(-1)

    def values(self, observation):  # [B, size] -> [B]
        return forward(self.weights["value"], observation)[1][:, 0]

    def step(self, trajectory, Rs):
        rows = trajectory.valid
        obs, action, target = trajectory.obs[:-1][rows], trajectory.action[rows], Rs[rows]
        policy_hidden, logits = forward(self.weights["policy"], obs)
        value_hidden, value = forward(self.weights["value"], obs)
        log_p = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
        p = np.exp(log_p)
        entropy = -(p * log_p).sum(-1, keepdims=True)
        error = value - target[:, None]
        advantage = -(error - error.mean()) / (error.std() + 1e-8)
        chosen = np.eye(p.shape[-1], dtype=np.float32)[action]
        slope = advantage * (p - chosen) + self.entropy_coef * p * (log_p + entropy)
        gradient = {
            "policy": backward(self.weights["policy"], obs, policy_hidden, slope / len(obs)),
            "value": backward(self.weights["value"], obs, value_hidden, 2 * error / len(obs)),
        }
        return gradient, {"value_loss": (error**2).mean(), "entropy": entropy.mean()}

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = weights


def network(rng, inputs, hidden, outputs, scale):
    w1 = rng.normal(size=(inputs, hidden)) / np.sqrt(inputs)
    w2 = rng.normal(size=(hidden, outputs)) * scale / np.sqrt(hidden)
    return [array.astype(np.float32) for array in (w1, np.zeros(hidden), w2, np.zeros(outputs))]


def forward(network, x):
    w1, b1, w2, b2 = network
    hidden = np.tanh(x @ w1 + b1)
    return hidden, hidden @ w2 + b2


def backward(network, x, hidden, slope):  # slope: derivatives by what forward returned last
    inner = slope @ network[2].T * (1 - hidden**2)
    return [x.T @ inner, inner.sum(0), hidden.T @ slope, slope.sum(0)]


if __name__ == "__main__":
    with raypid.CustomModel(env="CartPole-v1", model_name="numpy_model", seed=1, fragment_length=32, lr=0.01) as agent:
        agent.train(num_train_steps=100_000)
        print(agent.eval(10)["episode_reward_mean"])
