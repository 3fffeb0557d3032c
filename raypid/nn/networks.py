"""Torch networks: the modules that a NetworkSpec describes. Their parameters are views of one flat tensor.

Axes: N rows; D vector inputs; C, H, W of an image; F features; P distribution parameters; K trunks (2: policy and value,
1: shared); T steps and B streams of a sequence; S numbers of a memory's state.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raypid.errors import CodeError, UserError, listed
from raypid.nn.allocation import keep_freed_memory
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.numpy_mlp import factorised_noise, initial_mlp
from raypid.nn.pipeline import Inputs, InputsOf
from raypid.nn.torch_cells import Memory, unroll
from raypid.plugins.registry import NETWORKS, called
from raypid.types import Array, flat_views

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "silu": nn.functional.silu}
ImageShape = tuple[int, int, int]
Outputs = tuple[Tensor, Tensor | None, Tensor | None]
"""(params [N, P]; value [N], or [N, V] of a distributional head, or None without a value head; the state [B, K, S] after
the last row, or None without a memory)."""


def on_device(array: Array, device: torch.device) -> Tensor:
    """Return an array as a tensor on a device; without a copy if that is the CPU and the array is writable and contiguous.

    A copy to a GPU goes through pinned memory, so that it does not block.
    """
    # what comes from Ray's object store is read-only
    x = torch.from_numpy(np.require(array, requirements=("C", "W")))
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


class TorchInputs(InputsOf[Tensor]):
    """Inputs as tensors on one device; images are in the dtype in which they are stored."""

    def __init__(self, inputs: Inputs, device: torch.device) -> None:
        self.vector = on_device(inputs.vector, device)
        self.images = {k: on_device(v, device) for k, v in inputs.images.items()}
        self.mask = None if inputs.mask is None else on_device(inputs.mask, device)

    def joined(self, other: TorchInputs) -> TorchInputs:
        """Return the rows of both, these first."""
        return self.map(lambda x, y: torch.cat([x, y]), other)


def affine(h: Tensor, weight: Tensor, bias: Tensor, *, in_half: bool) -> Tensor:
    """Return h [K, N, in] @ weight [K, in, out] + bias, with the product in bfloat16 if `in_half`."""
    if in_half:
        return torch.bmm(h.bfloat16(), weight.bfloat16()).float() + bias
    return torch.baddbmm(bias, h, weight)


def layer_norm(h: Tensor) -> Tensor:
    """Return h [..., H] normalised over H, without learned scales. Factors of 1 change no bit of it, but take torch to its faster kernel."""
    return nn.functional.layer_norm(h, h.shape[-1:], _ones(h.shape[-1], h.device))


@cache
def _ones(size: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # else what a policy made first could not be learnt with
        return torch.ones(size, device=device)


def held(part: nn.ParameterDict | nn.ParameterList) -> Mapping[str, Tensor]:
    """Return the parameters of `part` by key, in order. A lookup in `part` itself takes several microseconds, and an update makes dozens."""
    parameters: Mapping[str, Any] = part._parameters
    return parameters


class TwinMLP(nn.Module):
    """Fully connected trunks, their memories and the heads. Its weights have the table of `numpy_mlp.SmallNetwork`."""

    def __init__(self, spec: NetworkSpec, num_inputs: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.spec = spec
        self.table = spec.mlp_table(num_inputs)
        self.activation = ACTIVATIONS[spec.activation]
        self.weights = nn.ParameterDict()
        for name, view in flat_views(initial_mlp(spec, num_inputs, rng), self.table).items():
            self.weights[name.replace(".", "/")] = nn.Parameter(torch.from_numpy(view.copy()))
        self.noise: dict[str, Tensor] = {}
        self.in_half = False
        """Whether products between hidden layers are computed in bfloat16. The learner decides it."""

    def perturb(self, rng: np.random.Generator | None) -> None:
        """Draw new noise for noisy layers; with None, remove it."""
        device = self.weights["policy/bias"].device
        drawn = {} if rng is None else factorised_noise(self.table, rng)
        self.noise = {name.replace(".", "/"): torch.from_numpy(eps).to(device) for name, eps in drawn.items()}

    def _weight(self, name: str) -> Tensor:
        """Return a weight, with its noise where there is some."""
        weights, noise = held(self.weights), self.noise.get(name)
        weight = weights[name]
        return weight if noise is None else weight + weights[f"{name}_sigma"] * noise

    def forward(self, x: Tensor, memory: Memory | None = None) -> Outputs:
        """Evaluate x [N, D]. With a memory these are T * B rows, time-major."""
        w = self._weight
        h = x.expand(self.spec.num_trunks, *x.shape)
        for i in range(len(self.spec.hidden)):
            weight, bias = w(f"trunk/{i}/weight"), w(f"trunk/{i}/bias")
            h = affine(h, weight, bias, in_half=self.in_half and i > 0)
            if self.spec.layer_norm:
                h = layer_norm(h)
            h = self.activation(h)
        state = None
        if memory is not None:
            x = torch.baddbmm(w("memory/bias"), h, w("memory/input"))
            x = x.unflatten(1, memory.first.shape)  # [K, T, B, G * M]
            out, state = unroll(self.spec.memory, x, w("memory/recurrent"), memory)
            h = out.flatten(1, 2)
        params = torch.addmm(w("policy/bias"), h[0], w("policy/weight"))
        if not self.spec.num_values:
            return params, None, state
        value = torch.addmm(w("value/bias"), h[-1], w("value/weight"))
        return params, value[:, 0] if self.spec.num_values == 1 else value, state


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int, padding: int = 0) -> nn.Conv2d:
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding)
    nn.init.orthogonal_(conv.weight, math.sqrt(2))
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return conv


def _nature(shape: ImageShape, channels: tuple[int, ...]) -> list[nn.Module]:
    """The convolutions of Mnih et al. 2015, with smaller strides for images of less than 36 pixels a side."""
    c, side = shape[0], min(shape[1:])
    if side >= 36:
        layers = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]
    elif side >= 16:
        layers = [(32, 4, 2, 1), (64, 3, 2, 1), (64, 3, 1, 1)]
    else:
        layers = [(16, 3, 1, 1), (32, 3, 2, 1)]
    if channels:
        layers = [(width, *layer[1:]) for width, layer in zip(channels, layers, strict=False)]
    modules: list[nn.Module] = []
    for width, kernel, stride, padding in layers:
        modules += [_conv(c, width, kernel, stride, padding), nn.ReLU()]
        c = width
    return modules


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = _conv(width, width, 3, 1, 1), _conv(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(torch.relu(x))))


def _resnet(shape: ImageShape, channels: tuple[int, ...]) -> list[nn.Module]:
    """The deep residual encoder of Espeholt et al. 2018 (figure 3); its LSTM is `model.memory`."""
    modules: list[nn.Module] = []
    c = shape[0]
    for width in channels or (16, 32, 32):
        modules += [_conv(c, width, 3, 1, 1), nn.MaxPool2d(3, 2, 1), _Residual(width), _Residual(width)]
        c = width
    return [*modules, nn.ReLU()]


_ENCODERS = {"cnn": _nature, "resnet": _resnet}


class Encoders(nn.ModuleList):
    """A convolutional encoder for each image.

    Args:
        spec: which encoder, and for which images.
        fast: let channels come last where gradients are computed on a CPU: convolutions learn in three quarters of the time then.
    """

    def __init__(self, spec: NetworkSpec, *, fast: bool) -> None:
        layers = (_ENCODERS[spec.network](shape, spec.channels) for _, shape in spec.images)
        super().__init__(nn.Sequential(*modules, nn.Flatten()) for modules in layers)
        self.scales = image_scales(spec)
        self.fast = fast

    def forward(self, inputs: TorchInputs) -> Tensor:
        """Return the features of the images and the vector [N, F]."""
        if not self.scales:
            return inputs.vector
        last = self.fast and torch.is_grad_enabled() and inputs.vector.device.type == "cpu"
        layout = torch.channels_last if last else torch.contiguous_format
        images = (inputs.images[p].to(torch.float32, memory_format=layout) * s for p, s in self.scales.items())
        return torch.cat([*(encode(image) for encode, image in zip(self, images, strict=True)), inputs.vector], 1)


def image_scales(spec: NetworkSpec) -> dict[str, float]:
    """Return the factor on the values of each image."""
    return {leaf.path: leaf.scale for leaf in spec.pipeline.leaves if leaf.kind == "image"}


class OwnNetwork(nn.Module):
    """Fully connected trunks on the vector and on what a convolutional encoder makes of each image."""

    def __init__(self, spec: NetworkSpec, rng: np.random.Generator) -> None:
        super().__init__()
        if spec.images or max(spec.hidden, default=0) >= 256:
            keep_freed_memory()
        self.encoders = Encoders(spec, fast=True)
        with torch.no_grad():
            width = self.encoders(example_inputs(spec)).shape[1]
        self.mlp = TwinMLP(spec, width, rng)

    def forward(self, inputs: TorchInputs, memory: Memory | None = None) -> Outputs:
        return self.mlp.forward(self.encoders.forward(inputs), memory)


class UserModule(nn.Module):
    """A torch.nn.Module that a user registered.

    It is built as `Class(spec, **model.custom)`, or `Class(**model.custom)` where its signature has no `spec`. It is called
    with the vector [N, D] where the observation has no image, with the image [N, C, H, W] (float, scaled) where the
    observation is one image, else with {"vector": ..., path: image, ...}.

    Raises:
        UserError: it cannot be built from `model.custom`, or its state is not all in its parameters.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.name = spec.network
        self.scales = image_scales(spec)
        self.module = _construct(NETWORKS.find(spec.network, spec.target), spec)

    def call(self, inputs: TorchInputs) -> object:
        """Return whatever the module returns."""
        images = {p: x.float() * self.scales[p] for p, x in inputs.images.items()}
        if not images:
            return self.module(inputs.vector)
        if len(images) == 1 and not inputs.vector.shape[-1]:
            return self.module(next(iter(images.values())))
        return self.module({"vector": inputs.vector, **images})

    def features(self, inputs: TorchInputs) -> Tensor:
        """Return the features [N, F] of a module that is known to return features."""
        out = self.call(inputs)
        assert isinstance(out, Tensor)
        return out


