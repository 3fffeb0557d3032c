"""What a run's folder says of the run: finished, under way or dead, of any version, whole or damaged. Reads only."""

from __future__ import annotations

import json
import math
import socket
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from raypid import checkpoint
from raypid.changes import CHANGES, read_changes
from raypid.errors import UserError
from raypid.neighbours import nothing_at
from raypid.outputs import ERRORS
from raypid.reporting.ending import LOCK, is_held, read_end_by_error
from raypid.reporting.logger import PARAMS, RESULTS
from raypid.reporting.runs import why_without_results
from raypid.types import Array

DIVERGED = "diverged"


@dataclass(slots=True)
class Record:
    """A run's folder, read once."""

    folder: Path
    params: dict[str, object] = field(default_factory=dict)
    columns: dict[str, Array] = field(default_factory=dict)
    """result.json by key, a float for each iteration: NaN where the iteration has no such key, infinite where its value is null."""
    num_rows: int = 0
    error: str = ""
    """What ended the run, if its end stands in errors.txt."""
    error_iteration: int = 0
    is_locked: bool = False
    """Whether a running process holds the folder."""
    lock_left: bool = False
    """Whether the file of the lock is there. A run that ends by itself removes it."""
    damage: list[str] = field(default_factory=list)
    """What could not be read, and why."""

    def column(self, key: str) -> Array:
        """Values of a key, [num_rows]; all NaN if no iteration has it."""
        return self.columns.get(key, np.full(self.num_rows, np.nan))

    def finite(self, key: str) -> Array:
        """The finite values of a key, oldest first."""
        values = self.column(key)
        return values[np.isfinite(values)]

    def last(self, key: str) -> float:
        """The newest finite value of a key; 0 if there is none."""
        values = self.finite(key)
        return float(values[-1]) if len(values) else 0.0

    def total(self, key: str) -> float:
        """The sum of a key over the run."""
        return float(self.finite(key).sum())

    def counted(self, key: str) -> float:
        """How far a count rose that starts at 0 with each process of the run, as those under lost/ do."""
        values = self.finite(key)
        return float(np.where(np.diff(values, prepend=0.0) < 0, values, np.diff(values, prepend=0.0)).sum())

    def setting(self, name: str) -> float | None:
        """A setting that is a number; None if it is not known or not a number."""
        value = _number(self.params.get(name))
        return value if math.isfinite(value) else None

    @property
    def stop(self) -> dict[str, float]:
        """The stop criteria."""
        stop = self.params.get("stop")
        goals = {key: _number(value) for key, value in stop.items()} if isinstance(stop, dict) else {}
        return {key: goal for key, goal in goals.items() if math.isfinite(goal)}

    @property
    def ran_here(self) -> bool:
        """Whether this machine wrote the results: the events' files are named after their machine."""
        return any(path.name.endswith(f".{socket.gethostname()}") for path in self.folder.glob("events.out.tfevents.*"))


def read_record(folder: Path) -> Record:
    """Read a run's folder.

    Raises:
        UserError: there is no such folder, or nothing in it that a run writes.
    """
    if not folder.exists():
        raise UserError(nothing_at(folder))
    if not folder.is_dir():
        raise UserError(f"{folder} is a file: give the folder of a run.")
    if not any((folder / name).exists() for name in (PARAMS, RESULTS, ERRORS)) and (why := why_without_results(folder)):
        raise UserError(why)
    if not any((folder / name).exists() for name in (PARAMS, RESULTS, ERRORS, "checkpoints")):
        raise UserError(f"{folder} holds no run: none of {PARAMS}, {RESULTS}, {ERRORS} and checkpoints is there.")
    record = Record(folder)
    try:
        record.params = _read_params(folder / PARAMS, record.damage)
        _read_results(folder / RESULTS, record)
        record.error_iteration, record.error = read_end_by_error(folder / ERRORS)
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from error
    record.lock_left = (folder / LOCK).exists()
    record.is_locked = record.lock_left and is_held(folder / LOCK)
    return record


def _read_params(path: Path, damage: list[str]) -> dict[str, object]:
    if not path.is_file():
        damage.append(f"{PARAMS} is missing")
        return {}
    try:
        params = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        params = None
    if not isinstance(params, dict):
        damage.append(f"{PARAMS} is not a JSON object")
        return {}
    try:
        read_changes(params.get(CHANGES))
    except ValueError as error:
        damage.append(f"in {PARAMS}, {error}")
        del params[CHANGES]
    return params


def _read_results(path: Path, record: Record) -> None:
    """Read result.json into columns. Lines that are no JSON object are left out and named, a last line without its end is not."""
    if not path.is_file():
        record.damage.append(f"{RESULTS} is missing")
        return
    columns: dict[str, array[float]] = {}
    bad: list[int] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line) if line.endswith(b"\n") else {}
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                bad.append(number)
            elif row:
                _append(columns, row, record.num_rows)
                record.num_rows += 1
    for values in columns.values():
        values.extend([math.nan] * (record.num_rows - len(values)))
    record.columns = {key: np.array(values) for key, values in columns.items()}
    if bad:
        record.damage.append(f"{RESULTS} has {len(bad)} lines that are no JSON object, the first is line {bad[0]}")


def _append(columns: dict[str, array[float]], row: dict[str, object], num_before: int) -> None:
    for key, value in row.items():
        if value is None or isinstance(value, (int, float)):
            column = columns.setdefault(key, array("d"))
            if len(column) < num_before:
                column.extend([math.nan] * (num_before - len(column)))
            number = _number(value)
            column.append(math.inf if math.isnan(number) else number)


def _number(value: object) -> float:
    """A number of JSON as a float: infinite if no float holds it, NaN if it is none."""
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.inf


@dataclass(slots=True)
class Saved:
    """The newest checkpoint that training can go on from."""

    path: Path
    iteration: int
    timesteps: int
    gone_back: str = ""
    """What in it is not of the newest state, since learners or replay buffers were gone, in sentences."""


def newest_sound(folder: Path) -> tuple[Saved | None, list[str]]:
    """Return the newest checkpoint that is intact and has finite weights, and what is wrong with newer ones."""
    wrong: list[str] = []
    for path in reversed(checkpoint.list_checkpoints(folder / "checkpoints")):
        try:
            manifest = checkpoint.read_manifest(checkpoint.find(path))
            counters, gone_back = manifest.get("counters", {}), manifest.get("gone_back", "")
            if not has_finite_weights(path / "policy"):
                wrong.append(f"{path.name} has weights that are not finite")
                continue
            return Saved(path, int(counters["iteration"]), int(counters["timesteps_total"]), str(gone_back)), wrong
        except Exception as error:  # of others' folders: one that is damaged must not hide the others
            wrong.append(f"{path.name}: {error}")
    return None, wrong


def has_finite_weights(policy: Path) -> bool:
    """Whether all numbers of a saved policy are finite. Imports nothing that the folder names.

    Raises:
        UserError: it is missing or damaged.
    """
    _, arrays, _ = checkpoint.read_policy(policy)
    return all(bool(np.isfinite(x).all()) for x in arrays.values() if x.dtype.kind == "f")
