"""Models of the user's own, in any framework: they act, they compute gradients, and their weights are NumPy arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from raypid.errors import ConfigError, UserError, listed
from raypid.nn.network_policy import Acted, NetworkPolicy
from raypid.nn.network_spec import ActionLeaf, NetworkSpec
from raypid.ops.returns import gae, next_values
from raypid.plugins.arguments import arguments
from raypid.plugins.registry import MODEL_METHODS, NETWORKS, called, check_methods
from raypid.types import Array, Trajectory, Tree, Weights, as_tree, flat_rows, flat_views, to_numpy, tree_leaves

Parts: TypeAlias = object
"""Weights or gradients: NumPy arrays (or what np.asarray takes) in a dict, a list or a tuple, nested as you like."""
T = TypeVar("T")


class Model(Protocol):
    """The interface of a model for `raypid.register_model`, in any framework. A model need not inherit from this class.

    It is built once in each process, as `Model(args)`. `args` has observation_space, action_space, gamma, batch_size, device and
    seed (a different one in each worker), and the values of the setting `model.custom`. A static method add_args(parser) may
    declare these values as argparse options with defaults; other names in `model.custom` are then refused.

    Optional methods: values(observation) returns values [B] of observations [B, *], so that returns bootstrap at the end of a
    fragment and at a truncation. get_state() and set_state(state) save other state that an exact resume needs.
    """

    def choose_actions(self, observation: Tree) -> object:
        """Choose actions [B, *], as the environment takes them, for raw observations [B, *].

        The method may also accept these keywords: `deterministic` (bool, True in evaluations), `first` (bool [B], where an
        episode begins) and `rng`, a numpy.random.Generator of this worker, which a saved run continues.

        Returns:
            The actions; or (actions, extras), where extras are arrays [B, *] by name that come back in
            `trajectory.behaviour`.
        """

    def step(self, trajectory: Trajectory, Rs: Array | None = None) -> object:
        """Compute the gradient of the loss over a fragment that this model has collected. `default_agent` calls it once per fragment;
        your own agent may call it at any time.

        Args:
            Rs: [T, B] discounted returns (`WorkerAgent.send_trajectory`). The method need not take them.

        Returns:
            The gradient, in the structure of `get_weights`; the optimizer descends it. Or (gradient, metrics) with numbers by
            name. Or a generator that yields several of these; the newest weights are set before each.
        """

    def get_weights(self) -> Parts:
        """Return the weights: floating-point arrays or tensors in a dict, a list or a tuple, which may be nested."""
        ...

    def set_weights(self, weights: Parts) -> None:
        """Load weights, in the structure and the dtypes of `get_weights`. The model may keep the arrays."""


class Layout:
    """The place of each array of a model's weights in one flat float32 buffer."""

    def __init__(self, weights: Parts, owner: str) -> None:
        self._structure = weights
        arrays = {name: to_numpy(part) for name, part in _named(weights).items()}
        others = [f"{name or 'one'} as {array.dtype}" for name, array in arrays.items() if array.dtype.kind != "f"]
        if others or not arrays:
            found = listed(others, 3) or "nothing"
            raise UserError(f"{owner}.get_weights() returned {found}; weights are arrays of floating-point numbers.")
        self.table = tuple((name, array.shape) for name, array in arrays.items())
        self._dtypes = [array.dtype for array in arrays.values()]

    def flat(self, parts: Parts, who: str) -> Array:
        """Join weights or gradients, which `who` returned, into one array [P] float32.

        Raises:
            UserError: names or shapes differ from those of the first weights.
        """
        found = {name: to_numpy(part) for name, part in _named(parts).items() if part is not None}
        shapes, wanted = {name: array.shape for name, array in found.items()}, dict(self.table)
        for name in {**wanted, **shapes}:
            if shapes.get(name) != wanted.get(name):
                returned, has = (f"shape {t[name]}" if name in t else "nothing" for t in (shapes, wanted))
                raise UserError(f"{who} returned {returned} for {name!r}; get_weights() has {has}.")
        return np.concatenate([found[name].ravel() for name in wanted]).astype(np.float32, copy=False)

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
    """Acts with a registered model."""

    def __init__(self, spec: NetworkSpec, seed: int) -> None:
        super().__init__(spec)
        entry = NETWORKS.find(spec.network, spec.target)
        self.name = getattr(entry, "__qualname__", spec.network)
        check_methods("a model", entry, MODEL_METHODS)
        if hasattr(entry, "get_state") != hasattr(entry, "set_state"):
            raise ConfigError(f"{self.name} must have both get_state and set_state, or neither.")
        self.seed, self.gamma = seed, float(spec.facts["gamma"])
        args = arguments(entry, self.name, "model.custom", spec.custom, facts_of(spec, seed))
        self.model: Model = self._call("__init__", entry, args)
        self.layout = Layout(self._call("get_weights", self.model.get_weights), self.name)
        accepted = inspect.signature(self.model.choose_actions).parameters
        every = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        self._keywords = {name for name in ("deterministic", "first", "rng") if every or name in accepted}
        self.greedy = "deterministic" in self._keywords
        self._extras: set[str] | None = None

    def _call(self, method: str, function: Callable[..., T], *args: object, **keywords: object) -> T:
        return called(self.name, method, function, *args, **keywords)

    def load(self, weights: Weights) -> None:
        self._call("set_weights", self.model.set_weights, self.layout.parts(weights.flat))
        self.version = weights.version

    def copy(self) -> ModelPolicy:
        """Build the model once more, with the same weights: what it keeps between calls is its own."""
        policy = ModelPolicy(self.spec, self.seed)
        policy.load(Weights(self.version, self.weights(), self.layout.table, {}))
        return policy

    def weights(self) -> Array:
        """Return the model's weights [P]."""
        return self.layout.flat(self._call("get_weights", self.model.get_weights), f"{self.name}.get_weights()")

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
            found[path] = np.array(to_numpy(given[path]))
            if fault := _fault(leaf, found[path], num):
                raise UserError(f"{who} returned {fault}.")
        return found.get("", found)

    def _checked(self, extras: Mapping[str, object], num: int) -> dict[str, Array]:
        """Check and copy extras.

        Raises:
            UserError: they are not arrays [B, *], or have other names than before.
        """
        who = f"{self.name}.choose_actions()"
        found: dict[str, Array] = {name: np.array(to_numpy(extra)) for name, extra in extras.items()}
        for name, extra in found.items():
            if extra.shape[:1] != (num,):
                raise UserError(f"{who} returned {name!r} of shape {extra.shape}; extras have shape ({num}, ...).")
        self._extras = set(found) if self._extras is None else self._extras
        if self._extras != set(found):
            raise UserError(f"{who} returned extras {sorted(found)}, before {sorted(self._extras)}: always the same.")
        return found

    def _leaf_to_env(self, leaf: ActionLeaf, action: Array) -> Array:
        """Clip actions [B, *] to the bounds of a Box and convert them to the dtype of the space."""
        if leaf.low:
            action = np.clip(action, np.reshape(leaf.low, leaf.shape), np.reshape(leaf.high, leaf.shape))
        return action.astype(leaf.dtype, copy=False)

    def gradient_of(self, returned: object, who: str) -> tuple[Array, dict[str, float]]:
        """Check what a model's step(), or an agent's fetch_grads(), returned: the gradient [P] and its metrics.

        Raises:
            UserError: it is no gradient of this model's weights, or one that is not finite, or metrics that are not numbers.
        """
        gradient, metrics = _pair(returned, [name for name, _ in self.layout.table])
        flat = self.layout.flat(gradient, who)
        if not np.isfinite(flat.dot(flat)):
            bad = [name for name, part in _named(gradient).items() if not np.isfinite(to_numpy(part)).all()]
            raise UserError(f"{who} returned NaN or infinite gradients (first: {(bad or ['all together'])[0]!r}).")
        numbers = {}
        for name, metric in metrics.items():
            value = to_numpy(metric)
            if value.ndim or not np.issubdtype(value.dtype, np.number) and value.dtype != bool:
                raise UserError(f"{who} returned metric {name!r} = {metric!r:.80}; metrics are numbers.")
            numbers[name] = float(value)
        return flat, numbers

    def returns(self, trajectory: Trajectory) -> Array:
        """The discounted returns [T, B] of a fragment. Where the rewards of an episode go on beyond it, they end with the model's
        value of the observation there, if it has values(observation), and with nothing more if it has not."""
        t = trajectory
        value = self._values(flat_rows(t.obs), t.first.size).reshape(t.first.shape)
        last = () if t.final is None else (t.final.t, t.final.b, self._values(t.final.obs, len(t.final.t)))
        ends = (t.terminated, t.truncated, t.valid)
        return gae(t.reward, value[:-1], next_values(value, *last), *ends, self.gamma, 1.0) + value[:-1]

    def _values(self, obs: Tree, num: int) -> Array:
        """The model's values [B] of `num` observations [B, *]; 0 where it gives none."""
        if not hasattr(self.model, "values"):
            return np.zeros(num, np.float32)
        value = to_numpy(self._call("values", self.model.values, obs))
        if value.shape != (num,):
            raise UserError(f"{self.name}.values() returned shape {value.shape}; {num} observations take ({num},).")
        return value.astype(np.float32, copy=False)

    def local_state(self) -> dict[str, object]:
        """Return the model's state apart from its weights, if it has get_state()."""
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


def _fault(leaf: ActionLeaf, action: Array, num: int) -> str:
    """Describe what is wrong with actions [B, *] for `num` = B observations; "" if nothing is."""
    if action.shape != (num, *leaf.shape):
        return f"actions of shape {action.shape}; {num} observations take {(num, *leaf.shape)}"
    if not leaf.is_discrete:
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


def facts_of(spec: NetworkSpec, seed: int) -> dict[str, object]:
    """Return the entries of `args` that raypid provides to models and agents: spaces, gamma, batch_size, device, seed
    and the project's options."""
    from raypid.spaces import space_from_json  # needs gymnasium, which no other policy needs to act

    spaces = {role: space_from_json(spec.facts[role]) for role in ("observation_space", "action_space")}
    return {**spec.facts, "seed": seed, **spaces}
