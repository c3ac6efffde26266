"""Kronecker factors of a parameter's curvature: what a use adds to them, their inverses, and products with those.

A parameter is a batch of matrices ``[blocks, o, d]``; A ``[1 or blocks, d, d]`` is the second moment of what it reads (of a table
of rows, only its diagonal ``[1, d]``) and G ``[blocks, o, o]`` that of the gradients of what it gives.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import torch
from torch import Tensor, nn

from ..torch import _plan
from ._base import wide
from ._blocks import together
from ._matrix import eigh
from ._uses import Affine, Lookup, Use, spans


class Sums(NamedTuple):
    """What one use adds: to A and to how many positions it is the sum of (0: A is weighted as G is), to G, and to the squares in
    the eigenbases, where those are there."""

    a: Tensor
    positions: int
    g: Tensor
    squares: Tensor | None


def as_matrix(p: Tensor, t: Tensor, bias: Any, blocks: int, table: bool) -> Tensor:
    """``[blocks, o, d]`` of a tensor of p's shape, with a bias as the last column."""
    if table:
        return t.mT[None]
    rows = t.shape[0] if t.dim() > 1 else 1
    m = t.reshape(blocks, rows // blocks, -1)
    return m if bias is None else torch.cat([m, bias.reshape(blocks, -1, 1)], -1)


def from_matrix(p: Tensor, m: Tensor, joined: bool, table: bool) -> tuple[Tensor, Any]:
    """A tensor of p's shape, and its bias."""
    if table:
        return m[0].mT, None
    return (m[..., :-1].reshape(p.shape), m[..., -1].flatten()) if joined else (m.reshape(p.shape), None)


def _turned(x: Tensor, basis: Any) -> Tensor:
    return x if basis is None else x @ basis


def affine_sums(use: Affine, reduce: bool, gates: int, bases: Any) -> Sums:
    """Of a map; positions are samples of their own, or (``reduce``) inputs are averaged over them and gradients summed."""
    groups, r, d, o = use.sizes
    joined = use.bias is not None
    total: list[Any] = [None, None, None]
    for lo, hi in spans(use.samples, groups * r * (d + o)):
        x, g = use.x(lo, hi), use.g(lo, hi)
        if reduce:
            x, g = x.mean(2, keepdim=True), g.sum(2, keepdim=True)
        x, g = (t.transpose(0, 1).flatten(1, 2) for t in (x, g))
        if joined:
            x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        if gates > 1:
            g = g.reshape(-1, gates, o // gates).transpose(0, 1)
        parts: list[Any] = [x.mT @ x, g.mT @ g, None]
        if bases is not None:
            parts[2] = _turned(g, bases[1]).square().mT @ _turned(x, bases[0]).square()
        total = parts if total[0] is None else [None if a is None else a + b for a, b in zip(total, parts)]
    return Sums(total[0], use.samples * (1 if reduce else r), total[1], total[2])


def lookup_sums(use: Lookup, bases: Any) -> Sums:
    """Of a table: A is how often each row is read."""
    rows, d = use.table.shape
    flat = use.g.reshape(-1, d)
    ones = torch.ones(*use.ids.shape, 1, dtype=flat.dtype, device=flat.device)
    counts = use.summed(ones, use.ids, rows)[:, 0]
    squares = None
    if bases is not None:
        turned = (flat @ bases[1][0]).square()
        squares = use.summed(turned.view(*use.ids.shape, d), use.ids, rows).mT[None]
    return Sums(counts[None], use.ids.numel(), (flat.mT @ flat)[None], squares)


def sample_sums(grads: Tensor, bases: Any) -> Sums:
    """Of gradients of samples ``[n, *p.shape]``, where there is no map: ``A = E[D^T D]`` and ``G = E[D D^T]`` over its trace (Ren and
    Goldfarb, "Tensor normal training for deep learning models", NeurIPS 2021); of a vector, its whole second moment."""
    m = grads.reshape(grads.shape[0], -1, grads.shape[-1]) if grads.dim() > 2 else grads[:, None]
    squares = None
    if bases is not None:
        squares = (bases[1][0].mT @ m @ bases[0][0]).square().sum(0)[None]
    flat = m.reshape(-1, m.shape[-1])
    side = m.transpose(0, 1).reshape(m.shape[1], -1)
    return Sums((flat.mT @ flat)[None], 0, (side @ side.mT)[None], squares)


def _several(grads: Sequence[Tensor], bases: Sequence[Any]) -> list[Sums]:
    """The same of parameters of one shape, by one product of all for A and one for G."""
    if len(grads) == 1 or any(b is not None for b in bases) or len({g.dtype for g in grads}) > 1:
        return [sample_sums(g, b) for g, b in zip(grads, bases)]
    all_ = torch.stack(list(grads))
    m = all_.flatten(2, -2) if all_.dim() > 3 else all_[:, :, None]
    flat = m.flatten(1, 2)
    side = m.transpose(1, 2).flatten(2)
    of_a, of_g = flat.mT @ flat, side @ side.mT
    return [Sums(a, 0, g, None) for a, g in zip(of_a.split(1), of_g.split(1))]


def sums_of(use: Use, wanted: Sequence[nn.Parameter], reduce: bool, gates: Any, bases: Any) -> dict[nn.Parameter, Sums]:
    """What a use adds to the factors of the parameters that are wanted; ``gates`` and ``bases`` are by parameter."""
    if isinstance(use, Affine) and use.weight is not None and use.weight in set(wanted):
        return {use.weight: affine_sums(use, reduce, gates.get(use.weight, 1), bases[use.weight])}
    if isinstance(use, Lookup):
        return {use.table: lookup_sums(use, bases[use.table])}
    total: dict[nn.Parameter, Sums] = {}
    own = set(wanted)
    # Some samples at a time, all parameters of them together.
    for lo, hi in spans(use.samples, sum(p.numel() for p in use.parameters)):
        alike: dict[Any, list[tuple[nn.Parameter, Tensor]]] = {}
        for p, g in use.grads(lo, hi, own).items():
            if p in own:
                alike.setdefault(p.shape, []).append((p, g))
        for some in alike.values():
            for (p, _), s in zip(some, _several([g for _, g in some], [bases[p] for p, _ in some])):
                if (t := total.get(p)) is not None:
                    squares = None if s.squares is None else s.squares + t.squares
                    s = Sums(s.a + t.a, 0, s.g + t.g, squares)
                total[p] = s
    return total


def moved(old: Any, new: Tensor, keep: Any, fine: Tensor) -> Tensor:
    """The moving average, zeros before its first update; what is not ``fine`` leaves it as it is."""
    old = torch.zeros_like(new) if old is None else old
    return torch.where(fine, old * keep + new * (1 - keep), old)


def _natively(batch: Tensor) -> bool:
    """Whether the native eigensolver is the faster one: PyTorch's takes the matrices one after the other, few large ones faster."""
    if not batch.is_cuda or batch.dtype is not torch.float32 or _plan.unavailable(batch.get_device()) is not None:
        return False
    return batch.shape[-1] <= 512 or batch.shape[0] >= 4


def eigenbases(factors: list[Tensor]) -> list[tuple[Tensor, Any]]:
    """Eigenvalues, not below 0, and eigenvectors of each factor, those of one size in one call; a diagonal one is its own."""

    def solve(batch: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = eigh(batch, check=False) if _natively(batch) else torch.linalg.eigh(batch)
        return values.clamp_min(0), vectors

    dense = [f for f in factors if f.dim() == 3]
    made = iter(together(solve, [(f,) for f in dense]))
    return [next(made) if f.dim() == 3 else (f, None) for f in factors]


def damped_inverses(factors: list[tuple[Tensor, Tensor]], waits_for_nothing: bool = False) -> list[Tensor]:
    """``(F + e I)^-1`` of each factor and e ``[blocks]`` by Cholesky, those of one size in one call; NaN where it is not positive."""

    def solve(batch: Tensor, e: Tensor) -> Tensor:
        eye = torch.eye(batch.shape[-1], dtype=batch.dtype, device=batch.device)
        low, info = torch.linalg.cholesky_ex(batch + e * eye)
        if waits_for_nothing:
            # The inverse of PyTorch asks the GPU whether it has gone well.
            half = torch.linalg.solve_triangular(low, eye.expand_as(low), upper=False)
            made = half.mT @ half
        else:
            made = torch.cholesky_inverse(low)
        return torch.where((info == 0)[:, None, None], made, float("nan"))

    dense = [(f, e[:, None, None]) for f, e in factors if f.dim() == 3]
    made = iter(together(solve, dense))
    return [next(made) if f.dim() == 3 else 1 / (f + e[:, None]) for f, e in factors]


def balance(a: Tensor, g: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """What factored Tikhonov damping adds to A and G ``[blocks]``: ``pi sqrt(l)`` and ``sqrt(l) / pi``, with pi^2 the ratio of their
    mean eigenvalues (Martens and Grosse, arXiv:1503.05671, 6.3)."""
    mean = lambda f: f.mean(-1) if f.dim() == 2 else f.diagonal(dim1=-2, dim2=-1).mean(-1)  # noqa: E731
    tiny = torch.finfo(a.dtype).tiny
    # One pi for an A that several blocks share.
    of_g = mean(g).mean(0, keepdim=True) if a.shape[0] != g.shape[0] else mean(g)
    pi = (mean(a).clamp_min(tiny) / of_g.clamp_min(tiny)).sqrt().clamp(1e-4, 1e4)
    return pi * damping**0.5, (damping**0.5 / pi).expand(g.shape[0])


def wide_factor(s: Sums, weight: float, counted: int) -> tuple[Tensor, Tensor]:
    """A and G from sums over ``counted`` positions."""
    if s.positions == 0:
        return wide(s.a) * weight, s.g / s.g.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(torch.finfo(s.g.dtype).tiny)[:, None, None]
    return s.a / counted, s.g * weight
