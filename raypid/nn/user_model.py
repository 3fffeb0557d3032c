"""Models of the user's own, in any framework: they act, they compute gradients, and their weights are NumPy arrays."""

from __future__ import annotations

import argparse
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, Protocol, TypeAlias, TypeVar

import numpy as np

from raypid.config import ConfigError
from raypid.errors import UserError
from raypid.nn.network_policy import Acted, NetworkPolicy
from raypid.nn.network_spec import ActionLeaf, NetworkSpec
from raypid.nn.pipeline import nest
from raypid.registry import NETWORKS, did_you_mean
from raypid.spaces import space_from_json
from raypid.types import Array, Gradients, Trajectory, Tree, Weights, as_tree, flat_views, to_numpy, tree_leaves

Parts: TypeAlias = object
"""Weights or gradients: NumPy arrays (or what np.asarray takes) in a dict, a list or a tuple, nested as you like."""
T = TypeVar("T")


class Model(Protocol):
    """What `raypid.register_model` takes. It is built once in each process, as `Model(args)`.

    `args` has observation_space, action_space, gamma, batch_size, device and seed (a different one in each worker), and what
    `model.custom` gives. A model with a static method add_args(parser) declares argparse options with defaults there; then
    `model.custom` may set these and no others.
    """

    def choose_actions(self, observation: Tree) -> object:
        """Choose actions [B, *], as the environment takes them, for raw observations [B, *].

        The method may also accept these keywords: `deterministic` (bool, True in evaluations), `first` (bool [B], where an
        episode begins) and `rng`, a numpy.random.Generator of this worker, which a saved run continues.

        Returns:
            The actions; or (actions, extras), where extras are arrays [B, *] by name that come back in
            `trajectory.behaviour`.
        """

    def step(self, trajectory: Trajectory) -> object:
        """Compute the gradient of the loss over a fragment that this model has acted.

        Returns:
            Parts as in `get_weights`, which an optimizer will descend; or (gradient, metrics) with numbers by name.
        """

    def get_weights(self) -> Parts: ...

    def set_weights(self, weights: Parts) -> None:
        """Load weights, in the structure and the dtypes of `get_weights`. The model may keep the arrays."""


class Layout:
    """The place of each array of a model's weights in one flat float32 buffer."""

    def __init__(self, weights: Parts, owner: str) -> None:
        self.owner = owner
        self._structure = weights
        arrays = {name: to_numpy(part) for name, part in _named(weights).items()}
        for name, array in arrays.items():
            if not np.issubdtype(array.dtype, np.floating):
                raise UserError(
                    f"{owner}.get_weights(): {name or 'it'} has dtype {array.dtype}; weights are arrays of floating-point numbers."
                )
        if not arrays:
            raise UserError(f"{owner}.get_weights() returned {weights!r}: no array in it.")
        self.table = tuple((name, array.shape) for name, array in arrays.items())
        self._dtypes = [array.dtype for array in arrays.values()]

    def flat(self, parts: Parts, method: str) -> Array:
        """Join weights or gradients into one array [P] float32.

        Raises:
            UserError: names or shapes differ from those of the first weights.
        """
        found = _named(parts)
        who, names = f"{self.owner}.{method}", [name for name, _ in self.table]
        if missing := [name for name in names if found.get(name) is None]:
            raise UserError(f"{who} returned nothing for {missing[0]!r}; get_weights() has {', '.join(names)}.")
        if unknown := [name for name in found if name not in names]:
            raise UserError(f"{who} returned {unknown[0]!r}, which get_weights() has not; it has {', '.join(names)}.")
        arrays = [to_numpy(found[name]) for name in names]
        for (name, shape), array in zip(self.table, arrays, strict=True):
            if array.shape != shape:
                raise UserError(f"{who} returned shape {array.shape} for {name!r}; get_weights() has {shape}.")
        return np.concatenate([a.ravel() for a in arrays]).astype(np.float32, copy=False)

    def parts(self, flat: Array) -> Parts:
        """Copy the buffer [P] into new arrays, in the structure and the dtypes of the weights."""
        views = flat_views(flat, self.table).values()
        return _rebuilt(self._structure, (view.astype(dtype) for view, dtype in zip(views, self._dtypes, strict=True)))


def _named(parts: Parts) -> dict[str, object]:
    """Return the arrays by path."""
    return dict(tree_leaves(as_tree(parts, lists=True)))


def _rebuilt(structure: Parts, arrays: Iterator[Array]) -> Parts:
    if isinstance(structure, Mapping):
        return {key: _rebuilt(part, arrays) for key, part in structure.items()}
    if isinstance(structure, (list, tuple)):
        parts = [_rebuilt(part, arrays) for part in structure]
        return parts if isinstance(structure, list) else tuple(parts)
    return next(arrays)


