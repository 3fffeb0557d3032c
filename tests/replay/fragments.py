"""Fragments of invented episodes in both autoreset layouts, and a buffer that does step by step what Replay does at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raypid.replay.base import Replay
from raypid.replay.buffer import ReplaySpec
from raypid.replay.prioritized import PrioritizedReplay
from raypid.replay.uniform import UniformReplay
from raypid.types import Final, Trajectory, Tree, tree_map, tree_stack

F = np.float32
ENDS = ("terminated", "truncated", "both", "crash")


def make_replay(spec: ReplaySpec, shard: int = 0) -> Any:
    """A prioritised buffer where the spec has an exponent, else a uniform one."""
    return (PrioritizedReplay if spec.priority_exponent else UniformReplay)(spec, shard)


@dataclass
class Row:
    obs: Tree
    first: bool
    action: Any
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    final: Tree | None = None
    """The true last observation, where the layout resets in the same step."""
    after: Row | None = None
    """The stream's next row, once it was added."""
    before: Row | None = None
    id: int = -1

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class Observations:
    """Every observation is another."""

    def __init__(self, kind: str) -> None:
        self.kind, self.count = kind, 0

    def __call__(self) -> Tree:
        self.count += 1
        n = self.count
        if self.kind == "vector":
            return np.array([n, -n], F)
        mask = np.array([1, n % 2, n // 2 % 2], np.int8)
        return {"image": np.full((2, 2), n % 251, np.uint8), "inner": {"x": np.array([n], F)}, "action_mask": mask}


def episodes(rng: np.random.Generator, mode: str, observe: Observations, ends: Any = ENDS) -> Iterator[Row]:
    """The rows of one stream, for ever."""
    while True:
        length, end = int(rng.choice([1, 1, 2, 3, 5, 9])), str(rng.choice(ends))
        for i in range(length):
            row = Row(observe(), i == 0, rng.normal(size=2).astype(F), float(rng.normal(0, 2)))
            if i == length - 1 and end != "crash":
                row.terminated, row.truncated = end in ("terminated", "both"), end in ("truncated", "both")
                if mode == "same_step":
                    row.final = observe()
            yield row
        if mode == "next_step" or end == "crash":  # the row that resets; a crashed step looks the same
            yield Row(observe(), False, rng.normal(size=2).astype(F), valid=False)


class Worker:
    """Streams of episodes, cut into fragments."""

    def __init__(
        self, rng: np.random.Generator, mode: str, streams: int, observe: Observations, ends: Any = ENDS
    ) -> None:
        self.streams = [episodes(rng, mode, observe, ends) for _ in range(streams)]
        self.ahead = [next(s) for s in self.streams]

    def fragment(self, length: int) -> tuple[Trajectory, list[list[Row]]]:
        rows: list[list[Row]] = []
        for _ in range(length):
            rows.append(self.ahead)
            self.ahead = [next(s) for s in self.streams]
        seen = [*rows, self.ahead]
        final = [(t, b, r.final) for t, line in enumerate(rows) for b, r in enumerate(line) if r.final is not None]

        def column(name: str, dtype: Any, lines: Any = rows) -> Any:
            return np.array([[getattr(r, name) for r in line] for line in lines], dtype)

        return Trajectory(
            obs=tree_stack([tree_stack([r.obs for r in line]) for line in seen]),
            first=column("first", bool, seen),
            action=column("action", F),
            reward=column("reward", F),
            terminated=column("terminated", bool),
            truncated=column("truncated", bool),
            valid=column("valid", bool),
            final=Final(
                np.array([f[0] for f in final]), np.array([f[1] for f in final]), tree_stack([f[2] for f in final])
            )
            if final
            else None,
        ), rows


@dataclass
class Naive:
    """The definition: rows in a list, every question answered row by row."""

    spec: ReplaySpec
    count: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    newest: dict[int, list[Row]] = field(default_factory=dict)
    """Worker -> the last row of each stream."""

    @property
    def oldest(self) -> int:
        return max(0, self.count - self.spec.capacity)

    def add(self, worker: int, lines: list[list[Row]], *, restarted: bool) -> None:
        before = self.newest.get(worker)
        if before is not None and restarted:
            for row in before:
                if not row.terminated and row.final is None:
                    row.valid = False  # what came after was never seen
            before = None
        for line in lines:
            for b, row in enumerate(line):
                row.id = self.count
                self.rows[self.count] = row
                self.count += 1
                if before is not None:
                    row.before, before[b].after = before[b], row
            before = line
        self.count += sum(r.final is not None and r.truncated and not r.terminated for line in lines for r in line)
        self.newest[worker] = lines[-1]
        self.rows = {i: r for i, r in self.rows.items() if i >= self.oldest}

    def window(self, row: Row) -> list[Row] | None:
        """The rows that are folded; None while something is not known yet."""
        folded = [row]
        while True:
            last = folded[-1]
            if not (last.terminated or last.final is not None or last.after is not None):
                return None
            if last.ended or len(folded) == self.spec.n_step:
                return folded
            assert last.after is not None
            if not last.after.valid:
                return folded
            folded.append(last.after)

    def drawable(self) -> list[int]:
        return [i for i, row in self.rows.items() if row.valid and self.window(row) is not None]

    def stack(self, row: Row, extra: Tree | None = None) -> Tree:
        """The last k frames up to `row` (and `extra` after it), filled up with the episode's first."""
        frames = [row.obs] if extra is None else [row.obs, extra]
        while len(frames) < self.spec.frame_stack:
            if not row.first and row.before is not None and row.before.id >= self.oldest:
                row = row.before
            frames.insert(0, row.obs)
        frames = frames[-self.spec.frame_stack :]
        if self.spec.frame_stack == 1:
            return frames[0]
        stacked = tree_stack(frames)
        return {**stacked, "action_mask": frames[-1]["action_mask"]} if isinstance(stacked, dict) else stacked

    def transition(self, id: int) -> dict[str, Any]:
        s, row = self.spec, self.rows[id]
        folded = self.window(row)
        assert folded is not None
        rewards = [r.reward * s.reward_scale for r in folded]
        if s.reward_clip is not None:
            rewards = [min(max(r, -s.reward_clip), s.reward_clip) for r in rewards]
        last = folded[-1]
        found = {
            "obs": self.stack(row),
            "action": row.action,
            "reward": np.float64(sum(s.gamma**k * r for k, r in enumerate(rewards))),
            "discount": np.float64(s.gamma ** len(folded) * (not last.terminated)),
        }
        if not last.terminated:  # otherwise what follows does not matter
            found["next_obs"] = self.stack(last, last.final) if last.final is not None else self.stack(last.after)  # type: ignore[arg-type]
        return found


def ready_ids(replay: Replay) -> list[int]:
    ids = np.arange(replay.oldest, replay.count)
    return [] if not replay.columns else ids[replay.columns["ready"][ids % replay.spec.capacity]].tolist()


def assert_equal(found: Tree, expected: Tree, about: str) -> None:
    def leaf(a: Any, b: Any) -> None:
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=about)

    tree_map(leaf, found, expected)


def assert_same(replay: Replay, naive: Naive, *, transitions: bool = True) -> None:
    """The same rows can be drawn, and they give the same transitions."""
    ids = naive.drawable()
    assert (replay.count, replay.oldest) == (naive.count, naive.oldest)
    assert ready_ids(replay) == ids
    assert replay.num_ready == len(replay) == len(ids)
    if not ids or not transitions:
        return
    t = replay.transitions(np.array(ids))
    expected = [naive.transition(id) for id in ids]
    for name in ("obs", "action", "reward", "discount"):
        assert_equal(getattr(t, name), tree_stack([e[name] for e in expected]), name)
    following = [n for n, e in enumerate(expected) if "next_obs" in e]
    if following:
        found = tree_map(lambda x: x[following], t.next_obs)
        assert_equal(found, tree_stack([expected[n]["next_obs"] for n in following]), "next_obs")
    assert t.reward.dtype == t.discount.dtype == F


@dataclass
class World:
    """Workers that feed a buffer and its reference, and are replaced now and then."""

    spec: ReplaySpec
    mode: str
    seed: int = 0
    obs: str = "vector"
    ends: Any = ENDS
    restarts: float = 0.1
    sizes: tuple[int, ...] = (1, 3, 2)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.observe = Observations(self.obs)
        self.replay, self.naive = make_replay(self.spec), Naive(self.spec)
        self.workers = [self._worker(n) for n in self.sizes]

    def _worker(self, streams: int) -> Worker:
        return Worker(self.rng, self.mode, streams, self.observe, self.ends)

    def turn(self, length: int | None = None) -> tuple[int, Trajectory]:
        """One fragment of one worker; returns what was inserted."""
        i = int(self.rng.integers(len(self.workers)))
        restarted = self.rng.random() < self.restarts
        if restarted:
            more = int(self.rng.random() < 0.3)
            self.workers[i] = self._worker(len(self.workers[i].streams) + more)
        fragment, rows = self.workers[i].fragment(length or int(self.rng.integers(1, 8)))
        self.naive.add(i, rows, restarted=restarted)
        self.replay.add(i, fragment)
        return i, fragment

    def turns(self, num: int) -> None:
        for _ in range(num):
            self.turn()
