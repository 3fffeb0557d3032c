"""Step an environment with random actions, in a process of its own, and say what is wrong with it, how fast it is and what
training will cost.

Takes 3 to 10 s. Exit code 0: no problems (warnings, maybe); 1: problems; 2: nothing of that name, or wrong options.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from raypid.cli.options import GROUPS, SETTING, add_settings, reader
from raypid.cli.train import _add_arguments, flags_of
from raypid.errors import UserError
from raypid.plugins.registry import ENVS
from raypid.settings.config import Config
from raypid.settings.files import read_values
from raypid.sweep.budget import read_seconds

_SETTINGS = ("time_limit", "action_repeat", "frame_stack", "num_envs_per_worker")
"""Settings that can be given here as for `raypid train`."""


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    add = parser.add_argument
    text = "as for --env of `raypid train`: CartPole-v1, module:Name, envpool:Pong-v5, a registered name"
    add("env", metavar="ENV", nargs="?", help=text)
    add("--env", dest="env_option", metavar="ENV", help=argparse.SUPPRESS)  # as for train
    add("--env-config", metavar="JSON", help="keyword arguments of the environment")
    add_settings(dict.fromkeys(GROUPS, parser), Config(), full=False, only=_SETTINGS)
    text = "without the preprocessing of ALE/ ids"
    add("--no-atari", action="store_false", dest=f"{SETTING}atari", default=argparse.SUPPRESS, help=text)
    text = "about how long to look; slow steps take a few more (default: 8)"
    add("--seconds", metavar="S", type=reader(read_seconds), default=8.0, help=text)
    text = "longest that constructor, reset() or step() may take before they are called hanging (default: 30)"
    add("--timeout", metavar="S", type=reader(read_seconds), default=30.0, help=text)
    add("--no-speed", action="store_true", help="look whether it is right, and measure neither vectors nor training")
    add("--all", action="store_true", help="all notes, also those that do not fit on the screen")
    add("--json", action="store_true", help="print one JSON document (docs/environments.md has its keys)")
    _add_declared(parser, argv[1:])


def _add_declared(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Add the options that the environment declares, if some are given that raypid does not have. Only then is its module imported here."""
    words = [word for word in argv if word not in ("-h", "--help")]
    known, unknown = parser.parse_known_args(words)
    names = [name for name in (known.env_option, known.env, *unknown) if name and not name.startswith("-")]
    if names and (unknown or len(words) < len(argv)):
        # not the value of an option yet unknown
        env = next((name for name in names if ":" in name or name in ENVS), names[0])
        _add_arguments(parser, {"env": env})


def main(options: argparse.Namespace) -> int:
    """Check the environment and print the report.

    Raises:
        UserError: wrong options, or not one environment.
    """
    from raypid.check.check import check_env

    envs = [name for name in (options.env, options.env_option) if name]
    if len(envs) != 1:
        raise UserError("Name one environment: raypid check-env CartPole-v1.")
    env_config = read_values(options.env_config, "--env-config") if options.env_config else {}
    given: dict[str, Any] = {"seconds": options.seconds, "timeout_s": options.timeout, **flags_of(options)}
    report = check_env(envs[0], env_config, speed=not options.no_speed, **given)
    if options.json:
        print(json.dumps(report.to_dict(), indent=1))
    elif not report.found:
        print(f"raypid: {report.problems[0].text}", file=sys.stderr)
    else:
        size = shutil.get_terminal_size()
        height = None if options.all or not sys.stdout.isatty() else size.lines
        print(report.screen(min(140, size.columns), height))
    return 0 if report.ok else 1 if report.found else 2
