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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raypid.envs.make import Sample
from raypid.envs.resolve import resolve
from raypid.errors import UserError, reason, shown
from raypid.plugins.modules import entry_name, to_json
from raypid.plugins.trust import check_names
from raypid.report.lineage import LINEAGE
from raypid.run.folder import clear_folder, lock_folder
from raypid.run.placement import bundles
from raypid.run.resolve import SettledRun, look, sample_key, settle, tuned_settings
from raypid.runtime.resources import num_cores, num_gpus
from raypid.settings.address import chosen
from raypid.settings.config import Config, ConfigError, Given, overlay
from raypid.settings.files import OPTIONS
from raypid.settings.request import RunRequest
from raypid.settings.variants import CHOICE, KINDS, check_spec, num_combinations, variants
from raypid.storage.outputs import check_folder_writable, explained, replacing, usable
from raypid.storage.ownership import is_signed, sign
from raypid.storage.plain_data import read_json
from raypid.sweep.experiment import RESOURCES, Experiment
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
    _check_end(experiment)
    _check_number(experiment)
    _check_population(experiment)
    rng = np.random.default_rng(experiment.seeds[0] if experiment.seeds else 0)
    found = list(variants(experiment.settings, experiment.num_samples, rng))
    seeds: Sequence[int | None] = experiment.seeds or (None if "seed" in experiment.settings else 0,)
    digits = max(3, len(str(len(found) * len(seeds))))
    short = short_names({key for variant in found for key in variant.varied})
    population = experiment.population
    changing = population.perturb if population is not None else {}  # a name with their values would soon lie
    trials: list[Trial] = []
    checks = _Checks(experiment)
    for index, (seed, variant) in enumerate(itertools.product(seeds, found), start=1):
        own = {} if seed is None else {"seed": seed}
        varied = {**variant.varied, **(own if len(seeds) > 1 else {})}
        settings = {**variant.settings, **own}
        shown_values = {key: x for key, x in varied.items() if key not in changing}
        trial = Trial(
            index=index,
            name=(name := _name(f"trial-{index:0{digits}d}", short, shown_values)),
            run=experiment.run,
            settings=settings,
            stop={},
            below=_below(experiment, settings),
            varied=varied,
            folder=experiment.out / name,
            resources=experiment.resources,
            options=experiment.options,
        )
        trials.append(checks.checked(trial, told=bool(variant.varied)))
    return trials


def _below(experiment: Experiment, settings: Mapping[str, object]) -> dict[str, object]:
    """The tuned settings, if the experiment asks for them."""
    if not experiment.tuned:
        return {}
    try:
        return tuned_settings(experiment.run, settings.get("env"), experiment.tuned)
    except UserError as error:
        raise experiment.where.error(error, "tuned") from None


def _check_end(experiment: Experiment) -> None:
    if not experiment.stop:
        raise experiment.where.error(
            f"{experiment.name!r} has no stop criterion, so its first trial would never end: add stop: {{timesteps_total: 100000}} or "
            "{time_total_s: 60}."
        )


def _check_population(experiment: Experiment) -> None:
    if experiment.population is not None:
        members = num_combinations(experiment.settings) * experiment.num_samples * max(1, len(experiment.seeds))
        try:
            check_population(experiment.population, members)
        except ConfigError as error:
            raise experiment.where.error(error, "population") from None


def _check_number(experiment: Experiment) -> None:
    grids = num_combinations(experiment.settings)
    seeds = max(1, len(experiment.seeds))
    if (total := grids * experiment.num_samples * seeds) <= MAX_TRIALS:
        return
    parts = ((grids, "combinations of the grids"), (experiment.num_samples, "samples"), (seeds, "seeds"))
    product = " x ".join(f"{number:,} {what}" for number, what in parts if number > 1)
    raise experiment.where.error(
        f"{experiment.name!r} has {total:,} trials ({product}), and at most {MAX_TRIALS:,} are run: try fewer values."
    )


