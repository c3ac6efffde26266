"""The functional form, and the choice of a path: native, operator, or eager PyTorch."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from .._errors import ConfigError, DtypeError, ShapeError
from . import _call, _eager, _op
from ._call import Options
from ._synapses import Synapses

_PLAIN = (Tensor, torch.nn.Parameter)
_HALF = (torch.float16, torch.bfloat16)
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active


@torch.compiler.assume_constant_result
def _unavailable(index: int) -> bool:
    return _call.unavailable(index) is not None


def dispatch(
    synapses: Synapses | None,
    opts: Options,
    x: Tensor,
    h0: Tensor | None,
    elapsed: Tensor | None,
    params: Sequence[Tensor],
    *,
    key: int = 0,
    lists: Tensor | None = None,
    masks: Callable[[], tuple[Tensor, Tensor]] | None = None,
    eager: bool = False,
) -> tuple[Tensor, Tensor]:
    """``(out, final_state)`` of ``x`` ``[B, T, D]`` by the best path there is; ``params`` in the order of ``opts.names``.

    float16 and bfloat16 are computed in float32; the final state is then float32, and ``out`` has the type that PyTorch
    promotes x and the parameters to. float64 parameters take the eager path.
    """
    weight = params[0]
    if x.dtype is not torch.float32 or weight.dtype is not torch.float32:
        return _converted(synapses, opts, x, h0, elapsed, params, key, lists, masks, eager)
    if x.dim() != 3:
        raise ShapeError(f"ltc: x.shape = {tuple(x.shape)} does not match [B, T, D]")
    tracing = torch.compiler.is_compiling()
    # functorch differentiates and batches PyTorch's own operations only.
    if eager or not (x.is_cpu or _native(x)) or (not tracing and _transforms()):
        return _eagerly(synapses, opts, x, h0, elapsed, params, masks)
    if lists is None:
        key, lists = synapses.key, synapses.lists(x.device)  # type: ignore[union-attr]
    if (
        tracing
        or type(x) not in _PLAIN
        or type(weight) not in _PLAIN
        or x.is_meta
        or _modes() > 0
    ):
        return _op.traced(key, opts, lists, x, h0, elapsed, params)
    return _op.call(synapses, opts, lists, x, h0, elapsed, params)  # type: ignore[arg-type]


def _native(x: Tensor) -> bool:
    """Whether there are kernels for a tensor that is not on the CPU."""
    return x.is_meta or (x.is_cuda and not _unavailable(x.get_device()))


def _eagerly(
    synapses: Synapses | None, opts: Options, x: Tensor, h0: Any, elapsed: Any, params: Sequence[Tensor], masks: Any
) -> tuple[Tensor, Tensor]:
    if x.dim() != 3:
        raise ShapeError(f"ltc: x.shape = {tuple(x.shape)} does not match [B, T, D]")
    pair = synapses.masks(x.device, params[0].dtype) if masks is None else masks()  # type: ignore[union-attr]
    return _eager.ltc(x, h0, elapsed, dict(zip(opts.names, params)), pair, opts)


def _converted(
    synapses: Synapses | None,
    opts: Options,
    x: Tensor,
    h0: Tensor | None,
    elapsed: Tensor | None,
    params: Sequence[Tensor],
    key: int,
    lists: Tensor | None,
    masks: Callable[[], tuple[Tensor, Tensor]] | None,
    eager: bool,
) -> tuple[Tensor, Tensor]:
    weight = params[0]
    if weight.dtype is torch.float64:
        return _eagerly(synapses, opts, x, h0, elapsed, params, masks)
    for name, t in (("x", x), ("w", weight)):
        if t.dtype not in (torch.float32, *_HALF):
            raise DtypeError(
                f"ltc: x holds {_call._short(x.dtype)} and the parameters {_call._short(weight.dtype)}: "
                f"{name} must be float32, float16 or bfloat16, or the parameters float64"
            )

    def single(t: Tensor | None) -> Tensor | None:
        return t if t is None or t.dtype is torch.float32 else t.float()

    out, state = dispatch(
        synapses, opts, x.float(), single(h0), single(elapsed), [p.float() for p in params],
        key=key, lists=lists, masks=masks, eager=eager,
    )  # fmt: skip
    return out.to(torch.promote_types(x.dtype, weight.dtype)), state


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
    save: str = "recompute",
) -> tuple[Tensor, Tensor]:
    """A liquid time-constant layer over a batch of sequences.

    Axes: B batch, T time, D inputs, H neurons, M outputs (the first M neurons). Matrices are ``[source, target]``.

    Args:
        x: ``[B, T, D]``, any strides.
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
        save: ``recompute`` or ``store``, which takes 8 bytes for each of B T K H and saves one evaluation of each gate.

    Returns:
        ``(out, final_state)``: ``[B, T, M]`` and ``[B, H]``. Gradients flow through both.

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
    if save not in ("recompute", "store"):
        raise ConfigError(f"ltc: save `{save}` is not one of recompute, store")
    opts = _call.options(
        w.shape[-1] if outputs is None else outputs,
        unfolds=unfolds,
        dt=dt,
        epsilon=epsilon,
        input_mapping=mapping["input"],
        norm=norm_weight is not None,
        output_mapping=mapping["output"],
        implicit_param_constraints=implicit_param_constraints,
        precision=precision,
        store=save == "store",
    )
    params = [w, mu, sigma, erev, sensory_w, sensory_mu, sensory_sigma, sensory_erev, gleak, vleak, cm]
    params += [p for p in (input_w, input_b, norm_weight, norm_bias, output_w, output_b) if p is not None]
    return dispatch(synapses, opts, x, h0, elapsed, params)
