"""What a network sees, computes and chooses, as plain data that goes to workers and into policy folders, without torch."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_type_hints

import numpy as np

from raypid.errors import shown
from raypid.types import Table

DISTRIBUTIONS = {"Discrete": "categorical", "MultiDiscrete": "multi_categorical", "MultiBinary": "bernoulli"}
"""Kind of a space with discrete elements -> the distribution over its actions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """One array of an observation or of an action."""

    path: str
    """Place in a nested observation or action, "/" between the keys; "" where it is one array."""
    kind: str
    shape: tuple[int, ...]
    """Shape of one observation, or one environment action."""
    nvec: tuple[int, ...] = ()
    """Number of values of each discrete element."""
    start: tuple[int, ...] = ()
    """Smallest value of each discrete element."""
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf(_Part):
    """One array of an observation; its kind is vector (flattened), image, discrete (one-hot) or multi_discrete (one-hot each)."""

    channels_last: bool = False
    scale: float = 1.0
    """Factor on image values: 1/255 for uint8."""

    @property
    def width(self) -> int:
        """Number of elements that it adds to the vector."""
        if self.kind == "image":
            return 0
        return sum(self.nvec) if self.nvec else math.prod(self.shape)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one frame."""
        if len(self.shape) == 2:
            return (1, *self.shape)
        c, h, w = (self.shape[2], *self.shape[:2]) if self.channels_last else self.shape
        return c, h, w


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionLeaf(_Part):
    """One array of an action, and the distribution over it: its kind is categorical, multi_categorical, bernoulli, gaussian,
    squashed_gaussian, deterministic or squashed_deterministic."""

    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """Bounds of each element of a Box, flattened; infinite where there are none."""

    @property
    def space(self) -> str:
        """Kind of the space: Box, Discrete, MultiDiscrete or MultiBinary."""
        return next((space for space, kind in DISTRIBUTIONS.items() if kind == self.kind), "Box")

    @property
    def is_discrete(self) -> bool:
        return self.space != "Box"

    @property
    def size(self) -> int:
        """Elements of one canonical action: the whole Box flattened, or one number for each discrete element."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def num_params(self) -> int:
        """Distribution parameters that the network's head puts out (a Gaussian's log_std is a weight of its own)."""
        if self.kind in ("categorical", "multi_categorical"):
            return sum(self.nvec)
        return 2 * self.size if self.kind == "squashed_gaussian" else self.size

    @property
    def mask_size(self) -> int:
        return sum(self.nvec)


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineSpec:
    """From a raw observation to the network's inputs."""

    leaves: tuple[Leaf, ...]
    frame_stack: int = 1
    normalize: bool = False
    clip: float = 10.0
    """Normalised elements are clipped to [-clip, clip]."""
    mask_size: int = 0
    """Elements of the observation's `action_mask`; 0 where it has none."""

    @property
    def vector_size(self) -> int:
        """Width of the network's vector input, stack included."""
        return self.frame_stack * sum(leaf.width for leaf in self.leaves)

    @property
    def images(self) -> tuple[tuple[str, tuple[int, int, int]], ...]:
        """(path, (channels, height, width)) of each image input, stack included."""
        stacked = ((leaf.path, leaf.image_shape) for leaf in self.leaves if leaf.kind == "image")
        return tuple((path, (self.frame_stack * c, h, w)) for path, (c, h, w) in stacked)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkSpec:
    """A network to act with and everything around it: pipeline, trunk, heads, action distribution."""

    pipeline: PipelineSpec
    actions: tuple[ActionLeaf, ...]
    network: str = "mlp"
    hidden: tuple[int, ...] = (64, 64)
    channels: tuple[int, ...] = ()
    """Output channels of convolutional encoders; empty: as published."""
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    shared: bool = False
    log_std_init: float = 0.0
    custom: dict[str, object] = field(default_factory=dict)
    target: str = ""
    """"module:Name" of a registered network class, so that a saved policy finds it again."""
    facts: dict[str, Any] = field(default_factory=dict)
    """For a head "model": the spaces as plain data (`raypid.spaces`), gamma, batch_size, device."""
    head: str = "actor_critic"
    """actor_critic: a policy and a value; actor: a policy alone; q: a value (or its distribution) for each discrete action; model: a
    user's own model, which replaces raypid's networks."""
    layer_norm: bool = False
    """Hidden layers are normalised (without trainable scales) before their activation."""
    dueling: bool = False
    """A q head is the value of the state plus the advantage of each action (Wang et al. 2016, equation 9)."""
    atoms: tuple[float, ...] = ()
    """Support of a distributional q head (Bellemare et al. 2017); empty for plain values."""
    noisy: float = 0.0
    """sigma_0 of noisy layers (Fortunato et al. 2018, section 3.2); 0: none."""
    memory: str = ""
    """Recurrent cell between trunks and heads, one for each trunk: lstm, gru, or "" for none."""
    memory_size: int = 0
    """Units of a cell, M."""

    def brief(self) -> str:
        """Observations, kinds of actions and the network, in a few words."""
        shapes = ", ".join(f"{leaf.path} {leaf.shape}".strip() for leaf in self.pipeline.leaves)
        actions = "+".join(action.kind for action in self.actions)
        return f"observation {shapes}, action {actions}, network {self.network}{f' with {self.memory}' if self.memory else ''}"

    @property
    def torch_free(self) -> bool:
        """Whether workers can act with NumPy alone."""
        return self.network == "mlp"

    @property
    def images(self) -> tuple[tuple[str, tuple[int, int, int]], ...]:
        """Image inputs of the pipeline."""
        return self.pipeline.images

    @property
    def num_outputs(self) -> int:
        return sum(a.num_params for a in self.actions) * max(1, len(self.atoms))

    @property
    def num_values(self) -> int:
        """Number of outputs of the value head; 0 without one."""
        if self.head == "q":
            return max(1, len(self.atoms)) if self.dueling else 0
        return int(self.head == "actor_critic")

    @property
    def num_log_std(self) -> int:
        return sum(a.size for a in self.actions if a.kind == "gaussian")

    @property
    def num_trunks(self) -> int:
        return 1 if self.shared or not self.num_values else 2

    @property
    def state_size(self) -> int:
        """S: numbers that a cell keeps from step to step; an LSTM's are its output and its cell state."""
        return 2 * self.memory_size if self.memory == "lstm" else self.memory_size

    def mlp_table(self, num_inputs: int) -> Table:
        """List (name, shape) of the fully connected part.

        Weights of trunks and their memories are stacked: [K, in, out], K = 2 where policy and value have a trunk each (the
        policy's is 0), else 1. A memory's gates lie side by side: i, f, g, o of an LSTM; r, z, n of a GRU.
        """
        table: list[tuple[str, tuple[int, ...]]] = []
        k, width = self.num_trunks, num_inputs
        for i, hidden in enumerate(self.hidden):
            table += [(f"trunk.{i}.weight", (k, width, hidden)), (f"trunk.{i}.bias", (k, 1, hidden))]
            width = hidden
        if self.memory:
            units, gates = self.memory_size, {"lstm": 4, "gru": 3}[self.memory] * self.memory_size
            table += [("memory.input", (k, width, gates)), ("memory.recurrent", (k, units, gates))]
            table.append(("memory.bias", (k, 1, gates)))
            width = units
        table += [("policy.weight", (width, self.num_outputs)), ("policy.bias", (self.num_outputs,))]
        if self.num_values:
            table += [("value.weight", (width, self.num_values)), ("value.bias", (self.num_values,))]
        if self.num_log_std:
            table.append(("log_std", (self.num_log_std,)))
        if self.noisy:
            table += [(f"{name}_sigma", shape) for name, shape in table]
        return tuple(table)

    def to_dict(self) -> dict[str, object]:
        """Describe it as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> NetworkSpec:
        """Invert `to_dict`, also after a trip through JSON.

        Raises:
            ValueError, KeyError, TypeError: the values do not describe a network.
        """
        pipeline, actions = dict(values["pipeline"]), tuple(_from_plain(ActionLeaf, a) for a in values["actions"])
        leaves = tuple(_from_plain(Leaf, leaf) for leaf in pipeline.pop("leaves"))
        if not leaves or not actions:
            raise ValueError("a network has observations and actions")
        rest = {k: v for k, v in values.items() if k not in ("pipeline", "actions")}
        return _from_plain(cls, rest, pipeline=_from_plain(PipelineSpec, pipeline, leaves=leaves), actions=actions)


S = TypeVar("S")
_hints: Callable[[type], dict[str, Any]] = functools.cache(get_type_hints)


def _from_plain(cls: type[S], values: dict[str, Any], **parts: object) -> S:
    """Build a dataclass from values of JSON, whose types are checked, and from `parts` that are built already."""
    from raypid.settings.config import coerce  # not needed by workers, whose spec is built already

    hints = _hints(cls)
    if unknown := values.keys() - hints.keys():
        raise ValueError(f"{min(unknown)!r} is unknown in a {cls.__name__}")
    spec = cls(**{k: coerce(k, v, hints[k]) for k, v in values.items()}, **parts)
    if isinstance(spec, (Leaf, ActionLeaf)):
        _check_leaf(spec)
    if isinstance(spec, PipelineSpec) and (spec.frame_stack < 1 or spec.mask_size < 0):
        raise ValueError(f"frame_stack is {spec.frame_stack}, mask_size {spec.mask_size}")
    return spec


def _check_leaf(leaf: Leaf | ActionLeaf) -> None:
    """Check that the parts of a leaf go together.

    Raises:
        ValueError: they do not.
    """
    bounds = (leaf.low, leaf.high) if isinstance(leaf, ActionLeaf) else ()
    sizes = {len(values) for values in (leaf.nvec, leaf.start, *bounds)}
    has_numbers = np.dtype(leaf.dtype).kind in "biuf" and sizes <= {0, math.prod(leaf.shape)}
    has_shape = min(leaf.shape, default=0) >= 0 and (leaf.kind != "image" or len(leaf.shape) in (2, 3))
    if not (has_numbers and has_shape and min(leaf.nvec, default=1) >= 1):
        raise ValueError(f"{shown(leaf)} does not fit together")


def check_weights(spec: NetworkSpec, table: Sequence[tuple[str, tuple[int, ...]]], num_weights: int) -> None:
    """Check that so many weights, named by `table`, may be those of a network, before it is built: what a file declares must
    not take more memory than the file itself has.

    Raises:
        ValueError: they are not.
    """
    if any(n < 0 for _, shape in table for n in shape) or sum(math.prod(shape) for _, shape in table) != num_weights:
        raise ValueError(f"the table of weights does not name the {num_weights:,} that there are")
    if spec.head == "model":
        return
    if spec.torch_free and tuple(table) != spec.mlp_table(spec.pipeline.vector_size):
        raise ValueError("the weights are not those of the network that is described")
    widths = [(1, w) for w in (*spec.hidden, *spec.channels, spec.num_outputs, spec.memory_size, len(spec.atoms))]
    pairs = [*zip(spec.hidden, spec.hidden[1:]), *((9 * a, b) for a, b in zip(spec.channels, spec.channels[1:]))]
    own = spec.network in ("mlp", "cnn", "resnet")
    inputs = spec.pipeline.frame_stack * sum(math.prod(leaf.shape) + sum(leaf.nvec) for leaf in spec.pipeline.leaves)
    if own and (any(a * b > num_weights for a, b in widths + pairs) or inputs > 64 * num_weights + 2**20):
        raise ValueError(f"the network that is described has more weights than the {num_weights:,} that there are")


def differences(theirs: NetworkSpec, ours: NetworkSpec) -> list[str]:
    """List the differences between two networks that change the shapes or the meaning of their weights, as text."""
    with_size = theirs.memory and ours.memory

    def described(spec: NetworkSpec) -> dict[str, object]:
        return {
            "observations": {leaf.path: leaf.nvec or leaf.shape for leaf in spec.pipeline.leaves},
            "actions": [(a.kind, a.nvec or a.shape) for a in spec.actions],
            "frame_stack": spec.pipeline.frame_stack,
            "normalize_observations": spec.pipeline.normalize,
            "model.memory": spec.memory or "none",
            "model.memory_size": spec.memory_size if with_size else 0,
            **{f"model.{n}": getattr(spec, n) for n in ("network", "hidden", "channels", "activation", "shared")},
            "layer_norm": spec.layer_norm,
            "dueling": spec.dueling,
        }

    here = described(ours)
    return [f"{n} {there!r} there, {here[n]!r} here" for n, there in described(theirs).items() if there != here[n]]
