"""SAC in a loop of your own, from raypid's roles, in one process. examples/tutorial has the same on Ray."""

import raypid
from raypid import roles


def main(steps=30_000, seed=0):
    setup = raypid.setup("SAC", "Pendulum-v1", seed=seed)
    rollout, replay, pace = roles.Rollout(setup), roles.Replay(setup), roles.Pace(setup)
    server, learner, evaluator = roles.ParameterServer(setup), roles.Learner(setup), roles.Evaluator(setup)
    server.push(learner.weights())
    while pace.timesteps < steps:
        report, fragment = rollout.collect(server.pull(), pace.timesteps)
        learner.observe(report, fragment)
        replay.add(report.worker_index, fragment)
        done = pace.count(report)
        while num := pace.take():  # updates that are due
            _, weights = learner.learn(done, replay.sample(num * setup.config.batch_size, done))
            server.push(weights)
    mean = evaluator.evaluate(server.pull(), num_episodes=20).summary()["episode_reward_mean"]
    print(f"return {mean:.0f} after {pace.timesteps} steps; {learner.metrics()}")
    return mean


if __name__ == "__main__":
    main()
