"""What a file or a JSON text says of one run: its algorithm, settings, end and folder. A run's own params.json is such a file.

`--config`, `-f` and `config="FILE"` in Python read the same keys. An experiment has more (`raypid.sweep`): what makes several
runs is answered here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from raypid.errors import shown
from raypid.plugins.registry import ALGORITHMS
from raypid.plugins.trust import check_names
from raypid.settings.config import Config, ConfigError, Given, canonical, overlay, parse_value, type_hints
from raypid.settings.marked import check_file, read_marked
from raypid.settings.request import RunRequest, join
from raypid.settings.stops import read_stop
from raypid.storage.changes import changes_of, described, first_settings
from raypid.storage.ownership import SIGNATURE, has_signature, run_folder_of
from raypid.storage.run_folder import RunFolder, is_record

OPTIONS = {"checkpoint_interval": 0, "keep_checkpoints": 1, "final_episodes": 0}
"""What `raypid train` does besides training, as far as a file may say it -> the least value."""
PROGRAM = "program"
"""Key in params.json of the class whose own `run` and `update` trained (`raypid.DistributedAgent`)."""
RUN_WORDS = ("run", "stop", "config", "out", "tuned", *OPTIONS)
"""Keys beside the settings."""
SEVERAL_WORDS = ("resources", "num_samples", "repeat", "max_concurrent", "population", "local_dir")
"""Keys that only an experiment has, since they are about several runs."""
VARIES = (
    "grid_search", "choice", "uniform", "quniform", "loguniform", "qloguniform", "randint", "qrandint", "lograndint", "normal", "randn",
)  # fmt: skip
"""How a grid or a distribution begins: {"grid_search": [1, 4]}."""
_EXAMPLES = {"--stop": '{"time_total_s": 60}', "--env-config": '{"size": 8}'}
"""Options -> what they take; the others take settings."""
_SAVED_BESIDE = {
    "policy.json": "It describes a policy", "manifest.json": "It describes a checkpoint", "result.json": "It holds a run's results",
}  # fmt: skip


def read_run(text: str | Path, *, option: str = "--config") -> RunRequest:
    """Read what a file, or JSON text, says of one run.

    Args:
        option: what it was given by, for messages.

    Raises:
        ConfigError: there is no such file, or it is none of settings; a key that makes several runs (these are for `-f`), or one
            that has a value of the wrong kind.
    """
    where, values = _read(str(text), option)
    if is_record(values):
        return _recorded(where, values)
    return _written(where, values, option)


def read_values(text: str, option: str) -> dict[str, object]:
    """Read a mapping from JSON text or from a file, as it is written.

    Raises:
        ConfigError: `text` is neither JSON nor the name of a file with a mapping.
    """
    example = _EXAMPLES.get(option, '{"lr": 0.001}')
    if text.lstrip().startswith(("{", "[")):
        value = parse_value(text)
        if not isinstance(value, dict):
            kind = "not valid JSON" if isinstance(value, str) else "a list"
            raise ConfigError(f"{option} takes JSON such as '{example}' or a file; this is {kind}: {shown(text)}.")
        return value
    path = text.removeprefix("@")
    if not path.strip():
        raise ConfigError(f"{option} is empty: it takes JSON such as '{example}' or a YAML or JSON file.")
    try:
        check_file(path)
    except ConfigError as error:
        is_missing = str(error).startswith("There is no file")
        also = f" {option} takes JSON such as '{example}' or a YAML or JSON file." if is_missing else ""
        raise ConfigError(f"{error}{also}") from None
    return read_marked(path).values


def file_of(text: str) -> Path | None:
    """The file that an option's text names; None if it is JSON."""
    return None if text.lstrip().startswith(("{", "[")) else Path(text.removeprefix("@"))


def _read(text: str, option: str) -> tuple[str, dict[str, object]]:
    """The file's name ("" for JSON text), and what it holds."""
    path = file_of(text)
    if path is None:
        return "", read_values(text, option)
    if (what := _SAVED_BESIDE.get(path.name)) is not None and path.is_file():
        run = next((place for place in path.absolute().parents if (place / "params.json").is_file()), path.parent)
        run = Path(*run.parts[len(Path.cwd().parts) :]) if run.is_relative_to(Path.cwd()) else run
        raise ConfigError(
            f"{option} takes settings. {what}: {run / 'params.json'} repeats that run, resume={str(run)!r} goes on with it, and "
            f"init_from={str(run)!r} starts from its weights."
        )
    values = read_values(text, option)
    if values.keys() >= {"algorithm", "env", "settings"}:
        raise ConfigError(f"{path} holds what `raypid tune` has found: tuned={str(path)!r} takes it.")
    if values.keys() >= {"format", "trials"}:
        raise ConfigError(
            f"{path} is the plan of an experiment: `raypid train --resume {path.parent}` goes on with it."
        )
    return str(path), values


