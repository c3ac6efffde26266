"""The choice of a path: native, operator, or eager PyTorch; and the functional forms."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from .._errors import ConfigError, DtypeError, ShapeError
from . import _eager, _op, _options, _plan
from ._framework import short
from ._plan import LEAD, STORED, Layer
from ._synapses import Synapses

_FLOAT = torch.float32
_PLAIN = (Tensor, torch.nn.Parameter)
_HALF = (torch.float16, torch.bfloat16)
_AVAILABLE = _plan.AVAILABLE
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
# Whether autocast is on for any kind of device.
autocasts = torch._C._is_any_autocast_enabled
Tensors = tuple[Any, ...]


@torch.compiler.assume_constant_result
def _unavailable(index: int) -> bool:
    return _plan.unavailable(index) is not None


def native(x: Tensor) -> bool:
    """Whether there are kernels for a tensor that is not on the CPU."""
    return x.is_meta or (x.is_cuda and not _unavailable(x.get_device()))


def plain(x: Any, weight: Any, stored: Any = ()) -> bool:
    """Whether a call is what most are, a float32 tensor (or one of the types ``stored``) in eager mode: with as few questions
    as tell."""
    return not is_compiling() and plain_tensors(x, weight, stored)


def plain_tensors(x: Any, weight: Any, stored: Any = ()) -> bool:
    """The same where nothing is compiled."""
    return (
        type(x) is Tensor
        and type(weight) in _PLAIN
        and (x.dtype is _FLOAT or x.dtype in stored)
        and weight.dtype is _FLOAT
        and x.dim() == 3
        and (x.is_cpu or (x.is_cuda and (x.get_device() in _AVAILABLE or not _unavailable(x.get_device()))))
        and not (_transforms() or _modes() or forward_ad._current_level >= 0)
    )


def _casts(x: Tensor) -> bool:
    kind = x.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def autocast(x: Tensor) -> Tensor:
    """x in the type that autocast has its inputs in, where that is on for x's device."""
    if x.dtype in (_FLOAT, *_HALF) and _casts(x):
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x


def single(x: Tensor) -> Any:
    """Where PyTorch's operations on x's device are of the types that their tensors have, autocast or not."""
    return torch.autocast(x.device.type, enabled=False) if _casts(x) else nullcontext()


def dispatch(
    entry: str,
    text: str,
    states: int,
    layer: Layer | None,
    tensors: Tensors,
    lists: Tensor | None,
    key: int,
    eager: Callable[[Tensors], Tensors],
    force_eager: bool = False,
) -> Tensors:
    """Outputs and final states, ``states`` together, by the best path there is.

    ``tensors`` are x ``[B, T, D]``, h0, c0, elapsed, each but x None where it is not given, and the parameters in the order
    of the signature. ``text`` spells the options, ``key`` and ``lists`` are what a graph needs of prepared synapses, and
    ``eager`` computes the same by PyTorch's operations.

    An entry that stores float16 and bfloat16 takes x as it is, or as autocast has it, and gives the output and the gradient
    of x in its type. Of other entries they are computed in float32, and the output has the type that PyTorch promotes x and
    the parameters to. Parameters are taken as float32, and final states are float32. float64 parameters take the eager path.
    """
    x, weight = tensors[0], tensors[LEAD]
    stored: Any = STORED.get(entry, ())
    if stored and (is_compiling() or autocasts()) and weight.dtype is not torch.float64:
        x = autocast(x)
        tensors = (x, *tensors[1:])
    if not force_eager and plain(x, weight):
        return _op.call(layer, lists, tensors)  # type: ignore[arg-type]
    if x.dim() != 3:
        raise ShapeError(f"{entry}: x.shape = {tuple(x.shape)} does not match [B, T, D]")
    if weight.dtype is torch.float64:
        return eager((x.double(), *tensors[1:]))
    # functorch, and dual tensors, differentiate and batch PyTorch's own operations only.
    eagerly = force_eager or not (x.is_cpu or native(x))
    eagerly = eagerly or (not is_compiling() and (bool(_transforms()) or forward_ad._current_level >= 0))
    dtype = x.dtype
    if dtype is not _FLOAT or weight.dtype is not _FLOAT:
        for name, t in (("x", x), ("parameters", weight)):
            if t.dtype not in (_FLOAT, *_HALF):
                raise DtypeError(
                    f"{entry}: x holds {short(x.dtype)} and the parameters {short(weight.dtype)}: "
                    f"{name} must be float32, float16 or bfloat16, or the parameters float64"
                )
        first = x if dtype in stored and not eagerly else x.float()
        tensors = (first, *(t if t is None or t.dtype is _FLOAT else t.float() for t in tensors[1:]))
        dtype = dtype if stored else torch.promote_types(dtype, weight.dtype)
    if eagerly:
        with single(x) if stored else nullcontext():
            out, *final = eager(tensors)
    elif plain(tensors[0], tensors[LEAD], stored):
        out, *final = _op.call(layer, lists, tensors)  # type: ignore[arg-type]
    else:
        out, *final = _op.traced(entry, text, states, key, lists, tensors)
    return (out if out.dtype is dtype else out.to(dtype), *final)


