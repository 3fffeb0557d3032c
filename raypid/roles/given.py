"""Checks of what a loop of the user's own gives to roles, before it does any harm.

They look at types, names and shapes, and at numbers only where they index something: a call costs some tens of microseconds more.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raypid.algorithms.base import check_table
from raypid.errors import ConfigError, UserError, shown
from raypid.nn.network_policy import NetworkPolicy
from raypid.nn.user_model import ModelPolicy
from raypid.replay.buffer import row_shapes
from raypid.roles.setup import Setup, WorkerSetup
from raypid.storage.neighbours import check_folder
from raypid.types import Fitness, Gradients, Report, Sample, Table, Trajectory, Weights, tree_leaves

_CONTENTS: dict[str, tuple[type, str]] = {
    "trajectory": (Trajectory, "a Trajectory"),
    "gradients": (Gradients, "Gradients ({name}'s workers compute them)"),
    "fitness": (Fitness, "Fitness ({name}'s workers play whole episodes)"),
}
"""The type of the data that workers send, by `Algorithm.collect`, and what a message calls them."""
_MOMENTS = {
    "moments?.mean": "number D",
    "moments?.m2": "number D",
    "returns?.mean": "number 1",
    "returns?.m2": "number 1",
}
_ARRAYS: dict[type, dict[str, str]] = {
    Trajectory: {
        "reward": "number T B",
        "obs": "number T+1 B obs",
        "first": "bool T+1 B",
        "action": "number T B action",
        **dict.fromkeys(("terminated", "truncated", "valid"), "bool T B"),
        "final?.t": "int<T K",
        "final?.b": "int<B K",
        "final?.obs": "number K obs",
        "behaviour": "number *",
        "behaviour.log_prob?": "number T B",
        "behaviour.value?": "number T+1 B",
        "behaviour.final_value?": "number K",
        "state?": "number B *",
        "stream?": "int B",
    },
    Gradients: {"flat": "number P"},
    Fitness: {"index": "int N", "value": "number N 2", "length": "int N 2"},
    Report: _MOMENTS,
    Sample: {
        **dict.fromkeys(("data.reward", "data.discount", "probability", "weight"), "number N"),
        **dict.fromkeys(("data.obs", "data.next_obs"), "number N obs"),
        "data.action": "number N action",
        "id": "int N",
    },
    Weights: {"flat": "number P", "extra": "number *"},
}
"""Fields that are arrays or trees of arrays -> type and axes. The first field with an axis sets its length. obs and action stand for the axes
of an observation and an action, * for any. int<T: below T. A field with ? may be None."""
_TYPES = {"bool": ("b", "bool"), "number": ("biuf", "numbers"), "int": ("iu", "whole numbers of at least 0")}
"""Kinds of dtype, and what a message calls them."""
_LEAST = {"worker_index": 0, "num": 1, "num_episodes": 1, "seed": 0}
"""Arguments that are whole numbers, and the least value of each."""


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


def check_setup(role: str, setup: object, numbers: Mapping[str, object]) -> None:
    """Check what a role is made from.

    Raises:
        UserError: `setup` is no Setup, or one of the numbers no whole number of at least 0.
    """
    if not isinstance(setup, WorkerSetup):
        raise UserError(
            f"{role} is made from a setup, not from {described(setup)}: setup = raypid.setup(algorithm, env), then {role}(setup)."
        )
    for name, value in numbers.items():
        check_whole(role, name, value, 0)


def check_whole(call: str, name: str, value: object, least: int) -> None:
    """Check a whole number.

    Raises:
        UserError: it is no whole number, or it is below `least`.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise UserError(f"{call}: {name} must be a whole number of at least {least}, not {described(value)}.")


