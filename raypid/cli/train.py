"""Train a policy.

Flags win over files and over what was saved.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from raypid.cli import dashed
from raypid.cli.options import (
    HELP_ALL,
    SETTING,
    add_groups,
    add_settings,
    option_of,
    reader,
    spellings_of,
    without_options,
)
from raypid.errors import UserError, shown
from raypid.plugins import project
from raypid.plugins.arguments import declared, declares
from raypid.plugins.registry import AGENTS, ALGORITHMS, ENVS, NETWORKS, is_model
from raypid.run.calls import algorithm_of
from raypid.settings.config import Config, ConfigError, Given, Source, canonical, field_docs, overlay, renamed
from raypid.settings.files import OPTIONS, Words, check_trust, read_runs, read_values
from raypid.settings.request import RunRequest, join
from raypid.settings.stops import STEPS, read_stop
from raypid.storage.run_folder import PARAMS

if TYPE_CHECKING:
    from raypid.run.resolve import SettledRun

PARTS = {"run": ALGORITHMS, "env": ENVS, "model.network": NETWORKS, "agent": AGENTS}
"""What a run is made of, by its settings -> where its names are."""
_DECLARE = {"env": "env_config", "model.network": "model.custom", "agent": "agent_config"}
"""Parts whose classes declare options -> the setting that holds the values."""
AGENT_RUN = "CustomModel"
"""The algorithm that --agent_name and --model_name run."""


def at_least(low: int, text: str) -> int:
    """Read a whole number."""
    with contextlib.suppress(ValueError):
        if low <= (number := int(text)) < 2**63:
            return number
    raise argparse.ArgumentTypeError(f"takes a whole number of at least {low}, not {shown(text)}")


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Add the options of `raypid train`, with the settings of the algorithm that `--run` names."""
    parser.usage = "raypid train --run NAME --env NAME [--stop N] [options]"
    parser.set_defaults(argv=list(argv))
    named = named_parts(argv)
    name, full = named.get("run", ""), HELP_ALL in argv
    if name == AGENT_RUN:
        parser.set_defaults(run=AGENT_RUN)
        named = {"agent": "default_agent", **named}
    cls = settings_class(name)
    if not name:
        told = f"`{parser.prog} --run PPO --help` shows the settings of PPO with its defaults; so for every algorithm."
        parser.description = f"{parser.description} {told}"
    parser.epilog = f"`raypid train --run {name or 'PPO'} {HELP_ALL}` shows all settings; docs/names.md has the names of other libraries."
    groups = add_groups(parser, name or "every algorithm")
    _add_options(groups["run"].add_argument, full=full)
    add_settings(groups, cls(), full=full)
    _add_arguments(parser, named)


def settings_class(algorithm: str) -> type[Config]:
    """The settings of an algorithm; those that all have if there is none of this name, which the check of --run reports."""
    with contextlib.suppress(UserError):
        return ALGORITHMS.get(algorithm).Config
    return Config


def _add_options(add: Callable[..., object], *, full: bool) -> None:
    """Add what is no setting of a run: by `add` what the short help shows, by `more` the rest."""

    def more(*flags: str, **about: object) -> None:
        add(*flags, **about if full else {**about, "help": argparse.SUPPRESS})

    add("--run", metavar="NAME", type=reader(algorithm_of), help=f"algorithm: {', '.join(ALGORITHMS.names())}")
    text = (
        "what ends the run: environment steps in all (100000, 100k; also --timesteps N), time (90s, 10min), or the first of several results "
        "(reward=200,time=600 or '{\"evaluation/episode_reward_mean\": 200}')"
    )
    add("--stop", metavar="N|JSON", help=text)
    more("--timesteps", metavar="N", help=argparse.SUPPRESS)
    add("--out", metavar="DIR", help="the run's folder (default: a new one under runs/)")
    text = "go on with the run, or experiments, in this folder; without DIR: with the run in that of --out, which begins if it is not there"
    add("--resume", nargs="?", const=True, metavar="DIR", help=text)
    text = "what to run, in YAML or JSON: one run, or experiments (grids, seeds)"
    add("-f", "--file", metavar="FILE", help=text)
    more("--dry-run", action="store_true", help="with -f: show the trials, and run none")
    text = "with -f: most trials at a time (default: as many as fit)"
    more("--max-concurrent", metavar="N", type=partial(at_least, 1), help=text)
    text = "print where each setting comes from, and run nothing (all: every one)"
    add("--explain", nargs="?", const="changed", choices=("changed", "all"), metavar="all", help=text)
    more("--json", action="store_true", help="with --explain: all of it, as JSON")
    for count, low in OPTIONS.items():
        more(option_of(count), metavar="N", type=partial(at_least, low), help=field_docs(Words)[count])
    text = "settings of one run: JSON, or a file (RUN/params.json repeats it)"
    add("--config", metavar="JSON|FILE", action="append", default=[], help=text)
    text = "start from the tuned settings for this algorithm and environment (`raypid list tuned`), or from those that `raypid tune` saved as NAME"
    add("--tuned", nargs="?", const=True, default=False, metavar="NAME", help=text)
    add("--overwrite", action="store_true", help="replace the run in the folder of --out, or the experiment of -f")
    add("--quiet", action="store_true", help="print errors only")
    text = "import what a run's folder names (--resume, --config), though you did not write it"
    more("--trust", action="store_true", help=text)


