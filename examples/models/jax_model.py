"""The actor-critic of numpy_model.py in JAX. `pip install ".[jax]"` has what it needs."""

import os

import jax
import jax.numpy as jnp
import numpy as np

import raypid


@raypid.register_model("jax_model")
class JaxModel:
    def __init__(self, args):
        os.environ.setdefault("NPROC", "1")  # XLA's number of threads: one, as each worker has one core
        jax.config.update("jax_platforms", "cpu")
        self.forward = jax.jit(forward)
        self.gradient = jax.jit(jax.grad(loss, has_aux=True))
        self.entropy_coef, size = args.entropy_coef, args.observation_space.shape[0]
        keys = jax.random.split(jax.random.key(args.seed), (2, 2))
        self.weights = {
            "policy": network(keys[0], size, args.hidden, args.action_space.n, 0.01),
            "value": network(keys[1], size, args.hidden, 1, 1.0),
        }

    @staticmethod
    def add_args(parser):
        parser.add_argument("--hidden", type=int, default=64, help="width of the hidden layers")
        parser.add_argument("--entropy_coef", type=float, default=0.01, help="weight of the entropy bonus")

    def outputs(self, network, observation):  # [B, size] -> [B, *]
        rows = len(observation)  # it varies, and jax.jit compiles for each shape: fill up to a power of two
        more = (1 << (rows - 1).bit_length()) - rows
        return np.asarray(self.forward(self.weights[network], np.pad(observation, ((0, more), (0, 0)))))[:rows]

    def choose_actions(self, observation, deterministic=False, rng=None):  # [B, size] -> [B]
        logits = self.outputs("policy", observation)
        return (logits if deterministic else logits + rng.gumbel(size=logits.shape)).argmax(-1)

    def values(self, observation):  # [B, size] -> [B]
        return self.outputs("value", observation)[:, 0]

    def step(self, t, Rs):  # always of the same shape: `loss` masks the rows that are not valid
        return self.gradient(self.weights, t.obs[:-1], t.action, Rs, t.valid, self.entropy_coef)

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = jax.tree.map(jnp.asarray, weights)


def network(keys, inputs, hidden, outputs, scale):
    w1, w2 = jax.random.normal(keys[0], (inputs, hidden)), jax.random.normal(keys[1], (hidden, outputs))
    return [w1 / np.sqrt(inputs), jnp.zeros(hidden), w2 * scale / np.sqrt(hidden), jnp.zeros(outputs)]


def forward(network, x):
    w1, b1, w2, b2 = network
    return jnp.tanh(x @ w1 + b1) @ w2 + b2


def loss(weights, obs, action, Rs, valid, entropy_coef):
    log_p = jax.nn.log_softmax(forward(weights["policy"], obs))  # [T, B, actions]
    chosen = jnp.take_along_axis(log_p, action[..., None], -1)[..., 0]
    entropy = jnp.mean(-(jnp.exp(log_p) * log_p).sum(-1), where=valid)
    error = Rs - forward(weights["value"], obs)[..., 0]  # [T, B]
    value_loss = jnp.mean(error**2, where=valid)
    advantage = (error - jnp.mean(error, where=valid)) / (jnp.std(error, where=valid) + 1e-8)
    policy_loss = -jnp.mean(chosen * jax.lax.stop_gradient(advantage), where=valid)
    metrics = {"value_loss": value_loss, "entropy": entropy}
    return policy_loss + value_loss - entropy_coef * entropy, metrics


if __name__ == "__main__":
    with raypid.CustomModel(env="CartPole-v1", model_name="jax_model", seed=1, fragment_length=32, lr=0.01) as agent:
        agent.train(num_train_steps=100_000)
        print(agent.eval(10)["episode_reward_mean"])