class ModelPolicy(NetworkPolicy):
    """Acts with a registered model, which also computes the gradient over what it acted (a `GradientSource`)."""

    def __init__(self, spec: NetworkSpec, seed: int) -> None:
        super().__init__(spec)
        entry = NETWORKS.find(spec.network, spec.target)
        self.name = getattr(entry, "__qualname__", spec.network)
        self._file = getattr(sys.modules.get(entry.__module__), "__file__", None)
        methods = ("choose_actions", "step", "get_weights", "set_weights")
        if missing := [method for method in methods if not hasattr(entry, method)]:
            raise ConfigError(f"{self.name} lacks {', '.join(missing)}; a model has {', '.join(methods)}.")
        if hasattr(entry, "get_state") != hasattr(entry, "set_state"):
            raise ConfigError(
                f"{self.name} has one of get_state and set_state: a state that is saved is also restored."
            )
        self.model: Model = self._call("__init__", entry, _arguments(entry, self.name, spec, seed))
        self.layout = Layout(self._call("get_weights", self.model.get_weights), self.name)
        accepted = inspect.signature(self.model.choose_actions).parameters
        every = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        self._keywords = {name for name in ("deterministic", "first", "rng") if every or name in accepted}
        self.greedy = "deterministic" in self._keywords
        self._extras: set[str] | None = None

    def _call(self, method: str, function: Callable[..., T], *args: object, **keywords: object) -> T:
        """Call a method of the model.

        Raises:
            RuntimeError: what the model raised, with the file and line.
        """
        try:
            return function(*args, **keywords)
        except UserError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            frame = ([f for f in frames if f.filename == self._file] or frames)[-1]
            where = f"{frame.filename}:{frame.lineno}"
            raise RuntimeError(f"{self.name}.{method}() raised {type(error).__name__}: {error} ({where})") from error

    def load(self, weights: Weights) -> None:
        self._call("set_weights", self.model.set_weights, self.layout.parts(weights.flat))
        self.version = weights.version

    def weights(self) -> Array:
        """Return the model's weights [P]."""
        return self.layout.flat(self._call("get_weights", self.model.get_weights), "get_weights()")

    def act(self, obs: Tree, state: Tree | None, first: Array, rng: np.random.Generator, *, explore: bool) -> Acted:
        offered = {"deterministic": not explore, "first": first, "rng": rng}
        keywords = {name: offered[name] for name in self._keywords}
        chosen = self._call("choose_actions", self.model.choose_actions, obs, **keywords)
        actions, extras = _pair(chosen, [leaf.path for leaf in self.spec.actions])
        return Acted(self._actions(actions, len(first)), None, self._checked(extras, len(first)))

    def _actions(self, actions: object, num: int) -> Tree:
        """Check and copy actions: a model may use its arrays again.

        Raises:
            UserError: they are not actions [B, *] of this action space.
        """
        who = f"{self.name}.choose_actions()"
        leaves = {leaf.path: leaf for leaf in self.spec.actions}
        given = dict(tree_leaves(actions)) if "" in leaves else _named(actions)
        if sorted(given) != sorted(leaves):
            raise UserError(f"{who} returned actions for {sorted(given)}; the environment takes {sorted(leaves)}.")
        found: dict[str, Array] = {}
        for path, leaf in leaves.items():
            found[path] = action = np.array(to_numpy(given[path]))
            if action.shape != (num, *leaf.shape):
                raise UserError(
                    f"{who} returned actions of shape {action.shape}; {num} observations take {(num, *leaf.shape)}."
                )
            if fault := _fault(leaf, action):
                raise UserError(f"{who} returned {fault}.")
        return found.get("", found)

    def _checked(self, extras: Mapping[str, object], num: int) -> dict[str, Array]:
        """Check and copy extras.

        Raises:
            UserError: they are not arrays [B, *], or have other names than before.
        """
        found: dict[str, Array] = {name: np.array(to_numpy(extra)) for name, extra in extras.items()}
        for name, extra in found.items():
            if extra.shape[:1] != (num,):
                raise UserError(
                    f"{self.name}.choose_actions() returned {name!r} of shape {extra.shape}; extras of {num} observations have "
                    f"shape ({num}, ...)."
                )
        if self._extras is None:
            self._extras = set(found)
        if self._extras != set(found):
            raise UserError(
                f"{self.name}.choose_actions() returned extras {sorted(found)}, before that {sorted(self._extras)}: always the same."
            )
        return found

    def _leaf_to_env(self, leaf: ActionLeaf, action: Array) -> Array:
        """Clip actions [B, *] to the bounds of a Box and convert them to the dtype of the space."""
        if leaf.low:
            action = np.clip(action, np.reshape(leaf.low, leaf.shape), np.reshape(leaf.high, leaf.shape))
        return action.astype(leaf.dtype, copy=False)

    def gradients(self, trajectory: Trajectory, weights: Weights) -> Gradients:
        """Have the model differentiate a fragment.

        Raises:
            UserError: it returned no gradient, or one that is not finite, or metrics that are not numbers.
        """
        trajectory = replace(trajectory, action=nest(dict(tree_leaves(trajectory.action))))
        returned = self._call("step", self.model.step, trajectory)
        gradient, metrics = _pair(returned, [name for name, _ in self.layout.table])
        flat = self.layout.flat(gradient, "step()")
        if not np.isfinite(flat.dot(flat)):
            bad = [name for name, part in _named(gradient).items() if not np.isfinite(to_numpy(part)).all()]
            raise UserError(
                f"{self.name}.step() returned NaN or infinite gradients (first: {(bad or ['all together'])[0]!r})."
            )
        numbers = {}
        for name, metric in metrics.items():
            value = to_numpy(metric)
            if value.ndim or not np.issubdtype(value.dtype, np.number) and value.dtype != bool:
                raise UserError(f"{self.name}.step() returned metric {name!r} = {metric!r:.80}; metrics are numbers.")
            numbers[name] = float(value)
        largest = trajectory.largest_reward
        return Gradients(flat, trajectory.version, trajectory.num_valid, numbers, largest_reward=largest)

    def local_state(self) -> dict[str, object]:
        """Return what the model keeps apart from its weights, if it has get_state()."""
        get: Callable[[], object] | None = getattr(self.model, "get_state", None)
        return {} if get is None else {"model": self._call("get_state", get)}

    def load_local_state(self, state: dict[str, object]) -> None:
        load: Callable[[object], object] | None = getattr(self.model, "set_state", None)
        if load is not None and "model" in state:
            self._call("set_state", load, state["model"])