def named_parts(argv: Sequence[str]) -> dict[str, str]:
    """The names of PARTS that flags give, or else files or the resumed run: they say which other options there are.

    Raises:
        ConfigError: the flags name an algorithm, and an agent or a whole model, which have one of their own.
        UntrustedError: the resumed run's algorithm may not be imported.
    """
    from raypid.storage.checkpoint import latest, open_checkpoint

    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for part in PARTS:
        early.add_argument(*map(option_of, spellings_of(part)), dest=part, nargs="?")
    early.add_argument("--out", nargs="?")
    early.add_argument("-f", "--file", nargs="?")
    early.add_argument("--resume", nargs="?", const=True)
    early.add_argument("--trust", action="store_true")
    early.add_argument("--config", action="append", default=[], nargs="?")
    options = early.parse_known_args(argv)[0]
    flags: dict[str, str] = {part: name for part, name in vars(options).items() if part in PARTS and name}
    named: dict[str, str] = {}
    folder = options.out if options.resume is True else options.resume
    saved = _saved_parts(options, folder)
    for parts in (flags, *saved.values()):
        named = {**parts, **named}
        if "run" not in named and _learns_by_agent(named):
            named["run"] = AGENT_RUN
    checkpoints = os.path.join(folder or "", "checkpoints")
    if "run" not in named and folder and os.path.isdir(checkpoints) and latest(checkpoints) is not None:
        from raypid.run.resolve import saved_algorithm

        # a checkpoint may be signed where PARAMS is not
        named["run"] = saved_algorithm(Path(folder), open_checkpoint(folder), RunRequest(trust=options.trust))
    if "run" in named:
        named["run"] = ALGORITHMS.canonical(named["run"])
    run = ALGORITHMS.canonical({**saved.get(options.file, {}), **flags}.get("run", AGENT_RUN))
    if ALGORITHMS.is_own(run) and run != AGENT_RUN and _learns_by_agent(flags):
        raise ConfigError(
            f"--run {run} does not go with --agent_name, or with a whole model as --model_name: these learn by an agent. Leave run out."
        )
    return named


def _saved_parts(options: argparse.Namespace, folder: str | None) -> dict[str | None, dict[str, str]]:
    """What each file, and the resumed run, names of PARTS, the one that wins first; of several experiments what they have in common.

    Of a file that names code which may not be imported, only names that are known here.
    """
    from raypid.settings.marked import Marked
    from raypid.sweep.experiment import blocks_of

    found: dict[str | None, dict[str, str]] = {}
    texts = [*reversed(options.config), options.file, folder and os.path.join(folder, PARAMS)]
    for text in filter(None, texts):
        with contextlib.suppress(ValueError, OSError):  # main says what is wrong with it
            blocks = blocks_of(Marked("", read_values(text, "")))
            first, *others = [{canonical(key): value for key, value in overlay({}, block).items()} for block in blocks]
            common = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
            parts = {part: name for part, name in common.items() if part in PARTS and isinstance(name, str)}
            try:
                check_trust(text, trust=options.trust, given={})
            except UserError:
                parts = {part: name for part, name in parts.items() if name in PARTS[part]}
            found[text] = parts
    return found