# -- files that people write ---------------------------------------------------------------------------------------


def _written(where: str, values: Mapping[str, object], option: str) -> RunRequest:
    """Take apart what somebody has written."""
    at, use = where or option, f"use -f {where or 'FILE'}"
    words: dict[str, Any] = {}
    settings: dict[str, object] = {}
    for key, value in values.items():
        word = canonical(key)
        if word in ("num_samples", "repeat") and value == 1:
            continue
        if word in SEVERAL_WORDS:
            raise ConfigError(f"{at}: {key} is for experiments, which have several runs: {use}.")
        if word in RUN_WORDS:
            words[word] = value
        else:
            settings[key] = value
    inner = words.pop("config", None)
    if inner is not None:
        if not isinstance(inner, Mapping) or not all(isinstance(key, str) for key in inner):
            raise ConfigError(f"{at}: config takes a mapping of settings such as {{lr: 0.001}}, not {shown(inner)}.")
        settings = _joined(at, settings, inner)
    _check_single(at, use, settings, words.get("run"))
    found = RunRequest(settings=Given(settings, "file" if where else "flag", at), **_checked(at, words))
    return found.from_source("file", at)


def saved_options(values: Mapping[str, object]) -> dict[str, int]:
    """Those of OPTIONS that are among `values`, as far as they are what they should be."""
    found: dict[str, int] = {}
    for word, least in OPTIONS.items():
        value = values.get(word)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if least <= value < 2**63 and value == int(value):
            found[word] = int(value)
    return found


def _joined(at: str, outside: Mapping[str, object], inside: Mapping[str, object]) -> dict[str, object]:
    """The settings beside `config` and those within it.

    Raises:
        ConfigError: one stands in both.
    """
    names = {canonical(key): key for key in outside}
    for key in inside:
        if canonical(key) in names:
            raise ConfigError(f"{at}: {key!r} stands both beside config and within it: give one of them.")
    return {**outside, **inside}


def _check_single(at: str, use: str, settings: Mapping[str, object], run: object) -> None:
    """Refuse grids, distributions, lists of seeds, and experiments with names."""
    varies = next((key for key, value in settings.items() if _varies(value)), None)
    if varies is not None or _varies(run):
        raise ConfigError(f"{at}: {varies or 'run'} has several values here, which makes several runs: {use}.")
    for key, value in settings.items():
        if canonical(key) == "seed" and isinstance(value, list | tuple):
            raise ConfigError(f"{at}: several seeds make several runs: {use}.")
        if isinstance(value, Mapping) and {"run", "config", "stop"} & value.keys() and canonical(key) not in _GROUPS:
            raise ConfigError(f"{at}: {key!r} is an experiment with a name: {use}.")


_GROUPS = ("model", "env_config", "agent_config", "custom_args")


def _varies(value: object) -> bool:
    return any(len(part) == 1 and next(iter(part)) in VARIES for part in _mappings(value))


def _mappings(value: object) -> Iterator[Mapping[object, object]]:
    if isinstance(value, Mapping):
        yield value
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _mappings(part)


