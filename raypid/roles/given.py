"""Checks of what a loop of the user's own gives to roles, before it does any harm.

They look at types, names and shapes, and at numbers only where they index something: a call costs some tens of microseconds more.
"""

from __future__ import annotations

import functools
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
from raypid.types import Fitness, Gradients, Report, Sample, Table, Trajectory, Tree, Weights, tree_leaves

_CONTENTS: dict[str, tuple[type, str]] = {
    "trajectory": (Trajectory, "a Trajectory"),
    "gradients": (Gradients, "Gradients ({name}'s workers compute them)"),
    "fitness": (Fitness, "Fitness ({name}'s workers play whole episodes)"),
}
"""The type of the data that workers send, by `Algorithm.collect`, and what a message calls them."""
_MOMENTS = {"moments?.mean": "number D", "moments?.m2": "number D"}
_RETURNS = {"returns?.mean": "number R", "returns?.m2": "number R"}
_ARRAYS: dict[type, dict[str, str]] = {
    Trajectory: {
        "reward": "number T B",
        "obs": "number T+1 B *",
        "first": "bool T+1 B",
        "action": "number T B *",
        **dict.fromkeys(("terminated", "truncated", "valid"), "bool T B"),
        "final?.t": "int<T K",
        "final?.b": "int<B K",
        "final?.obs": "number K *",
        "behaviour": "number *",
        "behaviour.log_prob?": "number T B",
        "behaviour.value?": "number T+1 B",
        "behaviour.final_value?": "number K",
        "state?": "number B *",
        "stream?": "int B",
        **_MOMENTS,
    },
    Gradients: {"flat": "number P", **_MOMENTS, **_RETURNS},
    Fitness: {"index": "int N", "value": "number N 2", "length": "int N 2", **_MOMENTS},
    Report: _RETURNS,
    Sample: {
        **dict.fromkeys(("data.reward", "data.discount", "probability", "weight"), "number N"),
        **dict.fromkeys(("data.obs", "data.next_obs", "data.action"), "number N *"),
        "id": "int N",
    },
    Weights: {"flat": "number P", "extra": "number *"},
}
"""Fields that are arrays or trees of arrays -> type and axes; * stands for any more axes. The first field with an axis sets its length.
int<T: below T. A field with ? may be None."""
_TYPES = {"bool": ("b", "bool"), "number": ("biuf", "numbers"), "int": ("iu", "whole numbers of at least 0")}
"""Kinds of dtype, and what a message calls them."""


def described(value: object) -> str:
    """Say what a value is, as a message names it: the type of what is large, and the value of what is small."""
    kind = type(value)
    if kind.__name__ == "ObjectRef":
        return "an ObjectRef: call ray.get on it first, or pass it as an argument of its own to a method's remote()"
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)} and dtype {value.dtype}"
    if isinstance(value, (tuple, list)):
        if not value:
            return f"an empty {kind.__name__}"
        inner = ", ".join(type(part).__name__ for part in value[:3])
        return f"a {kind.__name__} of {len(value)} ({inner}{', ...' if len(value) > 3 else ''})"
    if isinstance(value, Mapping):
        return f"a {kind.__name__} with the keys {shown(list(value))}"
    if value is None or isinstance(value, (str, bytes, bool, int, float, type)):
        return shown(value)
    return f"{'an' if kind.__name__[:1] in 'AEIOU' else 'a'} {kind.__name__}"


