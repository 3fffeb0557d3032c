"""Torch networks: what NetworkSpec describes, as modules whose parameters are views of one flat tensor.

Axes: N rows; D vector inputs; C, H, W image; P distribution parameters; K trunks (2: policy and value, 1: shared).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raypid.errors import UserError
from raypid.nn.allocation import keep_freed_memory
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.numpy_mlp import factorised_noise, initial_mlp
from raypid.nn.pipeline import Inputs
from raypid.nn.torch_cells import Memory, unroll
from raypid.registry import NETWORKS
from raypid.types import Array, flat_views

_ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "silu": nn.functional.silu}
ImageShape = tuple[int, int, int]
Outputs = tuple[Tensor, Tensor | None, Tensor | None]
"""params [N, P]; value [N] (or [N, V] of a distributional head; None without a value head); the memory after the last
row [B, K, S] (None without a memory)."""


def on_device(x: Tensor, device: torch.device) -> Tensor:
    """`x` there; on its way to a GPU it passes through pinned memory, so that nobody waits for the copy."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


class TorchInputs:
    """Inputs as tensors on one device: vector [N, D] float32, images {path: [N, C, H, W]} as stored, mask [N, A] or None."""

    def __init__(self, inputs: Inputs, device: torch.device) -> None:
        def move(x: Array) -> Tensor:
            x = x if x.flags.writeable and x.flags.c_contiguous else x.copy()
            return on_device(torch.from_numpy(x), device)

        self.vector = move(inputs.vector)
        self.images = {k: move(v) for k, v in inputs.images.items()}
        self.mask = None if inputs.mask is None else move(inputs.mask)

    def joined(self, other: TorchInputs) -> TorchInputs:
        """The rows of both."""
        both = object.__new__(TorchInputs)
        both.vector = torch.cat([self.vector, other.vector])
        both.images = {k: torch.cat([v, other.images[k]]) for k, v in self.images.items()}
        both.mask = None if self.mask is None or other.mask is None else torch.cat([self.mask, other.mask])
        return both

    def flatten(self) -> TorchInputs:
        """[T, B, *] to [T * B, *]."""
        flat = object.__new__(TorchInputs)
        flat.vector = self.vector.flatten(0, 1)
        flat.images = {k: v.flatten(0, 1) for k, v in self.images.items()}
        flat.mask = None if self.mask is None else self.mask.flatten(0, 1)
        return flat

    def take(self, rows: Array | slice | tuple[slice, Array] | Tensor) -> TorchInputs:
        taken = object.__new__(TorchInputs)
        taken.vector = self.vector[rows]
        taken.images = {k: v[rows] for k, v in self.images.items()}
        taken.mask = None if self.mask is None else self.mask[rows]
        return taken


class TwinMLP(nn.Module):
    """Fully connected trunks, their memories and the heads; the same table of weights as `small.SmallNetwork`."""

    def __init__(self, spec: NetworkSpec, num_inputs: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.spec = spec
        self.table = spec.mlp_table(num_inputs)
        self.activation = _ACTIVATIONS[spec.activation]
        self.weights = nn.ParameterDict()
        for name, view in flat_views(initial_mlp(spec, num_inputs, rng), self.table).items():
            self.weights[name.replace(".", "/")] = nn.Parameter(torch.from_numpy(view.copy()))
        self.noise: dict[str, Tensor] = {}
        self.in_half = False
        """The learner's choice: products between hidden layers in bfloat16."""

    def perturb(self, rng: np.random.Generator | None) -> None:
        """Draw new noise for noisy layers, or take it away."""
        device = self.weights["policy/bias"].device
        drawn = {} if rng is None else factorised_noise(self.table, rng)
        self.noise = {name.replace(".", "/"): torch.from_numpy(eps).to(device) for name, eps in drawn.items()}

    def forward(self, x: Tensor, memory: Memory | None = None) -> Outputs:
        """x [N, D]; with a memory these are T * B rows, time-major."""
        w: Any = self.weights
        if self.noise:
            w = {**w, **{name: w[name] + w[f"{name}_sigma"] * eps for name, eps in self.noise.items()}}
        h = x.expand(self.spec.num_trunks, *x.shape)
        for i in range(len(self.spec.hidden)):
            weight, bias = w[f"trunk/{i}/weight"], w[f"trunk/{i}/bias"]
            if self.in_half and i:
                h = torch.bmm(h.bfloat16(), weight.bfloat16()).float() + bias
            else:
                h = torch.baddbmm(bias, h, weight)
            if self.spec.layer_norm:
                h = nn.functional.layer_norm(h, h.shape[-1:])
            h = self.activation(h)
        state = None
        if memory is not None:
            x = torch.baddbmm(w["memory/bias"], h, w["memory/input"])
            x = x.unflatten(1, memory.first.shape)  # [K, T, B, G * M]
            out, state = unroll(self.spec.memory, x, w["memory/recurrent"], memory)
            h = out.flatten(1, 2)
        params = torch.addmm(w["policy/bias"], h[0], w["policy/weight"])
        if not self.spec.num_values:
            return params, None, state
        value = torch.addmm(w["value/bias"], h[-1], w["value/weight"])
        return params, value[:, 0] if self.spec.num_values == 1 else value, state


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int, padding: int = 0) -> nn.Conv2d:
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding)
    nn.init.orthogonal_(conv.weight, math.sqrt(2))
    nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    return conv


