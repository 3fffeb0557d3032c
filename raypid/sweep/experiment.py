"""An experiment as users write it, in a file or as a dictionary: an algorithm, settings with grids and distributions, seeds, an end."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raypid.errors import UserError, shown
from raypid.plugins.registry import ALGORITHMS, did_you_mean, suggest, unknown
from raypid.settings.config import (
    Config,
    ConfigError,
    Given,
    ModelConfig,
    Source,
    canonical,
    is_none,
    renamed,
    type_hints,
)
from raypid.settings.files import OPTIONS
from raypid.settings.marked import Keys, Marked, read_marked
from raypid.settings.request import RunRequest
from raypid.settings.stops import SHORT, read_stop
from raypid.settings.variants import GRID, check_spec, is_drawn, specs, word_of
from raypid.settings.variants import WORDS as SPECS
from raypid.storage.changes import first_settings
from raypid.storage.ownership import SIGNATURE
from raypid.storage.run_folder import is_record
from raypid.sweep.population import FACTORS, Population

WORDS = (
    "run", "env", "config", "stop", "resources", "num_samples", "repeat", "seed", "out", "local_dir", "tuned", "max_concurrent",
    "population", *OPTIONS,
)  # fmt: skip
"""Keys of an experiment; env and seed are settings too."""
_GROUPS = ("model", "env_config", "agent_config", "custom_args")
"""Settings that are mappings, so that an experiment of one of these names would be mistaken for it."""
RESOURCES = ("cpu", "gpu", "driver_cpu_limit")
POPULATION = ("interval", "perturb", "quantile", "resample", "factors")


@dataclass(frozen=True, slots=True)
class Where:
    """Where an experiment is written, for messages."""

    name: str
    file: str = ""
    """"" for a dictionary in Python."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """Names of words and settings ("stop", "lr", "model.hidden") -> line; "" is the experiment itself."""

    def error(self, message: object, *names: str) -> ConfigError:
        """An error that begins with the file, and the line of the first of `names` that has one."""
        line = next((self.lines[name] for name in (*filter(None, names), "") if name in self.lines), 1)
        return ConfigError(f"{self.file}:{line}: {message}" if self.file else f"Experiment {self.name!r}: {message}")

    def blamed(self, message: str) -> str:
        """The setting that a message speaks of; "" if it speaks of none that is written here."""
        names = [n for n in self.lines if n and not n.startswith("stop.") and (n not in WORDS or n in ("env", "seed"))]
        found = {name: re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", message) for name in names}
        return min((m.start(), -len(name), name) for name, m in found.items() if m)[2] if any(found.values()) else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One algorithm with settings, some of which vary. `raypid.sweep.plan` makes trials of it."""

    name: str
    run: str
    """Name of the algorithm."""
    settings: Given
    """By our names, env among them; grids and distributions as they were written. Seeds are apart."""
    stop: Mapping[str, object]
    seeds: tuple[int, ...] = ()
    """Each variant runs with each of these; empty: none was given, or the settings draw one."""
    num_samples: int = 1
    """How often distributions are drawn, for each combination of the grids."""
    tuned: bool | str = False
    """Whether the tuned settings for algorithm and environment lie below; a name or a file: those that a search has saved there."""
    resources: Mapping[str, float] | None = None
    """The CPUs and GPUs that a trial may take, by the names in RESOURCES."""
    options: Mapping[str, int] = field(default_factory=dict)
    """Of RunOptions: those in OPTIONS that were given."""
    max_concurrent: int | None = None
    """Most trials at a time; None: as many as fit."""
    address: str | None = None
    """Ray cluster that the trials run on."""
    population: Population | None = None
    """Trials learn from each other; None: each by itself."""
    out: Path
    """The experiment's folder."""
    out_given: bool = False
    flat: bool = False
    """Written without a name, so that it is a single run if nothing varies."""
    notes: tuple[str, ...] = ()
    """Settings that were given by another name."""
    where: Where

    @property
    def is_one_run(self) -> bool:
        """Whether it is what `raypid train` does without a file: one run, with a folder of its own."""
        return self.flat and self.has_one_trial

    @property
    def has_one_trial(self) -> bool:
        """Whether nothing varies; by a name it is an experiment all the same."""
        varies = any(True for _ in specs(self.settings)) or len(self.seeds) > 1
        return not varies and self.num_samples == 1 and self.population is None


