"""The files that a run writes while it trains: params.json, result.json, progress.csv and TensorBoard events.

result.json is the record: one JSON object per line, each written in one piece, one for an iteration or, in a long run, for several
(`raypid.report.thinning`). The other files are made from the same numbers; progress.csv is rebuilt from result.json when its
columns change or a run is resumed.
"""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from raypid.errors import UserError
from raypid.plugins.modules import to_json
from raypid.report.thinning import Thinning, Value
from raypid.storage.neighbours import nothing_at, refuse_file
from raypid.storage.outputs import AppendFile, Unwritten, explained, write_whole
from raypid.storage.ownership import with_signature
from raypid.storage.run_folder import PARAMS, RESULTS, Row, RunFolder, number, read_rows

PROGRESS = "progress.csv"
EXPLOITS = "exploits.json"
"""A file of a member of a population: what it has taken over from others."""
CHECK_SECONDS = 1.0
"""Seconds between checks that the files are still there."""


class FolderLost(RuntimeError):
    """A run's folder was deleted, moved or replaced while the run wrote to it."""


class RunLogger(AbstractContextManager["RunLogger"]):
    """Writes the results of one run into its folder. What was logged survives the process.

    Args:
        folder: created if missing. New results are added to those that it already holds.
        resume_iteration: iteration of the checkpoint that the run resumes from; later results are dropped.
        tell: shows the user, once for each, that progress.csv or the events cannot be written. The run goes on without them, since
            result.json has the same numbers. progress.csv gets the missing rows as soon as it can be written.

    Raises:
        Unwritten: result.json or params.json cannot be written (the disk is full); the message names it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        resume_iteration: int | None = None,
        tell: Callable[[str], object] = warnings.warn,
    ) -> None:
        self.folder = Path(folder)
        results = self.folder / RESULTS
        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with explained(results):
            num_kept, kept = _repair(results, resume_iteration)
        self._thinning = Thinning(num_kept, number(kept, "time_total_s"))
        self._results = AppendFile(results)
        self._tell, self._told = tell, set[str]()
        self._columns: dict[str, None] = {}
        self._progress: AppendFile | None = None
        self._rewrite_due = self._check_due = 0.0
        self._rewrite_owed = bool(kept)
        """Whether progress.csv lacks rows or columns, or may have rows that were dropped."""
        self._purge_from = _step_of(kept) + 1 if kept else 0
        self._events: EventFile | None = None

    @contextmanager
    def _dispensable(self, name: str) -> Iterator[None]:
        """Go on if a file cannot be written that repeats the numbers of result.json, and say so once."""
        try:
            yield
        except Unwritten as error:
            if name not in self._told:
                self._told.add(name)
                self._tell(f"{error} Training goes on without it; {RESULTS} has the numbers.")

    def check(self) -> None:
        """Check that the record is still where it was, since a deleted file takes everything that is written to it.

        Raises:
            FolderLost: it is not.
        """
        if not self._results.is_in_place():
            raise FolderLost(f"{self._results.path} was deleted, moved or replaced while the run wrote to it.")

    def write_params(self, params: Mapping[str, object]) -> None:
        """Write params.json in one piece, signed as this user's. Classes and functions become "module:name", NaN and infinities null."""
        plain = json.loads(json.dumps(to_json(params)), parse_constant=lambda not_finite: None)
        text = json.dumps(with_signature(PARAMS, plain), indent=2, allow_nan=False)
        write_whole(self.folder / PARAMS, (text + "\n").encode())

    def log(self, result: Mapping[str, object]) -> None:
        """Add the numbers of an iteration. NaN and infinities become null (TensorBoard: no point; CSV: an empty cell).

        In a long run they may be put off, to be written together with those of the next iterations.

        Raises:
            UserError: a value is not a number; the message names its key.
            FolderLost: as `check`, within a second or two.
        """
        if (now := time.monotonic()) >= self._check_due:
            self.check()
            self._check_due = now + CHECK_SECONDS
        row = {key: _scalar(key, value) for key, value in result.items()}
        if self._thinning.is_due(row):
            self._write(self._thinning.joined(row))
        else:
            self._thinning.put_off(row)

    def _write(self, row: Mapping[str, Value]) -> None:
        self._results.append((json.dumps(row, allow_nan=False) + "\n").encode())
        self._thinning.written(row)
        with self._dispensable("progress"):
            self._log_progress(row)
        scalars = {key: value for key, value in row.items() if isinstance(value, (int, float))}
        with self._dispensable("events"):
            if self._events is None:
                self._events = EventFile(self.folder, purge_from=self._purge_from)
            self._events.add(_step_of(row), scalars)

    def close(self) -> None:
        """Write what is owed, and close the files. Closing again does nothing."""
        owed, self._thinning = self._thinning.owed, Thinning()
        with suppress(FolderLost):
            if owed:
                try:
                    self._write(owed)
                except Unwritten as error:
                    self._tell(f"{error} The results of the last iterations are missing.")
            if self._rewrite_owed:
                with self._dispensable("progress"):
                    self._rewrite_progress()
        self._rewrite_owed = False
        for file in (self._results, self._progress, self._events):
            if file is not None:
                file.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _log_progress(self, row: Mapping[str, Value]) -> None:
        self._rewrite_owed |= self._progress is None or not row.keys() <= self._columns.keys()
        # A rewrite reads the whole run. If new keys keep coming, limit it to 2% of the time.
        if self._rewrite_owed and (started := time.perf_counter()) >= self._rewrite_due:
            try:
                self._rewrite_progress()
            finally:
                self._rewrite_due = started + 50 * (time.perf_counter() - started)
        elif self._progress is not None:
            owed, self._rewrite_owed = self._rewrite_owed, True  # until it is written
            self._progress.append(_csv([row], self._columns))
            self._rewrite_owed = owed

    def _rewrite_progress(self) -> None:
        """Rebuild progress.csv from result.json, with a column for every key so far."""
        self.check()
        rows = [row for _, row in read_rows(self.folder / RESULTS)]
        self._columns = dict.fromkeys(key for row in rows for key in row)
        head = {column: column for column in self._columns}
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        write_whole(self.folder / PROGRESS, _csv([head, *rows], self._columns))
        self._progress, self._rewrite_owed = AppendFile(self.folder / PROGRESS), False


