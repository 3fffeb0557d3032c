"""The data that roles exchange: dataclasses of arrays with one row for each step, never one object for each step.

Axes: T rows (steps) of a fragment; B streams (a stream is one environment of a vector);
N rows of a flat batch; * the event shape of one observation or action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

S = TypeVar("S")
T = TypeVar("T")

Array: TypeAlias = NDArray[Any]
ArrayT = TypeVar("ArrayT", NDArray[Any], "torch.Tensor")
"""A NumPy array or a torch tensor: for functions that compute with either."""
Tensor: TypeAlias = "torch.Tensor"
"""For annotations in files that must not import torch when they are imported."""
TreeOf: TypeAlias = T | Mapping[str, "TreeOf[T]"]
"""A leaf, or a nested mapping of leaves with string keys (Tuple spaces use "0", "1", ...)."""
Tree: TypeAlias = TreeOf[Array]
"""An array, or a nested mapping of arrays."""
Table: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""(name, shape) of the parts of a flat array, in order."""
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""What a JSON file can hold."""


@overload
def tree_map(function: Callable[[S], T], tree: TreeOf[S]) -> TreeOf[T]: ...
@overload
def tree_map(function: Callable[..., T], tree: TreeOf[S], *others: TreeOf[S]) -> TreeOf[T]: ...
def tree_map(function: Callable[..., T], tree: TreeOf[S], *others: TreeOf[S]) -> TreeOf[T]:
    """Apply `function` to every leaf of `tree`, together with the leaves at the same place in `others`."""
    if isinstance(tree, Mapping):
        return {k: tree_map(function, v, *(_child(o, k) for o in others)) for k, v in tree.items()}
    return function(tree, *others)


def _child(tree: TreeOf[S], key: str) -> TreeOf[S]:
    assert isinstance(tree, Mapping), "trees of different structure"
    return tree[key]


def tree_leaves(tree: TreeOf[T], prefix: str = "") -> Iterator[tuple[str, T]]:
    """Yield (path, leaf) with "/" between the keys; the path of a bare array is ""."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from tree_leaves(value, f"{prefix}/{key}" if prefix else str(key))
    else:
        yield prefix, tree


def as_tree(nested: object, lists: bool = False) -> TreeOf[object]:
    """Turn tuples, and lists too if `lists`, into mappings with the keys "0", "1", ..."""
    if isinstance(nested, Mapping):
        return {str(key): as_tree(part, lists) for key, part in nested.items()}
    if isinstance(nested, (tuple, list) if lists else tuple):
        return {str(i): as_tree(part, lists) for i, part in enumerate(nested)}
    return nested