def read_experiments(path: str | Path, above: RunRequest | None = None) -> list[Experiment]:
    """Read the experiments of a YAML or JSON file.

    The file has the keys of one experiment (run, env, config, stop, ...; settings may stand beside them, as in a run's params.json), or
    NAME: {run: ..., env: ...} for each of several.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong; the message begins with file and line.
    """
    marked = read_marked(path)
    if is_record(marked.values):
        first = first_settings(marked.values)
        first.pop(SIGNATURE, None)
        marked = dataclasses.replace(marked, values=first)
    return _experiments(marked, above or RunRequest(), Path(path).stem)


def experiments_from(values: Mapping[str, object]) -> list[Experiment]:
    """The experiments of a dictionary, {name: {"run": "PPO", "env": ..., "stop": ..., "config": ...}}.

    Raises:
        ConfigError: something in it is wrong; the message names the experiment.
    """
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(f'Experiments are a dict such as {{"name": {{"run": "PPO", ...}}}}, not {shown(values)}.')
    for name in values:
        if not isinstance(name, str):
            raise ConfigError(f"The name of an experiment is text, not {shown(name)}.")
    return _experiments(Marked("", dict(values)), RunRequest(), "experiment")


def check_experiments(experiments: Sequence[Experiment]) -> None:
    """Check what no experiment can know of another.

    Raises:
        ConfigError: two have one folder, or one lies in the other's.
    """
    for i, one in enumerate(experiments):
        for other in experiments[:i]:
            first, second = other.out.resolve(), one.out.resolve()
            if first == second or first in second.parents or second in first.parents:
                raise one.where.error(
                    f"{one.out} is, or lies in, the folder of {other.name!r} ({other.out}): give each its own.", "out"
                )


def blocks_of(marked: Marked) -> list[Mapping[str, object]]:
    """What a file says of each experiment, its settings beside the words; nothing is checked."""
    values: list[object] = [marked.values] if any(map(_is_flat, marked.values)) else list(marked.values.values())
    found: list[Mapping[str, object]] = []
    for block in values:
        if isinstance(block, Mapping):
            config = block.get("config")
            found.append({**(config if isinstance(config, Mapping) else {}), **block})
    return found


def _experiments(marked: Marked, above: RunRequest, stem: str) -> list[Experiment]:
    values = marked.values
    words = [key for key in values if _is_flat(key)]
    if words or not values:
        return [_Reader(marked, (), stem, values, above, flat=True).experiment()]
    for key, value in values.items():
        if not isinstance(value, Mapping):
            near = "".join(f" (Did you mean {name!r}?)" for name in suggest(canonical(key), _known(), 1))
            raise Where(key, marked.path, {"": marked.line((key,))}).error(
                f"{key!r} is neither a key of an experiment{near} nor the name of one, which takes a mapping such as "
                f"{{run: PPO, env: CartPole-v1, stop: ..., config: ...}}, not {shown(value)}."
            )
    several = len(values) > 1
    folder = above.out
    found: list[Experiment] = []
    for name, value in values.items():
        assert isinstance(value, Mapping)
        own = dataclasses.replace(above, out=folder / name) if folder is not None and several else above
        found.append(_Reader(marked, (name,), name, value, own, flat=False).experiment())
    envs = {str(block.get("env")) for block in blocks_of(marked)}
    if several and (env := above.settings.get("env")) is not None and len(envs) > 1:
        raise ConfigError(f"--env {env} would give all experiments of {marked.path} one environment: leave it out.")
    return found


def _known() -> list[str]:
    return [*WORDS, *type_hints(Config)]


