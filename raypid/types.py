"""The data that roles exchange: columns (arrays), never per-step objects.

Axes: T rows (steps) of a fragment; B streams (a stream is one acting agent in one environment);
N rows of a flat batch; * the event shape of one observation or action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Tree: TypeAlias = "Array | Mapping[str, Tree]"
"""An array, or a nested mapping of arrays with string keys (Tuple spaces use "0", "1", ...)."""


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply `function` to every leaf (and the leaves at the same place of `others`)."""
    if isinstance(tree, Mapping):
        return {k: tree_map(function, v, *(o[k] for o in others)) for k, v in tree.items()}
    return function(tree, *others)


def tree_leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) with "/" between the keys; a bare array has the path ""."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from tree_leaves(value, f"{prefix}/{key}" if prefix else str(key))
    else:
        yield prefix, tree


def tree_stack(trees: Sequence[Any], axis: int = 0) -> Any:
    """Stack trees of one structure along a new axis."""
    return tree_map(lambda *leaves: np.stack(leaves, axis), *trees)


def tree_concat(trees: Sequence[Any], axis: int = 0) -> Any:
    """Join trees of one structure along an existing axis."""
    if len(trees) == 1:
        return trees[0]
    return tree_map(lambda *leaves: np.concatenate(leaves, axis), *trees)


@dataclass(slots=True)
class Final:
    """True last observations of episodes whose environment reset within the same step: obs[k] belongs after row t[k] of stream b[k]."""

    t: Array
    b: Array
    obs: Tree


@dataclass(slots=True)
class Trajectory:
    """A fragment: T consecutive rows of B streams, as acted and as seen.

    obs and first have one row more than the others. `valid` is False on rows that are no real
    transition (the row in which a NEXT_STEP environment resets; a step in which it crashed).
    """

    obs: Tree
    """[T+1, B, *] raw: not normalised, single frames."""
    first: Array
    """[T+1, B] bool: obs[t] begins an episode."""
    action: Tree
    """[T, B, *] canonical: before scaling and clipping (`Policy.to_env` maps it)."""
    reward: Array
    """[T, B] float32, raw."""
    terminated: Array
    """[T, B] bool."""
    truncated: Array
    """[T, B] bool."""
    valid: Array
    """[T, B] bool."""
    final: Final | None = None
    behaviour: dict[str, Array] = field(default_factory=dict)
    """What the acting policy said: log_prob [T, B], value [T+1, B], and final_value [K] where there is a `final`; for replay
    of sequences its memory [T, B, K, S] before each row."""
    state: Tree | None = None
    """State of the policy at row 0, [B, *]: earlier frames; with a memory, {"memory": [B, K, S], "pipeline": earlier frames}."""
    stream: Array | None = None
    """[B] int64: which of all workers' streams these are. Fragments that come in any order are told apart by it."""
    version: int = 0
    """The oldest weights that acted."""
    moments: tuple[Array, Array, Array] | None = None
    """(count [], mean [D], M2 [D]) of the observations in this fragment, where they are normalised."""
    policy_id: str = "default"

    @property
    def num_rows(self) -> int:
        return int(self.reward.shape[0])

    @property
    def num_streams(self) -> int:
        return int(self.reward.shape[1])

    @property
    def num_valid(self) -> int:
        return int(np.count_nonzero(self.valid))


def concat_trajectories(parts: Sequence[Trajectory]) -> Trajectory:
    """Join fragments of equal T along the streams axis, in the order given."""
    if len(parts) == 1:
        return parts[0]
    finals, offset = [], 0
    for part in parts:
        if part.final is not None:
            finals.append(Final(part.final.t, part.final.b + offset, part.final.obs))
        offset += part.num_streams
    final = None
    if finals:
        final = Final(
            np.concatenate([f.t for f in finals]),
            np.concatenate([f.b for f in finals]),
            tree_concat([f.obs for f in finals]),
        )

    def columns(name: str) -> Any:
        return tree_concat([getattr(p, name) for p in parts], axis=1)

    rows = [k for k in parts[0].behaviour if k != "final_value"]
    behaviour = {k: np.concatenate([p.behaviour[k] for p in parts], 1) for k in rows}
    if any("final_value" in p.behaviour for p in parts):
        behaviour["final_value"] = np.concatenate([p.behaviour["final_value"] for p in parts if p.final is not None])
    return Trajectory(
        obs=columns("obs"),
        first=columns("first"),
        action=columns("action"),
        reward=columns("reward"),
        terminated=columns("terminated"),
        truncated=columns("truncated"),
        valid=columns("valid"),
        final=final,
        behaviour=behaviour,
        state=None if parts[0].state is None else tree_concat([p.state for p in parts]),
        stream=None if parts[0].stream is None else np.concatenate([p.stream for p in parts]),
        version=min(p.version for p in parts),
    )


@dataclass(slots=True)
class Weights:
    """One version of a policy's parameters: a flat buffer and the table that names its parts."""

    version: int
    flat: Array
    """[P] float32."""
    table: tuple[tuple[str, tuple[int, ...]], ...]
    """(name, shape) in the order of the buffer."""
    extra: dict[str, Array] = field(default_factory=dict)
    """Arrays of any dtype that are not trained: the normaliser's moments."""
    policy_id: str = "default"

    def as_dict(self) -> dict[str, Array]:
        """Views of the buffer by name."""
        return flat_views(self.flat, self.table)


