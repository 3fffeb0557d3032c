"""LSTM and GRU in torch: a whole sequence at once, in which episodes may begin.

Axes: T steps; B streams; K memories (one for each trunk); M units; G gates (4 or 3); S numbers of state (2M or M).

The cells are those of `numpy_cells.py`. Autograd through a loop of small operations takes several times as long as their
arithmetic. So forward and backward pass are written out: derivatives for all steps at once, a handful of operations in
each step of the loop, and one product for the gradient of the recurrent weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]
    resets: list[bool]
    """Whether an episode begins in some stream at each step."""


@dataclass(slots=True)
class Memory:
    """The state that a sequence begins with, and where episodes begin in it."""

    state: Tensor
    """[B, K, S], before the first row."""
    first: Tensor
    """[T, B] bool: an episode begins, so the state before this row is 0. It may be on the CPU although the network is on a
    GPU."""


def unroll(cell: str, x: Tensor, recurrent: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    """Run a sequence through the cells; returns outputs [K, T, B, M] and the state [B, K, S] after the last step.

    Gradients go to `x` and `recurrent`, not to the state that the sequence begins with.

    Args:
        cell: lstm or gru.
        x: [K, T, B, G * M], the projected inputs with their bias.
        recurrent: [K, M, G * M].
    """
    state = memory.state.transpose(0, 1)
    resets = memory.first.any(1).tolist()
    keep = (~memory.first)[:, :, None].to(x)  # [T, B, 1]
    if cell == "gru":
        outputs: Tensor = _GRU.apply(x, recurrent, state, keep, resets)
        return outputs, outputs[:, -1].detach().transpose(0, 1)
    h, c = _LSTM.apply(x, recurrent, state, keep, resets)
    return h, torch.cat([h[:, -1].detach(), c], -1).transpose(0, 1)


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, x: Tensor, recurrent: Tensor, state: Tensor, keep: Tensor, resets: list[bool]
    ) -> tuple[Tensor, Tensor]:
        """Return outputs [K, T, B, M] and the last cell state [K, B, M]."""
        k, t, b, _ = x.shape
        m = recurrent.shape[1]
        gates, tanh_c = torch.empty_like(x), x.new_empty(k, t, b, m)
        hs, cs = x.new_empty(k, t + 1, b, m), x.new_empty(k, t + 1, b, m)  # before each step, and after the last
        hs[:, 0], cs[:, 0] = state.split(m, -1)
        parts = (gates, gates[..., : 2 * m], *gates.split(m, -1))
        rows = _steps(keep, resets, x, *parts, tanh_c, hs[:, :-1], cs[:, :-1], hs[:, 1:], cs[:, 1:])
        for (x_t, gate, i_f, i, f, g, o, tanh_t, h, c, h_next, c_next), keep_t, reset in rows:
            if reset:
                h, c = h * keep_t, c * keep_t
            torch.baddbmm(x_t, h, recurrent, out=gate)
            i_f.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, c, out=c_next).addcmul_(i, g)
            torch.tanh(c_next, out=tanh_t)
            torch.mul(o, tanh_t, out=h_next)
        ctx.save_for_backward(recurrent, gates, hs, cs, tanh_c, keep)
        ctx.resets = resets
        last = cs[:, -1]
        ctx.mark_non_differentiable(last)
        return hs[:, 1:], last

    @staticmethod
    def backward(ctx: _Context, d_out: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        recurrent, gates, hs, cs, tanh_c, keep = ctx.saved_tensors
        m = tanh_c.shape[-1]
        i, f, g, o = gates.split(m, -1)
        # first the factors of dc (for i, f and g) and of dh (for o); then, from the last step backwards, the gradients
        d_gates = torch.addcmul(gates, gates, gates, value=-1)
        d_gates[..., :m] *= g
        d_gates[..., m : 2 * m] *= cs[:, :-1] * keep
        d_gates[..., 2 * m : 3 * m] = i * (1 - g * g)
        d_gates[..., 3 * m :] *= tanh_c
        d_ifg, d_o = d_gates[..., : 3 * m].unflatten(-1, (3, m)), d_gates[..., 3 * m :]
        by_cell = torch.addcmul(o, o * tanh_c, tanh_c, value=-1)
        back = recurrent.transpose(1, 2)
        dh, dc = torch.zeros_like(hs[:, 0]), torch.zeros_like(hs[:, 0])
        rows = _steps(keep, ctx.resets, d_out, by_cell, f, d_gates, d_ifg, d_o)
        for (d_t, cell_t, f_t, d_gate, d_ifg_t, d_o_t), keep_t, reset in reversed(rows):
            dh += d_t
            dc.addcmul_(dh, cell_t)
            d_ifg_t.mul_(dc[:, :, None])
            d_o_t.mul_(dh)
            torch.bmm(d_gate, back, out=dh)
            dc *= f_t
            if reset:
                dh *= keep_t
                dc *= keep_t
        return d_gates, _by_recurrent(hs[:, :-1] * keep, d_gates), None, None, None


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, recurrent: Tensor, state: Tensor, keep: Tensor, resets: list[bool]) -> Tensor:
        """Return outputs [K, T, B, M]."""
        k, t, b, _ = x.shape
        m = recurrent.shape[1]
        from_h, n = torch.empty_like(x), x.new_empty(k, t, b, m)
        hs = x.new_empty(k, t + 1, b, m)  # before each step, and after the last
        hs[:, 0] = state
        parts = (from_h, from_h[..., : 2 * m], *from_h.split(m, -1))
        rows = _steps(keep, resets, *x.split([2 * m, m], -1), *parts, n, hs[:, :-1], hs[:, 1:])
        for (x_rz, x_n, from_t, rz, r, z, u, n_t, h, h_next), keep_t, reset in rows:
            if reset:
                h = h * keep_t
            torch.bmm(h, recurrent, out=from_t)
            rz.add_(x_rz).sigmoid_()
            torch.addcmul(x_n, r, u, out=n_t).tanh_()
            torch.lerp(n_t, h, z, out=h_next)
        ctx.save_for_backward(recurrent, from_h, hs, n, keep)
        ctx.resets = resets
        return hs[:, 1:]

    @staticmethod
    def backward(ctx: _Context, d_out: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        recurrent, from_h, hs, n, keep = ctx.saved_tensors
        m = n.shape[-1]
        r, z, u = from_h.split(m, -1)
        before = hs[:, :-1] * keep
        by_n = (1 - z) * (1 - n * n)
        # first the factors of dh, for r, z and n's part of h U; then, from the last step backwards, the gradients
        d_gates = torch.addcmul(from_h, from_h, from_h, value=-1)
        d_gates[..., :m] *= by_n * u
        d_gates[..., m : 2 * m] *= before - n
        d_gates[..., 2 * m :] = by_n * r
        dhs, back = torch.empty_like(n), recurrent.transpose(1, 2)
        dh = torch.zeros_like(hs[:, 0])
        rows = _steps(keep, ctx.resets, d_out, dhs, z, d_gates, d_gates.unflatten(-1, (3, m)))
        for (d_t, dh_t, z_t, d_gate, d_parts), keep_t, reset in reversed(rows):
            torch.add(dh, d_t, out=dh_t)
            d_parts.mul_(dh_t[:, :, None])
            torch.baddbmm(dh_t * z_t, d_gate, back, out=dh)
            if reset:
                dh *= keep_t
        d_recurrent = _by_recurrent(before, d_gates)
        d_gates[..., 2 * m :] = dhs * by_n  # the input enters n without r
        return d_gates, d_recurrent, None, None, None


def _steps(keep: Tensor, resets: list[bool], *arrays: Tensor) -> list[tuple[tuple[Tensor, ...], Tensor, bool]]:
    """List for each step views [K, B, *] of [K, T, B, *] arrays, keep [B, 1], and whether there is a reset."""
    views = zip(*(array.unbind(1) for array in arrays), strict=True)
    return list(zip(views, keep, resets, strict=True))


def _by_recurrent(h_before: Tensor, d_gates: Tensor) -> Tensor:
    """Return the gradient [K, M, G * M] of the recurrent weights, by one product over all steps."""
    return torch.bmm(h_before.flatten(1, 2).transpose(1, 2), d_gates.flatten(1, 2))
