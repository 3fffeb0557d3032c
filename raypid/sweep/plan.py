"""Trials: the runs that an experiment consists of, all checked before the first one starts, and the file that says which they are."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from raypid.envs.make import Sample
from raypid.envs.resolve import resolve
from raypid.errors import reason, shown
from raypid.plugins.modules import entry_name, to_json
from raypid.plugins.trust import check_names
from raypid.report.lineage import LINEAGE
from raypid.run.folder import check_folder, clear_folder
from raypid.run.placement import bundles
from raypid.run.resolve import SettledRun, look, sample_key, settle
from raypid.runtime.resources import num_cores, num_gpus
from raypid.settings.address import chosen
from raypid.settings.config import Config, ConfigError, coerce, overlay
from raypid.settings.files import OPTIONS
from raypid.settings.request import RunRequest
from raypid.settings.variants import GRID, check_spec, num_combinations, variants, word_of
from raypid.storage.outputs import explained, write_whole
from raypid.storage.ownership import is_signed, sign
from raypid.storage.plain_data import read_json
from raypid.sweep.experiment import Experiment, Resources
from raypid.sweep.population import Population, check_population

PLAN = "experiment.json"
"""In the experiment's folder: what its trials are."""
STATES = "trials.json"
"""Beside it: how each has ended."""
FORMAT = 1
MAX_TRIALS = 10_000
MAX_ENVS = 16
"""Environments of one experiment that are made to look at their spaces; of more, the names alone are checked."""
_NAME = re.compile(r"trial-\d{3,}[\w.=,+-]{0,100}", re.ASCII)
_MAX_NAME, _MAX_VALUE = 80, 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One run of an experiment."""

    index: int
    """From 1."""
    name: str
    """Such as "trial-007-lr=0.001": the name of its folder."""
    run: str
    """Name of the algorithm."""
    settings: Mapping[str, object]
    """Concrete, with the seed; what is not among them has its default."""
    stop: Mapping[str, float]
    below: Mapping[str, object] = field(default_factory=dict)
    """Tuned settings, which hold where `settings` say nothing."""
    varied: Mapping[str, object] = field(default_factory=dict)
    """What differs between the trials -> its value here; the seed, too, where there are several."""
    folder: Path
    resources: Mapping[str, float] | None = None
    """The CPUs and GPUs that it may take (cpu, gpu, driver_cpu_limit); None: what its settings need."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of RunOptions: checkpoint_interval, keep_checkpoints, final_episodes, as far as given."""

    def request(self, **below: object) -> RunRequest:
        """The run that the trial asks for. `below` are settings under all others."""
        return RunRequest(
            run=self.run,
            settings=overlay({}, self.settings),
            recorded=overlay(below, self.below),
            stop=self.stop,
            out=self.folder,
            options=self.options,
        )


class Planned(NamedTuple):
    """An experiment that is to run."""

    trials: Sequence[Trial]
    out: Path
    population: Population | None
    address: str | None
    """Of a Ray cluster."""
    max_concurrent: int | None
    """Most trials at a time."""


def plan(experiment: Experiment) -> list[Trial]:
    """Make the trials of an experiment: every variant with every seed, the seeds outermost.

    Draws depend on the first seed alone, so the same file gives the same trials.

    Raises:
        ConfigError, EnvError: some trial could not run, has a stop criterion that can never be met, or there are too many trials.
            The message begins with file and line.
    """
    request = experiment.request
    apart = ("address", *(("seed",) if experiment.seeds else ()))
    settings = {name: value for name, value in experiment.settings.items() if name not in apart}
    with experiment.block.located():
        _check_whole(experiment, settings)
    rng = np.random.default_rng(experiment.seeds[0] if experiment.seeds else 0)
    found = list(variants(settings, experiment.num_samples, rng))
    seeds: Sequence[int | None] = experiment.seeds or (None if "seed" in settings else 0,)
    digits = max(3, len(str(len(found) * len(seeds))))
    short = short_names({key for variant in found for key in variant.varied})
    population = experiment.population
    changing = population.perturb if population is not None else {}  # a name with their values would soon lie
    trials: list[Trial] = []
    samples: dict[str, Sample] = {}
    for index, (seed, variant) in enumerate(itertools.product(seeds, found), start=1):
        own = {} if seed is None else {"seed": seed}
        varied = {**variant.varied, **(own if len(seeds) > 1 else {})}
        shown_values = {key: x for key, x in varied.items() if key not in changing}
        trial = Trial(
            index=index,
            name=(name := _name(f"trial-{index:0{digits}d}", short, shown_values)),
            run=str(request.run),
            settings={**variant.settings, **own},
            stop={},
            varied=varied,
            folder=experiment.out / name,
            resources=experiment.resources,
            options=request.options,
        )
        prefix = f"{name}: " if variant.varied else ""
        run = checked(experiment, replace(trial.request(), stop=request.stop, tuned=request.tuned), prefix)
        with experiment.block.located("env", prefix):
            if len(samples) < MAX_ENVS or sample_key(run) in samples:
                look(run, samples=samples)
            else:
                resolve(run.config.env)
        trials.append(replace(trial, stop=run.stop, below=dict(run.request.recorded)))
    return trials


