"""Five roles on Ray, each in a loop of its own. The parameter server and a learner are killed, and the run goes on."""

import time

import ray
from ray.exceptions import RayActorError, TaskCancelledError, WorkerCrashedError

import raypid

FOLDER = "runs/five-roles"


def rollout(setup, server, replay, pace, index, steps=0):
    role = raypid.roles.Rollout(setup, index)
    while True:
        report, data = role.collect(ray.get(server.pull.remote()), steps)
        ray.get(replay.add.remote(index, data))
        steps = ray.get(pace.count.remote(report))
        while not ray.get(pace.may_collect.remote()):  # the learners are behind
            time.sleep(0.01)


def learner(setup, server, replay, pace, index):
    role = raypid.roles.Learner(setup)
    while True:
        while not (num := ray.get(pace.take.remote())):  # the rollouts are behind
            time.sleep(0.01)
        sample = replay.sample.remote(num * setup.config.batch_size)
        sample, weights, counts = ray.get([sample, server.pull.remote(), pace.metrics.remote()])
        role.set_weights(weights)
        _, learnt = role.learn(counts["timesteps"], sample)
        ray.get(server.push.remote(learnt, since=weights))  # adds what it has learnt to what others have


def evaluator(setup, server, replay, pace, index, mean=0.0):
    role = raypid.roles.Evaluator(setup)
    while mean < 400:
        weights, counts, _ = ray.get([server.pull.remote(), pace.metrics.remote(), server.save.remote(FOLDER)])
        mean = role.evaluate(weights, 10).summary()["episode_reward_mean"]
        print(f"{counts['timesteps']} steps: return {mean:.0f}")
        time.sleep(1.0)
    return mean


def main(kill_after=15.0, num_rollouts=4, seed=0):
    setup = raypid.setup("DQN", "CartPole-v1", normalize_observations=False, normalize_rewards=False, seed=seed)
    actor, tasks = ray.remote(num_cpus=0), {}
    server, replay = actor(raypid.roles.ParameterServer).remote(setup), actor(raypid.roles.Replay).remote(setup)
    pace = actor(raypid.roles.Pace).remote(setup, num_rollouts)
    ray.get([server.push.remote(raypid.roles.Learner(setup).weights()), server.save.remote(FOLDER)])
    waiting = [(learner, 0), (learner, 1), (evaluator, 0), *((rollout, i) for i in range(num_rollouts))]
    while True:
        for role, i in waiting:
            tasks[actor(role).options(max_retries=0).remote(setup, server, replay, pace, i)] = role, i
        done, _ = ray.wait(list(tasks), timeout=kill_after)
        if not done:  # all went well so far
            ray.kill(server)
            ray.cancel(next(iter(tasks)), force=True)  # a learner
            (done, _), kill_after = ray.wait(list(tasks)), None
        waiting = [tasks.pop(done[0])]
        try:
            return ray.get(done[0])  # of the evaluator; the other loops do not end
        except (RayActorError, TaskCancelledError, WorkerCrashedError) as error:
            print(f"{waiting[0][0].__name__} {waiting[0][1]} was lost: {type(error).__name__}")
        try:
            ray.get(server.ready.remote())
        except RayActorError:
            server = actor(raypid.roles.ParameterServer).remote(setup)
            print(f"the server goes on with version {ray.get(server.restore.remote(FOLDER))}")


if __name__ == "__main__":
    ray.init("local", num_cpus=1, include_dashboard=False)
    print(f"return {main():.0f}")
