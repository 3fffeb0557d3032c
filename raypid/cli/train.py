"""`raypid train`: every setting of the algorithm is a flag."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from raypid.config import (
    ALIASES,
    Config,
    ConfigError,
    ModelConfig,
    Settings,
    field_docs,
    load_file,
    parse_value,
    shown,
    type_hints,
)
from raypid.errors import UserError
from raypid.registry import ALGORITHMS

if TYPE_CHECKING:
    from raypid.run.agent import Agent

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_SETTING = "setting:"
_TEXTS = ("env", "evaluation_env", "callbacks", "init_from", "address", "intrinsic_reward")
"""Settings whose values are names: never JSON."""


def _algorithm(name: str) -> str:
    """Check the name while options are parsed: otherwise the algorithm's settings would be unknown options."""
    try:
        ALGORITHMS.get(name)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None
    return name


def _at_least(low: int, text: str) -> int:
    if not text.lstrip("+-").isdigit() or int(text) < low:
        raise argparse.ArgumentTypeError(f"takes a whole number of at least {low}, not {text!r}")
    return int(text)


_OPTIONS: dict[str, tuple[str, str] | tuple[str, str, Callable[[str], object]]] = {
    "--run": ("NAME", f"algorithm: {', '.join(ALGORITHMS.names())}", _algorithm),
    "--stop": ("JSON", 'when to end, e.g. \'{"evaluation/episode_reward_mean": 200, "time_total_s": 600}\''),
    "--out": ("DIR", "the run's folder (default: a new one under runs/)"),
    "--resume": ("DIR", "go on with the run in this folder; settings given here win over the saved ones"),
    "--checkpoint-interval": ("N", "iterations between checkpoints (default: one a minute)", partial(_at_least, 0)),
    "--keep-checkpoints": ("N", "newest checkpoints to keep, besides the best (default: 3)", partial(_at_least, 1)),
    "--final-episodes": (
        "N",
        "episodes that the best policy plays at the end, fewer if they take over a minute; 0: none (default: 50)",
        partial(_at_least, 0),
    ),
}
_COUNTS = ("checkpoint_interval", "keep_checkpoints", "final_episodes")
"""Options that are fields of RunOptions, which has their defaults."""
_SWITCHES = {
    "--tuned": "start from the tuned settings for this algorithm and environment (`raypid list tuned`)",
    "--overwrite": "replace the run in the folder of --out",
    "--quiet": "print errors only",
}


def add_parser(subparsers: Subparsers, argv: Sequence[str]) -> None:
    """Add the options of `raypid train`, with the settings of the algorithm that `--run` names."""
    parser = subparsers.add_parser(
        "train",
        help="train a policy",
        description="Train a policy. `raypid train --run PPO --help` shows every setting with its default.",
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(main=main)
    for flag, (metavar, text, *convert) in _OPTIONS.items():
        parser.add_argument(flag, metavar=metavar, help=text, type=convert[0] if convert else str)
    add = parser.add_argument
    add(
        "--config",
        metavar="JSON|FILE",
        action="append",
        default=[],
        help="settings: JSON, or a file; flags win over it",
    )
    for flag, text in _SWITCHES.items():
        add(flag, action="store_true", help=text)
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--run", "--resume"):
        early.add_argument(flag, nargs="?")
    named, _ = early.parse_known_args(argv)
    name = named.run or _algorithm_in(named.resume)
    cls = Config
    if name is not None and argv[:1] == ["train"]:
        with contextlib.suppress(UserError):  # the check of --run itself reports what is wrong with it
            cls = ALGORITHMS.get(name).Config
    title = f"settings of {name}" if cls is not Config else "settings of every algorithm"
    _add_settings(parser.add_argument_group(title), cls(), "")


def _algorithm_in(folder: str | None) -> str | None:
    """The algorithm of the run in a folder, so that a resumed run takes its settings as flags."""
    if folder is None:
        return None
    from raypid.reporting.logger import read_params

    name = read_params(folder).get("run")
    return None if name is None else str(name)


def _add_settings(group: argparse._ArgumentGroup, settings: Settings, prefix: str) -> None:
    docs, hints = field_docs(type(settings)), type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value, hint = getattr(settings, field.name), hints[field.name]
        names = [field.name, *(name for name, ours in ALIASES.items() if ours == field.name)]
        text = docs[field.name]
        if not isinstance(value, ModelConfig):
            default = list(value) if isinstance(value, tuple) else value
            text = f"{text} (default: {'none' if default is None else default})"
        switch = bool in (hint, *get_args(hint))
        group.add_argument(
            *(f"--{prefix}{name}".replace("_", "-") for name in names),
            dest=f"{_SETTING}{prefix}{field.name}",
            metavar=_metavar(hint),
            default=argparse.SUPPRESS,
            help="\n".join(textwrap.wrap(text.replace("%", "%%"), 90)),
            nargs="?" if switch else None,
            const="true" if switch else None,
        )
        if isinstance(value, ModelConfig):
            _add_settings(group, value, f"{field.name}.")


def _metavar(hint: object) -> str:
    """Return what a value looks like in the help: N, NUMBER, TEXT, {a,b} or JSON."""
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, get_args(hint))) + "}"
    if hint is ModelConfig or get_origin(hint) in (tuple, dict):
        return "JSON"
    kinds: dict[object, str] = {int: "N", float: "NUMBER", bool: "true|false", str: "TEXT"}
    return next((kinds[kind] for kind in (hint, *get_args(hint)) if kind in kinds), "TEXT")