class Checks:
    """Checks the arguments of a role's methods. `check_NAME` checks the argument NAME.

    Each raises UserError, or ConfigError for weights of another network. The message says what was given, what is expected, and what to do.

    Args:
        setup: what the role was made from.
        policy: the policy that will act with the weights; None in a process that should not build it.
        weights: weights of the run, if there are some yet.
    """

    def __init__(self, setup: WorkerSetup, policy: NetworkPolicy | None, weights: Weights | None) -> None:
        assert isinstance(setup, Setup)
        network, self._replays = setup.network, setup.replay is not None
        self._name, self._batch_size = setup.algorithm.__name__, setup.config.batch_size
        self._kind, wanted = _CONTENTS[setup.collect]
        self._wanted = wanted.format(name=self._name)
        self._stack = network.pipeline.frame_stack
        self._rows: dict[str, dict[str, tuple[int, ...]]] = {"obs": {}, "action": {}}
        """Axes of the leaves of an observation and an action, by path."""
        for path, shape in row_shapes(network).items():
            part, _, leaf = path.partition("/")
            self._rows.get(part, {})[leaf] = shape
        self._behaviour = ("log_prob", "value") if network.head == "actor_critic" else ()
        self._lengths = {} if weights is None else {"P": len(weights.flat)}
        self._table: Table | None = None if weights is None else weights.table
        """Names and shapes of the weights; None until the first weights come, where only a built network knows."""
        if isinstance(policy, ModelPolicy):
            self._table = policy.layout.table
        elif network.torch_free and network.head != "model":
            self._table = network.mlp_table(network.pipeline.vector_size)
        elif policy is not None:
            from raypid.nn.networks import TorchNetwork

            self._table = TorchNetwork(network).table

    def check(self, call: str, arguments: Mapping[str, object]) -> None:
        """Check the arguments of a call such as "Learner.update", by name."""
        if call in ("Learner.learn", "Learner.observe") and not self._replays:
            raise UserError(f"{call}: {self._name} learns from what workers collect: call update(timesteps, *data).")
        if call == "Learner.update" and self._replays:
            raise UserError(f"{call}: {self._name} learns from samples of a Replay: call learn(timesteps, *samples).")
        for name, value in arguments.items():
            if name in _LEAST:
                check_whole(call, name, value, _LEAST[name])
            elif check := getattr(self, f"check_{name}", None):
                check(call, value)

    def check_timesteps(self, call: str, timesteps: object) -> None:
        """Check a number of environment steps."""
        is_number = isinstance(timesteps, (int, float, np.integer, np.floating)) and not isinstance(timesteps, bool)
        if not (is_number and timesteps >= 0):  # type: ignore[operator]
            raise UserError(
                f"{call}: timesteps must be the number of environment steps of the whole run so far (add up report.num_steps), at least 0, "
                f"not {described(timesteps)}. It comes before the data, or after the weights."
            )

    def check_newer_than(self, call: str, version: object) -> None:
        """Check the version of weights."""
        if version is not None:
            check_whole(call, "newer_than, a version such as weights.version,", version, -1)

    def check_folder(self, call: str, folder: object) -> None:
        """Check the path of a folder."""
        check_folder(call, folder)

    def check_state(self, call: str, state: object) -> None:
        """Check what a role has to go on from."""
        if not isinstance(state, Mapping):
            raise UserError(f"{call} takes what state_dict() returned, not {described(state)}.")

    def check_report(self, call: str, report: object) -> None:
        """Check the first part of what a rollout returns."""
        if not isinstance(report, Report):
            raise UserError(
                f"{call} takes the report of Rollout.collect and then its data, observe(report, fragment), not {described(report)}."
            )
        self._check_arrays(call, report)

    def check_weights(self, call: str, weights: object) -> None:
        """Check weights, and that they are of this run's network."""
        if not isinstance(weights, Weights):
            why = ""
            if weights is None:
                why = (
                    " (A parameter server returns None before the first push, and if it has none that are newer_than.)"
                )
            elif isinstance(weights, (tuple, list)):
                why = " Learner.update and Learner.learn return a pair: the weights are the second of it."
            raise UserError(
                f"{call} takes Weights, as Learner.weights() and ParameterServer.pull() return them, not {described(weights)}.{why}"
            )
        if self._table is not None:
            try:
                check_table(weights.table, self._table)
            except ConfigError as error:
                raise ConfigError(f"{call}: {error} Make all roles of a run from the same setup.") from None
        self._check_arrays(call, weights, {"P": sum(math.prod(shape) for _, shape in weights.table)})
        check_whole(call, "the version of the weights", weights.version, 0)
        self._table = weights.table

    def check_since(self, call: str, weights: object) -> None:
        """Check the weights that others began with, if some are given."""
        if weights is not None:
            self.check_weights(call, weights)

    def check_fragment(self, call: str, fragment: object) -> None:
        """Check what a worker has collected, if something is given."""
        if fragment is not None or call != "Learner.observe":
            self._check_part(call, fragment)

    def check_data(self, call: str, data: Sequence[object]) -> None:
        """Check the data of one update."""
        if not data:
            raise UserError(f"{call} takes {self._wanted} of one or more workers after timesteps; there is none.")
        for part in data:
            self._check_part(call, part)
        lengths = {part.num_rows for part in data if isinstance(part, Trajectory)}
        if len(lengths) > 1:
            raise UserError(
                f"{call} takes trajectories of equal length, not of {' and '.join(map(str, sorted(lengths)))} rows: make all "
                "rollouts from the same setup, with one fragment_length."
            )

    def check_samples(self, call: str, samples: Sequence[object]) -> None:
        """Check rows drawn from replay buffers."""
        rows, size = [], self._batch_size
        for sample in samples:
            if not isinstance(sample, Sample):
                raise UserError(
                    f"{call} takes Samples, as Replay.sample returns them, not {described(sample)}. Give each as an argument of its own: "
                    "learn(timesteps, *samples)."
                )
            self._check_arrays(call, sample, stack=self._stack)
            rows.append(len(sample.id))
        if not rows or len(set(rows)) != 1 or sum(rows) % size or size % len(rows):
            raise UserError(
                f"{call} takes samples of equal size, together a multiple of batch_size ({size}), whose number divides {size}: "
                f"learn(timesteps, replay.sample({size}, timesteps)). These have {rows} rows."
            )

    def check_rows(self, call: str, sample: object, priorities: object, count: int) -> None:
        """Check new priorities of the rows of a sample, from a buffer to which `count` rows have been added."""
        if not isinstance(sample, Sample):
            raise UserError(f"{call} takes the Sample whose rows get the priorities, not {described(sample)}.")
        self._check_arrays(call, sample, stack=self._stack)
        try:
            found = np.asarray(priorities, np.float64)
        except (TypeError, ValueError):
            found = np.empty((0, 0))
        if found.shape != sample.id.shape or not (np.isfinite(found) & (found > 0)).all():
            raise UserError(
                f"{call} takes a finite priority above 0 for each of the sample's {len(sample.id)} rows, not {described(priorities)}. "
                "Learner.learn returns a list with an array for each sample that it was given."
            )
        if sample.id.max(initial=-1) >= count:
            raise UserError(
                f"{call}: the sample has rows that were never in this buffer. Give it to the Replay that drew it."
            )

    def _check_part(self, call: str, data: Any) -> None:
        """Check what one worker has collected."""
        if not isinstance(data, self._kind):
            why = "Give the second of what Rollout.collect returns: report, data = rollout.collect(weights, timesteps)."
            if isinstance(data, (tuple, list)):
                why += " On Ray, call it with .options(num_returns=2). Give what each worker collected as an argument of its own."
            raise UserError(f"{call} takes {self._wanted}, not {described(data)}. {why}")
        self._check_arrays(call, data)
        if lacks := [key for key in self._behaviour if isinstance(data, Trajectory) and key not in data.behaviour]:
            raise UserError(
                f"{call}: the trajectory lacks {' and '.join(lacks)} in its behaviour, so another algorithm's policy acted. "
                f"{self._name} learns from what a Rollout of its own setup collects."
            )

    def _check_arrays(self, call: str, data: object, lengths: Mapping[str, int] | None = None, stack: int = 1) -> None:
        """Check that the arrays of a Trajectory, Sample, ... have the right types and fit together.

        Args:
            lengths: of axes, as far as they are known.
            stack: frames of an observation.
        """
        known = {"1": 1, "2": 2, **self._lengths, **(lengths or {})}
        for path, form in _ARRAYS[type(data)].items():
            kind, *axes = form.split()
            rows = self._rows.get(axes[-1])
            leaves = dict(_leaves(data, path))
            if rows is not None and leaves and leaves.keys() != rows.keys():
                leaves = dict.fromkeys(rows)
            for name, leaf in leaves.items():
                shape = [] if rows is None else [*([stack] if stack > 1 and axes[-1] == "obs" else []), *rows[name]]
                is_open, names = axes[-1] == "*", [axis for axis in axes if axis not in ("*", "obs", "action")]
                if not _fits(leaf, kind, names, shape, known, is_open):
                    where = ", ".join(f"{axis} = {known[axis]}" for axis in known if axis in form and axis.isupper())
                    wanted = ", ".join([*names, *map(str, shape), *["..."] * is_open])
                    what = f"{path.replace('?', '')} {name}".strip()
                    raise UserError(
                        f"{call}: {what} must be a NumPy array [{wanted}] of {_TYPES[kind.partition('<')[0]][1]}"
                        f"{f', {where}' if where else ''}; it is {described(leaf)}. Make all roles of a run from the same setup, and give what "
                        f"they return, or arrays as raypid.types.{type(data).__name__} describes them."
                    )


