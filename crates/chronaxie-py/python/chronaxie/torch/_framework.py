"""PyTorch as the native module sees it: by its table of functions for other libraries (from 2.10 on), and before that by
the functions of this file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _native

_NAMES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.complex64: "c64",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


def _read(t: Tensor) -> Any:
    return t.data_ptr(), _NAMES.get(t.dtype) or short(t.dtype), tuple(t.shape), t.stride(), t.get_device()


def _pattern(shape: tuple[int, ...], dtype: str, device: str) -> Tensor:
    # One element, whatever the shape: its memory is never used.
    return torch.zeros((), dtype=_TYPES[dtype], device=device).expand(shape)


def _stream(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


def short(dtype: torch.dtype) -> str:
    """Its name without the module's."""
    return str(dtype).removeprefix("torch.")


def framework(exchange: bool = True) -> _native.Framework:
    """PyTorch, with its table of functions where it has one and ``exchange`` is set."""
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None) if exchange else None
    return _native.Framework(_read, torch.empty_like, _pattern, _stream, table)


FRAMEWORK = framework()
