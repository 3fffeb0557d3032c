"""Which values of a setting are worth trying: ranges that stand beside the defaults, in the metadata of a Config's fields.

`raypid tune` draws from them. Every range maps to the unit interval and back, so that whoever proposes values or asks what
mattered sees numbers in [0, 1] alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, cast

T = TypeVar("T")
Scale: TypeAlias = Literal["linear", "log", "log of 1 - x", "powers of 2"]
_SCALES: dict[Scale, tuple[Callable[[float], float], str]] = {
    "linear": (float, ""),
    "log": (math.log, " (log scale)"),
    "log of 1 - x": (lambda value: math.log(1 - value), " (log scale of 1 - x)"),
    "powers of 2": (math.log2, " (powers of 2)"),
}
"""Where a value lies on a scale, and how that is said."""
SEARCH = "search"
"""Key of a field's metadata."""
ALSO_SHARE = 0.2
"""Share of the unit interval, at its beginning, that stands for the value beside a range (`Range.also`)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    scale: Scale = "linear"
    """On which scale values are drawn evenly. A discount lies near 1, so that its distance from 1 is what counts: log of 1 - x."""
    whole: bool = False
    also: tuple[object, ...] = ()
    """At most one value beside the numbers, such as 0 beside a logarithmic range, or None for "off"."""

    def at(self, unit: float) -> object:
        """The value at a place in the unit interval; three significant digits where it is not whole."""
        if self.also:
            if unit < ALSO_SHARE:
                return self.also[0]
            unit = (unit - ALSO_SHARE) / (1 - ALSO_SHARE)
        start, end = self._ends()
        place = start + min(max(unit, 0.0), 1.0) * (end - start)
        if self.scale == "powers of 2":
            return int(2 ** min(math.floor(place), math.floor(end) - 1))
        value = place if self.scale == "linear" else math.exp(place)
        if self.whole:
            return int(min(max(round(value), self.low), self.high))
        if self.scale == "log of 1 - x":
            return min(max(round(1 - _three_digits(value), 12), self.low), self.high)
        return min(max(_three_digits(value), self.low), self.high)

    def unit(self, value: object) -> float:
        """The place of a value in the unit interval; that of the nearest end where it lies outside."""
        if value in self.also:
            return ALSO_SHARE / 2
        if not isinstance(value, (int, float)):
            return 0.5
        start, end = self._ends()
        inside = min(max(value, self.low), self.high)
        place = _SCALES[self.scale][0](inside) + (0.5 if self.scale == "powers of 2" else 0.0)
        unit = (place - start) / (end - start) if end != start else 0.5
        return ALSO_SHARE + (1 - ALSO_SHARE) * unit if self.also else unit

    def _ends(self) -> tuple[float, float]:
        """What 0 and 1 of the unit interval are on this scale; a whole number has half a unit on either side."""
        if self.scale == "powers of 2":
            return math.log2(self.low), math.log2(self.high) + 1
        half, (on_scale, _) = 0.5 if self.whole else 0.0, _SCALES[self.scale]
        return on_scale(self.low - half), on_scale(self.high + half)

    def __contains__(self, value: object) -> bool:
        if value in self.also:
            return True
        return isinstance(value, (int, float)) and not isinstance(value, bool) and self.low <= value <= self.high

    def __str__(self) -> str:
        also = f"; also {', '.join(map(_text, self.also))}" if self.also else ""
        return f"{_number(self.low)} to {_number(self.high)}{_SCALES[self.scale][1]}{also}"


@dataclasses.dataclass(frozen=True, slots=True)
class Choices:
    """A few values, in the order in which they are best compared."""

    options: tuple[object, ...]

    def at(self, unit: float) -> object:
        """The value at a place in the unit interval."""
        return self.options[min(int(max(unit, 0.0) * len(self.options)), len(self.options) - 1)]

    def unit(self, value: object) -> float:
        """The place of a value in the unit interval; that of the middle option if it is not among them."""
        same = tuple(value) if isinstance(value, list) else value
        index = self.options.index(same) if same in self.options else len(self.options) // 2
        return (index + 0.5) / len(self.options)

    def __contains__(self, value: object) -> bool:
        return (tuple(value) if isinstance(value, list) else value) in self.options

    def __str__(self) -> str:
        return " or ".join(_text(option) for option in self.options)


Space: TypeAlias = "Range | Choices"


def tunable(
    default: T,
    low: float | None = None,
    high: float | None = None,
    scale: Scale = "linear",
    *,
    also: Sequence[T] = (),
    choices: Sequence[T] = (),
) -> T:
    """Declare a field of a Config with its default and the values that `raypid tune` tries.

    `lr: float = tunable(3e-4, 1e-5, 1e-2, "log")`. To a type checker it is the default value.

    Args:
        default: default of the field.
        low: smallest value; with an int, values are whole numbers.
        high: largest value, included.
        scale: scale on which values are drawn evenly: linear, log, log of 1 - x (for values near 1, such as a discount), or powers of 2.
        also: at most one value besides these numbers, such as 0, or None for "off".
        choices: the values to try, in place of `low` and `high`.
    """
    space: Space
    if choices:
        space = Choices(tuple(choices))
    else:
        assert low is not None and high is not None and low < high
        space = Range(low, high, scale, isinstance(low, int), tuple(also))
    return dataclasses.field(default=default, metadata={SEARCH: space})


def of_model(**spaces: Space) -> dict[str, Mapping[str, Space]]:
    """The metadata of a field that holds a ModelConfig: what an algorithm tries there in place of ModelConfig's own ranges."""
    return {SEARCH: spaces}


def beside_default(cls: type[Any], name: str) -> Space | Mapping[str, Space] | None:
    """What stands beside the default of a field; of the bases' fields where `cls` gives only another default. None: nothing."""
    for base in cls.__mro__:
        field = vars(base).get("__dataclass_fields__", {}).get(name)
        if field is not None and SEARCH in field.metadata:
            return cast("Space | Mapping[str, Space]", field.metadata[SEARCH])
    return None


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def _number(value: float) -> str:
    """A number in its shortest form: 1e-5, 0.01, 4096."""
    text = f"{value:.6g}" if abs(value) >= 0.001 or not value else f"{value:.0e}"
    return text.replace("e-0", "e-").replace("e+0", "e")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return _number(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value).replace("null", "none")