def _is_flat(key: str) -> bool:
    name = canonical(key)
    first = name.partition(".")[0]
    return name in WORDS or first in _GROUPS or name in type_hints(Config)


class _Reader:
    """Reads one experiment.

    Args:
        marked: the file, or a dictionary without lines.
        keys: where in it the experiment lies.
        values: the experiment.
        flat: it was written without a name.
    """

    def __init__(
        self, marked: Marked, keys: Keys, name: str, values: Mapping[str, object], above: RunRequest, *, flat: bool
    ) -> None:
        self.marked, self.name, self.above, self.flat = marked, name, above, flat
        self.lines: dict[str, int] = {"": marked.line(keys)} if marked.path else {}
        self.where = Where(name, marked.path, self.lines)
        self.words: dict[str, object] = {}
        self.settings = Given({})
        self._written: list[str] = []
        """Names of settings as they were written."""
        self._keys: dict[str, Keys] = {}
        """Settings -> where they lie in the file."""
        self._unknown: list[str] = []
        """Names that are not known."""
        others: list[tuple[str, object, Keys]] = []
        for key, value in values.items():
            if not isinstance(key, str):
                raise self.where.error(f"The name of a setting is text, not {shown(key)}.")
            word = canonical(key)
            if word in WORDS and word not in ("env", "seed"):
                self._mark(word, (*keys, key))
                if word in self.words:
                    raise self.where.error(f"{key!r} and {word!r} are the same: give one of them.", word)
                self.words[word] = value
                for inner in value if word == "stop" and isinstance(value, Mapping) else ():
                    self._mark(f"stop.{SHORT.get(inner, inner)}", (*keys, key, inner))
            else:
                others.append((key, value, (*keys, key)))
        self._check_name()
        self.run = self._run()
        self.defaults: Config = ALGORITHMS.get(self.run).Config()
        for key, value, place in others:
            self._add(key, value, place)
        self._read_config(keys)
        if self._unknown:
            known = [*WORDS, *type_hints(type(self.defaults)), *(f"model.{name}" for name in type_hints(ModelConfig))]
            raise self.where.error(unknown("setting", self._unknown, known), canonical(self._unknown[0]))
        for name, value in self.settings.items():
            self._check_value(name, value, self._keys[name])

    def _mark(self, name: str, keys: Keys) -> None:
        if self.marked.path:
            self.lines[name] = self.marked.line(keys)

    def _check_name(self) -> None:
        name = self.name
        if not name.strip() or name != name.strip() or re.search(r"[/\\\x00-\x1f]", name) or name.startswith("."):
            raise self.where.error(
                f"The name of an experiment is that of its folder: text without /, \\ and line breaks that begins with no dot, not {shown(name)}."
            )
        if len(name.encode()) > 200:
            raise self.where.error(f"The name of an experiment has at most 200 bytes, not {len(name.encode())}.")

    def _run(self) -> str:
        run = self.words.get("run")
        if self.above.run is not None:
            if not self.flat and run not in (None, self.above.run):
                raise self.where.error(
                    f"--run {self.above.run} is not what the experiment {self.name!r} runs: leave it out.", "run"
                )
            run = self.above.run
        if word_of(run):
            raise self.where.error("run is one algorithm: write an experiment for each.", "run")
        if run is None:
            raise self.where.error("Name the algorithm: run: PPO.")
        from raypid.run.calls import algorithm_of

        try:
            return algorithm_of(run)
        except UserError as error:
            raise self.where.error(error, "run") from None

    def _read_config(self, keys: Keys) -> None:
        config = self.words.pop("config", None)
        if config is not None and not isinstance(config, Mapping):
            raise self.where.error(
                f"config takes a mapping of settings such as {{lr: 0.001}}, not {shown(config)}.", "config"
            )
        for key, value in (config or {}).items():
            if not isinstance(key, str):
                raise self.where.error(f"The name of a setting is text, not {shown(key)}.", "config")
            if canonical(key) in WORDS and key not in ("env", "seed"):
                raise self.where.error(f"{key} belongs to the experiment, beside config and not within it.", "config")
            self._add(key, value, (*keys, "config", key))

    def _add(self, key: str, value: object, place: Keys) -> None:
        """Take a setting, by our name, the network's one by one; a plain value must be of its type, and so each value of a grid."""
        name = canonical(key)
        if name == "model" and isinstance(value, Mapping) and not word_of(value):
            for inner, part in value.items():
                self._add(f"model.{inner}", part, (*place, inner))
            return
        self._mark(name, place)
        if name in self.settings:
            before = next(k for k in reversed(self._written) if canonical(k) == name)
            same = f"{key!r} stands here twice" if before == key else f"{before!r} and {key!r} are the same setting"
            raise self.where.error(f"{same}: give one of them.", name)
        first, _, rest = name.partition(".")
        hints = type_hints(type(self.defaults))
        if first not in hints or (first == "model" and rest and rest.partition(".")[0] not in type_hints(ModelConfig)):
            self._unknown.append(key)
            return
        self._written.append(key)
        self._keys[name] = place
        self.settings[name] = value
        self.settings.sources[name] = [Source("file" if self.marked.path else "given", self.marked.path, value)]

    def _check_value(self, name: str, value: object, place: Keys) -> None:
        if name == "seed" and isinstance(value, list | tuple):
            return  # seeds, one by one
        if word_of(value) == GRID:
            assert isinstance(value, Mapping)
            self._check_spec(name, value)
            for i, one in enumerate(value[GRID]):
                self._mark(name, (*place, GRID, i))
                self._check_value(name, one, (*place, GRID, i))
            self._mark(name, place)
        elif any(True for _ in specs(value)):
            self._check_spec(name, value)
        elif refusal := self._refusal(name, value):
            raise self.where.error(f"{refusal}{self._meant(name, value)}", name)

    def _meant(self, name: str, value: object) -> str:
        """What a value that does not fit may have been meant to be."""
        if isinstance(value, list | tuple) and value and not any(self._refusal(name, one) for one in value):
            return f" To try each of them, write {name}: {{{GRID}: [...]}}."
        keys = [str(key) for key in value] if isinstance(value, Mapping) else []
        if len(keys) > 1 and any(key in SPECS for key in keys):
            return f" A grid or a distribution is a mapping of one word, and here are {' and '.join(keys)}."
        near = suggest(canonical(keys[0]), SPECS, 1) if len(keys) == 1 else []
        return f" Did you mean {{{near[0]}: [...]}}?" if near else ""

    def _check_spec(self, name: str, value: object) -> None:
        for path, word, spec in specs(value):
            try:
                check_spec(word, spec)
            except ConfigError as error:
                raise self.where.error(f"{'.'.join([name, *map(str, path)])}: {error}", name) from None

    def _refusal(self, name: str, value: object) -> str:
        """What the algorithm's settings say of one of them; "" if nothing."""
        if name in ("env", "evaluation_env") and isinstance(value, bool | int | float | list | tuple | Mapping):
            return f"{name} takes one environment, not {shown(value)}."
        try:
            self.defaults.replace({name: value})
        except ConfigError as error:
            return str(error)
        return ""

    # -- the whole -----------------------------------------------------------------------------------------------------

    def experiment(self) -> Experiment:
        """The experiment, with what the command line says laid over it."""
        self._lay_over()
        settings, where, above = self.settings, self.where, self.above
        if not settings.get("env"):
            raise where.error("Name the environment: env: CartPole-v1.")
        num_samples, seeds = self._seeds()
        resources = self._resources()
        address = settings.pop("address", None)
        if address is not None and not isinstance(address, str):
            raise where.error("All trials run on one cluster: address takes no grid.", "address")
        words = {"max_concurrent": 1, **OPTIONS}
        counts = {name: self._whole(name, words[name]) for name in words if self.words.get(name) is not None}
        max_concurrent = counts.pop("max_concurrent", None)
        return Experiment(
            name=self.name,
            run=self.run,
            settings=settings,
            stop=self._stop(),
            seeds=seeds,
            num_samples=num_samples,
            tuned=above.tuned or self._tuned(),
            resources=resources,
            options={**counts, **above.options},
            max_concurrent=max_concurrent,
            address=address,
            population=self._population(),
            out=self._out(),
            out_given=above.out is not None or bool({"out", "local_dir"} & self.words.keys()),
            flat=self.flat,
            notes=tuple(renamed(dict.fromkeys([*self._written, *above.settings]))),
            where=where,
        )

    def _lay_over(self) -> None:
        """Lay the settings of the command line over those here.

        Raises:
            ConfigError: one of them varies here.
        """
        for key, value in self.above.settings.items():
            name, before = canonical(key), list[Source]()
            for ours, value_here in list(self.settings.items()):
                if not (f"{ours}.".startswith(f"{name}.") or f"{name}.".startswith(f"{ours}.")):
                    continue
                if any(True for _ in specs(value_here)) or (isinstance(value_here, list) and ours == "seed"):
                    raise self.where.error(
                        f"{ours} varies here, and --{name.replace('_', '-')} fixes it: leave one of them out.", ours
                    )
                if ours == name or not name.startswith(f"{ours}."):
                    del self.settings[ours]
                    before += self.settings.sources.pop(ours, []) if ours == name else []
            if refusal := self._refusal(key, value):
                raise ConfigError(refusal)
            self.lines.pop(name, None)  # what is wrong with it is not wrong in the file
            self.settings[name] = value
            above = self.above.settings
            own = above.sources_of(key) if isinstance(above, Given) else [Source("given", "", value)]
            self.settings.sources[name] = [*before, *own]
        if self.above.stop is not None:
            for line in [line for line in self.lines if line.partition(".")[0] == "stop"]:
                del self.lines[line]

    def _seeds(self) -> tuple[int, tuple[int, ...]]:
        """(number of samples, seeds). Seeds are taken out of the settings, unless they are drawn."""
        where = self.where
        num_samples, repeat = self._whole("num_samples", 1), self._whole("repeat", 1)
        seed = self.settings.pop("seed", None)
        seed = None if is_none(seed) else seed
        if word_of(seed) not in ("", GRID):
            if repeat > 1:
                raise where.error(
                    "repeat gives each variant several seeds, and seed draws one: give one of them.", "repeat"
                )
            self.settings["seed"] = seed
            return num_samples, ()
        listed = seed[GRID] if isinstance(seed, Mapping) and word_of(seed) else seed
        drawn = is_drawn(self.settings)
        if not isinstance(listed, list | tuple):
            if num_samples > 1 and not drawn and repeat > 1:
                raise where.error(
                    "Nothing is drawn here, so num_samples and repeat are both a number of seeds: give one of them.",
                    "repeat",
                )
            count = repeat if drawn else repeat * num_samples
            if seed is None and count == 1:
                return num_samples, ()
            first = self._seed(0 if seed is None else seed)
            return num_samples if drawn else 1, tuple(range(first, first + count))
        if repeat > 1 or (num_samples > 1 and not drawn):
            word = "repeat" if repeat > 1 else "num_samples"
            raise where.error(f"seed lists the seeds, and {word} asks for a number of them: give one of the two.", word)
        seeds = tuple(map(self._seed, listed))
        if not seeds:
            raise where.error("seed has no values: give it at least one.", "seed")
        if twice := [s for i, s in enumerate(seeds) if s in seeds[:i]]:
            raise where.error(f"seed has {twice[0]} twice, and the two runs would be the same.", "seed")
        return num_samples, seeds

    def _seed(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise self.where.error(f"seed takes whole numbers of at least 0, not {shown(value)}.", "seed")
        return value

    def _whole(self, word: str, least: int) -> int:
        value = self.words.get(word, least)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
            raise self.where.error(f"{word} takes a whole number of at least {least}, not {shown(value)}.", word)
        return value

    def _tuned(self) -> bool | str:
        tuned = self.words.get("tuned", False)
        if not isinstance(tuned, bool | str) or tuned == "":
            raise self.where.error(
                f"tuned takes true, false, or what `raypid tune` has saved (a name or a file), not {shown(tuned)}.",
                "tuned",
            )
        return tuned

    def _stop(self) -> Mapping[str, object]:
        stop = self.words.get("stop") if self.above.stop is None else self.above.stop
        try:
            return read_stop(stop)
        except ConfigError as error:
            raise self.where.error(str(error), "stop") from None

    def _resources(self) -> dict[str, float] | None:
        given, where = self.words.get("resources"), self.where
        if given is None:
            return None
        if not isinstance(given, Mapping):
            raise where.error(f"resources takes a mapping such as {{cpu: 2, gpu: 0}}, not {shown(given)}.", "resources")
        found: dict[str, float] = {}
        for key, value in given.items():
            name = str(key).replace("-", "_").lower()
            if name not in RESOURCES:
                raise where.error(f"resources has no {key!r}.{did_you_mean(name, RESOURCES)}", "resources")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise where.error(f"resources.{name} takes a number of at least 0, not {shown(value)}.", "resources")
            found[name] = value
        if found.get("driver_cpu_limit", 0) > found.get("cpu", math.inf):
            raise where.error(
                f"resources.driver_cpu_limit {found['driver_cpu_limit']:g} is a part of cpu, which is {found['cpu']:g}.",
                "resources",
            )
        return found

    def _population(self) -> Population | None:
        """How the trials learn from each other. Settings that have a distribution change, or those of them that are named."""
        given, where = self.words.get("population"), self.where
        if given is None:
            return None
        if not isinstance(given, Mapping) or "interval" not in given:
            raise where.error(
                f"population takes a mapping such as {{interval: 50_000}}, not {shown(given)}.", "population"
            )
        for key in given:
            if key not in POPULATION:
                raise where.error(f"population has no {key!r}.{did_you_mean(str(key), POPULATION)}", "population")
        drawn = {
            name: dict(value)
            for name, value in self.settings.items()
            if isinstance(value, Mapping) and word_of(value) not in ("", GRID)
        }
        names = given.get("perturb", list(drawn))
        if not isinstance(names, list | tuple):
            raise where.error(
                f"population.perturb takes a list of settings such as [lr, clip], not {shown(names)}.", "population"
            )
        for name in names:
            if canonical(str(name)) not in drawn:
                raise where.error(
                    f"population.perturb names {name!r}, which has no distribution in config, such as {{loguniform: [1e-5, 1e-2]}}.",
                    "population",
                )
        numbers = {key: self._number(key, given[key]) for key in ("interval", "quantile", "resample") if key in given}
        factors = given.get("factors", FACTORS)
        if not isinstance(factors, list | tuple) or len(factors) != 2:
            raise where.error(
                f"population.factors takes two numbers such as [0.8, 1.25], not {shown(factors)}.", "population"
            )
        first, second = (self._number("factors", factor) for factor in factors)
        perturb = {canonical(str(name)): drawn[canonical(str(name))] for name in names}
        return Population(**{**numbers, "interval": int(numbers["interval"])}, perturb=perturb, factors=(first, second))  # type: ignore[arg-type]

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.where.error(f"population.{key} takes a number, not {shown(value)}.", "population")
        return value

    def _out(self) -> Path:
        if self.above.out is not None:
            return self.above.out
        out, parent = self.words.get("out"), self.words.get("local_dir")
        if out is not None and parent is not None:
            raise self.where.error(
                "out is the experiment's folder, local_dir the one above it: give one of them.", "local_dir"
            )
        for word, value in (("out", out), ("local_dir", parent)):
            if value is not None and (not isinstance(value, str | Path) or not str(value) or "\0" in str(value)):
                raise self.where.error(f"{word} takes the name of a folder, not {shown(value)}.", word)
        return Path(str(out)) if out is not None else Path(str(parent or "runs")).expanduser() / self.name
