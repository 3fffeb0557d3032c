"""Folders of runs, as a run leaves them, with numbers that the test gives."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raypid.report.logger import RunLogger


def write_run(
    folder: Path, *, iterations: int = 20, evaluated: bool = True, scale: float = 1.0, stop: Any = None, **settings: Any
) -> Path:
    """A run whose return rises by 10 an iteration of 256 steps. It reaches the stop criterion `timesteps_total`, unless given another."""
    with RunLogger(folder) as logger:
        stop = {"timesteps_total": 256 * iterations} if stop is None else stop
        defaults = {"run": "PPO", "env": "CartPole-v1", "seed": 0, "lr": 1e-3, "out": folder, "stop": stop}
        logger.write_params(defaults | settings)
        for i in range(1, iterations + 1):
            row = {
                "training_iteration": i,
                "timesteps_total": 256 * i,
                "time_total_s": 0.1 * i,
                "episodes_total": 10 * i,
            }
            row["episode_reward_mean"] = float("nan") if i == 1 else 10.0 * i * scale
            row["learner/entropy"] = 1 / i
            if evaluated and i % 5 == 0:
                row |= {"evaluation/episode_reward_mean": 12.0 * i * scale, "evaluation/episode_reward_ci95": 3.0}
            logger.log(row)
    return folder


def write_final(folder: Path, value: float) -> None:
    """What the best policy reached in the final episodes, where a run writes it."""
    (folder / "best").mkdir()
    final = {"episode_reward_mean": value, "episode_reward_ci95": 1.5, "episodes": 50}
    (folder / "best" / "policy.json").write_text(json.dumps({"spec": {"info": {"final": final}}}))


def write_runs(parent: Path, values: Sequence[float], **settings: Any) -> Path:
    """Runs with seeds 0, 1, ... and these final returns, in folders of one parent."""
    for seed, value in enumerate(values):
        write_final(write_run(parent / f"seed-{seed}", seed=seed, **settings), value)
    return parent