class CustomNetwork(UserModule):
    """A registered module as a policy network.

    It returns features [N, F], to which the memory (where there is one) and the heads are added; or, for an actor-critic,
    (params [N, P], value [N]).

    Raises:
        UserError: what it returns does not fit the algorithm.
    """

    def __init__(self, spec: NetworkSpec, rng: np.random.Generator) -> None:
        super().__init__(spec)
        self.heads: TwinMLP | None = None
        out = self._first_call(spec)
        is_pair = isinstance(out, tuple) and len(out) == 2 and getattr(out[0], "shape", ())[-1:] == (spec.num_outputs,)
        if isinstance(out, Tensor) and out.ndim == 2:
            self.heads = TwinMLP(replace(spec, hidden=()), out.shape[-1], rng)
        elif spec.memory or spec.head != "actor_critic" or not is_pair:
            raise UserError(
                f"Network {spec.network!r} must return features [N, F], behind which model.memory and the heads are put; or, for an "
                f"actor-critic without a memory, (params [N, {spec.num_outputs}], value [N]). It returned {_describe(out)}."
            )
        elif spec.num_log_std:
            self.log_std = nn.Parameter(torch.full((spec.num_log_std,), spec.log_std_init))

    def _first_call(self, spec: NetworkSpec) -> object:
        """Return what the module makes of an example.

        Raises:
            CodeError: what it raised, with the user's traceback, and what it was given.
        """
        try:
            return called(type(self.module).__qualname__, "forward", self.call, example_inputs(spec))
        except CodeError as error:
            vector, images = spec.pipeline.vector_size, dict(spec.pipeline.images)
            given = [f"images {path!r} [N, {', '.join(map(str, shape))}]" for path, shape in images.items()]
            if vector or not images:
                given.append(f"a vector [N, {vector}] (spec.pipeline.vector_size)")
            observed = ", ".join(f"{leaf.path} {list(leaf.shape)}".strip() for leaf in spec.pipeline.leaves)
            raise CodeError(
                f"{error} Network {spec.network!r} is given {' and '.join(given)}, by which to size it, for observations of shape {observed}."
            ) from None

    def forward(self, inputs: TorchInputs, memory: Memory | None = None) -> Outputs:
        if self.heads is not None:
            return self.heads.forward(self.features(inputs), memory)
        out = self.call(inputs)
        assert isinstance(out, tuple)
        params, value = out
        return params, value[:, 0] if value.ndim == 2 else value, None