def _check_whole(experiment: Experiment, settings: Mapping[str, object]) -> None:
    """Check that an experiment ends, and how many trials it has.

    Raises:
        ConfigError
    """
    name = experiment.name
    if not experiment.request.stop:
        raise ConfigError(
            f"{name!r} has no stop criterion, so its first trial would never end: add stop: {{timesteps_total: 100000}} or {{time_total_s: 60}}."
        )
    grids, seeds = num_combinations(settings), max(1, len(experiment.seeds))
    parts = {"combinations of the grids": grids, "samples": experiment.num_samples, "seeds": seeds}
    if (total := math.prod(parts.values())) > MAX_TRIALS:
        product = " x ".join(f"{number:,} {what}" for what, number in parts.items() if number > 1)
        raise ConfigError(
            f"{name!r} has {total:,} trials ({product}), and at most {MAX_TRIALS:,} are run: try fewer values."
        )
    if experiment.population is not None:
        check_population(experiment.population, total)


def checked(experiment: Experiment, request: RunRequest, prefix: str = "") -> SettledRun:
    """Settle a run of an experiment, and check that it has room.

    Args:
        prefix: begins messages.

    Raises:
        ConfigError: the message begins with file and line.
    """
    with experiment.block.located(prefix=prefix):
        run = settle(request)
        _check_room(experiment, run)
    return run


def cpus_of(config: Config) -> float:
    """The CPUs that a run with these settings reserves."""
    return sum(bundle.get("CPU", 0.0) for bundle in bundles(config))


def _check_room(experiment: Experiment, run: SettledRun) -> None:
    """Check that a trial fits into the resources that it may take, and into this machine, if that is where it will run.

    Raises:
        ConfigError: it would never start.
    """
    given, config, ray = experiment.resources or {}, run.config, sys.modules.get("ray")
    cpus, parts = cpus_of(config), "num_workers 0"
    if config.on_ray:
        if "cpu" in given and "num_cpus_per_worker" not in run.sources:
            cpus = cpus_of(config.replace({"num_cpus_per_worker": 0.001}))  # workers take what is left
        cpus += given.get("driver_cpu_limit", 0)
        parts = f"num_workers {config.num_workers}, num_learners {config.num_learners}"
    shrinks = config.fit and experiment.is_one_run  # a trial does not: it waits until there is room
    is_here = chosen(experiment.address) is None and not (ray is not None and ray.is_initialized())
    amounts = (("cpu", cpus, num_cores(), parts), ("gpu", config.num_gpus, num_gpus(), "num_gpus"))
    for name, needed, has, what in amounts:
        takes, unit = given.get(name, needed), name.upper()
        if needed > takes:
            raise ConfigError(
                f"A trial takes at least {needed:g} {unit}s ({what}), but resources has {name} {takes:g}: it would never start."
            )
        if takes > has and is_here and not shrinks:
            raise ConfigError(
                f"A trial takes at least {takes:g} {unit}s ({'resources' if name in given else what}), and this machine has {has:g}: it would never "
                "start. Give it less, or the address of a cluster that has more."
            )


