"""`raypid train`: every setting of the algorithm is a flag."""

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
from typing import TYPE_CHECKING, Any

from raypid.cli import dashed
from raypid.cli.options import HELP_ALL, SETTING, HelpFormatter, add_groups, add_settings, adder, option_of
from raypid.errors import UserError, shown
from raypid.plugins import project
from raypid.plugins.arguments import declared, declares
from raypid.plugins.modules import entry_name, names_file
from raypid.plugins.registry import AGENTS, ALGORITHMS, ENVS, NETWORKS, is_model
from raypid.plugins.trust import check_names
from raypid.report.logger import read_params
from raypid.settings import files as run_file
from raypid.settings.config import (
    Config,
    ConfigError,
    Given,
    Source,
    by_our_names,
    canonical,
    overlay,
    parse_value,
    renamed,
)
from raypid.settings.files import read_runs
from raypid.settings.request import RunRequest, join
from raypid.settings.stops import STEPS, read_stop
from raypid.storage.ownership import run_folder_of
from raypid.storage.run_folder import is_record

if TYPE_CHECKING:
    from raypid.cli import Subparsers
    from raypid.run.resolve import SettledRun
    from raypid.sweep.experiment import Experiment

_TEXTS = (
    "env",
    "evaluation_env",
    "callbacks",
    "init_from",
    "address",
    "intrinsic_reward",
    "gpu",
    "agent",
    "model.network",
)
"""Settings whose values are names: never JSON."""
_DECLARED = ("env_config.", "model.custom.", "agent_config.", "custom_args.")
"""Settings that users' own options fill."""


def algorithm_name(name: str) -> str:
    """Check the name while options are parsed: otherwise the algorithm's settings would be unknown options."""
    try:
        ALGORITHMS.get(name := ALGORITHMS.canonical(name))
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None
    return name


def at_least(low: int, text: str) -> int:
    """Read a whole number."""
    with contextlib.suppress(ValueError):
        if low <= (number := int(text)) < 2**63:
            return number
    raise argparse.ArgumentTypeError(f"takes a whole number of at least {low}, not {shown(text)}")


_COUNTS = {
    "checkpoint_interval": (0, "iterations between checkpoints (default: one a minute)"),
    "keep_checkpoints": (1, "newest checkpoints to keep, besides the best (default: 3)"),
    "final_episodes": (
        0,
        "episodes that the best policy plays at the end, fewer if they take longer than the run, or over a minute; 0: none (default: 50)",
    ),
}
"""Options that are fields of RunOptions, which has their defaults -> the least value, help."""


