"""Scans of diagonal state-space models on tensors of PyTorch: the functional forms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .._errors import ConfigError, DtypeError, ShapeError
from ._framework import _NAMES, short
from ._functional import single
from ._passes import call, device_of, no_tangents, planned, refuse_cuts, refuse_double, spell, takes_steps, transforms, without_memory

# An entry, its sizes, its options, and its tensors in the order of the signature.
Prepared = tuple[str, dict[str, int], dict[str, Any], list[Tensor]]


def _packing(entry: str, batch: int, steps: int, reset: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Any, list[Tensor]]:
    if reset is not None and cu_seqlens is not None:
        raise ConfigError(f"{entry}: reset and cu_seqlens are not given together")
    if reset is not None:
        if tuple(reset.shape) != (batch, steps):
            raise ShapeError(f"{entry}: reset.shape = {tuple(reset.shape)} does not match [B, T] = {(batch, steps)}")
        # 0.5 and 256 are not 0 either.
        return "reset", [reset if reset.dtype is torch.uint8 else (reset != 0).to(torch.uint8)]
    if cu_seqlens is not None:
        refuse_cuts(entry, cu_seqlens)
        if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 2:
            raise ShapeError(f"{entry}: cu_seqlens.shape = {tuple(cu_seqlens.shape)} does not match [S + 1]")
        if cu_seqlens.is_cpu and not (is_compiling() or transforms() or without_memory(cu_seqlens)):
            _increasing(entry, cu_seqlens, steps)
        return cu_seqlens.numel() - 1, [cu_seqlens.to(torch.int32)]
    return False, []


def _increasing(entry: str, cu_seqlens: Tensor, steps: int) -> None:
    values = cu_seqlens.tolist()
    if values[0] != 0 or values[-1] != steps or any(b < a for a, b in zip(values, values[1:])):
        raise ConfigError(f"{entry}: cu_seqlens = {values} must go from 0 to T = {steps} and never decrease")


def _sequence(entry: str, name: str, t: Tensor, dims: int, axes: str) -> None:
    if t.dim() != dims:
        raise ShapeError(f"{entry}: {name}.shape = {tuple(t.shape)} does not match {axes}")


def linear_scan(
    a: Tensor,
    x: Tensor,
    h0: Tensor | None = None,
    reverse: bool = False,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``h_t = a_t h_{t-1} + x_t`` along the last axis, for every channel of every sequence.

    Args:
        a: gates ``[B, D, T]``, float32, bfloat16, float16 or complex64, any strides.
        x: inputs, as a.
        h0: initial states ``[B, D]`` (``[S, D]`` with cu_seqlens), float32 or complex64; 0 by default.
        reverse: ``h_t = a_t h_{t+1} + x_t`` instead.
        reset: ``[B, T]``; where it is not 0, everything before that step is forgotten.
        cu_seqlens: ``[S + 1]`` ends of S sequences one after the other along T; B is then 1.

    Returns:
        ``(h, h_last)``: ``[B, D, T]`` and the last states, as h0. Arithmetic is float32; gradients flow through both.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values.
    """
    name, sizes, options, tensors = linear_call(a, x, h0, reverse, reset, cu_seqlens)
    return call(name, spell(sizes, options), 2, tensors)  # type: ignore[return-value]


def linear_call(
    a: Tensor, x: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None, cu_seqlens: Tensor | None = None
) -> Prepared:
    """What :func:`linear_scan` calls."""
    name = "linear_scan_complex" if a.is_complex() else "linear_scan"
    _sequence(name, "a", a, 3, "[B, D, T]")
    refuse_double(name, a=a, x=x, h0=h0)
    b, d, t = a.shape
    options: dict[str, Any] = {}
    if not a.is_complex():
        options["dtype"] = _stored(name, "a", a)
        if x.is_complex():
            a, name = a.to(torch.complex64), "linear_scan_complex"
            options = {}
    elif not x.is_complex():
        x = x.to(torch.complex64)
    packing, packed = _packing(name, b, t, reset, cu_seqlens)
    options |= {"h0": h0 is not None, "reverse": bool(reverse), "packing": packing}
    if h0 is not None:
        h0 = h0.to(torch.complex64 if a.is_complex() else torch.float32)
    return name, {"B": b, "D": d, "T": t}, options, [a, x, *([] if h0 is None else [h0]), *packed]


