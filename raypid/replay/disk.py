"""A replay buffer on disk. Rows lie in segments, which are written once and linked from checkpoint to checkpoint. What
changes (links, flags, priorities) is written anew each time. In a run, the driver writes and reads the files, and the rows travel
between it and the buffer's process. A buffer by itself does both.

    replay/index.json                    counters, random generator, segments with their checksums
           segment_000000000000_000000012345.safetensors
           links.safetensors
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from raypid.errors import shown
from raypid.replay.buffer import LINKS, NO_ROW, Buffer
from raypid.storage.checkpoint import CheckpointError, confined, read_json, sha256_of, write_arrays
from raypid.types import Array

PIECE_BYTES = 64 * 2**20
"""Most that is written into one segment, and sent to another node at a time."""
CHANGING = ("valid", "ready", *LINKS)
_INDEX, _LINKS_FILE = "index.json", "links.safetensors"
_SEGMENT = re.compile(r"segment_\d+_\d+\.safetensors")
_MAX_ID = 2**62
_LINK_ROWS = 2**20
"""Rows of which the changing columns are asked for at a time."""
_DTYPES = {
    **dict.fromkeys(LINKS, np.dtype(np.int64)),
    **dict.fromkeys(("valid", "ready", "terminated", "truncated", "first"), np.dtype(np.bool_)),
    "reward": np.dtype(np.float32),
}
"""Columns of one number for each row that every buffer has."""
Shape: TypeAlias = tuple[int, ...]
Span: TypeAlias = tuple[int, int]
"""Rows, from the first id up to, and without, the last."""
Piece: TypeAlias = tuple[int, Mapping[str, Array], Mapping[str, Array]]
"""The id of the first row, the columns that are written once, and those that change."""
Rows: TypeAlias = Callable[[Sequence[Span], bool], Iterable[Mapping[str, Array]]]
"""Gives the columns of each span of a buffer's rows: those that change (True), or those that are written once."""


class ReplayDamaged(CheckpointError):
    """A saved replay buffer that cannot be read."""


class OtherTask(CheckpointError):
    """A saved replay buffer of an environment with other observations or actions."""


@dataclass(slots=True)
class SavedRows:
    """Rows that were loaded."""

    ids: Array
    """[n] of the rows, in the buffer that they were loaded into."""
    columns: dict[str, Array]
    """[n, *] each: what the kind of replay saved for each row."""


def write_rows(folder: Path, previous: Path | None, head: Mapping[str, Any], step: int, rows: Rows) -> None:
    """Write a buffer into `folder`, of which `head` says all but its rows. Segments that the save in `previous` has already are
    linked. `step` rows are asked for at a time: the buffer may be in another process."""
    folder.mkdir(parents=True, exist_ok=True)
    for unfinished in folder.iterdir():  # of a process that died while it saved here
        if unfinished.name in (_INDEX, _LINKS_FILE) or _SEGMENT.fullmatch(unfinished.name):
            unfinished.unlink()
    oldest, count = head["oldest"], head["count"]
    segments = _linked(head, folder, previous)
    spans = spans_of(max(segments[-1]["stop"] if segments else 0, oldest), count, step)
    for (start, stop), columns in zip(spans, rows(spans, False), strict=True):
        name = f"segment_{start:012d}_{stop:012d}.safetensors"
        write_arrays(folder / name, {k: np.ascontiguousarray(v) for k, v in columns.items()})
        segments.append({"file": name, "start": start, "stop": stop, "sha256": sha256_of(folder / name)})
    write_arrays(folder / _LINKS_FILE, joined(rows(spans_of(oldest, count, _LINK_ROWS), True)))
    index = {**head, "segments": segments, "links_sha256": sha256_of(folder / _LINKS_FILE)}
    (folder / _INDEX).write_text(json.dumps(index))


