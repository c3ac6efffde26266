"""Recurrences as operators of ``torch.library``, for compiled and exported graphs, and as one autograd.Function for eager
mode, which costs less a call.

There is an operator for each family, ``torch.ops.chronaxie.ltc`` and so on, and all have one form. A graph of LTC carries
the index lists as a tensor and the hash of the masks; the process that runs it finds the synapses by the hash, or makes
them again from the lists.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch import Tensor
from torch.autograd import profiler

from .._errors import ChronaxieError
from ._framework import _TYPES
from ._plan import LEAD, NOT_TENSORS, Layer, Plan
from ._synapses import find

_LIBRARY = torch.library.Library("chronaxie", "DEF")
_DATA = "Tensor x, Tensor? h0, Tensor? c0, Tensor? elapsed, Tensor[] parameters, Tensor? lists, "


class _Form(NamedTuple):
    """What a graph must know of a problem before there are sizes B and T."""

    # Sizes of each output of the forward pass, with the letters "B" and "T" where it has theirs, and its type.
    outputs: list[tuple[list[Any], torch.dtype]]
    # How many of them are the caller's; the others are what the backward pass needs, beside the first one if it does.
    states: int
    saves_out: bool
    # Which of the parameters are trained.
    trained: list[bool]


@lru_cache(maxsize=256)
def _form(entry: str, text: str, packed: bool, dtype: torch.dtype, backward: bool) -> _Form:
    problem = Layer(entry, text).problem(1, 1, False, False, dtype, (True,) * (LEAD + 1) if backward else None)
    inputs, outputs = problem.signature("forward")
    made = []
    for _, axes, sizes, type_, _, _ in outputs:
        letters = axes.strip("[]").split(", ")
        made.append(([letter if letter in ("B", "T") else n for letter, n in zip(letters, sizes)], _TYPES[type_]))
    states = sum(t[4] != "saved" for t in outputs)
    saves_out = backward and any(t[0] == "out" for t in problem.signature("backward")[0])
    listed = [t[4] for t in inputs if t[0] != "x" and not (packed and t[4] == "prepared")]
    return _Form(made, states, saves_out, [role == "parameter" for role in listed])


class Family(NamedTuple):
    """What the operators of an entry must know of it."""

    entry: str
    # The layer of (options, key, lists, parameters).
    layer: Callable[[str, int, Any, Sequence[Tensor]], Layer]
    # The options with the sizes that do not stand in them, from the parameters.
    sized: Callable[[str, Sequence[Tensor]], str]
    # Whether what is prepared comes in one tensor, ``lists``, and not among the parameters.
    packed: bool


@lru_cache(maxsize=256)
def plain_layer(entry: str, text: str) -> Layer:
    """The layer of an entry of which nothing is prepared."""
    return Layer(entry, text)


LTC = Family(
    "ltc",
    lambda text, key, lists, p: find(key, lists, p[4].shape[0], p[0].shape[0]).layer(text),
    lambda text, p: f"_D{int(p[4].shape[0])}_H{int(p[0].shape[0])}{text}",
    True,
)


def _define(family: Family) -> None:
    """Defines the operators of a family."""
    entry = family.entry
    tags = (torch.Tag.pt2_compliant_tag,)
    _LIBRARY.define(f"{entry}({_DATA}str options, int key, bool backward) -> Tensor[]", tags=tags)
    _LIBRARY.define(
        f"{entry}_backward(Tensor?[] grads, {_DATA}Tensor[] saved, str options, int key, bool[] wants) -> Tensor[]", tags=tags
    )

    def plan(data: Any, parameters: Any, lists: Any, text: str, key: int, wants: Any) -> Plan:
        x, h0, c0, elapsed = data
        at = (x.shape[0], x.shape[1], x.get_device(), h0 is None, c0 is None, elapsed is None, x.dtype, wants)
        return family.layer(text, key, lists, parameters).plan(at)

    # The arguments of the operators stand in `_DATA`: four of data, then the rest.
    def forward(*args: Any) -> list[Tensor]:
        data, (parameters, lists, text, key, backward) = args[:LEAD], args[LEAD:]
        wants = (*(t is not None for t in data), *[True] * len(parameters)) if backward else None
        return plan(data, parameters, lists, text, key, wants).forward((*data, *parameters), lists)  # type: ignore[no-any-return]

    def backward(grads: Any, *args: Any) -> list[Tensor]:
        data, (parameters, lists, saved, text, key, wants) = args[:LEAD], args[LEAD:]
        each = (*(want and t is not None for want, t in zip(wants, data)), *[wants[LEAD]] * len(parameters))
        p = plan(data, parameters, lists, text, key, each)
        return p.run("backward", (*data, *parameters, *saved), lists, tuple(grads))  # type: ignore[no-any-return]

    def form(text: str, x: Tensor, parameters: Any, backward: bool = True) -> _Form:
        return _form(entry, family.sized(text, parameters), family.packed, x.dtype, backward)

    def forward_fake(*args: Any) -> list[Tensor]:
        x, (parameters, _, text, _, backward) = args[0], args[LEAD:]
        letters = {"B": x.shape[0], "T": x.shape[1]}
        outputs = form(text, x, parameters, backward).outputs
        return [x.new_empty([letters.get(n, n) for n in shape], dtype=dtype) for shape, dtype in outputs]

    def backward_fake(grads: Any, *args: Any) -> list[Tensor]:
        data, (parameters, _, _, text, _, wants) = args[:LEAD], args[LEAD:]
        wanted = [t for t, want in zip(data, wants) if want and t is not None]
        if wants[LEAD]:
            wanted += [p for p, trained in zip(parameters, form(text, data[0], parameters).trained) if trained]
        return [t.new_empty(t.shape) for t in wanted]

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        data, (parameters, lists, ctx.text, ctx.key, backward) = inputs[:LEAD], inputs[LEAD:]
        f = ctx.form = form(ctx.text, data[0], parameters, backward)
        ctx.count = len(parameters)
        ctx.save_for_backward(*data, lists, *parameters, *output[: f.saves_out], *output[f.states :])
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, grads: Any) -> Any:
        data, (lists, *rest) = ctx.saved_tensors[:LEAD], ctx.saved_tensors[LEAD:]
        parameters, saved = rest[: ctx.count], rest[ctx.count :]
        needs, of_parameters = ctx.needs_input_grad[:LEAD], ctx.needs_input_grad[LEAD]
        each = of_parameters if isinstance(of_parameters, (list, tuple)) else [of_parameters]
        wants = [bool(n) and t is not None for n, t in zip(needs, data)] + [any(each)]
        op = getattr(torch.ops.chronaxie, f"{entry}_backward")
        made = iter(op(list(grads[: ctx.form.states]), *data, parameters, lists, saved, ctx.text, ctx.key, wants))
        first = [next(made) if want else None for want in wants[:LEAD]]
        trained = [wants[LEAD] and t for t in ctx.form.trained]
        return (*first, [next(made) if t else None for t in trained], None, None, None, None)

    for device in ("CPU", "CUDA"):
        _LIBRARY.impl(entry, forward, device)
        _LIBRARY.impl(f"{entry}_backward", backward, device)
    torch.library.register_fake(f"chronaxie::{entry}", forward_fake, lib=_LIBRARY)
    torch.library.register_fake(f"chronaxie::{entry}_backward", backward_fake, lib=_LIBRARY)
    torch.library.register_autograd(f"chronaxie::{entry}", differentiate, setup_context=setup, lib=_LIBRARY)


CFC = Family("cfc", lambda text, key, lists, p: plain_layer("cfc", text), lambda text, p: text, False)

_define(LTC)
_define(CFC)


class Recurrence(torch.autograd.Function):
    """One call in eager mode, of ``(layer, lists)``. Its tensors are x, h0, c0, elapsed and the parameters; the lists need no
    gradient, and in a tuple PyTorch does not look at them."""

    @staticmethod
    def forward(ctx: Any, what: tuple[Layer, Tensor | None], *tensors: Any) -> Any:  # type: ignore[override]
        layer, lists = what
        x, h0, c0, elapsed = tensors[:LEAD]
        batch, steps, _ = x.shape
        key = batch, steps, x.get_device(), h0 is None, c0 is None, elapsed is None, x.dtype, ctx.needs_input_grad
        p = layer.plans.get(key)
        if p is None:
            # Under this key too, which costs no slice of it.
            p = layer.plans[key] = layer.plan((*key[:-1], key[-1][NOT_TENSORS:]))
        made = p.forward(tensors, lists)
        ctx.held = p.backward, lists, layer, p.states
        ctx.set_materialize_grads(False)
        if p.whole:
            # Every output is the caller's, and the backward pass needs the first of them or none.
            ctx.save_for_backward(*tensors, made[0]) if p.saves_out else ctx.save_for_backward(*tensors)
            return tuple(made)
        states = p.states
        ctx.save_for_backward(*tensors, *made[: p.saves_out], *made[states:])
        return tuple(made[:states])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        backward, lists, layer, _ = ctx.held
        if torch.is_grad_enabled():
            raise ChronaxieError(f"{layer.entry}: there is no double backward; call backward without create_graph=True")
        return backward(ctx.saved_tensors, lists, _signed(grads))


def _signed(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors as they lie in memory: of those that PyTorch holds negated the library would see the other sign."""
    return tuple(None if t is None else t.resolve_neg() for t in tensors)


