"""Settings that reach a stated return, by algorithm and environment: `--tuned` on the command line, `tuned=True` in Python.

They lie in tuned.json: algorithm, environment, settings. What they reached on seeds that chose nothing lies in tuned_results.json, which
`benchmarks/tuned.py` writes.
"""

from __future__ import annotations

import functools
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BY_ALGORITHM: dict[str, dict[str, dict[str, object]]] = json.loads(Path(__file__).with_suffix(".json").read_text())
TUNED = {(name, env): settings for name, envs in _BY_ALGORITHM.items() for env, settings in envs.items()}
"""(algorithm, environment) -> settings."""


@functools.cache
def _results() -> list[dict[str, Any]]:
    path = Path(__file__).with_name("tuned_results.json")
    return json.loads(path.read_text()) if path.exists() else []


@dataclass(frozen=True, slots=True)
class Record:
    """What an algorithm's tuned settings reached on an environment, on every seed."""

    algorithm: str
    goal: float
    """The return that they reached."""
    seconds: float
    """Median over the seeds, as are `steps`."""
    steps: float
    seeds: int


def records(env: str) -> list[Record]:
    """What is recorded of an environment: the algorithms whose tuned settings reached their goal on all seeds."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in _results():
        if row["env"] == env:
            rows.setdefault(row["algorithm"], []).append(row)
    return [
        Record(
            algorithm,
            min(row["threshold"] for row in found),
            statistics.median(row["seconds"] for row in found),
            statistics.median(row["steps"] for row in found),
            len(found),
        )
        for algorithm, found in rows.items()
        if all(row["solved"] for row in found)
    ]


def described(algorithm: str, env: str) -> str:
    """Say what the settings of an entry reached: the return, the median and worst time, how many of how many seeds."""
    rows = [row for row in _results() if (row["algorithm"], row["env"]) == (algorithm, env)]
    if not rows:
        return "not measured yet"
    solved = [row for row in rows if row["solved"]]
    seconds = [row["seconds"] for row in solved]
    goal, place = rows[0]["threshold"], " on Ray" if rows[0]["backend"] == "ray" else ""
    if not solved:
        return f"{goal:g} not reached: {max(row['return'] for row in rows):g} at best, {len(rows)} seeds"
    many = f"{len(solved)} of {len(rows)} seeds"
    if rows[0]["seed"] < 1000:
        return f"{goal:g} in {seconds[0]:,.0f} s (seed {rows[0]['seed']}, on which they were chosen)"
    return f"{goal:g} in {statistics.median(seconds):.1f} s, at worst {max(seconds):.1f} s{place} ({many})"