def _stored(entry: str, name: str, t: Tensor) -> str:
    if t.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise DtypeError(f"{entry}: {name} holds {short(t.dtype)}; it must be float32, bfloat16 or float16")
    return _NAMES[t.dtype]


def _weight(entry: str, name: str, w: Tensor, complex_: bool, dtype: torch.dtype, steps: int) -> tuple[str, int, Tensor]:
    """How a weight comes, its groups, and the weight in the form the entry takes."""
    wide = torch.complex64 if complex_ else dtype
    if w.dim() == 2:
        return "constant", 1, w.to(torch.complex64 if complex_ else torch.float32)
    if w.dim() not in (3, 4):
        axes = "[D, N], [B, N, T] or [B, G, N, T]"
        raise ShapeError(f"{entry}: {name}.shape = {tuple(w.shape)} does not match {axes}")
    if complex_ and not w.is_complex() and w.shape[-1] == 2 * steps:
        # Mamba's: real and imaginary parts of a step lie next to each other.
        w = torch.view_as_complex(w.float().reshape(*w.shape[:-1], steps, 2))
    w = w.unsqueeze(1) if w.dim() == 3 else w
    return "varying", int(w.shape[1]), w.to(wide)


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    h0: Tensor | None = None,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    discretisation: str = "exp",
) -> Any:
    """Mamba's selective scan, in the place of ``mamba_ssm``'s ``selective_scan_fn``, with initial states, gradients of the
    last state, packed sequences and other discretisations.

    ``h_t = a(delta_t, A) h_{t-1} + e(delta_t, A) B_t u_t``, ``y_t = Re(C_t h_t) + D u_t`` (twice the real part where A is
    complex), ``out = y silu(z)``; a is ``e^{delta A}``, and e is delta (``exp``) or ``(e^{delta A} - 1) / A`` (``zoh``);
    ``bilinear`` is Tustin's rule.

    Args:
        u, delta, z: ``[B, D, T]``, float32, bfloat16 or float16, any strides.
        A: ``[D, N]``, float32 or complex64; N is 1 to 256.
        B, C: constant ``[D, N]``, or varying ``[B, N, T]`` or ``[B, G, N, T]`` with G groups of channels; complex where A is
            (or, as Mamba has it, ``[B, G, N, 2 T]`` of real and imaginary parts).
        D, delta_bias: ``[D]``.
        delta_softplus: whether delta goes through softplus, behind its bias.
        return_last_state: whether the last states come too.
        h0: initial states ``[B, D, N]`` (``[S, D, N]`` with cu_seqlens).
        reset, cu_seqlens: as for :func:`linear_scan`.
        discretisation: ``exp``, ``zoh`` or ``bilinear``.

    Returns:
        out ``[B, D, T]`` of u's type, or ``(out, last_state)`` with ``[B, D, N]``, float32 or complex64.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values.
    """
    name, sizes, options, tensors = selective_call(
        u, delta, A, B, C, D, z, delta_bias, delta_softplus, h0, reset, cu_seqlens, discretisation
    )
    out, last = call(name, spell(sizes, options), 2, tensors)
    return (out, last) if return_last_state else out


def selective_call(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    h0: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    discretisation: str,
) -> Prepared:
    """What :func:`selective_scan` calls."""
    name = "selective_scan"
    _sequence(name, "u", u, 3, "[B, D, T]")
    _sequence(name, "A", A, 2, "[D, N]")
    refuse_double(name, u=u, delta=delta, A=A, B=B, C=C, D=D, z=z, delta_bias=delta_bias, h0=h0)
    b, d, t = u.shape
    complex_ = A.is_complex()
    stored = _stored(name, "u", u)
    (b_way, b_groups, B), (c_way, c_groups, C) = (
        _weight(name, which, w, complex_, u.dtype, t) for which, w in (("B", B), ("C", C))
    )
    if b_way == c_way == "varying" and b_groups != c_groups:
        raise ShapeError(f"{name}: B has G = {b_groups} groups and C has {c_groups}; they must be equal")
    packing, packed = _packing(name, b, t, reset, cu_seqlens)
    options = {
        "dtype": stored,
        "rule": discretisation,
        "G": b_groups if b_way == "varying" else c_groups,
        "b": b_way,
        "c": c_way,
        "skip": D is not None,
        "gate": z is not None,
        "bias": delta_bias is not None,
        "softplus": bool(delta_softplus),
        "complex": complex_,
        "h0": h0 is not None,
        "packing": packing,
    }
    state = torch.complex64 if complex_ else torch.float32
    given = [u, delta.to(u.dtype), A.to(state), B, C]
    given += [] if D is None else [D.float()]
    given += [] if z is None else [z.to(u.dtype)]
    given += [] if delta_bias is None else [delta_bias.float()]
    given += [] if h0 is None else [h0.to(state)]
    return name, {"B": b, "D": d, "T": t, "N": A.shape[1]}, options, [*given, *packed]


