"""Products of float32 on tensor cores with precision ``fast``: operands rounded to float16 under one power of two a matrix, sums in
float32. On the CPU, and on a GPU with PyTorch before 2.8, which has no such product, they are those of ``exact``."""

from __future__ import annotations

import torch
from torch import Tensor

PRECISIONS = ("exact", "fast")
_SUMS = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 8)


def rounds(x: Tensor) -> bool:
    """Whether ``fast`` rounds where this tensor is."""
    return x.is_cuda and _SUMS


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """``[count, m, n]`` as float16, and what each matrix was divided by, ``[count, 1, 1]``: a power of two that brings the largest number
    to 2^14 .. 2^15, so that numbers of 2^-29 of it and more have 11 bits. A number that is none makes none of its matrix alone."""
    most = x.abs().amax((-2, -1), keepdim=True) if x.numel() else x.new_zeros(len(x), 1, 1)
    exponent = torch.frexp(most.nan_to_num(0.0, 0.0, 0.0))[1].clamp(min=-100)
    down = torch.ldexp(torch.ones_like(most), exponent - 15)
    return (x / down).to(torch.float16), down


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """The product of float16, in float32."""
    if a.is_cuda:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.to(torch.float32), b.to(torch.float32))


def product(a: Tensor, b: Tensor, precision: str = "exact") -> Tensor:
    """``[count, m, k]`` times ``[count, k, n]``."""
    if precision != "fast" or not rounds(a):
        return torch.bmm(a, b)
    (a, of_a), (b, of_b) = halves(a), halves(b)
    return multiply(a, b).mul_(of_a).mul_(of_b)
