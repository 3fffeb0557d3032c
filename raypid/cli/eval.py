"""`raypid eval`: play episodes with a trained policy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raypid.cli import Subparsers


def add_parser(subparsers: Subparsers, argv: Sequence[str]) -> None:
    parser = subparsers.add_parser("eval", help="play episodes with a trained policy", allow_abbrev=False)
    add = parser.add_argument
    add("path", metavar="PATH", help="a run's folder (its best policy), a checkpoint, or a policy folder")
    add("--episodes", type=int, default=20, metavar="N", help="episodes to play (default: 20)")
    add("--seed", type=int, default=1, metavar="N", help="the same seed plays the same episodes (default: 1)")
    add("--explore", action="store_true", help="sample actions as in training; the default is greedy")
    add("--json", action="store_true", help="print one line of JSON")
    add("--video", metavar="FILE", help="record the first episode (.mp4 or .gif)")
    add("--env", metavar="ENV", help="another environment with the same spaces")
    add(
        "--env-config", metavar="JSON", help="keyword arguments of the environment; they win over those of the training"
    )


def main(options: argparse.Namespace) -> int:
    """Play the episodes and print the mean return with its 95% interval.

    Raises:
        UserError: bad options, no policy, or an environment that does not fit it.
    """
    from raypid.checkpoint import find_policy
    from raypid.cli.train import read_mapping
    from raypid.config import ConfigError
    from raypid.deploy import check_video, environment_of, evaluate_policy, record_video
    from raypid.roles.evaluator import cut_note

    num_episodes: int = options.episodes
    if num_episodes < 1:
        raise ConfigError(f"--episodes must be at least 1, not {num_episodes}.")
    video = Path(options.video) if options.video else None
    if video is not None:
        check_video(video)
    env_config = read_mapping(options.env_config, "--env-config") if options.env_config else {}
    folder = find_policy(Path(options.path))
    env, seed, explore = environment_of(folder, options.env, env_config), int(options.seed), bool(options.explore)
    summary, info = evaluate_policy(folder, num_episodes, seed=seed, explore=explore, env=env)
    if video is not None:
        record_video(folder, video, env, seed=seed, explore=explore)
    if options.json:
        row = {**summary, "env": env.env, "algorithm": info["algorithm"], "policy": str(folder)}
        print(json.dumps({k: None if v != v else v for k, v in row.items()}))  # JSON has no NaN
        return 0
    mean, half, count = (summary[k] for k in ("episode_reward_mean", "episode_reward_ci95", "episodes"))
    interval = f" ± {half:.2f} (95% interval)" if count > 1 else ""
    low, high = summary["episode_reward_min"], summary["episode_reward_max"]
    print(f"{info['algorithm']} on {env.env}, {count} episode{'s' * (count > 1)}, {info['actions']} actions")
    print(f"return  {mean:.2f}{interval}, from {low:.2f} to {high:.2f}")
    if summary["episodes_cut"]:
        print(f"cut     {cut_note(env, int(summary['episodes_cut']))}")
    print(f"length  {summary['episode_len_mean']:.1f} steps")
    print(f"policy  {folder} (weights' version {summary['weights_version']})")
    if video is not None:
        print(f"video   {video}")
    return 0
