"""A run on two nodes, one of which is killed: its workers are started again on the other, and the run goes on.

The second node is a second set of Ray's processes on this machine; on a cluster that runs, leave Cluster out and give its address.
"""

import threading

from ray.cluster_utils import Cluster

import raypid


def main(steps=200_000, kill_after=10.0):
    print("Starting Ray and two nodes, about 10 s ...", flush=True)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    second = cluster.add_node(num_cpus=2)
    timer = threading.Timer(kill_after, lambda: cluster.remove_node(second))
    try:
        with raypid.PPO("CartPole-v1", num_workers=2, num_cpus_per_worker=1, address=cluster.address, seed=0) as agent:
            timer.start()
            result, lost = {}, 0
            while result.get("timesteps_total", 0) < steps or timer.is_alive():
                result = agent.train()
                if result["lost/workers"] != lost:
                    lost = result["lost/workers"]
                    print(f"{result['timesteps_total']:,} steps; workers lost: {lost:g}", flush=True)
            mean = agent.eval(num_eval_episodes=10)["episode_reward_mean"]
    finally:
        timer.cancel()
        cluster.shutdown()
    print(f"return {mean:.0f}; workers lost: {result['lost/workers']:g}")
    return mean, result


if __name__ == "__main__":
    main()