def _pair(returned: object, whole: Sequence[str]) -> tuple[object, Mapping[str, object]]:
    """Split (first, mapping). With anything else the mapping is empty, and with a pair that is itself what is asked for: one
    whose parts have the names `whole`."""
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
        if sorted(_named(returned)) != sorted(whole):
            return returned[0], returned[1]
    return returned, {}


def _fault(leaf: ActionLeaf, action: Array) -> str:
    """Describe what is wrong with the values of actions [B, *]; "" if nothing is."""
    if leaf.kind not in ("categorical", "multi_categorical", "bernoulli"):
        return "" if np.isfinite(action).all() else "actions that are not finite"
    if not np.issubdtype(action.dtype, np.integer) and action.dtype != bool:
        return f"actions of dtype {action.dtype}; the environment takes integers"
    flat = action.reshape(len(action), -1)
    low, size = (np.broadcast_to(values, flat.shape) for values in (leaf.start or 0, leaf.nvec or 2))
    bad = (flat < low) | (flat >= low + size)
    if not bad.any():
        return ""
    b, k = np.argwhere(bad)[0]
    return f"action {flat[b, k]}; the environment takes {low[b, k]} to {low[b, k] + size[b, k] - 1}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"model.custom: {message}.")


def _arguments(entry: type, name: str, spec: NetworkSpec, seed: int) -> argparse.Namespace:
    """Build the `args` of a model.

    Raises:
        ConfigError: `model.custom` has an argument that the model's add_args does not declare.
    """
    given, args = spec.custom, argparse.Namespace(**spec.custom)
    if hasattr(entry, "add_args"):
        if not isinstance(inspect.getattr_static(entry, "add_args"), (staticmethod, classmethod)):
            raise ConfigError(f"{name}.add_args is called before there is a model: put @staticmethod before it.")
        parser = _Parser(add_help=False, allow_abbrev=False)
        entry.add_args(parser)
        known = {action.dest: action for action in parser._actions}
        tokens: list[str] = []
        for key, value in given.items():
            if key not in known:
                raise ConfigError(f"model.custom: {name} has no argument {key!r}.{did_you_mean(key, known)}")
            tokens += _tokens(known[key], value)
        args = parser.parse_args(tokens)
    provided = {**spec.facts, "seed": seed}
    if clash := [name for name in provided if hasattr(args, name)]:
        raise ConfigError(
            f"{name}: `{clash[0]}` is already provided in args; give the model's own argument another name."
        )
    for role in ("observation_space", "action_space"):
        provided[role] = space_from_json(spec.facts[role])
    vars(args).update(provided)
    return args


def _tokens(action: argparse.Action, value: object) -> list[str]:
    """Write a value as on a command line, so that argparse checks types and choices."""
    if action.nargs == 0:
        # a switch
        return [action.option_strings[0]] if value == action.const else []
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [action.option_strings[0], *map(str, value)]
    return [f"{action.option_strings[0]}={value}"]