def _checked(at: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """The words beside the settings, as fields of a RunRequest."""
    run, stop, tuned, out = (words.get(word) for word in ("run", "stop", "tuned", "out"))
    for word, value, kind, example in (
        ("run", run, str, "the name of an algorithm such as PPO"),
        ("tuned", tuned, bool | str, "true, false, or the name of settings that `raypid tune` has saved"),
        ("out", out, str, "the name of a folder"),
    ):
        if value is not None and (not isinstance(value, kind) or value == ""):
            raise ConfigError(f"{at}: {word} takes {example}, not {shown(value)}.")
    options = saved_options(words)
    for word, least in OPTIONS.items():
        if words.get(word) is not None and word not in options:
            raise ConfigError(f"{at}: {word} takes a whole number of at least {least}, not {shown(words[word])}.")
    return {
        "run": run if run is None else ALGORITHMS.canonical(run),
        "stop": None if stop is None else _stop_in(at, stop),
        "tuned": tuned or False,
        "out": None if out is None else Path(out),
        "options": options,
    }


def _stop_in(at: str, stop: object) -> dict[str, object]:
    try:
        return read_stop(stop)
    except ConfigError as error:
        raise ConfigError(f"{at}: {error}") from None


# -- params.json ---------------------------------------------------------------------------------------------------


def _recorded(where: str, params: Mapping[str, object]) -> RunRequest:
    """Take a run's params.json apart."""
    first = first_settings(params)
    first.pop(SIGNATURE, None)
    first.pop(PROGRAM, None)
    run, stop = first.pop("run"), first.pop("stop")
    options = {word: first.pop(word) for word in OPTIONS if word in first}
    notes = [*_not_repeated(where, params)]
    if not stop and where and (steps := RunFolder(Path(where).parent, tolerant=True).steps_reached):
        stop = {"timesteps_total": steps}
        notes.append(f"The run of {where} had no stop: this one ends where its results end, at {steps:,} steps.")
    checked = _checked(where, {"run": run, "stop": stop, **options})
    found = RunRequest(recorded=Given(first, "file", where), recorded_run=str(run), notes=tuple(notes), **checked)
    return found.from_source("file", where)


def _not_repeated(where: str, params: Mapping[str, object]) -> Iterator[str]:
    """Say which changes of a run are not made again."""
    said = [described(change) for change in changes_of(params) if change["key"] != "stop"]
    if said:
        more = f" and {len(said) - 3} more" if len(said) > 3 else ""
        yield f"This repeats {where} from its beginning, without what was changed later: {', '.join(said[:3])}{more}."


# -- for a run -----------------------------------------------------------------------------------------------------


def for_algorithm(file: RunRequest, name: str) -> RunRequest:
    """The same for the algorithm that will run. Of a record of another one only what differed from its defaults is taken over, and what
    `name` lacks is left out; the notes name it. So are settings that this version does not have."""
    cls: type[Config] = ALGORITHMS.get(name).Config
    _check_written(file.settings, cls)
    if not file.recorded:
        return file
    kept, notes, before = file.recorded, list(file.notes), file.recorded_run
    if before is not None and before != name:
        theirs: type[Config] = ALGORITHMS.get(before).Config
        kept = kept.without(*[key for key, value in kept.items() if _is_default(theirs, key, value)])
        if lacks := [key for key in kept if _has(theirs, key) and not _has(cls, key)]:
            notes.append(f"{name} has no {_listed(kept, lacks)}, which {before} had: left out.")
            kept = kept.without(*lacks)
    if unknown := [key for key in kept if not _has(cls, key)]:
        notes.append(f"This version of raypid has no {_listed(kept, unknown)}: left out.")
        kept = kept.without(*unknown)
    for key in [key for key, value in kept.items() if value is None and type_hints(cls).get(key) is float]:
        source = kept.sources_of(key)[-1]  # JSON has no infinity, and it was written as null
        kept = overlay(kept, Given({key: math.inf}, source.kind, source.detail))
    return replace(file, recorded=kept, notes=tuple(notes))


def _check_written(settings: Given, cls: type[Config]) -> None:
    """Check what files say of each setting, where its line can be named.

    Raises:
        ConfigError: the message begins with file and line.
    """
    for key in settings:
        source = settings.sources_of(key)[-1]
        if source.kind != "file":
            continue
        try:
            cls().replace({key: source.value})
        except ConfigError as error:
            marked, parts = read_marked(source.detail), (*key.split("."),)
            places = ((key,), parts, ("config", key), ("config", *parts))
            line = marked.line(next((place for place in places if place in marked.lines), parts))
            raise ConfigError(f"{source.detail}:{line}: {error}") from None


def _listed(values: Mapping[str, object], keys: Sequence[str]) -> str:
    return ", ".join(f"{key} ({shown(values[key])})" for key in keys)


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


def _has(cls: type[Config], key: str) -> bool:
    return canonical(key).partition(".")[0] in type_hints(cls)


def _is_default(cls: type[Config], key: str, value: object) -> bool:
    """Whether a recorded value is the default of the algorithm that recorded it; a group if all of it is."""
    if not _has(cls, key):
        return False
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
    signed = has_signature("params.json", values)
    first = first_settings(values) if is_record(values) else dict(values)
    first.pop(SIGNATURE, None)
    inner = first.pop("config", None)
    named = {**first, **(inner if isinstance(inner, Mapping) else {})}
    if "run" in named:
        named["algorithm"] = named.pop("run")
    used = {key: value for key, value in named.items() if canonical(key) not in map(canonical, given)}
    check_names(path, used, trusted=trust or signed, given=given)
