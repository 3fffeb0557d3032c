"""The search space of an algorithm: what stands beside its defaults (`raypid.settings.ranges`), narrowed or widened by the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from raypid.errors import shown
from raypid.plugins.registry import ALGORITHMS, did_you_mean
from raypid.settings.config import Config, ConfigError, ModelConfig, canonical, coerce, overlay, type_hints
from raypid.settings.ranges import Choices, Range, Scale, Space, beside_default

SearchSpace: TypeAlias = dict[str, Space]
"""Setting ("lr", "model.hidden") -> the values to try."""
FORMS: dict[str, Scale | None] = {
    "between": None,
    "uniform": "linear",
    "loguniform": "log",
    "powers_of_2": "powers of 2",
    "randint": "linear",
    "lograndint": "log",
}
"""How a user gives two ends -> the scale between them; None keeps the scale that stands beside the default."""
_OPEN = ("randint", "lograndint")
"""Forms of Ray Tune's, whose upper end is never drawn."""
_LISTS = ("choice", "grid_search")
_EXAMPLE = '{"lr": {"loguniform": [1e-4, 1e-2]}, "batch_size": {"choice": [64, 256]}, "gamma": 0.99}'


def search_space(
    run: str,
    settings: Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
    only: Collection[str] = (),
) -> SearchSpace:
    """The settings of an algorithm that are worth trying, and their values.

    What has no effect for the algorithm, or beside `settings`, is left out; so is what `settings` fixes.

    Args:
        run: name of the algorithm.
        settings: what every trial has.
        overrides: setting -> `{"between": [low, high]}` (on the scale of the default's range), `{"uniform": [low, high]}`,
            `{"loguniform": [low, high]}`, `{"powers_of_2": [low, high]}`, `{"randint": [low, high + 1]}`, `{"choice": [...]}`, or a value
            that is then fixed.
        only: names of settings to search in; none: all.

    Raises:
        ConfigError: a setting that does not exist, values that it cannot have, or nothing left to search in.
    """
    ranges = {canonical(name): value for name, value in (overrides or {}).items() if isinstance(value, Mapping)}
    given = {**dotted(settings or {}), **fixed_by(overrides or {})}
    config: Config = ALGORITHMS.get(run).Config().replace(given)
    space = {name: range_ for name, range_ in _beside_defaults(config) if name not in given}
    space |= {name: _override(config, name, value, space.get(name)) for name, value in ranges.items()}
    idle = config.idle()
    for name in sorted(ranges.keys() & idle.keys()):
        raise ConfigError(f"{name} has no effect {idle[name]}: there is nothing to search.")
    space = {name: range_ for name, range_ in space.items() if name not in idle}
    wanted = [canonical(name) for name in only] or list(space)
    for name in wanted:
        if name in given:
            raise ConfigError(f"{name} is given for every trial, so it cannot be searched: leave one of the two out.")
        if name not in space:
            raise ConfigError(f"{run} has no range for {name!r}.{did_you_mean(name, space)}")
    if not space:
        raise ConfigError(f"Nothing is left to search in: every setting of {run} that has a range is fixed.")
    return {name: range_ for name, range_ in space.items() if name in wanted}


def fixed_by(overrides: Mapping[str, object]) -> dict[str, object]:
    """Return the overrides of a search space that are single values: what every trial has."""
    return {canonical(name): value for name, value in overrides.items() if not isinstance(value, Mapping)}


def ranges_of(cls: type[Config]) -> SearchSpace:
    """All ranges that stand beside the defaults of a Config, without those of settings that have no effect."""
    found = dict(_beside_defaults(cls()))
    return {name: range_ for name, range_ in found.items() if name not in cls.no_effect}


def sample(space: SearchSpace, rng: np.random.Generator) -> dict[str, object]:
    """Draw a value for each setting."""
    return {name: range_.at(float(rng.random())) for name, range_ in space.items()}


