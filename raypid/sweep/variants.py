"""From settings with grids and distributions to concrete settings.

A grid is {"grid_search": [1, 4]}, a distribution is {"loguniform": [1e-4, 1e-2]}: plain data, so a file writes them as Python does. They may
lie at any depth of the settings. The functions that make them have the names, and their arguments the meaning, of Ray Tune's.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from raypid.errors import ConfigError, shown

GRID = "grid_search"
CHOICE = "choice"
Spec: TypeAlias = "dict[str, list[object]]"
"""A grid or a distribution: one word and its values."""
Path: TypeAlias = "tuple[str | int, ...]"
"""Where a value lies in the settings."""


@runtime_checkable
class Domain(Protocol):
    """A distribution as an object, such as ray.tune.loguniform(1e-4, 1e-2)."""

    def sample(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination of the values of all grids, with one draw of each distribution."""

    settings: dict[str, object]
    varied: dict[str, object]
    """What differs between variants, by dotted name ("model.hidden") -> its value in this one."""


# -- what users write ------------------------------------------------------------------------------------------------


def grid_search(values: Sequence[object]) -> Spec:
    """Try each of the values."""
    return {GRID: list(values)}


def uniform(low: float, high: float) -> Spec:
    """Draw a number between low and high."""
    return {"uniform": [low, high]}


def quniform(low: float, high: float, q: float) -> Spec:
    """Draw a multiple of q between low and high, both included."""
    return {"quniform": [low, high, q]}


def loguniform(low: float, high: float) -> Spec:
    """Draw a number between low and high, uniformly in its logarithm."""
    return {"loguniform": [low, high]}


def qloguniform(low: float, high: float, q: float) -> Spec:
    """Draw a multiple of q between low and high, both included, uniformly in its logarithm."""
    return {"qloguniform": [low, high, q]}


def randint(low: int, high: int) -> Spec:
    """Draw a whole number from low to high - 1: high itself is never drawn."""
    return {"randint": [low, high]}


def qrandint(low: int, high: int, q: int = 1) -> Spec:
    """Draw a multiple of q from low to high, both included."""
    return {"qrandint": [low, high, q]}


def lograndint(low: int, high: int) -> Spec:
    """Draw a whole number from low to high - 1, uniformly in its logarithm."""
    return {"lograndint": [low, high]}


def normal(mean: float = 0.0, deviation: float = 1.0) -> Spec:
    """Draw from a normal distribution. Ray Tune calls it randn, which is understood too."""
    return {"normal": [mean, deviation]}


def choice(values: Sequence[object]) -> Spec:
    """Draw one of the values."""
    return {CHOICE: list(values)}


# -- drawing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kind:
    """A distribution of numbers."""

    arguments: str
    """Their names, for messages."""
    draw: Callable[..., float]
    whole: bool = False
    """Arguments and draws are whole numbers."""
    positive: bool = False
    """Low must be above 0, as for logarithms."""
    ordered: bool = True
    """The arguments begin with a low and a high end."""


def _short(value: float, scale: float) -> float:
    """A value that is read, typed and named easily: 4 significant digits of it, or of `scale`, whichever is finer."""
    least = min(abs(value), scale)
    return round(value, 3 - math.floor(math.log10(least))) if least > 0 else value


def _short_within(draw: Callable[..., float], rng: np.random.Generator, low: float, high: float) -> float:
    return min(max(_short(draw(rng, low, high), high - low), low), high)


def _normal(rng: np.random.Generator, mean: float, deviation: float) -> float:
    return _short(float(rng.normal(mean, deviation)), deviation)


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    return float(rng.uniform(low, high))


def _log_between(rng: np.random.Generator, low: float, high: float) -> float:
    # exp(log(x)) may leave the bounds by a rounding error
    return float(np.clip(math.exp(rng.uniform(math.log(low), math.log(high))), low, high))


def _multiple(draw: Callable[..., float], rng: np.random.Generator, low: float, high: float, q: float) -> float:
    steps = round(draw(rng, low, high) / q)
    steps = min(max(steps, math.ceil(low / q - 1e-9)), math.floor(high / q + 1e-9))
    return float(f"{steps * q:.12g}")  # 0.3, not 0.30000000000000004


