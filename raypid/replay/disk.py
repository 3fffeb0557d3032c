"""A replay buffer on disk: rows in segments that are written once and linked from checkpoint to checkpoint; what changes
(links, flags, priorities) is written anew each time.

    replay/index.json                    counters, random generator, segments with their checksums
           segment_000000000000_000000012345.safetensors
           links.safetensors
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from raypid.checkpoint import sha256_of
from raypid.errors import UserError
from raypid.replay.buffer import LINKS, NONE, Replay
from raypid.types import Array

_CHANGING = ("valid", "ready", *LINKS)


class ReplayDamaged(UserError):
    """A saved replay buffer that cannot be read."""


def save_replay(replay: Replay, folder: Path, previous: Path | None = None) -> None:
    """Write the buffer into `folder`; segments that the save in `previous` has already are linked, not written."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    segments = _linked(replay, folder, previous)
    start = max(segments[-1]["stop"] if segments else 0, replay.oldest)
    if start < replay.count:
        name = f"segment_{start:012d}_{replay.count:012d}.safetensors"
        rows = replay.rows(np.arange(start, replay.count))
        save_file({k: np.ascontiguousarray(v) for k, v in rows.items() if k not in _CHANGING}, folder / name)
        segments.append({"file": name, "start": start, "stop": replay.count, "sha256": sha256_of(folder / name)})
    alive = np.arange(replay.oldest, replay.count)
    changing = {k: np.ascontiguousarray(v) for k, v in replay.rows(alive).items() if k in _CHANGING}
    if replay.tree is not None:
        changing["priority"] = replay.tree.get(alive % replay.spec.capacity)
    save_file(changing, folder / "links.safetensors")
    index = {
        "count": replay.count,
        "oldest": replay.oldest,
        "num_skipped": replay.num_skipped,
        "max_priority": replay.max_priority,
        "rng": replay.rng.bit_generator.state,
        "tails": {str(worker): ids.tolist() for worker, ids in replay.tails.items()},
        "segments": segments,
        "links_sha256": sha256_of(folder / "links.safetensors"),
    }
    (folder / "index.json").write_text(json.dumps(index))


def _linked(replay: Replay, folder: Path, previous: Path | None) -> list[dict[str, Any]]:
    """Segments of the save before that still hold rows of this buffer, linked into `folder`."""
    if previous is None or not (previous / "index.json").exists():
        return []
    before = json.loads((previous / "index.json").read_text())
    if before["count"] > replay.count:  # of another run
        return []
    segments = [s for s in before["segments"] if s["stop"] > replay.oldest]
    for segment in segments:
        source, target = previous / segment["file"], folder / segment["file"]
        try:
            os.link(source, target)
        except OSError:  # a file system without links
            shutil.copyfile(source, target)
    return segments


def load_replay(replay: Replay, folder: Path, *, after: bool = False) -> None:
    """Fill a buffer with what `save_replay` wrote, in place of what it has, or `after` that with ids of their own; of more
    rows than it holds the newest.

    Raises:
        ReplayDamaged: a file is missing, cut short or altered.
    """
    from safetensors.numpy import load_file

    try:
        index = json.loads((folder / "index.json").read_text())
        for name, checksum in [("links.safetensors", index["links_sha256"])] + [
            (s["file"], s["sha256"]) for s in index["segments"]
        ]:
            if sha256_of(folder / name) != checksum:
                raise ReplayDamaged(f"The replay buffer in {folder} is damaged: {name} was altered or cut short.")
        changing = load_file(folder / "links.safetensors")
        oldest, count, shift = index["oldest"], index["count"], 0
        if after:
            shift = replay.count - oldest
            replay.evict(min(count - oldest, replay.spec.capacity))
            replay.count += count - oldest
        else:
            replay.begin(oldest, count)
        oldest = max(oldest, replay.oldest - shift)
        for segment in index["segments"]:
            ids = np.arange(max(segment["start"], min(oldest, segment["stop"])), segment["stop"])
            rows = load_file(folder / segment["file"])
            _put(replay, ids + shift, {k: v[len(v) - len(ids) :] for k, v in rows.items()})
        ids = np.arange(oldest, count)
        kept: dict[str, Array] = {k: v[len(v) - len(ids) :] for k, v in changing.items()}
        tails = {int(w): np.array(tail, np.int64) for w, tail in index["tails"].items()}
        if not after:
            replay.num_skipped, replay.max_priority = index["num_skipped"], index["max_priority"]
            replay.rng.bit_generator.state = index["rng"]
        else:
            for name in LINKS:
                kept[name] = np.where(kept[name] >= oldest, kept[name] + shift, -1)
            tails = {w: tail[(tail >= oldest).all(1)] + shift for w, tail in tails.items() if tail.size}
            replay.num_skipped += index["num_skipped"]
            replay.max_priority = max(replay.max_priority, index["max_priority"])
        _resume(replay, ids + shift, kept, {w: tail for w, tail in tails.items() if len(tail)})
    except ReplayDamaged:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise ReplayDamaged(f"The replay buffer in {folder} cannot be read: {error}") from error


def _put(replay: Replay, ids: Array, rows: dict[str, Array]) -> None:
    """Write columns of rows `ids`."""
    slots = replay.slots(ids)
    for name, values in rows.items():
        if name not in replay.columns:
            empty = NONE if name in LINKS else 0
            replay.columns[name] = np.full((replay.spec.capacity, *values.shape[1:]), empty, values.dtype)
        replay.columns[name][slots] = values


def _longer(replay: Replay, tail: Array) -> Array:
    """A worker's newest rows [n_step, B], from as many as another n_step has kept; fewer where its streams begin."""
    lines = list(tail[tail[:, -1] >= replay.oldest])
    while len(lines) < replay.spec.n_step:
        before = replay.columns["before"][replay.slots(lines[0])]
        if (before < replay.oldest).any() or (lines[0] < replay.oldest).any():
            break
        lines.insert(0, before)
    return np.stack(lines)


def _resume(replay: Replay, ids: Array, changing: dict[str, Array], tails: dict[int, Array]) -> None:
    """Take over links, flags and priorities of the newest rows `ids`; windows are judged by this buffer's n_step."""
    priority = changing.pop("priority", None)
    if not len(ids):
        return
    _put(replay, ids, changing)
    slots, c = replay.slots(ids), replay.columns
    for worker, tail in tails.items():
        if tail[-1, -1] >= replay.oldest:
            replay.tails[worker] = _longer(replay, tail)
    follow = c["follow"][slots]
    after = replay.slots(np.maximum(follow, 0))
    stops = c["terminated"][slots] | c["truncated"][slots] | (follow < 0) | ~c["valid"][after]
    shown = c["terminated"][slots] | (follow >= 0) | (c["last"][slots] >= 0)
    complete = np.zeros(replay.spec.capacity, bool)
    complete[slots] = shown
    for _ in range(replay.spec.n_step - 1):
        complete[slots] = shown & (stops | complete[after])
    ready = complete[slots] & c["valid"][slots]
    c["ready"][slots] = ready
    replay.num_ready += int(np.count_nonzero(ready))
    if replay.tree is not None:
        if priority is None:
            priority = np.full(len(ids), replay.max_priority**replay.spec.priority_exponent)
        replay.tree.set(slots, np.where(ready, priority, 0.0))
