"""The originals' names, for code that was written for them: the adaptive unitary operators of AUSSM
(github.com/arjunkaruvally/AUSSM), with the checks of types and shapes that those leave out, for any length."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._errors import ConfigError, DtypeError, ShapeError
from ._framework import short
from ._scan import adaptive_scan

__all__ = ["ssm_adaptive_interface", "ssm_adaptive_unitary"]


def _check(name: str, u: Tensor, x: Tensor, tensors: dict[str, tuple[Tensor, tuple[int, ...], torch.dtype]]) -> None:
    if u.dim() != 3 or x.dim() != 3:
        raise ShapeError(f"{name}: u.shape = {tuple(u.shape)} and x.shape = {tuple(x.shape)} do not match [B, D, T] and [D, N, D]")
    for what, (t, shape, dtype) in tensors.items():
        if t.dtype is not dtype:
            raise DtypeError(f"{name}: {what} holds {short(t.dtype)}, not {short(dtype)}")
        if tuple(t.shape) != shape:
            raise ShapeError(f"{name}: {what}.shape = {tuple(t.shape)} does not match {shape}")


def ssm_adaptive_unitary(
    u: Tensor,
    dt: Tensor,
    x: Tensor,
    x_bias: Tensor,
    B_r: Tensor,
    B_theta: Tensor,
    C_r: Tensor,
    C_theta: Tensor,
    D: Tensor,
    z: Tensor,
    prev_hidden_state_real: Tensor,
    prev_hidden_state_imag: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The original's operator: ``h_t = e^{i theta_t} h_{t-1} + dt_t B silu(u_t)`` with ``theta = x u + x_bias``,
    ``y = (Re(C h) + D silu(u)) silu(z)``; weights by radius and angle. Any number of steps, in one call.

    Args:
        u, dt, z: float32 ``[B, D, T]``.
        x, x_bias: float32 ``[D, N, D]`` and ``[D, N]``.
        B_r, B_theta, C_r, C_theta: float32 ``[N]``.
        D: float32 ``[D]``.
        prev_hidden_state_real, prev_hidden_state_imag: float32 ``[B, D, N]``.

    Returns:
        y ``[B, D, T]``, and both parts of the last state.
    """
    f, name = torch.float32, "ssm_adaptive_unitary"
    if u.dim() == 3 and x.dim() == 3:
        b, d, t = u.shape
        n = x.shape[1]
        states = {"prev_hidden_state_real": prev_hidden_state_real, "prev_hidden_state_imag": prev_hidden_state_imag}
        weights = {"B_r": B_r, "B_theta": B_theta, "C_r": C_r, "C_theta": C_theta}
        tensors = {what: (v, (b, d, t), f) for what, v in (("u", u), ("dt", dt), ("z", z))}
        tensors |= {"x": (x, (d, n, d), f), "x_bias": (x_bias, (d, n), f), "D": (D, (d,), f)}
        tensors |= {what: (v, (n,), f) for what, v in weights.items()}
        tensors |= {what: (v, (b, d, n), f) for what, v in states.items()}
    else:
        tensors = {}
    _check(name, u, x, tensors)
    h0 = torch.complex(prev_hidden_state_real, prev_hidden_state_imag)
    y, last = adaptive_scan(
        u, dt, torch.polar(B_r, B_theta), torch.polar(C_r, C_theta), W=x, bias=x_bias, D=D, z=z, silu=True, h0=h0
    )
    return y, last.real.contiguous(), last.imag.contiguous()


def ssm_adaptive_interface(
    u: Tensor,
    dt: Tensor,
    x: Tensor,
    x_bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor,
    unitary: bool = True,
    preal: bool = False,
    max_parallel_length: int = 2048,
    **kwargs: Any,
) -> Tensor:
    """The original's front: :func:`ssm_adaptive_unitary` from zero, with B and C complex64 ``[N]`` whose real parts are radii
    before softplus and whose imaginary parts are angles. ``max_parallel_length`` changes nothing: there is no longest
    stretch. Returns y ``[B, D, T]``.

    Raises:
        ConfigError: for kernels that the original has not either, and for arguments that it would swallow.
    """
    name = "ssm_adaptive_interface"
    if kwargs:
        raise ConfigError(f"{name}: there is no argument {', '.join(sorted(kwargs))}")
    if not unitary or preal:
        raise ConfigError(f"{name}: unitary = {unitary} and preal = {preal}; only the unitary operator exists")
    if max_parallel_length < 1:
        raise ConfigError(f"{name}: max_parallel_length = {max_parallel_length} is not at least 1")
    n = x.shape[1] if x.dim() == 3 else -1
    _check(name, u, x, {what: (w, (n,), torch.complex64) for what, w in (("B", B), ("C", C))})
    zero = u.new_zeros((u.shape[0], u.shape[1], n))
    weights = (F.softplus(B.real), B.imag.contiguous(), F.softplus(C.real), C.imag.contiguous())
    return ssm_adaptive_unitary(u, dt, x, x_bias, *weights, D, z, zero, zero)[0]
