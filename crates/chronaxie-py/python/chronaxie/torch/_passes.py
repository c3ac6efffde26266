"""Any entry of the registry on tensors of PyTorch: what scans and the mLSTM share.

A call is an entry and a case that spells sizes and options; the native problem of these says what goes in and comes out, so
one autograd.Function and one pair of operators (for compiled graphs) serve them all.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NoReturn, Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from .. import _native
from .._errors import ChronaxieError, ConfigError, DeviceError, DtypeError, ShapeError
from ._framework import _NAMES, _TYPES, FRAMEWORK, short

# Scratch starts at a multiple of this.
_ALIGNMENT = 256
_PLAIN = (Tensor, torch.nn.Parameter)
_modes = torch._C._len_torch_dispatch_stack
transforms = torch._C._are_functorch_transforms_active


class _Signed:
    """The signatures of a problem's passes, and what follows from them."""

    def __init__(self, entry: str, case: str) -> None:
        self.entry, self.problem = entry, _native.problem(entry, case)
        self.signatures: dict[str, Any] = {}
        for name in ("forward", "backward", "step"):
            try:
                self.signatures[name] = self.problem.signature(name)
            except ConfigError:
                continue
        takes, gives = self.signatures.get("forward", ([], []))
        self.names = [t[0] for t in (*takes, *gives)]
        # How many outputs are the caller's: what is saved comes last.
        self.returned = sum(t[4] != "saved" for t in gives)

    def backward_inputs(self, given: Sequence[Tensor], grads: Sequence[Any]) -> list[Tensor]:
        """What the backward pass takes, found by its names among the forward pass's inputs and outputs."""
        known = dict(zip(self.names, given))
        for name, grad in zip(self.names[len(self.signatures["forward"][0]) :], grads):
            known[f"grad_{name}"] = torch.zeros_like(known[name]) if grad is None else grad
        return [known[t[0]] for t in self.signatures["backward"][0]]

    def gradients(self, made: Sequence[Tensor]) -> list[Tensor | None]:
        """For each input its gradient, None where it has none."""
        written = {t[0]: v for t, v in zip(self.signatures["backward"][1], made)}
        return [written.get(f"grad_{t[0]}") for t in self.signatures["forward"][0]]


