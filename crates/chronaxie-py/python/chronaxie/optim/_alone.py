"""A native recurrence in autograd's graph as a use of its parameters: its backward pass alone, from what the graph kept, of which it leaves
what is asked for of single samples, with nothing of autograd's in between."""

from __future__ import annotations

from math import prod
from typing import Any, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from ..torch._framework import _TYPES
from ..torch._op import Recurrence
from ..torch._plan import LEAD, LEAD_NAMES, NOT_TENSORS
from ._uses import Grads, Use

# Elements to whose multiples outputs begin, and bytes to those of scratch.
_LINE, _ALIGNMENT = 64, 256


def is_native(node: Any) -> bool:
    """Whether a node of a graph is a native recurrence's call."""
    kind = getattr(type(node), "_forward_cls", None)
    return kind is not None and issubclass(kind, Recurrence)


def variables(node: Any) -> list[Any]:
    """The leaves that a node reads, its tensors being x, h0, c0, elapsed and the parameters; None for others."""
    return [getattr(of, "variable", None) for of, _ in node.next_functions]


class Native(Use):
    """One call of a native recurrence. ``tensors`` are x ``[B, T, D]``, h0, c0, elapsed and the parameters, ``saved`` what else its graph
    kept; ``trained`` says which of the parameters are, and ``grads_of_outputs``, given later, are those of the call's outputs, or
    None."""

    def __init__(self, node: Any) -> None:
        _, self.lists, self.layer, self.states = node.held
        saved = node.saved_tensors
        needs = node.needs_input_grad[NOT_TENSORS + LEAD :]
        self.tensors: tuple[Any, ...] = tuple(saved[: LEAD + len(needs)])
        self.saved: tuple[Any, ...] = tuple(saved[LEAD + len(needs) :])
        # What was saved may be another object of the same memory: the leaves are who the caller knows.
        leaves = variables(node)[-len(needs) :]
        self.trained = [leaf if need else None for leaf, need in zip(leaves, needs)]
        self.parameters: list[nn.Parameter] = [p for p in self.trained if p is not None]
        self.samples = self.tensors[0].shape[0]
        self.edges = [GradientEdge(node, k) for k in range(self.states)]
        self.grads_of_outputs: list[Any] = []

    def squares(self) -> dict[nn.Parameter, Tensor]:
        """Of each parameter the sums of squares ``[n]`` of the samples' gradients, by one backward pass."""
        return self._run("squares", "squares_", 0, self.samples)

    def grads(self, lo: int, hi: int, wanted: Any = None) -> Grads:
        return self._run("gradients", "each_", lo, hi)

    def weighted(self, c: Tensor) -> Grads:
        x, h0, c0, elapsed = self.tensors[:LEAD]
        wants = (*(False,) * LEAD, *(p is not None for p in self.trained))
        plan = self.layer.plan((self.samples, x.shape[1], x.get_device(), h0 is None, c0 is None, elapsed is None, x.dtype, wants))
        grads = tuple(g if g is None else g * c.to(g.dtype).view(-1, *[1] * (g.dim() - 1)) for g in self.grads_of_outputs)
        found = plan.backward((*self.tensors, *self.saved), self.lists, grads)[NOT_TENSORS + LEAD :]
        return {p: g for p, g in zip(self.trained, found) if p is not None}

    def _pass(self, what: str, samples: int) -> _Pass:
        x, h0, c0, elapsed = self.tensors[:LEAD]
        options = f",per_sample={what}"
        if samples != self.samples and ",store=" not in self.layer.text:
            # Rows of what the whole batch kept, whatever a batch of so many would keep.
            kept = {spec[0] for spec in self._pass(what, self.samples).inputs}
            options += ",store=" + ("words" if "unfolds" in kept else str("unfold_states" in kept).lower())
        key = samples, x.shape[1], x.get_device(), h0 is None, elapsed is None, x.dtype, options
        found = self.layer.plans.get(key)
        if found is None:
            found = self.layer.plans[key] = _Pass(self.layer, key)
        return found  # type: ignore[no-any-return]

    def _run(self, what: str, prefix: str, lo: int, hi: int) -> dict[nn.Parameter, Tensor]:
        given, made = [t for t in self.tensors[:LEAD] if t is not None], self._pass(what, hi - lo)
        found = made.run(given, self.tensors[LEAD:], self.lists, self.saved, self.grads_of_outputs, lo)
        return {p: found[f"{prefix}{name}"] for name, p in zip(made.parameters, self.trained) if p is not None}


def _lines(elements: int) -> int:
    return -(-elements // _LINE) * _LINE


class _Pass:
    """A plan of the backward pass that leaves what is asked for of single samples, and where in a buffer its outputs lie."""

    def __init__(self, layer: Any, key: Any) -> None:
        samples, steps, index, no_h0, no_elapsed, dtype, options = key
        wants = (*(False,) * LEAD, True)
        problem = layer.problem(samples, steps, not no_h0, not no_elapsed, dtype, wants, options)
        self.samples = samples
        self.device = torch.device("cpu" if index < 0 else f"cuda:{index}")
        self.native = problem.plan(str(self.device))
        self.inputs, outputs = problem.signature("backward")
        self.parameters = [spec[0] for spec in problem.signature("forward")[0] if spec[4] == "parameter"]
        self.outputs, self.elements = [], 0
        for name, _, sizes, *_ in outputs:
            self.outputs.append((name, self.elements, prod(sizes), tuple(sizes)))
            self.elements += _lines(prod(sizes))
        self.scratch = self.native.scratch_bytes("backward")

    def run(
        self, data: Sequence[Tensor], parameters: Sequence[Tensor], lists: Tensor, saved: Sequence[Tensor], grads: Sequence[Any], lo: int
    ) -> dict[str, Tensor]:
        """The outputs of samples from ``lo`` on, float32, by name."""
        held: list[Tensor] = []

        def rows(t: Tensor) -> int:
            t = t.contiguous()
            held.append(t)
            return t.data_ptr() + lo * (t.numel() // max(t.shape[0], 1)) * t.element_size()

        of_data, of_parameters, of_saved, of_grads = iter(data), iter(parameters), iter(saved), iter(grads)
        addresses, listed = [], 0
        for name, _, sizes, dtype, role, _ in self.inputs:
            if role == "prepared":
                addresses.append(lists.data_ptr() + listed)
                listed += prod(sizes) * lists.element_size()
            elif name in LEAD_NAMES:
                addresses.append(rows(next(of_data)))
            elif role == "parameter":
                t = next(of_parameters).contiguous()
                held.append(t)
                addresses.append(t.data_ptr())
            elif role == "gradient":
                g = next(of_grads)
                if g is None:
                    held.append(torch.zeros(sizes, dtype=_TYPES[dtype], device=self.device))
                    addresses.append(held[-1].data_ptr())
                else:
                    addresses.append(rows(g.to(_TYPES[dtype])))
            else:
                addresses.append(rows(next(of_saved)))
        made = torch.empty(self.elements, device=self.device)
        scratch = torch.empty(self.scratch + _ALIGNMENT, dtype=torch.uint8, device=self.device)
        first = made.data_ptr()
        addresses += [first + made.element_size() * at for _, at, _, _ in self.outputs]
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else 0
        self.native.run("backward", addresses, [], -(-scratch.data_ptr() // _ALIGNMENT) * _ALIGNMENT, stream)
        return {name: made[at : at + count].view(sizes) for name, at, count, sizes in self.outputs}
