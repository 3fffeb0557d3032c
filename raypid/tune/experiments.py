"""Experiments from Python: the dictionaries that files hold, run and summed up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from raypid.sweep.board import Ended
from raypid.sweep.experiment import check_experiments, experiments_from, read_experiments
from raypid.sweep.finish import finish
from raypid.sweep.plan import Planned, begin, plan
from raypid.tune.runner import run_trials


def run_experiments(
    experiments: Mapping[str, object] | str | Path,
    *,
    overwrite: bool = False,
    quiet: bool = False,
    address: str | None = None,
    max_concurrent: int | None = None,
) -> list[Ended]:
    """Run all trials of one or several experiments, and print how they ended; returns that too, trial by trial.

    `run_experiments({"cartpole-ppo": {"run": "PPO", "env": "CartPole-v1", "stop": {"time_total_s": 60}, "config": {"lr":
    grid_search([1e-3, 1e-4])}}})` leaves runs/cartpole-ppo with a folder for each trial. `raypid train --resume runs/cartpole-ppo` goes on with
    it after Ctrl-C.

    Args:
        experiments: {name: {"run", "env", "stop", "config", "num_samples", "repeat", "resources", "population", ...}}, or a file that
            holds them. `run` and `env` may be classes.
        overwrite: replace experiments that lie in the same folders.
        quiet: print errors alone.
        address: of a Ray cluster; None: start Ray here, or use the one that runs in this process.
        max_concurrent: most trials at a time; None: what the experiment says, or as many as fit.

    Raises:
        ConfigError: a trial has settings or a stop criterion that do not fit. Nothing has been started then.
        EnvError: an environment cannot be used. Nothing has been started then.
        ResourceError: a trial does not fit on the machine or the cluster. Nothing has been started then.
    """
    given = read_experiments(experiments) if isinstance(experiments, str | Path) else experiments_from(experiments)
    check_experiments(given)
    planned = [(experiment, plan(experiment)) for experiment in given]
    begun = begin(planned, overwrite=overwrite, address=address, max_concurrent=max_concurrent)
    return run_planned(begun, quiet=quiet)[0]


def run_planned(
    planned: Sequence[Planned], *, resumed: bool = False, quiet: bool = False
) -> tuple[list[Ended], list[Path]]:
    """Run experiments one after the other, and print how their trials ended; returns that, and the folders of the experiments that
    have not begun since Ctrl-C ended one before them."""
    found: list[Ended] = []
    for number, experiment in enumerate(planned, start=1):
        if resumed and len(planned) > 1 and not quiet:
            print(f"Experiment {number} of {len(planned)}: {experiment.out}")
        ended = run_trials(experiment, resumed=resumed, quiet=quiet)
        found += ended
        text = finish(experiment.out, ended)
        if not quiet:
            print(f"\n{text}")
        if any(one.state == "unfinished" for one in ended):  # Ctrl-C
            return found, [later.out for later in planned[number:]]
    return found, []
