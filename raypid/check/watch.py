"""What is seen of observations, rewards and times, step by step, in numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raypid.envs.observation_checks import ObservationError, ObservationPart
from raypid.errors import shorten
from raypid.nn.catalog import PLAIN, bound_of, is_picture
from raypid.spaces import Space
from raypid.types import Array

MANY = 20_000
"""Elements of a part from which only every tenth observation is counted."""


class ObservedPart:
    """What one array of the observation has been."""

    def __init__(self, part: ObservationPart) -> None:
        self.part = part
        shape = part.shape
        self.low, self.high = np.full(shape, np.inf), np.full(shape, -np.inf)
        self.sum, self.squares = np.zeros(shape), np.zeros(shape)
        self.num_looks = self.num = self.num_outside = self.num_infinite = 0
        self.dtypes: set[str] = set()
        """The dtypes that came."""
        self.is_refused = False
        """A reset left its bounds, which is a problem by itself."""
        self.outside = ""
        """The first element beyond its bounds, in words."""

    def look(self, obs: object, *, of_reset: bool) -> tuple[str, str] | None:
        """Count an observation; returns what raypid would refuse: (kind, text)."""
        part = self.part
        self.num_looks += 1
        try:
            value = part.reach(obs)
            array = part.fit(value, part.shape)
            self.dtypes.add(str(array.dtype) if isinstance(value, (np.ndarray, np.generic)) else type(value).__name__)
            if array.size > MANY and self.num_looks % 10 != 1:
                return None
            self.num_infinite += part.is_float and not np.isfinite(array).all()
            part.check(array[None])
        except ObservationError as error:
            return f"misfit {part.path}", str(error)
        self.low, self.high = np.minimum(self.low, array), np.maximum(self.high, array)
        self.sum += array
        self.squares += np.square(array, dtype=float)
        self.num += 1
        beyond = part.beyond_bounds(array[None])
        if beyond and of_reset:
            self.is_refused = True
            return f"bounds {part.path}", f"{beyond[1]}. Declare the bounds that hold, or infinite ones."
        if beyond:
            self.num_outside += 1
            self.outside = self.outside or ("" if self.is_refused else beyond[1])
        return None

    @property
    def is_picture(self) -> bool:
        """Whether training takes it for a picture."""
        return is_picture(self.part.leaf, self.high[None] if self.num else None)

    def facts(self) -> dict[str, object]:
        """Its range, per element where there are few."""
        part, num = self.part, max(1, self.num)
        deviation = np.sqrt(np.maximum(0, self.squares / num - np.square(self.sum / num)))
        extremes = {"min": self.low.min, "max": self.high.max, "std_min": deviation.min, "std_max": deviation.max}
        is_seen = self.num > 0 and self.low.size > 0
        return {
            "path": part.path, "space": words(part.space), "shape": list(part.shape), "dtype": str(part.dtype),
            "picture": self.is_picture, "symbols": is_picture(part.leaf) and not self.is_picture,
            "normalized": not self.is_picture and bound_of(part.leaf) > PLAIN,
            "given_dtypes": sorted(self.dtypes), "size": self.low.size,
            **{name: float(extreme()) if is_seen else None for name, extreme in extremes.items()},
            "constant_elements": int((self.low == self.high).sum()),
            "infinite_share": self.num_infinite / max(1, self.num + self.num_infinite),
            "outside_share": self.num_outside / num, "outside": self.outside,
        }  # fmt: skip


def spread(values: Sequence[float], prefix: str = "") -> dict[str, float | None]:
    """The smallest, the largest and the mean of some numbers, such as `length_min`, `length_max` and `length_mean`; None if there are none."""
    mean = float(np.mean(values)) if values else None
    return {f"{prefix}min": min(values, default=None), f"{prefix}max": max(values, default=None), f"{prefix}mean": mean}


def quantiles(seconds: Array) -> dict[str, float | None]:
    """Mean, median, 5th and 95th percentile and the longest of times [N], in seconds."""
    names = ("mean_s", "median_s", "p5_s", "p95_s", "max_s")
    if not seconds.size:
        return dict.fromkeys(names)
    return dict(zip(names, [float(seconds.mean()), *np.percentile(seconds, (50, 5, 95, 100)).tolist()]))


def words(space: Space) -> str:
    """A space as Gymnasium writes it, without the end of a long one."""
    return shorten(str(space), 80)
