"""`raypid train -f FILE` and `raypid train --resume DIR`, where these mean several runs."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from raypid.config import ConfigError, canonical, is_none
from raypid.experiments.experiment import Experiment, check_experiments
from raypid.experiments.plan import (
    PLAN,
    Trial,
    begin,
    check_new,
    check_run,
    experiments_in,
    plan,
    read_plan,
    rows_of,
)
from raypid.experiments.population import Population
from raypid.extras import need
from raypid.reporting.panel import aligned
from raypid.run.assembly import entry_name
from raypid.run.experiment import check_folder

FAILURE = 1
_TUNE = {"tune": "An experiment of several runs"}
_Planned: TypeAlias = "tuple[Path, Sequence[Trial], Population | None, str | None, int | None, Sequence[str]]"
"""Of an experiment: folder, trials, population, Ray's address, most trials at once, and the lines that are said before it."""


def run_experiments(experiments: Sequence[Experiment], options: argparse.Namespace) -> int:
    """Check all experiments, then run their trials, or show them. Returns 0 if no trial failed."""
    check_experiments(experiments)
    if experiments[0].is_one_run:  # only to be shown
        settings, one = check_run(experiments[0]), experiments[0]
        check_folder(one.out if one.out_given else Path("runs", "new"), resume=False, overwrite=options.overwrite)
        print(f"{one.name}: one run of {one.run} on {entry_name(settings['env'])}; nothing varies. Nothing was run.")
        return 0
    if not options.dry_run:
        need(_TUNE)
    planned = [(experiment, plan(experiment)) for experiment in experiments]
    if options.dry_run:
        for experiment, trials in planned:
            _show(experiment, trials)
        for experiment, _ in planned:  # last, since the trials of one that is there can be looked at too
            check_new(experiment.out, overwrite=options.overwrite)
        return 0
    begin(planned, overwrite=options.overwrite)
    most = options.max_concurrent
    return _run(
        [(e.out, trials, e.population, e.address, most or e.max_concurrent, e.notes) for e, trials in planned], options
    )


def resume_experiments(options: argparse.Namespace, given: Mapping[str, object]) -> int:
    """Go on with the trials that have not ended, of the experiment in a folder or of those directly in it. Returns 0 if none failed.

    Raises:
        ConfigError: its folder is damaged, or something is given that would change it.
    """
    others = {"--run": options.run, "--stop": options.stop, "--config": options.config, "--tuned": options.tuned,
              "--checkpoint-interval": options.checkpoint_interval, "--keep-checkpoints": options.keep_checkpoints,
              "--final-episodes": options.final_episodes}  # fmt: skip
    changes = [f"--{canonical(key).replace('_', '-')}" for key in given if canonical(key) != "address"]
    changes += [flag for flag, value in others.items() if value not in (None, False, [])]
    if changes:
        raise ConfigError(
            f"{options.resume} holds an experiment, which goes on as it was planned: leave {', '.join(changes)} out, or start a new one."
        )
    need(_TUNE)
    places = experiments_in(Path(options.resume))
    address = None if is_none(given.get("address")) else str(given["address"])
    planned: list[_Planned] = []
    for number, out in enumerate(places, start=1):
        head = [f"Experiment {number} of {len(places)}: {out}"] if len(places) > 1 else []
        planned.append((out, *read_plan(out, trust=options.trust), address, options.max_concurrent, head))
    return _run(planned, options)


def _say_left(places: Sequence[Path], options: argparse.Namespace) -> None:
    """Say how to go on with experiments that have not begun."""
    if not places or options.quiet:
        return
    above = options.resume or options.out
    commands = [shlex.join(["raypid", "train", "--resume", str(place)]) for place in ([above] if above else places)]
    print(f"Not begun: {', '.join(place.name for place in places)}.")
    print(f"{' and '.join(f'`{command}`' for command in commands)} {'goes on with all' if above else 'starts them'}.")


def _run(planned: Sequence[_Planned], options: argparse.Namespace) -> int:
    """Run the trials of each experiment. Returns 0 if none failed."""
    from raypid.experiments.finish import finish
    from raypid.tune.runner import run_trials

    code = 0
    for number, (out, trials, population, address, most, head) in enumerate(planned, start=1):
        for line in [] if options.quiet else head:
            print(line)
        ended = run_trials(
            trials, out, resumed=bool(options.resume), quiet=options.quiet, address=address, max_concurrent=most,
            population=population,
        )  # fmt: skip
        text = finish(out, ended)
        if not options.quiet:
            print(f"\n{text}")
        states = {one.state for one in ended}
        code = max(code, FAILURE if "failed" in states else 0)
        if "unfinished" in states:  # Ctrl-C
            _say_left([left[0] for left in planned[number:]], options)
            break
    return code


def _show(experiment: Experiment, trials: Sequence[Trial]) -> None:
    """Print the trials that would run."""
    stop = ", ".join(f"{key} {value:g}" for key, value in trials[0].stop.items())
    number = f"{len(trials)} trial{'s' if len(trials) > 1 else ''}"
    print(f"{experiment.name}: {number} of {experiment.run} in {experiment.out}/, each until {stop}")
    print(*aligned(list(rows_of(trials))), sep="\n")
    print(f"Nothing was run. {PLAN} in that folder will name them.\n")
