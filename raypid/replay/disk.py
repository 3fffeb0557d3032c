"""A replay buffer on disk. Rows lie in segments, which are written once and linked from checkpoint to checkpoint. What
changes (links, flags, priorities) is written anew each time.

    replay/index.json                    counters, random generator, segments with their checksums
           segment_000000000000_000000012345.safetensors
           links.safetensors
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raypid.checkpoint import sha256_of
from raypid.errors import UserError
from raypid.replay.buffer import LINKS, NO_ROW, Buffer
from raypid.types import Array

_CHANGING = ("valid", "ready", *LINKS)


class ReplayDamaged(UserError):
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
    segments = _linked(buffer, folder, previous)
    start = max(segments[-1]["stop"] if segments else 0, buffer.oldest)
    if start < buffer.count:
        name = f"segment_{start:012d}_{buffer.count:012d}.safetensors"
        rows = buffer.rows(np.arange(start, buffer.count))
        save_file({k: np.ascontiguousarray(v) for k, v in rows.items() if k not in _CHANGING}, folder / name)
        segments.append({"file": name, "start": start, "stop": buffer.count, "sha256": sha256_of(folder / name)})
    alive = buffer.rows(np.arange(buffer.oldest, buffer.count))
    changing = {k: np.ascontiguousarray(v) for k, v in alive.items() if k in _CHANGING}
    save_file({**changing, **extra}, folder / "links.safetensors")
    index = {
        "count": buffer.count,
        "oldest": buffer.oldest,
        **state,
        "tails": {str(worker): ids.tolist() for worker, ids in buffer.tails.items()},
        "segments": segments,
        "links_sha256": sha256_of(folder / "links.safetensors"),
    }
    (folder / "index.json").write_text(json.dumps(index))


def _linked(buffer: Buffer, folder: Path, previous: Path | None) -> list[dict[str, Any]]:
    """Link the segments of the previous save that still hold rows of this buffer; returns them."""
    if previous is None or not (previous / "index.json").exists():
        return []
    before = json.loads((previous / "index.json").read_text())
    if before["count"] > buffer.count:  # of another run
        return []
    segments = [s for s in before["segments"] if s["stop"] > buffer.oldest]
    for segment in segments:
        source, target = previous / segment["file"], folder / segment["file"]
        try:
            os.link(source, target)
        except OSError:  # a file system without links
            shutil.copyfile(source, target)
    return segments


def load_rows(buffer: Buffer, folder: Path, *, after: bool = False) -> SavedRows:
    """Replace the contents of a buffer by what `save_rows` wrote. If there are more rows than it holds, it takes the newest.

    With `after`, the rows are added to those that are there, under new ids.

    Raises:
        ReplayDamaged: a file is missing, cut short or altered.
    """
    try:
        return _load(buffer, folder, after)
    except (OSError, ValueError, KeyError) as error:
        raise ReplayDamaged(f"The replay buffer in {folder} cannot be read: {error}") from error


def _load(buffer: Buffer, folder: Path, after: bool) -> SavedRows:
    from safetensors.numpy import load_file

    index = json.loads((folder / "index.json").read_text())
    checksums: dict[str, str] = {"links.safetensors": index["links_sha256"]} | {
        s["file"]: s["sha256"] for s in index["segments"]
    }
    for name, checksum in checksums.items():
        if sha256_of(folder / name) != checksum:
            raise ValueError(f"{name} was altered or cut short.")
    oldest, count, shift = int(index["oldest"]), int(index["count"]), 0
    if after:
        shift = buffer.count - oldest
        buffer.evict(min(count - oldest, buffer.spec.capacity))
        buffer.count += count - oldest
    else:
        buffer.reset(oldest, count)
    oldest = max(oldest, buffer.oldest - shift)
    for segment in index["segments"]:
        ids = np.arange(max(segment["start"], min(oldest, segment["stop"])), segment["stop"])
        _put(buffer, ids + shift, load_file(folder / segment["file"]))
    saved = np.arange(oldest, count)
    columns = {k: v[len(v) - len(saved) :] for k, v in load_file(folder / "links.safetensors").items()}
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
