"""The actor-critic of numpy_model.py in TensorFlow. `pip install ".[tensorflow]"` has what it needs."""

import numpy as np
import tensorflow as tf

import raypid


@raypid.register_model("tensorflow_model")
class TensorFlowModel:
    def __init__(self, args):
        # On the CPU and one thread, as each worker has one core.
        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self.entropy_coef, size = args.entropy_coef, args.observation_space.shape[0]
        seed = tf.keras.random.SeedGenerator(args.seed)
        self.networks = {
            "policy": network(seed, size, args.hidden, int(args.action_space.n), 0.01),
            "value": network(seed, size, args.hidden, 1, 1.0),
        }
        row = tf.TensorSpec([None, size])  # the number of rows is left open, so each is traced once
        self.logits = tf.function(lambda obs: self.networks["policy"](obs), [row])
        self.value = tf.function(lambda obs: self.networks["value"](obs)[:, 0], [row])
        columns = [row, tf.TensorSpec([None], tf.int64), tf.TensorSpec([None])]
        self.gradient = tf.function(self.loss_gradient, columns)

    @staticmethod
    def add_args(parser):
        parser.add_argument("--hidden", type=int, default=64, help="width of the hidden layers")
        parser.add_argument("--entropy_coef", type=float, default=0.01, help="weight of the entropy bonus")

    def choose_actions(self, observation, deterministic=False, rng=None):  # [B, size] -> [B]
        logits = self.logits(observation.astype(np.float32)).numpy()
        return (logits if deterministic else logits + rng.gumbel(size=logits.shape)).argmax(-1)

    def values(self, observation):  # [B, size] -> [B]
        return self.value(observation.astype(np.float32)).numpy()

    def step(self, trajectory, Rs):
        rows = trajectory.valid
        obs, action = trajectory.obs[:-1][rows], trajectory.action[rows]
        return self.gradient(obs.astype(np.float32), action.astype(np.int64), Rs[rows])

    def loss_gradient(self, obs, action, Rs):  # [N, size], [N], [N]
        with tf.GradientTape() as tape:
            log_p = tf.nn.log_softmax(self.networks["policy"](obs))
            chosen = tf.gather(log_p, action, batch_dims=1)
            entropy = tf.reduce_mean(-tf.reduce_sum(tf.exp(log_p) * log_p, -1))
            error = Rs - self.networks["value"](obs)[:, 0]
            value_loss = tf.reduce_mean(error**2)
            advantage = (error - tf.reduce_mean(error)) / (tf.math.reduce_std(error) + 1e-8)
            policy_loss = -tf.reduce_mean(chosen * tf.stop_gradient(advantage))
            loss = policy_loss + value_loss - self.entropy_coef * entropy
        variables = {name: network.trainable_variables for name, network in self.networks.items()}
        return tape.gradient(loss, variables), {"value_loss": value_loss, "entropy": entropy}

    def get_weights(self):
        return {name: network.get_weights() for name, network in self.networks.items()}

    def set_weights(self, weights):
        for name, network in self.networks.items():
            network.set_weights(weights[name])


def network(seed, inputs, hidden, outputs, scale):
    first, last = (tf.keras.initializers.VarianceScaling(factor, seed=seed) for factor in (1.0, scale**2))
    inner = tf.keras.layers.Dense(hidden, "tanh", kernel_initializer=first)
    outer = tf.keras.layers.Dense(outputs, kernel_initializer=last)
    return tf.keras.Sequential([tf.keras.Input([inputs]), inner, outer])


if __name__ == "__main__":
    settings = {"model_name": "tensorflow_model", "fragment_length": 32, "lr": 0.01}
    with raypid.CustomModel(env="CartPole-v1", seed=1, **settings) as agent:
        agent.train(num_train_steps=100_000)
        print(agent.eval(10)["episode_reward_mean"])
