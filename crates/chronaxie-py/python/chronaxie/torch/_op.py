"""LTC as operators of ``torch.library``, for compiled and exported graphs, and as one autograd.Function for eager mode,
which costs less a call.

A graph carries the index lists as a tensor and the hash of the masks; the process that runs it finds the plans by the
hash, or makes them again from the lists.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

from . import _call
from ._call import Options
from ._synapses import Synapses, find

_LIBRARY = torch.library.Library("chronaxie", "DEF")
_LIBRARY.define(
    "ltc(Tensor x, Tensor? h0, Tensor? elapsed, Tensor[] parameters, Tensor lists, str options, int key, "
    "bool backward) -> (Tensor, Tensor, Tensor[])",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.define(
    "ltc_backward(Tensor? grad_out, Tensor? grad_final, Tensor x, Tensor? h0, Tensor? elapsed, Tensor[] parameters, "
    "Tensor lists, Tensor[] saved, str options, int key, bool[] wants) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)

_OPTIONS: dict[str, Options] = {}


def _options(text: str) -> Options:
    found = _OPTIONS.get(text)
    if found is None:
        found = _OPTIONS[text] = _call.parse(text)
    return found


def _plan(
    x: Tensor, h0: Any, elapsed: Any, parameters: Sequence[Tensor], lists: Tensor, text: str, key: int, wants: Any
) -> _call.Plan:
    synapses = find(key, lists, parameters[4].shape[0], parameters[0].shape[0])
    at = (x.shape[0], x.shape[1], text, x.get_device(), h0 is not None, elapsed is not None, wants)
    return _call.plan(synapses, _options(text), at)


def _ltc(
    x: Tensor,
    h0: Tensor | None,
    elapsed: Tensor | None,
    parameters: list[Tensor],
    lists: Tensor,
    options: str,
    key: int,
    backward: bool,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    wants = (True, True, True, True) if backward else None
    p = _plan(x, h0, elapsed, parameters, lists, options, key, wants)
    out, final, *saved = _call.forward(p, x, h0, elapsed, parameters, lists)
    return out, final, saved


def _ltc_backward(
    grad_out: Tensor | None,
    grad_final: Tensor | None,
    x: Tensor,
    h0: Tensor | None,
    elapsed: Tensor | None,
    parameters: list[Tensor],
    lists: Tensor,
    saved: list[Tensor],
    options: str,
    key: int,
    wants: list[bool],
) -> list[Tensor]:
    p = _plan(x, h0, elapsed, parameters, lists, options, key, tuple(wants))
    return _call.backward(p, x, h0, elapsed, parameters, lists, saved, grad_out, grad_final)


def _ltc_fake(
    x: Tensor, h0: Any, elapsed: Any, parameters: list[Tensor], lists: Tensor, options: str, key: int, backward: bool
) -> tuple[Tensor, Tensor, list[Tensor]]:
    opts = _options(options)
    batch, steps, hidden = x.shape[0], x.shape[1], parameters[0].shape[0]
    saved = []
    if backward and (opts.outputs != hidden or opts.has_output):
        saved.append(x.new_empty(batch, steps, hidden))
    if backward and opts.store:
        saved += [x.new_empty(batch, steps, opts.unfolds, hidden) for _ in range(2)]
    return x.new_empty(batch, steps, opts.outputs), x.new_empty(batch, hidden), saved


def _ltc_backward_fake(
    grad_out: Any,
    grad_final: Any,
    x: Tensor,
    h0: Any,
    elapsed: Any,
    parameters: list[Tensor],
    lists: Tensor,
    saved: Any,
    options: str,
    key: int,
    wants: list[bool],
) -> list[Tensor]:
    wanted = [t for t, want in zip((x, h0, elapsed), wants) if want and t is not None]
    return [t.new_empty(t.shape) for t in wanted + (list(parameters) if wants[3] else [])]


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, h0, elapsed, parameters, lists, ctx.options, ctx.key, backward = inputs
    out, _, saved = output
    if not _outputs_are_states(ctx.options, parameters[0].shape[0]):
        out = None
    ctx.counts = (len(parameters), len(saved), out is not None)
    ctx.save_for_backward(x, h0, elapsed, lists, *parameters, *([] if out is None else [out]), *saved)
    ctx.set_materialize_grads(False)


def _outputs_are_states(text: str, hidden: int) -> bool:
    opts = _options(text)
    return opts.outputs == hidden and not opts.has_output


def _backward(ctx: Any, grad_out: Any, grad_final: Any, _: Any) -> Any:
    x, h0, elapsed, lists, *rest = ctx.saved_tensors
    count = ctx.counts[0]
    parameters, saved = rest[:count], rest[count:]
    needs = ctx.needs_input_grad
    wants = [bool(needs[0]), bool(needs[1]), bool(needs[2]), any(_flatten(needs[3]))]
    grads = torch.ops.chronaxie.ltc_backward(
        grad_out, grad_final, x, h0, elapsed, parameters, lists, saved, ctx.options, ctx.key, wants
    )
    grads = iter(grads)
    first = [next(grads) if want and t is not None else None for t, want in zip((x, h0, elapsed), wants)]
    return (*first, list(grads) if wants[3] else [None] * count, None, None, None, None)


def _flatten(needs: Any) -> Any:
    return needs if isinstance(needs, (list, tuple)) else (needs,)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("ltc", _ltc, _key)
    _LIBRARY.impl("ltc_backward", _ltc_backward, _key)
torch.library.register_fake("chronaxie::ltc", _ltc_fake, lib=_LIBRARY)
torch.library.register_fake("chronaxie::ltc_backward", _ltc_backward_fake, lib=_LIBRARY)
torch.library.register_autograd("chronaxie::ltc", _backward, setup_context=_setup, lib=_LIBRARY)


class Recurrence(torch.autograd.Function):
    """One call in eager mode: addresses go straight to the plan."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, synapses: Synapses, opts: Options, lists: Tensor, x: Tensor, h0: Any, elapsed: Any, *params: Tensor
    ) -> tuple[Tensor, Tensor]:
        _, _, _, for_x, for_h0, for_elapsed, *for_params = ctx.needs_input_grad
        wants = (for_x, for_h0, for_elapsed, True in for_params)
        key = (x.shape[0], x.shape[1], opts.text, x.get_device(), h0 is not None, elapsed is not None, wants)
        p = _call.plan(synapses, opts, key)
        out, final, *saved = _call.forward(p, x, h0, elapsed, params, lists)
        ctx.plan, ctx.lists, ctx.wants = p, lists, wants
        ctx.unwanted = False in for_params and for_params
        ctx.set_materialize_grads(False)
        if p.saves_out:
            saved.insert(0, out)
        ctx.save_for_backward(x, h0, elapsed, *params, *saved)
        return out, final

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_final: Any) -> Any:  # type: ignore[override]
        _call.refuse_double_backward()
        p = ctx.plan
        x, h0, elapsed, *rest = ctx.saved_tensors
        count = len(p.sizes)
        grads = _call.backward(p, x, h0, elapsed, rest[:count], ctx.lists, rest[count:], grad_out, grad_final)
        for at in range(3):
            if not ctx.wants[at]:
                grads.insert(at, None)
        if not ctx.wants[3]:
            grads += [None] * count
        elif ctx.unwanted:
            grads[3:] = [g if wanted else None for g, wanted in zip(grads[3:], ctx.unwanted)]
        return (None, None, None, *grads)


# Function.apply without its own look for functorch's transforms, which goes through all arguments: the callers have
# made sure that there is none.
_apply = super(torch.autograd.Function, Recurrence).apply


def call(
    synapses: Synapses,
    opts: Options,
    lists: Tensor,
    x: Tensor,
    h0: Tensor | None,
    elapsed: Tensor | None,
    params: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """The native call in eager mode."""
    if torch.is_grad_enabled():
        return _apply(synapses, opts, lists, x, h0, elapsed, *params)  # type: ignore[no-any-return]
    key = (x.shape[0], x.shape[1], opts.text, x.get_device(), h0 is not None, elapsed is not None, None)
    p = _call.plan(synapses, opts, key)
    out, final = _call.forward(p, x, h0, elapsed, params, lists)
    return out, final


def traced(
    key: int,
    opts: Options,
    lists: Tensor,
    x: Tensor,
    h0: Tensor | None,
    elapsed: Tensor | None,
    params: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """The operator, where a graph is being made."""
    tensors = [x, *params] + [t for t in (h0, elapsed) if t is not None]
    backward = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    out, final, _ = torch.ops.chronaxie.ltc(x, h0, elapsed, list(params), lists, opts.text, key, backward)
    return out, final
