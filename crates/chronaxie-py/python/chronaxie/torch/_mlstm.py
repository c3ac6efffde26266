"""The mLSTM on tensors of PyTorch: over sequences, one token at a time, and as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .._errors import ConfigError, DataError, DtypeError, ShapeError
from ._checks import positive, problem, sizes
from ._framework import short
from ._functional import native
from ._passes import call, device_of, differentiable, planned, refuse_cuts, refuse_double, spell, takes_steps

_ENTRIES = {"exp": "mlstm_exp", "sig": "mlstm_sig"}
_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# From where on a forget gate leaves nothing, and the least gauge: layers/mlstm/spec.rs.
_LOG_FORGET_LEAST, _GAUGE_LEAST = -192.0, -80.0
States = tuple[Tensor, "Tensor | None", "Tensor | None"]


def _entry(gate: str) -> str:
    if gate not in _ENTRIES:
        raise ConfigError(f"mlstm: gate `{gate}` is not one of exp, sig")
    return _ENTRIES[gate]


def _dtype(entry: str, name: str, value: Any) -> torch.dtype:
    found = _TYPES.get(value, value) if isinstance(value, str) else value
    if found not in _NAMES:
        raise DtypeError(f"{entry}: {name} = {value} is not one of {', '.join(_TYPES)}")
    return found  # type: ignore[no-any-return]


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _eager_sequence(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: Any, gate: str, normalize: bool, through: bool, eps: float
) -> Any:
    """All pairs of one sequence by PyTorch's operations, and the last state: quadratic in T."""
    steps, scale = q.shape[2], q.shape[3] ** -0.5
    c, n, m = state
    # A gate of -inf leaves nothing of the past; a difference of sums of it would be no number. Nor would a gauge of nothing.
    b = F.logsigmoid(f).clamp(min=_LOG_FORGET_LEAST).cumsum(-1)
    li = i if gate == "exp" else F.logsigmoid(i)
    if steps == 0:
        return v.new_zeros(v.shape), state
    pairs = b[..., :, None] - b[..., None, :] + li[..., None, :]
    above = torch.ones(steps, steps, dtype=torch.bool, device=q.device).triu(1)
    pairs = pairs.masked_fill(above, -torch.inf)
    before = torch.zeros_like(b[..., :1]) if m is None else m[..., None]
    if gate == "exp":
        gauge = torch.maximum(pairs.amax(-1), b + before).clamp(min=_GAUGE_LEAST).detach()
        # The last state alone knows its gauge.
        last = torch.maximum(pairs[..., -1, :].amax(-1), b[..., -1] + before[..., 0]).clamp(min=_GAUGE_LEAST)
    else:
        gauge, last = torch.zeros_like(b), torch.zeros_like(b[..., 0])
    weights = torch.exp(pairs - gauge[..., None])
    p = scale * (q @ k.mT) * weights
    into = torch.exp(b[..., -1:] - b + li - last[..., None])
    num, total = p @ v, p.sum(-1)
    ck = (into[..., None] * k).mT @ v
    nk = (into[..., None] * k).sum(-2)
    if c is not None:
        past = torch.exp(b + before - gauge)
        num = num + past[..., None] * scale * (q @ c)
        ck = ck + torch.exp(b[..., -1] + before[..., 0] - last)[..., None, None] * c
    if n is not None:
        past = torch.exp(b + before - gauge)
        total = total + past * scale * (q @ n[..., None])[..., 0]
        nk = nk + torch.exp(b[..., -1] + before[..., 0] - last)[..., None] * n
    if normalize:
        over = torch.maximum(total.abs(), torch.exp(-gauge)) + eps
        num = num / (over if through else over.detach())[..., None]
    return num, (ck, nk if normalize else None, last if gate == "exp" else None)


