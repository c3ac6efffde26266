"""QR of batches of matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from .._errors import DtypeError, ShapeError
from ._base import one_of

_METHODS = ("auto", "householder", "cholesky")


def _pass(q: Tensor, shift: float) -> tuple[Tensor, Tensor, Tensor]:
    """``q = made r`` by the Cholesky factor of ``q^T q``, whose diagonal ``shift`` of its trace is added to; and whether it had
    one."""
    gram = q.mT @ q
    n = gram.shape[-1]
    if shift:
        trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        gram = gram + (shift * trace)[..., None, None] * torch.eye(n, dtype=q.dtype, device=q.device)
    low, info = torch.linalg.cholesky_ex(gram)
    return torch.linalg.solve_triangular(low.mT, q, upper=True, left=False), low.mT, info == 0


def cholesky_qr(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Q, R and whether they are right, of ``[..., m, n]``, m >= n, by shifted CholeskyQR3: products and triangular solves only,
    and nothing waits for an answer.

    Fukaya, Kannan, Nakatsukasa, Yamamoto and Yanagisawa, "Shifted Cholesky QR for computing the QR factorization of
    ill-conditioned matrices", SIAM J. Sci. Comput. 2020. Columns are brought to length 1 first, so that only their angles count.
    """
    length = torch.linalg.vector_norm(a, dim=-2, keepdim=True)
    tiny = torch.finfo(a.dtype).tiny
    q = a / length.clamp_min(tiny)
    m, n = a.shape[-2:]
    # 11 (m n + n (n + 1)) u ||A||^2 in the paper, the norm's square being at most the trace.
    shift = min(11 * (m * n + n * (n + 1)) * torch.finfo(a.dtype).eps / 2, 1e-2) / max(n, 1)
    r = None
    fine = torch.ones(a.shape[:-2], dtype=torch.bool, device=a.device)
    for s in (shift, 0.0, 0.0):
        q, step, ok = _pass(q, s)
        fine = fine & ok
        r = step if r is None else step @ r
    off = q.mT @ q - torch.eye(n, dtype=q.dtype, device=q.device)
    # A NaN is not below anything.
    fine = fine & (off.abs().amax((-2, -1)) < 100 * max(n, 1) ** 0.5 * torch.finfo(a.dtype).eps)
    assert r is not None
    return q, r * length, fine


def batched_qr(a: Tensor, *, method: str = "auto") -> tuple[Tensor, Tensor]:
    """``a = Q R`` with ``Q^T Q = I`` and R upper triangular with a diagonal of no negative element.

    Args:
        a: ``[..., m, n]``, float32 or float64 (bfloat16 and float16 are computed in float32), m >= n.
        method: ``householder``, ``cholesky`` (products and triangular solves; matrices that it cannot do go to the other, for
            which a GPU's answer is awaited), or ``auto``: the second on a GPU, the first elsewhere.

    Returns:
        Q ``[..., m, n]`` and R ``[..., n, n]``. A matrix with a NaN or an infinity gives NaN, and harms no other.

    Raises:
        ShapeError, DtypeError, ConfigError: a sentence with the values.
    """
    one_of("batched_qr", "method", method, _METHODS)
    if a.dim() < 2 or a.shape[-2] < a.shape[-1]:
        raise ShapeError(f"batched_qr: a.shape = {tuple(a.shape)} is not a batch of matrices [..., m, n] with m >= n")
    if not a.is_floating_point():
        raise DtypeError(f"batched_qr: a holds {str(a.dtype)[6:]}; it must be float32, float64, bfloat16 or float16")
    wide = a if a.dtype is torch.float64 else a.float()
    if 0 in a.shape:
        return torch.empty_like(a), a.new_zeros(*a.shape[:-2], a.shape[-1], a.shape[-1])
    if method == "cholesky" or (method == "auto" and a.is_cuda):
        q, r, fine = cholesky_qr(wide)
        if bool(fine.all()):
            return q.to(a.dtype), r.to(a.dtype)
        other_q, other_r = _householder(wide)
        q = torch.where(fine[..., None, None], q, other_q)
        r = torch.where(fine[..., None, None], r, other_r)
        return q.to(a.dtype), r.to(a.dtype)
    q, r = _householder(wide)
    return q.to(a.dtype), r.to(a.dtype)


def _householder(a: Tensor) -> tuple[Tensor, Tensor]:
    good = a.isfinite().all(-1).all(-1)[..., None, None]
    q, r = torch.linalg.qr(torch.where(good, a, torch.zeros_like(a)))
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(a.dtype)
    q, r = q * sign[..., None, :], r * sign[..., :, None]
    nan = torch.full((), float("nan"), dtype=a.dtype, device=a.device)
    return torch.where(good, q, nan), torch.where(good, r, nan)