def read_results(folder: str | os.PathLike[str]) -> list[Row]:
    """Read the results of a run, finished or not, oldest first; null is read as NaN.

    Raises:
        UserError: the folder has none, or a line is not JSON.
    """
    refuse_file(folder)
    if not os.path.isdir(folder):
        raise UserError(nothing_at(folder))
    if not os.path.isfile(os.path.join(folder, RESULTS)):
        raise UserError(f"no {RESULTS} in {Path(folder)}: give the folder of a run (the --out of `raypid train`)")
    return RunFolder(folder).results


def read_params(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the settings of a run; an empty dict if there is no params.json.

    Raises:
        UserError: the file is not JSON.
    """
    return RunFolder(folder).params


class EventFile(AppendFile):
    """TensorBoard scalars: a TFRecord file of Event protocol buffers, encoded here.

    tensorboardX would do the same, but it imports torch, which takes 1.0 s: a third of a whole CartPole run.
    Field numbers: tensorboard/compat/proto/{event,summary}.proto.
    """

    def __init__(self, folder: Path, *, purge_from: int = 0) -> None:
        """Open a file. TensorBoard ignores what older files hold from step `purge_from` on (0: ignores nothing)."""
        from socket import gethostname

        super().__init__(folder / f"events.out.tfevents.{time.time():.6f}.{gethostname()}")
        self._begin = _event(0, b"\x1a" + _sized(b"brain.Event:2"))
        if purge_from:
            self._begin += _event(purge_from, b"\x3a" + _sized(b"\x08\x01"))  # session_log { status: START }

    def add(self, step: int, scalars: Mapping[str, int | float]) -> None:
        """Add the numbers of a step."""
        # struct refuses numbers that float32 cannot hold
        floats = [struct.pack("<f", min(max(value, -3.4e38), 3.4e38)) for value in scalars.values()]
        values = b"".join([_head(key) + value for key, value in zip(scalars, floats)])
        self.append(self._begin + _event(step, b"\x2a" + _sized(values)))
        self._begin = b""


def _event(step: int, what: bytes) -> bytes:
    event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + what
    size = struct.pack("<Q", len(event))
    return b"".join((size, _masked_crc(size), event, _masked_crc(event)))


@cache
def _head(key: str) -> bytes:
    """A Summary.Value without its number: size, tag and the key of simple_value."""
    tag = b"\x0a" + _sized(key.encode(errors="backslashreplace")) + b"\x15"
    return b"\x0a" + _varint(len(tag) + 4) + tag


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def _masked_crc(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as in TFRecord."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _repair(path: Path, resume_iteration: int | None) -> tuple[int, dict[str, Value]]:
    """Cut off an incomplete line and the results after `resume_iteration`; returns how many are left, and the last of them."""
    if not path.exists():
        return 0, {}
    size, num, last = 0, 0, dict[str, Value]()
    for end, row in read_rows(path):
        if resume_iteration is not None and _whole(row, "training_iteration") > resume_iteration:
            break
        size, num, last = end, num + 1, row
    os.truncate(path, size)
    return num, last


def _step_of(row: Mapping[str, Value]) -> int:
    return _whole(row, "timesteps_total") or _whole(row, "training_iteration")


def _whole(row: Mapping[str, Value], key: str) -> int:
    """The count `key` of a result, as far as 64 bits hold it; 0 where there is none."""
    return int(min(max(0, number(row, key)), 2**62))


def _scalar(key: str, value: object) -> Value:
    """Convert a metric to a plain int, finite float, text or None."""
    if hasattr(value, "item"):  # a scalar of NumPy or torch; arrays raise
        with suppress(TypeError, ValueError, RuntimeError):
            value = value.item()
    if not isinstance(value, (int, float, str, type(None))):
        raise UserError(f"metric {key!r} is a {type(value).__name__}: give one number, such as the mean")
    if isinstance(value, float) and not isfinite(value):
        return None
    return int(value) if isinstance(value, bool) else value


def _csv(rows: Iterable[Mapping[str, Value]], columns: Collection[str]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n").writerows(rows)
    return text.getvalue().encode(errors="backslashreplace")  # JSON allows half characters, UTF-8 does not
