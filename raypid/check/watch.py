"""What is seen of observations, rewards and times, step by step, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from raypid.envs.observation_checks import ObservationError, ObservationLayout, ObservationPart, first_place
from raypid.nn.catalog import PLAIN, bound_of, is_picture
from raypid.spaces import Space, is_nested, members
from raypid.types import Array

MANY = 20_000
"""Elements of a part from which only every tenth observation is counted."""
SHOWN_PARTS = 30


class Observations:
    """What the observations of an environment have been, part by part."""

    def __init__(self, space: Space) -> None:
        self.layout = ObservationLayout(space)
        self.parts = [Part(part) for part in self.layout.parts]
        self.num = 0

    def look(self, obs: Any, step: int) -> list[tuple[str, str]]:
        """Count an observation; `step` 0 is that of a reset. Returns what raypid would refuse: (kind, text)."""
        self.num += 1
        found: list[tuple[str, str]] = []
        for part in self.parts:
            try:
                value = part.part.reach(obs) if part.part.keys else obs
                found += part.look(value, of_reset=step == 0, num=self.num)
            except ObservationError as error:
                found.append((f"misfit {part.part.path}", str(error)))
        return found

    def facts(self) -> dict[str, object]:
        """The range of each part, and how often it left its bounds."""
        return {"count": self.num, "parts": [part.facts() for part in self.parts[:SHOWN_PARTS]]}


class Part:
    """One array of the observation."""

    def __init__(self, part: ObservationPart) -> None:
        self.part = part
        shape = part.shape
        self.low, self.high = np.full(shape, np.inf), np.full(shape, -np.inf)
        self.sum, self.squares = np.zeros(shape), np.zeros(shape)
        self.num = self.num_outside = self.num_infinite = 0
        self.given: set[str] = set()
        """The dtypes that came."""
        self.is_refused = False
        """A reset left its bounds, which is a problem by itself."""
        self.outside = ""
        """The first element beyond its bounds, in words."""

    def look(self, value: object, *, of_reset: bool, num: int) -> list[tuple[str, str]]:
        """Count a value; returns what is wrong with it."""
        part = self.part
        array = part.fit(value, part.shape)
        self.given.add(str(array.dtype) if isinstance(value, (np.ndarray, np.generic)) else type(value).__name__)
        if array.size > MANY and num % 10 != 1:
            return []
        if part.is_float and not np.isfinite(array).all():
            self.num_infinite += 1
            _, place, at = first_place(~np.isfinite(array[None]))
            return [(f"finite {part.path}", f"{part.label} is not finite: {array[place]}{at}.")]
        bad = part.beyond(array)
        found = self._beyond(array, bad, of_reset=of_reset) if bad.any() else []
        np.minimum(self.low, array, out=self.low)
        np.maximum(self.high, array, out=self.high)
        self.sum += array
        self.squares += np.square(array, dtype=float)
        self.num += 1
        return found

    def _beyond(self, array: Array, bad: Array, *, of_reset: bool) -> list[tuple[str, str]]:
        part, (_, place, at) = self.part, first_place(bad[None])
        bounds = f"[{part.low[place]:.6g}, {part.high[place]:.6g}]"
        text = f"{part.label} is {array[place]:.6g}{at}, outside {bounds}"
        if not part.is_box:
            return [(f"outside {part.path}", f"{text}: its space is {words(part.space)}.")]
        if of_reset:
            self.is_refused = True
            return [(f"outside {part.path}", f"{text}. Declare the bounds that hold, or infinite ones.")]
        self.num_outside += 1
        if not self.is_refused:
            self.outside = self.outside or text
        return []

    @property
    def is_picture(self) -> bool:
        """Whether training takes it for a picture."""
        return is_picture(self.part.leaf, self.high[None] if self.num else None)

    def facts(self) -> dict[str, object]:
        """Its range, per element where there are few."""
        part, seen = self.part, self.num > 0
        variance = self.squares / max(1, self.num) - np.square(self.sum / max(1, self.num))
        deviation = np.sqrt(np.maximum(0, variance))
        return {
            "path": part.path, "space": words(part.space), "shape": list(part.shape), "dtype": str(part.dtype),
            "picture": self.is_picture, "symbols": is_picture(part.leaf) and not self.is_picture,
            "normalized": not self.is_picture and bound_of(part.leaf) > PLAIN,
            "given_dtypes": sorted(self.given), "size": int(np.prod(part.shape)),
            "min": float(self.low.min()) if seen and self.low.size else None,
            "max": float(self.high.max()) if seen and self.low.size else None,
            "std_min": float(deviation.min()) if seen and self.low.size else None,
            "std_max": float(deviation.max()) if seen and self.low.size else None,
            "constant_elements": int((self.low == self.high).sum()) if seen else 0,
            "infinite_share": self.num_infinite / max(1, self.num + self.num_infinite),
            "outside_share": self.num_outside / self.num if seen else 0.0, "outside": self.outside,
        }  # fmt: skip


def reward_facts(values: Sequence[float], returns: Sequence[float]) -> dict[str, object]:
    """The range of rewards, and that of the returns of whole episodes."""
    return {
        "min": min(values, default=None), "max": max(values, default=None),
        "mean": float(np.mean(values)) if values else None,
        "nonzero_share": float(np.count_nonzero(values)) / len(values) if values else None,
        "return_min": min(returns, default=None), "return_max": max(returns, default=None),
        "return_mean": float(np.mean(returns)) if returns else None,
    }  # fmt: skip


def quantiles(seconds: Sequence[float]) -> dict[str, float | int | None]:
    """Mean, median, 5th and 95th percentile and the longest of times, in seconds. The first call, which warms up, is left out."""
    usual = seconds[1:] or seconds
    if not usual:
        return {"calls": 0, "mean_s": None, "median_s": None, "p5_s": None, "p95_s": None, "max_s": None}
    p5, median, p95 = np.percentile(usual, (5, 50, 95)).tolist()
    mean = float(np.mean(usual))
    return {"calls": len(seconds), "mean_s": mean, "median_s": median, "p5_s": p5, "p95_s": p95, "max_s": max(usual)}


def words(space: Space) -> str:
    """A space in few words."""
    if isinstance(space, gymnasium.spaces.Box):
        return f"Box{space.shape} {space.dtype}, {_bounds(space)}"
    if is_nested(space):
        inner = [f"{key}: {words(part)}" for key, part in members(space)]
        return f"{type(space).__name__}({'; '.join(inner)})"
    text = str(space)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _bounds(space: gymnasium.spaces.Box) -> str:
    if not space.low.size:
        return "empty"
    low, high = (f"{b.flat[0]:.4g}" if (b == b.flat[0]).all() else "each its own" for b in (space.low, space.high))
    return "bounds differ" if "each its own" in (low, high) else f"{low} to {high}"


def unbounded_words(space: gymnasium.spaces.Box) -> str:
    """Say which elements of a Box have no bound, or only one."""
    no_low, no_high = ~np.isfinite(space.low), ~np.isfinite(space.high)
    num, size = int((no_low | no_high).sum()), space.low.size
    which = "bound" if (no_low & no_high).any() else "lower bound" if no_low.any() and not no_high.any() else (
        "upper bound" if no_high.any() and not no_low.any() else "bound on one side"
    )  # fmt: skip
    if num == size:
        return f"{words(space)} has no {which}{'s' if size > 1 and which != 'bound on one side' else ''}"
    return f"{num} of {size} elements {'has' if num == 1 else 'have'} no {which}"
