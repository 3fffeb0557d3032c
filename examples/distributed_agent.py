"""Actors and a learner of your own, on Ray: IMPALA whose actors begin each rollout with a random step and pay for speed."""

import numpy as np

import raypid


class Careful(raypid.IMPALAAgent):
    def run(self, env, actor_idx):
        """What an actor does: yield trajectories of `num_steps` steps."""
        rng = np.random.default_rng(actor_idx)
        env.reset()
        while True:
            env.step(rng.integers(0, 2, env.num_envs))
            for _ in range(self.num_steps - 1):
                env.step(env.act())
            trajectory = env.trajectory()
            trajectory.reward -= 0.1 * np.abs(trajectory.obs[1:, :, 1])
            yield trajectory

    def update(self, batch, timesteps):
        """What the learner does with the trajectories of one update."""
        done = super().update(batch, timesteps)
        done.metrics["mean_reward"] = float(batch.reward.mean())
        return done


def main(steps=60_000):
    with Careful("CartPole-v1", num_actors=2, num_learners=1, num_storages=4, num_steps=32) as agent:
        agent.train(num_train_steps=steps, eval_interval=0, save_interval=0)
        mean = agent.eval(num_eval_episodes=10)["episode_reward_mean"]
    print(f"return {mean:.0f} after {steps} steps")
    return mean


if __name__ == "__main__":
    main()
