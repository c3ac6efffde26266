"""The originals' names, for code that was written for them: the adaptive unitary operators of AUSSM
(github.com/arjunkaruvally/AUSSM), with the checks of types and shapes that those leave out, for any length; and the block of
``mamba_ssm`` (github.com/state-spaces/mamba)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._errors import ConfigError, DtypeError, ShapeError
from . import _ssm
from ._checks import positive
from ._framework import short
from ._scan import adaptive_scan

__all__ = ["Mamba", "ssm_adaptive_interface", "ssm_adaptive_unitary"]


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


class Mamba(_ssm.Mamba):
    """``mamba_ssm.Mamba``: its arguments, parameters, output and caches, on the CPU and on GPUs.

    Gu and Dao, Mamba: linear-time sequence modeling with selective state spaces, arXiv:2312.00752. ``chronaxie.torch.Mamba`` is the same
    block with the state as an argument and a result.

    Args:
        dt_init: how the map to the time steps starts, ``random`` or ``constant``; dt_scale multiplies its width.
        use_fast_path: taken and not looked at: there is one path.
        layer_idx: under which its states lie in ``inference_params.key_value_memory_dict``.
        device, dtype: of the parameters; ``A_log`` and ``D`` hold float32 whatever it is.

    The other arguments are those of ``chronaxie.torch.Mamba``.

    Raises:
        ConfigError: for another ``dt_init``, and for ``inference_params`` without ``layer_idx``.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | str = "auto",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init: str = "random",
        dt_scale: float = 1.0,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        use_fast_path: bool = True,
        layer_idx: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if dt_init not in ("random", "constant"):
            raise ConfigError(f'Mamba: dt_init must be "random" or "constant", not {dt_init!r}')
        positive("Mamba", dt_scale=dt_scale)
        super().__init__(
            d_model, d_state, d_conv, expand, dt_rank, dt_min=dt_min, dt_max=dt_max, dt_init_floor=dt_init_floor, conv_bias=conv_bias,
            bias=bias,
        )  # fmt: skip
        self.d_conv, self.expand, self.use_fast_path, self.layer_idx = d_conv, expand, use_fast_path, layer_idx
        with torch.no_grad():
            width = self.dt_rank**-0.5 * dt_scale
            nn.init.constant_(self.dt_proj.weight, width) if dt_init == "constant" else self.dt_proj.weight.mul_(dt_scale)
        wide = {name: p.data for name, p in self.named_parameters(recurse=False)}
        self.to(device=device, dtype=dtype)
        for name, p in self.named_parameters(recurse=False):
            p.data = wide[name].to(p.device)
            p._no_weight_decay = True  # type: ignore[attr-defined]
        self.dt_proj.bias._no_reinit = True  # type: ignore[union-attr]

    def forward(self, hidden_states: Tensor, inference_params: Any = None) -> Tensor:  # type: ignore[override]
        """``[B, T, D]`` to ``[B, T, D]``. With ``inference_params`` the states go on from its cache, from none where its
        ``seqlen_offset`` is 0, and what they come to is left there."""
        if inference_params is None:
            return super().forward(hidden_states)[0]
        caches = inference_params.key_value_memory_dict
        if self.layer_idx is None:
            raise ConfigError("Mamba: inference_params need a layer_idx, under which the states of this layer are kept")
        if self.layer_idx not in caches:
            caches[self.layer_idx] = self.allocate_inference_cache(hidden_states.shape[0], 0)
        conv_state, ssm_state = caches[self.layer_idx]
        if inference_params.seqlen_offset == 0:
            conv_state.zero_()
            ssm_state.zero_()
        return self.step(hidden_states, conv_state, ssm_state)[0]

    def step(self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same from these states on, which are changed in place: the last ``d_conv`` inputs of the convolution, ``[B, E D, d_conv]``,
        of which the first is not read, and ``[B, E D, N]``. Of one step or, unlike the original's, of several."""
        y, (kept, last) = super().forward(hidden_states, (conv_state[..., 1:], ssm_state.float()))
        with torch.no_grad():
            if self.d_conv > 1:
                # What falls out of `kept` by the last step is known where there was one step.
                oldest = conv_state[..., 1].clone() if hidden_states.shape[1] == 1 else 0.0
                conv_state[..., 0] = oldest
                conv_state[..., 1:] = kept.detach()
            ssm_state.copy_(last.detach())
        return y, conv_state, ssm_state

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """States of zeros for :meth:`step`; neither grows with ``max_seqlen``."""
        of = self.conv1d.weight
        conv_state = torch.zeros(batch_size, self.d_inner, self.d_conv, device=of.device, dtype=dtype or of.dtype)
        ssm_state = torch.zeros(batch_size, self.d_inner, self.d_state, device=of.device, dtype=dtype or self.dt_proj.weight.dtype)
        return conv_state, ssm_state
