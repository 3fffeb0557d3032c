"""From settings with grids and distributions to concrete settings.

A grid is {"grid_search": [1, 4]}, a distribution is {"loguniform": [1e-4, 1e-2]}: plain data, so a file writes them as Python does. They may
lie at any depth of the settings. The functions that make them have the names, and their arguments the meaning, of Ray Tune's.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from raypid.errors import ConfigError, shown

if TYPE_CHECKING:
    import numpy as np

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

    arguments: tuple[str, ...]
    """Their names, for messages."""
    draw: Callable[..., float]
    whole: bool = False
    """Arguments and draws are whole numbers."""
    positive: bool = False
    """Low must be above 0, as for logarithms."""

    @property
    def ordered(self) -> bool:
        """Whether the arguments begin with a low and a high end."""
        return self.arguments[0] == "low"

    @property
    def form(self) -> str:
        """What it takes, in words."""
        rule = f"{'0 < ' * self.positive}low < high" if self.ordered else "deviation at least 0"
        multiple = " and a multiple of q > 0 between them" if "q" in self.arguments else ""
        return f"the {'whole ' * self.whole}numbers [{', '.join(self.arguments)}], {rule}{multiple}"

    def takes(self, numbers: Sequence[float]) -> bool:
        """Whether these numbers fit."""
        if len(numbers) != len(self.arguments):
            return False
        if not self.ordered:
            return numbers[1] >= 0
        low, high, *q = numbers
        has_multiple = all(0 < x and math.ceil(low / x - 1e-9) <= math.floor(high / x + 1e-9) for x in q)
        return low < high and (low > 0 or not self.positive) and has_multiple


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
    return min(max(math.exp(rng.uniform(math.log(low), math.log(high))), low), high)


def _multiple(draw: Callable[..., float], rng: np.random.Generator, low: float, high: float, q: float) -> float:
    steps = round(draw(rng, low, high) / q)
    steps = min(max(steps, math.ceil(low / q - 1e-9)), math.floor(high / q + 1e-9))
    return float(f"{steps * q:.12g}")  # 0.3, not 0.30000000000000004


def _whole_multiple(rng: np.random.Generator, low: int, high: int, q: int) -> int:
    return q * int(rng.integers(-(-low // q), high // q + 1))


def _log_whole(rng: np.random.Generator, low: int, high: int) -> int:
    return min(int(_log_between(rng, low, high)), high - 1)


_ENDS, _STEPS = ("low", "high"), ("low", "high", "q")
KINDS: dict[str, _Kind] = {
    "uniform": _Kind(_ENDS, functools.partial(_short_within, _between)),
    "quniform": _Kind(_STEPS, functools.partial(_multiple, _between)),
    "loguniform": _Kind(_ENDS, functools.partial(_short_within, _log_between), positive=True),
    "qloguniform": _Kind(_STEPS, functools.partial(_multiple, _log_between), positive=True),
    "randint": _Kind(_ENDS, lambda rng, low, high: int(rng.integers(low, high)), whole=True),
    "qrandint": _Kind(_STEPS, _whole_multiple, whole=True),
    "lograndint": _Kind(_ENDS, _log_whole, whole=True, positive=True),
    **dict.fromkeys(("normal", "randn"), _Kind(("mean", "deviation"), _normal)),
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
    if word not in (GRID, CHOICE):
        kind = KINDS[word]
        if not kind.takes(_numbers(values, whole=kind.whole)):
            raise ConfigError(f"{word} takes {kind.form}, not {shown(values)}.")
        return
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"{word} takes a list of values such as [1, 4], not {shown(values)}.")
    texts = [repr(one).removesuffix(".0") for one in values if not is_drawn(one)]  # 1 is 1.0, but not True
    if word == GRID and (twice := [text for text, number in Counter(texts).items() if number > 1]):
        raise ConfigError(f"{word} has {twice[0]} twice, and the two runs would be the same.")
    if word == CHOICE and any(inner == GRID for part in values for _, inner, _ in specs(part)):
        raise ConfigError("A choice cannot hold a grid_search: what is not drawn would not be tried.")


def _numbers(values: object, *, whole: bool) -> list[float]:
    """The values as numbers; none if one of them is not a finite (whole) number."""
    given = values if isinstance(values, list | tuple) else ()
    numbers = [x for x in given if isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < 2**62]
    if len(numbers) < len(given) or (whole and any(x != int(x) for x in numbers)):
        return []
    return [int(x) if whole else float(x) for x in numbers]


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
        for tree, tried in _combinations(dict(settings), ()):
            made, drawn = _drawn(tree, rng)
            paths = dict.fromkeys([*tried, *drawn])
            outer = [path for path in paths if not any(path[:n] in paths for n in range(len(path)))]
            yield Variant(made, {".".join(map(str, path)): functools.reduce(getitem, path, made) for path in outer})


def draw(spec: Spec, rng: np.random.Generator) -> object:
    """A value drawn from a distribution."""
    return _drawn(spec, rng)[0]


def _combinations(tree: Any, tried: tuple[Path, ...]) -> Iterator[tuple[Any, tuple[Path, ...]]]:
    """Yield (settings without grids, where these were) for each combination of their values."""
    grid = next(((path, value) for path, word, value in specs(tree) if word == GRID), None)
    if grid is None:
        yield tree, tried
        return
    path, value = grid
    for _, part in _parts(value):
        yield from _combinations(_replaced(tree, path, part), (*tried, path))


def _drawn(tree: Any, rng: np.random.Generator) -> tuple[Any, list[Path]]:
    """The settings with a draw in place of each distribution, and where these were."""
    paths: list[Path] = []
    while (found := next(specs(tree), None)) is not None:
        path, word, value = found
        tree = _replaced(tree, path, _sample(word, value, rng))
        paths.append(path)
    return tree, paths


def _sample(word: str, value: Any, rng: np.random.Generator) -> object:
    """A draw from a distribution, or from an object that knows how; Ray Tune's take a generator."""
    if word == CHOICE:
        return value[word][int(rng.integers(len(value[word])))]
    if word in KINDS:
        return KINDS[word].draw(rng, *_numbers(value[word], whole=KINDS[word].whole))
    seeded = "random_state" in inspect.signature(value.sample).parameters
    drawn = value.sample(random_state=rng) if seeded else value.sample()
    return drawn.item() if getattr(drawn, "ndim", None) == 0 else drawn


def _replaced(tree: Any, path: Path, value: object) -> Any:
    """A copy of nested settings that has `value` at a path."""
    if not path:
        return value
    copied: Any = list(tree) if isinstance(tree, list) else dict(tree)
    copied[path[0]] = _replaced(tree[path[0]], path[1:], value)
    return copied