def _eager(tensors: Any, cuts: Tensor | None, gate: str, normalize: bool, through: bool, eps: float) -> Any:
    """h and the last states by PyTorch's operations, for float64 and for devices without kernels."""
    q, k, v, i, f, c, n, m = tensors
    if cuts is None:
        h, last = _eager_sequence(q, k, v, i, f, (c, n, m), gate, normalize, through, eps)
        parts, lasts = [h], [last]
    else:
        ends, parts, lasts = cuts.tolist(), [], []
        for nth, (start, end) in enumerate(zip(ends, ends[1:])):
            state = tuple(None if s is None else s[nth : nth + 1] for s in (c, n, m))
            given = (t[:, :, start:end] for t in (q, k, v, i, f))
            h, last = _eager_sequence(*given, state, gate, normalize, through, eps)
            parts.append(h)
            lasts.append(last)
    heads, dqk, dv = q.shape[1], q.shape[3], v.shape[3]
    shapes = ((heads, dqk, dv), (heads, dqk), (heads,))
    there = (True, normalize, gate == "exp")
    zero = [q.new_zeros((parts[0].shape[0] if cuts is None else 1, *s)) for s in shapes]
    states = [
        torch.cat([z if s[at] is None else s[at] for s in lasts]) if on and lasts else None
        for at, (on, z) in enumerate(zip(there, zero))
    ]
    return torch.cat(parts, 2), states


def sizes_of(q: Tensor, v: Tensor) -> dict[str, int]:
    """The sizes as a case spells them."""
    batch, heads, steps, dqk = q.shape
    return {"B": batch, "NH": heads, "T": steps, "K": dqk, "V": v.shape[3]}


def checked(
    entry: str, q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, initial: Any, gate: str, normalize: bool, count: int
) -> tuple[tuple[Tensor, Tensor], list[Tensor | None], tuple[bool, bool, bool]]:
    """The gates and the ``count`` initial states in the type of sums, and which of c, n and m there are.

    Raises:
        ShapeError, DtypeError, ConfigError: a sentence with what does not fit.
    """
    for name, t, axes in (("q", q, "K"), ("k", k, "K"), ("v", v, "V")):
        if t.dim() != 4:
            raise ShapeError(f"{entry}: {name}.shape = {tuple(t.shape)} does not match [B, NH, T, {axes}]")
        if t.dtype is not q.dtype:
            raise DtypeError(f"{entry}: {name} holds {short(t.dtype)} and q {short(q.dtype)}; they must hold the same")
    batch, heads, steps, dqk = q.shape
    dv = v.shape[3]
    wanted = {"k": (k, q.shape), "v": (v, (batch, heads, steps, dv)), "i": (i, q.shape[:3]), "f": (f, q.shape[:3])}
    for name, (t, shape) in wanted.items():
        if tuple(t.shape) != tuple(shape):
            raise ShapeError(f"{entry}: {name}.shape = {tuple(t.shape)} does not match q's: {tuple(shape)} is needed")
    if gate == "exp" and not normalize:
        raise ConfigError(f"{entry}: normalize = False is not offered: the exponential gate has no bound without it")
    there = {"c_initial": True, "n_initial": normalize, "m_initial": gate == "exp"}
    given = dict(zip(there, initial))
    shapes = {"c_initial": (count, heads, dqk, dv), "n_initial": (count, heads, dqk), "m_initial": (count, heads)}
    states: list[Tensor | None] = []
    for name, t in given.items():
        if t is None and there[name] and any(s is not None for s in initial):
            raise ConfigError(f"{entry}: an initial state is {', '.join(n for n, on in there.items() if on)}; {name} is not given")
        if t is not None and not there[name]:
            raise ConfigError(f"{entry}: there is no {name} with gate = {gate} and normalize = {normalize}")
        if t is not None and name == "m_initial" and t.dim() == 3 and t.shape[2] == 1:
            t = t[..., 0]
        if t is not None and tuple(t.shape) != shapes[name]:
            raise ShapeError(f"{entry}: {name}.shape = {tuple(t.shape)} does not match {shapes[name]}")
        states.append(t)
    if q.dtype is not torch.float64:
        refuse_double(entry, i=i, f=f, **dict(zip(there, states)))
    exact = torch.float64 if q.dtype is torch.float64 else torch.float32
    states = [None if s is None else s.to(exact).contiguous() for s in states]
    return (i.to(exact), f.to(exact)), states, (True, normalize, gate == "exp")