def _whole_multiple(rng: np.random.Generator, low: int, high: int, q: int) -> int:
    return q * int(rng.integers(-(-low // q), high // q + 1))


def _log_whole(rng: np.random.Generator, low: int, high: int) -> int:
    return min(int(_log_between(rng, low, high)), high - 1)


_NORMAL = _Kind("mean, deviation", _normal, ordered=False)
KINDS: dict[str, _Kind] = {
    "uniform": _Kind("low, high", functools.partial(_short_within, _between)),
    "quniform": _Kind("low, high, q", functools.partial(_multiple, _between)),
    "loguniform": _Kind("low, high", functools.partial(_short_within, _log_between), positive=True),
    "qloguniform": _Kind("low, high, q", functools.partial(_multiple, _log_between), positive=True),
    "randint": _Kind("low, high", lambda rng, low, high: int(rng.integers(low, high)), whole=True),
    "qrandint": _Kind("low, high, q", _whole_multiple, whole=True),
    "lograndint": _Kind("low, high", _log_whole, whole=True, positive=True),
    "normal": _NORMAL,
    "randn": _NORMAL,
}
"""Distributions of numbers; `choice` is beside them."""
WORDS = (GRID, CHOICE, *KINDS)


def word_of(value: object) -> str:
    """What a value of the settings is: "grid_search", the name of a distribution, or "" for a plain value."""
    if isinstance(value, Mapping):
        return next((word for word in value if word in WORDS), "") if len(value) == 1 else ""
    is_domain = isinstance(value, Domain) and not isinstance(value, type) and not hasattr(value, "contains")
    return "sample" if is_domain else ""  # a space of Gymnasium has `sample` too, and `contains`


def specs(value: object, path: Path = ()) -> Iterator[tuple[Path, str, object]]:
    """Yield (path, word, value) of all grids and distributions, the outer before those within them."""
    word = word_of(value)
    if word:
        yield path, word, value
    if word in ("", GRID, CHOICE):
        for key, part in _parts(value):
            yield from specs(part, path if word else (*path, key))


def _parts(value: object) -> Iterator[tuple[str | int, object]]:
    if isinstance(value, Mapping) and (word := word_of(value)):
        value = list(value[word]) if isinstance(value[word], list | tuple) else []  # check_spec says what is wrong
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)


def check_spec(word: str, value: object) -> None:
    """Check a grid or a distribution.

    Raises:
        ConfigError: it has no values, or arguments that do not fit.
    """
    if not isinstance(value, Mapping):
        return
    values: object = value[word]
    if word in (GRID, CHOICE):
        if not isinstance(values, list | tuple):
            raise ConfigError(f"{word} takes a list of values such as [1, 4], not {shown(values)}.")
        if not values:
            raise ConfigError(f"{word} has no values: give it at least one.")
        if word == GRID and (twice := _twice(values)):
            raise ConfigError(f"{word} has {shown(twice[0])} twice, and the two runs would be the same.")
        if word == CHOICE and any(inner == GRID for part in values for _, inner, _ in specs(part)):
            raise ConfigError("A choice cannot hold a grid_search: what is not drawn would not be tried.")
        return
    kind = KINDS[word]
    names = kind.arguments.split(", ")
    numbers = _numbers(values, whole=kind.whole)
    if len(numbers) != len(names):
        what = "whole numbers" if kind.whole else "numbers"
        raise ConfigError(f"{word} takes the {what} [{kind.arguments}], not {shown(values)}.")
    if not kind.ordered:
        if numbers[1] < 0:
            raise ConfigError(f"{word} takes a deviation of at least 0, not {numbers[1]:g}.")
        return
    low, high, q = (*numbers, 0)[:3] if len(numbers) == 2 else numbers
    if low >= high:
        raise ConfigError(f"{word} takes a low end below its high end, not {low:g} and {high:g}.")
    if kind.positive and low <= 0:
        raise ConfigError(f"{word} takes a low end above 0, not {low:g}.")
    if len(numbers) == 3 and not (0 < q and math.ceil(low / q - 1e-9) <= math.floor(high / q + 1e-9)):
        raise ConfigError(f"{word} takes a q above 0 with a multiple between {low:g} and {high:g}, not {q:g}.")


def _twice(values: Sequence[object]) -> list[object]:
    """The values that stand there before, too. Distributions count as different, since each is drawn anew."""
    seen: set[tuple[bool, str]] = set()
    found = []
    for value in values:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        key = (number, repr(value).removesuffix(".0") if number else repr(value))  # 1 is 1.0, but not True
        if key in seen and not is_drawn(value):
            found.append(value)
        seen.add(key)
    return found


def _numbers(values: object, *, whole: bool) -> list[float]:
    """The values as numbers; none if one of them is not a finite (whole) number."""
    numbers: list[float] = []
    for value in values if isinstance(values, list | tuple) else ():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**62:
            return []
        if whole and value != int(value):
            return []
        numbers.append(int(value) if whole else float(value))
    return numbers


def is_drawn(settings: object) -> bool:
    """Whether some setting has a distribution, so that two draws differ."""
    return any(word != GRID for _, word, _ in specs(settings))


def num_combinations(value: object) -> int:
    """How many combinations the grids in a value have."""
    if word_of(value) == GRID:
        return sum(num_combinations(part) for _, part in _parts(value))
    return 1 if word_of(value) else math.prod(num_combinations(part) for _, part in _parts(value))


def variants(settings: Mapping[str, object], num_samples: int, rng: np.random.Generator) -> Iterator[Variant]:
    """Yield all combinations of the grids, `num_samples` times; each time and in each combination distributions are drawn anew.

    The same generator gives the same draws, also beyond a smaller `num_samples`. The last grid varies fastest.
    """
    for _ in range(num_samples):
        for tree, tried in _combinations(settings, ()):
            paths = list(tried)
            drawn = _draw(tree, (), rng, paths)
            assert isinstance(drawn, dict)
            outer = [path for path in paths if not any(path[:n] in paths for n in range(len(path)))]
            yield Variant(drawn, {".".join(map(str, path)): _at(drawn, path) for path in dict.fromkeys(outer)})


def draw(spec: Spec, rng: np.random.Generator) -> object:
    """A value drawn from a distribution."""
    return _draw(spec, (), rng, [])


def _combinations(value: object, path: Path) -> Iterator[tuple[object, list[Path]]]:
    """Yield (value without grids, where these were)."""
    word = word_of(value)
    if word == GRID:
        for _, part in _parts(value):
            for inner, more in _combinations(part, path):
                yield inner, [path, *more]
    elif word or not isinstance(value, Mapping | list):
        yield value, []
    else:
        keys = [key for key, _ in _parts(value)]
        for choices in itertools.product(*(list(_combinations(part, (*path, key))) for key, part in _parts(value))):
            parts = [part for part, _ in choices]
            yield (
                (dict(zip(keys, parts)) if isinstance(value, Mapping) else parts),
                [p for _, more in choices for p in more],
            )


def _draw(value: object, path: Path, rng: np.random.Generator, paths: list[Path]) -> object:
    """The value with a draw in place of each distribution, whose path is added to `paths`."""
    word = word_of(value)
    if not word and isinstance(value, Mapping):
        return {key: _draw(part, (*path, key), rng, paths) for key, part in value.items()}
    if not word:
        return (
            [_draw(part, (*path, i), rng, paths) for i, part in enumerate(value)] if isinstance(value, list) else value
        )
    paths.append(path)
    if not isinstance(value, Mapping):
        return _sample(value, rng)
    values: list[object] = list(value[word])
    if word == CHOICE:
        return _draw(values[int(rng.integers(len(values)))], path, rng, [])
    return KINDS[word].draw(rng, *_numbers(values, whole=KINDS[word].whole))


def _at(value: object, path: Path) -> object:
    for key in path:
        assert isinstance(value, dict | list)
        value = value[key]  # type: ignore[index]
    return value


def _sample(domain: object, rng: np.random.Generator) -> object:
    """A draw of an object that knows how; Ray Tune's take a generator."""
    assert isinstance(domain, Domain)
    seeded = "random_state" in inspect.signature(domain.sample).parameters
    drawn: object = domain.sample(random_state=rng) if seeded else domain.sample()  # type: ignore[call-arg]
    return drawn.item() if isinstance(drawn, np.generic) else drawn
