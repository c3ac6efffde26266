"""Calls of native plans on tensors: checks, memory from PyTorch's allocator, PyTorch's current stream."""

from __future__ import annotations

import threading
import warnings
from operator import attrgetter
from typing import Any, NamedTuple, Sequence

import torch

from .. import _native
from .._errors import BackendUnavailableError, ChronaxieError, DeviceError, DtypeError, ShapeError
from ._synapses import Synapses

_FLOAT = torch.float32
_data_ptr = torch.Tensor.data_ptr
_numel = torch.Tensor.numel
_is_contiguous = torch.Tensor.is_contiguous
_get_device = torch.Tensor.get_device
_dtype = attrgetter("dtype")
_shape = attrgetter("shape")
_empty_like = torch.empty_like


class Options(NamedTuple):
    """What of a layer does not change from call to call; ``text`` is how the registry spells it."""

    text: str
    outputs: int
    has_input: bool
    has_norm: bool
    has_output: bool
    store: bool
    softplus: bool
    unfolds: int
    dt: float
    epsilon: float
    input_mapping: str
    output_mapping: str

    @property
    def names(self) -> list[str]:
        """The parameters in the order of every signature."""
        names = ["w", "mu", "sigma", "erev", "sensory_w", "sensory_mu", "sensory_sigma", "sensory_erev"]
        names += ["gleak", "vleak", "cm"]
        for mapping, prefix in ((self.input_mapping, "input"), (None, "norm"), (self.output_mapping, "output")):
            if prefix == "norm":
                names += ["norm_weight", "norm_bias"] if self.has_norm else []
            else:
                count = {"affine": 2, "linear": 1, "none": 0}[mapping or "none"]
                names += [f"{prefix}_w", f"{prefix}_b"][:count]
        return names


def options(
    outputs: int,
    *,
    unfolds: int = 6,
    dt: float = 1.0,
    epsilon: float = 1e-8,
    input_mapping: str = "affine",
    norm: bool = False,
    output_mapping: str = "none",
    implicit_param_constraints: bool = True,
    precision: str = "exact",
    store: bool = False,
) -> Options:
    """Options under one spelling. Ranges are the library's business, and are checked when a plan is made."""
    text = (
        f"unfolds={int(unfolds)},dt={float(dt)!r},epsilon={float(epsilon)!r},norm={str(bool(norm)).lower()},"
        f"input={input_mapping},output={output_mapping},outputs={int(outputs)},"
        f"identity={str(not implicit_param_constraints).lower()},store={str(bool(store)).lower()},precision={precision}"
    )
    return parse(text)


def parse(text: str) -> Options:
    """The options that ``text`` spells."""
    values = dict(part.split("=", 1) for part in text.split(","))
    for key in ("input", "output"):
        if values[key] not in ("affine", "linear", "none"):
            # The library's own sentence.
            _native.problem("ltc", f"B1_T1_D1_H1,density=1,{key}={values[key]}")
    return Options(
        text,
        int(values["outputs"]),
        values["input"] != "none",
        values["norm"] == "true",
        values["output"] != "none",
        values["store"] == "true",
        values["identity"] == "false",
        int(values["unfolds"]),
        float(values["dt"]),
        float(values["epsilon"]),
        values["input"],
        values["output"],
    )


