"""`raypid train`: every setting of the algorithm is a flag."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from raypid.config import (
    ALIASES,
    Config,
    ConfigError,
    ModelConfig,
    Settings,
    field_docs,
    load_file,
    overlay,
    parse_value,
    type_hints,
)
from raypid.errors import UserError
from raypid.registry import ALGORITHMS

_SETTING = "setting:"
_TEXTS = ("env", "evaluation_env", "callbacks", "init_from", "address", "intrinsic_reward")
"""Settings whose values are names: never JSON."""


def add_parser(subparsers: Any, argv: Sequence[str]) -> None:
    """The options, with those of the algorithm that `--run` names."""
    parser = subparsers.add_parser(
        "train",
        help="train a policy",
        description="Train a policy. `raypid train --run PPO --help` shows every setting with its default.",
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(main=main)
    add = parser.add_argument
    add("--run", metavar="NAME", type=_algorithm, help=f"algorithm: {', '.join(ALGORITHMS.names())}")
    add(
        "--stop",
        metavar="JSON",
        help='when to end, e.g. \'{"evaluation/episode_reward_mean": 200, "time_total_s": 600}\'',
    )
    add(
        "--config",
        metavar="JSON|FILE",
        action="append",
        default=[],
        help="settings as JSON, or a JSON or YAML file; flags win over it",
    )
    add(
        "--tuned",
        action="store_true",
        help="begin from the tuned settings for this algorithm and environment (`raypid list tuned`)",
    )
    add("--out", metavar="DIR", help="the run's folder (default: a new one under runs/)")
    add(
        "--resume", metavar="DIR", help="go on with the run in this folder; settings given anew win over the saved ones"
    )
    add("--overwrite", action="store_true", help="replace the run that --out holds")
    add(
        "--checkpoint-interval",
        type=partial(_at_least, 0),
        default=0,
        metavar="N",
        help="iterations between checkpoints (default: one a minute)",
    )
    add(
        "--keep-checkpoints",
        type=partial(_at_least, 1),
        default=3,
        metavar="N",
        help="newest checkpoints that stay, besides the best (default: 3)",
    )
    add(
        "--final-episodes",
        type=partial(_at_least, 0),
        default=50,
        metavar="N",
        help="episodes that the best policy plays at the end, fewer where these take over a minute; 0: none (default: 50)",
    )
    add("--quiet", action="store_true", help="print errors only")
    name = _value_of("--run", argv) or _algorithm_in(_value_of("--resume", argv))
    known = name is not None and (name in ALGORITHMS or ":" in name) and argv[:1] == ["train"]
    cls = Config
    if known:
        with contextlib.suppress(UserError):  # the check of --run itself reports it
            cls = ALGORITHMS.get(str(name)).Config
    _add_settings(
        parser.add_argument_group(f"settings of {name}" if cls is not Config else "settings of every algorithm"),
        cls(),
        "",
    )


def _algorithm_in(folder: str | None) -> str | None:
    """The algorithm of the run in a folder, so that a resumed run takes its settings as flags."""
    if folder is None:
        return None
    from raypid.reporting.logger import read_params

    return read_params(folder).get("run")


def _algorithm(name: str) -> str:
    """Checked while the options are parsed: an unknown algorithm's settings would be unknown options."""
    try:
        ALGORITHMS.get(name)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None
    return name


def _at_least(low: int, text: str) -> int:
    if not text.lstrip("+-").isdigit() or int(text) < low:
        raise argparse.ArgumentTypeError(f"takes a whole number of at least {low}, not {text!r}")
    return int(text)


def _add_settings(group: Any, settings: Settings, prefix: str) -> None:
    docs, hints = field_docs(type(settings)), type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, ModelConfig):
            group.add_argument(
                f"--{field.name}",
                dest=_SETTING + field.name,
                metavar="JSON",
                default=argparse.SUPPRESS,
                help=docs[field.name],
            )
            _add_settings(group, value, f"{field.name}.")
            continue
        flag = f"--{prefix}{field.name}".replace("_", "-")
        default = list(value) if isinstance(value, tuple) else value
        text = f"{docs.get(field.name, '')} (default: {'none' if default is None else default})".replace("%", "%%")
        extra = {"nargs": "?", "const": "true"} if bool in (hints[field.name], *get_args(hints[field.name])) else {}
        others = [f"--{prefix}{name}".replace("_", "-") for name, ours in ALIASES.items() if ours == field.name]
        group.add_argument(
            flag,
            *others,
            dest=f"{_SETTING}{prefix}{field.name}",
            metavar=_metavar(hints[field.name]),
            default=argparse.SUPPRESS,
            help=_wrapped(text),
            **extra,
        )


def _metavar(hint: Any) -> str:
    """What a value looks like: N, NUMBER, TEXT, {a,b}, JSON."""
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, get_args(hint))) + "}"
    kinds = {int: "N", float: "NUMBER", bool: "true|false", str: "TEXT"}
    parts = get_args(hint) if get_origin(hint) not in (tuple, dict) else ()
    return next(
        (kinds[k] for k in (hint, *parts) if k in kinds), "JSON" if get_origin(hint) in (tuple, dict) else "TEXT"
    )


