"""Replay buffer: steps in the order in which they came, from which transitions are put together when they are drawn.

Axes: N capacity in rows; T, B of a fragment; n rows drawn; k frames of a stack; * event shape.

Each observation lies here once, as it was seen. A row knows the row that follows it in its stream, so streams of many
workers share one ring, and folding n steps, the next observation and a frame stack are gathers along those links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raypid.nn.pipeline import nest
from raypid.ops.returns import lost_observations
from raypid.ops.sum_tree import SumTree, importance
from raypid.replay.sequences import draw_sequences
from raypid.types import Array, Sample, Sequences, Trajectory, Transition, Tree, tree_leaves

MASK = "action_mask"
_OBS, _ACTION = "obs/", "action/"
_MEMORY = "memory"
LINKS = ("follow", "last", "before")
NONE = -1


@dataclass(kw_only=True, slots=True)
class ReplaySpec:
    """What a replay buffer is told."""

    capacity: int
    """Rows; the oldest are overwritten."""
    n_step: int = 1
    """Most rows that are folded into one transition."""
    gamma: float = 0.99
    frame_stack: int = 1
    reward_scale: float = 1.0
    reward_clip: float | None = None
    """Rewards are clipped to [-x, x] after scaling, before folding."""
    priority_exponent: float = 0.0
    """alpha of Schaul et al. 2016; 0 draws uniformly."""
    seed: int = 0
    num_shards: int = 1
    """Buffers that share the data: the probability of a row is that within its shard, divided by this."""


class Replay:
    """`add` fragments, `sample` transitions. Row ids count up for ever; row `id` lies in slot `id % capacity`."""

    def __init__(self, spec: ReplaySpec, shard: int = 0) -> None:
        if spec.capacity < 1 or spec.n_step < 1 or spec.frame_stack < 1:
            raise ValueError(
                f"capacity, n_step and frame_stack must be at least 1, not {spec.capacity}, {spec.n_step}, {spec.frame_stack}."
            )
        self.spec = spec
        self.rng = np.random.default_rng(np.random.SeedSequence(spec.seed, spawn_key=(4, shard)))
        self.count = 0
        """Rows ever added: the next id."""
        self.begun = 0
        """The first id that was ever here: above 0 where a smaller buffer was loaded."""
        self.num_ready = 0
        """Rows that can be drawn: real transitions whose window is complete."""
        self.num_skipped = 0
        """Priorities that came for rows already overwritten."""
        self.max_priority = 1.0
        self.tree = SumTree(spec.capacity) if spec.priority_exponent else None
        self.columns: dict[str, Array] = {}
        """[N, *] each: obs/<path>, action/<path>, reward, memory (where it came along), terminated, truncated, first, valid, ready, and links
        `follow` (id of the stream's next row), `last` (of the true last observation, where it is apart), `before`."""
        self.tails: dict[int, Array] = {}
        """Worker -> ids [<= n_step, B] of its newest rows, whose windows may still be incomplete."""

    def __len__(self) -> int:
        return self.num_ready

    @property
    def oldest(self) -> int:
        """The smallest id that is still here."""
        return max(self.begun, self.count - self.spec.capacity)

    # -- adding --------------------------------------------------------------------------------------------------------

    def add(self, worker: int, t: Trajectory) -> int:
        """Take over a fragment of a worker's B streams (copied); returns the number of rows that can be drawn now.

        Where a stream did not go on from its row before (a replaced worker), that row becomes invalid.

        Raises:
            ValueError: the fragment has more rows than the buffer.
        """
        rows, streams = t.reward.shape
        finals = lost_observations(t)
        num = rows * streams + len(finals[0])
        if num > self.spec.capacity:
            raise ValueError(f"A fragment of {num:,} rows does not fit a replay buffer of {self.spec.capacity:,}.")
        if not self.columns:
            self._allocate(t)
        self.evict(num)
        start = self.count
        ids = np.arange(start, start + rows * streams).reshape(rows, streams)
        self._write(start, t, finals)
        self.count = start + num
        self._link(worker, ids, t.first[0], finals)
        self._update_ready(worker, ids)
        return self.num_ready

    def _allocate(self, t: Trajectory) -> None:
        n, c = self.spec.capacity, self.columns
        for path, leaf in tree_leaves(t.obs):
            c[_OBS + path] = np.zeros((n, *leaf.shape[2:]), leaf.dtype)
        for path, leaf in tree_leaves(t.action):
            c[_ACTION + path] = np.zeros((n, *leaf.shape[2:]), leaf.dtype)
        c["reward"] = np.zeros(n, np.float32)
        if _MEMORY in t.behaviour:
            c[_MEMORY] = np.zeros((n, *t.behaviour[_MEMORY].shape[2:]), np.float32)
        for name in ("terminated", "truncated", "first", "valid", "ready"):
            c[name] = np.zeros(n, bool)
        for name in LINKS:
            c[name] = np.full(n, NONE, np.int64)

    def _spans(self, start: int, num: int) -> Iterator[tuple[slice, slice]]:
        """(slots, rows of the source) for ids [start, start + num): two parts where the ring's end lies between."""
        begin = start % self.spec.capacity
        until = min(num, self.spec.capacity - begin)
        yield slice(begin, begin + until), slice(0, until)
        if until < num:
            yield slice(0, num - until), slice(until, num)

    def evict(self, num: int) -> None:
        """Make the slots of the next `num` ids free."""
        if self.count + num <= self.spec.capacity:
            return
        for slots, _ in self._spans(self.count, num):
            self.num_ready -= int(np.count_nonzero(self.columns["ready"][slots]))
            self.columns["ready"][slots] = False
            if self.tree is not None:
                where = np.arange(slots.start, slots.stop)
                self.tree.set(where, np.zeros(len(where)))

    def _write(self, start: int, t: Trajectory, finals: tuple[Array, Array, Tree]) -> None:
        """Copy the columns in; a true last observation that stands apart becomes an invalid row of its own."""
        size, extra = t.reward.size, len(finals[0])
        last = dict(tree_leaves(finals[2])) if extra else {}

        def put(name: str, values: Array, tail: Array | bool | float) -> None:
            flat = values.reshape(size, *values.shape[2:])
            for slots, source in self._spans(start, size):
                self.columns[name][slots] = flat[source]
            if extra:
                self.columns[name][self.slots(start + size + np.arange(extra))] = tail

        for path, leaf in tree_leaves(t.obs):
            put(_OBS + path, leaf[:-1], last.get(path, False))
        for path, leaf in tree_leaves(t.action):
            put(_ACTION + path, leaf, 0.0)
        put("reward", t.reward, 0.0)
        if _MEMORY in t.behaviour:
            put(_MEMORY, t.behaviour[_MEMORY], 0.0)
        for name in ("terminated", "truncated", "valid"):
            put(name, getattr(t, name), False)
        put("first", t.first[:-1], False)

    def _link(self, worker: int, ids: Array, first: Array, finals: tuple[Array, Array, Tree]) -> None:
        """Set the links of the new rows, and from the stream's row before to the first of them."""
        c, streams = self.columns, ids.shape[1]
        flat = ids.ravel()
        for span, source in self._spans(flat[0], len(flat)):
            here = flat[source]
            c["follow"][span], c["before"][span], c["last"][span] = here + streams, here - streams, NONE
        c["follow"][self.slots(ids[-1])] = NONE
        c["before"][self.slots(ids[0])] = NONE
        if len(finals[0]):
            ended = ids[finals[0], finals[1]]
            apart = flat[-1] + 1 + np.arange(len(ended))
            c["last"][self.slots(ended)] = apart
            slots = self.slots(apart)
            c["before"][slots], c["follow"][slots], c["last"][slots] = ended, NONE, NONE
        tail = self.tails.get(worker)
        if tail is None:
            return
        before, alive = tail[-1], tail[-1] >= self.oldest
        if len(before) != streams:  # another number of environments: none of them went on
            slots = self.slots(before)
            shown = c["terminated"][slots] | (c["last"][slots] >= 0)
            self._invalidate(before[alive & ~shown])
            self._update_ready(worker, ids[:0, :0])
            del self.tails[worker]
            return
        slots = self.slots(before)
        ended = c["terminated"][slots] | c["truncated"][slots]
        goes_on = np.where(first, ended | ~c["valid"][slots], True)
        shown = ~first | c["terminated"][slots] | ~c["valid"][slots] | (c["last"][slots] >= 0)  # the next observation
        linked = goes_on & alive
        c["follow"][slots[linked]] = ids[0][linked]
        c["before"][self.slots(ids[0][linked])] = before[linked]
        self._invalidate(before[alive & ~(goes_on & shown)])

    def _invalidate(self, ids: Array) -> None:
        slots = self.slots(ids)
        self.num_ready -= int(np.count_nonzero(self.columns["ready"][slots]))
        self.columns["valid"][slots] = self.columns["ready"][slots] = False
        if self.tree is not None and len(slots):
            self.tree.set(slots, np.zeros(len(slots)))

    def _update_ready(self, worker: int, ids: Array) -> None:
        """Find the rows whose window of n_step rows is complete now, among the new ones and those that waited for them.

        A window of k rows from t is complete where the observation after t is here, and either no trace passes on from
        t or the window of k - 1 rows from t + 1 is complete.
        """
        c, n = self.columns, self.spec.n_step
        tail = self.tails.get(worker)
        if tail is not None:
            alive = tail[tail[:, -1] >= self.oldest]
            ids = np.concatenate([alive, ids]) if ids.size else alive
        slots = self.slots(ids)
        terminated, valid, follow = c["terminated"][slots], c["valid"][slots], c["follow"][slots]
        shown = terminated | (follow >= 0) | (c["last"][slots] >= 0)
        stops = terminated | c["truncated"][slots]
        stops[:-1] |= ~valid[1:] | (follow[:-1] < 0)
        complete = shown
        for _ in range(n - 1):
            onward = np.zeros_like(complete)
            onward[:-1] = complete[1:]
            complete = shown & (stops | onward)
        fresh = slots[complete & valid & (ids >= self.oldest) & ~c["ready"][slots]]
        c["ready"][fresh] = True
        self.num_ready += len(fresh)
        if self.tree is not None:
            self.tree.set(fresh, np.full(len(fresh), self.max_priority**self.spec.priority_exponent))
        self.tails[worker] = ids[-n:].copy()

    def slots(self, ids: Array) -> Array:
        """Where rows `ids` lie."""
        return ids % self.spec.capacity

    def rows(self, ids: Array) -> dict[str, Array]:
        """All columns of rows `ids`."""
        slots = self.slots(ids)
        return {name: column[slots] for name, column in self.columns.items()}

    # -- drawing -------------------------------------------------------------------------------------------------------

    def sample(self, num: int, beta: float = 0.0) -> Sample:
        """`num` transitions, with replacement; importance weights (N * P)^-beta, the largest of them 1.

        Raises:
            ValueError: nothing can be drawn yet.
        """
        if not self.num_ready:
            raise ValueError("The replay buffer holds no complete transition yet.")
        if self.tree is None:
            ids, probability = self._uniform(num), np.full(num, 1 / self.num_ready)
        else:
            ids, probability = self.prioritised(num, self.tree)
        probability = probability / self.spec.num_shards
        return Sample(self.transitions(ids), ids, probability, importance(probability, self.num_ready, beta))

    def prioritised(self, num: int, tree: SumTree) -> tuple[Array, Array]:
        """Ids and their probabilities."""
        slots = tree.sample(num, self.rng)
        newest = self.count - 1
        return newest - (newest - slots) % self.spec.capacity, tree.get(slots) / tree.total

    def _uniform(self, num: int) -> Array:
        ready, oldest = self.columns["ready"], self.oldest
        ids = self.rng.integers(oldest, self.count, num)
        while (refused := ~ready[self.slots(ids)]).any():
            ids[refused] = self.rng.integers(oldest, self.count, np.count_nonzero(refused))
        return ids

    def transitions(self, ids: Array) -> Transition:
        """Fold up to n_step rows from each of the rows `ids` [n]: reward sum_k gamma^k r_k, discount
        gamma^(k+1) * (1 - terminated) on the observation after the last of them."""
        c, s = self.columns, self.spec
        here = slots = self.slots(ids)
        reward, discount = self.rewards(slots), np.full(len(ids), s.gamma, np.float32)
        terminated = c["terminated"][slots]
        going = ~(terminated | c["truncated"][slots])
        for _ in range(s.n_step - 1):
            after = self.slots(c["follow"][here])
            going = going & c["valid"][after]
            if not going.any():
                break
            here = np.where(going, after, here)
            reward += np.where(going, discount * self.rewards(here), 0)
            discount = np.where(going, discount * np.float32(s.gamma), discount)
            ended = c["terminated"][here]
            terminated = terminated | (going & ended)
            going = going & ~(ended | c["truncated"][here])
        discount *= ~terminated
        last, follow = c["last"][here], c["follow"][here]
        after = self.slots(np.where(last >= 0, last, follow))
        return Transition(
            self.observations(slots),
            self.actions(slots),
            reward,
            discount.astype(np.float32, copy=False),
            self.observations(after),
        )

    def rewards(self, slots: Array) -> Array:
        """Scaled and clipped."""
        s, reward = self.spec, self.columns["reward"][slots]
        if s.reward_scale != 1:
            reward = reward * np.float32(s.reward_scale)
        return reward if s.reward_clip is None else np.clip(reward, -s.reward_clip, s.reward_clip)

    def _tree(self, prefix: str, slots: Array) -> Any:
        start = len(prefix)
        return nest({name[start:]: column[slots] for name, column in self.columns.items() if name.startswith(prefix)})

    def actions(self, slots: Array) -> Any:
        return self._tree(_ACTION, slots)

    def observations(self, slots: Array) -> Any:
        """Observations [n, *], or stacks [n, k, *] with the oldest frame first, filled up with an episode's first frame."""
        if self.spec.frame_stack == 1:
            return self._tree(_OBS, slots)
        c, frames = self.columns, [slots]
        for _ in range(self.spec.frame_stack - 1):
            before, here = c["before"][frames[0]], frames[0]
            begins = c["first"][here] | (before < self.oldest)
            frames.insert(0, np.where(begins, here, self.slots(before)))
        stacked = np.stack(frames, 1)
        named = {name[len(_OBS) :]: column for name, column in c.items() if name.startswith(_OBS)}
        return nest({path: column[slots if path == MASK else stacked] for path, column in named.items()})

    def sample_sequences(self, num: int, length: int, burn_in: int = 0, beta: float = 0.0) -> Sequences:
        """`num` sequences of `burn_in + length` rows that follow each other in one stream, for recurrent networks.

        They cross the ends of episodes (`first` says where a state begins anew). Rows that cannot be learnt from are
        not valid. A priority is that of the sequence which the row begins; importance weights as in `sample`.

        Raises:
            ValueError: no stream is that long yet.
        """
        return draw_sequences(self, num, length, burn_in, beta)

    def set_priorities(self, ids: Array, priorities: Array) -> None:
        """New priorities [n] > 0 of rows [n]; rows that were overwritten since are skipped and counted."""
        if self.tree is None:
            return
        here = (ids >= self.oldest) & self.columns["ready"][self.slots(ids)]
        self.num_skipped += int(np.count_nonzero(~here))
        ids, priorities = ids[here], priorities[here]
        if len(ids):
            self.max_priority = max(self.max_priority, float(priorities.max()))
            self.tree.set(self.slots(ids), priorities.astype(np.float64) ** self.spec.priority_exponent)

    def set_priorities_of(self, sample: Sample, priorities: Array) -> None:
        """New priorities of the rows of a sample that this buffer handed out."""
        self.set_priorities(sample.id, priorities)

    def metrics(self) -> dict[str, float]:
        """Rows that can be drawn, and priorities that came too late."""
        found = {"replay_rows": float(self.num_ready)}
        return found if self.tree is None else {**found, "replay_skipped_priorities": float(self.num_skipped)}

    def save(self, folder: str, previous: str | None) -> None:
        """Write the buffer; what the save in `previous` has already is linked."""
        from raypid.replay.disk import save_replay

        save_replay(self, Path(folder), None if previous is None else Path(previous))

    def load(self, folders: str | Sequence[str], draws: bool = True) -> int:
        """Hold what a save holds, or several saves after each other, and nothing else; returns the number of rows that can
        be drawn. `draws`: rows are drawn on as the (first) saved buffer would have."""
        from raypid.replay.disk import load_replay

        before = self.rng.bit_generator.state
        for i, folder in enumerate([folders] if isinstance(folders, str) else folders):
            load_replay(self, Path(folder), after=i > 0)
        if not draws:
            self.rng.bit_generator.state = before
        return self.num_ready

    def clear(self) -> int:
        """Forget all rows; returns the number that can be drawn: none."""
        self.begin(0, 0)
        return 0

    def begin(self, oldest: int, count: int) -> None:
        """Forget everything; from now on the ids from `oldest` to `count` are here, or the newest of them."""
        assert oldest <= count
        self.begun, self.count, self.num_ready = oldest, count, 0
        self.columns, self.tails = {}, {}
        if self.tree is not None:
            self.tree = SumTree(self.spec.capacity)

    def ready(self) -> int:
        """Rows that can be drawn."""
        return self.num_ready

    def close(self) -> None:
        pass