def spans_of(start: int, stop: int, step: int) -> list[Span]:
    """Cut rows into parts of at most `step`."""
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def joined(parts: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """The columns of several spans of rows after each other."""
    found = list(parts)
    return {name: np.concatenate([part[name] for part in found]) for name in (found[0] if found else ())}


def checksums_in(folder: Path) -> dict[str, str]:
    """SHA-256 of the large files of a save that was just written, as its indices have them, by path below `folder`. Nobody
    has to read the files again: those that were linked have the checksum that was computed when they were written."""
    found: dict[str, str] = {}
    for file in folder.rglob(_INDEX):
        part = file.parent.relative_to(folder)
        checksums = _checksums(json.loads(file.read_text()))
        found |= {(part / name).as_posix(): checksum for name, checksum in checksums.items()}
    return found


def _checksums(index: Mapping[str, Any]) -> dict[str, str]:
    return {_LINKS_FILE: index["links_sha256"], **{s["file"]: s["sha256"] for s in index["segments"]}}


def link_save(before: Path, folder: Path) -> None:
    """Make `folder` the same save as `before`."""
    shutil.copytree(before, folder, copy_function=_link)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _linked(head: Mapping[str, Any], folder: Path, previous: Path | None) -> list[dict[str, Any]]:
    """Link the segments of the previous save that still hold rows of this buffer; returns them."""
    if previous is None or not (previous / _INDEX).exists():
        return []
    before = _checked_index(previous)
    if before["count"] > head["count"] or before.get("lineage", "") != head.get("lineage", ""):
        return []  # of another run, or of a buffer that was lost
    segments = [s for s in before["segments"] if s["stop"] > head["oldest"]]
    for segment in segments:
        _link(previous / segment["file"], folder / segment["file"])
    return segments


def read_index(folder: Path) -> dict[str, Any]:
    """Return the index of a save, once all of its files have been compared with their checksums; the `folder` that it is in; and the
    `shapes` of its rows by column.

    Raises:
        ReplayDamaged: there is none.
        ValueError, KeyError, TypeError, OSError: what is wrong.
    """
    from safetensors import safe_open

    if not (folder / _INDEX).is_file():
        raise ReplayDamaged(f"There is no replay buffer in {folder}.")
    index = {**_checked_index(folder), "folder": str(folder), "shapes": {}}
    for name, checksum in _checksums(index).items():
        if sha256_of(confined(folder, name)) != checksum:
            raise ValueError(f"{name} was altered or cut short")
    for segment in index["segments"][:1]:
        with safe_open(folder / segment["file"], "numpy") as rows:
            index["shapes"] = {name: tuple(rows.get_slice(name).get_shape()[1:]) for name in rows.keys()}
    return index


def read_rows(folder: Path, index: Mapping[str, Any], first: int) -> Iterator[Piece]:
    """Read the rows of a save from `first` on, in pieces.

    Raises:
        ValueError, KeyError, TypeError, OSError: what is wrong.
    """
    oldest = index["oldest"]
    changing = _read_columns(folder / _LINKS_FILE, index["count"] - oldest)
    for segment in index["segments"]:
        begin, end = segment["start"], segment["stop"]
        if end <= first:
            continue
        fixed = _read_columns(folder / segment["file"], end - begin)
        for start, stop in spans_of(max(begin, first), end, rows_at_a_time(fixed)):
            here = {name: values[start - begin : stop - begin] for name, values in fixed.items()}
            yield start, here, {name: values[start - oldest : stop - oldest] for name, values in changing.items()}


def rows_at_a_time(columns: Mapping[str, Array]) -> int:
    """The number of rows of these columns that make a piece."""
    row_bytes = sum(values[:1].nbytes for values in columns.values())
    return max(1, PIECE_BYTES // max(1, row_bytes))


def _checked_index(folder: Path) -> dict[str, Any]:
    """Read the index of a save, and check what it says of rows and files.

    Raises:
        ValueError, KeyError, TypeError: what is wrong.
    """
    index: dict[str, Any] = read_json(confined(folder, _INDEX))
    oldest, count, segments = index["oldest"], index["count"], index["segments"]
    if not type(oldest) is type(count) is int or not 0 <= oldest <= count < _MAX_ID:
        raise ValueError(f"{_INDEX} has rows from {shown(oldest)} to {shown(count)}")
    end = segments[0]["start"] if segments else oldest
    for segment in segments:
        start, stop, file = segment["start"], segment["stop"], segment["file"]
        if not (type(start) is type(stop) is int and start == end and 0 <= start < stop and _SEGMENT.fullmatch(file)):
            raise ValueError(f"{_INDEX} has a segment {shown(file)} of rows {shown(start)} to {shown(stop)}")
        end = stop
    if oldest < count and (end != count or segments[0]["start"] > oldest):
        raise ValueError(f"{_INDEX} has no segments for all of its rows")
    return index


def _read_columns(file: Path, num_rows: int) -> dict[str, Array]:
    """Read a file of columns with so many rows.

    Raises:
        ValueError: it has others.
    """
    from safetensors.numpy import load_file

    columns: dict[str, Array] = load_file(file)
    for name, values in columns.items():
        dtype = _DTYPES.get(name)
        if values.shape[:1] != (num_rows,) or (dtype is not None and (values.ndim, values.dtype) != (1, dtype)):
            raise ValueError(f"{file.name} has {name} {values.dtype} {list(values.shape)} for {num_rows} rows")
        if name in LINKS and len(values) and not NO_ROW <= int(values.min()) <= int(values.max()) < _MAX_ID:
            raise ValueError(f"{file.name} has links to rows that cannot be")
    return columns


def check_columns(buffer: Buffer, columns: Mapping[str, Array], start: int) -> None:
    """Check that rows from `start` on have the columns of the buffer's environment, and of the rows before.

    Raises:
        ValueError: names a column that differs.
    """
    known = {name: column.shape[1:] for name, column in buffer.columns.items() if name not in CHANGING}
    known |= buffer.spec.columns
    wanted = {**known, **dict.fromkeys(("reward", "terminated", "truncated", "first"), ())}
    for name in sorted(wanted.keys() | columns.keys()) if known else ():
        here = columns[name].shape[1:] if name in columns else None
        if here != wanted.get(name) or columns[name].dtype.kind not in "biuf":
            raise ValueError(f"row {start} has {name} of shape {here}, this run has {wanted.get(name)}")


def check_task(wanted: Mapping[str, Shape], index: Mapping[str, Any]) -> None:
    """Check that a save has observations and actions of the shapes `wanted`, by column; {}: of any.

    Raises:
        OtherTask: they differ.
    """
    there, here = _shapes(index["shapes"]), _shapes(wanted)
    differences = [
        f"{name}: {there.get(name, 'none')} there, {here.get(name, 'none')} in this run"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]
    if there and here and differences:
        raise OtherTask(
            f"The replay buffer in {index['folder']} is of another task. {'; '.join(differences)}. Load it into a run of its own task."
        )


def _shapes(columns: Mapping[str, Shape]) -> dict[str, str]:
    """Shapes of observations and actions as messages name them, such as "observations 'image'": "shape [84, 84]"."""
    kinds = {"obs": "observations", "action": "actions"}
    parts = [(*name.partition("/"), shape) for name, shape in columns.items()]
    return {kinds[k] + (f" {key!r}" if key else ""): f"shape {list(shape)}" for k, _, key, shape in parts if k in kinds}