class NatureEncoder(nn.Sequential):
    """Convolutions of Mnih et al. 2015 for images of 64 and more pixels a side; smaller strides for smaller images."""

    def __init__(self, shape: ImageShape, channels: tuple[int, ...] = ()) -> None:
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
        super().__init__(*modules, nn.Flatten())


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = _conv(width, width, 3, 1, 1), _conv(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(torch.relu(x))))


class ResNetEncoder(nn.Sequential):
    """The deep residual encoder of Espeholt et al. 2018 (figure 3); its LSTM is `model.memory`."""

    def __init__(self, shape: ImageShape, channels: tuple[int, ...] = ()) -> None:
        modules: list[nn.Module] = []
        c = shape[0]
        for width in channels or (16, 32, 32):
            modules += [_conv(c, width, 3, 1, 1), nn.MaxPool2d(3, 2, 1), _Residual(width), _Residual(width)]
            c = width
        super().__init__(*modules, nn.ReLU(), nn.Flatten())


class ImageNetwork(nn.Module):
    """One convolutional encoder for each image, joined with the vector, below fully connected trunks."""

    encoder: type[nn.Module] = NatureEncoder

    def __init__(self, spec: NetworkSpec, rng: np.random.Generator) -> None:
        super().__init__()
        keep_freed_memory()
        self.scales = {leaf.path: leaf.scale for leaf in spec.pipeline.leaves if leaf.kind == "image"}
        self.paths = [path for path, _ in spec.pipeline.images]
        self.encoders = nn.ModuleList(self.encoder(shape, spec.channels) for _, shape in spec.pipeline.images)
        with torch.no_grad():
            width = sum(
                e(torch.zeros(1, *shape)).shape[1]
                for e, (_, shape) in zip(self.encoders, spec.pipeline.images, strict=True)
            )
        self.mlp = TwinMLP(spec, width + spec.pipeline.vector_size, rng)

    def forward(self, inputs: TorchInputs, memory: Memory | None = None) -> Outputs:
        parts = [e(self._scaled(inputs.images[p], p)) for e, p in zip(self.encoders, self.paths, strict=True)]
        out: Outputs = self.mlp(torch.cat([*parts, inputs.vector], 1), memory)
        return out

    def _scaled(self, image: Tensor, path: str) -> Tensor:
        """float32; on a CPU with the channels last where gradients follow: there convolutions learn in three quarters of the time."""
        last = torch.is_grad_enabled() and image.device.type == "cpu"
        layout = torch.channels_last if last else torch.contiguous_format
        return image.to(torch.float32, memory_format=layout) * self.scales[path]


class NatureCNN(ImageNetwork):
    encoder = NatureEncoder


class ImpalaResNet(ImageNetwork):
    encoder = ResNetEncoder


