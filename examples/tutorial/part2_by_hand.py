"""Part 2, by hand: the three classes of part 1 as Ray actors: `python part2_by_hand.py --rollouts 8 --fragment 50`."""

import argparse
import time

import numpy as np
import ray
from part1 import BATCH, EVERY, GOAL, START, Learner, Replay, Rollout


@ray.remote(num_cpus=0)
class ParameterServer:
    """Holds the newest weights: the learner pushes, the rollouts pull."""

    def __init__(self, weights):
        self.weights = weights

    def push(self, weights):
        self.weights = weights

    def pull(self):
        return self.weights


def main(num_rollouts, fragment):
    actor = ray.remote(num_cpus=0)  # reserve no core: roles that mostly wait share the cores that there are
    rollouts = [actor(Rollout).remote() for _ in range(num_rollouts)]
    replay, learner, returns, updates = Replay(), Learner(), [], 0
    server = ParameterServer.remote(learner.net.state_dict())

    def send(rollout):
        return rollout.collect.remote(server.pull.remote(), max(0.05, 1 - replay.count / 3000), fragment)

    ray.get([rollout.collect.remote(server.pull.remote(), 1.0, 1) for rollout in rollouts])  # all are up
    began, calls, idle = time.time(), {}, rollouts
    while np.mean(returns[-20:] or [0]) < GOAL:
        owed = (replay.count - START) // EVERY - updates  # as many updates for each step as in part 1
        if owed <= num_rollouts * fragment // EVERY:  # else the rollouts wait for the learner
            calls, idle = calls | {send(rollout): rollout for rollout in idle}, []
        ready, _ = ray.wait(list(calls), timeout=0 if owed > 0 else None)
        for call in ready:
            rows, ended = ray.get(call)
            replay.add(rows)
            for value in ended:
                returns.append(value)
                if len(returns) % 20 == 0:
                    print(f"{replay.count} steps: mean return {np.mean(returns[-20:]):.0f}", flush=True)
            idle.append(calls.pop(call))
        if owed > 0:
            weights = learner.update(replay.sample(BATCH))
            updates += 1
            if updates % 50 == 0:
                server.push.remote(weights)
    print(f"return {GOAL} after {replay.count} steps and {time.time() - began:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--fragment", type=int, default=50)
    args = parser.parse_args()
    print("Starting Ray and the actors, about 20 s ...", flush=True)
    # a Ray of its own; it starts num_cpus processes in advance, and more for actors
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    main(args.rollouts, args.fragment)
