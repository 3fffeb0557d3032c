"""Recurrent memory in NumPy: one step of an LSTM or a GRU, and the recurrent part of a policy's state.

Axes: K memories (one for each trunk); B streams; M units; G gates (4 or 3); S numbers of state (2M of an LSTM, M of a GRU).
"""

from __future__ import annotations

import numpy as np

from raypid.nn.network_spec import NetworkSpec
from raypid.types import Array, Tree


def lstm_step(x: Array, state: Array, recurrent: Array) -> tuple[Array, Array]:
    """Output [K, B, M] and state [K, B, 2M] (output, cell) after one step (Hochreiter & Schmidhuber 1997; with the
    forget gate of Gers et al. 2000). x [K, B, 4M]: the projected input, bias included; recurrent [K, M, 4M].

        i, f, g, o = split(x + h U);   c' = sigmoid(f) c + sigmoid(i) tanh(g);   h' = sigmoid(o) tanh(c')
    """
    m = recurrent.shape[1]
    gates = state[..., :m] @ recurrent
    gates += x
    g = np.tanh(gates[..., 2 * m : 3 * m])
    gates = _sigmoid(gates)
    after = np.empty_like(state)
    h, c = after[..., :m], after[..., m:]
    np.multiply(gates[..., m : 2 * m], state[..., m:], out=c)
    c += gates[..., :m] * g
    np.multiply(gates[..., 3 * m :], np.tanh(c), out=h)
    return h, after


def gru_step(x: Array, state: Array, recurrent: Array) -> tuple[Array, Array]:
    """Output and state, both [K, B, M], after one step (Cho et al. 2014, with the reset gate behind the product, as in
    cuDNN). x [K, B, 3M]: the projected input, bias included; recurrent [K, M, 3M].

        r, z = sigmoid(x_r + h U_r), sigmoid(x_z + h U_z);   n = tanh(x_n + r * (h U_n));   h' = (1 - z) n + z h
    """
    m = recurrent.shape[1]
    from_state = state @ recurrent
    gates = _sigmoid(x[..., : 2 * m] + from_state[..., : 2 * m])
    n = np.tanh(x[..., 2 * m :] + gates[..., :m] * from_state[..., 2 * m :])
    h = n + gates[..., m:] * (state - n)
    return h, h


STEPS = {"lstm": lstm_step, "gru": gru_step}


def _sigmoid(x: Array) -> Array:
    # exp would overflow
    return 0.5 * np.tanh(0.5 * x) + 0.5


def initial_memory(spec: NetworkSpec, num_streams: int) -> Array:
    """The state [B, K, S] with which an episode begins."""
    return np.zeros((num_streams, spec.num_trunks, spec.state_size), np.float32)


def split_state(spec: NetworkSpec, state: Tree | None) -> tuple[Tree | None, Array | None]:
    """Split a policy's state into the pipeline's earlier frames and the memory [B, K, S]; None for what it does not have."""
    if not spec.memory:
        return state, None
    assert state is not None and not isinstance(state, np.ndarray)
    memory = state["memory"]
    assert isinstance(memory, np.ndarray)
    return state.get("pipeline"), memory


def join_state(frames: Tree | None, memory: Array | None) -> Tree | None:
    """The inverse of `split_state`: {"memory": ..., "pipeline": ...} where there is a memory."""
    if memory is None:
        return frames
    return {"memory": memory} if frames is None else {"memory": memory, "pipeline": frames}


def reset_memory(memory: Array, first: Array) -> Array:
    """Set the memory [B, K, S] to 0 where the next row begins an episode (first [B])."""
    return np.where(first[:, None, None], np.float32(0), memory) if first.any() else memory
