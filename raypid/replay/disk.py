"""A replay buffer on disk. Rows lie in segments, which are written once and linked from checkpoint to checkpoint. What
changes (links, flags, priorities) is written anew each time.

    replay/index.json                    counters, random generator, segments with their checksums
           segment_000000000000_000000012345.safetensors
           links.safetensors
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raypid.checkpoint import CheckpointError, confined, read_json, refusing, sha256_of
from raypid.errors import shown
from raypid.replay.buffer import LINKS, NO_ROW, Buffer
from raypid.types import Array

_CHANGING = ("valid", "ready", *LINKS)
_INDEX, _LINKS_FILE = "index.json", "links.safetensors"
_SEGMENT = re.compile(r"segment_\d+_\d+\.safetensors")
_MAX_ID = 2**62
_DTYPES = {
    **dict.fromkeys(LINKS, np.dtype(np.int64)),
    **dict.fromkeys(("valid", "ready", "terminated", "truncated", "first"), np.dtype(np.bool_)),
    "reward": np.dtype(np.float32),
}
"""Columns of one number for each row that every buffer has."""


class ReplayDamaged(CheckpointError):
    """A saved replay buffer that cannot be read."""


@dataclass(slots=True)
class SavedRows:
    """What was loaded."""

    ids: Array
    """[n] of the rows, in the buffer that they were loaded into."""
    columns: dict[str, Array]
    """[n, *] each: what the kind of replay saved for each row."""
    index: dict[str, Any]


def save_rows(
    buffer: Buffer, folder: Path, previous: Path | None, state: Mapping[str, object], extra: Mapping[str, Array]
) -> None:
    """Write the buffer into `folder`, with what its kind of replay adds: `state`, and arrays [n, *] for the n rows that are
    here. Segments that the save in `previous` has already are linked, not written."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for unfinished in folder.iterdir():  # of a process that died while it saved here
        if unfinished.name in (_INDEX, _LINKS_FILE) or _SEGMENT.fullmatch(unfinished.name):
            unfinished.unlink()
    segments = _linked(buffer, folder, previous, state.get("lineage", ""))
    start = max(segments[-1]["stop"] if segments else 0, buffer.oldest)
    if start < buffer.count:
        name = f"segment_{start:012d}_{buffer.count:012d}.safetensors"
        rows = buffer.rows(np.arange(start, buffer.count))
        save_file({k: np.ascontiguousarray(v) for k, v in rows.items() if k not in _CHANGING}, folder / name)
        segments.append({"file": name, "start": start, "stop": buffer.count, "sha256": sha256_of(folder / name)})
    alive = buffer.rows(np.arange(buffer.oldest, buffer.count))
    changing = {k: np.ascontiguousarray(v) for k, v in alive.items() if k in _CHANGING}
    save_file({**changing, **extra}, folder / _LINKS_FILE)
    index = {
        "count": buffer.count,
        "oldest": buffer.oldest,
        **state,
        "tails": {str(worker): ids.tolist() for worker, ids in buffer.tails.items()},
        "segments": segments,
        "links_sha256": sha256_of(folder / _LINKS_FILE),
    }
    (folder / _INDEX).write_text(json.dumps(index))


def checksums_in(folder: Path) -> dict[str, str]:
    """SHA-256 of the large files of a save that was just written, as its indices have them, by path below `folder`. Nobody
    has to read the files again: those that were linked have the checksum that was computed when they were written."""
    found: dict[str, str] = {}
    for file in folder.rglob(_INDEX):
        part = file.parent.relative_to(folder)
        found |= {
            (part / name).as_posix(): checksum for name, checksum in _checksums(json.loads(file.read_text())).items()
        }
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


def _linked(buffer: Buffer, folder: Path, previous: Path | None, lineage: object) -> list[dict[str, Any]]:
    """Link the segments of the previous save that still hold rows of this buffer; returns them."""
    if previous is None or not (previous / _INDEX).exists():
        return []
    before = _checked_index(previous)
    if (
        before["count"] > buffer.count or before.get("lineage", "") != lineage
    ):  # of another run, or a buffer that was lost
        return []
    segments = [s for s in before["segments"] if s["stop"] > buffer.oldest]
    for segment in segments:
        _link(previous / segment["file"], folder / segment["file"])
    return segments


def load_rows(buffer: Buffer, folder: Path, *, after: bool = False) -> SavedRows:
    """Replace the contents of a buffer by what `save_rows` wrote. If there are more rows than it holds, it takes the newest.

    With `after`, the rows are added to those that are there, under new ids.

    Raises:
        ReplayDamaged: a file is missing, cut short or altered, or does not hold rows such as this buffer's.
    """
    with refusing(f"The replay buffer in {folder}", ReplayDamaged):
        return _load(buffer, folder, after)


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
        if (
            not type(start) is type(stop) is int
            or start != end
            or not 0 <= start < stop
            or not _SEGMENT.fullmatch(file)
        ):
            raise ValueError(f"{_INDEX} has a segment {shown(file)} of rows {shown(start)} to {shown(stop)}")
        end = stop
    if oldest < count and (end != count or segments[0]["start"] > oldest):
        raise ValueError(f"{_INDEX} has no segments for all of its rows")
    return index