def check_network(spec: NetworkSpec) -> None:
    """Build a registered network once, for what is wrong with it.

    Raises:
        UserError: it cannot be built, or the algorithm cannot use it.
    """
    build_module(spec, 0)


def _describe(out: object) -> str:
    if isinstance(out, (tuple, list)):
        return "(" + ", ".join(_describe(o) for o in out) + ")"
    return f"a tensor {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__


def _construct(cls: object, spec: NetworkSpec) -> nn.Module:
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise UserError(f"Network {spec.network!r} must be a torch.nn.Module class, not {cls!r}.")
    signature = inspect.signature(cls)
    arguments = {"spec": spec, **spec.custom} if "spec" in signature.parameters else dict(spec.custom)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(f"model.custom {spec.custom!r} does not fit network {spec.network!r}: {error}.") from None
    module: nn.Module = called(cls.__qualname__, "__init__", cls, **arguments)
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise UserError(
            f"Network {spec.network!r} keeps statistics outside its weights ({listed(buffers, 3)}): use LayerNorm in place of BatchNorm."
        )
    return module


def example_inputs(spec: NetworkSpec, num: int = 2) -> TorchInputs:
    """Rows of zeros."""
    images = {p: np.zeros((num, *shape), np.float32) for p, shape in spec.pipeline.images}
    return TorchInputs(Inputs(np.zeros((num, spec.pipeline.vector_size), np.float32), images), torch.device("cpu"))


