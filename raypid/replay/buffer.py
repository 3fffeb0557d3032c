"""The rows of a replay buffer: a ring that fragments are copied into and transitions are folded from.

Axes: N capacity in rows; T, B of a fragment; n rows asked for; k frames of a stack; * event shape. Of sequences: T rows, N of them.

Each observation is stored once. A row knows the id of the next row of its stream, so the streams of many workers share one
ring. N-step returns, next observations and frame stacks are gathered along these links when they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from raypid.errors import UserError
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.pipeline import nest
from raypid.ops.returns import lost_observations
from raypid.types import Array, Sequences, Trajectory, Transition, Tree, tree_leaves, tree_map

MASK = "action_mask"
_OBS, _ACTION = "obs/", "action/"
_MEMORY = "memory"
LINKS = ("follow", "last", "before")
NO_ROW = -1
"""Where a link leads nowhere."""


@dataclass(kw_only=True, slots=True)
class ReplaySpec:
    """Size and rules of a replay buffer: capacity, n-step folding, scaling of rewards."""

    capacity: int
    """Rows; the oldest are overwritten."""
    n_step: int = 1
    """Most rows that are folded into one transition."""
    gamma: float = 0.99
    """Discount."""
    frame_stack: int = 1
    """Observations of a transition are stacks of this many frames."""
    reward_scale: float = 1.0
    """Factor on rewards, before clipping and folding."""
    reward_clip: float | None = None
    """Rewards are clipped to [-x, x] after scaling, before folding."""
    priority_exponent: float = 0.0
    """alpha of Schaul et al. 2016, for kinds with priorities; 0 makes all of them equal."""
    seed: int = 0
    """Seed of the draws."""
    num_shards: int = 1
    """Buffers that share the data. A row's probability is its probability within its own buffer, divided by this number."""
    columns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shape of a row in the columns obs/..., action/... and memory. Loading a save with other shapes is refused; {}: no check."""

    def part(self, num_shards: int) -> ReplaySpec:
        """Return the spec of each of `num_shards` buffers that share the data."""
        return replace(self, capacity=self.capacity // num_shards, num_shards=num_shards)


def row_shapes(network: NetworkSpec) -> dict[str, tuple[int, ...]]:
    """The shape of a row in the columns that depend on the environment and the network (`ReplaySpec.columns`)."""
    shapes = {_OBS + leaf.path: leaf.shape for leaf in network.pipeline.leaves}
    shapes |= {_ACTION + leaf.path: () if leaf.kind == "categorical" else (leaf.size,) for leaf in network.actions}
    if network.pipeline.mask_size:
        shapes[_OBS + MASK] = (network.pipeline.mask_size,)
    if network.memory:
        shapes[_MEMORY] = (network.num_trunks, network.state_size)
    return shapes


class Buffer:
    """A ring of rows. Row ids increase without end; row `id` lies in slot `id % capacity`."""

    def __init__(self, spec: ReplaySpec) -> None:
        if spec.capacity < 1 or spec.n_step < 1 or spec.frame_stack < 1:
            raise UserError(f"capacity, n_step and frame_stack must be at least 1, not as in {spec}.")
        self.spec = spec
        self.reset(0, 0)

    def reset(self, first_id: int, count: int) -> None:
        """Forget all rows. Loading then writes the rows from `first_id` to `count`, or the newest of them."""
        assert first_id <= count
        self.first_id = first_id
        """No row before this one was ever here. It is above 0 after a smaller buffer was loaded."""
        self.count = count
        """Rows ever added, which is also the next id."""
        self.num_ready = 0
        """Rows that can be drawn: valid ones whose n-step window is complete."""
        self.columns: dict[str, Array] = {}
        """[N, *] each: obs/<path>, action/<path>, reward, memory (if it was recorded), terminated, truncated, first, valid,
        ready, and three links: `follow` (id of the stream's next row), `before` (of the previous one), `last` (of the row
        that holds the episode's true last observation, if the environment reset in the same step)."""
        self.tails: dict[int, Array] = {}
        """Worker -> ids [<= n_step, B] of its newest rows, whose windows may still be incomplete."""

    def __len__(self) -> int:
        return self.num_ready

    @property
    def oldest(self) -> int:
        """The smallest id that is still here."""
        return max(self.first_id, self.count - self.spec.capacity)

    def slots(self, ids: Array) -> Array:
        """Return the slots of rows `ids` [n]."""
        return ids % self.spec.capacity

    def rows(self, ids: Array) -> dict[str, Array]:
        """Return all columns of rows `ids` [n], by name."""
        slots = self.slots(ids)
        return {name: column[slots] for name, column in self.columns.items()}

    # -- adding --------------------------------------------------------------------------------------------------------

    def add(self, worker: int, fragment: Trajectory) -> int:
        """Copy a fragment of a worker's B streams into the ring; returns the number of rows that can be drawn now.

        If a stream does not continue from its previous row (its worker was replaced), that row becomes invalid.

        Raises:
            UserError: the fragment needs more rows than the buffer has.
        """
        rows, streams = fragment.reward.shape
        finals = lost_observations(fragment)
        num = rows * streams + len(finals[0])
        if num > self.spec.capacity:
            apart = num - rows * streams
            why = f" ({apart:,} of them for the last observations of truncated episodes)" if apart else ""
            raise UserError(
                f"A fragment of {num:,} rows{why} does not fit a replay buffer of {self.spec.capacity:,}: raise buffer_size "
                f"to {num * self.spec.num_shards:,} or more, lower num_shards, fragment_length or num_envs_per_worker, or give it in parts."
            )
        self.evict(num)
        start = self.count
        ids = np.arange(start, start + rows * streams).reshape(rows, streams)
        self._write(start, fragment, finals)
        self.count = start + num
        self._link(worker, ids, fragment.first[0], finals)
        self._finish_windows(worker, ids)
        return self.num_ready

    def column(self, name: str, like: Array) -> Array:
        """The column `name`, which is created for values such as `like` [n, *] if there is none yet."""
        if name not in self.columns:
            shape = (self.spec.capacity, *like.shape[1:])
            self.columns[name] = np.full(shape, NO_ROW) if name in LINKS else np.zeros(shape, like.dtype)
        return self.columns[name]

    def evict(self, num: int) -> None:
        """Free the slots of the next `num` ids."""
        if self.count + num <= self.spec.capacity:
            return
        slots = self.slots(self.count + np.arange(num))
        self._mark(slots[self.columns["ready"][slots]], ready=False)

    def _write(self, start: int, t: Trajectory, finals: tuple[Array, Array, Tree]) -> None:
        """Copy the columns. True last observations that were stored apart become invalid rows of their own."""
        size, extra = t.reward.size, len(finals[0])
        last = dict(tree_leaves(finals[2])) if extra else {}
        slots = self.slots(start + np.arange(size + extra))

        def put(name: str, values: Array, tail: Array | bool | float = False) -> None:
            flat = values.reshape(size, *values.shape[2:])
            column = self.column(name, flat)
            column[slots[:size]] = flat
            if extra:
                column[slots[size:]] = tail

        for path, leaf in tree_leaves(t.obs):
            put(_OBS + path, leaf[:-1], last.get(path, False))
        for path, leaf in tree_leaves(t.action):
            put(_ACTION + path, leaf)
        put("reward", t.reward.astype(np.float32, copy=False))
        if _MEMORY in t.behaviour:
            put(_MEMORY, t.behaviour[_MEMORY].astype(np.float32, copy=False))
        for name in ("terminated", "truncated", "valid"):
            put(name, getattr(t, name))
        put("first", t.first[:-1])

    def _link(self, worker: int, ids: Array, first: Array, finals: tuple[Array, Array, Tree]) -> None:
        """Set the links of the new rows, and those between each stream's previous row and its first new one."""
        c, streams = self.columns, ids.shape[1]
        flat = ids.ravel()
        self.column("ready", np.zeros(1, bool))
        follow, last, before = (self.column(name, flat) for name in LINKS)
        slots = self.slots(flat)
        follow[slots], before[slots], last[slots] = flat + streams, flat - streams, NO_ROW
        starts = self.slots(ids[0])
        before[starts] = NO_ROW
        follow[self.slots(ids[-1])] = NO_ROW
        if len(finals[0]):
            ended = ids[finals[0], finals[1]]
            apart = flat[-1] + 1 + np.arange(len(ended))
            last[self.slots(ended)] = apart
            slots = self.slots(apart)
            before[slots], follow[slots], last[slots] = ended, NO_ROW, NO_ROW
        tail = self.tails.get(worker)
        if tail is None:
            return
        previous, alive = tail[-1], tail[-1] >= self.oldest
        slots = self.slots(previous)
        terminated = c["terminated"][slots]
        next_known = terminated | (last[slots] >= 0)
        if len(previous) != streams:  # the worker came back with another number of environments: no stream continues
            self._invalidate(previous[alive & ~next_known])
            self._finish_windows(worker, ids[:0, :0])
            del self.tails[worker]
            return
        goes_on, invalid = ~first, ~c["valid"][slots]
        continues = goes_on | terminated | c["truncated"][slots] | invalid
        next_known |= goes_on | invalid
        linked = continues & alive
        follow[slots[linked]] = ids[0][linked]
        before[starts[linked]] = previous[linked]
        self._invalidate(previous[alive & ~(continues & next_known)])

    def _invalidate(self, ids: Array) -> None:
        if not len(ids):
            return
        slots = self.slots(ids)
        self.columns["valid"][slots] = False
        self._mark(slots[self.columns["ready"][slots]], ready=False)

    # -- which rows can be drawn ---------------------------------------------------------------------------------------

    def _mark(self, slots: Array, *, ready: bool) -> None:
        """Let the rows in `slots`, none of which is marked so yet, be drawn from now on or not any more."""
        self.columns["ready"][slots] = ready
        self.num_ready += len(slots) if ready else -len(slots)

    def _finish_windows(self, worker: int, ids: Array) -> None:
        """Admit the rows whose window is complete now: new rows `ids` [T, B], and those that waited for them."""
        tail = self.tails.get(worker)
        if tail is not None:
            alive = tail[tail[:, -1] >= self.oldest]
            ids = np.concatenate([alive, ids]) if ids.size else alive
        after = np.minimum(np.arange(ids.size) + ids.shape[1], ids.size - 1)
        self.admit_complete(ids.ravel(), after)
        self.tails[worker] = ids[-self.spec.n_step :].copy()

    def admit_complete(self, ids: Array, after: Array) -> None:
        """Admit those of the rows `ids` [n] whose window of n_step rows is complete.

        A window of k rows from t is complete if the observation after t is here, and either the fold stops at t or the window
        of k - 1 rows from t + 1 is complete. `after` [n] says where among these rows the one after each is, and anything where a
        stream goes no further.
        """
        c, slots = self.columns, self.slots(ids)
        terminated, valid, follows = c["terminated"][slots], c["valid"][slots], c["follow"][slots] >= 0
        complete = next_known = terminated | follows | (c["last"][slots] >= 0)
        if self.spec.n_step > 1:
            stops = terminated | c["truncated"][slots] | ~follows | ~valid[after]
        for _ in range(self.spec.n_step - 1):
            complete = next_known & (stops | complete[after])
        self._mark(slots[complete & valid & (ids >= self.oldest) & ~c["ready"][slots]], ready=True)

    # -- reading -------------------------------------------------------------------------------------------------------

    def transitions(self, ids: Array) -> Transition:
        """Fold up to n_step rows from each of the rows `ids` [n].

        The reward is sum_k gamma^k r_k. The discount is gamma^(number of rows folded), or 0 if the last of them terminated;
        it applies to the observation after that row.
        """
        c, s = self.columns, self.spec
        here = slots = self.slots(ids)
        reward, discount = self.rewards(slots), np.full(len(ids), s.gamma, np.float32)
        terminated, going = c["terminated"][slots], np.ones(len(ids), bool)
        for _ in range(s.n_step - 1):
            after = self.slots(c["follow"][here])
            going = going & ~(terminated | c["truncated"][here]) & c["valid"][after]
            if not going.any():
                break
            here = np.where(going, after, here)
            reward += np.where(going, discount * self.rewards(here), 0)
            discount = np.where(going, discount * np.float32(s.gamma), discount)
            terminated = c["terminated"][here]
        discount *= ~terminated
        last, follow = c["last"][here], c["follow"][here]
        after = self.slots(np.where(last >= 0, last, follow))
        return Transition(
            self.observations(slots),
            self.actions(slots),
            reward,
            discount,
            self.observations(after),
        )

    def chains(self, starts: Array, num: int) -> Array:
        """Ids [num + 1, n] of the rows `starts` [n] and of the `num` rows after each; NO_ROW where a stream goes no further."""
        chain = [starts]
        for _ in range(num):
            follow = self.columns["follow"][self.slots(chain[-1])]
            chain.append(np.where(chain[-1] >= 0, follow, NO_ROW))
        return np.stack(chain)

    def sequences(self, ids: Array, burn_in: int, probability: Array, weight: Array) -> Sequences:
        """Gather the rows `ids` [T + 1, N] of N chains; the first were drawn with `probability` [N]."""
        c, slots = self.columns, self.slots(ids)
        within = slots[:-1]
        return Sequences(
            obs=tree_map(lambda x: x.reshape(*ids.shape, *x.shape[1:]), self.observations(slots.ravel())),
            first=c["first"][slots],
            action=self.actions(within),
            reward=self.rewards(within),
            **{name: c[name][within] for name in ("terminated", "truncated", "valid")},
            burn_in=burn_in,
            id=ids[0],
            probability=probability,
            weight=weight,
            memory=c["memory"][slots[0]] if "memory" in c else None,
        )

    def rewards(self, slots: Array) -> Array:
        """Rewards [n], scaled and clipped."""
        s, reward = self.spec, self.columns["reward"][slots]
        if s.reward_scale != 1:
            reward = reward * np.float32(s.reward_scale)
        return reward if s.reward_clip is None else np.clip(reward, -s.reward_clip, s.reward_clip)

    def actions(self, slots: Array) -> Tree:
        """Actions [n, *]."""
        return self._tree(_ACTION, slots, slots)

    def observations(self, slots: Array) -> Tree:
        """Observations [n, *], or stacks [n, k, *] with the oldest frame first. An episode's first frame fills its early stacks."""
        c, frames = self.columns, [slots]
        for _ in range(self.spec.frame_stack - 1):
            here = frames[0]
            before = c["before"][here]
            is_first = c["first"][here] | (before < self.oldest)
            frames.insert(0, np.where(is_first, here, self.slots(before)))
        return self._tree(_OBS, np.stack(frames, 1) if len(frames) > 1 else slots, slots)

    def _tree(self, prefix: str, slots: Array, mask_slots: Array) -> Tree:
        """Gather the columns below `prefix`; the action mask is not stacked and has slots of its own."""
        named = {name.removeprefix(prefix): c for name, c in self.columns.items() if name.startswith(prefix)}
        return nest({path: c.take(mask_slots if path == MASK else slots, 0) for path, c in named.items()})
