"""What a minibatch is: flat rows, or whole streams, whose rows stay as they followed each other (for V-trace and recurrent
networks).

Axes: T rows of B streams; N = (T+1) * B rows of network inputs, step by step (row t * B + b).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from raypid.algorithms.joint_batch import Share, share_of
from raypid.types import Array, Collective, Trajectory, tree_map

MAX_LOG_RATIO = 20.0
"""Of two policies' probabilities of an action: beyond it (actions at the edge of a squashed Gaussian, whose mean lies far outside) a
float32 overflows sooner or later."""


@dataclass(slots=True)
class Batch:
    """Valid rows of a trajectory, flattened: N rows. Arrays, or tensors once they are on the learner's device."""

    inputs: Any
    """None where the network has seen them as streams."""
    action: Any
    """[N, *] canonical."""
    log_prob: Any
    """[N] of the acting policy."""
    value: Any
    """[N] of the acting policy."""
    advantage: Any
    """[N]."""
    target: Any
    """[N] lambda return: what the value shall be."""
    share: Share | None = None
    """Where several learners hold a batch together: which of its rows are these."""

    def __len__(self) -> int:
        return len(self.log_prob)

    def take(self, rows: Any) -> Batch:
        action = tree_map(lambda a: a[rows], self.action)
        columns = (getattr(self, name)[rows] for name in ("log_prob", "value", "advantage", "target"))
        return Batch(self.inputs.take(rows), action, *columns)


@dataclass(slots=True)
class Streams:
    """T rows of B streams and the observation after them; arrays, or tensors once they are on the learner's device."""

    inputs: Any
    """[T+1, B, *]."""
    first: Array
    """[T+1, B] bool, an array in any case: where a recurrent state begins anew."""
    valid: Array
    """[T, B] bool, an array in any case: what may be learnt from."""
    action: Any
    """[T, B, *] canonical."""
    columns: dict[str, Any]
    """[T, B] float32: log_prob of the acting policy, and what the algorithm learns by."""
    state: Any = None
    """[B, K, S] recurrent state before row 0; None for networks without one."""
    share: Share | None = None
    """Where several learners hold a batch together: which of its streams are these."""

    def __len__(self) -> int:
        return int(np.count_nonzero(self.valid))

    @property
    def num_streams(self) -> int:
        return self.valid.shape[1]

    def take(self, streams: Array) -> Streams:
        """These streams [n] alone."""
        return Streams(
            inputs=self.inputs.take((slice(None), streams)),
            first=self.first[:, streams],
            valid=self.valid[:, streams],
            action=tree_map(lambda a: a[:, streams], self.action),
            columns={name: column[:, streams] for name, column in self.columns.items()},
            state=None if self.state is None else self.state[streams],
        )

    def rows(self, collective: Collective | None) -> Batch:
        """The valid rows by themselves, once they have advantage and target. (Flattened, the rows of the last observations come last.)"""
        learnt = np.flatnonzero(self.valid.ravel())
        batch = self.learnt_by(self.columns, learnt)
        batch.inputs = self.inputs.flatten().take(learnt)
        if collective is not None:
            advantage = self.columns["advantage"]
            advantage = advantage.cpu().numpy() if hasattr(advantage, "cpu") else advantage
            batch.share = share_of(advantage, self.valid, collective)
        return batch

    def learnt_by(self, columns: dict[str, Any], learnt: Array | slice) -> Batch:
        """These of the T * B flat rows with what `columns` [T, B] say of them, without inputs."""
        action = tree_map(lambda a: a.reshape(-1, *a.shape[2:])[learnt], self.action)
        names = ("log_prob", "value", "advantage", "target")
        return Batch(None, action, *(columns[name].reshape(-1)[learnt] for name in names))

    def by_row(self, log_prob: Any, value: Any) -> tuple[Any, Any]:
        """log_prob [T * B] and value [(T+1) * B] as [T, B] and [T+1, B]."""
        num_rows, num_streams = self.valid.shape
        return log_prob.reshape(num_rows, num_streams), value.reshape(num_rows + 1, num_streams)

    def learnt(self) -> Array | slice:
        """The valid ones of the T * B flat rows."""
        rows = self.valid.ravel()
        return slice(None) if rows.all() else np.flatnonzero(rows)


def vtrace_columns(t: Trajectory, reward: Array, gamma: float) -> dict[str, Array]:
    """What `ops.vtrace` needs of a trajectory besides the learner's values: [T, B] float32.

    `final` is 1 where the environment handed out a true last observation, and `final_value` its value by the acting policy.
    """
    ended = t.terminated | t.truncated
    passes = np.zeros(t.valid.shape, np.float32)
    passes[:-1] = ~ended[:-1] & t.valid[:-1] & t.valid[1:]
    final, final_value = np.zeros((2, *t.valid.shape), np.float32)
    if t.final is not None:
        final[t.final.t, t.final.b] = 1
        final_value[t.final.t, t.final.b] = t.behaviour["final_value"]
    return {
        "log_prob": t.behaviour["log_prob"],
        "value": t.behaviour["value"][:-1],
        "reward": reward.astype(np.float32, copy=False),
        "discount": np.where(t.terminated, 0, np.float32(gamma)).astype(np.float32),
        "passes": passes,
        "valid": t.valid.astype(np.float32),
        "final": final,
        "final_value": final_value,
    }


def share_of_streams(valid: Array, collective: Collective) -> Share:
    """This learner's share of the streams of a joined batch, from its valid rows [T, B]."""
    rows = collective.gather(valid.sum(0))
    start = sum(len(r) for r in rows[: collective.rank])
    return Share(np.arange(start, start + valid.shape[1]), np.concatenate(rows))