@torch.no_grad()
def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
    *,
    discretisation: str = "exp",
) -> Tensor:
    """One step of :func:`selective_scan`; ``state`` is changed in place, and nothing is differentiated.

    Args:
        state: ``[S, D, N]``, contiguous, float32 or complex64; S is B without state_batch_indices.
        x, dt, z: ``[B, D]``.
        A: ``[D, N]``.
        B, C: ``[B, N]`` or ``[B, G, N]`` (or, of one sequence of weights for all, ``[D, N]`` where that is not ``[B, N]``).
        D, dt_bias: ``[D]``.
        state_batch_indices: int32 ``[B]``: whose state a row has; a negative one skips the row, whose output is 0.

    Returns:
        out ``[B, D]`` of x's type.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values.
    """
    name = "selective_state_update"
    _sequence(name, "x", x, 2, "[B, D]")
    _sequence(name, "A", A, 2, "[D, N]")
    refuse_double(name, state=state, x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias)
    b, d = x.shape
    complex_ = A.is_complex()
    wide = torch.complex64 if complex_ else torch.float32
    if state.dtype is not wide or not state.is_contiguous():
        raise DtypeError(f"{name}: state must be contiguous and hold {short(wide)}, not {short(state.dtype)}")
    ways, weights, groups = [], [], 1
    for which, w in (("B", B), ("C", C)):
        if w.dim() == 2 and tuple(w.shape) == (d, A.shape[1]) and d != b:
            ways.append("constant")
            weights.append(w.to(wide))
            continue
        w = w.unsqueeze(1) if w.dim() == 2 else w
        _sequence(name, which, w, 3, "[B, N] or [B, G, N]")
        groups = int(w.shape[1])
        ways.append("varying")
        weights.append(w.to(torch.complex64 if complex_ else x.dtype))
    options = {
        "dtype": _stored(name, "x", x),
        "rule": discretisation,
        "G": groups,
        "b": ways[0],
        "c": ways[1],
        "skip": D is not None,
        "gate": z is not None,
        "bias": dt_bias is not None,
        "softplus": bool(dt_softplus),
        "complex": complex_,
    }
    if state_batch_indices is not None:
        options["slots"] = int(state.shape[0])
    given = [x, dt.to(x.dtype), A.to(wide), *weights]
    given += [] if D is None else [D.float()]
    given += [] if z is None else [z.to(x.dtype)]
    given += [] if dt_bias is None else [dt_bias.float()]
    given += [] if state_batch_indices is None else [state_batch_indices.to(torch.int32)]
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not takes_steps(name, x):
        return out
    p = planned(name, spell({"B": b, "D": d, "N": A.shape[1]}, options), device_of(name, x))
    takes, (of_state, of_out) = p.signatures["step"]
    p.step({**{t[0]: v for t, v in zip(takes, given)}, of_state[0]: state, of_out[0]: out}, "")
    return out


