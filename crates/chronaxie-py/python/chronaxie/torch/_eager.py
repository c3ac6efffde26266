"""The same equations as PyTorch operations: for float64, for devices without a backend, and for tests."""

from __future__ import annotations

from typing import Mapping

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ._call import Options

# LayerNorm's.
_NORM_EPSILON = 1e-5


def ltc(
    x: Tensor,
    h0: Tensor | None,
    elapsed: Tensor | None,
    p: Mapping[str, Tensor],
    masks: tuple[Tensor, Tensor],
    opts: Options,
) -> tuple[Tensor, Tensor]:
    """Outputs ``[B, T, M]`` and the final state ``[B, H]`` of ``x`` ``[B, T, D]``, in the dtype of the parameters.

    Every synapse is evaluated, masked or not, and PyTorch keeps every gate for the backward pass: B T K H (H + D)
    elements and more.
    """
    positive = softplus if opts.softplus else lambda t: t
    mask, sensory_mask = masks
    weight, sensory_weight = positive(p["w"]) * mask, positive(p["sensory_w"]) * sensory_mask
    drive, sensory_drive = weight * p["erev"], sensory_weight * p["sensory_erev"]
    leak, capacity = positive(p["gleak"]), positive(p["cm"]) * opts.unfolds

    u = x
    if opts.has_norm:
        u = torch.nn.functional.layer_norm(u, u.shape[-1:], p["norm_weight"], p["norm_bias"], _NORM_EPSILON)
    if "input_w" in p:
        u = u * p["input_w"]
    if "input_b" in p:
        u = u + p["input_b"]
    gate = torch.sigmoid(p["sensory_sigma"] * (u.unsqueeze(-1) - p["sensory_mu"]))
    over = (gate * sensory_drive).sum(2) + leak * p["vleak"]
    under = (gate * sensory_weight).sum(2) + leak + opts.epsilon

    state = x.new_zeros(x.shape[0], mask.shape[0]) if h0 is None else h0
    states = []
    for t in range(x.shape[1]):
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
    return out, state
