"""Diagonal state-space models as modules: each takes ``[B, T, D]`` and gives ``[B, T, D]`` and its last state, which is the
next call's first. What they compute from their parameters is what ``layers/ssm/providers`` says, by the papers named."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._errors import ConfigError, DtypeError, ShapeError
from ._checks import number, positive, problem, sizes, whole
from ._framework import short
from ._passes import refuse_double
from ._scan import adaptive_scan, linear_scan, selective_scan

State = Any


def _enter(name: str, x: Tensor, width: int, weight: Tensor) -> Tensor:
    if x.dim() != 3 or x.shape[-1] != width:
        raise ShapeError(f"{name}: x.shape = {tuple(x.shape)} does not match [B, T, D] with D = {width}")
    if not x.is_floating_point():
        raise DtypeError(f"{name}: x holds {short(x.dtype)}; it must hold floating-point numbers")
    refuse_double(name, x=x)
    if weight.dtype is torch.float64:
        raise DtypeError(f"{name}: the parameters hold float64; all is computed in float32, and they must be float32, bfloat16 or float16")
    return x.transpose(1, 2)


def _from_to(name: str, low: str, least: float, high: str, most: float, end: float = math.inf) -> None:
    """Refuses what is no range of positive numbers up to ``end``; of radii the least may be 0."""
    low_end, high_end = number(least), number(most)
    if not (0.0 <= low_end <= high_end <= end and 0.0 < high_end < math.inf) or low_end == 0.0 and end != 1.0:
        until = " up to 1" if end == 1.0 else ""
        raise ConfigError(f"{name}: {low} = {least!r} and {high} = {most!r} are not the ends of a range of positive numbers{until}")


def _rank(name: str, dt_rank: int | str, auto: int) -> int:
    if dt_rank == "auto":
        return auto
    if isinstance(dt_rank, str):
        raise ConfigError(f'{name}: dt_rank = {dt_rank!r} is neither "auto" nor a whole number from 1 on')
    sizes(name, dt_rank=dt_rank)
    return dt_rank


def _complex(t: Tensor) -> Tensor:
    return torch.view_as_complex(t.float().contiguous())


def _normal(*shape: int) -> nn.Parameter:
    """Real and imaginary parts of complex normal numbers of variance 1."""
    return nn.Parameter(torch.randn(*shape, 2) * 0.5**0.5)


def _along(gate: Tensor, like: Tensor) -> Tensor:
    """A gate ``[D]`` that is the same at all times, for a scan over ``like`` ``[B, D, T]``."""
    wide = gate[None, :, None].expand(like.shape)
    # The fast kernels want contiguous time; the CPU takes any strides.
    return wide.contiguous() if wide.is_cuda else wide


def _ring(count: int, least: float, most: float) -> Tensor:
    """Rates ``-log |a|`` such that equal areas of the ring from ``least`` to ``most`` are equally likely."""
    squared = torch.rand(count) * (most * most - least * least) + least * least
    return -0.5 * squared.log()


class S4D(nn.Module):
    """Rates that do not depend on the input, ``A = -exp(log_rate) + i frequency``, zero-order hold.

    Gu et al., On the parameterization and initialization of diagonal state space models, arXiv:2206.11893.

    Args:
        d_model: D.
        d_state: N, complex states a channel, each of which stands for its conjugate too.
        frequencies: ``linear`` (S4D-Lin) or ``inverse`` (S4D-Inv).
        discretisation: ``zoh`` or ``bilinear``.
        delta_min, delta_max: of the time steps, log-uniform.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 32,
        frequencies: str = "linear",
        discretisation: str = "zoh",
        delta_min: float = 0.001,
        delta_max: float = 0.1,
    ) -> None:
        super().__init__()
        if frequencies not in ("linear", "inverse"):
            raise ConfigError(f"S4D: frequencies `{frequencies}` is not one of linear, inverse")
        if discretisation not in ("zoh", "bilinear"):
            raise ConfigError(f"S4D: discretisation `{discretisation}` is not one of zoh, bilinear")
        sizes("S4D", d_model=d_model, d_state=d_state)
        problem("selective_scan", f"B1_D1_T1_N{int(d_state)}")
        _from_to("S4D", "delta_min", delta_min, "delta_max", delta_max)
        self.d_model, self.d_state, self.discretisation = d_model, d_state, discretisation
        n, m = torch.arange(d_state, dtype=torch.float32), 2.0 * d_state
        frequency = math.pi * n if frequencies == "linear" else m / math.pi * (m / (2 * n + 1) - 1)
        self.log_rate = nn.Parameter(torch.full((d_model, d_state), math.log(0.5)))
        self.frequency = nn.Parameter(frequency.repeat(d_model, 1))
        low, high = math.log(delta_min), math.log(delta_max)
        self.log_delta = nn.Parameter(torch.rand(d_model) * (high - low) + low)
        self.C = _normal(d_model, d_state)
        self.D = nn.Parameter(torch.randn(d_model))

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``x`` ``[B, T, D]`` and a state complex64 ``[B, D, N]``; gives y and the last state."""
        u = _enter("S4D", x, self.d_model, self.D)
        A = torch.complex(-self.log_rate.float().exp(), self.frequency.float())
        delta = self.log_delta.float().exp().to(u.dtype)[None, :, None].expand(u.shape)
        delta = delta.contiguous() if u.is_cuda else delta
        y, last = selective_scan(
            u, delta, A, torch.ones_like(A), _complex(self.C), self.D, None, None, False, True,
            h0=state, discretisation=self.discretisation,
        )  # fmt: skip
        return y.transpose(1, 2), last


def hippo(size: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues ``[size / 2]`` with positive imaginary parts of the normal part of HiPPO-LegS, and their eigenvectors as
    columns ``[size, size / 2]``; complex128."""
    p = (torch.arange(size, dtype=torch.float64) + 0.5).sqrt()
    outer = p[:, None] * p[None, :]
    skew = outer.triu(1) - outer.tril(-1)
    values, vectors = torch.linalg.eigh(-1j * skew)
    half = size // 2
    return torch.complex(torch.full((half,), -0.5, dtype=torch.float64), values[size - half :]), vectors[:, size - half :]