class Plan:
    """A native plan, and what of its signatures a call needs."""

    __slots__ = (
        "run", "index", "synapses", "extent", "hidden", "outputs", "names", "shapes", "sizes", "known", "base", "tail",
        "templates", "scratch", "saves_out", "data", "parameters", "zero",
    )  # fmt: skip

    def __init__(self, synapses: Synapses, opts: Options, key: Any) -> None:
        batch, steps, _, index, has_h0, has_elapsed, wants = key
        case = f"B{batch}_T{steps},{opts.text},h0={str(has_h0).lower()},elapsed={str(has_elapsed).lower()}"
        if wants is None:
            case += ",backward=false"
        else:
            names = [n for n, wanted in zip(("x", "h0", "elapsed", "parameters"), wants) if wanted]
            case += f",wants={'+'.join(names) or 'none'}"
        problem = _native.problem("ltc", case, synapses.native)
        device = "cpu" if index < 0 else f"cuda:{index}"
        native = problem.plan(device)
        inputs, outputs = problem.signature("forward")
        self.run, self.index, self.synapses = native.run, index, synapses
        self.extent, self.hidden, self.outputs = (batch, steps, synapses.inputs), synapses.hidden, opts.outputs
        parameters = [t for t in inputs if t[4] == "parameter"]
        self.names = [t[0] for t in parameters]
        self.shapes = [tuple(t[2]) for t in parameters]
        self.sizes = [_product(t[2]) for t in parameters]
        # Addresses of parameters and lists that were checked.
        self.known: list[int] = []
        self.base, self.tail = -1, [0]
        self.zero = torch.zeros((), device=device)
        # Their memory is never used: empty_like of a tensor costs half of empty of a shape.
        self.templates = [self.zero.expand(t[2]) for t in outputs]
        self.scratch = [native.scratch_bytes("forward"), 0]
        self.saves_out = wants is not None and not any(t[0] == "states" for t in outputs)
        # The gradients of data, and whether those of parameters follow. Each is an allocation of its own: views of one
        # block cost the engine three times what their allocations cost, and keep each other alive.
        self.data: list[torch.Tensor] = []
        self.parameters = wants is not None and wants[3]
        if wants is not None:
            self.scratch[1] = native.scratch_bytes("backward")
            written = problem.signature("backward")[1]
            self.data = [self.zero.expand(t[2]) for t in written if t[0] in ("grad_x", "grad_h0", "grad_elapsed")]


def _product(sizes: Sequence[int]) -> int:
    n = 1
    for size in sizes:
        n *= size
    return n


def plan(synapses: Synapses, opts: Options, key: Any) -> Plan:
    """The plan for ``(B, T, options as text, device index or -1, h0?, elapsed?, wanted gradients or None)``."""
    found = synapses.plans.get(key)
    return found if found is not None else synapses.remember(key, Plan(synapses, opts, key))


_UNAVAILABLE: dict[int, str | None] = {}


def unavailable(index: int) -> str | None:
    """Why nothing native can run on that CUDA device, or None; asked once, and warned of once."""
    if index not in _UNAVAILABLE:
        try:
            _native.require_device(f"cuda:{index}")
            _UNAVAILABLE[index] = None
        except BackendUnavailableError as error:
            _UNAVAILABLE[index] = str(error)
            warnings.warn(
                f"chronaxie runs eager PyTorch operations on cuda:{index}, which are much slower: {error}",
                RuntimeWarning,
                stacklevel=4,
            )
    return _UNAVAILABLE[index]


def _check(name: str, tensor: torch.Tensor, shape: tuple[int, ...], axes: str, index: int) -> None:
    if tuple(tensor.shape) != shape:
        raise ShapeError(f"ltc: {name}.shape = {tuple(tensor.shape)} does not match {axes} = {shape}")
    if tensor.dtype is not _FLOAT:
        raise DtypeError(f"ltc: {name} holds {_short(tensor.dtype)}, float32 is needed")
    if tensor.get_device() != index:
        raise DeviceError(f"ltc: {name} lies on {tensor.device}, x on {'cpu' if index < 0 else f'cuda:{index}'}")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_AXES = {"w": "[H, H]", "mu": "[H, H]", "sigma": "[H, H]", "erev": "[H, H]"}


def _axes(name: str) -> str:
    if name.startswith("sensory_"):
        return "[D, H]"
    if name in _AXES:
        return _AXES[name]
    return "[M]" if name.startswith("output") else "[D]" if name.startswith(("input", "norm")) else "[H]"


def _checked(p: Plan, params: Sequence[torch.Tensor], pointers: list[int]) -> tuple[list[int], Any]:
    """Addresses of the parameters, and the tensors that own them. Each is looked at in full once, and after that again
    only if an address, a size or an order changed."""
    if list(map(_numel, params)) == p.sizes and all(map(_is_contiguous, params)):
        if pointers == p.known:
            return pointers, params
        if (
            set(map(_dtype, params)) == {_FLOAT}
            and set(map(_get_device, params)) == {p.index}
            and list(map(_shape, params)) == p.shapes
        ):
            p.known = pointers
            return pointers, params
    if len(params) != len(p.names):
        raise ShapeError(f"ltc: {len(params)} parameters were given, {', '.join(p.names)} are needed")
    for name, shape, t in zip(p.names, p.shapes, params):
        _check(name, t, shape, _axes(name), p.index)
    params = [t.contiguous() for t in params]
    return list(map(_data_ptr, params)), params


