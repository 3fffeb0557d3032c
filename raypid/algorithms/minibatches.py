"""What a minibatch is: flat rows, or whole streams whose rows stay in order (for V-trace and recurrent networks).

Axes: T rows of B streams; N = (T+1) * B rows of network inputs, step by step (row t * B + b). ArrayT is an array with the NumPy
kernel, and a tensor on the learner's device with torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

import numpy as np

from raypid.algorithms.joint_batch import Share, share_of_rows
from raypid.nn.pipeline import Inputs
from raypid.types import Array, ArrayT, Collective, Tensor, TreeOf, flat_rows, to_numpy, tree_map

if TYPE_CHECKING:
    from raypid.nn.networks import TorchInputs

COLUMNS = ("log_prob", "value", "advantage", "target")
"""Fields of a `Batch` besides inputs and action, in their order."""
MAX_LOG_RATIO = 20.0
"""Bound on the log ratio of two policies' probabilities of an action. Beyond it (actions at the edge of a squashed Gaussian
whose mean lies far outside) a float32 overflows sooner or later."""


Loss: TypeAlias = "tuple[Tensor, dict[str, Tensor]]"
"""A loss [] and its metrics."""
LossGradient: TypeAlias = tuple[Array, float, Array, dict[str, float]]
"""The derivatives of a loss by log_prob [n], entropy (the same for each row) and value [n], and its metrics."""


def mean(x: Array) -> float:
    """Mean of x [n]; for few rows several times as fast as NumPy's."""
    return float(x.sum()) / len(x)


@dataclass(slots=True, kw_only=True)
class _Held:
    """The part of a batch that this learner holds."""

    share: Share | None = None
    """Which rows, or streams, of the joint batch these are; None for a single learner."""

    @property
    def fraction(self) -> float:
        """Number of these rows, divided by the number of rows of all learners."""
        return 1.0 if self.share is None else self.share.fraction


@dataclass(slots=True)
class Batch(_Held, Generic[ArrayT]):
    """Valid rows of trajectories, flattened: n rows. The argument `batch` of an actor-critic's `loss`. (Algorithms with
    replay have `TransitionBatch`.)"""

    inputs: Inputs | TorchInputs | None
    """[n, *] network inputs; None if the network has evaluated whole streams."""
    action: TreeOf[ArrayT]
    """[n, *] canonical."""
    log_prob: ArrayT
    """[n] of the policy that acted."""
    value: ArrayT
    """[n] of the policy that acted."""
    advantage: ArrayT
    """[n]; normalised if normalize_advantages is true."""
    target: ArrayT
    """[n] value target: the lambda return."""

    def __len__(self) -> int:
        return len(self.log_prob)

    @property
    def num_units(self) -> int:
        """Number of rows, the units by which `cut` divides a batch."""
        return len(self)

    def take(self, rows: Array) -> Batch[ArrayT]:
        """Select rows by index [n]."""
        assert self.inputs is not None
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        return Batch(self.inputs.take(rows), tree_map(lambda a: a[rows], self.action), **columns)

    def rows(self) -> tuple[Batch[ArrayT], slice]:
        """Return the rows to learn from, and their indices among the rows that the network evaluates: here all."""
        return self, slice(None)


@dataclass(slots=True)
class Streams(_Held, Generic[ArrayT]):
    """T rows of B streams in order, and the observations after them: the batch of V-trace and of networks with a memory."""

    inputs: Inputs | TorchInputs
    """[T+1, B, *] network inputs."""
    first: Array
    """[T+1, B] bool, always an array: True where an episode begins, so that the recurrent state is reset."""
    valid: Array
    """[T, B] bool, always an array: the rows to learn from."""
    action: TreeOf[ArrayT]
    """[T, B, *] canonical."""
    columns: dict[str, ArrayT]
    """[T, B] float32 each: log_prob of the policy that acted, and other columns of the algorithm (`ActorCritic.columns`)."""
    state: ArrayT | None = None
    """[B, K, S] recurrent state before row 0; None for networks without one."""

    def __len__(self) -> int:
        return int(np.count_nonzero(self.valid))

    @property
    def num_units(self) -> int:
        """Number of streams, the units by which `cut` divides a batch."""
        return int(self.valid.shape[1])

    def take(self, streams: Array) -> Streams[ArrayT]:
        """Select streams by index [n]."""
        return Streams(
            inputs=self.inputs.take((slice(None), streams)),
            first=self.first[:, streams],
            valid=self.valid[:, streams],
            action=tree_map(lambda a: a[:, streams], self.action),
            columns={name: column[:, streams] for name, column in self.columns.items()},
            state=None if self.state is None else self.state[streams],
        )

    def rows(self) -> tuple[Batch[ArrayT], Array | slice]:
        """Return the valid rows, without inputs, and their indices among the T * B rows. `columns` must have advantage and target."""
        valid = self.valid.ravel()
        which = slice(None) if valid.all() else np.flatnonzero(valid)
        return self._batch(None, which), which

    def flattened(self, collective: Collective | None) -> Batch[ArrayT]:
        """Return the valid rows as a `Batch`, in which the order of rows does not matter.

        Inputs have (T+1) * B rows when flattened. The rows of the last observations come last, so the first T * B keep their indices.
        """
        which = np.flatnonzero(self.valid.ravel())
        batch = self._batch(self.inputs.flatten().take(which), which)
        if collective is not None:
            batch.share = share_of_rows(to_numpy(self.columns["advantage"]), self.valid, collective)
        return batch

    def _batch(self, inputs: Inputs | TorchInputs | None, which: Array | slice) -> Batch[ArrayT]:
        action = tree_map(lambda a: a[which], flat_rows(self.action))
        return Batch(inputs, action, *(self.columns[name].reshape(-1)[which] for name in COLUMNS))

    def by_row(self, log_prob: ArrayT, value: ArrayT) -> tuple[ArrayT, ArrayT]:
        """Reshape log_prob [T * B] to [T, B], and value [(T+1) * B] to [T+1, B]."""
        num_rows, num_streams = self.valid.shape
        return log_prob.reshape(num_rows, num_streams), value.reshape(num_rows + 1, num_streams)


Minibatch: TypeAlias = "Batch[Any] | Streams[Any]"
"""A batch that the network evaluates at once. Only losses need to know whether it holds arrays or tensors."""


def cut(batch: Minibatch, batch_size: int, rng: np.random.Generator) -> Iterator[Minibatch]:
    """One epoch: a random permutation of the rows (or streams), cut into equal parts of about `batch_size` rows; nothing
    for no rows. With several learners, each yields its own rows of every minibatch, possibly none."""
    share = batch.share
    num_rows = len(batch) if share is None else int(share.rows.sum())
    if not num_rows:
        return
    num_units = batch.num_units if share is None else len(share.rows)
    count = min(num_units, max(1, round(num_rows / batch_size)))
    for part in np.array_split(rng.permutation(num_units), count):
        if share is not None:
            units, of_part = share.take(part)
            yield replace(batch.take(units), share=of_part)
        elif count == 1 and isinstance(batch, Streams):
            # all of them: nothing is copied
            yield batch
        else:
            yield batch.take(part)
