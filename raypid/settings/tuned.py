"""Settings that reach a stated return, by algorithm and environment: `--tuned` on the command line, `tuned=True` in Python.

They lie in tuned.json: algorithm, environment, settings. What they reached on seeds that chose nothing lies in tuned_results.json, which
`benchmarks/tuned.py` writes.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BY_ALGORITHM: dict[str, dict[str, dict[str, object]]] = json.loads(Path(__file__).with_suffix(".json").read_text())
TUNED = {(name, env): settings for name, envs in _BY_ALGORITHM.items() for env, settings in envs.items()}
"""(algorithm, environment) -> settings."""
FIRST_SEED = 1000
"""Seeds from here on have chosen no settings: records are measured with them."""


@functools.cache
def _results() -> list[dict[str, Any]]:
    path = Path(__file__).with_name("tuned_results.json")
    return json.loads(path.read_text()) if path.exists() else []


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of a number over seeds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        if self.low == self.high:
            return shown(self.median)
        return f"{shown(self.median)} ({shown(self.low)} to {shown(self.high)})"


def shown(value: float) -> str:
    """A return, a time or a number of steps with three digits, or whole above 100."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Record:
    """What an algorithm's tuned settings reached on an environment, measured with several seeds."""

    algorithm: str
    env: str
    goal: float
    """The return to reach."""
    backend: str
    seeds: tuple[int, ...]
    solved: int
    """Number of seeds that reached the goal."""
    returns: Spread
    seconds: Spread | None
    """Seconds of training until the goal was reached: of the CPU, on Ray of the clock. Of the seeds that reached it; None if none did."""
    steps: Spread
    versions: Mapping[str, tuple[str, ...]]
    """Package -> its version, or versions if rows were measured with several; empty if they were not recorded."""


def record(algorithm: str, env: str) -> Record | None:
    """What is recorded of an entry; None if it was not measured yet."""
    rows = [row for row in _results() if (row["algorithm"], row["env"]) == (algorithm, env)]
    if not rows:
        return None
    solved = [row for row in rows if row["solved"]]
    versions: dict[str, tuple[str, ...]] = {}
    for package, version in (item for row in rows for item in row.get("versions", {}).items()):
        versions[package] = tuple(dict.fromkeys((*versions.get(package, ()), version)))
    return Record(
        algorithm,
        env,
        goal=rows[0]["threshold"],
        backend=rows[0]["backend"],
        seeds=tuple(row["seed"] for row in rows),
        solved=len(solved),
        returns=Spread.of([row["return"] for row in rows]),
        seconds=Spread.of([row["seconds"] for row in solved]) if solved else None,
        steps=Spread.of([row["steps"] for row in solved or rows]),
        versions=versions,
    )


def records(env: str) -> list[Record]:
    """What is recorded of an environment: the algorithms whose tuned settings reached their goal on all seeds."""
    found = (record(algorithm, env) for algorithm in dict.fromkeys(row["algorithm"] for row in _results()))
    return [one for one in found if one is not None and one.solved == len(one.seeds)]


HEADINGS = ("goal", "return", "seconds", "seeds")
"""Of the columns in which an entry's record is shown."""


def cells(algorithm: str, env: str) -> tuple[str, str, str, str]:
    """An entry's record in the columns of `HEADINGS`. Return and seconds are the median, and in brackets the range, over the seeds."""
    found = record(algorithm, env)
    if found is None:
        return "", "not measured yet", "", ""
    seeds = f"{found.solved} of {len(found.seeds)}{' on Ray' if found.backend == 'ray' else ''}"
    if min(found.seeds) < FIRST_SEED:
        seeds = f"{found.solved}, tuned on it" if len(found.seeds) == 1 else f"{seeds}, tuned on them"
    return shown(found.goal), str(found.returns), "never" if found.seconds is None else str(found.seconds), seeds
