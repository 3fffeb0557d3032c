"""Play episodes with a trained policy, and say its mean return with a 95% interval."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from raypid.cli.train import at_least
from raypid.phases import phase
from raypid.settings.files import read_values


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    add = parser.add_argument
    add("path", type=Path, metavar="PATH", help="a run's folder (its best policy), a checkpoint, or a policy folder")
    add("--episodes", type=partial(at_least, 1), default=20, metavar="N", help="episodes to play (default: 20)")
    add(
        "--seed",
        type=partial(at_least, 0),
        default=1,
        metavar="N",
        help="the same seed plays the same episodes (default: 1)",
    )
    add("--explore", action="store_true", help="sample actions as in training; the default is greedy")
    add("--json", action="store_true", help="print one line of JSON")
    add("--trust", action="store_true", help="import what this folder names, though you did not write it")
    add("--video", type=Path, metavar="FILE", help="record the first episode (.mp4 or .gif)")
    add("--env", metavar="ENV", help="another environment with the same spaces")
    add(
        "--env-config", metavar="JSON", help="keyword arguments of the environment; they win over those of the training"
    )


def main(options: argparse.Namespace) -> int:
    """Play the episodes and print the mean return with its 95% interval.

    Raises:
        UserError: bad options, no policy, or an environment that does not fit it.
    """
    from raypid.roles.evaluator import cut_note
    from raypid.run.best import return_text
    from raypid.run.deploy import check_video, environment_of, evaluate_policy, record_video
    from raypid.storage.checkpoint import find_policy

    path, video = options.path, options.video
    if video is not None:
        check_video(video)
    env_config = read_values(options.env_config, "--env-config") if options.env_config else {}
    folder = find_policy(path)
    env = environment_of(path, options.env, env_config, trust=options.trust)
    how = {"seed": options.seed, "explore": options.explore, "trust": options.trust}
    if video is not None:  # first, since it is known at its first frame whether there is anything to film
        with phase("video", "filming an episode"):
            record_video(path, video, env, **how)
    with phase("evaluation", f"playing {options.episodes} episodes"):
        summary, info = evaluate_policy(path, options.episodes, env=env, **how)
    if options.json:
        row = {**summary, "env": env.env, "algorithm": info["algorithm"], "policy": str(folder)}
        print(json.dumps({k: None if v != v else v for k, v in row.items()}))  # JSON has no NaN
        return 0
    mean, half, count = (summary[k] for k in ("episode_reward_mean", "episode_reward_ci95", "episodes"))
    interval = f" ± {return_text(half, mean)} (95% interval)" if count > 1 else ""
    low, high = summary["episode_reward_min"], summary["episode_reward_max"]
    print(f"{info['algorithm']} on {env.env}, {count} episode{'s' * (count > 1)}, {info['actions']} actions")
    print(f"return  {return_text(mean)}{interval}, from {return_text(low, mean)} to {return_text(high, mean)}")
    if summary["episodes_cut"]:
        print(f"cut     {cut_note(env, int(summary['episodes_cut']))}")
    print(f"length  {summary['episode_len_mean']:.1f} steps")
    print(f"policy  {folder} (weights' version {summary['weights_version']})")
    if video is not None:
        print(f"video   {video}")
    return 0
