"""Matrix functions on tensors of PyTorch."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple, Sequence, Union

import torch
from torch import Tensor

from .._errors import ChronaxieError, ConfigError, DtypeError, ShapeError
from ..torch._passes import call

NEWTON, EIGEN, SHIFTED, FAILED = range(4)
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Record(NamedTuple):
    """What became of each matrix of a batch; every field has the batch's shape.

    status: 0 Newton's iteration, 1 eigenvalues, 2 eigenvalues of an indefinite matrix, which was shifted until it was
    positive, 3 no root: the matrix had a NaN or an infinity, or was zero and not damped, and its result is NaN.
    iterations: of Newton, or sweeps of the eigenvalue solver where it counts them.
    residual: what is left of ``X^p (A + eps I)^q - I``.
    damping: eps.
    """

    status: Tensor
    iterations: Tensor
    residual: Tensor
    damping: Tensor


def _square(name: str, a: Tensor) -> None:
    if a.dim() < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"{name}: a.shape = {tuple(a.shape)} is not a batch of square matrices [..., n, n]")
    if a.dtype not in _FLOATS:
        raise DtypeError(f"{name}: a holds {str(a.dtype)[6:]}; it must be float32, bfloat16 or float16")


def _symmetric(name: str, a: Tensor) -> None:
    off = (a - a.mT).abs().amax() if a.numel() else a.new_zeros(())
    most = a.abs().amax() if a.numel() else a.new_zeros(())
    # A NaN is the record's business.
    if bool(off > 1e-3 * most):
        raise ShapeError(
            f"{name}: a is not symmetric: it differs from its transpose by up to {float(off):.3g}, where its largest element "
            f"is {float(most):.3g}"
        )


def inverse_root(
    a: Tensor,
    root: Union[int, Fraction] = 4,
    *,
    absolute: float = 1e-12,
    relative: float = 1e-6,
    method: str = "auto",
    record: bool = False,
    check: bool | None = None,
) -> Tensor | tuple[Tensor, Record]:
    """``(A + eps I)^(-1/root)`` of a batch of symmetric matrices, ``eps = max(absolute, relative ||A||_F)``.

    Args:
        a: ``[..., n, n]``, float32 (bfloat16 and float16 are computed in float32). Only the mean of a and its transpose
            counts.
        root: p, or a fraction p/q for the power -q/p; numerator and denominator 1 to 64.
        absolute, relative: damping.
        method: ``newton`` (p alone), ``eigen``, or ``auto``.
        record: whether what became of each matrix comes too.
        check: whether a that is not symmetric is refused; on the CPU it is by default, on a GPU it would have to wait.

    Returns:
        The roots, as a; with ``record`` a pair of them and a :class:`Record`.

    Raises:
        ShapeError: not square, or not symmetric, and by how much.
        DtypeError, ConfigError: a sentence with the value.
        ChronaxieError: where a gradient would be asked for: there is none.
    """
    name = "inverse_root"
    _square(name, a)
    if torch.is_grad_enabled() and a.requires_grad:
        raise ChronaxieError(f"{name}: there is no gradient; detach a, or call it under torch.no_grad()")
    power = Fraction(root) if isinstance(root, (int, Fraction)) and not isinstance(root, bool) else None
    if power is None or power <= 0:
        raise ConfigError(f"{name}: root = {root!r} is not a positive whole number or fraction")
    if check or (check is None and a.is_cpu):
        _symmetric(name, a)
    n = a.shape[-1]
    flat = a.detach().to(torch.float32).reshape(a.shape[:-2].numel(), n, n).contiguous()
    options = f"p={power.numerator},q={power.denominator},method={method},absolute={absolute!r},relative={relative!r}"
    x, raw = call(name, f"{flat.shape[0]}x{n},{options}", 2, [flat])
    x = x.view(a.shape).to(a.dtype)
    if not record:
        return x
    fields = raw.view(*a.shape[:-2], 4).unbind(-1)
    return x, Record(fields[0].to(torch.int32), fields[1].to(torch.int32), fields[2], fields[3])


class Eigen(NamedTuple):
    """``values [..., n]``, which rise, and ``vectors [..., n, n]``, column k of which belongs to value k."""

    values: Tensor
    vectors: Tensor


def eigh(a: Tensor, *, check: bool | None = None) -> Eigen:
    """Eigenvalues and eigenvectors of a batch of symmetric matrices, found in float64, all matrices at once.

    On a GPU nothing waits for the host, and a CUDA graph can hold it. Vectors have any sign, and are any of the space of equal values.

    Args:
        a: ``[..., n, n]``, float32 (bfloat16 and float16 are computed from float32), n at most 32768. Only the mean of a and its
            transpose counts; of a matrix with a NaN or an infinity all is NaN, and others are as they would be.
        check: as for :func:`inverse_root`.

    Returns:
        An :class:`Eigen`, as a; as ``torch.linalg.eigh`` gives them.

    Raises:
        ShapeError: not square, or not symmetric, and by how much.
        DtypeError: another type.
        ChronaxieError: where a gradient would be asked for: there is none.
    """
    name = "eigh"
    _square(name, a)
    if torch.is_grad_enabled() and a.requires_grad:
        raise ChronaxieError(f"{name}: there is no gradient; detach a, call it under torch.no_grad(), or take torch.linalg.eigh")
    if check or (check is None and a.is_cpu):
        _symmetric(name, a)
    n = a.shape[-1]
    flat = a.detach().to(torch.float32).reshape(a.shape[:-2].numel(), n, n).contiguous()
    values, rows = call(name, f"{flat.shape[0]}x{n}", 2, [flat])
    return Eigen(values.view(a.shape[:-1]).to(a.dtype), rows.view(a.shape).mT.to(a.dtype))


# Coefficients of the quintic that Muon uses (Jordan et al., 2024): steep at zero, within 0.7 .. 1.2 of one behind five steps.
_QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalize(g: Tensor, steps: int = 5, *, eps: float = 1e-7) -> Tensor:
    """Roughly ``U V^T`` of ``g = U S V^T``, by a quintic Newton-Schulz iteration: singular values come to 0.7 .. 1.2.

    Args:
        g: ``[..., m, n]``; the products are in its own type.
        steps: iterations.
        eps: added to the norm by which g is divided at first.

    Raises:
        ShapeError: fewer than two axes.
        ConfigError: fewer than one step.
    """
    if g.dim() < 2:
        raise ShapeError(f"orthogonalize: g.shape = {tuple(g.shape)} is not a batch of matrices [..., m, n]")
    if steps < 1:
        raise ConfigError(f"orthogonalize: steps = {steps} is not at least 1")
    a, b, c = _QUINTIC
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = x / (torch.linalg.vector_norm(x.float(), dim=(-2, -1), keepdim=True) + eps).to(x.dtype)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


def kron(a: Tensor, b: Tensor) -> Tensor:
    """The Kronecker product ``[..., m p, n q]`` of ``a [..., m, n]`` and ``b [..., p, q]``, materialised.

    To multiply by one, :func:`kron_apply` needs neither its memory nor its time.
    """
    if a.dim() < 2 or b.dim() < 2:
        raise ShapeError(f"kron: a.shape = {tuple(a.shape)} and b.shape = {tuple(b.shape)} are not [..., m, n] and [..., p, q]")
    m, n, p, q = *a.shape[-2:], *b.shape[-2:]
    out = a[..., :, None, :, None] * b[..., None, :, None, :]
    return out.reshape(*out.shape[:-4], m * p, n * q)


def kron_apply(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """``(a kron b) vec(x)`` as a matrix ``a x b^T``: a ``[..., m, n]``, b ``[..., p, q]``, x ``[..., n, q]``, result
    ``[..., m, p]``; vec goes row by row."""
    if x.dim() < 2 or a.dim() < 2 or b.dim() < 2 or (a.shape[-1], b.shape[-1]) != tuple(x.shape[-2:]):
        raise ShapeError(
            f"kron_apply: x.shape = {tuple(x.shape)} does not match [..., n, q] of a.shape = {tuple(a.shape)} and "
            f"b.shape = {tuple(b.shape)}"
        )
    # The cheaper order first.
    first = a.shape[-2] * a.shape[-1] * x.shape[-1] + a.shape[-2] * x.shape[-1] * b.shape[-2]
    second = x.shape[-2] * x.shape[-1] * b.shape[-2] + a.shape[-2] * a.shape[-1] * b.shape[-2]
    return (a @ x) @ b.mT if first <= second else a @ (x @ b.mT)


def batched_matmul(a: Tensor, b: Tensor) -> Tensor:
    """``[N, m, k]`` times ``[N, k, n]``."""
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise ShapeError(
            f"batched_matmul: a.shape = {tuple(a.shape)} and b.shape = {tuple(b.shape)} are not [N, m, k] and [N, k, n]"
        )
    return torch.bmm(a, b)


def roots_of(factors: Sequence[Tensor], power: Fraction, absolute: float, relative: float) -> list[tuple[Tensor, Tensor]]:
    """Roots and statuses of several batches ``[N, n, n]``, those of one n in one call."""
    out: list[tuple[Tensor, Tensor]] = [(f, f) for f in factors]
    sizes = sorted({(f.shape[-1], str(f.device)) for f in factors})
    for size in sizes:
        at = [i for i, f in enumerate(factors) if (f.shape[-1], str(f.device)) == size]
        batch = torch.cat([factors[i] for i in at])
        made = inverse_root(batch, power, absolute=absolute, relative=relative, record=True, check=False)
        counts = [factors[i].shape[0] for i in at]
        for i, x, status in zip(at, made[0].split(counts), made[1].status.split(counts)):
            out[i] = x, status
    return out