def adaptive_scan(
    u: Tensor,
    delta: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    theta: Tensor | None = None,
    W: Tensor | None = None,
    bias: Tensor | None = None,
    rho: Tensor | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    silu: bool = False,
    h0: Tensor | None = None,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """States that turn by given angles and may decay: ``h_t = e^{rho_t + i theta_t} h_{t-1} + delta_t B v_t``,
    ``y_t = Re(C h_t) + D v_t``, ``out = y silu(z)``, where v is u, or silu(u).

    The sum of the angles is kept in whole parts of 2^-32 of a turn, so without rho a state keeps its length for any
    number of steps.

    Args:
        u, delta, z: ``[B, D, T]``, float32, bfloat16 or float16, any strides.
        B, C: complex64 ``[D, N]``, or ``[N]`` that all channels share.
        theta: angles ``[B, D, N, T]`` in radians, float32; or
        W, bias: ``[D, N, D]`` and ``[D, N]``, from which ``theta = W u + bias``, a product that stays in float32. On a
            GPU, of u in float32 and without rho, the angles are made for some steps at a time, and again backward: they take
            bounded memory.
        rho: the logarithm of the radius, at most 0, as theta; 0 by default.
        D: ``[D]``.
        silu: whether v is silu(u).
        h0: complex64 ``[B, D, N]`` (``[S, D, N]`` with cu_seqlens).
        reset, cu_seqlens: as for :func:`linear_scan`.

    Returns:
        ``(out, last_state)``: ``[B, D, T]`` of u's type, and complex64 ``[B, D, N]``.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values.
    """
    name = "adaptive_theta"
    _sequence(name, "u", u, 3, "[B, D, T]")
    refuse_double(name, u=u, delta=delta, B=B, C=C, theta=theta, W=W, bias=bias, rho=rho, D=D, z=z, h0=h0)
    b, d, t = u.shape
    if (theta is None) == (W is None):
        raise ConfigError(f"{name}: either theta or W is given")
    if W is not None:
        _sequence(name, "W", W, 3, "[D, N, D]")
        n = W.shape[1]
        if tuple(W.shape) != (d, n, d):
            raise ShapeError(f"{name}: W.shape = {tuple(W.shape)} does not match [D, N, D] = {(d, n, d)}")
        if u.is_cuda and rho is None and u.dtype == torch.float32:
            # Angles of some steps at a time, never all of them; on the CPU PyTorch's products are the faster ones.
            name = "adaptive_unitary"
        else:
            theta = angles(W, u, bias)
    if theta is not None:
        _sequence(name, "theta", theta, 4, "[B, D, N, T]")
        n = theta.shape[2]
    B, C = (w.expand(d, n) if w.dim() == 1 else w for w in (B, C))
    packing, packed = _packing(name, b, t, reset, cu_seqlens)
    options = {
        "dtype": _stored(name, "u", u),
        "decay": rho is not None,
        "silu": bool(silu),
        "skip": D is not None,
        "gate": z is not None,
        "h0": h0 is not None,
        "packing": packing,
    }
    if theta is not None:
        given = [theta.float(), *([] if rho is None else [rho.float()]), u]
    else:
        assert W is not None
        given = [u, W.float(), *([] if bias is None else [bias.float().reshape(d, n)])]
        options = {k: v for k, v in options.items() if k not in ("dtype", "decay")} | {"bias": "false" if bias is None else None}
    given.append(delta.to(u.dtype))
    given += [B.to(torch.complex64), C.to(torch.complex64)]
    given += [] if D is None else [D.float()]
    given += [] if z is None else [z.to(u.dtype)]
    given += [] if h0 is None else [h0.to(torch.complex64)]
    sizes = {"B": b, "D": d, "N": n, "T": t}
    return call(name, spell(sizes, options), 2, [*given, *packed])  # type: ignore[return-value]


def angles(W: Tensor, u: Tensor, bias: Tensor | None) -> Tensor:
    """``theta[b, d, n, t] = sum_r W[d, n, r] u[b, r, t] + bias[d, n]`` in float32, whatever PyTorch lets matrix products
    round to: an error of an angle adds up along time."""
    d, n, _ = W.shape
    wide = u.float()
    with single(u):
        theta = _Exact.apply(W.float().reshape(d * n, -1), wide)
    theta = theta.view(u.shape[0], d, n, u.shape[2])
    return theta if bias is None else theta + bias.float().reshape(d, n)[None, :, :, None]


class _Exact(torch.autograd.Function):
    """``W u`` for each sequence, by products of float32 that are not rounded to TensorFloat-32."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor, u: Tensor) -> Tensor:  # type: ignore[override]
        with _FullPrecision():
            return torch.matmul(w, u)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        w, u = ctx.saved_tensors
        with _FullPrecision():
            of_u = torch.matmul(w.t(), grad) if ctx.needs_input_grad[1] else None
            of_w = None
            if ctx.needs_input_grad[0]:
                rows = grad.transpose(0, 1).reshape(w.shape[0], -1)
                of_w = rows @ u.transpose(0, 1).reshape(w.shape[1], -1).t()
        return of_w, of_u

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        no_tangents("adaptive_theta")


class _FullPrecision:
    """PyTorch's matrix products of float32 keep all their bits meanwhile."""

    def __enter__(self) -> None:
        self.allowed = torch.backends.cuda.matmul.allow_tf32
        if self.allowed:
            torch.backends.cuda.matmul.allow_tf32 = False

    def __exit__(self, *_: Any) -> None:
        if self.allowed:
            torch.backends.cuda.matmul.allow_tf32 = True