def _listed(p: Plan, lists: torch.Tensor) -> list[int]:
    """Addresses of the index lists."""
    base = lists.data_ptr()
    if base != p.base or base == 0:
        if lists.get_device() != p.index or lists.numel() != p.synapses.packed or not lists.is_contiguous():
            raise DeviceError(
                f"ltc: the prepared synapses ({lists.numel()} indices on {lists.device}) are not those of the call "
                f"({p.synapses.packed} on {p.zero.device})"
            )
        p.base, p.tail = base, [base + offset for offset in p.synapses.offsets]
    return p.tail


class _Host(threading.local):
    """Scratch on the CPU, one block a thread: the allocator would map and unmap its pages on every call."""

    block: torch.Tensor | None = None


_HOST = _Host()
_KEEP = 64 << 20


def _run(p: Plan, pass_name: str, nbytes: int, addresses: list[int], strides: list[Any]) -> None:
    """Runs a pass with scratch of ``nbytes``."""
    if p.index >= 0:
        block = torch.empty(nbytes, dtype=torch.uint8, device=p.zero.device)
        # The block goes back in the order of the stream on which it was taken.
        p.run(pass_name, addresses, strides, block.data_ptr(), torch._C._cuda_getCurrentRawStream(p.index))
        return
    block, _HOST.block = _HOST.block, None
    if block is None or block.numel() < nbytes + 256:
        block = torch.empty(nbytes + 256, dtype=torch.uint8)
    address = block.data_ptr()
    p.run(pass_name, addresses, strides, address + -address % 256, 0)
    if nbytes <= _KEEP:
        _HOST.block = block


def forward(
    p: Plan,
    x: torch.Tensor,
    h0: torch.Tensor | None,
    elapsed: torch.Tensor | None,
    params: Sequence[torch.Tensor],
    lists: torch.Tensor,
) -> list[torch.Tensor]:
    """Outputs, final state, and what the backward pass needs beside the outputs."""
    if x.shape != p.extent or x.dtype is not _FLOAT:
        _check("x", x, p.extent, "[B, T, D]", p.index)
    addresses, strides = [x.data_ptr()], []
    if not x.is_contiguous():
        strides.append((0, x.stride()))
    if h0 is not None:
        _check("h0", h0, (p.extent[0], p.hidden), "[B, H]", p.index)
        if not h0.is_contiguous():
            strides.append((1, h0.stride()))
        addresses.append(h0.data_ptr())
    if elapsed is not None:
        _check("elapsed", elapsed, p.extent[:2], "[B, T]", p.index)
        if not elapsed.is_contiguous():
            strides.append((len(addresses), elapsed.stride()))
        addresses.append(elapsed.data_ptr())
    pointers, params = _checked(p, params, list(map(_data_ptr, params)))
    written = list(map(_empty_like, p.templates))
    _run(p, "forward", p.scratch[0], [*addresses, *pointers, *_listed(p, lists), *map(_data_ptr, written)], strides)
    return written


def backward(
    p: Plan,
    x: torch.Tensor,
    h0: torch.Tensor | None,
    elapsed: torch.Tensor | None,
    params: Sequence[torch.Tensor],
    lists: torch.Tensor,
    saved: Sequence[torch.Tensor],
    grad_out: torch.Tensor | None,
    grad_final: torch.Tensor | None,
) -> list[Any]:
    """The wanted gradients, in the order of the signature."""
    if grad_out is None:
        grad_out = p.zero.expand(*p.extent[:2], p.outputs)
    if grad_final is None:
        grad_final = p.zero.expand(p.extent[0], p.hidden)
    strides: list[Any] = [] if x.is_contiguous() else [(0, x.stride())]
    addresses = [x.data_ptr()]
    for t in (h0, elapsed):
        if t is not None:
            if not t.is_contiguous():
                strides.append((len(addresses), t.stride()))
            addresses.append(t.data_ptr())
    pointers, params = _checked(p, params, list(map(_data_ptr, params)))
    addresses += pointers
    addresses += _listed(p, lists)
    addresses += map(_data_ptr, saved)
    for t in (grad_out, grad_final):
        if not t.is_contiguous():
            strides.append((len(addresses), t.stride()))
        addresses.append(t.data_ptr())
    grads = list(map(_empty_like, p.data))
    if p.parameters:
        grads += map(_empty_like, params)
    addresses += map(_data_ptr, grads)
    _run(p, "backward", p.scratch[1], addresses, strides)
    return grads


def refuse_double_backward() -> None:
    """Raises in a backward pass that is itself to be differentiated."""
    if torch.is_grad_enabled():
        raise ChronaxieError("ltc: there is no double backward; call backward without create_graph=True")