def _applying(entry: str) -> Callable[..., Any]:
    """The family's own autograd.Function, under whose name a profiler shows it, without Function.apply's own look for
    functorch's transforms, which goes through all arguments: the callers have made sure that there is none."""
    function = type(f"chronaxie::{entry}", (Recurrence,), {"__module__": __name__})
    return super(torch.autograd.Function, function).apply  # type: ignore[no-any-return, misc]


_APPLY = {family.entry: _applying(family.entry) for family in (LTC, CFC)}


def call(layer: Layer, lists: Tensor | None, tensors: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """The native call in eager mode: outputs and final states."""
    tensors = (*_signed(tensors[:LEAD]), *tensors[LEAD:])
    if torch.is_grad_enabled():
        return _APPLY[layer.entry]((layer, lists), *tensors)  # type: ignore[no-any-return]
    x, h0, c0, elapsed = tensors[:LEAD]
    batch, steps, _ = x.shape
    p = layer.plan((batch, steps, x.get_device(), h0 is None, c0 is None, elapsed is None, x.dtype, None))
    if profiler._is_profiler_enabled:
        with profiler.record_function(f"chronaxie::{layer.entry}"):
            return tuple(p.forward(tensors, lists))
    return tuple(p.forward(tensors, lists))


def traced(
    entry: str, text: str, states: int, key: int, lists: Tensor | None, tensors: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    """The operator, where a graph is being made."""
    backward = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if entry == "ltc" and ",store=" not in text:
        # How many tensors are kept must not depend on B and T, which a graph may leave open.
        text += ",store=false"
    op = getattr(torch.ops.chronaxie, entry)
    made = op(*tensors[:LEAD], list(tensors[LEAD:]), lists, text, key, backward)
    return tuple(made[:states])