class VectorNetwork(nn.Module):
    """Trunks on the vector alone."""

    def __init__(self, spec: NetworkSpec, rng: np.random.Generator) -> None:
        super().__init__()
        self.mlp = TwinMLP(spec, spec.pipeline.vector_size, rng)

    def forward(self, inputs: TorchInputs, memory: Memory | None = None) -> Outputs:
        out: Outputs = self.mlp(inputs.vector, memory)
        return out


class CustomNetwork(nn.Module):
    """A user's module. It is called with the vector [N, D] where the observation has no image, with the image
    [N, C, H, W] (float, scaled) where it is one image, else with {"vector": ..., path: image, ...}.

    Built as `Class(spec, **model.custom)`, or `Class(**model.custom)` where its signature has no `spec`. It returns
    (params [N, P], value [N]), or features [N, F], to which the memory, where there is one, and the two heads are added.
    """

    def __init__(self, spec: NetworkSpec, rng: np.random.Generator) -> None:
        super().__init__()
        self.spec = spec
        self.scales = {leaf.path: leaf.scale for leaf in spec.pipeline.leaves if leaf.kind == "image"}
        cls = NETWORKS.find(spec.network, spec.target)
        self.module = _construct(cls, spec)
        self.heads: TwinMLP | None = None
        out = self._call(_example_inputs(spec))
        if isinstance(out, Tensor):
            self.heads = TwinMLP(replace(spec, hidden=()), out.shape[-1], rng)
        elif spec.memory:
            raise UserError(
                f"Network {spec.network!r} must return features [N, F], behind which model.memory {spec.memory!r} and the "
                f"heads are put; it returned {_describe(out)}."
            )
        elif spec.head != "actor_critic":
            raise UserError(
                f"Network {spec.network!r} must return features [N, F] for this algorithm, which adds its own heads; "
                f"it returned {_describe(out)}."
            )
        elif not (isinstance(out, tuple) and len(out) == 2 and out[0].shape[-1] == spec.num_outputs):
            raise UserError(
                f"Network {spec.network!r} must return features [N, F], or (params [N, {spec.num_outputs}], value [N]); "
                f"it returned {_describe(out)}."
            )
        elif spec.num_log_std:
            self.log_std = nn.Parameter(torch.full((spec.num_log_std,), spec.log_std_init))

    def _call(self, inputs: TorchInputs) -> Any:
        images = {p: x.float() * self.scales[p] for p, x in inputs.images.items()}
        if not images:
            return self.module(inputs.vector)
        if len(images) == 1 and not inputs.vector.shape[-1]:
            return self.module(next(iter(images.values())))
        return self.module({"vector": inputs.vector, **images})

    def forward(self, inputs: TorchInputs, memory: Memory | None = None) -> Outputs:
        out = self._call(inputs)
        if self.heads is not None:
            through: Outputs = self.heads(out, memory)
            return through
        params, value = out
        return params, value[:, 0] if value.ndim == 2 else value, None


def _describe(out: Any) -> str:
    if isinstance(out, (tuple, list)):
        return "(" + ", ".join(_describe(o) for o in out) + ")"
    return f"a tensor {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__


def _construct(cls: Any, spec: NetworkSpec) -> nn.Module:
    import inspect

    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise UserError(f"Network {spec.network!r} must be a torch.nn.Module class, not {cls!r}.")
    parameters = inspect.signature(cls).parameters
    module = cls(spec, **spec.custom) if "spec" in parameters else cls(**spec.custom)
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise UserError(
            f"Network {spec.network!r} keeps statistics outside its parameters ({', '.join(buffers[:3])}), which do not "
            "travel with the weights. Use LayerNorm or GroupNorm in place of BatchNorm."
        )
    return module


def _example_inputs(spec: NetworkSpec) -> TorchInputs:
    images = {p: np.zeros((2, *shape), np.float32) for p, shape in spec.pipeline.images}
    return TorchInputs(Inputs(np.zeros((2, spec.pipeline.vector_size), np.float32), images), torch.device("cpu"))


