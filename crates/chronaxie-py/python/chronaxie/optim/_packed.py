"""Symmetric matrices in half their memory: n (n + 1) / 2 elements, from which products take their parts as they lie.

A matrix of two halves, h rows and the n - h below them (h the larger one of an odd n), is kept as its block ``[n - h, h]``
below the diagonal, behind it a rectangle ``[h, n - h + 1]`` with the upper block's lower triangle and, a column further to the
right, the lower block's upper triangle. (LAPACK's rectangular full packed format is another order of the same: Gustavson,
Wasniewski, Dongarra and Langou, ACM TOMS 37, 2010.)
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from . import _rounded


def packed_size(n: int) -> int:
    """Elements of a symmetric matrix of n rows."""
    return n * (n + 1) // 2


def _parts(t: Tensor, n: int) -> tuple[int, Tensor, Tensor]:
    """The rows of the upper half, the block below the diagonal and the rectangle of both triangles, of ``[count, n (n + 1) / 2]``."""
    low = n // 2
    high = n - low
    below, both = t.split([low * high, high * (low + 1)], 1)
    return high, below.view(len(t), low, high), both.view(len(t), high, low + 1)


def add_gram(t: Tensor, x: Tensor, keep: float, weight: float, precision: str = "exact") -> None:
    """``M <- keep M + weight x x^T`` in place, of packed ``t`` ``[count, n (n + 1) / 2]`` and ``x`` ``[count, n, r]``: three quarters of
    the products of a whole one."""
    high, below, both = _parts(t, x.shape[1])
    low = x.shape[1] - high
    both.mul_(keep)
    if precision == "fast" and _rounded.rounds(x):
        x, down = _rounded.halves(x)
        upper, lower = x[:, :high], x[:, high:]
        # Scaled twice, as the square of a small number is none.
        both[:, :, :high].add_(_rounded.multiply(upper, upper.mT).mul_(down).mul_(down).tril_(), alpha=weight)
        if low:
            below.mul_(keep).add_(_rounded.multiply(lower, upper.mT).mul_(down).mul_(down), alpha=weight)
            both[:, :low, 1:].add_(_rounded.multiply(lower, lower.mT).mul_(down).mul_(down).triu_(), alpha=weight)
        return
    upper, lower = x[:, :high], x[:, high:]
    both[:, :, :high].add_(torch.bmm(upper, upper.mT).tril_(), alpha=weight)
    if low:
        below.baddbmm_(lower, upper.mT, beta=keep, alpha=weight)
        both[:, :low, 1:].add_(torch.bmm(lower, lower.mT).triu_(), alpha=weight)


def pack(m: Tensor) -> Tensor:
    """``[count, n (n + 1) / 2]`` of symmetric matrices ``[count, n, n]``, of which the lower triangle and the upper one of the lower
    half are read."""
    n = m.shape[-1]
    t = m.new_zeros(m.shape[0], packed_size(n))
    high, below, both = _parts(t, n)
    low = n - high
    below.copy_(m[:, high:, :high])
    both[:, :, :high] = m[:, :high, :high].tril()
    both[:, :low, 1:] += m[:, high:, high:].triu()
    return t


def unpack(t: Tensor, n: int) -> Tensor:
    """The matrices ``[count, n, n]``, exactly symmetric."""
    high, below, both = _parts(t, n)
    m = t.new_empty(t.shape[0], n, n)
    upper, lower = both[:, :, :high].tril(), both[:, : n - high, 1:].triu()
    m[:, :high, :high] = upper + upper.tril(-1).mT
    m[:, high:, high:] = lower + lower.triu(1).mT
    m[:, high:, :high] = below
    m[:, :high, high:] = below.mT
    return m


def triangle(t: Tensor, n: int) -> Tensor:
    """What a packed ``t`` is as lower triangles, row after row, ``[count, n (n + 1) / 2]``, as native steps keep it."""
    rows, columns = torch.tril_indices(n, n, device=t.device)
    return unpack(t, n)[:, rows, columns]


def from_triangle(t: Tensor, n: int) -> Tensor:
    """The reverse of :func:`triangle`."""
    rows, columns = torch.tril_indices(n, n, device=t.device)
    m = t.new_empty(t.shape[0], n, n)
    m[:, rows, columns] = t
    m[:, columns, rows] = t
    return pack(m)


def by_regions(function: Callable[[Tensor, int], Tensor], regions: Any, grid: Any) -> list[list[Tensor]]:
    """The function of all matrices of a parameter, lists by regions of lists by axes, and their sizes."""
    return [[function(t, n) for t, n in zip(of, sizes)] for of, (_, _, sizes) in zip(regions, grid)]
