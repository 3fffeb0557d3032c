"""Replay: a buffer and the rule by which rows are drawn from it.

A new kind of replay is a subclass in a file of its own and an entry in `registry.REPLAYS`; uniform.py is the shortest example.
An algorithm names its kind in `replay_kind`.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raypid.errors import UserError, shown
from raypid.ops.sum_tree import importance
from raypid.replay.buffer import LINKS, NO_ROW, Buffer, ReplaySpec
from raypid.replay.disk import (
    CHANGING,
    ReplayDamaged,
    SavedRows,
    Span,
    check_columns,
    check_task,
    joined,
    read_index,
    read_rows,
    rows_at_a_time,
    write_rows,
)
from raypid.state_tree import fingerprint
from raypid.storage.checkpoint import refusing
from raypid.types import Array, Sample, Sequences

_ROUNDS = 100
"""Draws of twice as many first rows of sequences as are needed, until enough of them have a whole sequence after them."""


class Replay(Buffer, ABC):
    """Base class of replay: `add` stores fragments, `sample` draws transitions, `sample_sequences` draws sequences.

    A subclass writes `draw`, which chooses the rows. One with priorities also overrides `set_priorities`, `row_state` and `restore`.

    Args:
        spec: capacity, n-step folding, discount and other facts (`ReplaySpec`).
        shard: number of this buffer among those that share the data; it gives each buffer its own random numbers.
    """

    def __init__(self, spec: ReplaySpec, shard: int = 0) -> None:
        super().__init__(spec)
        self.rng = np.random.default_rng(np.random.SeedSequence(spec.seed, spawn_key=(4, shard)))
        self.max_priority = 1.0
        self.num_skipped = 0
        """Number of new priorities whose rows had already been overwritten."""
        self.lineage = uuid.uuid4().hex
        """Identifies the contents in saves: a buffer that started afresh has a new one, and shares no saved rows with the old."""

    # -- drawing -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def draw(self, num: int) -> tuple[Array, Array]:
        """Draw `num` of the rows that are ready, with replacement.

        `columns["ready"]` [capacity] says for each slot whether its row is ready; `num_ready` is their number.

        Returns:
            The ids [num] of the rows, and the probability [num] with which each was drawn, for the importance weights.
        """

    def draw_starts(self, num: int) -> tuple[Array, Array]:
        """Draw `num` rows at which sequences may begin; returns the same as `draw`."""
        return self.draw(num)

    def sample(self, num: int, beta: float = 0.0) -> Sample:
        """Draw `num` transitions, with replacement. Their importance weights are (N * P)^-beta, divided by the largest.

        Raises:
            UserError: nothing can be drawn yet.
        """
        if not self.num_ready:
            raise UserError(
                f"The replay buffer holds no complete transition yet. Of {self.count:,} rows none has n_step ({self.spec.n_step}) rows of its "
                "stream, or the end of its episode, after it: add more fragments."
            )
        ids, probability = self.draw(num)
        probability = probability / self.spec.num_shards
        return Sample(self.transitions(ids), ids, probability, importance(probability, self.num_ready, beta))

    def sample_sequences(self, num: int, length: int, burn_in: int = 0, beta: float = 0.0) -> Sequences:
        """Draw `num` sequences of `burn_in + length` rows that follow each other in one stream, for recurrent networks.

        They cross the ends of episodes; `first` says where a new one starts. Rows that cannot be learnt from are not valid.
        The priority of a sequence is that of its first row. Importance weights are as in `sample`.

        Raises:
            UserError: no stream is that long yet.
        """
        rows = burn_in + length
        ids, probability = np.empty((rows + 1, 0), np.int64), np.empty(0)
        for _ in range(_ROUNDS if self.num_ready else 0):
            starts, drawn_with = self.draw_starts(2 * num)
            chains = self.chains(starts, rows)
            whole = chains[-1] >= 0
            ids = np.concatenate([ids, chains[:, whole]], 1)
            probability = np.concatenate([probability, drawn_with[whole]])
            if len(probability) >= num:
                probability = probability[:num]
                weight = importance(probability, self.num_ready, beta)
                return self.sequences(ids[:, :num], burn_in, probability, weight)
        raise UserError(f"The replay buffer holds no {num} sequences of {rows} rows yet; it has {self.count:,} rows.")

    def set_priorities(self, ids: Array, priorities: Array) -> None:
        """Give the rows `ids` [n] new priorities [n] > 0. Kinds without priorities ignore them."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of the buffer, reported as learner/NAME. Those of several buffers are added up."""
        return {"replay_rows": float(self.num_ready)}

    # -- saving --------------------------------------------------------------------------------------------------------

    def row_state(self, slots: Array) -> dict[str, Array]:
        """Return what a save keeps of the rows in `slots` [n] besides the buffer's columns: arrays [n, *] by name."""
        return {}

    def restore(self, saved: SavedRows) -> None:
        """Load the `row_state` of rows that have just been loaded."""

    def save(self, folder: str | Path, previous: Path | None = None) -> None:
        """Write the buffer into `folder`. What the save in `previous` has already is linked."""
        write_rows(Path(folder), previous, *self.head(), self._rows_of)

    def head(self) -> tuple[dict[str, object], int]:
        """Return what a save keeps of the buffer besides its rows, and the number of rows of a piece of it."""
        state = {
            **({"lineage": self.lineage} if self.lineage else {}),  # none in a buffer that an earlier version saved
            "num_skipped": self.num_skipped,
            "max_priority": self.max_priority,
            "rng": self.rng.bit_generator.state,
        }
        tails = {str(worker): ids.tolist() for worker, ids in self.tails.items()}
        return {"count": self.count, "oldest": self.oldest, **state, "tails": tails}, rows_at_a_time(self.columns)

    def saved_columns(self, start: int, stop: int, changing: bool) -> dict[str, Array]:
        """Return the saved columns of the rows from `start` to `stop`: those that change, or those that are written once."""
        slots = self.slots(np.arange(start, stop))
        found = {name: column[slots] for name, column in self.columns.items() if (name in CHANGING) == changing}
        return {**found, **self.row_state(slots)} if changing else found

    def _rows_of(self, spans: Sequence[Span], changing: bool) -> Iterator[dict[str, Array]]:
        return (self.saved_columns(start, stop, changing) for start, stop in spans)

    def fingerprint(self) -> str:
        """A checksum of the rows and of what the next draw depends on."""
        ids = np.arange(self.oldest, self.count)
        head, _ = self.head()
        state = {name: head[name] for name in ("oldest", "count", "max_priority", "rng")}
        return fingerprint({**state, "rows": self.rows(ids), "more": self.row_state(self.slots(ids))})

    def load(self, *folders: str | Path, draws: bool = True) -> int:
        """Replace the contents by those of one save, or of several after each other; returns the rows that can be drawn.

        With `draws`, rows are drawn from now on as the (first) saved buffer would have drawn them.

        Raises:
            ReplayDamaged: a file is missing, cut short or altered.
            OtherTask: the rows come from another environment.
        """
        for i, folder in enumerate(map(Path, folders)):
            with refusing(f"The replay buffer in {folder}", ReplayDamaged):
                index = read_index(folder)
                for piece in read_rows(folder, index, self.begin_load(index, i > 0)):
                    self.take_rows(*piece)
                self.end_load(draws and i == 0)
        return self.num_ready

    def begin_load(self, index: dict[str, Any], after: bool) -> int:
        """Make room for a save: in place of the contents, or with `after` behind them, under new ids. Of more rows than there is room
        for, the buffer takes the newest. The steps are apart, since the buffer may be in another process.

        Returns:
            The first row that there is room for. `take_rows` is to get all from there on, and `end_load` to be called then.

        Raises:
            OtherTask: it holds rows of another environment.
            ValueError, KeyError, TypeError: here and in these two methods, what is wrong with the save.
        """
        check_task(self.spec.columns, index)  # before anything is forgotten
        oldest, num = index["oldest"], index["count"] - index["oldest"]
        self._index, self._after = index, after
        self._more: list[dict[str, Array]] = []
        """The `row_state` of the rows so far."""
        self._shift = self.count - oldest if after else 0
        if after:
            self.evict(min(num, self.spec.capacity))
            self.count += num
        else:
            self.reset(oldest, oldest + num)
        self._first: int = max(oldest, self.oldest - self._shift)
        return self._first

    def take_rows(self, start: int, fixed: Mapping[str, Array], changing: Mapping[str, Array]) -> None:
        """Take rows of the save that is being loaded, which follow on those before."""
        check_columns(self, fixed, start)
        links = {name: values for name, values in changing.items() if name in CHANGING}
        for name in LINKS if self._after else ():
            links[name] = np.where(links[name] >= self._first, links[name] + self._shift, NO_ROW)
        slots = self.slots(np.arange(start, start + len(links["valid"])) + self._shift)
        for name, values in {**fixed, **links}.items():
            self.column(name, values)[slots] = values
        self._more.append({name: values for name, values in changing.items() if name not in CHANGING})

    def end_load(self, draws: bool) -> int:
        """Take over what a save has besides rows, with `draws` the random numbers too; returns the rows that can be drawn."""
        index, after, more = self._index, self._after, self._more
        del self._index, self._more
        ids = np.arange(self._first, index["count"]) + self._shift
        if len(ids):
            slots = self.slots(ids)
            self.columns["ready"][slots] = False
            self.admit_complete(ids, np.maximum(self.columns["follow"][slots] - ids[0], 0))
        for worker, lines in index["tails"].items():
            tail = np.array(lines, np.int64)
            if tail.size and (tail.ndim != 2 or tail.min() < NO_ROW or tail.max() >= index["count"]):
                raise ValueError(f"it has newest rows of worker {shown(worker)} that are not there")
            if after and tail.size:
                tail = tail[(tail >= self._first).all(1)]  # with the shift, smaller ids are those of other rows
            if tail.size and tail[-1, -1] + self._shift >= self.oldest:
                self.tails[int(worker)] = self._longer(tail + self._shift)
        skipped, largest = int(index["num_skipped"]), float(index["max_priority"])
        if not (0 <= skipped < 2**62 and 0 < largest < np.inf):
            raise ValueError(f"num_skipped is {skipped}, max_priority {largest}")
        self.num_skipped = skipped + (self.num_skipped if after else 0)
        self.max_priority = max(largest, self.max_priority) if after else largest
        self.restore(SavedRows(ids, joined(more)))
        if not after:
            self.lineage = str(index.get("lineage", ""))[:64]
        if draws:
            self.rng.bit_generator.state = index["rng"]
        return self.num_ready

    def _longer(self, tail: Array) -> Array:
        """A worker's newest rows [n_step, B], from as many as another n_step has kept; fewer where its streams begin."""
        lines = list(tail[tail[:, -1] >= self.oldest])
        while len(lines) < self.spec.n_step:
            before = self.columns["before"][self.slots(lines[0])]
            if (before < self.oldest).any() or (lines[0] < self.oldest).any():
                break
            lines.insert(0, before)
        return np.stack(lines)

    def clear(self) -> int:
        """Forget all rows; returns the number that can be drawn, which is 0."""
        self.reset(0, 0)
        self.lineage = uuid.uuid4().hex
        return 0