class Planned(_Signed):
    """A native plan on a device."""

    def __init__(self, entry: str, case: str, device: str) -> None:
        super().__init__(entry, case)
        self.plan, self.device = self.problem.plan(device), torch.device(device)
        self.caller = _native.Caller(self.plan, FRAMEWORK, torch.zeros((), device=device))

    def run(self, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """One pass over tensors in the order of its signature, which the library checks."""
        whole = tuple(t.resolve_conj().resolve_neg() if t.dtype is torch.complex64 else t.resolve_neg() for t in tensors)
        return self.caller.run(name, whole)  # type: ignore[no-any-return]

    def step(self, given: dict[str, Any], why: str) -> None:
        """A step over tensors by name, as :meth:`write` has it."""
        self.write("step", given, why)

    def write(self, pass_name: str, given: dict[str, Any], why: str = "") -> None:
        """A pass over tensors by name, outputs among them: they are written where they lie. ``why`` says which options want
        a tensor that is not given."""
        takes, gives = self.signatures[pass_name]
        addresses, strides, held = [], [], []
        for at, (name, axes, shape, dtype, _, strided) in enumerate((*takes, *gives)):
            t = given.get(name)
            if t is None:
                raise ConfigError(f"{self.entry}: {name} {axes} is needed{why}")
            if list(t.shape) != list(shape):
                raise ShapeError(f"{self.entry}: {name}.shape = {tuple(t.shape)} does not match {axes} = {tuple(shape)}")
            if _NAMES.get(t.dtype) != dtype:
                raise DtypeError(f"{self.entry}: {name} holds {short(t.dtype)}, not {short(_TYPES[dtype])}")
            if t.device != self.device:
                raise DeviceError(f"{self.entry}: {name} is on {t.device}, the first tensor on {self.device}")
            t = t.resolve_conj().resolve_neg()
            if not t.is_contiguous():
                if at >= len(takes):
                    raise ShapeError(f"{self.entry}: {name} is written in place and must be contiguous")
                if strided:
                    strides.append((at, list(t.stride())))
                else:
                    t = t.contiguous()
            held.append(t)
            addresses.append(t.data_ptr())
        bytes_ = self.plan.scratch_bytes(pass_name)
        scratch = torch.empty(bytes_ + _ALIGNMENT if bytes_ else 0, dtype=torch.uint8, device=self.device)
        base = -(-scratch.data_ptr() // _ALIGNMENT) * _ALIGNMENT
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else 0
        self.plan.run(pass_name, addresses, strides, base, stream)


@lru_cache(maxsize=256)
def planned(entry: str, case: str, device: str) -> Planned:
    return Planned(entry, case, device)


@lru_cache(maxsize=256)
def signed(entry: str, case: str) -> _Signed:
    return _Signed(entry, case)


def device_of(entry: str, t: Tensor) -> str:
    """Its name in a backend's spelling."""
    if t.is_cpu:
        return "cpu"
    if t.is_cuda:
        return f"cuda:{t.get_device()}"
    raise DeviceError(f"{entry}: tensors are on {t.device}, not on the CPU or a CUDA device")


def no_tangents(entry: str) -> NoReturn:
    raise ChronaxieError(
        f"{entry}: there is no forward-mode differentiation (torch.func.jvp, jacfwd and hessian, dual tensors); "
        "torch.func.grad, vjp and jacrev differentiate backward"
    )


def _no_double(entry: str) -> NoReturn:
    raise ChronaxieError(f"{entry}: there is no double backward; call backward without create_graph=True")


class _Call(torch.autograd.Function):
    """One call in eager mode; its tensors are in the order of the signature."""

    @staticmethod
    def forward(ctx: Any, entry: str, case: str, *tensors: Tensor) -> Any:  # type: ignore[override]
        p = ctx.planned = planned(entry, case, device_of(entry, tensors[0]))
        made = p.run("forward", tensors)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *made)
        return tuple(made[: p.returned])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        p = ctx.planned
        if torch.is_grad_enabled():
            _no_double(p.entry)
        return (None, None, *p.gradients(p.run("backward", p.backward_inputs(ctx.saved_tensors, grads))))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        no_tangents(ctx.planned.entry)


class _Transformed(torch.autograd.Function):
    """A pass under functorch's transforms (``torch.func.grad``, ``vmap``), which want every tensor among the outputs and a
    rule of their own for mapped axes. The gradients of the forward pass are a call of this with the backward pass, so that
    they are mapped, too; those of the backward pass do not exist."""

    @staticmethod
    def forward(pass_name: str, entry: str, case: str, *tensors: Tensor) -> Any:  # type: ignore[override]
        return tuple(_outputs(pass_name, entry, case, tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.pass_name, ctx.entry, ctx.case, *tensors = inputs
        ctx.set_materialize_grads(False)
        if ctx.pass_name == "forward":
            ctx.mark_non_differentiable(*output[signed(ctx.entry, ctx.case).returned :])
            ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.pass_name != "forward":
            _no_double(ctx.entry)
        s = signed(ctx.entry, ctx.case)
        takes = s.backward_inputs(ctx.saved_tensors, grads[: s.returned])
        made = _Transformed.apply("backward", ctx.entry, ctx.case, *takes)  # type: ignore[no-untyped-call]
        return (None, None, None, *s.gradients(made))

    @staticmethod
    def vmap(info: Any, in_dims: Any, pass_name: str, entry: str, case: str, *tensors: Tensor) -> Any:
        size, dims = info.batch_size, in_dims[3:]
        takes, gives = signed(entry, case).signatures[pass_name]
        batched = [t[1].startswith(_BATCHED) for t in takes]
        found = None if _CUT.search(case) else re.match(r"B(\d+)_", case)
        if found and size and all(t[1].startswith(_BATCHED) for t in gives) and all(b or d is None for b, d in zip(batched, dims)):
            # The mapped axis is part of the batch.
            batch = int(found[1])
            wide = [_widen(t, d, size) if b else t for t, d, b in zip(tensors, dims, batched)]
            made = _Transformed.apply(pass_name, entry, f"B{batch * size}_{case[found.end() :]}", *wide)  # type: ignore[no-untyped-call]
            return tuple(t.unflatten(0, (size, batch)) for t in made), (0,) * len(made)
        each = []
        for at in range(size):
            rows = [t if d is None else t.select(d, at) for t, d in zip(tensors, dims)]
            each.append(_Transformed.apply(pass_name, entry, case, *rows))  # type: ignore[no-untyped-call]
        if not each:
            raise ShapeError(f"{entry}: torch.vmap over an axis of 0 elements is not offered")
        return tuple(torch.stack(made) for made in zip(*each)), (0,) * len(gives)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        no_tangents(ctx.entry)


# The first axis of what each sequence has its own of; where sequences lie one after the other it is not the batch's.
_BATCHED = ("[B,", "[S,", "[B]", "[S]")
_CUT = re.compile(r",(packing=\d|sequences=)")


def _widen(t: Tensor, dim: int | None, size: int) -> Tensor:
    """``size`` batches one after the other, of a tensor that has them along ``dim`` or is the same in all."""
    wide = t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
    return wide.flatten(0, 1)


def _dispatched(tensors: Sequence[Tensor]) -> bool:
    """Whether the operator is to be called, which has shapes for tensors without memory, and not the plan."""
    return bool(_modes()) or tensors[0].is_meta or any(type(t) not in _PLAIN for t in tensors)


def _outputs(pass_name: str, entry: str, case: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """All outputs of a pass, which autograd does not see."""
    if _dispatched(tensors):
        op = torch.ops.chronaxie.entry if pass_name == "forward" else torch.ops.chronaxie.entry_backward
        return op(list(tensors), entry, case)  # type: ignore[no-any-return]
    return planned(entry, case, device_of(entry, tensors[0])).run(pass_name, tensors)


_LIBRARY = torch.library.Library("chronaxie", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY.define("entry(Tensor[] inputs, str entry, str case) -> Tensor[]", tags=_TAGS)
_LIBRARY.define("entry_backward(Tensor[] inputs, str entry, str case) -> Tensor[]", tags=_TAGS)


def _pass(name: str) -> Any:
    return lambda inputs, entry, case: planned(entry, case, device_of(entry, inputs[0])).run(name, inputs)


def _pass_fake(name: str) -> Any:
    def fake(inputs: Any, entry: str, case: str) -> list[Tensor]:
        gives = signed(entry, case).signatures[name][1]
        return [inputs[0].new_empty(list(t[2]), dtype=_TYPES[t[3]]) for t in gives]

    return fake


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, ctx.entry, ctx.case = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, grads: Any) -> Any:
    p = signed(ctx.entry, ctx.case)
    takes = p.backward_inputs(ctx.saved_tensors, grads)
    return p.gradients(torch.ops.chronaxie.entry_backward(takes, ctx.entry, ctx.case)), None, None


for _name, _of in (("entry", "forward"), ("entry_backward", "backward")):
    for _key in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _pass(_of), _key)
    torch.library.register_fake(f"chronaxie::{_name}", _pass_fake(_of), lib=_LIBRARY)
torch.library.register_autograd("chronaxie::entry", _differentiate, setup_context=_setup, lib=_LIBRARY)


def differentiable(tensors: Sequence[Any]) -> bool:
    """Whether a gradient can be asked for. A mapped tensor does not say that of what it maps."""
    mapped = not is_compiling() and transforms()
    return torch.is_grad_enabled() and any(t is not None and (mapped or t.requires_grad) for t in tensors)


def without_memory(t: Tensor) -> bool:
    """Whether it stands for a shape alone: a meta tensor, or a fake one."""
    return t.is_meta or isinstance(t, FakeTensor)


def takes_steps(entry: str, t: Tensor) -> bool:
    """Whether a step can be taken; of tensors without memory there is but the shape of what it gives."""
    if transforms():
        raise ChronaxieError(f"{entry}: a step changes states in place, where torch.func and torch.vmap see no operation of PyTorch")
    return not without_memory(t)


_WIDE = (torch.float64, torch.complex128)


def refuse_double(entry: str, **tensors: Tensor | None) -> None:
    """Refuses tensors of 64 bits an element, which would be computed with 32."""
    for name, t in tensors.items():
        if t is not None and t.dtype in _WIDE:
            types = "complex64" if t.dtype is torch.complex128 else "float32, bfloat16 or float16"
            raise DtypeError(f"{entry}: {name} holds {short(t.dtype)}; all is computed in float32, and it must be {types}")


def refuse_cuts(entry: str, cu_seqlens: Any) -> None:
    """Refuses ends of sequences that are no tensor of whole numbers."""
    if not isinstance(cu_seqlens, Tensor):
        raise DtypeError(f"{entry}: cu_seqlens is of type {type(cu_seqlens).__name__}; a tensor of whole numbers is needed")
    if cu_seqlens.dtype is torch.bool or cu_seqlens.is_floating_point() or cu_seqlens.is_complex():
        raise DtypeError(f"{entry}: cu_seqlens holds {short(cu_seqlens.dtype)}; ends of sequences are whole numbers, as of int32")


def call(entry: str, case: str, returned: int, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The first ``returned`` outputs of an entry, from tensors in the order of its signature."""
    if is_compiling():
        return tuple(torch.ops.chronaxie.entry(list(tensors), entry, case)[:returned])
    if transforms():
        return _Transformed.apply("forward", entry, case, *tensors)[:returned]  # type: ignore[no-any-return, no-untyped-call]
    if _dispatched(tensors):
        return tuple(torch.ops.chronaxie.entry(list(tensors), entry, case)[:returned])
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        no_tangents(entry)
    if differentiable(tensors):
        return _Call.apply(entry, case, *tensors)  # type: ignore[no-any-return, no-untyped-call]
    return tuple(planned(entry, case, device_of(entry, tensors[0])).run("forward", tensors)[:returned])


def spell(sizes: dict[str, int], options: dict[str, Any]) -> str:
    """A case as the registry reads it; options that are False or None are left out."""
    words = "_".join(f"{k}{int(v)}" for k, v in sizes.items())
    given = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in options.items() if v is not False and v is not None]
    return ",".join([words, *given])
