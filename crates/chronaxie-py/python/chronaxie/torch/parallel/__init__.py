"""Recurrences over sequences that the ranks of a ``torch.distributed`` group hold a piece of each, in the order of the ranks.

Every rank calls with its own piece (its length may differ from the others', and be 0), and gets its piece of the output; all
must call, and all must call backward. The loss is meant to be the sum of the ranks' losses: gradients of what a rank gave are
those of that sum, so those of parameters that all ranks have, such as A, are to be added up over the ranks. Initial states
are those of the first rank; last states are those behind the last piece, and every rank gets them (of ``reverse``, the other
way round). Results are those of one rank with the whole sequence, up to the rounding of splits, and the same bits every run.

There are two designs. ``summary``: each rank passes over its piece once for its summary, all gather the summaries and fold those
ahead of them, and pass over their piece from the true state; ``wavefront``: the channels go through the ranks in parts, each
as soon as its state comes. :func:`choose` is the rule between them.

Communication is ``all_gather_into_tensor``, ``broadcast``, ``isend`` and ``irecv``, of Gloo on the CPU and of NCCL on GPUs, where
neighbours get a communicator of their own at the first wavefront (not where the group was bound to its device when it was made). In compiled
functions these are left to eager mode.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch
from torch import Tensor

from ..._errors import ChronaxieError, DtypeError
from .. import _mlstm, _scan
from .._framework import short
from .._passes import device_of, differentiable, transforms
from ._designs import Choice, choose, run
from ._pieces import Linear, Mlstm, Piece, Selective
from ._ranks import Ranks

__all__ = ["Choice", "choose", "linear_scan", "mlstm", "selective_scan"]


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _eager(function: _Function) -> _Function:
    """Left out of compiled graphs, which would hold this rank's sizes."""
    return torch.compiler.disable(function)  # type: ignore[no-any-return, no-untyped-call]


def _agreed(kind: Any, ranks: Ranks, prepared: Any, last: bool, design: str, parts: int | None) -> Any:
    """The piece, its tensors and the design, and what all ranks must have alike."""
    entry, sizes, options, tensors = prepared
    if transforms():
        raise ChronaxieError(f"{ranks.name}: torch.func and torch.vmap do not reach other ranks; backward() does")
    piece: Piece = kind(entry, sizes, options, device_of(entry, tensors[0]))
    piece.check(tensors)
    device = tensors[0].device.type
    sizes = {k: v for k, v in sizes.items() if k != "T"}
    channels = sizes[piece.channels]
    choice = choose(
        entry, batch=sizes["B"], channels=channels, ranks=ranks.count, device=device, design=design, parts=parts
    )
    facts = {"entry": entry, **sizes, **options, "device": device, "design": design, "parts": parts}
    facts |= {"last states": last, "whether gradients are needed": differentiable(tensors)}
    return (piece, tensors, choice), facts