def tree_stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees of the same structure along a new first axis."""
    return tree_map(lambda *leaves: np.array(leaves), *trees)  # for many small arrays a third of the time of np.stack


def tree_concat(trees: Sequence[Tree], axis: int = 0) -> Tree:
    """Join trees of the same structure along an existing axis."""
    if len(trees) == 1:
        return trees[0]
    return tree_map(lambda *leaves: np.concatenate(leaves, axis), *trees)


@dataclass(slots=True)
class Final:
    """The true last observations of K episodes whose environment reset within the same step.

    obs[k] follows row t[k] of stream b[k].
    """

    t: Array
    """[K] int: row."""
    b: Array
    """[K] int: stream."""
    obs: Tree
    """[K, *] raw."""


class Moments(NamedTuple):
    """Number, mean and sum of squared deviations of rows [N, D], float64."""

    num_rows: float
    """N."""
    mean: Array
    """[D]."""
    m2: Array
    """[D] sum of squared deviations from the mean."""

    def as_arrays(self, prefix: str = "") -> dict[str, Array]:
        """Return copies to send or save: arrays count, mean and m2, with `prefix` before each name."""
        return {f"{prefix}{name}": np.array(x) for name, x in zip(("count", "mean", "m2"), self, strict=True)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], prefix: str = "", size: int | None = None) -> Moments:
        """Return the moments from which `as_arrays` made these arrays, as copies.

        Args:
            size: D, which is then checked.

        Raises:
            ValueError: the arrays are not moments of rows [N, `size`].
        """
        count, mean, m2 = (arrays[f"{prefix}{name}"] for name in ("count", "mean", "m2"))
        if size is not None:
            matching(count, np.zeros(()))
            mean, m2 = (matching(x, np.zeros(size)) for x in (mean, m2))
        return cls(np.float64(count), mean.copy(), m2.copy())


@dataclass(slots=True)
class Rows:
    """T consecutive rows of B streams.

    obs and first have one row more than the other fields. `valid` is False on rows that are not real
    transitions: the row in which a NEXT_STEP environment resets, and a step in which it crashed.
    """

    obs: Tree
    """[T+1, B, *] raw: not normalised, single frames; stacks [T+1, B, k, *] in a sequence of a replay buffer that stacks."""
    first: Array
    """[T+1, B] bool: obs[t] is the first observation of an episode."""
    action: Tree
    """[T, B, *] canonical: before scaling and clipping (`Policy.to_env` maps it)."""
    reward: Array
    """[T, B] float32, raw."""
    terminated: Array
    """[T, B] bool: the episode ended at this row, and nothing follows."""
    truncated: Array
    """[T, B] bool: the episode was cut off at this row, for instance by a time limit."""
    valid: Array
    """[T, B] bool: the row is a real transition."""


@dataclass(slots=True)
class Trajectory(Rows):
    """A fragment: T rows of B streams, with the actions of the policy and the answers of the environment."""

    final: Final | None = None
    """True last observations of episodes whose environment reset within the step; None if there are none."""
    behaviour: dict[str, Array] = field(default_factory=dict)
    """Outputs of the policy that acted: log_prob [T, B] and value [T+1, B]; final_value [K] if `final` is set; for replay
    of sequences, memory [T, B, K, S] before each row."""
    state: Tree | None = None
    """State of the policy at row 0, [B, *]: earlier frames; with a memory, {"memory": [B, K, S], "pipeline": earlier frames}."""
    stream: Array | None = None
    """[B] int64: numbers of the streams among those of all workers, since fragments may arrive in any order."""
    version: int = 0
    """Version of the oldest weights that acted."""
    moments: Moments | None = None
    """Moments of the observations in this fragment; None if observations are not normalised."""
    policy_id: str = "default"
    """Always "default": reserved for runs of several policies."""

    @property
    def num_rows(self) -> int:
        """T."""
        return int(self.reward.shape[0])

    @property
    def num_streams(self) -> int:
        """B."""
        return int(self.reward.shape[1])

    @property
    def num_valid(self) -> int:
        """Number of valid rows in all streams."""
        return int(np.count_nonzero(self.valid))

    @property
    def largest_reward(self) -> float:
        """The largest absolute value of a reward."""
        return float(np.abs(self.reward).max(initial=0.0))


def _joined(names: Iterable[str], parts: Sequence[object], axis: int = 0) -> dict[str, Any]:
    """Join attributes of `parts`, which are arrays or trees of arrays, along an axis."""
    return {name: tree_concat([getattr(part, name) for part in parts], axis) for name in names}


def concat_trajectories(parts: Sequence[Trajectory]) -> Trajectory:
    """Join fragments of equal T along the streams axis, in the order given. The moments are dropped."""
    if len(parts) == 1:
        return parts[0]
    starts = accumulate((p.num_streams for p in parts), initial=0)
    finals = [
        Final(p.final.t, p.final.b + start, p.final.obs) for p, start in zip(parts, starts) if p.final is not None
    ]
    states = [p.state for p in parts if p.state is not None]
    streams = [p.stream for p in parts if p.stream is not None]
    rows = [k for k in parts[0].behaviour if k != "final_value"]
    behaviour = {k: np.concatenate([p.behaviour[k] for p in parts], 1) for k in rows}
    if any("final_value" in p.behaviour for p in parts):
        behaviour["final_value"] = np.concatenate([p.behaviour["final_value"] for p in parts if p.final is not None])
    return Trajectory(
        **_joined((f.name for f in fields(Rows)), parts, axis=1),
        final=Final(**_joined(("t", "b", "obs"), finals)) if finals else None,
        behaviour=behaviour,
        state=tree_concat(states) if states else None,
        stream=np.concatenate(streams) if streams else None,
        version=min(p.version for p in parts),
    )


@dataclass(slots=True)
class Weights:
    """One version of a policy's parameters: a flat buffer and a table that names its parts."""

    version: int
    """Counts the updates: the learner adds 1 with each. If it is given weights, it goes on from their version."""
    flat: Array
    """[P] float32."""
    table: Table
    """Names and shapes of the parts of `flat`, in order."""
    extra: dict[str, Array] = field(default_factory=dict)
    """Arrays of any dtype that are not trained, such as the normaliser's moments."""
    policy_id: str = "default"
    """Always "default": reserved for runs of several policies."""

    def as_dict(self) -> dict[str, Array]:
        """Return views of the buffer, by name."""
        return flat_views(self.flat, self.table)