class S5(nn.Module):
    """One scan over P complex states that all channels share, between two dense maps.

    Smith, Warrington and Linderman, Simplified state space layers for sequence modeling, arXiv:2208.04933.

    Args:
        d_model: D.
        d_state: twice P: the states stand for their conjugates too. Even.
        delta_min, delta_max: of the time steps, log-uniform.
    """

    def __init__(self, d_model: int, d_state: int = 64, delta_min: float = 0.001, delta_max: float = 0.1) -> None:
        super().__init__()
        if (whole(d_state) or 1) < 2 or d_state % 2:
            raise ConfigError(f"S5: d_state = {d_state!r} is not even and at least 2")
        sizes("S5", d_model=d_model)
        _from_to("S5", "delta_min", delta_min, "delta_max", delta_max)
        self.d_model, self.d_state = d_model, d_state
        values, vectors = hippo(d_state)
        self.Lambda = nn.Parameter(torch.view_as_real(values.to(torch.complex64)).clone())
        b = torch.randn(d_state, d_model, dtype=torch.float64) / d_model**0.5
        c = torch.randn(d_model, d_state, dtype=torch.float64) / d_state**0.5
        wide = vectors.to(torch.complex128)
        self.B = nn.Parameter(torch.view_as_real((wide.conj().t() @ b.to(wide.dtype)).to(torch.complex64)).clone())
        self.C = nn.Parameter(torch.view_as_real((c.to(wide.dtype) @ wide).to(torch.complex64)).clone())
        low, high = math.log(delta_min), math.log(delta_max)
        self.log_delta = nn.Parameter(torch.rand(d_state // 2) * (high - low) + low)
        self.D = nn.Parameter(torch.randn(d_model))

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``x`` ``[B, T, D]`` and a state complex64 ``[B, P]``; gives y and the last state."""
        _enter("S5", x, self.d_model, self.D)
        rate, delta = _complex(self.Lambda), self.log_delta.float().exp()
        w = rate * delta
        gate, factor = w.exp(), torch.expm1(w) / rate
        drive = (x.float().to(torch.complex64) @ _complex(self.B).t()) * factor
        h, last = linear_scan(_along(gate, drive.transpose(1, 2)), drive.transpose(1, 2), state)
        y = 2.0 * (h.transpose(1, 2) @ _complex(self.C).t()).real + self.D.float() * x.float()
        return y.to(x.dtype), last


class LRU(nn.Module):
    """Linear recurrent units: ``a = exp(-exp(nu) + i exp(phi))``, inputs scaled by ``sqrt(1 - |a|^2)``.

    Orvieto et al., Resurrecting recurrent neural networks for long sequences, arXiv:2303.06349.

    Args:
        d_model: D.
        d_state: N, complex states.
        least, most: of the radii ``|a|``.
        angle: the largest angle, in radians.
    """

    def __init__(
        self, d_model: int, d_state: int = 64, least: float = 0.0, most: float = 1.0, angle: float = 2 * math.pi
    ) -> None:
        super().__init__()
        sizes("LRU", d_model=d_model, d_state=d_state)
        _from_to("LRU", "least", least, "most", most, 1.0)
        positive("LRU", angle=angle)
        self.d_model, self.d_state = d_model, d_state
        self.nu = nn.Parameter(_ring(d_state, least, most).clamp_min(1e-7).log())
        self.phi = nn.Parameter((angle * (1.0 - torch.rand(d_state))).log())
        self.B = nn.Parameter(torch.randn(d_state, d_model, 2) / (2 * d_model) ** 0.5)
        self.C = nn.Parameter(torch.randn(d_model, d_state, 2) / d_state**0.5)
        self.D = nn.Parameter(torch.randn(d_model))

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``x`` ``[B, T, D]`` and a state complex64 ``[B, N]``; gives y and the last state."""
        _enter("LRU", x, self.d_model, self.D)
        rate = self.nu.float().exp()
        gate = torch.polar((-rate).exp(), self.phi.float().exp())
        gain = (-torch.expm1(-2.0 * rate)).sqrt()
        drive = (x.float().to(torch.complex64) @ _complex(self.B).t()) * gain
        h, last = linear_scan(_along(gate, drive.transpose(1, 2)), drive.transpose(1, 2), state)
        y = (h.transpose(1, 2) @ _complex(self.C).t()).real + self.D.float() * x.float()
        return y.to(x.dtype), last


class _BlockLinear(nn.Module):
    """Linear maps of equal blocks of channels."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        each = width // blocks
        self.weight = nn.Parameter(torch.randn(blocks, each, each) / each**0.5)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        blocks, each, _ = self.weight.shape
        made = torch.einsum("btgi,gij->btgj", x.unflatten(-1, (blocks, each)), self.weight)
        return made.flatten(-2) + self.bias


class RGLRU(nn.Module):
    """The gated recurrence of Griffin: ``a_t = sigmoid(Lambda)^(8 sigmoid(r_t))``, inputs scaled by ``sqrt(1 - a_t^2)``.

    De et al., Griffin: mixing gated linear recurrences with local attention, arXiv:2402.19427.

    Args:
        d_model: D.
        blocks: of the maps to the gates; they divide D.
    """

    def __init__(self, d_model: int, blocks: int = 1) -> None:
        super().__init__()
        sizes("RGLRU", d_model=d_model)
        if (whole(blocks) or 0) < 1 or d_model % blocks:
            raise ConfigError(f"RGLRU: blocks = {blocks!r} does not divide d_model = {d_model}")
        self.d_model = d_model
        # sigmoid(Lambda)^8 is uniform from 0.9 to 0.999.
        log = (torch.rand(d_model) * 0.099 + 0.9).log() / 8.0
        self.Lambda = nn.Parameter(log - (-torch.expm1(log)).log())
        self.recurrence_gate, self.input_gate = _BlockLinear(d_model, blocks), _BlockLinear(d_model, blocks)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``x`` ``[B, T, D]`` and a state ``[B, D]``; gives y, which is every state, and the last one."""
        _enter("RGLRU", x, self.d_model, self.Lambda)
        rate = 8.0 * torch.sigmoid(self.recurrence_gate(x).float()) * F.softplus(-self.Lambda.float())
        gain = (-torch.expm1(-2.0 * rate)).clamp_min(1e-12).sqrt()
        drive = gain * torch.sigmoid(self.input_gate(x).float()) * x.float()
        h, last = linear_scan((-rate).exp().transpose(1, 2), drive.transpose(1, 2), state)
        return h.transpose(1, 2).to(x.dtype), last


class MinGRU(nn.Module):
    """``z = sigmoid(W_z x)``, ``h_t = (1 - z_t) h_{t-1} + z_t W_h x_t``.

    Feng et al., Were RNNs all we needed?, arXiv:2410.01201.

    Args:
        input_size, hidden_size: D and H.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        sizes("MinGRU", input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.gate, self.candidate = nn.Linear(input_size, hidden_size), nn.Linear(input_size, hidden_size)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``x`` ``[B, T, D]`` and a state ``[B, H]``; gives every state ``[B, T, H]`` and the last one."""
        _enter("MinGRU", x, self.input_size, self.gate.weight)
        k, candidate = self.gate(x).float(), self.candidate(x).float()
        drive = torch.sigmoid(k) * candidate
        h, last = linear_scan(torch.sigmoid(-k).transpose(1, 2), drive.transpose(1, 2), state)
        return h.transpose(1, 2).to(x.dtype), last


def _convolve(conv: nn.Conv1d, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """A causal convolution of ``[B, D, T]``, and the last ``width - 1`` inputs, which the next call needs before its own."""
    keep = conv.kernel_size[0] - 1
    before = x.new_zeros((x.shape[0], x.shape[1], keep)) if before is None else before.to(x.dtype)
    wide = torch.cat([before, x], dim=2)
    # PyTorch refuses inputs shorter than the kernel, as those of no time are.
    made = F.conv1d(wide, conv.weight, conv.bias, groups=x.shape[1]) if x.shape[2] else x
    return made, wide[:, :, wide.shape[2] - keep :]


def _inner(block: Any, x: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """What a block's scan begins with: its channels and its gate ``[B, D, T]``, what its convolution keeps for the next
    call, and the scan's initial state."""
    _enter(type(block).__name__, x, block.d_model, block.in_proj.weight)
    u, z = block.in_proj(x).transpose(1, 2).chunk(2, dim=1)
    kept, h0 = (None, None) if state is None else state
    if block.conv1d is not None:
        u, kept = _convolve(block.conv1d, u, kept)
    return u, z, kept, h0


class Mamba(nn.Module):
    """Mamba's first block, with the names of its parameters in ``mamba_ssm``.

    Gu and Dao, Mamba: linear-time sequence modeling with selective state spaces, arXiv:2312.00752.

    Args:
        d_model, d_state, d_conv, expand: D, N, the width of the convolution, and channels within over D.
        dt_rank: of the map to the time steps; ``auto`` is D / 16, rounded up.
        dt_min, dt_max, dt_init_floor: of the time steps that the bias starts with.
        conv_bias, bias: whether the convolution, and the two outer maps, have one.
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
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
    ) -> None:
        super().__init__()
        sizes("Mamba", d_model=d_model, d_state=d_state, d_conv=d_conv, expand=expand)
        _from_to("Mamba", "dt_min", dt_min, "dt_max", dt_max)
        positive("Mamba", dt_init_floor=dt_init_floor)
        problem("selective_scan", f"B1_D1_T1_N{int(d_state)}")
        self.d_model, self.d_state, self.d_inner = d_model, d_state, expand * d_model
        rank = self.dt_rank = _rank("Mamba", dt_rank, math.ceil(d_model / 16))
        inner = self.d_inner
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=bias)
        self.conv1d = nn.Conv1d(inner, inner, d_conv, groups=inner, padding=d_conv - 1, bias=conv_bias)
        self.x_proj = nn.Linear(inner, rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(rank, inner, bias=True)
        nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
        low, high = math.log(dt_min), math.log(dt_max)
        delta = torch.exp(torch.rand(inner) * (high - low) + low).clamp_min(dt_init_floor)
        with torch.no_grad():
            # The inverse of softplus.
            self.dt_proj.bias.copy_(delta + torch.log(-torch.expm1(-delta)))
        self.A_log = nn.Parameter(torch.arange(1, d_state + 1, dtype=torch.float32).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, d_model, bias=bias)

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """``x`` ``[B, T, D]`` and a state of the call before, two tensors; gives y and the last state."""
        u, z, kept, h0 = _inner(self, x, state)
        u = F.silu(u)
        delta, B, C = self.x_proj(u.transpose(1, 2)).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        delta, B, C = (delta @ self.dt_proj.weight.t()).transpose(1, 2), B.transpose(1, 2), C.transpose(1, 2)
        if x.is_cuda:
            # The fast kernels want contiguous time.
            delta, z, B, C = (t.contiguous() for t in (delta, z, B, C))
        A = -self.A_log.float().exp()
        y, last = selective_scan(u, delta, A, B, C, self.D, z, self.dt_proj.bias, True, True, h0=h0)
        return self.out_proj(y.transpose(1, 2)), (kept, last)


class AUSSM(nn.Module):
    """The block of the adaptive unitary state-space model: angles that inputs set, states that never decay.

    Karuvally et al., Bridging expressivity and scalability with adaptive unitary SSMs, arXiv:2507.05238. Parameters have the
    names of the published code; B and C hold a radius before softplus and an angle as real and imaginary part.

    Args:
        d_model, d_state: D and N.
        d_conv: width of the causal convolution; 0 leaves it out.
        dt_rank: of the map to the time steps; ``auto`` is N, as published.
        bias: whether the two outer maps have one.
        double_bias: add the bias of dt_proj twice, as the published code does, for weights that were trained so.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        dt_rank: int | str = "auto",
        bias: bool = False,
        double_bias: bool = False,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        sizes(name, d_model=d_model, d_state=d_state)
        problem("adaptive_theta", f"B1_D1_N{int(d_state)}_T1")
        if d_conv != 0:
            sizes(name, d_conv=d_conv)
        self.d_model, self.d_state, self.double_bias = d_model, d_state, double_bias
        rank = _rank(name, dt_rank, d_state)
        self.in_proj = nn.Linear(d_model, 2 * d_model, bias=bias)
        self.conv1d = nn.Conv1d(d_model, d_model, d_conv, groups=d_model, padding=d_conv - 1) if d_conv else None
        self.x_proj = nn.Linear(d_model, rank, bias=False)
        self.dt_proj = nn.Linear(rank, d_model, bias=True)
        self.xA_proj = nn.Linear(d_model, d_model * d_state, bias=True)
        nn.init.normal_(self.xA_proj.weight, std=d_model**-0.5)
        nn.init.uniform_(self.xA_proj.bias, -math.pi, math.pi)
        self.B = nn.Parameter(torch.randn(d_state, dtype=torch.complex64))
        self.C = nn.Parameter(torch.randn(d_state, dtype=torch.complex64))
        self.D = nn.Parameter(torch.ones(d_model))
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)

    def _apply(self, fn: Any, recurse: bool = True) -> AUSSM:
        """Moves and casts, but B and C stay complex: ``to(torch.bfloat16)`` would leave their real parts."""

        def kept(t: Tensor) -> Tensor:
            if not t.is_complex():
                return fn(t)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Casting complex values to real")
                made = fn(t)
            return made if made.is_complex() else t.to(made.device)

        return super()._apply(kept, recurse)

    def _radius(self) -> tuple[Tensor | None, Tensor | float]:
        """rho ``[D, N]`` and the factor of B ``[D, N]``."""
        return None, 1.0

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """``x`` ``[B, T, D]`` and a state of the call before, two tensors; gives y and the last state."""
        u, z, kept, h0 = _inner(self, x, state)
        raw = self.dt_proj(self.x_proj(u.transpose(1, 2)))
        raw = raw + self.dt_proj.bias if self.double_bias else raw
        # As it lies, so that the gradient lies alike: of others PyTorch's softplus says the wrong strides to a compiled graph.
        delta = F.softplus(raw.transpose(1, 2).contiguous())
        u, z = (t.contiguous() if x.is_cuda else t for t in (u, z))
        d, n = self.d_model, self.d_state
        rho, gain = self._radius()
        weight = torch.polar(F.softplus(self.B.real), self.B.imag) * gain
        if rho is not None:
            rho = rho[None, :, :, None].expand(x.shape[0], d, n, x.shape[1])
            rho = rho.contiguous() if x.is_cuda else rho
        y, last = adaptive_scan(
            u, delta, weight, torch.polar(F.softplus(self.C.real), self.C.imag), W=self.xA_proj.weight.view(d, n, d),
            bias=self.xA_proj.bias.view(d, n), rho=rho, D=self.D, z=z, silu=True, h0=h0,
        )  # fmt: skip
        return self.out_proj(y.transpose(1, 2).to(x.dtype)), (kept, last)


class PolarSSM(AUSSM):
    """:class:`AUSSM` whose states decay by a learned radius each, with inputs scaled to keep them at unit scale, as LRU's.

    Args:
        d_model, d_state, d_conv, dt_rank, bias: as for AUSSM.
        least, most: of the radii at the start.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        dt_rank: int | str = "auto",
        bias: bool = False,
        least: float = 0.9,
        most: float = 0.999,
    ) -> None:
        super().__init__(d_model, d_state, d_conv, dt_rank, bias)
        _from_to("PolarSSM", "least", least, "most", most, 1.0)
        rate = _ring(d_model * d_state, least, most)
        # The inverse of softplus.
        self.radius = nn.Parameter((rate + (-torch.expm1(-rate)).log()).view(d_model, d_state))

    def _radius(self) -> tuple[Tensor | None, Tensor | float]:
        rate = F.softplus(self.radius.float())
        return -rate, (-torch.expm1(-2.0 * rate)).sqrt()
