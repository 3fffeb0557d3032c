"""Files that say what to run: one run (`--config`, `-f`, `config="FILE"`), several (`raypid.sweep`), a run's own params.json.

`read_block` takes apart what any of them says of one run or experiment. What makes several runs is answered here.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import ClassVar

from raypid.errors import UserError, listed, shown
from raypid.plugins.registry import ALGORITHMS, suggest, unknown
from raypid.plugins.trust import check_names
from raypid.settings.config import (
    Config,
    ConfigError,
    Given,
    ModelConfig,
    Settings,
    Source,
    canonical,
    check_values,
    given_names,
    overlay,
    parse_value,
    type_hints,
)
from raypid.settings.marked import Keys, Marked, read_marked
from raypid.settings.request import RunRequest, join
from raypid.settings.stops import SHORT
from raypid.settings.variants import GRID, WORDS, check_spec, specs, word_of
from raypid.storage.changes import changes_of, described, first_settings
from raypid.storage.ownership import SIGNATURE, has_signature, run_folder_of
from raypid.storage.run_folder import RunFolder, is_record

OPTIONS = {"checkpoint_interval": 0, "keep_checkpoints": 1, "final_episodes": 0}
"""What `raypid train` does besides training, as far as a file may say it -> the least value."""
PROGRAM = "program"
"""Key in params.json of the class whose own `run` and `update` trained (`raypid.DistributedAgent`)."""
GROUPS = ("model", "env_config", "agent_config", "custom_args")
"""Settings that are mappings, so that an experiment of one of these names would be mistaken for it."""
_EXAMPLES = {"--stop": '{"time_total_s": 60}', "--env-config": '{"size": 8}'}
"""Options -> what they take; the others take settings."""


@dataclass(kw_only=True, slots=True)
class Words(Settings):
    """What a file may say beside the settings of the algorithm."""

    run: object = None
    stop: object = None
    config: dict[str, object] | None = None
    """Settings, which may also stand beside the words."""
    tuned: bool | str | None = None
    out: str | Path | None = None
    checkpoint_interval: int | None = None
    """Iterations between checkpoints (default: one a minute)."""
    keep_checkpoints: int | None = None
    """Newest checkpoints to keep, besides the best (default: 3)."""
    final_episodes: int | None = None
    """Episodes that the best policy plays at the end, fewer if they take longer than the run, or over a minute; 0: none (default: 50)."""
    num_samples: int = 1
    """How often distributions are drawn, for each combination of the grids."""
    repeat: int = 1
    """Seeds of each variant."""
    max_concurrent: int | None = None
    local_dir: str | Path | None = None
    """The folder above that of the experiment."""
    resources: dict[str, object] | None = None
    population: dict[str, object] | None = None

    ranges: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "be at least 0": ("checkpoint_interval", "final_episodes"),
        "be at least 1": ("keep_checkpoints", "num_samples", "repeat", "max_concurrent"),
    }
    several: ClassVar[Sequence[str]] = (
        "resources", "num_samples", "repeat", "max_concurrent", "population", "local_dir",
    )  # fmt: skip
    """Those that only an experiment has, since they are about several runs."""

    def request(self) -> RunRequest:
        """What they ask for.

        Raises:
            ConfigError: a value of the wrong kind, or out of range.
        """
        check_values(self)
        if self.run is not None and not isinstance(self.run, str):
            raise ConfigError(f"run takes the name of an algorithm such as PPO, not {shown(self.run)}.")
        if empty := [name for name in ("tuned", "out", "local_dir") if getattr(self, name) == ""]:
            raise ConfigError(f"{empty[0]} is empty: leave it out, or name what it should be.")
        options = {name: getattr(self, name) for name in OPTIONS}
        return RunRequest(
            run=self.run,
            stop=self.stop,  # type: ignore[arg-type]  # as people write it
            tuned=self.tuned or False,
            out=None if self.out is None else Path(self.out),
            options={name: number for name, number in options.items() if number is not None},
        )


@dataclass(slots=True)
class Block:
    """What a file says of one run or experiment."""

    marked: Marked
    keys: Keys
    """Where in the file it lies."""
    words: Words = field(default_factory=Words)
    settings: Given = field(default_factory=lambda: Given({}))
    """By the names that were written, the network's one by one."""
    places: dict[str, Keys] = field(default_factory=dict)
    """Our name of each word and setting ("tuned", "model.hidden"), and "criterion 'timesteps_total'" of each in `stop` -> where it lies."""

    def request(self) -> RunRequest:
        """What it asks for."""
        with self.located():
            request = replace(self.words.request(), settings=self.settings)
        return request.from_source("file", self.marked.path)

    @contextlib.contextmanager
    def located(self, default: str = "", prefix: str = "", place: Keys | None = None) -> Iterator[None]:
        """Put the file, and the line of what an error speaks of, before errors that come up within.

        Args:
            default: the setting or word whose line is named if the error speaks of none.
            prefix: stands before the message.
            place: whose line is named in any case.
        """
        try:
            yield
        except UserError as error:
            head, _, message = str(error).rpartition("\nraypid: ")  # the environment's own traceback, if it raised
            keys = place or self.places.get(self._named_in(message)) or self.places.get(default, self.keys)
            said = self.marked.error(f"{prefix}{message}", keys)
            raise type(error)(f"{head}\nraypid: {said}") if head else said from None

    def _named_in(self, message: str) -> str:
        """What is written here and a message speaks of, the first if there are several; "" if there is none."""
        pattern = r"(?<![\w.])(?<!criterion '){}(?!\w)"
        found = {name: re.search(pattern.format(re.escape(name)), message) for name in self.places}
        starts = {name: match.start() for name, match in found.items() if match}
        named = [name for name, start in starts.items() if start == 0 or name not in _AMBIGUOUS]
        return min(named, key=lambda name: (starts[name], -len(name)), default="")

    def check(self, cls: type[Config]) -> None:
        """Check each setting by itself; of what varies the form alone, since each trial checks its own values.

        Raises:
            ConfigError: settings that do not exist, or that do not fit.
        """
        known = [*type_hints(Words), *type_hints(cls), *(f"model.{name}" for name in type_hints(ModelConfig))]
        names, defaults = given_names(self.settings), cls()
        if wrong := [written for name, written in names.items() if name not in known]:
            with self.located(canonical(wrong[0])):
                raise ConfigError(unknown("setting", wrong, known))
        with self.located():
            if inside := [name for name in type_hints(Words) if name in names and name not in type_hints(cls)]:
                raise ConfigError(f"{inside[0]} stands within config, and belongs beside it.")
        for key, value in self.settings.items():
            name, place = canonical(key), self.places[canonical(key)]
            for path, word, spec in specs(value):
                with self.located(prefix=f"{'.'.join([name, *map(str, path)])}: ", place=place):
                    check_spec(word, spec)
            if not makes_several(name, value) and (refusal := _refusal(defaults, name, value)):
                raise self.marked.error(f"{refusal}{_meant(defaults, name, value)}", place)