def to_numpy(values: object) -> Array:
    """Convert to NumPy, also a torch tensor that requires a gradient."""
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


def matching(saved: object, ours: Array) -> Array:
    """Return `saved` if it is an array of numbers of the shape of `ours`.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(saved, np.ndarray) and saved.shape == ours.shape and saved.dtype.kind in "biuf":
        return saved
    there = f"{saved.dtype} {list(saved.shape)}" if isinstance(saved, np.ndarray) else type(saved).__name__
    raise ValueError(f"an array of shape {list(ours.shape)} is needed, {there} was saved")


def flat_rows(tree: TreeOf[ArrayT]) -> TreeOf[ArrayT]:
    """Reshape the leaves [T, B, *] of a tree to [T * B, *]."""
    return tree_map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def flat_views(flat: ArrayT, table: Table) -> dict[str, ArrayT]:
    """Views of a flat array or tensor [*, P], by name: [*, shape]."""
    views, offset = {}, 0
    for name, shape in table:
        size = math.prod(shape)
        views[name] = flat[..., offset : offset + size].reshape(flat.shape[:-1] + shape)
        offset += size
    return views


class Collective(Protocol):
    """Communication among the data-parallel learners of a run. All of them must make the same calls in the same order."""

    rank: int
    """The number of this learner, from 0."""
    size: int
    """The number of learners."""

    def sum(self, x: ArrayT) -> ArrayT:
        """Sum an array or tensor over all learners, in place, and return it. Every rank gets the same bits."""

    def gather(self, value: T) -> list[T]:
        """Return every learner's value, in rank order. Values must be small and can be pickled."""


@dataclass(slots=True)
class Transition:
    """N rows for off-policy learning, each folded from up to n consecutive steps."""

    obs: Tree
    """[N, *] raw, or stacks [N, k, *]."""
    action: Tree
    """[N, *] canonical."""
    reward: Array
    """[N] float32: sum of gamma^k * reward over the folded steps."""
    discount: Array
    """[N] float32: gamma^(number of folded steps), 0 where the episode terminated."""
    next_obs: Tree
    """[N, *] observation after the last folded step."""


@dataclass(slots=True)
class Sample:
    """N rows drawn from a replay buffer, with their probabilities and importance weights."""

    data: Transition
    """The N rows."""
    id: Array
    """[N] int64: row ids, for `set_priorities`."""
    probability: Array
    """[N] probability with which each row was drawn."""
    weight: Array
    """[N] float32 importance weights."""


@dataclass(slots=True)
class Sequences(Rows):
    """N sequences of T = burn_in + length rows: B is N here."""

    burn_in: int
    """Leading rows that only bring the recurrent state up to date; nothing is learned from them."""
    id: Array
    """[N] int64: ids of the first rows, for `set_priorities`."""
    probability: Array
    """[N] probability with which each first row was drawn, among the rows at which a sequence can start."""
    weight: Array
    """[N] float32 importance weights."""
    memory: Array | None = None
    """[N, K, S] memory of the policy that acted, before the first rows; None if it was not recorded."""


@dataclass(slots=True)
class Gradients:
    """The gradient of a loss over a worker's own rows, taken at the weights that the worker acted with."""

    flat: Array
    """[P] float32, in the order of the weights."""
    version: int
    """Version of those weights."""
    num_steps: int
    """Number of rows that the loss is a mean over."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the loss, reported as learner/NAME."""
    moments: Moments | None = None
    """Moments of the observations; None if observations are not normalised."""
    largest_reward: float = 0.0
    """The largest absolute value of a raw reward in these rows, to explain a gradient that is not finite."""
    returns: Moments | None = None
    """Moments of the discounted returns; None if rewards are not scaled by them."""