def check_arrays(call: str, data: object, only: str = "", lengths: Mapping[str, int] | None = None) -> None:
    """Check that the arrays of a Trajectory, Sample, ... have the right types and fit together; with `only`, just that field.

    Args:
        lengths: of axes, as far as they are known.

    Raises:
        UserError: names the first field that does not fit.
    """
    known = {"2": 2, **(lengths or {})}
    for path, form in _ARRAYS[type(data)].items():
        for leaf in _leaves(data, path) if only in ("", path) else ():
            if not _fits(leaf, form, known):
                kind, below, axes, is_open = _parsed(form)
                names = [f"{axis}{f'+{more}' if more else ''}" for axis, more in axes] + ["..."] * is_open
                each = dict.fromkeys([*(axis for axis, _ in axes if axis != "2"), *below])
                where = ", ".join(f"{axis} = {known[axis]}" if axis in known else f"{axis} at least 1" for axis in each)
                raise UserError(
                    f"{call}: {path.replace('?', '')} must be a NumPy array [{', '.join(names)}] of {_TYPES[kind][1]}"
                    f"{f' below {below}' if below else ''}{f', {where}' if where else ''}; it is {described(leaf)}. "
                    f"Give what the roles return, or arrays as raypid.types.{type(data).__name__} describes them."
                )


@functools.cache
def _parsed(form: str) -> tuple[str, str, tuple[tuple[str, int], ...], bool]:
    """The type, the axis whose length bounds the numbers ("": none), (axis, how much longer) of each axis, and whether more may follow."""
    kind, *axes = form.split()
    kind, _, below = kind.partition("<")
    return kind, below, tuple((axis[0], int(axis[2:] or 0)) for axis in axes if axis != "*"), "*" in axes


def _leaves(data: object, path: str) -> Iterator[object]:
    """Yield the arrays of a field."""
    for name in path.split("."):
        is_optional, name = name[-1] == "?", name.rstrip("?")
        data = data.get(name) if isinstance(data, dict) else getattr(data, name, None)
        if data is None and is_optional:
            return
    for _, leaf in tree_leaves(data):
        yield leaf


def _fits(leaf: object, form: str, known: dict[str, int]) -> bool:
    """Whether an array has the type and the axes of `form`. Adds the lengths of axes that are not known yet to `known`."""
    kind, below, axes, is_open = _parsed(form)
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in _TYPES[kind][0]:
        return False
    if leaf.ndim < len(axes) or (leaf.ndim > len(axes) and not is_open):
        return False
    for (axis, more), length in zip(axes, leaf.shape, strict=False):
        if (length == more and axis != "K") or known.setdefault(axis, length - more) != length - more:
            return False
    return kind != "int" or not leaf.size or bool(leaf.min() >= 0 and leaf.max() < known.get(below, math.inf))


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