def _name(start: str, short: Mapping[str, str], varied: Mapping[str, object]) -> str:
    """Name a trial by what varies: "trial-007-lr=0.001,seed=1", safe for every file system, at most _MAX_NAME characters."""
    if not varied:
        return start
    text = ",".join(f"{short.get(key, key)}={short_value(value)}" for key, value in varied.items())
    return f"{start}-{re.sub('[^A-Za-z0-9_.=,+-]+', '-', text)}"[:_MAX_NAME].rstrip(".,=-+")


def short_names(keys: Collection[str]) -> dict[str, str]:
    """Names of settings -> their last parts, where these differ: hidden, not model.hidden."""
    lasts = [key.rpartition(".")[2] for key in keys]
    return {key: last if lasts.count(last := key.rpartition(".")[2]) == 1 else key for key in keys}


def short_value(value: object) -> str:
    """A value of a setting in few characters: 0.001, true, 64x64, Walker2d-v5."""
    if value is None:
        text = "none"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, float):
        text = f"{value:.8g}"
    elif isinstance(value, Mapping):
        text = "+".join(f"{key}={short_value(part)}" for key, part in value.items())
    elif isinstance(value, list | tuple):
        text = "x".join(map(short_value, value)) or "empty"
    else:
        text = re.split(r"[/:]", entry_name(value) if callable(value) else str(value))[-1]
    return text[:_MAX_VALUE]


# -- experiment.json -------------------------------------------------------------------------------------------------


def write_plan(out: Path, trials: Sequence[Trial], population: Population | None = None) -> None:
    """Write what the trials are, and how they learn from each other, to experiment.json in the experiment's folder, in one piece and
    signed as this user's.

    Raises:
        Unwritten: it cannot be written.
    """
    kept = [f.name for f in dataclasses.fields(Trial) if f.name != "folder"]  # a folder that is moved can be resumed
    body = {
        "format": FORMAT,
        "population": None if population is None else dataclasses.asdict(population),
        "trials": [{name: to_json(getattr(trial, name)) for name in kept} for trial in trials],
    }
    text = json.dumps(body, indent=1)
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / PLAN, json.dumps({**body, "signature": sign(PLAN, text)}, indent=1) + "\n")


def read_plan(out: Path, *, trust: bool = False) -> tuple[list[Trial], Population | None]:
    """Read the trials of an experiment from its folder, and how they learn from each other.

    Args:
        trust: import what only this file names, though this user's raypid did not write it.

    Raises:
        ConfigError: there is no experiment, or its file is damaged.
        UntrustedError: it names code that may not be imported.
    """
    path = out / PLAN
    if not path.is_file():
        raise ConfigError(f"{out} holds no experiment: there is no {PLAN} in it.")
    try:
        values = read_json(path.read_bytes())
        if not isinstance(values, dict):
            raise ValueError("it holds no mapping")
        signature = values.pop("signature", None)
        signed = is_signed(PLAN, json.dumps(values, indent=1), signature)
        trials = _trials(out, values)
        population = _population_of(values.get("population"), len(trials))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is damaged: {reason(error)}.") from None
    for trial in trials:
        check_names(out, {"algorithm": trial.run, **trial.below, **trial.settings}, trusted=trust or signed)
    return trials, population


def _population_of(saved: Any, members: int) -> Population | None:
    """The population that a file describes.

    Raises:
        ValueError, TypeError: it cannot be one.
    """
    if saved is None:
        return None
    population = Population.from_dict(saved)
    check_population(population, members)
    for spec in population.perturb.values():
        if word_of(spec) in ("", GRID):
            raise ValueError(f"{shown(spec)} is no distribution")
        check_spec(word_of(spec), spec)
    return population