def read_mapping(text: str, option: str) -> dict[str, object]:
    """Read a mapping from JSON text or from a file.

    Raises:
        ConfigError: `text` is neither JSON nor the name of a file with a mapping.
    """
    example = '{"time_total_s": 60}' if option == "--stop" else '{"lr": 0.001}'
    if not text.lstrip().startswith("{"):
        path = text.removeprefix("@")
        if not os.path.isfile(path):
            raise ConfigError(f"{option} takes JSON such as '{example}' or a JSON or YAML file; {text!r} is neither.")
        return load_file(path)
    value = parse_value(text)
    if not isinstance(value, dict):
        raise ConfigError(f"{option} takes JSON such as '{example}' or a file; this is not valid JSON: {shown(text)}")
    return value


def settings_of(options: argparse.Namespace) -> dict[str, object]:
    """Return the settings given on the command line; flags win over --config."""
    given: dict[str, object] = {}
    for text in options.config:
        given.update(read_mapping(text, "--config"))
    for name, value in vars(options).items():
        if name.startswith(_SETTING):
            key = name.removeprefix(_SETTING)
            given[key] = value if key in _TEXTS else parse_value(value)
    return given


def main(options: argparse.Namespace) -> int:
    """Check everything, then train. Returns 0 when the run has ended, also after one Ctrl-C."""
    from raypid.reporting.panel import make_progress
    from raypid.run.agent import Agent
    from raypid.run.assembly import resolve_config
    from raypid.run.experiment import Run, RunOptions, check_folder, clear_folder, lock_folder
    from raypid.run.known_keys import check_stop, known_keys

    stop = read_mapping(options.stop, "--stop") if options.stop else {}
    given = settings_of(options)
    _check_together(options)
    out = Path(options.resume or options.out) if options.resume or options.out else None
    if out is not None:
        check_folder(out, resume=bool(options.resume), overwrite=options.overwrite)
    name, below, stop = _saved(options, stop) if options.resume else _new(options, given, stop)
    criteria = check_stop(stop, known_keys(name, resolve_config(name, given, below)))
    if options.resume:
        agent = Agent.from_checkpoint(options.resume, given, out=out)
    else:
        agent = Agent(name, given, out=out, below=below)
    if not options.quiet:
        agent.notes += _hints(options, agent)
    try:
        with lock_folder(agent.default_out()):
            if out is not None and options.overwrite:
                clear_folder(out)
            counts = {name: getattr(options, name) for name in _COUNTS if getattr(options, name) is not None}
            Run(agent, RunOptions(stop=criteria, **counts), make_progress(criteria, options.quiet))()
    finally:
        agent.close()
    return 0


def _check_together(options: argparse.Namespace) -> None:
    """Refuse options that would have no effect beside others.

    Raises:
        ConfigError: names the two options.
    """
    if options.resume and options.out and Path(options.out) != Path(options.resume):
        raise ConfigError("Give --resume or --out, not both: a resumed run goes on in its own folder.")
    if options.resume and options.overwrite:
        raise ConfigError("Give --resume, which goes on with a run, or --overwrite, which replaces it: not both.")
    if options.resume and options.tuned:
        raise ConfigError(
            "--tuned is for new runs: --resume goes on with the saved settings and those given beside it."
        )
    if options.overwrite and not options.out:
        raise ConfigError("--overwrite replaces the run in the folder of --out: name that folder.")


def _new(
    options: argparse.Namespace, given: dict[str, object], stop: dict[str, object]
) -> tuple[str, dict[str, object], dict[str, object]]:
    """Return algorithm, tuned settings and stop criteria of a new run. A linear schedule ends with it, unless `given` says when."""
    from raypid.run.assembly import tuned_settings

    name, env = options.run, given.get("env")
    if name is None:
        raise ConfigError(f"Name the algorithm: --run {' or '.join(ALGORITHMS.names())}.")
    if not env:
        raise ConfigError("Name the environment: --env CartPole-v1 (`raypid list envs` shows what there is).")
    tuned = tuned_settings(name, env) if options.tuned else {}
    config = {**tuned, **given}
    linear = "linear" in (config.get("lr_schedule"), config.get("clip_schedule"))
    if linear and not config.get("schedule_steps") and isinstance(steps := stop.get("timesteps_total"), (int, float)):
        given["schedule_steps"] = int(steps)
    return name, tuned, stop


def _saved(options: argparse.Namespace, stop: dict[str, object]) -> tuple[str, dict[str, object], dict[str, object]]:
    """Return algorithm and settings of a saved run, and the stop criteria: those given, or else the saved ones."""
    from raypid import checkpoint
    from raypid.reporting.logger import read_params

    manifest = checkpoint.read_manifest(checkpoint.find(options.resume))
    algorithm = manifest["algorithm"]
    if options.run and options.run != algorithm:
        raise ConfigError(f"{options.resume} holds a run of {algorithm}, not of {options.run}.")
    return algorithm, manifest["config"], stop or read_params(options.resume).get("stop") or {}


def _hints(options: argparse.Namespace, agent: Agent) -> list[str]:
    """Say from where a resumed run goes on, or that there are tuned settings which a new one does not use."""
    from raypid.tuned import TUNED

    if options.resume:
        rows = " with its replay buffer" if agent.replay_restored else ""
        return [f"Going on from step {agent.timesteps:,} (iteration {agent.iteration}){rows}."]
    if (agent.run, agent.config.env) in TUNED and not options.tuned:
        return [f"Tuned settings for {agent.run} on {agent.config.env} are there: --tuned uses them."]
    return []