def _refuse_gates(entry: str, **gates: Tensor) -> None:
    """Waits for the gates and refuses the first that is no number, or an input gate that is open without bound."""
    for name, t in gates.items():
        bad = t.isnan() | (t == torch.inf) if name == "i" else t.isnan()
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            raise DataError(f"{entry}: {name}[{', '.join(map(str, at))}] = {t[at].item()} is not a gate; {int(bad.sum())} of {t.numel()} are not")


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
    cu_seqlens: Tensor | None = None,
    autocast_kernel_dtype: torch.dtype | str | None = None,
    check_gates: bool = False,
) -> Tensor | tuple[Tensor, States]:
    """An mLSTM over sequences, chunk by chunk, with exact gradients.

    Axes: B batch, NH heads, T time, K and V the head sizes (multiples of 16 from 16 to 512), S states: B, or the sequences
    that ``cu_seqlens`` cuts one row of tokens into. ``(B, T, NH, K)`` is the same tensor by ``transpose(1, 2)``.

    Args:
        q, k: ``[B, NH, T, K]``, any strides, of float32, float16 or bfloat16.
        v: ``[B, NH, T, V]``, likewise.
        i, f: pre-activations of the input and forget gates ``[B, NH, T]``.
        c_initial: ``[S, NH, K, V]``; zeros by default, and the others with it.
        n_initial: ``[S, NH, K]``, where h is normalised.
        m_initial: ``[S, NH]`` or ``[S, NH, 1]``, with the exponential gate.
        return_last_states: whether ``(c, n, m)`` are returned beside h, None for those that there are not.
        eps: added to the normaliser; 0 is the definition.
        chunk_size: tokens a chunk (16 to 256 in steps of 16), where it is not left to the sizes.
        gate: ``exp`` or ``sig``, the input gate.
        normalize: whether h is divided by the normaliser: always with ``exp``, by default not with ``sig``.
        normalizer_grad: whether gradients flow through it; without it they are exact only before a norm of each head.
        cu_seqlens: ``[S + 1]`` integers from 0 to T, B = 1.
        autocast_kernel_dtype: the type that q, k and v are rounded to first; h has v's all the same.
        check_gates: whether gates that are NaN, or i of infinity, are refused; that waits for them, and a graph cannot be captured.

    Returns:
        h ``[B, NH, T, V]``, or ``(h, (c, n, m))`` with states in float32, m ``[S, NH, 1]``. Gradients flow through all.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values.
        DataError: with ``check_gates``, the first gate that is none.
    """
    entry = _entry(gate)
    normalize = (gate == "exp") if normalize is None else bool(normalize)
    positive(entry, 0.0, eps=eps)
    if cu_seqlens is not None:
        refuse_cuts(entry, cu_seqlens)
    count = q.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    gates, states, there = checked(entry, q, k, v, i, f, (c_initial, n_initial, m_initial), gate, normalize, count)
    if check_gates:
        _refuse_gates(entry, i=i, f=f)
    exact, initial = gates[0].dtype, any(s is not None for s in states)
    out = v.dtype
    if autocast_kernel_dtype is not None:
        to = _dtype(entry, "autocast_kernel_dtype", autocast_kernel_dtype)
        q, k, v = q.to(to), k.to(to), v.to(to)
    if q.dtype is torch.float64 or not (q.is_cpu or (q.is_cuda and native(q))):
        data = tuple(t.to(exact) for t in (q, k, v))
        h, last = _eager((*data, *gates, *states), cu_seqlens, gate, normalize, normalizer_grad, eps)
    else:
        if q.dtype not in _NAMES:
            raise DtypeError(f"{entry}: q, k and v of {short(q.dtype)} are not offered; float32, float16 and bfloat16 are")
        options: dict[str, Any] = {
            "dtype": _NAMES[q.dtype],
            "normalize": _flag(normalize),
            "normalizer_grad": _flag(normalizer_grad),
            "eps": repr(float(eps)),
            "initial": initial,
            "last": return_last_states,
            "chunk": None if chunk_size is None else int(chunk_size),
            "sequences": None if cu_seqlens is None else count,
        }
        wanted_of = {"inputs": (q, k, v), "gates": gates, "initial": states}
        wants = "+".join(name for name, tensors in wanted_of.items() if differentiable(tensors))
        options |= {"wants": wants} if wants else {"backward": "false"}
        cuts = None if cu_seqlens is None else cu_seqlens.to(torch.int32)
        tensors = [t for t in (q, k, v, *gates, cuts, *states) if t is not None]
        returned = 1 + (sum(there) if return_last_states else 0)
        h, *last = call(entry, spell(sizes_of(q, v), options), returned, tensors)
        made = iter(last)
        last = [next(made) if on and return_last_states else None for on in there]
    h = h.to(out)
    if not return_last_states:
        return h  # type: ignore[no-any-return]
    c, n, m = last
    return h, (c, n, None if m is None else m[..., None])


