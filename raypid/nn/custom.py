"""Models of the user's own, in any framework: they act, they compute gradients, and their weights are NumPy arrays."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from raypid.config import ConfigError
from raypid.errors import UserError
from raypid.nn.pipeline import nest
from raypid.nn.policy import NetworkPolicy
from raypid.nn.space_json import space_from_json
from raypid.nn.spec import ActionLeaf, NetworkSpec
from raypid.registry import NETWORKS, did_you_mean
from raypid.types import Array, Gradients, Trajectory, Tree, Weights, tree_leaves

Parts = Any
"""Weights or gradients: NumPy arrays (or what np.asarray takes) in a dict, a list or a tuple, nested as you like."""


class Model(Protocol):
    """What `raypid.register_model` takes. It is built once in each process, as `Model(args)`.

    `args` has observation_space, action_space, gamma and seed (another one in each worker), and what `model.custom` gives. With a
    static method add_args(parser) it names them itself: argparse options with defaults, and `model.custom` may set these and
    no others.
    """

    def choose_actions(self, observation: Tree) -> Any:
        """Actions [B, *] as the environment takes them, for raw observations [B, *]; or (actions, extras), where extras are arrays [B, *]
        by name that come back in `trajectory.behaviour`. It may take keywords: `deterministic` (bool, True in evaluations) and `rng`, a
        numpy.random.Generator of this worker's, which a saved run continues."""

    def step(self, trajectory: Trajectory) -> Any:
        """The gradient of the loss over a fragment that this model has acted: parts as in `get_weights`, which an optimizer will
        descend; or (gradient, metrics) with numbers by name."""

    def get_weights(self) -> Parts: ...

    def set_weights(self, weights: Parts) -> None:
        """Take weights over, in the structure and the dtypes of `get_weights`. The arrays are the model's to keep."""


class Layout:
    """Where each array of a model's weights lies in one flat float32 buffer."""

    def __init__(self, weights: Parts, owner: str) -> None:
        self.owner = owner
        self._structure = weights
        arrays = {name: np.asarray(part) for name, part in _named(weights)}
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
        """[P] float32, of weights or gradients.

        Raises:
            UserError: they are not as the weights were at first.
        """
        found = dict(_named(parts))
        who, names = f"{self.owner}.{method}", [name for name, _ in self.table]
        if missing := [name for name in names if found.get(name) is None]:
            raise UserError(f"{who} returned nothing for {missing[0]!r}; get_weights() has {', '.join(names)}.")
        if unknown := [name for name in found if name not in names]:
            raise UserError(f"{who} returned {unknown[0]!r}, which get_weights() has not; it has {', '.join(names)}.")
        arrays = [np.asarray(found[name]) for name in names]
        for (name, shape), array in zip(self.table, arrays, strict=True):
            if array.shape != shape:
                raise UserError(f"{who} returned shape {array.shape} for {name!r}; get_weights() has {shape}.")
        return np.concatenate([a.ravel() for a in arrays]).astype(np.float32, copy=False)

    def parts(self, flat: Array) -> Parts:
        """Arrays of their own, in the structure and the dtypes of the weights."""
        return _rebuilt(self._structure, self._arrays(flat))

    def _arrays(self, flat: Array) -> Iterator[Array]:
        offset = 0
        for (_, shape), dtype in zip(self.table, self._dtypes, strict=True):
            size = int(np.prod(shape))
            yield flat[offset : offset + size].reshape(shape).astype(dtype)
            offset += size


