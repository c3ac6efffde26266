"""The same equations as PyTorch operations: for float64, for devices without a backend, and for tests."""

from __future__ import annotations

from typing import Any, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import softplus

from ._options import Options

# LayerNorm's.
_NORM_EPSILON = 1e-5


class Plain:
    """Maps and vectors as they are; whoever must see them gives another."""

    @staticmethod
    def linear(z: Tensor, w: Tensor, b: Tensor | None = None, of: Any = None) -> Tensor:
        """``z w^T + b``; ``of`` is the parameter behind w and its mask, where w is their product."""
        return F.linear(z, w, b)

    @staticmethod
    def vector(t: Tensor, samples: int) -> Tensor:
        """A parameter that is no map."""
        return t


def lstm_step(x: Tensor, h: Tensor, c: Tensor, maps: Sequence[Tensor], by: Any = Plain) -> tuple[Tensor, Tensor]:
    """The LSTM cell of ``mixed_memory``: the next ``(h, c)`` from inputs ``[B, D]``; ``maps`` are its weight, bias and
    recurrent weight."""
    z = by.linear(x, maps[0], maps[1]) + by.linear(h, maps[2])
    new, take, keep, show = z.chunk(4, -1)
    c = c * torch.sigmoid(keep + 1.0) + torch.tanh(new) * torch.sigmoid(take)
    return torch.tanh(c) * torch.sigmoid(show), c


def ltc(tensors: tuple[Any, ...], masks: tuple[Tensor, Tensor], opts: Options) -> tuple[Tensor, ...]:
    """Outputs ``[B, T, M]``, the final state ``[B, H]`` and with mixed memory the LSTM's of x ``[B, T, D]``, in the dtype of
    the parameters; ``tensors`` are x, h0, c0, elapsed, and the parameters in the order of ``opts.names``, behind which the
    three of an LSTM may stand.

    Every synapse is evaluated, masked or not, and PyTorch keeps every gate for the backward pass: B T K H (H + D)
    elements and more.
    """
    x, h0, c0, elapsed, *parameters = tensors
    p = dict(zip(opts.names, parameters))
    lstm = parameters[len(opts.names) :]
    positive = softplus if opts.softplus else lambda t: t
    mask, sensory_mask = masks
    weight, sensory_weight = positive(p["w"]) * mask, positive(p["sensory_w"]) * sensory_mask
    drive, sensory_drive = weight * p["erev"], sensory_weight * p["sensory_erev"]
    leak, capacity = positive(p["gleak"]), positive(p["cm"]) * opts.unfolds

    u = x
    if opts.has_norm:
        u = F.layer_norm(u, u.shape[-1:], p["norm_weight"], p["norm_bias"], _NORM_EPSILON)
    if "input_w" in p:
        u = u * p["input_w"]
    if "input_b" in p:
        u = u + p["input_b"]
    gate = torch.sigmoid(p["sensory_sigma"] * (u.unsqueeze(-1) - p["sensory_mu"]))
    over = (gate * sensory_drive).sum(2) + leak * p["vleak"]
    under = (gate * sensory_weight).sum(2) + leak + opts.epsilon

    state = x.new_zeros(x.shape[0], mask.shape[0]) if h0 is None else h0
    cell = torch.zeros_like(state) if c0 is None else c0
    states = []
    for t in range(x.shape[1]):
        if lstm:
            state, cell = lstm_step(x[:, t].to(lstm[0].dtype), state.to(lstm[0].dtype), cell.to(lstm[0].dtype), lstm)
        rate = capacity / (opts.dt if elapsed is None else elapsed[:, t, None])
        for _ in range(opts.unfolds):
            gate = torch.sigmoid(p["sigma"] * (state.unsqueeze(-1) - p["mu"]))
            numerator = rate * state + (gate * drive).sum(1) + over[:, t]
            state = numerator / (rate + (gate * weight).sum(1) + under[:, t])
        states.append(state)
    out = torch.stack(states, 1) if states else x.new_zeros(x.shape[0], 0, mask.shape[0])
    out = out[..., : opts.outputs]
    if "output_w" in p:
        out = out * p["output_w"]
    if "output_b" in p:
        out = out + p["output_b"]
    return (out, state, cell) if lstm else (out, state)


def _activation(name: str, x: Tensor) -> Tensor:
    if name == "lecun_tanh":
        return 1.7159 * torch.tanh(0.666 * x)
    return {"tanh": torch.tanh, "relu": torch.relu, "gelu": F.gelu, "silu": F.silu}[name](x)


def cfc(tensors: tuple[Any, ...], opts: Any, dropout: float = 0.0, by: Any = Plain) -> tuple[Tensor, ...]:
    """Outputs ``[B, T, M]``, the final state ``[B, H]`` and with mixed memory the LSTM's of x ``[B, T, D]``, in the dtype of
    the parameters; ``tensors`` are x, h0, c0, elapsed, and the parameters in the order of the signature. ``by`` takes the
    place of :class:`Plain`."""
    x, h, c, elapsed, *rest = tensors
    parameters = iter(rest)
    cells = []
    for _ in opts.cells:
        backbone = [(next(parameters), next(parameters)) for _ in range(opts.layers)]
        heads = [[next(parameters), next(parameters), None] for _ in opts.heads]
        pure = tuple(by.vector(next(parameters), x.shape[0]) for _ in range(2)) if opts.mode == "pure" else None
        if opts.masked:
            mask = next(parameters)
            for head in heads[:2]:
                head[0], head[2] = head[0] * mask, (head[0], mask)
        cells.append((backbone, heads, pure))
    lstm = list(parameters)
    weight = cells[0][1][0][0]
    x = x.to(weight.dtype)
    state = [weight.new_zeros(x.shape[0], sum(opts.cells)) if t is None else t.to(weight.dtype) for t in (h, c)]
    outputs = []
    for t in range(x.shape[1]):
        ts = 1.0 if elapsed is None else elapsed[:, t, None]
        if opts.mixed:
            state = list(lstm_step(x[:, t], state[0], state[1], lstm, by))
        feed, made = x[:, t], []
        for (backbone, heads, pure), own in zip(cells, state[0].split(opts.cells, 1)):
            z = torch.cat([feed, own], 1)
            for at, (w, b) in enumerate(backbone):
                z = _activation(opts.activation, by.linear(z, w, b))
                if at and dropout > 0.0:
                    z = F.dropout(z, dropout)
            ff1, *others = (by.linear(z, w, b, of) for w, b, of in heads)
            if pure is not None:
                w_tau, a = pure
                feed = a - a * torch.exp(-ts * (w_tau.abs() + ff1.abs())) * ff1
            else:
                ff2, time_a, time_b = others
                gate = torch.sigmoid(time_a * ts + time_b)
                ff1, ff2 = torch.tanh(ff1), torch.tanh(ff2)
                feed = ff1 + gate * ff2 if opts.mode == "no_gate" else ff1 * (1.0 - gate) + gate * ff2
            made.append(feed)
        state[0] = torch.cat(made, 1)
        outputs.append(feed)
    out = torch.stack(outputs, 1) if outputs else weight.new_zeros(x.shape[0], 0, opts.cells[-1])
    return (out, *state) if opts.mixed else (out, state[0])