@_eager
def linear_scan(
    a: Tensor,
    x: Tensor,
    h0: Tensor | None = None,
    reverse: bool = False,
    reset: Tensor | None = None,
    *,
    group: Any = None,
    design: str = "auto",
    parts: int | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`chronaxie.torch.linear_scan` over ranks.

    Args:
        a, x: this rank's piece ``[B, D, T]``.
        h0: initial states ``[B, D]`` of the whole sequence, of which the first rank's count (with reverse the last rank's).
        reverse: time goes from the last rank to the first.
        reset: ``[B, T]`` of the piece.
        group: of ``torch.distributed``; all ranks by default.
        design: ``summary``, ``wavefront`` or ``auto``.
        parts: of the wavefront.

    Returns:
        ``(h, h_last)``: this rank's ``[B, D, T]``, and the last states of the whole sequence.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values, or with what ranks disagree on.
    """
    ranks = Ranks("parallel.linear_scan", group, reverse)
    if ranks.count == 1:
        return _scan.linear_scan(a, x, h0, reverse, reset)

    def prepare() -> Any:
        start = h0
        if start is None:
            wide = torch.complex64 if a.is_complex() or x.is_complex() else torch.float32
            start = torch.zeros(a.shape[:2], dtype=wide, device=a.device)
        return _agreed(Linear, ranks, _scan.linear_call(a, x, start, reverse, reset), True, design, parts)

    piece, tensors, choice = ranks.agree(prepare)
    return run(piece, ranks, choice, True, tensors)


@_eager
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
    discretisation: str = "exp",
    group: Any = None,
    design: str = "auto",
    parts: int | None = None,
) -> Any:
    """:func:`chronaxie.torch.selective_scan` over ranks.

    Args:
        u, delta, z, B, C, reset: this rank's piece, where they have time.
        A, D, delta_bias, delta_softplus, discretisation: as there, the same on all ranks.
        h0: initial states ``[B, D, N]`` of the whole sequence, of which the first rank's count.
        return_last_state: whether the last states of the whole sequence come too.
        group, design, parts: as for :func:`linear_scan`.

    Returns:
        out ``[B, D, T]``, this rank's, or ``(out, last_state)``.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values, or with what ranks disagree on.
    """
    ranks = Ranks("parallel.selective_scan", group)
    if ranks.count == 1:
        return _scan.selective_scan(
            u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state, h0=h0, reset=reset, discretisation=discretisation
        )

    def prepare() -> Any:
        start = h0
        if start is None:
            wide = torch.complex64 if A.is_complex() else torch.float32
            start = torch.zeros((u.shape[0], *A.shape), dtype=wide, device=u.device)
        prepared = _scan.selective_call(
            u, delta, A, B, C, D, z, delta_bias, delta_softplus, start, reset, None, discretisation
        )
        return _agreed(Selective, ranks, prepared, return_last_state, design, parts)

    piece, tensors, choice = ranks.agree(prepare)
    made = run(piece, ranks, choice, return_last_state, tensors)
    return made if return_last_state else made[0]


@_eager
def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c_initial: Tensor | None = None,
    n_initial: Tensor | None = None,
    m_initial: Tensor | None = None,
    return_last_states: bool = False,
    eps: float = 0.0,
    chunk_size: int | None = None,
    *,
    gate: str = "exp",
    normalize: bool | None = None,
    normalizer_grad: bool = True,
    autocast_kernel_dtype: torch.dtype | str | None = None,
    group: Any = None,
    design: str = "auto",
    parts: int | None = None,
) -> Any:
    """:func:`chronaxie.torch.mlstm` over ranks.

    Args:
        q, k, v, i, f: this rank's piece.
        c_initial, n_initial, m_initial: the state ahead of the whole sequence, of which the first rank's counts.
        return_last_states: whether the states behind the whole sequence come too.
        eps, chunk_size, gate, normalize, normalizer_grad, autocast_kernel_dtype: as there, the same on all ranks.
        group, design, parts: as for :func:`linear_scan`.

    Returns:
        h ``[B, NH, T, V]``, this rank's, or ``(h, (c, n, m))``.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values, or with what ranks disagree on.
    """
    ranks = Ranks("parallel.mlstm", group)
    if ranks.count == 1:
        return _mlstm.mlstm(
            *(q, k, v, i, f, c_initial, n_initial, m_initial, return_last_states, eps, chunk_size),
            gate=gate,
            normalize=normalize,
            normalizer_grad=normalizer_grad,
            autocast_kernel_dtype=autocast_kernel_dtype,
        )

    def prepare() -> Any:
        prepared = _mlstm_call(
            *(q, k, v, i, f, (c_initial, n_initial, m_initial), eps, chunk_size, gate, normalize, normalizer_grad),
            autocast_kernel_dtype,
        )
        return _agreed(Mlstm, ranks, prepared, return_last_states, design, parts)

    piece, tensors, choice = ranks.agree(prepare)
    h, *last = run(piece, ranks, choice, return_last_states, tensors)
    h = h.to(v.dtype)
    if not return_last_states:
        return h
    found = dict(zip(piece.lasts, last))
    m = found.get("m_last")
    return h, (found["c_last"], found.get("n_last"), None if m is None else m[..., None])


def _mlstm_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    initial: Any,
    eps: float,
    chunk_size: int | None,
    gate: str,
    normalize: bool | None,
    normalizer_grad: bool,
    autocast: Any,
) -> _scan.Prepared:
    entry = _mlstm._entry(gate)
    normalize = (gate == "exp") if normalize is None else bool(normalize)
    gates, states, there = _mlstm.checked(entry, q, k, v, i, f, initial, gate, normalize, q.shape[0])
    if autocast is not None:
        to = _mlstm._dtype(entry, "autocast_kernel_dtype", autocast)
        q, k, v = q.to(to), k.to(to), v.to(to)
    if q.dtype not in _mlstm._NAMES:
        raise DtypeError(f"{entry}: q, k and v of {short(q.dtype)} are not offered over ranks; float32, float16 and bfloat16 are")
    (batch, heads, _, dqk), dv = q.shape, v.shape[3]
    shapes = ((batch, heads, dqk, dv), (batch, heads, dqk), (batch, heads))
    # Without a state m is 0, as for one rank.
    given = zip(states, shapes, there)
    tensors = [q, k, v, *gates, *(torch.zeros(s, device=q.device) if t is None else t for t, s, on in given if on)]
    options: dict[str, Any] = {
        "dtype": _mlstm._NAMES[q.dtype],
        "normalize": _mlstm._flag(normalize),
        "normalizer_grad": _mlstm._flag(normalizer_grad),
        "eps": repr(float(eps)),
        "initial": True,
        "last": True,
        "chunk": None if chunk_size is None else int(chunk_size),
    }
    # States go back through every rank, whatever else is asked for here.
    options |= {"wants": "inputs+gates+initial"} if differentiable(tensors) else {"backward": "false"}
    return entry, _mlstm.sizes_of(q, v), options, tensors