@torch.no_grad()
def mlstm_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c: Tensor,
    n: Tensor | None = None,
    m: Tensor | None = None,
    eps: float = 0.0,
    *,
    gate: str = "exp",
    normalize: bool | None = None,
    slot: Tensor | None = None,
    norm: str = "none",
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-6,
    o: Tensor | None = None,
    check_gates: bool = False,
) -> Tensor:
    """One token of each sequence; ``c``, ``n`` and ``m`` are changed in place. For inference: it has no gradient.

    Args:
        q, k: ``[B, NH, K]``, any strides, of float32, float16 or bfloat16.
        v: ``[B, NH, V]``, likewise.
        i, f: ``[B, NH]``.
        c: ``[S, NH, K, V]``, contiguous, of float32, float16 or bfloat16; S is B, or the table's length with ``slot``.
        n: ``[S, NH, K]`` in float32, where h is normalised.
        m: ``[S, NH]`` or ``[S, NH, 1]`` in float32, with the exponential gate.
        eps, gate, normalize: as :func:`mlstm` has them.
        slot: ``[B]`` integers, the state of each sequence; a negative one has none, and its h is 0.
        norm: ``none``, ``rms`` or ``layer``, over each head of h, with ``norm_weight`` ``[NH, V]``.
        o: ``[B, NH, V]``, of which h is multiplied by the sigmoid.
        check_gates: as :func:`mlstm` has it.

    Returns:
        h ``[B, NH, V]``.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values.
    """
    _entry(gate)
    entry = "mlstm_step"
    normalize = (gate == "exp") if normalize is None else bool(normalize)
    positive(entry, 0.0, eps=eps, norm_eps=norm_eps)
    if q.dim() != 3 or v.dim() != 3:
        raise ShapeError(f"{entry}: q.shape = {tuple(q.shape)}, v.shape = {tuple(v.shape)}: [B, NH, K] and [B, NH, V] are needed")
    if q.dtype not in _NAMES or c.dtype not in _NAMES:
        raise DtypeError(f"{entry}: q of {short(q.dtype)} and c of {short(c.dtype)} are not offered; float32, float16 and bfloat16 are")
    refuse_double(entry, k=k, v=v, i=i, f=f, n=n, m=m, o=o, norm_weight=norm_weight)
    (batch, heads, dqk), dv = q.shape, v.shape[2]
    if check_gates:
        _refuse_gates(entry, i=i, f=f)
    options = {
        **{"dtype": _NAMES[q.dtype], "state": _NAMES[c.dtype], "gate": gate, "normalize": _flag(normalize)},
        **{"eps": repr(float(eps)), "norm": norm, "norm_eps": repr(float(norm_eps)), "output_gate": o is not None},
        "slots": None if slot is None else int(c.shape[0]),
    }
    h = torch.empty((batch, heads, dv), dtype=q.dtype, device=q.device)
    if not takes_steps(entry, q):
        return h
    given: dict[str, Tensor | None] = {
        **{"q": q, "k": k, "v": v, "i": i.float(), "f": f.float(), "o": o, "h": h, "c": c, "n": n},
        "norm_weight": None if norm_weight is None else norm_weight.float(),
        "m": m[..., 0] if m is not None and m.dim() == 3 and m.shape[2] == 1 else m,
        "slot": None if slot is None else slot.to(torch.int32),
    }
    plan = planned(entry, spell({"B": batch, "NH": heads, "K": dqk, "V": dv}, options), device_of(entry, q))
    plan.step(given, f" with gate = {gate} and normalize = {normalize}")
    return h


