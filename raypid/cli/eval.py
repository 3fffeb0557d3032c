"""`raypid eval`: play episodes with a trained policy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any, argv: Sequence[str]) -> None:
    parser = subparsers.add_parser("eval", help="play episodes with a trained policy", allow_abbrev=False)
    parser.set_defaults(main=main)
    add = parser.add_argument
    add("path", metavar="PATH", help="a run's folder (its best policy), a checkpoint, or a policy folder")
    add("--episodes", type=int, default=20, metavar="N", help="episodes to play (default: 20)")
    add("--seed", type=int, default=1, metavar="N", help="the same seed plays the same episodes (default: 1)")
    add("--explore", action="store_true", help="sample actions as in training; the default is greedy")
    add("--json", action="store_true", help="one JSON line")
    add("--video", metavar="FILE", help="film the first episode (.mp4 or .gif)")
    add("--env", metavar="ENV", help="another environment of the same spaces")
    add("--env-config", metavar="JSON", help="keyword arguments of the environment, over the trained ones")


def main(options: argparse.Namespace) -> int:
    """Print the mean return with its 95% interval."""
    from raypid.checkpoint import find_policy
    from raypid.config import ConfigError
    from raypid.deploy import check_video, evaluate_policy, record_video

    if options.episodes < 1:
        raise ConfigError(f"--episodes must be at least 1, not {options.episodes}.")
    if options.video:
        check_video(Path(options.video))
    overrides: dict[str, Any] = {"env": options.env} if options.env else {}
    if options.env_config:
        from raypid.cli.train import read_mapping

        overrides["env_config"] = read_mapping(options.env_config, "--env-config")
    folder = find_policy(Path(options.path))
    summary, info = evaluate_policy(
        folder, options.episodes, seed=options.seed, explore=options.explore, overrides=overrides
    )
    if options.video:
        record_video(folder, Path(options.video), seed=options.seed, explore=options.explore, overrides=overrides)
    if options.json:
        row = {**summary, "env": info["env"]["env"], "algorithm": info["algorithm"], "policy": str(folder)}
        print(json.dumps({k: None if v != v else v for k, v in row.items()}))  # NaN is no JSON
        return 0
    mean, half, count = (summary[k] for k in ("episode_reward_mean", "episode_reward_ci95", "episodes"))
    interval = f" ± {half:.2f} (95% interval)" if count > 1 else ""
    low, high = summary["episode_reward_min"], summary["episode_reward_max"]
    print(f"{info['algorithm']} on {info['env']['env']}, {count} episode{'s' * (count > 1)}, {info['actions']} actions")
    print(f"return  {mean:.2f}{interval}, from {low:.2f} to {high:.2f}")
    print(f"length  {summary['episode_len_mean']:.1f} steps")
    print(f"policy  {folder} (weights' version {summary['weights_version']})")
    if options.video:
        print(f"video   {options.video}")
    return 0
