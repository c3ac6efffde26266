"""A group's native step: vectors of all its parameters side by side, of which the state of each is a view."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

from .._errors import ConfigError
from ..torch._framework import _TYPES
from ..torch._passes import device_of, planned
from ._blocks import count
from ._packed import by_regions, packed_size, triangle

# A parameter begins at a multiple of so many elements.
_ALIGNED = 64


def case_of(given: Sequence[tuple[int, Tensor, Tensor]], options: dict[str, Any]) -> str:
    """A native case of these parameters; options that are None are left out."""
    shapes = "+".join("x".join(map(str, p.shape)) or "1" for _, p, _ in given)
    named = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in options.items() if v is not None]
    return ",".join([f"P{len(given)}", f"shapes={shapes}", *named])


class Flat:
    """The vectors, and views of them by parameter: ``parameters`` and ``grads``, and in ``states`` what other steps keep, but for
    ``triangles`` in the place of ``factors``: the same as lower triangles, row after row.

    What there is of ``states`` already is copied into the vectors, and its views take its place.

    Args:
        named: names in the states by vectors of an element for each of the parameters', and the shapes of their views; the first one says
            whose states are these.
        made: the name, in the states and of the vector, of what is made of factors.
        grids: for each parameter the regions of its blocks; None where it has no factors, nor a place for them.
    """

    def __init__(
        self,
        entry: str,
        case: str,
        tensors: Sequence[Tensor],
        named: dict[str, tuple[str, list[Any]]],
        made: Any,
        grids: Sequence[Any],
        states: Sequence[dict[str, Any]],
    ) -> None:
        self.device = tensors[0].device
        self.where = device_of(entry, tensors[0])
        takes, gives = planned(entry, case, self.where).signatures["step"]
        self.vectors = {
            name: torch.zeros(shape, dtype=_TYPES[dtype], device=self.device) for name, _, shape, dtype, _, _ in (*takes, *gives)
        }
        ends, end = [], 0
        for p in tensors:
            ends.append(end)
            end = -(-(end + p.numel()) // _ALIGNED) * _ALIGNED
        whole = [p.shape for p in tensors]
        view = lambda name, shapes: [
            self.vectors[name][at : at + p.numel()].view(shape) for at, p, shape in zip(ends, tensors, shapes)
        ]  # fmt: skip
        self.parameters, self.grads = view("parameter", whole), view("grad", whole)
        torch._foreach_add_(view("decay", whole), 1.0)
        self.entry = entry
        self.name, self.firsts = next((name, view(vector, shapes)) for vector, (name, shapes) in named.items())
        kept: list[dict[str, Any]] = [{} for _ in tensors]
        for vector, (name, shapes) in named.items():
            # Of what the step's options do not ask for there is nothing.
            if self.vectors[vector].numel() == self.vectors["parameter"].numel():
                for now, part in zip(kept, self.firsts if name == self.name else view(vector, shapes)):
                    now[name] = part
        factors, results = self._matrices(made, grids) if made else (grids, grids)
        for k, (now, state, grid) in enumerate(zip(kept, states, grids)):
            if grid is not None:
                now["triangles"], now[made] = factors[k], results[k]
            if "factors" in state:
                state["triangles"] = by_regions(triangle, state.pop("factors"), grid)
            if state:
                _fill(now, state)
            elif made:
                state["step"] = 0
                for m in (m for region in now.get(made, []) for m in region):
                    m.diagonal(dim1=1, dim2=2).fill_(1.0)
            state.update(now)

    def _matrices(self, made: str, grids: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Views of packed factors and of what is made of them: for each parameter lists by regions of lists by axes, as the native grid has
        them. Factors lie block by block, the others by the order of their blocks and their size, then block by block."""
        regions = [(at, count(counts), sizes) for at, grid in enumerate(grids) for _, counts, sizes in grid or []]
        members: dict[tuple[int, int], int] = {}
        for _, blocks, sizes in regions:
            for n in sizes:
                members[len(sizes), n] = members.get((len(sizes), n), 0) + blocks
        begins, end = {}, 0
        for of in sorted(members):
            begins[of] = end
            end += members[of] * of[1] ** 2
        factors: list[Any] = [[] for _ in grids]
        roots: list[Any] = [[] for _ in grids]
        at_factor = 0
        for at, blocks, sizes in regions:
            each, before = sum(map(packed_size, sizes)), 0
            factors[at].append([])
            roots[at].append([])
            for axis, n in enumerate(sizes):
                shape, stride = (blocks, packed_size(n)), (each, 1)
                factors[at][-1].append(self.vectors["factors"].as_strided(shape, stride, at_factor + before))
                before += packed_size(n)
                same, earlier = sizes.count(n), sizes[:axis].count(n)
                begin = begins[len(sizes), n] + earlier * n * n
                roots[at][-1].append(self.vectors[made].as_strided((blocks, n, n), (same * n * n, n, 1), begin))
            at_factor += blocks * each
            for n in set(sizes):
                begins[len(sizes), n] += blocks * sizes.count(n) * n * n
        if at_factor != self.vectors["factors"].numel() or end != self.vectors[made].numel():
            raise ConfigError(f"{self.entry}: {at_factor} and {end} elements of factors and {made} are not the native step's")
        return factors, roots

    def holds(self, states: Sequence[dict[str, Any]]) -> bool:
        """Whether these are the states whose views are of these vectors."""
        same = lambda seen, state: state.get(self.name) is seen and "factors" not in state
        return len(self.firsts) == len(states) and all(map(same, self.firsts, states))

    def step(self, case: str, given: Sequence[tuple[int, Tensor, Tensor]], rate: Any, largest: Any, steps: int) -> None:
        """A step, the `steps`-th from 0 on, over what the parameters and gradients are now."""
        tensors = [p for _, p, _ in given]
        away = [(place, g) for place, (_, _, g) in zip(self.grads, given) if g is not place]
        if away:
            torch._foreach_copy_([place for place, _ in away], [g for _, g in away])
        torch._foreach_copy_(self.parameters, tensors)
        v = self.vectors
        for name, value in (("rate", rate), ("largest_rate", largest), ("step", steps)):
            v[name].copy_(value) if isinstance(value, Tensor) else v[name].fill_(value)
        planned(self.entry, case, self.where).step(v, "")
        torch._foreach_copy_(tensors, self.parameters)


def _fill(to: Any, value: Any) -> None:
    """Copies what the values of a state are into those of another that has all of its names."""
    if isinstance(to, Tensor):
        to.copy_(value)
        return
    for k in to if isinstance(to, dict) else range(len(to)):
        _fill(to[k], value[k])
