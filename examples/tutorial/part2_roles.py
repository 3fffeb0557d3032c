"""Part 2, with raypid's roles: the same loop as part2_by_hand.py: `python part2_roles.py --rollouts 8`."""

import argparse
import time

import numpy as np
import ray
from my_dqn import MyDQN
from simulator import Simulator

import raypid
from raypid import roles

GOAL = 195  # as in part 1


def main(num_rollouts):
    setup = raypid.setup(MyDQN, Simulator)
    actor = ray.remote(num_cpus=0)
    rollouts = [actor(roles.Rollout).remote(setup, i) for i in range(num_rollouts)]
    server = actor(roles.ParameterServer).remote(setup)
    replay, learner, pace, returns = roles.Replay(setup), roles.Learner(setup), roles.Pace(setup, num_rollouts), []
    server.push.remote(learner.weights())

    def send(rollout):
        report, data = rollout.collect.options(num_returns=2).remote(server.pull.remote(), pace.timesteps)
        return report, (rollout, data)

    ray.get([send(rollout)[0] for rollout in rollouts])  # all are up
    began, calls, idle = time.time(), {}, rollouts
    while np.mean(returns[-20:] or [0]) < GOAL:
        if pace.may_collect():  # else the rollouts wait for the learner
            calls, idle = calls | dict(send(rollout) for rollout in idle), []
        ready, _ = ray.wait(list(calls), timeout=0 if pace.due() else None)
        for call in ready:
            report, (rollout, data) = ray.get(call), calls.pop(call)
            steps = pace.count(report)
            for value in report.episode_rewards:
                returns.append(value)
                if len(returns) % 20 == 0:
                    print(f"{steps} steps: mean return {np.mean(returns[-20:]):.0f}", flush=True)
            replay.add(report.worker_index, ray.get(data))
            idle.append(rollout)
        if num := pace.take():  # updates that are due
            _, weights = learner.learn(pace.timesteps, replay.sample(num * setup.config.batch_size))
            server.push.remote(weights)
    print(f"return {GOAL} after {pace.timesteps} steps and {time.time() - began:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=8)
    args = parser.parse_args()
    print("Starting Ray and the actors, about 20 s ...", flush=True)
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    main(args.rollouts)