def at(space: SearchSpace, units: Mapping[str, float]) -> dict[str, object]:
    """The values at places in the unit interval, of those settings that have one."""
    return {name: space[name].at(unit) for name, unit in units.items()}


def units(space: SearchSpace, values: Mapping[str, object]) -> dict[str, float]:
    """The places of values in the unit interval, of those settings that have a range."""
    return {name: range_.unit(values[name]) for name, range_ in space.items() if name in values}


def nested(values: Mapping[str, object]) -> dict[str, object]:
    """Settings with dotted names as a Config takes and files hold them: {"model.hidden": x} as {"model": {"hidden": x}}."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    model = {name.removeprefix("model."): value for name, value in plain.items() if name.startswith("model.")}
    flat = {name: value for name, value in plain.items() if not name.startswith("model.")}
    return {**flat, "model": model} if model else flat


def dotted(settings: Mapping[str, object]) -> dict[str, object]:
    """The inverse of `nested`, by our names of the settings."""
    return {canonical(name): value for name, value in overlay({}, settings).items()}


def as_text(space: SearchSpace) -> str:
    """A line for each setting: its name and the values to try."""
    width = max(map(len, space), default=0)
    return "\n".join(f"{name:{width}}  {range_}" for name, range_ in space.items())


def _beside_defaults(config: Config) -> Iterator[tuple[str, Space]]:
    """Yield what stands beside the defaults. Choices that lack the default have it first."""
    model = beside_default(type(config), "model")
    narrowed = model if isinstance(model, Mapping) else {}
    for prefix, settings, own in (("", config, {}), ("model.", config.model, narrowed)):
        for field in dataclasses.fields(settings):
            space = own.get(field.name) or beside_default(type(settings), field.name)
            if isinstance(space, Choices) and (default := getattr(settings, field.name)) not in space:
                space = Choices((default, *space.options))
            if isinstance(space, (Range, Choices)):
                yield prefix + field.name, space


def _override(config: Config, name: str, value: Mapping[str, object], usual: Space | None) -> Space:
    """The values of a setting that a user wants to be tried.

    Raises:
        ConfigError: there is no such setting, or says what does not fit.
    """
    hints = type_hints(type(config)) | {f"model.{part}": hint for part, hint in type_hints(ModelConfig).items()}
    if name not in hints or name == "model":
        raise ConfigError(f"Unknown setting {name!r} in the search space.{did_you_mean(name, hints)}")
    form, given = next(iter(value.items()), ("", None))
    if len(value) != 1 or form not in (*FORMS, *_LISTS):
        near = did_you_mean(str(form), [*FORMS, *_LISTS])
        raise ConfigError(f"{name}: {shown(dict(value))} is none of the forms.{near} Example: {_EXAMPLE}.")
    if not isinstance(given, (list, tuple)) or not given or (form not in _LISTS and len(given) != 2):
        what = "a list of values" if form in _LISTS else "two numbers, the lowest and the highest"
        raise ConfigError(f"{name}: {form} takes {what}, not {shown(given)}. Example: {_EXAMPLE}.")
    held = [coerce(name, v, hints[name]) for v in given]
    if form in _LISTS:
        return Choices(tuple(held))
    low, high = held
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)) or isinstance(low, bool):
        raise ConfigError(f"{name} takes no numbers between {shown(given[0])} and {shown(given[1])}: use choice.")
    if form in _OPEN:
        high -= 1
    scale = FORMS[form] or (usual.scale if isinstance(usual, Range) else "linear")
    if not low < high:
        raise ConfigError(f"{name}: the lowest value comes first, not {low:g} before {high:g}.")
    if low <= 0 and scale in ("log", "powers of 2"):
        raise ConfigError(f"{name}: a logarithmic range begins above 0, not at {low:g}. Use uniform.")
    if high >= 1 and scale == "log of 1 - x":
        raise ConfigError(f"{name}: a range of distances from 1 ends below 1, not at {high:g}. Use uniform.")
    return Range(low, high, scale, isinstance(low, int))