def _read_rows(file: Path, num_rows: int) -> dict[str, Array]:
    """Read a file of columns with so many rows.

    Raises:
        ValueError: it has others.
    """
    from safetensors.numpy import load_file

    columns: dict[str, Array] = load_file(file)
    for name, values in columns.items():
        dtype = _DTYPES.get(name)
        if values.shape[:1] != (num_rows,) or (dtype is not None and (values.ndim, values.dtype) != (1, dtype)):
            raise ValueError(
                f"{file.name} has {name} {values.dtype} {list(values.shape)}, not for each of {num_rows} rows"
            )
        if name in LINKS and len(values) and not NO_ROW <= int(values.min()) <= int(values.max()) < _MAX_ID:
            raise ValueError(f"{file.name} has links to rows that cannot be")
    return columns


def _check_columns(buffer: Buffer, columns: Mapping[str, Array], file: str) -> None:
    """Check that a segment has the columns of the buffer's environment, and of the segments before.

    Raises:
        ValueError: names what differs.
    """
    wanted = {**buffer.spec.columns, **dict.fromkeys(("reward", "terminated", "truncated", "first"), ())}
    wanted |= {name: column.shape[1:] for name, column in buffer.columns.items() if name not in _CHANGING}
    here = {name: values.shape[1:] for name, values in columns.items()}
    kinds = {name for name, values in columns.items() if values.dtype.kind not in "biuf"}
    if buffer.spec.columns or buffer.columns:
        wrong = [name for name in sorted(wanted.keys() | here.keys()) if wanted.get(name) != here.get(name)] or kinds
        for name in wrong:
            raise ValueError(f"{file} has {name} {here.get(name, 'not')}, this run has {wanted.get(name, 'none')}")


def _load(buffer: Buffer, folder: Path, after: bool) -> SavedRows:
    index = _checked_index(folder)
    for name, checksum in _checksums(index).items():
        if sha256_of(confined(folder, name)) != checksum:
            raise ValueError(f"{name} was altered or cut short")
    oldest, count, shift = index["oldest"], index["count"], 0
    changing = _read_rows(folder / _LINKS_FILE, count - oldest)
    if after:
        shift = buffer.count - oldest
        buffer.evict(min(count - oldest, buffer.spec.capacity))
        buffer.count += count - oldest
    else:
        buffer.reset(oldest, count)
    oldest = max(oldest, buffer.oldest - shift)
    for segment in index["segments"]:
        rows = _read_rows(folder / segment["file"], segment["stop"] - segment["start"])
        _check_columns(buffer, rows, segment["file"])
        ids = np.arange(max(segment["start"], min(oldest, segment["stop"])), segment["stop"])
        _put(buffer, ids + shift, rows)
    saved = np.arange(oldest, count)
    columns = {k: v[len(v) - len(saved) :] for k, v in changing.items()}
    links = {name: columns.pop(name) for name in _CHANGING if name in columns}
    for name in LINKS if after else ():
        links[name] = np.where(links[name] >= oldest, links[name] + shift, NO_ROW)
    ids = saved + shift
    if len(ids):
        _put(buffer, ids, links)
        buffer.columns["ready"][buffer.slots(ids)] = False
        buffer.admit_complete(ids, np.maximum(buffer.columns["follow"][buffer.slots(ids)] - ids[0], 0))
    for worker, lines in index["tails"].items():
        tail = np.array(lines, np.int64)
        if tail.size and (tail.ndim != 2 or tail.min() < NO_ROW or tail.max() >= count):
            raise ValueError(f"{_INDEX} has newest rows of worker {shown(worker)} that are not there")
        if after and tail.size:
            tail = tail[(tail >= oldest).all(1)]  # with the shift, smaller ids are those of other rows
        if tail.size and tail[-1, -1] + shift >= buffer.oldest:
            buffer.tails[int(worker)] = _longer(buffer, tail + shift)
    return SavedRows(ids, columns, index)


def _put(buffer: Buffer, ids: Array, rows: dict[str, Array]) -> None:
    """Write the newest of `rows` into the columns, as rows `ids`."""
    slots = buffer.slots(ids)
    for name, values in rows.items():
        buffer.column(name, values)[slots] = values[len(values) - len(ids) :]


def _longer(buffer: Buffer, tail: Array) -> Array:
    """A worker's newest rows [n_step, B], from as many as another n_step has kept; fewer where its streams begin."""
    lines = list(tail[tail[:, -1] >= buffer.oldest])
    while len(lines) < buffer.spec.n_step:
        before = buffer.columns["before"][buffer.slots(lines[0])]
        if (before < buffer.oldest).any() or (lines[0] < buffer.oldest).any():
            break
        lines.insert(0, before)
    return np.stack(lines)