def flat_views(flat: Any, table: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, Any]:
    """Views of a flat array or tensor, by name, along `table`."""
    views, offset = {}, 0
    for name, shape in table:
        size = int(np.prod(shape))
        views[name] = flat[offset : offset + size].reshape(shape)
        offset += size
    return views


class Collective(Protocol):
    """What the data-parallel learners of a run tell each other. All of them make the same calls in the same order."""

    rank: int
    """Which one this is, from 0."""
    size: int
    """How many there are."""

    def sum(self, x: Any) -> Any:
        """The sum over learners of an array or tensor, in place; returns it. The same bits on every rank."""

    def gather(self, value: Any) -> list[Any]:
        """Every learner's value, in rank order. For what can be pickled and is not large."""


@dataclass(slots=True)
class Transition:
    """What off-policy algorithms learn from: N rows, each up to n steps folded into one."""

    obs: Tree
    """[N, *] raw, or stacks [N, k, *]."""
    action: Tree
    """[N, *] canonical."""
    reward: Array
    """[N] float32: sum of gamma^k * reward over the folded steps."""
    discount: Array
    """[N] float32: gamma^(number of folded steps), 0 where the episode terminated."""
    next_obs: Tree
    """[N, *] after the last folded step."""


@dataclass(slots=True)
class Sample:
    """What a replay buffer hands out."""

    data: Transition
    id: Array
    """[N] int64: rows, for `set_priorities`."""
    probability: Array
    """[N] with which each row was drawn."""
    weight: Array
    """[N] float32 importance weights."""


@dataclass(slots=True)
class Sequences:
    """T = burn_in + length rows of N streams each, as they followed each other."""

    obs: Tree
    """[T+1, N, *] raw, or stacks [T+1, N, k, *]."""
    first: Array
    """[T+1, N] bool."""
    action: Tree
    """[T, N, *] canonical."""
    reward: Array
    """[T, N] float32."""
    terminated: Array
    truncated: Array
    valid: Array
    """[T, N] bool: a real transition."""
    burn_in: int
    """Rows that only bring a recurrent state up to date."""
    id: Array
    """[N] int64: the first rows, for `set_priorities`."""
    probability: Array
    """[N] with which each first row was drawn (among those that begin a sequence: in proportion)."""
    weight: Array
    """[N] float32 importance weights."""
    memory: Array | None = None
    """[N, K, S] of the policy that acted, before the first rows; None where it was not recorded."""


@dataclass(slots=True)
class Gradients:
    """The gradient of a loss over a worker's own rows, by the weights that it acted with."""

    flat: Array
    """[P] float32, in the order of the weights."""
    version: int
    """Of those weights."""
    num_steps: int
    """Rows that it is a mean over."""
    metrics: dict[str, float] = field(default_factory=dict)
    moments: tuple[Array, Array, Array] | None = None
    """(count, mean, M2) of the observations, where they are normalised."""


@dataclass(slots=True)
class Fitness:
    """What n pairs of antithetic perturbations were worth: pair k played weights + sigma * e and weights - sigma * e with e the
    P numbers of the noise table from `index[k]` on."""

    index: Array
    """[n] int64."""
    value: Array
    """[n, 2] float64: raw returns of + and -."""
    length: Array
    """[n, 2] int64: steps of their episodes."""
    version: int = 0
    """The weights that were perturbed; the oldest where several were."""
    moments: tuple[Array, Array, Array] | None = None
    """(count [], mean [D], M2 [D]) of the observations seen, where they are normalised."""


def concat_fitness(parts: Sequence[Fitness]) -> Fitness:
    """Join pairs in the order given; the moments stay behind, as with `concat_trajectories`."""
    return Fitness(
        index=np.concatenate([p.index for p in parts]),
        value=np.concatenate([p.value for p in parts]),
        length=np.concatenate([p.length for p in parts]),
        version=min(p.version for p in parts),
    )


def means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number over those that have it."""
    names = {name: None for m in metrics for name in m}
    return {n: float(np.mean([m[n] for m in metrics if n in m])) for n in names}


@dataclass(slots=True)
class Update:
    """What one learner update did."""

    metrics: dict[str, float]
    num_updates: int
    """Gradient steps taken."""
    priorities: Array | None = None
    """[N] new priorities of the rows of a sample, where they are wanted."""
    version: int = 0
    """Of the weights after it; the learner's role says it."""


@dataclass(slots=True)
class Report:
    """The small part of a collect call, read by the loop while the data passes on by reference."""

    worker_index: int
    num_steps: int
    """Valid environment steps."""
    version: int
    size: int = 1
    """What the data count towards one update of an asynchronous loop: fragments, gradients, pairs of perturbations."""
    episode_rewards: list[float] = field(default_factory=list)
    episode_lengths: list[int] = field(default_factory=list)
    episode_metrics: dict[str, list[float]] = field(default_factory=dict)
    """What callbacks returned for the episodes that ended."""
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds in this call: env, inference, total."""
    crashes: list[str] = field(default_factory=list)
    """Tracebacks of environments that raised and were rebuilt."""

    def join(self, more: Report) -> None:
        """Count what another one counted, too."""
        self.num_steps += more.num_steps
        for name in ("episode_rewards", "episode_lengths", "crashes"):
            getattr(self, name).extend(getattr(more, name))
        for metric, values in more.episode_metrics.items():
            self.episode_metrics.setdefault(metric, []).extend(values)
        for part, seconds in more.timing.items():
            self.timing[part] = self.timing.get(part, 0.0) + seconds
