"""Part 3: a distributed agent of your own on two nodes, one of which is killed: `python part3.py --kill 8`.

The second node is a second set of Ray's processes on this machine. On a cluster that runs, use ray.init(address="auto") in place of Cluster.
"""

import argparse
import threading
import time

import ray
from my_dqn import MyDQN
from ray.cluster_utils import Cluster
from ray.exceptions import ActorUnschedulableError, ObjectLostError, OutOfMemoryError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from simulator import Simulator

import raypid
from raypid import roles


class NoRows(Exception):
    """A shard that was started again has too few rows yet: half of each batch would be the same few."""


class Shard(roles.Replay):
    def sample(self, num, timesteps=0):
        if self.num_rows() < (1_000 if ray.get_runtime_context().was_current_actor_reconstructed else 1):
            raise NoRows
        return super().sample(num, timesteps)


LOST = (RayActorError, ActorUnschedulableError, OutOfMemoryError, ObjectLostError, NoRows)


class MyDistributedAgent:
    """Rollouts, replay shards, parameter server, learner and evaluator, each an actor. What is lost is started again where there is room.

    The learner and the server live on the first node, which must stay; the other roles are spread over all nodes.
    """

    def __init__(self, algorithm, env, num_rollouts=8, num_shards=2, **settings):
        self.setup = raypid.setup(algorithm, env, **settings)
        here = ray.get_runtime_context().get_node_id()
        self.nodes = [here, *(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here)]
        self.learner = self.start(roles.Learner, 0, soft=False)
        self.server = self.start(roles.ParameterServer, 0, soft=False)
        self.shards = [self.start(Shard, i, i, num_shards) for i in range(num_shards)]
        self.rollouts = [self.start(roles.Rollout, i, i) for i in range(num_rollouts)]
        self.evaluator = self.start(roles.Evaluator, -1)
        self.pace = roles.Pace(self.setup, num_rollouts)
        self.updates, self.num_lost, self.calls = 0, 0, {}

    def start(self, role, node, *args, soft=True):
        """Start a role on this node, or with `soft` on any that has room. Ray starts it again whenever its process is lost."""
        place = NodeAffinitySchedulingStrategy(self.nodes[node % len(self.nodes)], soft=soft)
        # not num_cpus=0: Ray ignores a soft place of an actor that reserves nothing
        return ray.remote(num_cpus=0.01, max_restarts=-1, scheduling_strategy=place)(role).remote(self.setup, *args)

    def result(self, future):
        """The value of a call, or None if the call or one of its arguments was lost. Any other error stops the program."""
        try:
            return ray.get(future)
        except RayError as error:
            if not isinstance(getattr(error, "cause", error), LOST):
                raise
            self.num_lost += 1

    def collect(self, i):
        pair = self.rollouts[i].collect.options(num_returns=2).remote(self.server.pull.remote(), self.pace.timesteps)
        self.calls[pair[0]] = i, pair[1]

    def evaluate(self):
        self.evaluation = self.evaluator.evaluate.remote(self.server.pull.remote(), 10)

    def train(self, goal, seconds):
        """Train until an evaluation reaches the goal."""
        pace, idle, until = self.pace, list(range(len(self.rollouts))), time.time() + seconds
        self.result(self.server.push.remote(self.learner.weights.remote()))
        self.evaluate()
        while time.time() < until:
            while idle and pace.may_collect():  # else the rollouts wait for the learner
                self.collect(idle.pop())
            ready, _ = ray.wait(list(self.calls), timeout=0 if pace.due() else 1.0)
            for call in ready:
                (i, data), report = self.calls.pop(call), self.result(call)
                if report is not None:
                    shard = self.shards[i % len(self.shards)]
                    self.result(self.learner.observe.remote(report))
                    shard.add.remote(i, data)  # from worker to shard; it does not pass this process
                    pace.count(report)
                idle.append(i)
            if num := pace.take():  # updates that are due
                rows = num * self.setup.config.batch_size // len(self.shards)
                samples = [shard.sample.remote(rows, pace.timesteps) for shard in self.shards]
                learnt = self.result(self.learner.learn.remote(pace.timesteps, *samples))
                if learnt is not None:
                    self.updates += num
                    self.server.push.remote(learnt[1])
            if ray.wait([self.evaluation], timeout=0)[0]:
                if (played := self.result(self.evaluation)) is not None:
                    mean = played.summary()["episode_reward_mean"]
                    print(
                        f"{pace.timesteps} steps, {self.updates} updates, {self.num_lost} calls lost: return {mean:.0f}",
                        flush=True,
                    )
                    if mean >= goal:
                        return mean
                self.evaluate()
        return None


def main(kill_after, goal=195, seconds=180, num_rollouts=8):
    print("Starting Ray, two nodes and the actors, about 30 s ...", flush=True)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    killer = threading.Timer(kill_after, lambda: (print("killing the second node"), cluster.remove_node(second)))
    try:
        ray.init(cluster.address, log_to_driver=False)
        agent = MyDistributedAgent(MyDQN, Simulator, num_rollouts)
        weights = agent.learner.weights.remote()
        ray.get([rollout.collect.remote(weights) for rollout in agent.rollouts])  # all are up
        if kill_after:
            killer.start()
        began = time.time()
        mean = agent.train(goal, seconds)
        took = f"after {agent.pace.timesteps} steps and {time.time() - began:.1f} s"
        if mean is None:
            raise SystemExit(f"no return of {goal} {took}")
        print(f"return {mean:.0f} {took}")
    finally:
        killer.cancel()
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", type=float, default=0.0, metavar="S", help="kill the second node after S seconds")
    main(parser.parse_args().kill)