def add_parser(subparsers: Subparsers, argv: Sequence[str]) -> None:
    """Add the options of `raypid train`, with the settings of the algorithm that `--run` names."""
    parser = subparsers.add_parser(
        "train",
        help="train a policy",
        usage="raypid train --run NAME --env NAME [--stop N] [options]",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    if argv[:1] != ["train"]:
        return  # another command, for whose help the name is enough
    parser.set_defaults(argv=list(argv))
    named = _looked_ahead(argv)
    _name_from_files(named)
    name = named.run or _algorithm_in(named.resume, named.trust)
    if named.agent is not None and name is not None and name != AGENT_RUN:
        raise ConfigError(
            f"--agent_name {named.agent} learns by an agent of its own, {f'--run {name}' if named.run else 'the run'} by an algorithm: "
            "give one of the two."
        )
    if named.run not in (None, AGENT_RUN) and named.run in ALGORITHMS and _is_model(named.model):
        raise ConfigError(
            f"--model_name {named.model} is a whole model, which learns by an agent, not by --run {named.run}: leave --run out (--agent_name names "
            "another agent than default_agent)."
        )
    if name is None and (named.agent is not None or _is_model(named.model)):
        name = AGENT_RUN
        parser.set_defaults(run=name)
    if name is None and (name := named.file_run) is not None:
        parser.set_defaults(run=name)
    cls = Config
    if isinstance(name, str):
        with contextlib.suppress(UserError):  # the check of --run itself reports what is wrong with it
            cls = ALGORITHMS.get(name).Config
    _describe(parser, name if cls is not Config else None)
    groups = add_groups(parser, "every algorithm" if cls is Config else str(name), argv)
    full = HELP_ALL in argv
    _add_options(groups["run"].add_argument, adder(groups["run"], shown=full))
    add_settings(groups, cls(), full=full)
    _add_arguments(parser, named.env, named.model, named.agent or ("default_agent" if name == AGENT_RUN else None))


def _describe(parser: argparse.ArgumentParser, name: str | None) -> None:
    """Say what the help shows, and how to see more."""
    parser.description = "Train a policy. Flags win over files and over what was saved."
    if name is None:
        parser.description += (
            " `raypid train --run PPO --help` shows the settings of PPO with its defaults; so for every algorithm."
        )
    parser.epilog = f"`raypid train --run {name or 'PPO'} {HELP_ALL}` shows all settings; docs/names.md has the names of other libraries."


def _add_options(add: Callable[..., object], more: Callable[..., object]) -> None:
    """Add what is no setting of a run: by `add` what the short help shows, by `more` the rest."""
    add("--run", metavar="NAME", type=algorithm_name, help=f"algorithm: {', '.join(ALGORITHMS.names())}")
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
    for count, (low, text) in _COUNTS.items():
        more(f"--{count.replace('_', '-')}", metavar="N", type=partial(at_least, low), help=text)
    text = "settings of one run: JSON, or a file (RUN/params.json repeats that run)"
    add("--config", metavar="JSON|FILE", action="append", default=[], help=text)
    text = "start from the tuned settings for this algorithm and environment (`raypid list tuned`), or from those that `raypid tune` saved as NAME"
    add("--tuned", nargs="?", const=True, default=False, metavar="NAME", help=text)
    add("--overwrite", action="store_true", help="replace the run in the folder of --out, or the experiment of -f")
    add("--quiet", action="store_true", help="print errors only")
    text = "import what a run's folder names (--resume, --config), though you did not write it"
    more("--trust", action="store_true", help=text)


def _looked_ahead(argv: Sequence[str]) -> argparse.Namespace:
    """The options that say which others there are."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--run", nargs="?")
    for flag, dest in (("--out", "out"), *_NAMED):
        early.add_argument(flag, dest=dest, nargs="?")
    early.add_argument("--resume", nargs="?", const=True)
    early.add_argument("-f", "--file", dest="file", nargs="?")
    early.add_argument("--trust", action="store_true")
    early.add_argument("--config", action="append", default=[], nargs="?")
    named = early.parse_known_args(argv)[0]
    named.resume = named.out if named.resume is True else named.resume
    named.run = ALGORITHMS.canonical(named.run) if named.run is not None else None
    return named


AGENT_RUN = "CustomModel"
"""The algorithm that --agent_name and --model_name run."""
_NAMED = (
    ("--env", "env"), ("--env-name", "env"), ("--model.network", "model"), ("--model-name", "model"), ("--agent", "agent"),
    ("--agent-name", "agent"),
)  # fmt: skip


def _name_from_files(named: argparse.Namespace) -> None:
    """Fill in what --config names (the last wins), or the run that is resumed, and no flag does; the algorithm of --config is `file_run`.
    Nothing is imported for it that is not known here."""
    named.file_run = None
    for text in filter(None, reversed(_configs(named))):
        with contextlib.suppress(ValueError, OSError):  # main says what is wrong with it
            file = run_file.read_run(text)
            if file.run in ALGORITHMS:
                named.file_run = named.file_run or file.run
            run_file.check_trust(text, trust=named.trust, given={})  # it may name code that this user has not written
            named.file_run = named.file_run or file.run
            for key, value in given_parts({**file.recorded, **file.settings}).items():
                if getattr(named, key) is None and isinstance(value, str):
                    setattr(named, key, value)
    if _experiments_file(named) is not None:
        _name_from_experiments(named)
    if named.resume is not None:
        saved = given_parts(read_params(named.resume))
        for key, registry in (("env", ENVS), ("model", NETWORKS), ("agent", AGENTS)):
            if getattr(named, key) is None and isinstance(saved.get(key), str) and saved[key] in registry:
                setattr(named, key, saved[key])


def _name_from_experiments(named: argparse.Namespace) -> None:
    """Fill in what all experiments of --file have in common, and no flag says."""
    from raypid.settings.marked import read_marked
    from raypid.sweep.experiment import blocks_of

    with contextlib.suppress(ValueError):  # main says what is wrong with it
        blocks = blocks_of(read_marked(named.file))
        foreign = run_folder_of(Path(named.file)) is not None  # it may name code that this user has not written
        parts = [{"run": block.get("run"), **given_parts(block)} for block in blocks]
        for key in ("run", *dict.fromkeys(part for _, part in _NAMED)):
            values = [part.get(key) for part in parts]
            known = values and isinstance(values[0], str) and all(value == values[0] for value in values)
            if known and getattr(named, key) is None and (not foreign or (key == "run" and values[0] in ALGORITHMS)):
                setattr(named, key, values[0])


def given_parts(settings: Mapping[str, object]) -> dict[str, object]:
    """What settings say of environment, model and agent: by the names of `_NAMED`."""
    model = settings.get("model")
    network = {"model.network": model.get("network")} if isinstance(model, Mapping) else {}
    flat = {key.replace("-", "_"): value for key, value in {**settings, **network}.items() if isinstance(key, str)}
    return {part: flat[key] for flag, part in _NAMED if (key := flag[2:].replace("-", "_")) in flat}


def _is_model(name: str | None) -> bool:
    try:
        return name is not None and is_model(name)
    except Exception:  # whatever is wrong with it is said where it is used
        return False


def _add_arguments(parser: argparse.ArgumentParser, env: str | None, model: str | None, agent: str | None) -> None:
    """Add the options that the named classes and the project declare, each under its owner.

    Raises:
        ConfigError: two owners declare the same option.
    """
    owners: list[tuple[str, str, object]] = []
    for kind, name, registry, setting in (
        ("environment", env, ENVS, "env_config"),
        ("model", model, NETWORKS, "model.custom"),
        ("agent", agent, AGENTS, "agent_config"),
    ):
        if (
            name is not None
            and (name in registry or ":" in name or names_file(name))
            and not name.startswith("envpool:")
        ):
            with contextlib.suppress(Exception):  # whatever is wrong with it is said where it is used
                owners.append((f"{kind} {name}", setting, declares(registry.get(name), name)))
    owners.append((project.OPTIONS, "custom_args", project.get_custom_args))
    taken = dict.fromkeys(parser._option_string_actions, "raypid itself")
    for owner, setting, declare in owners:
        if not callable(declare):
            continue
        group = parser.add_argument_group(f"arguments of {owner}")
        for action in declared(declare, setting).values():
            for flag in action.option_strings:
                if other := taken.get(dashed(flag)):
                    raise ConfigError(
                        f"Both {other} and {owner} declare {dashed(flag)}: give that of {owner} another name."
                    )
                taken[dashed(flag)] = owner
            _add_declared(group, action, f"{SETTING}{setting}.{action.dest}")


def _add_declared(group: argparse._ArgumentGroup, action: argparse.Action, dest: str) -> None:
    """Add an option that a user's class has declared; the class's own parser will read its value again."""
    flags = [dashed(flag) for flag in action.option_strings if not flag.startswith("--no-")]
    text = (action.help or "") if action.help != argparse.SUPPRESS else ""
    if "%(default)" not in text and action.default not in (None, argparse.SUPPRESS):
        text = f"{text} (default: {action.default})".strip()
    shown = text.replace("%(default)s", str(action.default)).replace("%%", "%").replace("%", "%%")
    more: dict[str, Any] = {"dest": dest, "default": argparse.SUPPRESS, "help": shown}
    if isinstance(action, argparse.BooleanOptionalAction):
        group.add_argument(*flags, action=argparse.BooleanOptionalAction, **more)
    elif action.nargs == 0:
        group.add_argument(*flags, action="store_const", const=action.const, **more)
    else:
        more |= {"nargs": action.nargs, "choices": action.choices, "metavar": action.metavar or action.dest.upper()}
        if action.type in (int, float):  # of other types the class's own parser makes more than text
            more["type"] = action.type
        if isinstance(action, argparse._AppendAction):
            more["action"] = "append"
        group.add_argument(*flags, **more)


def _algorithm_in(folder: str | None, trust: bool) -> str | None:
    """The algorithm of the run in a folder, so that a resumed run takes its settings as flags.

    Raises:
        UntrustedError: it would have to be imported, and may not be.
    """
    name = None if folder is None else read_params(folder).get("run")
    if folder is None or not isinstance(name, str):
        return None
    if name in ALGORITHMS:
        return name
    from raypid.run.resolve import begun_run, saved_algorithm
    from raypid.storage.checkpoint import open_checkpoint

    asked = RunRequest(trust=trust)
    if (begun := begun_run(Path(folder), asked)) is not None:
        return begun.run
    return saved_algorithm(Path(folder), open_checkpoint(folder), asked)  # params.json is not signed


def flags_of(options: argparse.Namespace) -> Given:
    """The settings given by flags of their own."""
    flags: dict[str, object] = {}
    for name, value in vars(options).items():
        if name.startswith(SETTING):
            key = name.removeprefix(SETTING)
            is_text = isinstance(value, str) and canonical(key) not in _TEXTS and not key.startswith(_DECLARED)
            flags[key] = parse_value(value) if is_text else value
    return Given(flags, "flag")


def settings_of(options: argparse.Namespace) -> Given:
    """The settings that a search is given on the command line; flags win over --config.

    Raises:
        ConfigError: what is wrong with a file, or a search has no use for.
        UntrustedError: a file in a run's folder names code that may not be imported.
    """
    flags = flags_of(options)
    file = read_runs(options.config, options.run, trust=options.trust, given=flags)
    words = {"stop": file.stop, "out": file.out, "tuned": file.tuned, **file.options}
    if not file.recorded and (
        idle := [word for word, value in words.items() if value is not None and value is not False]
    ):
        raise ConfigError(
            f"--config of a search takes settings alone: leave {', '.join(idle)} out, and see its own options."
        )
    return by_our_names(overlay(overlay(file.recorded, file.settings), flags))


def request_of(options: argparse.Namespace) -> RunRequest:
    """Build the request of a command line: flags over the files of --config.

    Raises:
        ConfigError: something in it is wrong, or two options do not go together.
        UntrustedError: a file in a run's folder names code that may not be imported.
    """
    _check_together(options)
    flags = flags_of(options)
    file = read_runs(_configs(options), options.run, trust=options.trust, given=flags)
    asked = RunRequest(
        run=options.run,
        settings=flags,
        stop=_stop(options),
        tuned=options.tuned,
        out=options.out or None,
        resume=options.resume,
        overwrite=options.overwrite,
        trust=options.trust,
        options={name: value for name in _COUNTS if (value := getattr(options, name)) is not None},
        is_whole=True,
        python=False,
    )
    asked = asked.from_source("flag")
    if asked.run == file.run:  # that of the file is taken for the flags that there are
        asked = replace(asked, origins={key: origin for key, origin in asked.origins.items() if key != "run"})
    return join(file, asked)


def main(options: argparse.Namespace) -> int:
    """Check everything, then train. Returns 0 when the run has ended, also after one Ctrl-C."""
    from raypid.cli.experiment import resume_experiments, run_experiments
    from raypid.report.panel import make_progress
    from raypid.run.resolve import settle, standing
    from raypid.run.stopping import already_finished
    from raypid.sweep.plan import check_run, experiments_in

    request = request_of(options)
    place = request.out if request.resume is True else request.resume
    if request.resume and isinstance(place, Path) and experiments_in(place):
        return resume_experiments(options, replace(request, resume=place))
    if _experiments_file(options) is not None:
        experiments = _experiments(options, request)
        is_one = len(experiments) == 1 and experiments[0].is_one_run
        if options.explain and not (len(experiments) == 1 and experiments[0].has_one_trial):
            raise ConfigError(f"--explain is for one run, and {options.file} has several: --dry-run shows them.")
        if not options.explain and (not is_one or options.dry_run):
            return run_experiments(experiments, options)
        request = check_run(experiments[0], request)
    run = settle(standing(request))
    if options.explain:
        return _explain(options, run)
    if options.dry_run:
        env = entry_name(run.config.env)
        print(f"{options.file}: one run of {run.run} on {env}; nothing varies. Nothing was run.")
        return 0
    if (done := already_finished(run)) is not None:
        make_progress(run.stop, options.quiet).note(done[1])
        return 0
    return _train(options, run)


def _train(options: argparse.Namespace, run: SettledRun) -> int:
    """Build the agent, and run it to its end."""
    from raypid.phases import listening
    from raypid.report.panel import make_progress
    from raypid.run.agent import Agent
    from raypid.run.reproduce import hints
    from raypid.run.run import Run, RunOptions
    from raypid.runtime.resources import ResourceError

    request = run.request
    progress = make_progress(run.stop, options.quiet)
    if (phases := listening()) is not None:
        phases.tell = progress.working
    try:
        agent = Agent.of(run)
    except ResourceError as error:
        if not error.fits or run.saved is not None:
            raise
        raise ResourceError(f"{error} The command that fits: {fitting_command(options.argv, error.fits)}") from None
    if not options.quiet:
        agent.add_notes(*hints(agent, run, "--tuned"))
    try:
        overwrite = request.out is not None and request.overwrite
        Run(agent, RunOptions(stop=run.stop, overwrite=overwrite, closes_agent=True, **request.options), progress)()  # type: ignore[arg-type]
    finally:
        agent.close()
    return 0


def _explain(options: argparse.Namespace, settled: SettledRun) -> int:
    """Print the settings that the run would have, and why, and what would go where. Nothing is started but an environment, for its spaces;
    a cluster is joined to look, and left."""
    from raypid.run.explain import Row, explain
    from raypid.run.placement import look as look_for_room
    from raypid.run.resolve import look

    request = settled.request
    run, changed = look_for_room(look(settled))
    beside: dict[str, object] = {"run": run.run, "stop": dict(run.stop) or None, **request.options}
    beside |= {"out": str(request.out)} if request.out else {}
    origins = {
        key: [replace(origin, value=beside[key])]
        for key, origin in request.origins.items()
        if beside.get(key) is not None
    }
    about = [Row(key, value, origins.get(key, [])) for key, value in beside.items()]
    if not request.out:
        about.append(Row("out", "a new folder", [Source("adapted", "under runs/", None)]))
    found = explain(run, run.changes, about, run.stop.get(STEPS))
    notes = [*run.notes, *renamed(request.settings), *changed]
    if options.json:
        print(json.dumps({**found.as_dict(), "notes": notes}, indent=2))
        return 0
    width = min(shutil.get_terminal_size().columns, 120)
    print(found.text(width, everything=options.explain == "all", how="--explain all"))
    print("\n".join([*notes, "Nothing was run."]))
    return 0


def _record(options: argparse.Namespace) -> str | None:
    """A run's params.json that is given by -f: it is one run, as by --config, and no experiment."""
    with contextlib.suppress(ConfigError):  # -f says what is wrong with a file
        if options.file and is_record(run_file.read_values(options.file, "-f")):
            return str(options.file)
    return None


def _configs(options: argparse.Namespace) -> list[str]:
    """The files and JSON texts that say something of one run, from the lowest to the one above all others."""
    record = _record(options)
    return [*([] if record is None else [record]), *options.config]


def _experiments_file(options: argparse.Namespace) -> str | None:
    """The file that may hold several runs."""
    return None if _record(options) is not None else options.file


def _stop(options: argparse.Namespace) -> dict[str, object] | None:
    """What --stop says, and the options that are criteria of their own; None if nothing is given.

    Raises:
        ConfigError: two of them say different things of one result.
    """
    given = options.stop
    if given and not isinstance(given, Mapping) and os.path.isfile(given.removeprefix("@")):
        given = run_file.read_values(given, "--stop")
    stop = read_stop(given or None, "--stop")
    if options.timesteps is not None:
        steps = read_stop(options.timesteps, "--timesteps")
        if steps.keys() != {STEPS}:
            raise ConfigError(f"--timesteps takes a number of environment steps, not {shown(options.timesteps)}.")
        if stop.setdefault(STEPS, steps[STEPS]) != steps[STEPS]:
            raise ConfigError(
                f"--timesteps {options.timesteps} and --stop give two numbers of steps: give one of them."
            )
    return stop if given or stop else None


def _experiments(options: argparse.Namespace, request: RunRequest) -> list[Experiment]:
    """The experiments of --file, with what the command line says laid over them.

    Raises:
        ConfigError: something in it is wrong.
        UntrustedError: it lies in a run's folder, and names code that may not be imported.
    """
    from raypid.settings.marked import read_marked
    from raypid.sweep.experiment import read_experiments

    file, given = Path(options.file), overlay(request.recorded, request.settings)
    if run_folder_of(file) is not None:
        named = {"run": options.run or "", **given}
        values = {key: value for key, value in read_marked(file).values.items() if key not in given}
        check_names(file, values, trusted=options.trust, given=named)
    return read_experiments(options.file, replace(request, settings=given))


def fitting_command(argv: Sequence[str], fits: Mapping[str, object]) -> str:
    """The command with the settings that fit, and without --gpu where these leave no GPU."""
    from raypid.runtime.resources import setting_text

    changes = {option_of(name): setting_text(value) for name, value in fits.items()}
    gone = {*changes, *(["--gpu"] if fits.get("num_gpus") == 0 else [])}
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag not in gone:
            kept.append(word)
        elif not equals:
            next(words, None)
    return shlex.join(["raypid", *kept, *(word for pair in changes.items() for word in pair)])


def _check_together(options: argparse.Namespace) -> None:
    """Refuse options that would have no effect beside others.

    Raises:
        ConfigError: names the two options.
    """
    if "" in (options.resume, options.out):
        raise ConfigError("--out and --resume take the name of a folder.")
    if options.file == "":
        raise ConfigError("-f takes the name of a file.")
    if options.resume and options.file:
        raise ConfigError(
            "Give -f, which starts what a file says, or --resume, which goes on with what was started: not both."
        )
    if options.json and not options.explain:
        raise ConfigError("--json is for --explain, which then prints all settings as JSON.")
    if options.dry_run and not options.file:
        raise ConfigError("--dry-run shows the trials of a file: give it, -f FILE.")
    if options.max_concurrent and not (options.file or options.resume):
        raise ConfigError("--max-concurrent is for experiments, which have several trials: -f FILE.")
    if options.resume is True and options.file:
        raise ConfigError(
            "--resume without a folder is for one run: name its file by --config. `--resume DIR` goes on with experiments."
        )
