"""The trials of a search: what each ran, how it ended, how good it was. A file holds one line for each that has ended."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from raypid.errors import UserError
from raypid.storage.outputs import AppendFile
from raypid.storage.plain_data import read_json
from raypid.sweep.halving import LATE

TRIALS = "trials.jsonl"
Kind: TypeAlias = Literal["search", "race", "found", "defaults"]
State: TypeAlias = Literal["running", "finished", "goal", "stopped", "cut", "failed"]
BY_SETTINGS = ("user", "diverged", "slow")
"""Failures that speak against the settings of a trial. Others are the environment's, or the machine's."""
Curve: TypeAlias = Sequence[tuple[float, float]]
"""(seconds of training, mean return of an evaluation), in order of time."""


@dataclasses.dataclass(kw_only=True)
class SearchTrial:
    """A run of a search."""

    number: int
    kind: Kind
    """search: settings are tried; race: the best again with other seeds; found, defaults: the best and the defaults on fresh seeds, at the
    end."""
    candidate: int
    """Number of the trial in which these settings were first tried."""
    seed: int
    settings: dict[str, Any]
    """Those of the search space, by their dotted names."""
    units: dict[str, float]
    """Their places in the unit intervals of their ranges."""
    folder: str
    state: State = "running"
    baseline: float | None = None
    """Mean return before training."""
    curve: Curve = ()
    seconds: float = 0.0
    """Of training."""
    timesteps: int = 0
    wall_s: float = 0.0
    """Seconds of everything from its order to its end; 0 if it was killed."""
    first_s: float | None = None
    """Seconds of training when it had learned for a whole iteration (of replay: as long as its setting says); None: never."""
    scores: list[float] = dataclasses.field(default_factory=list)
    """Those at the rungs that it reached."""
    message: str = ""
    """What was wrong with one that failed."""
    failure: str = ""
    """What has failed: user (raypid refuses the settings), diverged, slow; or what says nothing about the settings: error, died."""
    ended_at: float = 0.0
    """Seconds of the search when it ended."""

    @property
    def score(self) -> float:
        """That at the last rung that it reached; -inf: none."""
        return self.scores[-1] if self.scores else -math.inf

    @property
    def last_return(self) -> float:
        """The newest evaluation."""
        return self.curve[-1][1] if self.curve else math.nan


def mean_return(curve: Curve, seconds: float, baseline: float, goal: float | None = None) -> float:
    """The score of a trial: the mean over its first `seconds` of training of the return that its policy had.

    That is what a user gets who wants the most return soon: of two settings that end equally high the faster has the higher score, and one
    that is slow at the start, or makes steps slow, must make up for it by the end. Returns count up to the `goal`, and a trial that has
    reached it stands there for the rest, so that with a goal the score tells who reached it sooner. Between evaluations it is
    interpolated, from the return before training, `baseline`; after the last one it stays. Evaluations that came long after these
    `seconds` (LATE) say nothing of them and do not count. -inf without a baseline.
    """
    most = math.inf if goal is None else goal
    if not math.isfinite(baseline):
        return -math.inf
    points = [(0.0, baseline), *(point for point in curve if point[0] <= LATE * seconds)]
    times, returns = np.minimum(np.array(points), [math.inf, most]).T
    early = times < seconds
    at, height = np.append(times[early], seconds), np.append(returns[early], np.interp(seconds, times, returns))
    return float(np.diff(at) @ (height[1:] + height[:-1])) / 2 / seconds


class TrialLog:
    """Writes trials as they end; what was written survives the process.

    Raises:
        Unwritten: the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        self._file = AppendFile(folder / TRIALS)

    def add(self, trial: SearchTrial) -> None:
        plain = {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in vars(trial).items()}
        self._file.append(json.dumps(plain).encode() + b"\n")


def read_trials(folder: Path) -> list[SearchTrial]:
    """The trials of a search that have ended. A line that a killed process left unfinished is cut off.

    Raises:
        UserError: a line is not a trial's.
    """
    path = folder / TRIALS
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        path.write_bytes(whole)
    trials = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            values = read_json(line)
            assert isinstance(values, dict)
            curve = [(float(t), float(r)) for t, r in values.pop("curve")]
            trials.append(SearchTrial(**values, curve=curve))
        except (ValueError, TypeError, KeyError, AssertionError) as error:
            raise UserError(f"{path}, line {number}, is no trial: {error}.") from None
    return trials