class _Checks:
    """Checks the trials of an experiment; environments that several share are made once."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self._samples: dict[str, Sample] = {}
        self._known_envs: set[str] = set()

    def checked(self, trial: Trial, *, told: bool) -> Trial:
        """The trial, with its stop criteria as numbers.

        Raises:
            ConfigError, EnvError: it could not run; the message names the trial if it is `told`, and the line.
        """
        which = f"{trial.name}: " if told else ""
        run = _settled(self.experiment, trial.request(), which)
        self._look(run, which)
        return dataclasses.replace(trial, stop=run.stop)

    def _look(self, run: SettledRun, which: str) -> None:
        """Look at the environment's spaces, and the network for them. Of more environments than MAX_ENVS only the names are checked."""
        where = self.experiment.where
        try:
            if len(self._samples) < MAX_ENVS or sample_key(run) in self._samples:
                look(run, samples=self._samples)
            elif (env := entry_name(run.config.env)) not in self._known_envs:
                resolve(run.config.env)
                self._known_envs.add(env)
        except UserError as error:
            head, _, last = str(error).rpartition("\nraypid: ")  # the environment's own traceback, if it raised
            said = where.error(f"{which}{last}", where.blamed(last), "env")
            raise type(error)(f"{head}\nraypid: {said}") if head else said from None


def _settled(experiment: Experiment, request: RunRequest, which: str) -> SettledRun:
    """Settle one trial, and check that it has room; `which` begins messages."""
    where, settings = experiment.where, request.settings
    try:
        run = settle(dataclasses.replace(request, stop=experiment.stop))
        _check_room(experiment, overlay(request.recorded, settings), run.config)
        return run
    except ConfigError as error:
        text, key = str(error), next((key for key in experiment.stop if repr(key) in str(error)), "")
        names = {
            "resources": ("num_gpus" if "GPU" in text else "num_workers", "resources"),
            "stop": (f"stop.{key}", "stop"),
        }
        kind = "stop" if key else "resources" if isinstance(error, NoRoom) else ""
        raise where.error(f"{which}{error}", *names.get(kind, (where.blamed(text),))) from None


class NoRoom(ConfigError):
    """A trial takes more than it may."""


def check_run(experiment: Experiment, above: RunRequest | None = None) -> RunRequest:
    """Check the settings of an experiment that is one run; returns what is asked for, with what the command line says beside it.

    Raises:
        ConfigError: the message begins with file and line.
    """
    apart: dict[str, object] = {"seed": experiment.seeds[0]} if experiment.seeds else {}
    apart |= {"address": experiment.address} if experiment.address is not None else {}
    taken = Given(apart)  # out of the settings, which still know where these came from
    taken.sources |= {key: experiment.settings.sources[key] for key in apart if key in experiment.settings.sources}
    settings = overlay(experiment.settings, taken)
    above = above or RunRequest()
    request = dataclasses.replace(
        above,
        run=experiment.run,
        settings=settings,
        recorded=Given({}),
        stop=dict(experiment.stop),
        options=dict(experiment.options),
        out=experiment.out if experiment.out_given else None,
        tuned=experiment.tuned,
        notes=(*above.notes, *experiment.notes),
    )
    below = overlay(_below(experiment, settings), {})
    _settled(
        experiment, dataclasses.replace(request, settings=settings.without("address"), recorded=below, tuned=False), ""
    )
    origins = request.from_source("file", experiment.where.file).origins
    return dataclasses.replace(request, origins={**origins, **above.origins})


def cpus_of(config: Config) -> float:
    """The CPUs that a run with these settings reserves."""
    return sum(bundle.get("CPU", 0.0) for bundle in bundles(config))


def _check_room(experiment: Experiment, settings: Mapping[str, object], config: Config) -> None:
    """Check that a trial fits into the resources that it may take, and into this machine, if that is where it will run.

    Raises:
        ConfigError: it would never start.
    """
    given, gpus = experiment.resources or {}, config.num_gpus
    cpus, parts = cpus_of(config), ""
    if config.on_ray:
        driver = given.get("driver_cpu_limit", 0)
        cpus += driver
        shared = "cpu" in given and "num_cpus_per_worker" not in settings  # workers take what is left
        worker = 0.001 if shared else config.num_cpus_per_worker
        cpus -= max(1, config.num_workers) * (config.num_cpus_per_worker - worker)
        parts = f" ({max(1, config.num_workers)} workers{f' of {worker:g}' if not shared else ''}"
        parts += f", {config.num_learners} learners" if config.num_learners else ""
        parts += f", driver_cpu_limit {driver:g})" if driver else ")"
    needs = f"{'more than ' if parts and shared else ''}{cpus:g} CPU{'s' if cpus != 1 else ''}{parts}"
    for name, needed, said in (("cpu", cpus, needs), ("gpu", gpus, f"{gpus:g} GPUs (num_gpus)")):
        if needed > given.get(name, math.inf):
            raise NoRoom(f"A trial takes {said}, but resources has {name} {given[name]:g}: it would never start.")
    ray = sys.modules.get("ray")
    shrinks = config.fit and experiment.is_one_run  # a trial does not: it waits until there is room
    if chosen(experiment.address) is not None or shrinks or (ray is not None and ray.is_initialized()):
        return
    no_fit = " (fit shrinks a single run, but no trial)" if config.fit else ""
    here = (
        f"this machine has {{}}: it would never start. Give it less{no_fit}, or the address of a cluster that has more."
    )
    if given.get("cpu", cpus) > num_cores():
        said = f"{given['cpu']:g} CPUs (resources)" if "cpu" in given else needs
        raise NoRoom(f"A trial takes {said}, and {here.format(num_cores())}")
    if (gpus := given.get("gpu", gpus)) > num_gpus():
        raise NoRoom(f"A trial takes {gpus:g} GPUs, and {here.format(f'{num_gpus():g}')}")


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
    body = {
        "format": FORMAT,
        "population": None if population is None else dataclasses.asdict(population),
        "trials": [_row(trial) for trial in trials],
    }
    text = json.dumps(body, indent=1)
    out.mkdir(parents=True, exist_ok=True)
    with explained(out / PLAN), replacing(out / PLAN) as beside:
        beside.write_text(json.dumps({**body, "signature": sign(PLAN, text)}, indent=1) + "\n")


