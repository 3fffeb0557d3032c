"""`raypid train -f FILE` and `raypid train --resume DIR`, where these mean several runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from raypid.config import ConfigError, canonical
from raypid.experiments.experiment import Experiment, check_experiments
from raypid.experiments.plan import (
    PLAN,
    Trial,
    check_new,
    check_run,
    clear_experiment,
    plan,
    read_plan,
    rows_of,
    write_plan,
)
from raypid.experiments.population import Population
from raypid.run.assembly import entry_name

FAILURE = 1


def run_experiments(experiments: Sequence[Experiment], options: argparse.Namespace) -> int:
    """Check all experiments, then run their trials, or show them. Returns 0 if no trial failed."""
    check_experiments(experiments)
    if experiments[0].is_one_run:  # only to be shown
        settings, one = check_run(experiments[0]), experiments[0]
        print(f"{one.name}: one run of {one.run} on {entry_name(settings['env'])}; nothing varies. Nothing was run.")
        return 0
    planned = [(experiment, plan(experiment)) for experiment in experiments]
    if options.dry_run:
        for experiment, trials in planned:
            _show(experiment, trials)
        return 0
    for experiment, _ in planned:
        check_new(experiment.out, overwrite=options.overwrite)
    code = 0
    for experiment, trials in planned:
        if not options.quiet:
            for note in experiment.notes:
                print(note)
        if options.overwrite:
            clear_experiment(experiment.out)
        write_plan(experiment.out, trials, experiment.population)
        most = options.max_concurrent or experiment.max_concurrent
        ended = _run(
            trials, experiment.out, options, experiment.population, resumed=False, address=experiment.address, most=most
        )
        code = max(code, FAILURE if "failed" in ended else 0)
        if "unfinished" in ended:  # Ctrl-C
            break
    return code


def resume_experiment(options: argparse.Namespace, given: Mapping[str, object]) -> int:
    """Go on with the trials of an experiment that have not ended. Returns 0 if none failed.

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
    out = Path(options.resume)
    trials, population = read_plan(out, trust=options.trust)
    address = given.get("address")
    ended = _run(
        trials,
        out,
        options,
        population,
        resumed=True,
        address=None if address is None else str(address),
        most=options.max_concurrent,
    )
    return FAILURE if "failed" in ended else 0


def _run(
    trials: Sequence[Trial],
    out: Path,
    options: argparse.Namespace,
    population: Population | None,
    *,
    resumed: bool,
    address: str | None,
    most: int | None,
) -> set[str]:
    """Run the trials; returns how they ended."""
    from raypid.experiments.finish import finish
    from raypid.tune.runner import run_trials

    ended = run_trials(
        trials, out, resumed=resumed, quiet=options.quiet, address=address, max_concurrent=most, population=population
    )
    text = finish(out, ended)
    if not options.quiet:
        print(f"\n{text}")
    return {one.state for one in ended}


def _show(experiment: Experiment, trials: Sequence[Trial]) -> None:
    """Print the trials that would run."""
    rows = [("trial", "varies", "CPUs"), *rows_of(trials)]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    stop = ", ".join(f"{key} {value:g}" for key, value in trials[0].stop.items())
    print(
        f"{experiment.name}: {len(trials)} trial{'s' if len(trials) > 1 else ''} of {experiment.run} in {experiment.out}/, each until {stop}"
    )
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print(f"Nothing was run. {PLAN} in that folder will name them.\n")