def ltc(
    x: Tensor,
    w: Tensor,
    mu: Tensor,
    sigma: Tensor,
    erev: Tensor,
    sensory_w: Tensor,
    sensory_mu: Tensor,
    sensory_sigma: Tensor,
    sensory_erev: Tensor,
    gleak: Tensor,
    vleak: Tensor,
    cm: Tensor,
    *,
    synapses: Synapses,
    h0: Tensor | None = None,
    elapsed: Tensor | None = None,
    input_w: Tensor | None = None,
    input_b: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    output_w: Tensor | None = None,
    output_b: Tensor | None = None,
    outputs: int | None = None,
    unfolds: int = 6,
    dt: float = 1.0 / 30.0,
    epsilon: float = 1e-8,
    implicit_param_constraints: bool = True,
    precision: str = "exact",
    save: str = "auto",
) -> tuple[Tensor, Tensor]:
    """A liquid time-constant layer over a batch of sequences.

    Axes: B batch, T time, D inputs, H neurons, M outputs (the first M neurons). Matrices are ``[source, target]``.

    Args:
        x: ``[B, T, D]``, any strides, of float32, float16 or bfloat16; under autocast it is taken in autocast's type.
        w, mu, sigma, erev: ``[H, H]``, synapses between neurons.
        sensory_w, sensory_mu, sensory_sigma, sensory_erev: ``[D, H]``, synapses from inputs.
        gleak, vleak, cm: ``[H]``.
        synapses: what :func:`prepare` made of the masks.
        h0: initial state ``[B, H]``, else 0.
        elapsed: positive times ``[B, T]`` instead of ``dt``, in its unit.
        input_w, input_b: the input mapping ``[D]``; the second needs the first.
        norm_weight, norm_bias: a LayerNorm over D before it.
        output_w, output_b: the output mapping ``[M]``.
        outputs: M; H by default.
        unfolds: semi-implicit Euler steps a time step.
        dt: length of a time step.
        epsilon: added to each denominator.
        implicit_param_constraints: softplus of w, sensory_w, gleak and cm, instead of their values.
        precision: ``exact`` or ``fast`` (the hardware's approximate tanh).
        save: what is kept for the backward pass. ``recompute``: the states after each step. ``store``: also states and
            denominators of every unfold, 8 bytes for each of B T K H, so that no gate is evaluated twice. ``auto``: with
            ``fast`` as ``store`` if that is a MiB at most; else with ``dt`` of 0.125 at most, no ``elapsed``, and up to
            128 neurons, a word of 4 bytes for each of B T (K + 1) H, 16 MiB at most, rounded within the bounds of
            ``fast``; otherwise, and under ``torch.compile``, as ``recompute``. ``words``: those words, whatever their number
            and ``dt`` (at a ``dt`` of 1 gradients are 1e-3 off), with ``fast`` and up to 128 neurons; else as ``recompute``.

    Returns:
        ``(out, final_state)``: ``[B, T, M]`` in x's type, which its gradient has too, and ``[B, H]`` in float32, in which all
        is computed. Gradients flow through both.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values.
    """
    mapping = {"input": "none", "output": "none"}
    for name, first, second in (("input", input_w, input_b), ("output", output_w, output_b)):
        if first is not None:
            mapping[name] = "linear" if second is None else "affine"
        elif second is not None:
            raise ConfigError(f"ltc: {name}_b is given without {name}_w")
    if (norm_weight is None) != (norm_bias is None):
        raise ConfigError("ltc: norm_weight and norm_bias are given together or not at all")
    opts = _options.options(
        w.shape[-1] if outputs is None else outputs,
        unfolds=unfolds,
        dt=dt,
        epsilon=epsilon,
        input_mapping=mapping["input"],
        norm=norm_weight is not None,
        output_mapping=mapping["output"],
        implicit_param_constraints=implicit_param_constraints,
        precision=precision,
        save=save,
    )
    params = [w, mu, sigma, erev, sensory_w, sensory_mu, sensory_sigma, sensory_erev, gleak, vleak, cm]
    params += [p for p in (input_w, input_b, norm_weight, norm_bias, output_w, output_b) if p is not None]

    def eager(tensors: Tensors) -> Tensors:
        masks = synapses.masks(tensors[0].device, tensors[LEAD].dtype)
        return _eager.ltc(tensors, masks, opts)

    layer, lists = synapses.layer(opts.text), synapses.lists(x.device)
    tensors = (x, h0, None, elapsed, *params)
    return dispatch("ltc", opts.text, 2, layer, tensors, lists, synapses.key, eager)  # type: ignore[return-value]