_LEAST = {"worker_index": 0, "num": 1, "num_episodes": 1, "seed": 0}
"""Arguments that are whole numbers, and the least value of each."""


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
        self._shapes = {path: shape for path, shape in row_shapes(network).items() if "/" in path}
        self._choices = {f"action/{leaf.path}": np.array(leaf.nvec) for leaf in network.actions if leaf.nvec}
        """Number of actions of each discrete part."""
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

    def check_record(self, call: str, record: object) -> None:
        """Check a function of the environments."""
        if record is not None and not callable(record):
            raise UserError(
                f"{call}: record must be a function of the environments, record(env), not {described(record)}."
            )

    def check_report(self, call: str, report: object) -> None:
        """Check the first part of what a rollout returns."""
        if not isinstance(report, Report):
            raise UserError(
                f"{call} takes the report of Rollout.collect and then its data, observe(report, fragment), not {described(report)}."
            )
        check_arrays(call, report)

    def check_weights(self, call: str, weights: object) -> None:
        """Check weights, and that they are of this run's network."""
        if not isinstance(weights, Weights):
            why = ""
            if weights is None:
                why = (
                    " (A parameter server returns None before the first push, and if it has none that are newer_than.)"
                )
            elif isinstance(weights, (tuple, list)) and any(isinstance(part, Weights) for part in weights):
                why = " Learner.update and Learner.learn return a pair: the weights are the second of it."
            raise UserError(
                f"{call} takes Weights, as Learner.weights() and ParameterServer.pull() return them, not {described(weights)}.{why}"
            )
        if self._table is not None and weights.table != self._table:
            try:
                check_table(weights.table, self._table)
            except ConfigError as error:
                raise ConfigError(f"{call}: {error} Make all roles of a run from the same setup.") from None
        size = sum(math.prod(shape) for _, shape in weights.table)
        if np.shape(weights.flat) != (size,):
            raise UserError(
                f"{call}: the weights have an array of shape {list(np.shape(weights.flat))}; their table names {size:,} numbers."
            )
        check_arrays(call, weights)
        check_whole(call, "the version of the weights", weights.version, 0)
        self._table = weights.table

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
            check_arrays(call, sample)
            for tree in (sample.data.obs, sample.data.next_obs):
                self._check_shapes(call, "obs", tree, 1, self._stack)
            self._check_shapes(call, "action", sample.data.action, 1)
            rows.append(len(sample.id))
        if not rows:
            raise UserError(
                f"{call} takes one sample of each replay after timesteps; there is none: "
                f"learn(timesteps, replay.sample({size}, timesteps))."
            )
        if len(set(rows)) != 1 or sum(rows) % size or size % len(rows):
            raise UserError(
                f"{call} takes samples of equal size, together a multiple of "
                f"batch_size ({size}), whose number divides {size}; these have {rows} rows."
            )

    def check_rows(self, call: str, sample: object, priorities: object, count: int) -> None:
        """Check new priorities of the rows of a sample, from a buffer to which `count` rows have been added."""
        if not isinstance(sample, Sample):
            raise UserError(f"{call} takes the Sample whose rows get the priorities, not {described(sample)}.")
        check_arrays(call, sample, only="id")
        try:
            found = np.asarray(priorities, np.float64)
        except (TypeError, ValueError):
            found = np.empty((0, 0))
        if found.shape != sample.id.shape:
            raise UserError(
                f"{call} takes one priority for each of the sample's {len(sample.id)} rows, not {described(priorities)}. "
                "Learner.learn returns a list with an array for each sample that it was given."
            )
        if (bad := found[~((found > 0) & np.isfinite(found))]).size:
            raise UserError(f"{call} takes finite priorities above 0, not {shown(bad[0].item())}.")
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
        check_arrays(call, data, lengths=self._lengths)
        if not isinstance(data, Trajectory):
            return
        self._check_shapes(call, "obs", data.obs, 2)
        self._check_shapes(call, "action", data.action, 2)
        if data.final is not None:
            self._check_shapes(call, "obs", data.final.obs, 1)
        if lacks := [key for key in self._behaviour if key not in data.behaviour]:
            raise UserError(
                f"{call}: the trajectory lacks {' and '.join(lacks)} in its behaviour, so another algorithm's policy acted. "
                f"{self._name} learns from what a Rollout of its own setup collects."
            )

    def _check_shapes(self, call: str, what: str, tree: Tree, lead: int, frame_stack: int = 1) -> None:
        """Check the shapes of observations or actions behind `lead` axes, and the numbers of discrete actions."""
        wanted = {path: shape for path, shape in self._shapes.items() if path.startswith(what)}
        values = {f"{what}/{path}": x for path, x in tree_leaves(tree)}
        stack = (frame_stack,) if frame_stack > 1 else ()
        for path in {**wanted, **values}:
            here, there = wanted.get(path), values[path].shape[lead:] if path in values else None
            if here is None or there not in (here, (*stack, *here)):
                key = path.partition("/")[2]
                name = {"obs": "observations", "action": "actions"}[what] + (f" {key!r}" if key else "")
                raise UserError(
                    f"{call}: {name} {_of_shape(there)} in these data and {_of_shape(here)} in this run, so they come from "
                    "another environment. Make all roles of a run from the same setup."
                )
            sizes, x = self._choices.get(path), values[path]
            if sizes is not None and not (x.dtype.kind in "iu" and (x >= 0).all() and (x < sizes).all()):
                raise UserError(
                    f"{call}: these actions are not of this run's action space: whole numbers from 0 to below {sizes.tolist()}."
                )


def _of_shape(shape: tuple[int, ...] | None) -> str:
    return "are missing" if shape is None else f"have shape {list(shape)}"