class FlatParameters:
    """The parameters of a module as views of one flat tensor `flat` [P], and their gradients of another, `gradient` [P].

    `table` has the name and shape of each part. On a CPU, `numpy()` shares memory with the tensor.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        named = [(_plain(name), p) for name, p in module.named_parameters()]
        self.table = tuple((name, tuple(p.shape)) for name, p in named)
        self.flat = torch.cat([p.detach().reshape(-1) for _, p in named])
        self.gradient = torch.zeros_like(self.flat)
        self.gradients: dict[str, Tensor] = flat_views(self.gradient, self.table)
        self.parameters = [p for _, p in named]
        weights: dict[str, Tensor] = flat_views(self.flat, self.table)
        for name, p in named:
            p.data, p.grad = weights[name], self.gradients[name]

    def load(self, flat: Array) -> None:
        """Copy weights [P] in."""
        self.flat.copy_(torch.from_numpy(np.array(flat)))

    def numpy(self) -> Array:
        return self.flat.detach().cpu().numpy()


def build_module(spec: NetworkSpec, seed: int) -> OwnNetwork | CustomNetwork:
    """Build the module that a NetworkSpec describes, with weights drawn by `seed`."""
    cls = OwnNetwork if NETWORKS.is_own(spec.network) else CustomNetwork
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)  # it takes no more
        return cls(spec, np.random.default_rng(seed))


class TorchNetwork(FlatParameters):
    """The network that a NetworkSpec describes."""

    def __init__(self, spec: NetworkSpec, seed: int = 0, device: str = "cpu") -> None:
        self.spec, self.device = spec, torch.device(device)
        module = build_module(spec, seed)
        super().__init__(module.to(self.device))
        self._fully_connected = [part for part in module.modules() if isinstance(part, TwinMLP)]
        self.log_std = next((p for name, p in module.named_parameters() if _plain(name) == "log_std"), None)

    def perturb(self, rng: np.random.Generator | None) -> None:
        """Draw new noise for noisy layers; with None, remove it."""
        for part in self._fully_connected:
            part.perturb(rng)

    def compute_in_half(self) -> None:
        """Compute products between hidden fully connected layers in bfloat16 from now on. Weights stay float32."""
        for part in self._fully_connected:
            part.in_half = True

    def __call__(self, inputs: TorchInputs, memory: Memory | None = None) -> tuple[Tensor, Tensor | None]:
        """Return params [N, P] and value [N] (None without a value head).

        With a memory, N is T * B rows, time-major: row t * B + b.
        """
        return self.outputs(inputs, memory)[:2]

    def outputs(self, inputs: TorchInputs, memory: Memory | None = None) -> Outputs:
        """Return what `__call__` returns, and the state of the memory after the last row."""
        assert (memory is not None) == bool(self.spec.memory)
        return self.module(inputs, memory)

    def policy(self, inputs: Inputs, state: Array | None = None) -> tuple[Array, Array | None, Array | None]:
        """Return distribution parameters [N, P], values [N] (None without a value head) and the memories' next state, as
        NumPy arrays. Workers act with it.

        With memories, `state` [B, K, S] is that of the B = N streams, 0 where an episode begins.
        """
        memory = None
        with torch.inference_mode():
            if state is not None:
                first = torch.zeros(1, len(state), dtype=torch.bool)
                memory = Memory(torch.from_numpy(state).to(self.device), first)
            params, *more = self.outputs(TorchInputs(inputs, self.device), memory)
            value, after = (None if x is None else x.cpu().numpy() for x in more)
        return params.cpu().numpy(), value, after

    def value(self, inputs: Inputs) -> Array:
        """Return state values [N] as a NumPy array."""
        value = self.policy(inputs)[1]
        assert value is not None
        return value

    values = value


def _plain(name: str) -> str:
    """Return a parameter's name as `mlp_table` has it: "trunk.0.weight" for "mlp.weights.trunk/0/weight"."""
    for prefix in ("mlp.weights.", "heads.weights."):
        if name.startswith(prefix):
            return name.removeprefix(prefix).replace("/", ".")
    return name
