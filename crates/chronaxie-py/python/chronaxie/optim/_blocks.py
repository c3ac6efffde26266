"""Parameters as blocks: merged axes, regions of equal blocks, and products along an axis of them."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

import torch
from torch import Tensor

from ._rounded import product


def merged_shape(shape: Iterable[int], most: int) -> list[int]:
    """Sizes without ones, neighbours merged while their product is at most ``most``."""
    out: list[int] = []
    for n in shape:
        if n == 1:
            continue
        if out and out[-1] * n <= most:
            out[-1] *= n
        else:
            out.append(n)
    return out


def blocks_of(shape: list[int], most: int) -> list[tuple[tuple[slice, ...], list[int], list[int]]]:
    """Regions of a tensor, each a grid of blocks of one shape: slices, how many blocks there are along each axis, and how
    long they are."""
    regions: list[tuple[tuple[slice, ...], list[int], list[int]]] = [((), [], [])]
    for n in shape:
        whole = n // most * most
        pieces = [(slice(0, whole), whole // most, most)] if whole else []
        if n > whole:
            pieces.append((slice(whole, n), 1, n - whole))
        regions = [((*s, a), [*c, k], [*b, m]) for s, c, b in regions for a, k, m in pieces]
    return regions


def to_blocks(x: Tensor, counts: list[int], sizes: list[int]) -> Tensor:
    """``[blocks, *sizes]`` of a region."""
    o = len(sizes)
    x = x.reshape([n for pair in zip(counts, sizes) for n in pair])
    return x.permute(*range(0, 2 * o, 2), *range(1, 2 * o, 2)).reshape(-1, *sizes)


def from_blocks(x: Tensor, counts: list[int], sizes: list[int]) -> Tensor:
    """The region of ``[blocks, *sizes]``."""
    o = len(sizes)
    x = x.reshape(*counts, *sizes).permute([i for k in range(o) for i in (k, o + k)])
    return x.reshape([c * s for c, s in zip(counts, sizes)])


def unfolded(x: Tensor, axis: int) -> Tensor:
    """``[blocks, n_axis, the rest]``."""
    return x.movedim(axis + 1, 1).reshape(x.shape[0], x.shape[axis + 1], -1)


def along(x: Tensor, m: Tensor, axis: int, precision: str = "exact") -> Tensor:
    """Every block times its matrix along an axis: ``y_i = sum_j m_ij x_j``."""
    y = product(m, unfolded(x, axis), precision)
    moved = x.movedim(axis + 1, 1).shape
    return y.reshape(moved).movedim(1, axis + 1)


def count(counts: list[int]) -> int:
    """Blocks of a region."""
    n = 1
    for c in counts:
        n *= c
    return n


def grid_of(p: Tensor, most: int, vectors: bool, merge: bool = True) -> tuple[list[int], list[Any]]:
    """The shape of a parameter without ones, merged where that is asked for, and its regions; none where it has no matrix."""
    shape = merged_shape(p.shape, most) if merge else [n for n in p.shape if n != 1]
    plain = p.numel() == 0 or not shape or (len(shape) == 1 and not vectors)
    return shape, [] if plain else blocks_of(shape, most)


def together(function: Any, items: Sequence[tuple[Tensor, ...]]) -> list[Any]:
    """The function of each item, tensors ``[blocks, n, n]``; those of one n in one call."""
    out: list[Any] = [None] * len(items)
    for n in sorted({item[0].shape[-1] for item in items}):
        at = [i for i, item in enumerate(items) if item[0].shape[-1] == n]
        made = function(*(torch.cat(parts) for parts in zip(*(items[i] for i in at))))
        counts = [items[i][0].shape[0] for i in at]
        if isinstance(made, Tensor):
            parts = made.split(counts)
        else:
            parts = list(zip(*(m.split(counts) for m in made)))  # type: ignore[assignment]
        for i, part in zip(at, parts):
            out[i] = part
    return out