def _leaves(data: Any, path: str) -> Iterator[tuple[str, object]]:
    """Yield the arrays of a field by their paths in it; none if it may be None and is."""
    for name in path.split("."):
        is_optional, name = name[-1] == "?", name.rstrip("?")
        data = data.get(name) if isinstance(data, dict) else getattr(data, name, None)
        if data is None and is_optional:
            return
    yield from tree_leaves(data)


def _fits(
    leaf: object, kind: str, axes: Sequence[str], shape: Sequence[int], known: dict[str, int], is_open: bool
) -> bool:
    """Whether an array has a type and `axes`, then those of `shape`, or any if `is_open`. Adds the lengths of axes that are not known yet to
    `known`."""
    kind, _, below = kind.partition("<")
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in _TYPES[kind][0]:
        return False
    lead, rest = leaf.shape[: len(axes)], leaf.shape[len(axes) :]
    if len(lead) < len(axes) or not (is_open or list(rest) == list(shape)):
        return False
    for axis, length in zip(axes, lead, strict=True):
        more = int(axis[2:] or 0)
        if (length == more and axis != "K") or known.setdefault(axis[0], length - more) != length - more:
            return False
    return kind != "int" or not leaf.size or bool(leaf.min() >= 0 and leaf.max() < known.get(below, math.inf))
