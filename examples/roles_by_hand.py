"""SAC in a loop of your own, from raypid's roles, in one process. examples/tutorial has the same on Ray."""

import raypid
from raypid import roles


def main(steps=30_000, seed=0):
    setup = raypid.setup("SAC", "Pendulum-v1", seed=seed)
    config = setup.config
    rollout, replay = roles.Rollout(setup), roles.Replay(setup)
    server, learner, evaluator = roles.ParameterServer(setup), roles.Learner(setup), roles.Evaluator(setup)
    server.push(learner.weights())
    done, owed = 0, 0.0
    while done < steps:
        report, fragment = rollout.collect(server.pull(), done)
        learner.observe(report, fragment)
        replay.add(report.worker_index, fragment)
        done += report.num_steps
        if done > config.start_steps:
            owed += report.num_steps * config.updates_per_step
        if owed >= config.updates_per_call:
            sample = replay.sample(config.updates_per_call * config.batch_size, done)
            _, weights = learner.learn(done, sample)
            owed -= config.updates_per_call
            server.push(weights)
    mean = evaluator.evaluate(server.pull(), num_episodes=20).summary()["episode_reward_mean"]
    print(f"return {mean:.0f} after {done} steps; {learner.metrics()}")
    return mean


if __name__ == "__main__":
    main()