def _row(trial: Trial) -> dict[str, object]:
    names = (f.name for f in dataclasses.fields(trial) if f.name != "folder")  # a folder that is moved can be resumed
    return {name: to_json(getattr(trial, name)) for name in names}


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
        trials, population = _trials(out, values), _population_of(values.get("population"), len(values["trials"]))
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
    population = Population(**{**saved, "factors": tuple(map(float, saved["factors"]))})
    check_population(population, members)
    for spec in population.perturb.values():
        ((word, _),) = spec.items()
        if word not in (CHOICE, *KINDS):
            raise ValueError(f"{shown(word)} is no distribution")
        check_spec(word, spec)
    return population


def _trials(out: Path, values: Mapping[str, Any]) -> list[Trial]:
    if values.get("format") != FORMAT:
        raise ValueError(f"its format is {shown(values.get('format'))}, and this version reads {FORMAT}")
    rows = values.get("trials")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_TRIALS:
        raise ValueError("it has no list of trials")
    trials = [_trial(out, row, index) for index, row in enumerate(rows, start=1)]
    if len({trial.name for trial in trials}) < len(trials):
        raise ValueError("two trials have one name")
    return trials


_TYPES = {
    "index": int, "name": str, "run": str, "settings": dict, "stop": dict, "below": dict, "varied": dict, "resources": dict | None, "options": dict,
}  # fmt: skip


def _trial(out: Path, row: object, index: int) -> Trial:
    if not isinstance(row, dict) or row.keys() != _TYPES.keys():
        raise ValueError(f"trial {index} lacks something, or has too much")
    for key, kind in _TYPES.items():
        if not isinstance(row[key], kind) or (isinstance(row[key], bool) and kind is not bool):
            raise ValueError(f"{key} of trial {index} is {shown(row[key])}")
    if row["index"] != index or not _NAME.fullmatch(row["name"]):
        raise ValueError(f"trial {index} has the index {row['index']} and the name {shown(row['name'])}")
    numbers = [*row["stop"].items(), *row["options"].items(), *(row["resources"] or {}).items()]
    for key, value in numbers:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{key} of trial {index} is {shown(value)}")
    if not row["options"].keys() <= OPTIONS.keys() or not (row["resources"] or {}).keys() <= set(RESOURCES):
        raise ValueError(f"trial {index} has options or resources that do not exist")
    return Trial(**row, folder=out / row["name"])


def is_experiment(folder: Path) -> bool:
    """Whether a folder holds an experiment."""
    return os.path.isfile(folder / PLAN)  # False too for a name that no folder can have


def check_new(out: Path, *, overwrite: bool) -> None:
    """Check that a new experiment may have this folder, and can write to it. It may replace one of which no trial has begun.

    Raises:
        UserError: it cannot be written.
        ConfigError: it holds something, and `overwrite` is not given or it is no experiment; or a running process writes to it.
    """
    with usable(out, "The experiment's folder"):
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{out} is a file, not a folder.")
        empty = not out.is_dir() or not any(out.iterdir())
    check_folder_writable(out, "The experiment's folder")
    if (out / ".lock").exists():
        with lock_folder(out):
            pass
    if empty:
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
        Planned(trials, one.out, one.population, address or one.address, max_concurrent or one.max_concurrent)
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