_AMBIGUOUS = ("run", "stop", "config", "out", "repeat")
"""Words that messages have in other meanings too: they speak of these only at their beginning."""


def _refusal(defaults: Config, name: str, value: object) -> str:
    """What the algorithm's settings say of one of them; "" if nothing."""
    if name in ("env", "evaluation_env") and isinstance(value, bool | int | float | list | tuple | Mapping):
        return f"{name} takes one environment, not {shown(value)}."
    try:
        defaults.replace({name: value})
    except ConfigError as error:
        return str(error)
    return ""


def _meant(defaults: Config, name: str, value: object) -> str:
    """What a value that does not fit may have been meant to be."""
    if isinstance(value, list | tuple) and value and not any(_refusal(defaults, name, one) for one in value):
        return f" To try each of them, write {name}: {{{GRID}: [...]}}."
    word = str(next(iter(value))) if isinstance(value, Mapping) and len(value) == 1 else ""
    return "".join(f" Did you mean {{{near}: [...]}}?" for near in suggest(canonical(word), WORDS, 1))


def read_block(marked: Marked, keys: Keys = ()) -> Block:
    """Take apart what lies at these keys of a file.

    Raises:
        ConfigError: something stands there twice, or a word has a value of the wrong type.
    """
    block = Block(marked, keys)
    words: dict[str, object] = {}
    for place, key, value in entries(marked.at(keys), keys):
        name = canonical(key)
        if (before := block.places.get(name)) is not None:
            first, second = (".".join(map(str, keys)) for keys in (before, place))
            raise marked.error(f"{name} stands here twice, as {first} and as {second}: give one of them.", place)
        block.places[name] = place
        if name in type_hints(Words) and "config" not in place[:-1]:
            words[name] = value
        else:
            block.settings[key] = value
            block.settings.sources[key] = [Source(marked.kind, marked.path, value)]
        for part in value if name == "stop" and isinstance(value, Mapping) else ():
            block.places[f"criterion '{SHORT.get(part, part)}'"] = (*place, part)
    with block.located():
        block.words = Words.from_dict(words)
    return block


