"""Checks of what a loop of the user's own gives to roles, before it does any harm.

They look at types, names and shapes, and at numbers only where they index something: a call costs some tens of microseconds more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from raypid.algorithms.base import check_table
from raypid.errors import ConfigError, UserError, shown
from raypid.nn.network_policy import NetworkPolicy
from raypid.nn.user_model import ModelPolicy
from raypid.replay.buffer import row_shapes
from raypid.roles.setup import Setup
from raypid.storage.neighbours import check_folder
from raypid.types import Fitness, Gradients, Report, Sample, Table, Trajectory, Weights, tree_leaves

_LEAST = {"worker_index": 0, "num": 1, "num_episodes": 1, "seed": 0, "newer_than": -1}
"""Arguments that are whole numbers, and the least value of each."""
_STEPS = (
    "It is the number of environment steps of the whole run so far (add up report.num_steps), and comes before the data or after the "
    "weights."
)
_TYPES: dict[str, type] = {"weights": Weights, "since": Weights, "report": Report, "samples": Sample, "sample": Sample}
"""Arguments that are objects of one type. What workers collect (data, fragment) is of the algorithm's type."""
_COLLECTED: dict[str, type] = {"trajectory": Trajectory, "gradients": Gradients, "fitness": Fitness}
"""The type of what workers collect, by `Algorithm.collect`."""
_EXPLORATION = ("random", "epsilon", "noise", "pairs", "sigma")
"""The settings of exploration that a policy or a worker heeds."""
_OPTIONAL = {
    "ParameterServer.push since", "ParameterServer.pull newer_than", "Learner.observe fragment", "Rollout.collect exploration",
}  # fmt: skip
"""Arguments that may be None."""
_SOURCES: dict[type, str] = {
    Weights: "Learner.weights() and ParameterServer.pull() return them (pull: None before the first push). Learner.update and Learner.learn "
    "return a pair, of which they are the second.",
    Report: "It is the first of what Rollout.collect returns.",
    Sample: "Replay.sample returns it. Give each sample as an argument of its own: learn(timesteps, *samples).",
    **dict.fromkeys(
        _COLLECTED.values(),
        "Give the second of what Rollout.collect returns: report, data = rollout.collect(weights, timesteps). On Ray, call it with "
        ".options(num_returns=2). Give what each worker collected as an argument of its own.",
    ),
}
"""What returns an object of a type, and where it goes."""

_ARRAYS: dict[type, dict[str, str]] = {
    Trajectory: {
        "number T B": "reward behaviour.log_prob?",
        "bool T B": "terminated truncated valid",
        "bool T+1 B": "first",
        "number T+1 B": "behaviour.value?",
        "number T+1 B obs": "obs",
        "number T B action": "action",
        "int<T K": "final?.t",
        "int<B K": "final?.b",
        "number K obs": "final?.obs",
        "number K": "behaviour.final_value?",
        "number *": "behaviour",
        "number B *": "state?",
        "int B": "stream?",
    },
    Gradients: {"number P": "flat"},
    Fitness: {"int n": "index", "number n 2": "value", "int n 2": "length"},
    Report: {"number D": "moments?.mean moments?.m2", "number 1": "returns?.mean returns?.m2"},
    Sample: {
        "number N": "data.reward data.discount probability weight",
        "number N stack": "data.obs data.next_obs",
        "number N action": "data.action",
        "int N": "id",
    },
    Weights: {"number P": "flat", "number *": "extra"},
}
"""Type and axes -> the fields that have them, which are arrays or trees of arrays. The first field with an axis sets its length. obs, stack and
action stand for the axes of an observation, a stack of frames and an action, * for any. A field with ? may be None."""
_KINDS = {
    "bool": ("b", "bool"),
    "number": ("biuf", "numbers"),
    "int": ("iu", "whole numbers of at least 0"),
    "int<T": ("iu", "whole numbers of at least 0 and below T"),
    "int<B": ("iu", "whole numbers of at least 0 and below B"),
}
"""Kinds of dtype, and what a message calls them."""


def described(value: object) -> str:
    """Say what a value is, as a message names it: the type of what is large, and the value of what is small."""
    kind = type(value).__name__
    if kind == "ObjectRef":
        return "an ObjectRef: call ray.get on it first, or pass it as an argument of its own to a method's remote()"
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)} and dtype {value.dtype}"
    if isinstance(value, (tuple, list)):
        return f"a {kind} of {len(value)} ({', '.join(type(part).__name__ for part in value[:3])})"
    if value is None or isinstance(value, (str, bytes, bool, int, float, type)):
        return shown(value)
    return f"{'an' if kind[:1] in 'AEIOU' else 'a'} {kind}"


