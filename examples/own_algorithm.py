"""An algorithm of your own: REINFORCE with a baseline (Williams 1992), in one update and one loss."""

import raypid
from raypid.algorithms.actor_critic import ActorCritic, ActorCriticConfig, step_metrics
from raypid.types import Update


@raypid.register_algorithm("REINFORCE")
class Reinforce(ActorCritic):
    """-log pi(a|s) * (G - V(s)) + value_coef * (V(s) - G)^2, one pass over each batch."""

    Config = ActorCriticConfig

    def update(self, batch, timesteps):
        lr, steps = self.lr(timesteps), []
        rows = self.prepare(batch)  # valid rows, with advantage and target
        for minibatch in self.minibatches(rows):
            out = self.network.evaluate(minibatch)  # log_prob, entropy and value of its rows
            loss, metrics = self.objective(out, minibatch)  # calls `loss`
            norm = self.optimizer.minimise(loss, lr, minibatch.fraction)
            steps.append(step_metrics(metrics, norm, minibatch.fraction))
        self.finish(batch)
        return Update(self.mean_metrics(steps), len(steps))

    def loss(self, log_prob, entropy, value, batch):
        """Return the loss and metrics, from tensors [N]."""
        policy_loss = -(log_prob * batch.advantage).mean()
        value_loss = ((value - batch.target) ** 2).mean()
        return policy_loss + self.config.value_coef * value_loss, {"policy_loss": policy_loss, "value_loss": value_loss}


def main(steps=150_000, seed=1):
    falling = {"lr": 2e-3, "lr_schedule": "linear", "schedule_steps": steps}
    with raypid.Agent("REINFORCE", env="CartPole-v1", seed=seed, gae_lambda=1.0, **falling) as agent:
        agent.train(num_train_steps=steps)
        mean = agent.eval(num_eval_episodes=10)["episode_reward_mean"]
    print(f"return {mean:.0f} after {steps} steps")
    return mean


if __name__ == "__main__":
    main()