def entries(values: Mapping[str, object], keys: Keys = ()) -> Iterator[tuple[Keys, str, object]]:
    """Yield place, name as written, and value of each word and setting: those beside `config`, those in it, the network's one by one."""
    for key, value in sorted(values.items(), key=lambda item: item[0] == "config"):
        if key in ("config", "model") and isinstance(value, Mapping) and not word_of(value):
            for place, inner, part in entries(value, (*keys, key)):
                yield place, inner if key == "config" else f"{key}.{inner}", part
        else:
            yield (*keys, key), key, value


# -- one run -------------------------------------------------------------------------------------------------------


def read_run(text: str | Path, *, option: str = "--config") -> RunRequest:
    """Read what a file, or JSON text, says of one run.

    Args:
        option: what it was given by, for messages.

    Raises:
        ConfigError: there is no such file, or it is none of settings; a key that makes several runs (these are for `-f`), or one
            that has a value of the wrong kind.
    """
    marked = _marked(str(text), option)
    if is_record(marked.values):
        return _recorded(marked)
    block = read_block(marked)
    several = [word for word in Words.several if getattr(block.words, word) not in (None, 1)]
    several += [name for key, value in block.settings.items() if makes_several(name := canonical(key), value)]
    with block.located():
        if several:
            file = "FILE" if marked.kind == "flag" else marked.path
            raise ConfigError(f"{several[0]} makes several runs: use -f {file}.")
    return block.request()


def makes_several(name: str, value: object) -> bool:
    """Whether a setting varies, or is an experiment with a name."""
    is_named = isinstance(value, Mapping) and bool({"run", "config", "stop"} & value.keys()) and name not in GROUPS
    return is_named or any(True for _ in specs(value)) or (name == "seed" and isinstance(value, list | tuple))


def read_values(text: str, option: str) -> dict[str, object]:
    """Read a mapping from JSON text or from a file, as it is written.

    Raises:
        ConfigError: `text` is neither JSON nor the name of a file with a mapping.
    """
    return _marked(text, option).values


def _marked(text: str, option: str) -> Marked:
    example = _EXAMPLES.get(option, '{"lr": 0.001}')
    takes = f"{option} takes JSON such as '{example}' or a YAML or JSON file"
    if file_of(text) is not None and text.strip(" @"):
        return read_marked(text.removeprefix("@"), f" {takes}.")
    values = parse_value(text)
    if not isinstance(values, dict):
        raise ConfigError(f"{takes}, not {shown(text)}.")
    return Marked(option, values, kind="flag")


def file_of(text: str) -> Path | None:
    """The file that an option's text names; None if it is JSON."""
    return None if text.lstrip().startswith(("{", "[")) else Path(text.removeprefix("@"))


def saved_options(values: Mapping[str, object]) -> dict[str, int]:
    """Those of OPTIONS that are among `values`, as far as they are what they should be."""
    given = {name: values.get(name) for name in OPTIONS}
    return {name: number for name, number in given.items() if type(number) is int and number >= OPTIONS[name]}


# -- params.json ---------------------------------------------------------------------------------------------------


def refuse_program(where: object, program: str, how: str) -> None:
    """Refuse a run whose collecting or learning a class of the user's has replaced, which settings do not say.

    Raises:
        ConfigError: names the class, and `how` it goes on.
    """
    if program and not program.startswith("raypid."):
        raise ConfigError(f"{where} was trained by {program}, which has its own run and update: {how}.")


def unsigned(values: Mapping[str, object]) -> dict[str, object]:
    """What a file says of a run at its beginning; of a record without what is no setting.

    Raises:
        ConfigError: it is of a run with a program of the user's.
    """
    refuse_program("The run", str(values.get(PROGRAM, "")), "build one in Python, with these settings")
    first = first_settings(values) if is_record(values) else dict(values)
    return {key: value for key, value in first.items() if key not in (SIGNATURE, PROGRAM)}