def _wrapped(text: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, 90))


def _value_of(flag: str, argv: Sequence[str]) -> str | None:
    for i, argument in enumerate(argv):
        if argument == flag and i + 1 < len(argv):
            return argv[i + 1]
        if argument.startswith(flag + "="):
            return argument.partition("=")[2]
    return None


def read_mapping(text: str, option: str) -> dict[str, Any]:
    """A mapping from JSON text or from a file.

    Raises:
        ConfigError: neither.
    """
    example = '{"time_total_s": 60}' if option == "--stop" else '{"lr": 0.001}'
    if not text.lstrip().startswith("{"):
        path = text.removeprefix("@")
        if not Path(path).is_file():
            raise ConfigError(f"{option} takes JSON such as '{example}' or a JSON or YAML file; {text!r} is neither.")
        return load_file(path)
    value = parse_value(text)
    if not isinstance(value, dict):
        raise ConfigError(f"{option} takes JSON such as '{example}' or a file; this is not valid JSON: {text}")
    return value


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The settings given on the command line; flags win over --config."""
    given: dict[str, Any] = {}
    for text in options.config:
        given.update(read_mapping(text, "--config"))
    for name, value in vars(options).items():
        if name.startswith(_SETTING):
            key = name.removeprefix(_SETTING)
            given[key] = value if key in _TEXTS else parse_value(value)
    return given


def main(options: argparse.Namespace) -> int:
    """Check everything, then train; 0 at the end of a run, also after one Ctrl-C."""
    from raypid.reporting.panel import make_progress
    from raypid.run.agent import Agent
    from raypid.run.experiment import Run, RunOptions, check_folder, check_stop, clear_folder, lock_folder
    from raypid.tuned import TUNED

    stop = check_stop(read_mapping(options.stop, "--stop")) if options.stop else {}
    given = settings_of(options)
    resume = bool(options.resume)
    out = Path(options.resume or options.out) if options.resume or options.out else None
    if resume and options.out and Path(options.out) != out:
        raise ConfigError("Give --resume or --out, not both: a resumed run goes on in its own folder.")
    if out is not None:
        check_folder(out, resume=resume, overwrite=options.overwrite)
    if resume:
        assert out is not None
        agent, stop = _resumed(out, given, stop, options)
    else:
        agent = Agent(options.run, _new_config(options, given, stop), out=out)
        if (options.run, agent.config.env) in TUNED and not options.tuned and not options.quiet:
            agent.notes.append(f"Tuned settings for {options.run} on {agent.config.env} are there: --tuned uses them.")
    try:
        with lock_folder(agent.default_out()):
            if out is not None and options.overwrite and not resume:
                clear_folder(out)
            run_options = RunOptions(
                stop=stop,
                checkpoint_interval=options.checkpoint_interval,
                keep_checkpoints=options.keep_checkpoints,
                final_episodes=options.final_episodes,
            )
            Run(agent, run_options, make_progress(stop, options.quiet))()
    finally:
        agent.close()
    return 0


def _new_config(options: argparse.Namespace, given: dict[str, Any], stop: dict[str, float]) -> dict[str, Any]:
    from raypid.run.assembly import tuned_settings

    name = options.run
    if name is None:
        raise ConfigError(f"Name the algorithm: --run {' or '.join(ALGORITHMS.names())}.")
    ALGORITHMS.get(name)
    if not given.get("env"):
        raise ConfigError("Name the environment: --env CartPole-v1 (`raypid list envs` shows what there is).")
    config = overlay(tuned_settings(name, given["env"]), given) if options.tuned else dict(given)
    linear = "linear" in (config.get("lr_schedule"), config.get("clip_schedule"))
    if linear and not config.get("schedule_steps") and "timesteps_total" in stop:
        config["schedule_steps"] = int(stop["timesteps_total"])
    return config


def _resumed(
    out: Path, given: dict[str, Any], stop: dict[str, float], options: argparse.Namespace
) -> tuple[Any, dict[str, float]]:
    from raypid import checkpoint
    from raypid.reporting.logger import read_params
    from raypid.run.agent import Agent

    algorithm = checkpoint.read_manifest(checkpoint.find(out))["algorithm"]
    if options.run and options.run != algorithm:
        raise ConfigError(f"{out} holds a run of {algorithm}, not of {options.run}.")
    saved = read_params(out).get("stop") or {}
    agent = Agent.from_checkpoint(out, given, out=out)
    if not options.quiet:
        rows = " with its replay buffer" if agent.replay_restored else ""
        agent.notes.append(f"Going on from step {agent.timesteps:,} (iteration {agent.iteration}){rows}.")
    return agent, stop or {k: float(v) for k, v in saved.items()}