def _trials(out: Path, values: Mapping[str, Any]) -> list[Trial]:
    """The trials that a file describes.

    Raises:
        ValueError, TypeError, KeyError: it does not describe any.
    """
    if values["format"] != FORMAT:
        raise ValueError(f"its format is {shown(values['format'])}, and this version reads {FORMAT}")
    trials = [Trial(**row, folder=out / row["name"]) for row in values["trials"]]
    for index, trial in enumerate(trials, start=1):
        for name, hint in get_type_hints(Trial).items():
            coerce(name, getattr(trial, name), hint)
        Resources.from_dict(trial.resources or {})
        numbers = [*trial.stop.values(), *trial.options.values()]
        is_finite = all(isinstance(x, int | float) and math.isfinite(x) for x in numbers)
        is_named = _NAME.fullmatch(trial.name) and trial.index == index
        if not (is_named and is_finite and trial.options.keys() <= OPTIONS.keys()):
            raise ValueError(f"trial {index} is not as raypid writes it")
    if not 1 <= len({trial.name for trial in trials}) == len(trials) <= MAX_TRIALS:
        raise ValueError("it has no trials, too many, or two of one name")
    return trials


def is_experiment(folder: Path) -> bool:
    """Whether a folder holds an experiment."""
    return os.path.isfile(folder / PLAN)  # False too for a name that no folder can have


def check_new(out: Path, *, overwrite: bool) -> None:
    """Check that a new experiment may have this folder, and can write to it. It may replace one of which no trial has begun.

    Raises:
        UserError: it cannot be written.
        ConfigError: it holds something, and `overwrite` is not given or it is no experiment; or a running process writes to it.
    """
    check_folder(out, resume=False, overwrite=True, what="The experiment's folder")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not is_experiment(out):
        raise ConfigError(f"{out} is not empty and holds no experiment: choose another folder.")
    begun = (out / STATES).exists() or any(any(folder.iterdir()) for folder in _trial_folders(out))
    if begun and not overwrite:
        raise ConfigError(
            f"{out} holds an experiment. Resume it (raypid train --resume {shlex.quote(str(out))}), replace it (overwrite=True), or choose "
            "another folder."
        )


def begin(
    planned: Sequence[tuple[Experiment, Sequence[Trial]]],
    *,
    overwrite: bool,
    address: str | None = None,
    max_concurrent: int | None = None,
) -> list[Planned]:
    """Write what the trials of new experiments are, of all before the first one starts, so that all can be resumed.

    Args:
        address: in place of what an experiment says; so is `max_concurrent`.

    Raises:
        UserError: as `check_new`, before anything is written.
        Unwritten: a folder cannot be written.
    """
    for experiment, _ in planned:
        check_new(experiment.out, overwrite=overwrite)
    for experiment, trials in planned:
        clear_experiment(experiment.out)
        write_plan(experiment.out, trials, experiment.population)
    return [
        Planned(
            trials,
            one.out,
            one.population,
            address or one.address,
            max_concurrent or one.block.words.max_concurrent,
        )
        for one, trials in planned
    ]


def experiments_in(folder: Path) -> list[Path]:
    """The folder, if it holds an experiment, or else those directly in it that do, in the order in which they were begun."""
    if is_experiment(folder) or not os.path.isdir(folder):
        return [folder] if is_experiment(folder) else []
    found = [place for place in folder.iterdir() if is_experiment(place)]
    return sorted(found, key=lambda place: ((place / PLAN).stat().st_mtime_ns, place.name))


def _trial_folders(out: Path) -> list[Path]:
    return [place for place in out.iterdir() if place.is_dir() and _NAME.fullmatch(place.name)]


def clear_experiment(out: Path) -> None:
    """Remove the trials of an experiment and its experiment.json, and nothing that they did not write."""
    if not is_experiment(out):
        return
    for folder in _trial_folders(out):
        clear_folder(folder)
        with explained(folder):
            if not any(folder.iterdir()):
                folder.rmdir()
    for name in (STATES, PLAN, LINEAGE):
        with explained(out / name):
            (out / name).unlink(missing_ok=True)


def rows_of(trials: Sequence[Trial]) -> Iterator[list[str]]:
    """Yield a heading, and then number, value of each setting that varies, and CPUs of each trial."""
    varied = list(dict.fromkeys(key for trial in trials for key in trial.varied))
    short = short_names(varied)
    yield ["trial", *(short[key] for key in varied), "CPUs"]
    for trial in trials:
        values = [short_value(trial.varied[key]) if key in trial.varied else "" for key in varied]
        config = settle(trial.request()).config
        yield [f"{trial.index:03d}", *values, f"{(trial.resources or {}).get('cpu', cpus_of(config)):g}"]