def _recorded(marked: Marked) -> RunRequest:
    """Take a run's params.json apart."""
    where, first = marked.path, unsigned(marked.values)
    words = {name: first.pop(name) for name in ("run", "stop", *OPTIONS) if name in first}
    notes = []
    if said := [described(change) for change in changes_of(marked.values) if change["key"] != "stop"]:
        notes.append(f"This repeats {where} from its beginning, without what was changed later: {listed(said, 3)}.")
    is_open = marked.kind == "file" and not words["stop"]
    if is_open and (steps := int(RunFolder(Path(where).parent, tolerant=True).last("timesteps_total", 0))):
        words["stop"] = {"timesteps_total": steps}
        notes.append(f"The run of {where} had no stop: this one ends where its results end, at {steps:,} steps.")
    with Block(marked, ()).located():
        request = Words.from_dict(words).request()
    found = replace(request, recorded=Given(first, "file", where), recorded_run=str(words["run"]), notes=tuple(notes))
    return found.from_source("file", where)


# -- for a run -----------------------------------------------------------------------------------------------------


def for_algorithm(file: RunRequest, name: str) -> RunRequest:
    """The same for the algorithm that will run. Of a record of another one only what differed from its defaults is taken over, and what
    `name` lacks is left out; the notes name it. So are settings that this version does not have."""
    cls: type[Config] = ALGORITHMS.get(name).Config
    for path in {sources[-1].detail for sources in file.settings.sources.values() if sources[-1].kind == "file"}:
        read_block(read_marked(path)).check(cls)
    if not file.recorded:
        return file
    kept, notes, before = file.recorded, list(file.notes), file.recorded_run
    if before is not None and before != name:
        theirs: type[Config] = ALGORITHMS.get(before).Config
        kept = kept.without(*[key for key, value in kept.items() if _is_default(theirs, key, value)])
    if lacks := [key for key in kept if canonical(key).partition(".")[0] not in type_hints(cls)]:
        notes.append(f"{name} has no {', '.join(f'{key} ({shown(kept[key])})' for key in lacks)}: left out.")
        kept = kept.without(*lacks)
    for key in [key for key, value in kept.items() if value is None and type_hints(cls).get(key) is float]:
        source = kept.sources_of(key)[-1]  # JSON has no infinity, and it was written as null
        kept = overlay(kept, Given({key: math.inf}, source.kind, source.detail))
    return replace(file, recorded=kept, notes=tuple(notes))


def read_runs(
    texts: Sequence[str | Path], run: str | None, *, trust: bool, given: Mapping[str, object], option: str = "--config"
) -> RunRequest:
    """Read what files or JSON texts say together of one run, the last above the others, for the algorithm `run`, or else the one that they name.

    Args:
        given: settings that will lie above it.

    Raises:
        ConfigError: as `read_run`.
        UntrustedError: see `check_trust`.
    """
    files = [read_run(text, option=option) for text in texts]
    for text, file in zip(texts, files, strict=True):
        named = {"algorithm": run} if run is not None and run != file.run else {}
        check_trust(text, trust=trust, given={**given, **named})
    whole = join(*files)
    name = run or whole.run
    return whole if name is None else for_algorithm(whole, name)


def _is_default(cls: type[Config], key: str, value: object) -> bool:
    """Whether a recorded value is the default of the algorithm that recorded it; a group if all of it is."""
    try:
        return bool(attrgetter(key)(cls().replace({key: value})) == attrgetter(key)(cls()))
    except ConfigError:
        return False


def check_trust(text: str | Path, *, trust: bool, given: Mapping[str, object]) -> None:
    """Check that what a file names may be imported: one in a run's folder must be signed by this user, or be trusted.

    Args:
        given: what the command or call says itself, `algorithm` among it; what these name, the user has named.

    Raises:
        UntrustedError: names the code, and what allows it.
    """
    path = file_of(str(text))
    if path is None or run_folder_of(path) is None:
        return
    values = read_marked(path).values
    names = {"algorithm" if key == "run" else canonical(key): value for _, key, value in entries(unsigned(values))}
    used = {key: value for key, value in names.items() if key not in map(canonical, given)}
    check_names(path, used, trusted=trust or has_signature("params.json", values), given=given)
