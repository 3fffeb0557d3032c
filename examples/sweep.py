"""Two learning rates with three seeds each, side by side on Ray Tune, and which is better."""

import subprocess
import sys

from raypid.tune import grid_search, run_experiments


def main(steps=40_000, repeat=3):
    ended = run_experiments(
        {
            "sweep": {
                "run": "PPO",
                "env": "CartPole-v1",
                "stop": {"timesteps_total": steps},
                "repeat": repeat,
                "config": {"lr": grid_search([1e-3, 1e-4])},
            }
        },
        overwrite=True,
    )
    for trial in ended:
        print(trial.name, trial.state, trial.result["episode_reward_mean"])
    subprocess.run([sys.executable, "-m", "raypid", "compare", "runs/sweep"], check=False)
    return ended


if __name__ == "__main__":
    main()