class MLSTM(torch.nn.Module):
    """The mLSTM cell as an xLSTM's backend: no parameters, and the argument names of ``mlstm_kernels``' ``mLSTMBackend``.

    ``chunkwise_kernel``, ``sequence_kernel`` and ``step_kernel`` are read for the gate alone (``siging`` in a name asks for the
    sigmoid one, ``gate`` says so directly): there is one implementation, for any length. Modes: ``train`` and
    ``train_with_padding``, which needs no padding here, and ``inference``, whose states have ``inference_state_dtype`` and
    whose single tokens go by :func:`mlstm_step`.
    """

    def __init__(
        self,
        chunkwise_kernel: str = "",
        sequence_kernel: str = "",
        step_kernel: str = "",
        mode: str = "train",
        chunk_size: int | None = None,
        return_last_states: bool = False,
        autocast_kernel_dtype: torch.dtype | str | None = None,
        eps: float = 1e-6,
        inference_state_dtype: torch.dtype | str = torch.float32,
        normalize_siging: bool = False,
        gate: str | None = None,
    ) -> None:
        super().__init__()
        named = "siging" in chunkwise_kernel + sequence_kernel + step_kernel
        self.gate = ("sig" if named else "exp") if gate is None else gate
        entry = _entry(self.gate)
        positive("MLSTM", 0.0, eps=eps)
        if chunk_size is not None:
            sizes("MLSTM", chunk_size=chunk_size)
            problem(entry, f"B1_NH1_T1_K16_V16,chunk={int(chunk_size)}")
        self.mode, self.chunk_size, self.eps = self._mode(mode), chunk_size, eps
        self.return_last_states = return_last_states
        self.autocast_kernel_dtype = None
        if autocast_kernel_dtype is not None:
            self.autocast_kernel_dtype = _dtype(entry, "autocast_kernel_dtype", autocast_kernel_dtype)
        self.inference_state_dtype = _dtype(entry, "inference_state_dtype", inference_state_dtype)
        self.normalize = self.gate == "exp" or normalize_siging

    @staticmethod
    def _mode(mode: str) -> str:
        if mode not in ("train", "train_with_padding", "inference"):
            raise ConfigError(f"MLSTM: mode `{mode}` is not one of train, train_with_padding, inference")
        return mode

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool | None = None,
        mode: str | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, States]:
        """As :func:`mlstm`; what is not given is as the module was made."""
        mode = self.mode if mode is None else self._mode(mode)
        last = self.return_last_states if return_last_states is None else return_last_states
        dtype = self.autocast_kernel_dtype
        if mode == "inference" and q.shape[2] == 1 and c_initial is not None and cu_seqlens is None:
            # The caller's states stay as they were.
            c = c_initial.to(self.inference_state_dtype, copy=True).contiguous()
            n, m = (None if s is None else s.to(torch.float32, copy=True).contiguous() for s in (n_initial, m_initial))
            tokens = [t[:, :, 0] if dtype is None else t[:, :, 0].to(dtype) for t in (q, k, v)]
            h = mlstm_step(*tokens, i[..., 0], f[..., 0], c, n, m, self.eps, gate=self.gate, normalize=self.normalize)
            h = h[:, :, None].to(v.dtype)
            return (h, (c, n, m)) if last else h
        made = mlstm(
            *(q, k, v, i, f, c_initial, n_initial, m_initial, last, self.eps, self.chunk_size),
            gate=self.gate,
            normalize=self.normalize,
            cu_seqlens=cu_seqlens,
            autocast_kernel_dtype=dtype,
        )
        if mode == "inference" and last:
            h, (c, n, m) = made
            return h, (c.to(self.inference_state_dtype), n, m)
        return made

    def extra_repr(self) -> str:
        return f"gate={self.gate}, mode={self.mode}, normalize={self.normalize}, eps={self.eps}"
