"""Stochastic rounding to bfloat16: up or down at random, in proportion to what lies between, so that the mean is the number itself.

The draws are a hash of a seed, a parameter's place, how many draws it has had, and the element (two rounds of C. Wellons' lowbias32), so
they need no state but that count, which may lie on the device, and are the same everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_FIRST, _SECOND, _GOLDEN, _ALL = 0x7FEB352D, 0x846CA68B, 0x9E3779B9, 0xFFFFFFFF


def _signed(x: int) -> int:
    """The int32 of the same bits."""
    return x - (1 << 32) if x >> 31 else x


def _mixed(x: int) -> int:
    """32 bits, each of which depends on all of x's."""
    x ^= x >> 16
    x = x * _FIRST & _ALL
    x ^= x >> 15
    x = x * _SECOND & _ALL
    return x ^ x >> 16


def _mix(t: Tensor) -> Tensor:
    """The same of int32 in place, whose products wrap around."""
    t.bitwise_xor_(t.bitwise_right_shift(16).bitwise_and_(0xFFFF)).mul_(_FIRST)
    t.bitwise_xor_(t.bitwise_right_shift(15).bitwise_and_(0x1FFFF)).mul_(_signed(_SECOND))
    return t.bitwise_xor_(t.bitwise_right_shift(16).bitwise_and_(0xFFFF))


def _keys(seed: int, place: int, step: Any) -> tuple[Any, Any]:
    """Two words of what is drawn for: numbers, or tensors where the device counts."""
    of = _mixed(seed & _ALL)
    for word in (seed >> 32, place):
        of = _mixed(of + _GOLDEN + word & _ALL)
    if isinstance(step, Tensor):
        first = _mix(step.to(torch.int32) + _signed(of))
        return first, _mix(first + _signed(_GOLDEN))
    low = _mixed(of + int(step) & _ALL)
    return _signed(low), _signed(_mixed(low + _GOLDEN & _ALL))


def draws(like: Tensor, seed: int, place: int, step: Any) -> Tensor:
    """Numbers of 0 to 2^16 - 1 as int32, of the shape of ``like`` and where it lies, whatever its strides."""
    first, second = _keys(seed, place, step)
    n = like.numel()
    # Two from each word.
    words = _mix(torch.arange(-(-n // 2), dtype=torch.int32, device=like.device).add_(first))
    words = _mix(words.bitwise_xor_(second))
    return words.view(torch.int16)[:n].to(torch.int32).bitwise_and_(0xFFFF).view(like.shape)


def rounded(x: Tensor, seed: int, place: int, step: Any) -> Tensor:
    """``x`` of float32 as bfloat16, one of the two next to it; what bfloat16 holds, an infinity and a NaN stay.

    ``seed`` has 0 .. 2^63 - 1; ``place`` is which parameter it is, and ``step`` how many draws it has had, a number or a tensor.
    """
    # A bfloat16 is the upper half of a float32: what is added to the lower half carries as often as it says.
    bits = draws(x, seed, place, step).add_(x.view(torch.int32)).bitwise_and_(-(1 << 16))
    return torch.where(x.isfinite(), bits.view(torch.float32), x).to(torch.bfloat16)