def _learns_by_agent(named: Mapping[str, str]) -> bool:
    """Whether the named parts have an agent, or a whole model, which learns by one."""
    try:
        return "agent" in named or is_model(named.get("model.network", "auto"))
    except Exception:  # whatever is wrong with the model is said where it is used
        return False


def _add_arguments(parser: argparse.ArgumentParser, named: Mapping[str, str]) -> None:
    """Add the options that the named classes and the project declare, each under its owner.

    Args:
        named: names of PARTS.

    Raises:
        ConfigError: two owners declare the same option.
    """
    owners: list[tuple[str, str, object]] = []
    for part, setting in _DECLARE.items():
        name, registry = named.get(part, ""), PARTS[part]
        with contextlib.suppress(Exception):  # whatever is wrong with it is said where it is used
            if not name.startswith("envpool:"):
                owners.append((f"{registry.kind} {name}", setting, declares(registry.get(name), name)))
    owners.append((project.OPTIONS, "custom_args", project.get_custom_args))
    for owner, setting, declare in owners:
        if not callable(declare):
            continue
        group = parser.add_argument_group(f"arguments of {owner}")
        for action in declared(declare, setting).values():
            try:
                group._add_action(_as_text(action, f"{SETTING}{setting}.{action.dest}"))
            except argparse.ArgumentError as error:
                raise ConfigError(f"{owner}: {error}. Give the option another name.") from None


def _as_text(action: argparse.Action, dest: str) -> argparse.Action:
    """Let an option that a user's class has declared keep text for `dest`; the class's own parser will read it again."""
    text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
    if "%(default)" not in text and action.default not in (None, argparse.SUPPRESS):
        text = f"{text} (default: {action.default})".strip()
    action.help = text.replace("%(default)s", str(action.default)).replace("%%", "%").replace("%", "%%")
    action.metavar = action.metavar or action.dest.upper()
    action.option_strings = [dashed(flag) for flag in action.option_strings]
    action.dest, action.default, action.required = dest, argparse.SUPPRESS, False
    if action.type not in (int, float):
        action.type = None
    if type(action).__module__ != "argparse":  # it may keep anything
        action.__class__ = argparse._StoreAction
    return action


def flags_of(options: argparse.Namespace) -> Given:
    """The settings given by flags of their own."""
    given = {name.removeprefix(SETTING): value for name, value in vars(options).items() if name.startswith(SETTING)}
    return Given(given, "flag")


def settings_of(options: argparse.Namespace) -> Given:
    """The settings that a search is given on the command line; flags win over --config.

    Raises:
        ConfigError: what is wrong with a file, or a search has no use for.
        UntrustedError: a file in a run's folder names code that may not be imported.
    """
    flags = flags_of(options)
    file = read_runs(options.config, options.run, trust=options.trust, given=flags)
    idle = [word for word in (*file.origins, *(["tuned"] if file.tuned else [])) if word != "run"]
    if idle and not file.recorded:
        raise ConfigError(
            f"--config of a search takes settings alone: leave {', '.join(idle)} out, and see its own options."
        )
    return overlay(file.laid, flags)


def request_of(options: argparse.Namespace) -> RunRequest:
    """Build the request of a command line: flags over the files of --config.

    Raises:
        ConfigError: something in it is wrong, or two options do not go together.
        UntrustedError: a file in a run's folder names code that may not be imported.
    """
    flags = flags_of(options)
    file = read_runs(options.config, options.run, trust=options.trust, given=flags)
    asked = RunRequest(
        run=options.run,
        settings=flags,
        stop=_stop(options),
        tuned=options.tuned,
        out=options.out,
        resume=options.resume,
        overwrite=options.overwrite,
        trust=options.trust,
        options={name: value for name in OPTIONS if (value := getattr(options, name)) is not None},
        is_whole=True,
        python=False,
    )
    return join(file, asked.from_source("flag"))


def main(options: argparse.Namespace) -> int:
    """Check everything, then train one run. Returns 0 when it has ended, also after one Ctrl-C."""
    check_together(options)
    return run(request_of(options), options)


def run(request: RunRequest, options: argparse.Namespace) -> int:
    """Train, or explain with --explain; as `main`."""
    from raypid.run.resolve import settle, standing
    from raypid.run.train import train_request
    from raypid.runtime.resources import ResourceError

    if options.explain:
        return _explain(options, settle(standing(request)))
    try:
        train_request(request, quiet=options.quiet)
    except ResourceError as error:
        if not error.fits or options.resume:
            raise
        raise ResourceError(f"{error} The command that fits: {fitting_command(options.argv, error.fits)}") from None
    return 0