@dataclass(slots=True)
class Fitness:
    """Returns of n pairs of antithetic perturbations.

    Pair k played weights + sigma * e and weights - sigma * e, where e is the slice of P numbers of the noise table that
    starts at `index[k]`.
    """

    index: Array
    """[n] int64."""
    value: Array
    """[n, 2] float64: raw returns of the two perturbations, + and -."""
    length: Array
    """[n, 2] int64: numbers of steps of their episodes."""
    version: int = 0
    """Version of the weights that were perturbed; of the oldest if there were several."""
    moments: Moments | None = None
    """Moments of the observations; None if observations are not normalised."""


Collected: TypeAlias = Trajectory | Gradients | Fitness
"""What workers of an algorithm send: most send trajectories, A3C gradients, ES and ARS fitness."""


def concat_fitness(parts: Sequence[Fitness]) -> Fitness:
    """Join pairs in the order given. Like `concat_trajectories`, this drops the moments."""
    return Fitness(**_joined(("index", "value", "length"), parts), version=min(p.version for p in parts))


def means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the mappings that have it."""
    names = {name: None for m in metrics for name in m}
    return {n: float(np.mean([m[n] for m in metrics if n in m])) for n in names}


@dataclass(slots=True)
class Update:
    """The result of one update of the learner."""

    metrics: dict[str, float]
    """Reported as learner/NAME."""
    num_updates: int
    """Number of gradient steps taken."""
    priorities: Array | None = None
    """[N] new priorities of the rows of a sample; None without prioritised replay."""


class Metrics(dict[str, float]):
    """The metrics of an update by name."""

    def __init__(self, metrics: Mapping[str, float], num_updates: int = 0, version: int = 0) -> None:
        super().__init__(metrics)
        self.num_updates = num_updates
        """Number of gradient steps taken."""
        self.version = version
        """Version of the weights after them."""


class Priorities(list[Array]):
    """New priorities [N] of the rows of each sample that was learnt from; empty without prioritised replay."""

    def __init__(self, priorities: Iterable[Array], num_updates: int = 0) -> None:
        super().__init__(priorities)
        self.num_updates = num_updates
        """Number of updates made."""


@dataclass(frozen=True, slots=True)
class LearnerCopy:
    """A learner's state, to go on from when its process is lost."""

    progress: int
    """Number of updates in the state."""
    state: dict[str, Any]
    """The learner's `state_dict`."""
    weights: Weights
    """Weights in that state, with which workers act."""
    seconds: float = 0.0
    """Approximate seconds that the copy took, transfer to other processes included."""


@dataclass(slots=True)
class Report:
    """Counts and times of one collect call. The loop reads the report, while the data are passed on by reference."""

    worker_index: int
    """Number of the worker, from 0."""
    num_steps: int
    """Number of valid environment steps."""
    version: int
    """Version of the oldest weights that acted."""
    size: int = 1
    """How much the data count towards one update of an asynchronous loop: fragments, gradients or pairs of perturbations."""
    episode_rewards: list[float] = field(default_factory=list)
    """Returns of the episodes that ended, as the environment gave the rewards."""
    episode_lengths: list[int] = field(default_factory=list)
    """Their numbers of steps."""
    episode_metrics: dict[str, list[float]] = field(default_factory=dict)
    """Metrics that callbacks returned for the episodes that ended."""
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds of this call by part: env, inference, total."""
    crashes: list[str] = field(default_factory=list)
    """Tracebacks of environments that raised and were rebuilt."""
    returns: Moments | None = None
    """Moments of the discounted return [1] of the running episode at each valid row; None unless rewards from replay are divided by it."""
    moments: Moments | None = None
    """Moments of the observations of this call; None if observations are not normalised."""

    def join(self, more: Report) -> None:
        """Add the counts of another report."""
        self.num_steps += more.num_steps
        self.episode_rewards += more.episode_rewards
        self.episode_lengths += more.episode_lengths
        self.crashes += more.crashes
        for metric, values in more.episode_metrics.items():
            self.episode_metrics.setdefault(metric, []).extend(values)
        for part, seconds in more.timing.items():
            self.timing[part] = self.timing.get(part, 0.0) + seconds