def _mistake(call: str, name: str, expected: str, value: object, advice: str) -> UserError:
    """The error for an argument that is not what it must be."""
    return UserError(f"{call}: {name} must be {expected}, not {described(value)}. {advice}".rstrip())


def _check_number(call: str, name: str, value: object, least: int, kind: type = Integral, advice: str = "") -> None:
    """Check a number.

    Raises:
        UserError: it is not of this kind, or it is below `least`.
    """
    if not isinstance(value, kind) or isinstance(value, bool) or not value >= least:  # type: ignore[operator]
        expected = f"a {'whole ' if kind is Integral else ''}number of at least {least}"
        raise _mistake(call, name, expected, value, advice)


class Checks:
    """Checks the arguments of a role's methods, by their names.

    It raises UserError, or ConfigError for weights of another network. The message says what was given, what is expected, and what to do.

    Args:
        role: the name of its class.
        setup: what it is made from.
        numbers: other arguments of its class, which must be whole numbers of at least 0, by name.
    """

    def __init__(self, role: str, setup: object, numbers: Mapping[str, object]) -> None:
        if not isinstance(setup, Setup):
            raise UserError(f"{role} is made from a setup, raypid.setup(algorithm, env), not from {described(setup)}.")
        for name, value in numbers.items():
            _check_number(role, name, value, 0)
        self._setup, network, shapes = setup, setup.network, row_shapes(setup.network)
        self._types = {**_TYPES, **dict.fromkeys(("data", "fragment"), _COLLECTED[setup.collect])}
        self._needed = ("log_prob?", "value?") if network.head == "actor_critic" else ()
        """Parts of a trajectory's behaviour that are not optional."""

        def leaves(column: str, *first: int) -> dict[str, tuple[int, ...]]:
            return {path[len(column) :]: (*first, *x) for path, x in shapes.items() if path.startswith(column)}

        stack = [network.pipeline.frame_stack] if network.pipeline.frame_stack > 1 else []
        self._rows = {"obs": leaves("obs/"), "stack": leaves("obs/", *stack), "action": leaves("action/")}
        """Shapes of the leaves of an observation, a stack of frames and an action, by path."""
        self.table: Table | None = None
        """Names and shapes of the weights; None until the first weights come, where only a built network knows."""
        if network.torch_free and network.head != "model":
            self.table = network.mlp_table(network.pipeline.vector_size)

    def know(self, policy: NetworkPolicy) -> None:
        """Take names and shapes of the weights from the policy that will act with them."""
        if isinstance(policy, ModelPolicy):
            self.table = policy.layout.table
        elif self.table is None:
            from raypid.nn.networks import TorchNetwork

            self.table = TorchNetwork(policy.spec).table

    def check(self, call: str, arguments: Mapping[str, object]) -> None:
        """Check the arguments of a call such as "Learner.update", by name."""
        algorithm, replays = self._setup.algorithm.__name__, self._setup.replay is not None
        if call in ("Learner.learn", "Learner.observe") and not replays:
            raise UserError(f"{call}: {algorithm} learns from what workers collect: call update(timesteps, *data).")
        if call == "Learner.update" and replays:
            raise UserError(f"{call}: {algorithm} learns from samples of a Replay: call learn(timesteps, *samples).")
        for name, value in arguments.items():
            if value is None and f"{call} {name}" in _OPTIONAL:
                continue
            if name == "timesteps":
                _check_number(call, name, value, 0, Real, _STEPS)
            elif name in _LEAST:
                _check_number(call, name, value, _LEAST[name])
            elif name == "folder":
                check_folder(call, value)
            elif name == "exploration":
                if not isinstance(value, Mapping) or value.keys() - set(_EXPLORATION):
                    names = ", ".join(_EXPLORATION)
                    raise UserError(f"{call}: exploration must be a dict with keys of {names}, not {shown(value)}.")
            else:
                self._check_objects(call, name, value if name in ("data", "samples") else (value,))

    def check_rows(self, call: str, sample: Sample, priorities: object, count: int) -> None:
        """Check new priorities of the rows of a sample, from a buffer to which `count` rows have been added."""
        self.check(call, {"sample": sample})
        new, num = np.asarray(priorities), len(sample.id)
        if new.shape != (num,) or new.dtype.kind not in "iuf" or not (np.isfinite(new) & (new > 0)).all():
            advice = "Learner.learn returns a list with an array for each sample that it was given."
            raise _mistake(call, "priorities", f"a finite number above 0 for each of {num} rows", priorities, advice)
        if sample.id.max() >= count:
            raise UserError(f"{call}: the sample has rows of another buffer. Give it to the Replay that drew it.")

    def _check_objects(self, call: str, name: str, values: Any) -> None:
        """Check the objects of an argument. Their rows (axes T and N) are equally many."""
        kind, known = self._types[name], dict[str | int, int]()
        if not values:
            raise UserError(f"{call} takes {name} after timesteps, and there is none. {_SOURCES[kind]}")
        for value in values:
            if not isinstance(value, kind):
                raise _mistake(call, name, f"of type {kind.__name__}", value, _SOURCES[kind])
            if isinstance(value, Weights):
                _check_number(call, "weights.version", value.version, 0)
                try:
                    check_table(value.table, self.table or value.table)
                except ConfigError as error:
                    raise ConfigError(f"{call}: {error} Make all roles of a run from the same setup.") from None
                self.table = value.table
            known = {axis: length for axis, length in known.items() if axis in ("T", "T+1", "N")}
            self._check_arrays(call, value, known)
        num, size = len(values) * known.get("N", 0), self._setup.config.batch_size
        if name == "samples" and (num % size or size % len(values)):
            raise UserError(
                f"{call} takes samples that have together a multiple of batch_size ({size}) rows, and whose number divides {size}: "
                f"learn(timesteps, replay.sample({size}, timesteps)). Here are {num} rows, in samples: {len(values)}."
            )

    def _check_arrays(self, call: str, data: object, known: dict[str | int, int]) -> None:
        """Check that the arrays of a Trajectory, Sample, ... have the right types and fit together.

        Args:
            known: lengths of axes, as far as they are known. Those that are found are added.
        """
        num_weights = sum(math.prod(shape) for _, shape in self.table or ())
        num_normalized = sum(leaf.width for leaf in self._setup.network.pipeline.leaves if leaf.kind == "vector")
        known |= {"1": 1, "2": 2, "P": num_weights, "D": num_normalized}
        for form, paths in _ARRAYS[type(data)].items():
            kind, *axes = form.split()
            rows = self._rows.get(axes[-1])
            for path in paths.split():
                leaves = dict(_leaves(data, path, self._needed))
                if rows is not None and leaves and leaves.keys() != rows.keys():
                    leaves = dict.fromkeys(rows)
                for name, leaf in leaves.items():
                    names: list[str | int] = [*axes] if rows is None else [*axes[:-1], *rows[name]]
                    shape = [known.get(axis, axis) for axis in names]
                    if not _fits(leaf, kind, shape, known):
                        where = f"{path.replace('?', '')} {name}".strip()
                        expected = f"a NumPy array [{', '.join(map(str, shape))}] of {_KINDS[kind][1]}"
                        advice = (
                            "Make all roles of a run from the same setup, and give what they return, or arrays as raypid.types."
                            f"{type(data).__name__} describes them."
                        )
                        raise _mistake(call, where, expected, leaf, advice)


def _leaves(data: Any, path: str, needed: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield the arrays of a field by their paths in it; none if it may be None and is."""
    for name in path.split("."):
        key = name.rstrip("?")
        data = data.get(key) if isinstance(data, dict) else getattr(data, key, None)
        if data is None and name != key and name not in needed:
            return
    yield from tree_leaves(data)


def _fits(leaf: object, kind: str, shape: Sequence[str | int], known: dict[str | int, int]) -> bool:
    """Whether an array has a type and a shape, of which some axes are still names ("*": any others may follow). Adds their lengths to
    `known`."""
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in _KINDS[kind][0]:
        return False
    axes = [axis for axis in shape if axis != "*"]
    if leaf.ndim < len(axes) or (leaf.ndim > len(axes) and len(axes) == len(shape)):
        return False
    for axis, length in zip(axes, leaf.shape):
        if isinstance(axis, str) and (length or axis == "K"):
            known |= {axis: length, f"{axis}+1": length + 1}
        elif axis != length:
            return False
    below = known.get(kind.partition("<")[2], math.inf)
    return not kind.startswith("int") or not leaf.size or bool(leaf.min() >= 0 and leaf.max() < below)