class FlatParameters:
    """The parameters of a module as views of one flat tensor [P] (`flat`), their gradients of another (`gradient`).

    `table` names the parts. On a CPU `numpy()` shares memory with the tensor.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        named = [(_plain(name), p) for name, p in module.named_parameters()]
        self.table = tuple((name, tuple(p.shape)) for name, p in named)
        self.flat = torch.cat([p.detach().reshape(-1) for _, p in named])
        self.gradient = torch.zeros_like(self.flat)
        self.gradients = flat_views(self.gradient, self.table)
        self.parameters = [p for _, p in named]
        for (name, p), view in zip(named, flat_views(self.flat, self.table).values(), strict=True):
            p.data = view
            p.grad = self.gradients[name]

    def load(self, flat: Array) -> None:
        """Copy weights [P] in."""
        with torch.no_grad():
            self.flat.copy_(torch.from_numpy(np.array(flat)))

    def numpy(self) -> Array:
        return self.flat.detach().cpu().numpy()


class TorchNetwork(FlatParameters):
    """The network that a NetworkSpec describes."""

    def __init__(self, spec: NetworkSpec, seed: int = 0, device: str = "cpu") -> None:
        self.spec, self.device = spec, torch.device(device)
        rng = np.random.default_rng(seed)
        kinds = {"mlp": VectorNetwork, "cnn": NatureCNN, "resnet": ImpalaResNet}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = kinds.get(spec.network, CustomNetwork)(spec, rng)
        super().__init__(module.to(self.device))
        self.log_std = next((p for name, p in module.named_parameters() if _plain(name) == "log_std"), None)

    def perturb(self, rng: np.random.Generator | None) -> None:
        """Draw new noise for noisy layers, or take it away."""
        for part in self._fully_connected():
            part.perturb(rng)

    def compute_in_half(self) -> None:
        """Products between hidden fully connected layers in bfloat16 from now on; weights stay float32."""
        for part in self._fully_connected():
            part.in_half = True

    def _fully_connected(self) -> list[TwinMLP]:
        return [part for part in self.module.modules() if isinstance(part, TwinMLP)]

    def __call__(self, inputs: TorchInputs, memory: Memory | None = None) -> tuple[Tensor, Tensor | None]:
        """params [N, P] and value [N]; with a memory, N = T * B rows, time-major (row t * B + b)."""
        return self.outputs(inputs, memory)[:2]

    def outputs(self, inputs: TorchInputs, memory: Memory | None = None) -> Outputs:
        """What `__call__` gives, and the memory after the last row."""
        assert (memory is not None) == bool(self.spec.memory)
        out: Outputs = self.module(inputs, memory)
        return out

    def policy(self, inputs: Inputs) -> tuple[Array, Array | None]:
        """Distribution parameters [N, P] and values [N], as NumPy: how a worker acts."""
        with torch.inference_mode():
            params, value = self(TorchInputs(inputs, self.device))
        return params.cpu().numpy(), None if value is None else value.cpu().numpy()

    def recur(self, inputs: Inputs, state: Array) -> tuple[Array, Array | None, Array]:
        """One step of B streams through the memories, as NumPy: params [B, P], value [B] (None without a value head), and
        the next state. state [B, K, S], 0 where an episode begins."""
        first = torch.zeros(1, len(state), dtype=torch.bool)
        with torch.inference_mode():
            before = torch.from_numpy(state).to(self.device)
            params, value, after = self.outputs(TorchInputs(inputs, self.device), Memory(before, first))
        assert after is not None
        return params.cpu().numpy(), None if value is None else value.cpu().numpy(), after.cpu().numpy()

    def value(self, inputs: Inputs) -> Array:
        """State values [N], as NumPy."""
        value = self.policy(inputs)[1]
        assert value is not None
        return value

    values = value


def _plain(name: str) -> str:
    """ "mlp.weights.trunk/0/weight" -> "trunk.0.weight": the names of `mlp_table`."""
    for prefix in ("mlp.weights.", "heads.weights."):
        if name.startswith(prefix):
            return name.removeprefix(prefix).replace("/", ".")
    return name
