"""An environment of your own: check it, train on it, use the policy."""

import gymnasium
import numpy as np

import raypid


class Thermostat(gymnasium.Env):
    """Keep a room at 20 degrees. Heating takes a while to arrive, and the window is sometimes open."""

    observation_space = gymnasium.spaces.Box(-50, 50, (3,), np.float32)  # degrees off, heat in the pipes, window
    action_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.off, self.heat, self.window = self.np_random.uniform(-5, 5), 0.0, 0.0
        return self._observe(), {}

    def step(self, action):
        if self.np_random.random() < 0.05:
            self.window = 1.0 - self.window
        self.heat = 0.8 * self.heat + 0.2 * float(action[0])
        self.off += self.heat - 0.3 - 0.3 * self.window
        return self._observe(), -abs(self.off), False, False, {"off": self.off}

    def _observe(self):
        return np.array([self.off, self.heat, self.window], np.float32)


def main(steps=60_000):
    print(raypid.check_env(Thermostat, time_limit=200, speed=False))
    with raypid.PPO(Thermostat, time_limit=200, seed=0) as agent:
        before = agent.eval(num_eval_episodes=20)["episode_reward_mean"]
        agent.train(num_train_steps=steps)
        after = agent.eval(num_eval_episodes=20)["episode_reward_mean"]
        policy = raypid.load_policy(agent.save("runs/thermostat"))
    print(
        f"return of an episode: {before:.0f} before, {after:.0f} after; 3 degrees too cold: {policy.act([-3.0, 0.0, 0.0])}"
    )
    return before, after


if __name__ == "__main__":
    main()
