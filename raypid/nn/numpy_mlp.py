"""Small policy and value networks in NumPy: the forward pass that workers act with, and a hand-written backward pass.

At 64 hidden units a minibatch step of torch is bound by the dispatch of its operations, not by arithmetic; this kernel
takes a fifth of the time. It covers fully connected trunks with tanh, ReLU or SiLU and one categorical or diagonal
Gaussian action; everything else learns with torch (`networks.py`), with the same table of weights.
"""

from __future__ import annotations

import math

import numpy as np

from raypid.nn.distributions import log_softmax
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.numpy_cells import STEPS
from raypid.nn.pipeline import Inputs
from raypid.types import Array, Table, flat_views

Layer = tuple[Array, Array]
"""The arguments and the values [K, N, H] of a layer's activation; one array where the activation is computed in place."""
CHUNK = 256
"""Rows of a fragment that are evaluated at a time: their layers stay in the cache, and need no new pages of memory."""
_ENTROPY_OF_UNIT_NORMAL = 0.5 * (1 + math.log(2 * math.pi))


def orthogonal(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> Array:
    """Orthogonal matrices [..., in, out] times `gain` (Saxe et al. 2014)."""
    rows, columns = shape[-2:]
    a = rng.standard_normal((*shape[:-2], max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(a)
    q = q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    return (gain * (q if rows >= columns else np.swapaxes(q, -1, -2))).astype(np.float32)


def initial_mlp(spec: NetworkSpec, num_inputs: int, rng: np.random.Generator) -> Array:
    """Initial flat weights of the fully connected part: orthogonal, gain sqrt(2) in trunks, 1 in each gate of a memory, 0.01 for
    the policy's head, 1 for the value's. An LSTM's forget gates have a bias of 1 (Jozefowicz et al. 2015)."""
    table = spec.mlp_table(num_inputs)
    flat = np.zeros(sum(int(np.prod(shape)) for _, shape in table), np.float32)
    views = flat_views(flat, table)
    for name, view in views.items():
        if name.endswith("weight"):
            gain = {"policy.weight": 0.01, "value.weight": 1.0}.get(name, math.sqrt(2))
            view[:] = orthogonal(rng, view.shape, gain)
        elif name in ("memory.input", "memory.recurrent"):
            gates = view.reshape(*view.shape[:2], -1, spec.memory_size)  # a view: [K, in, G, M]
            gates[:] = orthogonal(rng, (len(view), gates.shape[2], view.shape[1], spec.memory_size), 1.0).swapaxes(1, 2)
        elif name == "memory.bias" and spec.memory == "lstm":
            view[..., spec.memory_size : 2 * spec.memory_size] = 1.0
        elif name == "log_std":
            view[:] = spec.log_std_init
        elif name.endswith("_sigma"):
            weight = views[f"{name.rpartition('.')[0]}.weight"]
            view[:] = spec.noisy / math.sqrt(weight.shape[-2])
    return flat


def factorised_noise(table: Table, rng: np.random.Generator) -> dict[str, Array]:
    """Noise for the parts of `table` that have a sigma: f(e_in) f(e_out) with f(x) = sign(x) sqrt(|x|), and f(e_out) for
    the bias (Fortunato et al. 2018, equations 10 and 11)."""
    noise, shapes = {}, dict(table)
    for name, shape in table:
        if name.endswith("weight") and f"{name}_sigma" in shapes:
            e_in, e_out = (rng.standard_normal((*shape[:-2], size), dtype=np.float32) for size in shape[-2:])
            e_in, e_out = np.sign(e_in) * np.sqrt(np.abs(e_in)), np.sign(e_out) * np.sqrt(np.abs(e_out))
            bias = f"{name.removesuffix('weight')}bias"
            noise[name] = e_in[..., :, None] * e_out[..., None, :]
            noise[bias] = e_out.reshape(shapes[bias])
    return noise


def _layer_norm(h: Array) -> Array:
    # sums, as `mean` of few rows takes several times as long
    size = h.shape[-1]
    h = h - h.sum(-1, keepdims=True) / size
    h /= np.sqrt((h * h).sum(-1, keepdims=True) / size + 1e-5)
    return h


def _activate(h: Array, activation: str) -> Array:
    if activation == "tanh":
        return np.tanh(h, out=h)
    if activation == "relu":
        return np.maximum(h, 0, out=h)
    return h / (1 + np.exp(-h))


def _slope(h_in: Array, h: Array, activation: str) -> Array:
    """Derivative of the activation, from its argument and value."""
    if activation == "tanh":
        return 1 - h * h
    if activation == "relu":
        return (h > 0).astype(np.float32)
    s = 1 / (1 + np.exp(-h_in))
    return s * (1 + h_in * (1 - s))


class SmallNetwork:
    """A fully connected policy and value network on one flat buffer [P] float32 (`flat`; its parts are views).

    Trunks are stacked on a leading axis of K = 2 (policy, value) or 1 (shared).
    """

    def __init__(self, spec: NetworkSpec, flat: Array) -> None:
        self.spec, self.table = spec, spec.mlp_table(spec.pipeline.vector_size)
        self.flat = flat
        self._bind(flat)

    def _bind(self, flat: Array, noise: dict[str, Array] | None = None) -> None:
        parts = flat_views(flat, self.table)
        for name, eps in (noise or {}).items():
            parts[name] = parts[name] + parts[f"{name}_sigma"] * eps
        self._trunk = [(parts[f"trunk.{i}.weight"], parts[f"trunk.{i}.bias"]) for i in range(len(self.spec.hidden))]
        if self.spec.memory:
            self._memory = tuple(parts[f"memory.{name}"] for name in ("input", "recurrent", "bias"))
        self._policy = (parts["policy.weight"], parts["policy.bias"])
        if self.spec.num_values:
            self._value = (parts["value.weight"], parts["value.bias"])
        self.log_std = parts.get("log_std")

    def perturb(self, rng: np.random.Generator | None) -> None:
        """Draw new noise for noisy layers, or take it away."""
        self._bind(self.flat, None if rng is None else factorised_noise(self.table, rng))

    def load(self, flat: Array) -> None:
        """Take over weights [P]; the array is kept, not copied."""
        self.flat = flat
        self._bind(flat)

    def policy(self, inputs: Inputs, state: Array | None = None) -> tuple[Array, Array | None, Array | None]:
        """Distribution parameters [N, P], values and the memories' next state. Without memories it is the parameters alone:
        the value trunk does not run, and None says that no value came along.

        With memories, `state` [B, K, S] is that of the B = N streams, 0 where an episode begins; values are [B], or [B, V] of a
        distributional head; None without a value head.
        """
        if state is None:
            out = self._hidden(inputs.vector, 0) @ self._policy[0]
            out += self._policy[1]
            return out, None, None
        weight, recurrent, bias = self._memory
        x = self._hidden(inputs.vector, slice(None)) @ weight
        x += bias
        h, after = STEPS[self.spec.memory](x, state.swapaxes(0, 1), recurrent)
        params = h[0] @ self._policy[0] + self._policy[1]
        after = after.swapaxes(0, 1)
        if not self.spec.num_values:
            return params, None, after
        value = h[-1] @ self._value[0] + self._value[1]
        return params, value[:, 0] if self.spec.num_values == 1 else value, after

    def values(self, inputs: Inputs) -> Array:
        """Outputs [N, V] of the value head."""
        x = inputs.vector
        parts = [self._hidden(x[i : i + CHUNK], -1) @ self._value[0] for i in range(0, max(1, len(x)), CHUNK)]
        return np.concatenate(parts) + self._value[1]

    def value(self, inputs: Inputs) -> Array:
        """State values [N]."""
        return self.values(inputs)[..., 0]

    def _layers(self, h: Array, trunk: int | slice) -> list[Layer]:
        layers = []
        for weight, bias in self._trunk:
            argument = h @ weight[trunk]
            argument += bias[trunk]
            if self.spec.layer_norm:
                argument = _layer_norm(argument)
            h = _activate(argument, self.spec.activation)
            layers.append((argument, h))
        return layers

    def _hidden(self, h: Array, trunk: int | slice) -> Array:
        layers = self._layers(h, trunk)
        return layers[-1][1] if layers else h

    def forward(self, x: Array) -> tuple[Array, Array, list[Layer]]:
        """Return params [N, P], value [N] and the layers, which `backward` needs."""
        layers = self._layers(x, slice(None))
        last = self._last(x, layers)
        params = last[0] @ self._policy[0]
        params += self._policy[1]
        value = (last[-1] @ self._value[0])[:, 0]
        value += self._value[1]
        return params, value, layers

    def _last(self, x: Array, layers: list[Layer]) -> Array:
        """Return the inputs [K, N, H] of the heads for network inputs x [N, D]."""
        return layers[-1][1] if layers else np.broadcast_to(x, (self.spec.num_trunks, *x.shape))

    def backward(self, grads: dict[str, Array], x: Array, layers: list[Layer], d_params: Array, d_value: Array) -> None:
        """Write the gradient of a loss into the views `grads` (except log_std), given its derivatives by params [N, P]
        and value [N]."""
        last = self._last(x, layers)
        ones = np.ones((1, len(x)), np.float32)  # sums over rows are faster as products
        np.matmul(last[0].T, d_params, out=grads["policy.weight"])
        np.matmul(ones[0], d_params, out=grads["policy.bias"])
        np.matmul(last[-1].T, d_value[:, None], out=grads["value.weight"])
        grads["value.bias"][0] = d_value.sum()
        d = np.empty_like(last)
        np.matmul(d_params, self._policy[0].T, out=d[0])
        by_value = d_value[:, None] * self._value[0].T
        d[-1] = by_value if len(d) > 1 else d[0] + by_value
        for i in range(len(layers) - 1, -1, -1):
            d *= _slope(*layers[i], self.spec.activation)
            below = layers[i - 1][1].swapaxes(1, 2) if i else x.T
            np.matmul(below, d, out=grads[f"trunk.{i}.weight"])
            np.matmul(ones, d, out=grads[f"trunk.{i}.bias"])
            if i:
                d = d @ self._trunk[i][0].swapaxes(1, 2)

    def logp_and_slopes(self, params: Array, action: Array) -> tuple[Array, Array, Array, Array]:
        """log_prob [N], its derivative by params (and log_std) [N, P or 2P], entropy [N], its derivative by the same."""
        if self.log_std is None:
            log_p = log_softmax(params.T.copy(), 0)  # [P, N]: few choices, many rows
            p, rows = np.exp(log_p), np.arange(len(action))
            entropy = -(p * log_p).sum(0)
            d_log_prob = -p
            d_log_prob[action, rows] += 1
            return log_p[action, rows], d_log_prob.T, entropy, (-p * (log_p + entropy)).T
        inverse, log_volume = np.exp(-self.log_std), self.log_std.sum()
        z = (action - params) * inverse
        size = params.shape[1]
        squares = z * z
        log_prob = -0.5 * squares.sum(1) - (log_volume + size * 0.5 * math.log(2 * math.pi))
        entropy = np.full(len(z), log_volume + size * _ENTROPY_OF_UNIT_NORMAL, np.float32)
        d_entropy = np.zeros((len(z), 2 * size), np.float32)
        d_entropy[:, size:] = 1
        return log_prob, np.concatenate([z * inverse, squares - 1], 1), entropy, d_entropy