def _explain(options: argparse.Namespace, settled: SettledRun) -> int:
    """Print the settings that the run would have, and why, and what would go where. Nothing is started but an environment, for its spaces;
    a cluster is joined to look, and left."""
    from raypid.run.explain import Row, explain
    from raypid.run.placement import look as look_for_room
    from raypid.run.resolve import look
    from raypid.run.stopping import already_finished

    request = settled.request
    run, changed = look_for_room(look(settled))
    asked: dict[str, object] = {"run": run.run, "stop": dict(run.stop) or None, **request.options}
    asked |= {"out": str(request.out)} if request.out else {}
    origins = {key: [replace(origin, value=asked.get(key))] for key, origin in request.origins.items()}
    about = [Row(key, value, origins.get(key, ()) if value is not None else ()) for key, value in asked.items()]
    if not request.out:
        about.append(Row("out", "a new folder", [Source("adapted", "under runs/", None)]))
    found = explain(run, run.changes, about, run.stop.get(STEPS))
    done = already_finished(settled)
    notes = [*run.notes, *renamed(request.settings), *changed, *([done[1]] if done is not None else [])]
    if options.json:
        print(json.dumps({**found.as_dict(), "notes": notes}, indent=2))
        return 0
    width = min(shutil.get_terminal_size().columns, 120)
    print(found.text(width, everything=options.explain == "all", how="--explain all"))
    print("\n".join([*notes, "Nothing was run."]))
    return 0


def stop_of(text: str | None) -> dict[str, object]:
    """The criteria that --stop has, or a file that it names."""
    is_file = text and os.path.isfile(text.removeprefix("@"))
    return read_stop(read_values(str(text), "--stop") if is_file else text or None, "--stop")


def _stop(options: argparse.Namespace) -> dict[str, object] | None:
    """What --stop says, and the options that are criteria of their own; None if nothing is given.

    Raises:
        ConfigError: two of them say different things of one result.
    """
    stop = stop_of(options.stop)
    if options.timesteps is not None:
        steps = read_stop(options.timesteps, "--timesteps")
        if steps.keys() != {STEPS} or stop.get(STEPS) not in (None, steps[STEPS]):
            raise ConfigError(
                f"--timesteps {shown(options.timesteps)} is no number of environment steps, or --stop has another one."
            )
        stop |= steps
    return stop if options.stop or stop else None


def fitting_command(argv: Sequence[str], fits: Mapping[str, object]) -> str:
    """The command with the settings that fit, and without --gpu where these leave no GPU."""
    from raypid.runtime.resources import setting_text

    changes = {option_of(name): setting_text(value) for name, value in fits.items()}
    kept = without_options(argv, *changes, *(["--gpu"] if fits.get("num_gpus") == 0 else []))
    return shlex.join(["raypid", *kept, *(word for pair in changes.items() for word in pair)])


def check_goes_on(what: str, argv: Sequence[str], *may: str) -> None:
    """Refuse options that a search or an experiment which goes on has had from its beginning, all but those that it `may` have anew.

    Raises:
        ConfigError: names them.
    """
    flags = [flag for word in argv if (flag := word.partition("=")[0]).startswith("--")]
    if others := [flag for flag in flags if canonical(flag.removeprefix("--")) not in ("resume", "quiet", *may)]:
        raise ConfigError(f"{what} goes on as it was planned: leave {', '.join(others)} out, or begin a new one.")


_NEEDS = {"json": ("explain",), "dry_run": ("file",), "max_concurrent": ("file", "resume")}
"""Options -> those of which they need one."""


def check_together(options: argparse.Namespace) -> None:
    """Refuse options that would have no effect beside others.

    Raises:
        ConfigError: names the options.
    """
    for name in ("out", "resume", "file"):
        if getattr(options, name) == "":
            raise ConfigError(f"--{name} takes a name, not ''.")
    if options.resume and options.file:
        raise ConfigError(
            "Give -f, which starts what a file says, or --resume, which goes on with what was started: not both."
        )
    for name, others in _NEEDS.items():
        if getattr(options, name) and not any(getattr(options, other) for other in others):
            raise ConfigError(f"{option_of(name)} has no effect without {' or '.join(map(option_of, others))}.")
