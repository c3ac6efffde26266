"""Recurrent layers as maps of single time steps: their equations are run again by PyTorch's operations, where every map's
input and the gradient of its output can be seen. In a layer of T steps the T positions of a map share its weight."""

from __future__ import annotations

from typing import Any, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from ..torch import _cfc
from ._uses import Affine, Direct, Use


class Tape:
    """Maps that remember what they read and what they gave, by their weights."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.wanted = set(parameters)
        # weight: bias, mask, inputs, outputs
        self.maps: dict[Tensor, tuple[Any, Any, list[Tensor], list[Tensor]]] = {}
        self.vectors: list[tuple[nn.Parameter, Tensor]] = []

    def linear(self, z: Tensor, w: Tensor, b: Tensor | None = None, of: Any = None) -> Tensor:
        """``z`` ``[B, d]`` or ``[B, T, d]``; ``of`` is the weight's parameter and its mask where w is a product of them."""
        weight, mask = (w, None) if of is None else of
        made = F.linear(z, w.detach(), None if b is None else b.detach())
        if not made.requires_grad:
            made.requires_grad_()
        _, _, inputs, outputs = self.maps.setdefault(weight, (b, mask, [], []))
        inputs.append(z.detach())
        outputs.append(made)
        return made

    def vector(self, t: Tensor, samples: int) -> Tensor:
        """A vector that each sample has for itself, ``[B, n]``."""
        p = t if t._base is None else t._base
        each = t.detach().expand(samples, -1).clone().requires_grad_()
        self.vectors.append((p, each))  # type: ignore[arg-type]
        return each

    def uses(self, made: Sequence[Any], seeds: Sequence[Any]) -> list[Use]:
        """What the gradients ``seeds`` of the outputs ``made`` make of it; None stands for no gradient."""
        pairs = [(t, g.to(t.dtype)) for t, g in zip(made, seeds) if g is not None and t.requires_grad]
        leaves = [t for _, _, _, outputs in self.maps.values() for t in outputs] + [t for _, t in self.vectors]
        if not pairs or not leaves:
            return []
        found = torch.autograd.grad([t for t, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
        grads = iter(torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found))
        uses: list[Use] = []
        for weight, (bias, mask, inputs, outputs) in self.maps.items():
            g = _over_time([next(grads) for _ in outputs])
            own = [p if p is not None and p in self.wanted else None for p in (weight, bias)]
            if own[0] is not None or own[1] is not None:
                uses.append(Affine.of(*own, _over_time(inputs), g, mask))
        uses += [Direct(p, g) for (p, _), g in zip(self.vectors, grads) if p in self.wanted]
        return uses


def _over_time(steps: list[Tensor]) -> Tensor:
    return steps[0] if len(steps) == 1 else torch.stack(steps, 1)


def cfc_tape(module: Any, args: Any, seeds: Sequence[Any], parameters: Sequence[nn.Parameter]) -> list[Use]:
    """The uses of a CfC, or one of its cells."""
    tape = Tape(parameters)
    given, named = args
    with torch.enable_grad(), _cfc.taped(tape):
        made = tree_flatten(module.forward(*given, **named))[0]
    return tape.uses(made[: len(seeds)], seeds)


def _step(mode: str, zi: Tensor, zh: Tensor, h: Tensor, c: Any) -> tuple[Tensor, Any]:
    """The next ``(h, c)`` of a cell of PyTorch's from its two maps."""
    if mode == "LSTM":
        i, f, g, o = (zi + zh).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    if mode == "GRU":
        (ri, ui, ni), (rh, uh, nh) = zi.chunk(3, -1), zh.chunk(3, -1)
        new, keep = torch.tanh(ni + torch.sigmoid(ri + rh) * nh), torch.sigmoid(ui + uh)
        return new + keep * (h - new), None
    return (torch.tanh if mode == "RNN_TANH" else torch.relu)(zi + zh), None


def rnn_tape(module: Any, args: Any, seeds: Sequence[Any], parameters: Sequence[nn.Parameter]) -> list[Use]:
    """The uses of ``nn.LSTM``, ``nn.GRU``, ``nn.RNN`` or one of their cells."""
    tape = Tape(parameters)
    given, named = args
    x = given[0] if given else named["input"]
    hx = given[1] if len(given) > 1 else named.get("hx")
    cell = isinstance(module, nn.RNNCellBase)
    kinds = {nn.LSTMCell: "LSTM", nn.GRUCell: "GRU"}
    mode = module.mode if not cell else kinds.get(type(module)) or f"RNN_{module.nonlinearity.upper()}"
    lstm = mode == "LSTM"
    h0, c0 = (hx if lstm else (hx, None)) if hx is not None else (None, None)
    if cell:
        x, suffixes, layers = x[:, None], [""], 1
        h0, c0 = (None if t is None else t[None] for t in (h0, c0))
    else:
        x = x if module.batch_first else x.transpose(0, 1)
        suffixes = ["", "_reverse"] if module.bidirectional else [""]
        layers = module.num_layers
    x = x.to(module.weight_ih.dtype if cell else module.weight_ih_l0.dtype)
    batch, steps, width = x.shape[0], x.shape[1], module.hidden_size
    project = getattr(module, "proj_size", 0)
    lasts: list[tuple[Tensor, Any]] = []
    with torch.enable_grad():
        for layer in range(layers):
            sides = []
            for at, suffix in enumerate(suffixes):
                name = "" if cell else f"_l{layer}{suffix}"
                w = {n: getattr(module, f"{n}{name}", None) for n in ("weight_ih", "bias_ih", "weight_hh", "bias_hh", "weight_hr")}
                k = layer * len(suffixes) + at
                h = x.new_zeros(batch, project or width) if h0 is None else h0[k].to(x.dtype)
                c = (x.new_zeros(batch, width) if c0 is None else c0[k].to(x.dtype)) if lstm else None
                into = tape.linear(x, w["weight_ih"], w["bias_ih"])
                outputs: list[Any] = [None] * steps
                for t in reversed(range(steps)) if suffix else range(steps):
                    h, c = _step(mode, into[:, t], tape.linear(h, w["weight_hh"], w["bias_hh"]), h, c)
                    if project:
                        h = tape.linear(h, w["weight_hr"])
                    outputs[t] = h
                sides.append(torch.stack(outputs, 1))
                lasts.append((h, c))
            x = torch.cat(sides, -1)
        out = x if cell or module.batch_first else x.transpose(0, 1)
        states = [lasts[0][k] if cell else torch.stack([pair[k] for pair in lasts]) for k in range(2 if lstm else 1)]
    return tape.uses(states if cell else [out, *states], seeds)
