"""An experiment as users write it, in a file or as a dictionary: an algorithm, settings with grids and distributions, seeds, an end."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from raypid.errors import shown
from raypid.plugins.registry import ALGORITHMS, suggest
from raypid.run.calls import algorithm_of
from raypid.settings.config import (
    Config,
    ConfigError,
    Given,
    Settings,
    canonical,
    check_values,
    coerce,
    is_none,
    nested,
    type_hints,
)
from raypid.settings.files import GROUPS, Block, Words, entries, makes_several, read_block, unsigned
from raypid.settings.marked import Keys, Marked, read_marked
from raypid.settings.request import RunRequest, join
from raypid.settings.variants import GRID, is_drawn, specs, word_of
from raypid.sweep.population import Population

_NAME = re.compile(r"(?![\s.])[^/\\\x00-\x1f]{1,200}(?<!\s)")
"""Name of an experiment: that of its folder."""


@dataclass(kw_only=True, slots=True)
class Resources(Settings):
    """What a trial may take; None: what its settings need."""

    cpu: float | None = None
    gpu: float | None = None
    driver_cpu_limit: float | None = None
    """The part of `cpu` that is not the workers'."""

    ranges: ClassVar[Mapping[str, tuple[str, ...]]] = {"be at least 0": ("cpu", "gpu", "driver_cpu_limit")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One algorithm with settings, some of which vary. `raypid.sweep.plan` makes trials of it."""

    name: str
    request: RunRequest
    """What it asks for; grids and distributions are among the settings as they were written."""
    block: Block
    """What its file says of it, for the lines in messages."""
    seeds: tuple[int, ...] = ()
    """Each variant runs with each of these; empty: none was given, or the settings draw one."""
    num_samples: int = 1
    """How often distributions are drawn, for each combination of the grids."""
    resources: Mapping[str, float] | None = None
    """The CPUs and GPUs that a trial may take, by the names in Resources."""
    population: Population | None = None
    """Trials learn from each other; None: each by itself."""
    flat: bool = False
    """Written without a name, so that it is a single run if nothing varies."""

    @property
    def settings(self) -> dict[str, object]:
        """By our names, env among them; grids and distributions as they were written."""
        return {canonical(key): value for key, value in self.request.settings.items()}

    @property
    def address(self) -> str | None:
        """Ray cluster that the trials run on."""
        address = self.settings.get("address")
        return None if is_none(address) else str(address)

    @property
    def out(self) -> Path:
        """The experiment's folder."""
        return self.request.out or Path("runs", self.name)

    @property
    def is_one_run(self) -> bool:
        """Whether it is what `raypid train` does without a file: one run, with a folder of its own."""
        return self.flat and self.has_one_trial

    @property
    def has_one_trial(self) -> bool:
        """Whether nothing varies; by a name it is an experiment all the same."""
        varies = any(True for _ in specs(self.request.settings)) or len(self.seeds) > 1
        return not varies and self.num_samples == 1 and self.population is None


def read_experiments(path: str | Path, above: RunRequest | None = None) -> list[Experiment]:
    """Read the experiments of a YAML or JSON file.

    The file has the keys of one experiment (run, env, config, stop, ...; settings may stand beside them, as in a run's params.json), or
    NAME: {run: ..., env: ...} for each of several.

    Args:
        above: what is asked for besides, which wins.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong; the message begins with file and line.
    """
    marked = read_marked(path)
    return _experiments(replace(marked, values=unsigned(marked.values)), above or RunRequest(), Path(path).stem)


def experiments_from(values: Mapping[str, object]) -> list[Experiment]:
    """The experiments of a dictionary, {name: {"run": "PPO", "env": ..., "stop": ..., "config": ...}}.

    Raises:
        ConfigError: something in it is wrong; the message names the experiment.
    """
    if not isinstance(values, Mapping) or not values or not all(isinstance(name, str) for name in values):
        raise ConfigError(f'Experiments are a dict such as {{"name": {{"run": "PPO", ...}}}}, not {shown(values)}.')
    return _experiments(Marked("Experiments", dict(values), kind="given"), RunRequest(), "experiment")


def _experiments(marked: Marked, above: RunRequest, stem: str) -> list[Experiment]:
    places = places_of(marked)
    several, env = len(places) > 1, above.settings.get("env")
    if several and env is not None and len({str(block.get("env")) for block in blocks_of(marked)}) > 1:
        raise marked.error(f"--env {env} would give all experiments one environment: leave it out.")
    found = []
    for keys in places:
        name = str(keys[0]) if keys else stem
        out = above.out / name if above.out is not None and several else above.out
        own = replace(marked, path=f"Experiment {name!r}") if marked.kind == "given" else marked
        found.append(_experiment(own, keys, name, replace(above, out=out)))
    return found


def check_experiments(experiments: Sequence[Experiment]) -> None:
    """Check what no experiment can know of another.

    Raises:
        ConfigError: two have one folder, or one lies in the other's.
    """
    for other, one in itertools.combinations(experiments, 2):
        first, second = other.out.resolve(), one.out.resolve()
        if first.is_relative_to(second) or second.is_relative_to(first):
            with one.block.located("out"):
                raise ConfigError(
                    f"{one.out} is, or lies in, the folder of {other.name!r} ({other.out}): give each its own."
                )


def places_of(marked: Marked) -> list[Keys]:
    """Where the experiments of a file lie: () if it is a single one, without a name.

    Raises:
        ConfigError: something is neither a key of an experiment nor an experiment.
    """
    known = [*type_hints(Words), *type_hints(Config), *GROUPS]
    names = {canonical(key).partition(".")[0] for key in marked.values}
    if not names or not names.isdisjoint(known):
        return [()]
    for key, value in marked.values.items():
        if not isinstance(value, Mapping):
            near = "".join(f" (Did you mean {name!r}?)" for name in suggest(canonical(key), known, 1))
            raise marked.error(
                f"{key!r} is neither a key of an experiment{near} nor the name of one, which takes a mapping such as "
                f"{{run: PPO, env: CartPole-v1, stop: ..., config: ...}}, not {shown(value)}.",
                (key,),
            )
    return [(key,) for key in marked.values]


def blocks_of(marked: Marked) -> list[dict[str, object]]:
    """What a file says of each experiment, its settings beside the words; nothing is checked."""
    return [{key: value for _, key, value in entries(marked.at(keys))} for keys in places_of(marked)]


def _experiment(marked: Marked, keys: Keys, name: str, above: RunRequest) -> Experiment:
    """Read the experiment that lies at these keys, with what is asked for besides laid over it."""
    block = read_block(marked, keys)
    with block.located("run"):
        if not _NAME.fullmatch(name):
            raise ConfigError(
                "The name of an experiment is that of its folder: up to 200 characters without / and \\ that begin with no dot, "
                f"not {shown(name)}."
            )
        if keys and above.run is not None and block.words.run not in (None, above.run):
            raise ConfigError(f"--run {above.run} is not what the experiment {name!r} runs: leave it out.")
        run = above.run or block.words.run
        if run is None or word_of(run):
            raise ConfigError("Name the algorithm, run: PPO; of several, each has an experiment of its own.")
        block.words = block.words.replace({"run": (run := algorithm_of(run))})
    cls: type[Config] = ALGORITHMS.get(run).Config
    block.check(cls)
    cls().replace(above.settings)
    with block.located():
        _check_fixed(block.settings, above.settings)
    request = join(block.request(), above)
    fixed = {*map(canonical, above.settings), *(() if above.stop is None else ("stop", "criterion"))}
    block.places = {  # what is wrong with what is fixed is not wrong in the file
        name: place for name, place in block.places.items() if fixed.isdisjoint((name, re.split("[. ]", name)[0]))
    }
    with block.located():
        found = Experiment(
            name=name,
            request=replace(request, out=_out(block.words, request.out, name)),
            block=block,
            resources=_resources(block.words),
            flat=not keys,
        )
        if not found.settings.get("env"):
            raise ConfigError("Name the environment: env: CartPole-v1.")
        if word_of(found.settings.get("address")):
            raise ConfigError("address takes no grid: all trials run on one cluster.")
        num_samples, seeds = _seeds(block.words, found.settings)
        if len(seeds) == 1:
            found.request.settings["seed"] = seeds[0]
        population = _population(block.words, found.settings)
        return replace(found, num_samples=num_samples, seeds=seeds, population=population)


def _check_fixed(settings: Given, above: Given) -> None:
    """Refuse to fix by a flag what varies in a file.

    Raises:
        ConfigError: names the setting.
    """
    varied = [ours for key, value in settings.items() if makes_several(ours := canonical(key), value)]
    for name in map(canonical, above):
        for ours in varied:
            if f"{ours}.".startswith(f"{name}.") or f"{name}.".startswith(f"{ours}."):
                raise ConfigError(
                    f"{ours} varies here, and --{name.replace('_', '-')} fixes it: leave one of them out."
                )


def _seeds(words: Words, settings: Mapping[str, object]) -> tuple[int, tuple[int, ...]]:
    """(number of samples, seeds). Where nothing is drawn, `num_samples` is a number of seeds."""
    samples, repeat, seed = words.num_samples, words.repeat, settings.get("seed")
    others = {name: value for name, value in settings.items() if name != "seed"}
    if not is_drawn(others) and word_of(seed) in ("", GRID):
        if min(samples, repeat) > 1:
            raise ConfigError(
                "Nothing is drawn here, so repeat and num_samples are both a number of seeds: give one of them."
            )
        samples, repeat = 1, samples * repeat
    listed = seed[GRID] if isinstance(seed, Mapping) and word_of(seed) == GRID else seed
    if repeat > 1 and (word_of(listed) or isinstance(listed, list | tuple)):
        word = "repeat" if words.repeat > 1 else "num_samples"
        raise ConfigError(f"{word} asks for several seeds, and seed says which they are: give one of the two.")
    if word_of(listed) or (is_none(listed) and repeat == 1):
        return samples, ()
    if not isinstance(listed, list | tuple):
        first: Any = coerce("seed", 0 if is_none(listed) else listed, int)
        listed = range(first, first + repeat)
    seeds: Any = coerce("seed", [*listed], tuple[int, ...])
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigError(f"seed takes whole numbers of at least 0, at least one and none twice, not {shown(seed)}.")
    return samples, seeds


def _out(words: Words, out: Path | None, name: str) -> Path | None:
    """The folder that was asked for."""
    if words.out is not None and words.local_dir is not None:
        raise ConfigError("local_dir is the folder above that of the experiment, which is out: give one of them.")
    return out if out is not None or words.local_dir is None else Path(words.local_dir).expanduser() / name


def _resources(words: Words) -> dict[str, float] | None:
    if words.resources is None:
        return None
    resources = nested(Resources(), "resources", words.resources)
    check_values(resources, "resources.")
    if (resources.driver_cpu_limit or 0) > (math.inf if resources.cpu is None else resources.cpu):
        raise ConfigError(
            f"resources.driver_cpu_limit {resources.driver_cpu_limit:g} is a part of cpu, which is {resources.cpu:g}."
        )
    return {name: value for name, value in dataclasses.asdict(resources).items() if value is not None}


def _population(words: Words, settings: Mapping[str, object]) -> Population | None:
    """How the trials learn from each other. Settings that have a distribution change, or those of them that are named."""
    given = words.population
    if given is None:
        return None
    drawn = {name: x for name, x in settings.items() if isinstance(x, Mapping) and word_of(x) not in ("", GRID)}
    names: Any = coerce("population.perturb", given.get("perturb", list(drawn)), tuple[str, ...])
    if unknown := [name for name in names if canonical(name) not in drawn]:
        raise ConfigError(
            f"population.perturb names {unknown[0]!r}, which has no distribution in config, such as {{loguniform: [1e-5, 1e-2]}}."
        )
    perturb = {canonical(name): drawn[canonical(name)] for name in names}
    return nested(Population(), "population", {**given, "perturb": perturb})
