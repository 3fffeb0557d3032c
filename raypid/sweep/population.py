"""Populations: trials that train side by side, of which the worst go on from the best with other settings.

Population-based training (Jaderberg et al. 2017, arXiv:1711.09846): every `interval` environment steps the members of the lowest
quantile take over weights, optimizer, normalisers and replay of members of the highest (exploit), and their settings, each of
which is then drawn anew or multiplied by a factor (explore).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from raypid.settings.config import ConfigError, Settings, check_values
from raypid.settings.variants import CHOICE, KINDS, Spec, draw

FIXED = (
    "env",
    "env_config",
    "model",
    "vectorizer",
    "frame_stack",
    "normalize_observations",
    "agent",
    "agent_config",
    "seed",
)
"""Settings that a run cannot change while it goes on, or that say what is learnt."""


@dataclass(kw_only=True, slots=True)
class Population(Settings):
    """How a population evolves."""

    interval: int = 0
    """Environment steps of each member between two rounds."""
    perturb: dict[str, Spec] = field(default_factory=dict)
    """The settings that change -> the distribution that they were drawn from."""
    quantile: float = 0.25
    """The part of the population that is replaced by the best part of this size; at least one member."""
    resample: float = 0.25
    """Probability with which a setting is drawn anew."""
    factors: tuple[float, ...] = (0.8, 1.25)
    """One of these two multiplies a setting that is not drawn anew."""

    ranges: ClassVar[Mapping[str, tuple[str, ...]]] = {"be at least 1": ("interval",), "lie in [0, 1]": ("resample",)}

    def explored(self, settings: Mapping[str, object], rng: np.random.Generator) -> dict[str, object]:
        """The settings of a better member, changed."""
        changed = {name: self._changed(name, settings.get(name), rng) for name in self.perturb}
        return {**settings, **changed}

    def _changed(self, name: str, value: object, rng: np.random.Generator) -> object:
        ((word, arguments),) = self.perturb[name].items()
        if value is None or rng.random() < self.resample:
            return draw(self.perturb[name], rng)
        if word == CHOICE:
            at = arguments.index(value) if value in arguments else int(rng.integers(len(arguments)))
            return arguments[min(max(at + (1 if rng.random() < 0.5 else -1), 0), len(arguments) - 1)]
        return _moved(word, arguments, value, self.factors[int(rng.integers(2))])


def _moved(word: str, arguments: list[object], value: object, factor: float) -> object:
    """A number times a factor, within its distribution; one that lies near 1 moves by its distance from 1."""
    assert isinstance(value, int | float)
    whole = KINDS[word].whole
    if not KINDS[word].ordered:
        return value * factor
    low, high = (float(x) for x in arguments[:2] if isinstance(x, int | float))
    if word in ("randint", "lograndint"):  # the high end is never drawn
        high -= 1
    near_one = 0.5 <= low and high <= 1 and not whole
    moved = 1 - (1 - value) * factor if near_one else value * factor
    if whole and round(moved) == value:
        moved = value + (1 if factor > 1 else -1)
    moved = min(max(moved, low), high)
    return round(moved) if whole else moved


def check_population(population: Population, members: int) -> None:
    """Check what the parts of a population must have in common.

    Raises:
        ConfigError: too few members, a setting that cannot change, or numbers that do not fit.
    """
    check_values(population, "population.")
    p, fixed = population, [name for name in population.perturb if name.partition(".")[0] in FIXED]
    problems = {
        f"A population has at least 2 members, not {members}: set num_samples, or repeat, to 4 or more.": members < 2,
        f"{', '.join(fixed)} cannot change while a run goes on: give one value, or a grid_search without a population.": fixed,
        "A population changes the settings that have a distribution in config, such as lr: {loguniform: [1e-5, 1e-2]}, and none has one.":
            not p.perturb,
        f"population.quantile lies above 0 and at most at 0.5, not at {p.quantile:g}.": not 0 < p.quantile <= 0.5,
        f"population.factors are two numbers above 0, not {list(p.factors)}.": len(p.factors) != 2 or not all(0 < x < 100 for x in p.factors),
    }  # fmt: skip
    for problem, is_there in problems.items():
        if is_there:
            raise ConfigError(problem)
