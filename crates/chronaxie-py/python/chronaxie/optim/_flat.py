"""A group's native step: vectors of all its parameters side by side, of which the state of each is a view."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

from .._errors import ConfigError, DtypeError
from ..torch._framework import _TYPES
from ..torch._passes import device_of, planned
from ._blocks import count
from ._packed import by_regions, packed_size, triangle

# A parameter begins at a multiple of so many elements.
_ALIGNED = 64


def shapes_of(parameters: Sequence[Tensor]) -> str:
    """The option `shapes` of a native case."""
    return "+".join("x".join(map(str, p.shape)) or "1" for p in parameters)


def check_group(
    name: str, group: dict[str, Any], given: Sequence[tuple[int, Tensor, Tensor]], states: Sequence[dict[str, Any]]
) -> None:
    """Refuses what a native step of a whole group cannot be."""
    if len(given) < len(group["params"]):
        have = {at for at, _, _ in given}
        p = next(p for at, p in enumerate(group["params"]) if at not in have)
        raise ConfigError(
            f"{name}: fused=True takes one step of all parameters of a group, and one of shape {tuple(p.shape)} has no gradient; put those "
            "that are trained now and then in a group of their own"
        )
    for _, p, _ in given:
        if p.dtype is not torch.float32:
            raise DtypeError(f"{name}: fused=True is for parameters of float32, and one of shape {tuple(p.shape)} holds {p.dtype}")
    steps = {state.get("step", 0) for state in states}
    if len(steps) > 1:
        raise ConfigError(f"{name}: fused=True is for parameters that have taken as many steps, not {min(steps)} to {max(steps)}")


class Flat:
    """The vectors, and views of them by parameter: ``parameters`` and ``grads``, and in ``states`` what :class:`Blocked` keeps, but for
    ``triangles`` in the place of ``factors``: the same as lower triangles, row after row.

    What there is of ``states`` already is copied into the vectors, and its views take its place.
    """

    def __init__(
        self, entry: str, case: str, given: Sequence[tuple[int, Tensor, Tensor]], grids: Any, states: Sequence[dict[str, Any]]
    ) -> None:
        tensors = [p for _, p, _ in given]
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
        view = lambda name: [self.vectors[name][at : at + p.numel()].view(p.shape) for at, p in zip(ends, tensors)]
        self.parameters, self.grads, first = view("parameter"), view("grad"), view("first")
        second = view("second") if self.vectors["second"].numel() else None
        torch._foreach_add_(view("decay"), 1.0)
        self.entry = entry
        cut = [grids[at] for at, _, _ in given]
        factors, roots = self._matrices(cut)
        for k, state in enumerate(states):
            now = dict(exp_avg=first[k], **({} if second is None else dict(exp_avg_sq=second[k])), triangles=factors[k], roots=roots[k])
            if state:
                if "factors" in state:
                    state["triangles"] = by_regions(triangle, state.pop("factors"), cut[k][1])
                _fill(now, state)
            else:
                for region in roots[k]:
                    for root in region:
                        root.diagonal(dim1=1, dim2=2).fill_(1.0)
                state["step"] = 0
            state.update(now)
        self.firsts = first

    def _matrices(self, grids: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Views of packed factors and of roots: for each parameter lists by regions of lists by axes, as the native grid has them.
        Factors lie block by block, roots by the order of their blocks and their size, then block by block."""
        regions = [(at, count(counts), sizes) for at, (_, grid) in enumerate(grids) for _, counts, sizes in grid]
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
                roots[at][-1].append(self.vectors["roots"].as_strided((blocks, n, n), (same * n * n, n, 1), begin))
            at_factor += blocks * each
            for n in set(sizes):
                begins[len(sizes), n] += blocks * sizes.count(n) * n * n
        if at_factor != self.vectors["factors"].numel() or end != self.vectors["roots"].numel():
            raise ConfigError(f"{self.entry}: {at_factor} and {end} elements of factors and roots are not the native step's")
        return factors, roots

    def holds(self, states: Sequence[dict[str, Any]]) -> bool:
        """Whether these are the states whose views are of these vectors."""
        same = lambda seen, state: state.get("exp_avg") is seen and "triangles" in state
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