def _named(parts: Parts, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(parts, (Mapping, list, tuple)):
        for key, part in parts.items() if isinstance(parts, Mapping) else enumerate(parts):
            yield from _named(part, f"{path}/{key}" if path else str(key))
    else:
        yield path, parts


def _rebuilt(structure: Parts, arrays: Iterator[Array]) -> Parts:
    if isinstance(structure, Mapping):
        return {key: _rebuilt(part, arrays) for key, part in structure.items()}
    if isinstance(structure, (list, tuple)):
        parts = [_rebuilt(part, arrays) for part in structure]
        return parts if isinstance(structure, list) else tuple(parts)
    return next(arrays)


class ModelPolicy(NetworkPolicy):
    """Acts with a registered model, and has it differentiate what it acted (a `GradientSource`)."""

    def __init__(self, spec: NetworkSpec, seed: int) -> None:
        super().__init__(spec)
        entry = NETWORKS.find(spec.network, spec.target)
        self.name = getattr(entry, "__qualname__", spec.network)
        methods = ("choose_actions", "step", "get_weights", "set_weights")
        if missing := [method for method in methods if not hasattr(entry, method)]:
            raise ConfigError(f"{self.name} lacks {', '.join(missing)}; a model has {', '.join(methods)}.")
        self.model: Model = entry(_arguments(entry, self.name, spec, seed))
        self.layout = Layout(self.model.get_weights(), self.name)
        self.to_env = self._taken
        takes = inspect.signature(self.model.choose_actions).parameters
        self._takes = {name for name in ("deterministic", "rng") if name in takes}

    def load(self, weights: Weights) -> None:
        self.model.set_weights(self.layout.parts(weights.flat))
        self.version = weights.version

    def act(
        self, obs: Tree, state: Tree | None, first: Array, rng: np.random.Generator, *, explore: bool
    ) -> tuple[Tree, Tree | None, dict[str, Array]]:
        offered = {"deterministic": not explore, "rng": rng}
        chosen = self.model.choose_actions(obs, **{name: offered[name] for name in self._takes})
        actions, extras = chosen if isinstance(chosen, tuple) else (chosen, {})
        return self._checked(actions, len(first)), None, {name: np.asarray(extra) for name, extra in extras.items()}

    def _checked(self, actions: Any, num: int) -> Tree:
        """Raises:
        UserError: they are not actions [B, *] of this action space.
        """
        who, given = f"{self.name}.choose_actions()", dict(tree_leaves(actions))
        paths = [leaf.path for leaf in self.spec.actions]
        if sorted(given) != sorted(paths):
            raise UserError(f"{who} returned actions for {sorted(given)}; the environment takes {sorted(paths)}.")
        found = {}
        for leaf in self.spec.actions:
            found[leaf.path] = action = np.asarray(given[leaf.path])
            if action.shape != (num, *leaf.shape):
                raise UserError(
                    f"{who} returned actions of shape {action.shape}; {num} observations take {(num, *leaf.shape)}."
                )
        return found if "" not in found else found[""]

    def _taken(self, action: Tree) -> Tree:
        """Inside the bounds of a Box, in the dtype of the space."""
        if isinstance(action, Mapping):
            return nest({leaf.path: _bounded(leaf, action[leaf.path]) for leaf in self.spec.actions})
        return _bounded(self.spec.actions[0], action)

    def gradients(self, trajectory: Trajectory, weights: Weights) -> Gradients:
        """What the model makes of a fragment.

        Raises:
            UserError: no gradient, or one that is not finite.
        """
        returned = self.model.step(trajectory)
        is_pair = isinstance(returned, tuple) and len(returned) == 2 and _are_metrics(returned[1])
        gradient, metrics = returned if is_pair else (returned, {})
        flat = self.layout.flat(gradient, "step()")
        if not np.isfinite(flat.dot(flat)):
            bad = [n for n, part in _named(gradient) if not np.isfinite(np.asarray(part)).all()] or ["all together"]
            raise UserError(f"{self.name}.step() returned NaN or infinite gradients (first: {bad[0]!r}).")
        numbers = {name: float(value) for name, value in metrics.items()}
        return Gradients(flat, trajectory.version, trajectory.num_valid, numbers)

    def local_state(self) -> dict[str, Any]:
        """What the model keeps apart from its weights, where it has get_state()."""
        get = getattr(self.model, "get_state", None)
        return {} if get is None else {"model": get()}

    def load_local_state(self, state: dict[str, Any]) -> None:
        if "model" in state:
            self.model.set_state(state["model"])  # type: ignore[attr-defined]


def _are_metrics(value: Any) -> bool:
    return isinstance(value, Mapping) and all(np.ndim(number) == 0 for number in value.values())


def _bounded(leaf: ActionLeaf, action: Any) -> Array:
    if leaf.low:
        action = np.clip(action, np.reshape(leaf.low, leaf.shape), np.reshape(leaf.high, leaf.shape))
    return action.astype(leaf.dtype, copy=False)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(f"add_args: {message}; give it a default.")


def _arguments(entry: Any, name: str, spec: NetworkSpec, seed: int) -> argparse.Namespace:
    """What the model is built with.

    Raises:
        ConfigError: `model.custom` has what the model's add_args does not know.
    """
    parser, given = _Parser(add_help=False), spec.custom
    if hasattr(entry, "add_args"):
        entry.add_args(parser)
        known = vars(parser.parse_args([]))
        for key in given:
            if key not in known:
                raise ConfigError(f"model.custom: {name} has no argument {key!r}.{did_you_mean(key, known)}")
    parser.set_defaults(**given)
    args = parser.parse_args([])
    for role in ("observation_space", "action_space"):
        setattr(args, role, space_from_json(spec.facts[role]))
    args.gamma, args.seed = spec.facts["gamma"], seed
    return args
