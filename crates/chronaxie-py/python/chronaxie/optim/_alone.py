"""A native recurrence in autograd's graph as a use of its parameters: run again, one sample at a time, with nothing of autograd's
between its two passes."""

from __future__ import annotations

from math import prod
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from ..torch._framework import _TYPES
from ..torch._op import Recurrence
from ..torch._plan import LEAD, LEAD_NAMES, NOT_TENSORS
from ._uses import Grads, Use, spans

# Elements to whose multiples tensors of a sample's gradients begin, and bytes to those of scratch.
_LINE, _ALIGNMENT = 64, 256


def is_native(node: Any) -> bool:
    """Whether a node of a graph is a native recurrence's call."""
    kind = getattr(type(node), "_forward_cls", None)
    return kind is not None and issubclass(kind, Recurrence)


def variables(node: Any) -> list[Any]:
    """The leaves that a node reads, its tensors being x, h0, c0, elapsed and the parameters; None for others."""
    return [getattr(of, "variable", None) for of, _ in node.next_functions]


class Native(Use):
    """One call of a native recurrence. ``tensors`` are x ``[B, T, D]``, h0, c0, elapsed and the parameters; ``trained`` says which
    of the parameters are, and ``grads_of_outputs``, given later, are those of the call's outputs, or None."""

    def __init__(self, node: Any) -> None:
        _, self.lists, self.layer, self.states = node.held
        saved = node.saved_tensors
        needs = node.needs_input_grad[NOT_TENSORS + LEAD :]
        self.tensors: tuple[Any, ...] = tuple(saved[: LEAD + len(needs)])
        # What was saved may be another object of the same memory: the leaves are who the caller knows.
        leaves = variables(node)[-len(needs) :]
        self.trained = [leaf if need else None for leaf, need in zip(leaves, needs)]
        self.parameters: list[nn.Parameter] = [p for p in self.trained if p is not None]
        self.samples = self.tensors[0].shape[0]
        self.edges = [GradientEdge(node, k) for k in range(self.states)]
        self.grads_of_outputs: list[Any] = []
        self._made: _Runner | None = None

    def plan(self, samples: int) -> Any:
        x, h0, c0, elapsed = self.tensors[:LEAD]
        # Gradients of parameters are all that is asked for.
        wants = (*(False,) * LEAD, *(p is not None for p in self.trained))
        return self.layer.plan((samples, x.shape[1], x.get_device(), h0 is None, c0 is None, elapsed is None, x.dtype, wants))

    def parts(self, lo: int, hi: int) -> Tensor:
        """Gradients of samples ``lo .. hi``, a row of numbers each with zeros between tensors."""
        if self._made is None:
            self._made = _Runner(self)
        return self._made.run(lo, hi)

    def rows(self) -> Iterator[Tensor]:
        """:meth:`parts` of all samples, within the budget."""
        each = sum(p.numel() for p in self.parameters)
        for lo, hi in spans(self.samples, each):
            yield self.parts(lo, hi)

    def split(self, part: Tensor) -> list[Tensor]:
        """The numbers of each parameter in rows of :meth:`parts`."""
        made, at = [], 0
        for p in self.parameters:
            made.append(part[:, at : at + p.numel()])
            at += _lines(p.numel())
        return made

    def grads(self, lo: int, hi: int, wanted: Any = None) -> Grads:
        each = self.split(self.parts(lo, hi))
        return {p: t.reshape(hi - lo, *p.shape) for p, t in zip(self.parameters, each)}

    def weighted(self, c: Tensor) -> Grads:
        plan = self.plan(self.samples)
        made = plan.forward(self.tensors, self.lists)
        saved = (*self.tensors, *made[: plan.saves_out], *made[plan.states :])
        grads = tuple(g if g is None else g * c.to(g.dtype).view(-1, *[1] * (g.dim() - 1)) for g in self.grads_of_outputs)
        found = plan.backward(saved, self.lists, grads)[NOT_TENSORS + LEAD :]
        return {p: g for p, g in zip(self.trained, found) if p is not None}


def _lines(elements: int) -> int:
    return -(-elements // _LINE) * _LINE


class _Runner:
    """The addresses of a call's tensors for its first sample, and how far each goes on to the next."""

    def __init__(self, use: Native) -> None:
        x, device = use.tensors[0], use.tensors[0].device
        self.device, self.plan = device, use.plan(1).native
        problem = use.plan(1).problem
        self.held: list[Tensor] = []
        known: dict[str, tuple[int, int]] = {}
        forward, backward = problem.signature("forward"), problem.signature("backward")

        def place(t: Tensor, moves: bool) -> tuple[int, int]:
            t = t.contiguous()
            self.held.append(t)
            return t.data_ptr(), t.numel() // t.shape[0] * t.element_size() if moves else 0

        def fresh(spec: Any, zeroed: bool = False) -> tuple[int, int]:
            made = torch.zeros if zeroed else torch.empty
            return place(made(spec[2], dtype=_TYPES[spec[3]], device=device), False)

        data = iter(t for t in use.tensors[:LEAD] if t is not None)
        parameters = iter(use.tensors[LEAD:])
        # Of each parameter's gradient where it begins in a sample's row; of others one place that nobody reads.
        self.row = 0
        at: dict[str, int | None] = {}
        listed = 0
        for spec in forward[0]:
            name, _, sizes, dtype, role, _ = spec
            if role == "prepared":
                known[name] = use.lists.data_ptr() + listed, 0
                listed += prod(sizes) * use.lists.element_size()
            elif name in LEAD_NAMES:
                known[name] = place(next(data), True)
            else:
                known[name] = place(next(parameters), False)
                p = use.trained[len(at)]
                at[f"grad_{name}"] = None if p is None else self.row
                self.row += 0 if p is None else _lines(p.numel())
        for spec in forward[1]:
            known[spec[0]] = fresh(spec)
        grads = iter(use.grads_of_outputs)
        for spec in backward[0]:
            if spec[0] not in known:
                g = next(grads)
                known[spec[0]] = fresh(spec, True) if g is None else place(g.to(_TYPES[spec[3]]), True)
        self.forward = [known[spec[0]] for spec in (*forward[0], *forward[1])]
        self.backward = [known[spec[0]] for spec in backward[0]]
        # Byte offsets in a row, or an address where nobody looks.
        self.written = [(at.get(spec[0]), 0 if at.get(spec[0]) is not None else fresh(spec)[0]) for spec in backward[1]]
        bytes_ = max(self.plan.scratch_bytes(name) for name in ("forward", "backward"))
        scratch = torch.empty(bytes_ + _ALIGNMENT, dtype=torch.uint8, device=device)
        self.held.append(scratch)
        self.scratch = -(-scratch.data_ptr() // _ALIGNMENT) * _ALIGNMENT

    def run(self, lo: int, hi: int) -> Tensor:
        made = torch.zeros(hi - lo, self.row, device=self.device)
        first, each = made.data_ptr(), self.row * made.element_size()
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else 0
        run, scratch = self.plan.run, self.scratch
        outputs = [(first + 4 * at, each) if at is not None else (elsewhere, 0) for at, elsewhere in self.written]
        for n in range(lo, hi):
            run("forward", [at + n * step for at, step in self.forward], [], scratch, stream)
            at_n = [at + n * step for at, step in self.backward]
            run("backward", at_n + [at + (n - lo) * step for at, step in outputs], [], scratch, stream)
        return made
