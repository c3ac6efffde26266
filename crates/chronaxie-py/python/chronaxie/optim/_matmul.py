"""A matrix product whose workspace is bounded, piece by piece, also of matrices that lie on the host."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from .._errors import ChronaxieError, ConfigError, DeviceError, DtypeError, ShapeError

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class MatmulPlan(NamedTuple):
    """What :func:`matmul` will use, bytes, beside its operands: decided from sizes alone, before anything is allocated.

    rows, columns, inner: of the pieces.
    workspace_bytes: on the device that computes; pinned_bytes: of locked memory on the host.
    output_bytes: of the result, where no ``out`` is given.
    copied_bytes: that go between host and device.
    """

    device: torch.device
    m: int
    n: int
    k: int
    rows: int
    columns: int
    inner: int
    workspace_bytes: int
    pinned_bytes: int
    output_bytes: int
    copied_bytes: int

    def __str__(self) -> str:
        return (
            f"matmul [{self.m}, {self.k}] x [{self.k}, {self.n}] on {self.device} in pieces of {self.rows} x {self.columns} x "
            f"{self.inner}: {self.workspace_bytes} bytes of workspace, {self.pinned_bytes} pinned, {self.output_bytes} for the "
            f"result, {self.copied_bytes} copied between host and device"
        )


class _Layout(NamedTuple):
    """Which of a, b and the result need buffers on the device (one for a result on the host)."""

    a: bool
    b: bool
    out: bool
    host_a: bool
    host_b: bool
    host_out: bool


def _plain(t: Tensor) -> bool:
    """Whether a BLAS takes it as it is."""
    rows, columns = t.shape
    return (t.stride(1) == 1 and t.stride(0) >= max(columns, 1)) or (t.stride(0) == 1 and t.stride(1) >= max(rows, 1))


def _check(a: Tensor, b: Tensor, out: Tensor | None, device: Any) -> torch.device:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ShapeError(f"matmul: a.shape = {tuple(a.shape)} and b.shape = {tuple(b.shape)} are not [m, k] and [k, n]")
    if a.dtype not in _FLOATS or b.dtype is not a.dtype:
        raise DtypeError(f"matmul: a holds {str(a.dtype)[6:]} and b {str(b.dtype)[6:]}; both must hold one floating-point type")
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        raise ChronaxieError("matmul: there is no gradient; detach a and b, or call it under torch.no_grad()")
    for name, t in (("a", a), ("b", b), ("out", out)):
        if t is not None and not (t.is_cpu or t.is_cuda):
            raise DeviceError(f"matmul: {name} is on {t.device}, not on the CPU or a CUDA device")
    gpus = sorted({str(t.device) for t in (a, b, out) if t is not None and t.is_cuda})
    where = torch.device(device) if device is not None else torch.device(gpus[0] if gpus else "cpu")
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    if any(g != str(where) for g in gpus):
        raise DeviceError(f"matmul: operands are on {' and '.join(gpus)}, and {where} computes")
    if out is not None:
        if tuple(out.shape) != (a.shape[0], b.shape[1]):
            raise ShapeError(f"matmul: out.shape = {tuple(out.shape)} does not match {(a.shape[0], b.shape[1])}")
        if out.dtype is not a.dtype:
            raise DtypeError(f"matmul: out holds {str(out.dtype)[6:]}, a {str(a.dtype)[6:]}")
        if any(out.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() and t.numel() and out.numel() for t in (a, b)):
            raise ConfigError("matmul: out shares memory with an operand")
    return where


def _layout(a: Tensor, b: Tensor, out: Tensor | None, where: torch.device) -> _Layout:
    host = [where.type == "cuda" and t is not None and t.is_cpu for t in (a, b, out)]
    return _Layout(
        host[0] or not _plain(a), host[1] or not _plain(b), host[2] or (out is not None and not _plain(out)), *host
    )


def matmul_plan(a: Tensor, b: Tensor, *, out: Tensor | None = None, device: Any = None, max_bytes: int = 1 << 28) -> MatmulPlan:
    """What :func:`matmul` would do with these arguments; nothing is allocated."""
    where = _check(a, b, out, device)
    how = _layout(a, b, out, where)
    (m, k), n, size = a.shape, b.shape[1], a.element_size()
    depth = 2 if where.type == "cuda" else 1

    def used(rows: int, columns: int, inner: int) -> tuple[int, int]:
        left, right, result = rows * inner * size, inner * columns * size, rows * columns * size
        device_ = depth * (how.a * left + how.b * right) + how.out * result
        pinned = depth * (how.host_a * left + how.host_b * right) + how.host_out * result
        return device_, pinned

    rows, columns, inner = max(m, 1), max(n, 1), max(k, 1)
    # Sums of pieces would round half precision anew each time.
    splits = a.dtype in (torch.float32, torch.float64)
    while max(used(rows, columns, inner)) > max_bytes:
        if splits and inner > 256:
            inner = -(-inner // 2)
        elif max(rows, columns) > 1:
            # Pieces as square as they can be read the operands least often.
            rows, columns = (-(-rows // 2), columns) if rows >= columns else (rows, -(-columns // 2))
        elif splits and inner > 1:
            inner = -(-inner // 2)
        else:
            least = max(used(1, 1, inner))
            raise ConfigError(f"matmul: max_bytes = {max_bytes} is too little: the smallest pieces take {least}")
    device_, pinned = used(rows, columns, inner)
    copied = (how.host_a * m * k * -(-n // columns) + how.host_b * k * n * -(-m // rows) + how.host_out * m * n) * size
    return MatmulPlan(where, m, n, k, rows, columns, inner, device_, pinned, 0 if out is not None else m * n * size, copied)


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    out: Tensor | None = None,
    device: Any = None,
    max_bytes: int = 1 << 28,
    tell: Callable[[str], Any] | None = None,
) -> Tensor:
    """``a b`` with at most ``max_bytes`` of workspace on the device that computes, and as much of locked memory on the host (the
    BLAS's own workspace, some MiB, is not counted).

    What lies where it is needed, in rows or in columns, is read there; what does not is streamed piece by piece: from the host
    through two pinned buffers each, while the piece before is multiplied.

    Args:
        a, b: ``[m, k]`` and ``[k, n]``, float32, float64, bfloat16 or float16; on the CPU, or on one CUDA device.
        out: ``[m, n]`` of the same type, on the CPU or that device, any strides.
        device: that computes; where the operands are on the CPU, a CUDA device may.
        max_bytes: of workspace.
        tell: is given the :class:`MatmulPlan` as a sentence before anything is allocated; ``print`` will do.

    Returns:
        ``out``, or a new tensor on the device that computes.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values.
        ChronaxieError: where a gradient would be asked for: there is none.
    """
    plan = matmul_plan(a, b, out=out, device=device, max_bytes=max_bytes)
    if tell is not None:
        tell(str(plan))
    how = _layout(a, b, out, plan.device)
    with torch.no_grad():
        made = torch.empty(plan.m, plan.n, dtype=a.dtype, device=plan.device) if out is None else out
        if plan.m == 0 or plan.n == 0:
            return made
        if plan.k == 0:
            return made.zero_()
        if (plan.rows, plan.columns, plan.inner) == (plan.m, plan.n, plan.k) and not (how.a or how.b or how.out):
            return torch.mm(a, b, out=made)
        _Stream(plan, how, a, b, made).run()
    return made


class _Slot:
    """A buffer of pieces on the device, its pinned twin, and when each may be written again."""

    def __init__(self, elements: int, like: Tensor, where: torch.device, host: bool) -> None:
        self.device = torch.empty(elements, dtype=like.dtype, device=where)
        self.pinned = torch.empty(elements, dtype=like.dtype, pin_memory=True) if host else None
        self.copied: Any = None
        self.used: Any = None


class _Stream:
    """The pieces of one product."""

    def __init__(self, plan: MatmulPlan, how: _Layout, a: Tensor, b: Tensor, out: Tensor) -> None:
        self.plan, self.how, self.a, self.b, self.out = plan, how, a, b, out
        self.gpu = plan.device.type == "cuda"
        # A stream of its own, and waiting for it, only where something lies on the host.
        self.staged = self.gpu and (how.host_a or how.host_b)
        depth = 2 if self.gpu else 1
        self.slots = {
            "a": [_Slot(plan.rows * plan.inner, a, plan.device, how.host_a) for _ in range(depth)] if how.a else [],
            "b": [_Slot(plan.inner * plan.columns, a, plan.device, how.host_b) for _ in range(depth)] if how.b else [],
        }
        self.result = torch.empty(plan.rows * plan.columns, dtype=a.dtype, device=plan.device) if how.out else None
        self.pinned = torch.empty(plan.rows * plan.columns, dtype=a.dtype, pin_memory=True) if how.host_out else None
        if self.gpu:
            self.main = torch.cuda.current_stream(plan.device)
        if self.staged:
            self.side = torch.cuda.Stream(plan.device)
            # Buffers come from the main stream's allocator, and operands may be its work.
            self.side.wait_stream(self.main)

    def _fetch(self, name: str, t: Tensor, nth: int) -> tuple[Tensor, Any]:
        """A piece on the device, and its slot."""
        if not self.slots[name]:
            return t, None
        slot = self.slots[name][nth % len(self.slots[name])]
        there = slot.device[: t.numel()].view(t.shape)
        if slot.pinned is None:
            # Packed on the device (or the CPU) itself, in the order of the work.
            there.copy_(t)
            return there, None
        if slot.copied is not None:
            slot.copied.synchronize()
        staged = slot.pinned[: t.numel()].view(t.shape)
        staged.copy_(t)
        with torch.cuda.stream(self.side):
            if slot.used is not None:
                self.side.wait_event(slot.used)
            there.copy_(staged, non_blocking=True)
            slot.copied = self.side.record_event()
        self.main.wait_event(slot.copied)
        return there, slot

    def run(self) -> None:
        plan, nth = self.plan, 0
        for i in range(0, plan.m, plan.rows):
            for j in range(0, plan.n, plan.columns):
                place = self.out[i : i + plan.rows, j : j + plan.columns]
                into = place if self.result is None else self.result[: place.numel()].view(place.shape)
                for l in range(0, plan.k, plan.inner):
                    left, held_a = self._fetch("a", self.a[i : i + plan.rows, l : l + plan.inner], nth)
                    right, held_b = self._fetch("b", self.b[l : l + plan.inner, j : j + plan.columns], nth)
                    torch.addmm(into, left, right, beta=0 if l == 0 else 1, out=into)
                    for slot in (held_a, held_b):
                        if slot is not None:
                            slot.used = self.main.record_event()
                    nth += 1
                if self.pinned is not None:
                    staged = self.pinned[: place.numel()].view(place.shape)
                    staged.copy_(into, non_blocking=True)
                    self.main.synchronize()
                    place.copy_(staged)
                elif self.result is not None:
                    place.copy_(into)
        if self.staged:
            # The pinned buffers go back to their allocator, which knows nothing of the side stream.
            self.side.synchronize()
