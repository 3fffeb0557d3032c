"""`raypid train -f FILE` and `raypid train --resume DIR`, where these mean several runs."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from raypid.cli.train import check_goes_on, check_together, request_of, run
from raypid.plugins.extras import need
from raypid.report.panel import aligned
from raypid.settings.config import ConfigError, Given, is_none, renamed
from raypid.settings.files import check_trust
from raypid.settings.marked import read_marked
from raypid.settings.request import RunRequest
from raypid.storage.run_folder import is_record
from raypid.sweep.experiment import Experiment, check_experiments, read_experiments
from raypid.sweep.plan import (
    PLAN,
    Planned,
    Trial,
    begin,
    check_new,
    checked,
    experiments_in,
    plan,
    read_plan,
    rows_of,
)

_TUNE = {"tune": "An experiment of several runs"}


def main(options: argparse.Namespace) -> int:
    """Begin the experiments of --file, or go on with those of --resume; what means one run is trained as without them. Returns 0 if nothing
    failed."""
    check_together(options)
    file = options.file
    if file and is_record(read_marked(file).values):  # of one run, as by --config
        options = argparse.Namespace(**{**vars(options), "config": [file, *options.config], "file": None})
    request = request_of(options)
    place = request.out if request.resume is True else request.resume
    if isinstance(place, Path) and experiments_in(place):
        return _resume(options, replace(request, resume=place))
    if not options.file:
        return run(request, options)
    given = request.laid
    check_trust(file, trust=options.trust, given={"run": options.run or "", **given})
    one, *more = experiments = read_experiments(file, replace(request, settings=given, recorded=Given({})))
    if options.explain and (more or not one.has_one_trial):
        raise ConfigError(f"--explain is for one run, and {file} has several: --dry-run shows them.")
    if not options.explain and (more or not one.is_one_run):
        return _begin(experiments, options)
    checked(one, one.request)
    if options.dry_run:
        options.explain = options.explain or "changed"
    return run(one.request, options)


def _begin(experiments: Sequence[Experiment], options: argparse.Namespace) -> int:
    """Check all experiments, then run their trials, or show them. Returns 0 if no trial failed."""
    check_experiments(experiments)
    if not options.dry_run:
        need(_TUNE)
    planned = [(experiment, plan(experiment)) for experiment in experiments]
    if options.dry_run:
        for experiment, trials in planned:
            _show(experiment, trials)
        for experiment, _ in planned:  # last, since the trials of one that is there can be looked at too
            check_new(experiment.out, overwrite=options.overwrite)
        return 0
    if not options.quiet:
        for note in (note for experiment in experiments for note in renamed(experiment.request.settings)):
            print(note)
    return _run(begin(planned, overwrite=options.overwrite, max_concurrent=options.max_concurrent), options)


def _resume(options: argparse.Namespace, request: RunRequest) -> int:
    """Go on with the trials that have not ended, of the experiment in a folder or of those directly in it. Returns 0 if none failed.

    Raises:
        ConfigError: its folder is damaged, or something is given that would change it.
    """
    folder, address = Path(str(request.resume)), request.laid.get("address")
    check_goes_on(f"The experiment in {folder}", options.argv, "out", "address", "max_concurrent", "trust")
    need(_TUNE)
    address = None if is_none(address) else str(address)
    planned = [
        Planned(trials, out, population, address, options.max_concurrent)
        for out in experiments_in(folder)
        for trials, population in [read_plan(out, trust=options.trust)]
    ]
    return _run(planned, options)


def _run(planned: Sequence[Planned], options: argparse.Namespace) -> int:
    """Run experiments, and say how to go on with those that have not begun. Returns 1 if a trial failed."""
    from raypid.tune.experiments import run_planned

    ended, left = run_planned(planned, resumed=bool(options.resume), quiet=options.quiet)
    if left and not options.quiet:
        commands = [f"`{shlex.join(['raypid', 'train', '--resume', str(place)])}`" for place in left]
        print(f"To begin the others: {', '.join(commands)}.")
    return int(any(one.state == "failed" for one in ended))


def _show(experiment: Experiment, trials: Sequence[Trial]) -> None:
    """Print the trials that would run."""
    stop = ", ".join(f"{key} {value:g}" for key, value in trials[0].stop.items())
    number = f"{len(trials)} trial{'s' if len(trials) > 1 else ''}"
    print(f"{experiment.name}: {number} of {experiment.request.run} in {experiment.out}/, each until {stop}")
    print(*aligned(list(rows_of(trials))), sep="\n")
    print(f"Nothing was run. {PLAN} in that folder will name them.\n")
