"""Which layers a loss went through: forward hooks note each call's inputs and where its outputs stand in autograd's graph."""

from __future__ import annotations

import weakref
from collections import Counter
from functools import lru_cache
from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge, register_multi_grad_hook
from torch.utils._pytree import tree_flatten, tree_map

from .. import torch as ct
from .._errors import ConfigError, ShapeError
from ..torch._sequence import SequenceModule
from ._alone import Native, is_native, variables
from ._tape import cfc_tape, rnn_tape
from ._uses import Affine, Lookup, Replayed, Use, convolution, normalisation

_NORMS = tuple(getattr(nn, n) for n in ("LayerNorm", "GroupNorm", "RMSNorm") if hasattr(nn, n))
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_MIXING = nn.modules.batchnorm._BatchNorm
_CELLS = (ct.CfC, ct.CfCCell, ct.WiredCfCCell)
# One unit with everything below them: they use the parameters of their children themselves.
_OURS = (
    *_CELLS, ct.LTC, ct.LTCCell, ct.TrueLiquidTimeConstant, ct.AUSSM, ct.Mamba, ct.S4D, ct.S5, ct.LRU, ct.RGLRU
)  # fmt: skip
_WHOLE = (*_OURS, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)


RECURRENT = (*_CELLS, ct.LTC, ct.LTCCell, ct.TrueLiquidTimeConstant, nn.RNNBase, nn.RNNCellBase)
MAPS = (nn.Linear, nn.Embedding, *_CONVOLUTIONS)
# Those whose forward pass is one native call.
_NATIVE = (ct.LTC, ct.LTCCell, ct.TrueLiquidTimeConstant)
_TAPED = (nn.RNNBase, nn.RNNCellBase, *_CELLS)
_FORWARDS = {kind.forward for kind in (*MAPS, *_NORMS)}


class Unit(NamedTuple):
    """A module with parameters of its own; ``plain`` ones use each once a call."""

    name: str
    module: nn.Module
    parameters: list[nn.Parameter]
    plain: bool


class Call(NamedTuple):
    """One call of a unit: its arguments, and the edges of its different outputs with their places among all."""

    unit: Unit
    args: Any
    edges: list[Any]
    places: list[int]
    shapes: list[Any]
    versions: list[tuple[Tensor, int]]


class _Kind(NamedTuple):
    """What a class of modules is."""

    plain: bool
    whole: bool
    mixing: bool
    cfc: bool
    embedding: bool


_OTHER = _Kind(False, False, False, False, False)


@lru_cache(maxsize=1024)
def _kind(module: type, whole_kinds: Any) -> _Kind:
    plain, whole = issubclass(module, (*MAPS, *_NORMS)), issubclass(module, whole_kinds)
    kind = _Kind(plain, whole, issubclass(module, _MIXING), issubclass(module, ct.CfC), issubclass(module, nn.Embedding))
    return kind if any(kind) else _OTHER


def _is_parametrized(module: nn.Module) -> bool:
    # As torch.nn.utils.parametrize has it, which asks a module for an attribute that most have not.
    found = module._modules.get("parametrizations")
    return isinstance(found, nn.ModuleDict) and len(found) > 0


def _trained(parameters: Any) -> list[nn.Parameter]:
    own = [p for p in parameters if p is not None and p.requires_grad]
    return list(dict(zip(map(id, own), own)).values())


def units_of(model: nn.Module, whole_kinds: Any = _WHOLE, mixing: bool = False) -> list[Unit]:
    """The units of a model; with ``mixing`` without the layers whose samples mix.

    Raises:
        ConfigError: a layer whose samples mix, or that drops at random where its call must be run again.
    """
    found: list[Unit] = []
    seen: set[nn.Module] = set()

    # A loop: a function that calls itself would be garbage that only Python's collector finds.
    stack = [("", model)]
    while stack:
        name, module = stack.pop()
        if module in seen:
            continue
        seen.add(module)
        of, below = _kind(type(module), whole_kinds), module._modules
        if of is _OTHER and not module._parameters and "parametrizations" not in below:
            # What most modules are that have no parameters of their own.
            if below:
                _push(stack, name, below)
            continue
        own = _trained(module._parameters.values())
        if of.plain and "weight" in module._parameters and "parametrizations" not in below and type(module).forward in _FORWARDS:
            if not of.embedding or not (module.scale_grad_by_freq or module.sparse):
                # And those that have.
                if own:
                    found.append(Unit(name or type(module).__name__, module, own, True))
                if below:
                    _push(stack, name, below)
                continue
        kind = type(module).__name__
        if of.mixing and (mixing or module.training or not module.track_running_stats):
            if mixing:
                continue
            raise ConfigError(f"{name or kind}: {kind} mixes samples: none has a gradient of its own; use GroupNorm, or eval()")
        parametrized = _is_parametrized(module)
        plain = of.plain and not parametrized
        # A class of one's own that computes something else is run again like any other module.
        if plain:
            weight = module.weight
            if weight is not None and not isinstance(weight, nn.Parameter):
                raise ConfigError(
                    f"{name or kind}: its weight is made by a hook (torch.nn.utils.weight_norm or spectral_norm), which hides what "
                    "its gradient is; use torch.nn.utils.parametrizations"
                )
            plain = type(module).forward in _FORWARDS
        whole = of.whole or parametrized
        if of.embedding and (module.scale_grad_by_freq or module.sparse):
            raise ConfigError(f"{name or kind}: an Embedding with sparse or scale_grad_by_freq has no gradients of single samples")
        fc = getattr(module, "fc", None) if of.cfc else None
        if whole:
            apart = set() if fc is None else set(fc.parameters())
            own = [p for p in _trained(module.parameters()) if p not in apart]
        if own:
            if not plain:
                _steady(name or kind, module)
            found.append(Unit(name or kind, module, own, plain))
        if fc is not None:
            stack.append((f"{name}.fc" if name else "fc", fc))
        elif not whole and below:
            _push(stack, name, below)
    return found


def _push(stack: list[tuple[str, nn.Module]], name: str, children: dict[str, nn.Module | None]) -> None:
    """The children of a module, so that the first is the next."""
    before = f"{name}." if name else ""
    stack += [(before + n, below) for n, below in reversed(children.items()) if below is not None]


def _steady(name: str, module: nn.Module) -> None:
    """Refuses what would not do the same a second time."""
    for m in module.modules():
        p = m.p if isinstance(m, nn.modules.dropout._DropoutNd) else getattr(m, "dropout", 0.0)
        p = getattr(m, "backbone_dropout", p) if isinstance(m, ct.CfCCell) else p
        if m.training and isinstance(p, (int, float)) and p > 0:
            raise ConfigError(
                f"{name}: {type(m).__name__} drops at random with probability {p}, and its call must be run again; set it to 0"
            )


class Hook:
    """A hook of the module it was made for: in a copy of that module, or where it was saved, it is one that does nothing."""

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return None if self._call is None else self._call(*args)

    def __reduce__(self) -> Any:
        return Hook, ()


class Recorder:
    """Notes calls while it is entered, or from :meth:`attach` to :meth:`detach`: in ``calls``, or by ``note(call, tensors)`` with
    the tensors whose gradients are those of the outputs."""

    def __init__(self, units: Sequence[Unit], note: Callable[[Call, list[Tensor]], None] | None = None) -> None:
        self.units, self.paused = units, False
        self.calls: list[Call] = []
        self._note = note
        self._handles: list[Any] = []

    def attach(self) -> None:
        for unit in self.units:
            self._handles.append(unit.module.register_forward_hook(Hook(self._hook(unit)), with_kwargs=True))

    def detach(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def __enter__(self) -> Recorder:
        self.attach()
        return self

    def __exit__(self, *args: Any) -> None:
        self.detach()

    def _hook(self, unit: Unit) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if self.paused or not torch.is_grad_enabled():
                return None
            if type(output) is Tensor and len(args) == 1 and type(args[0]) is Tensor and not kwargs:
                # What most calls are.
                if output.requires_grad:
                    made = output if output._base is None else _whole(output)
                    edge = GradientEdge(made.grad_fn, made.output_nr) if unit.plain and made.grad_fn is not None else get_gradient_edge(made)
                    # What nobody runs again, and the graph holds as long as the calls, needs no tensor of its own.
                    x = args[0] if unit.plain and self._note is None else args[0].detach()
                    versions = [] if x.is_inference() else [(x, x._version)]
                    call = Call(unit, ((x,), {}), [edge], [0], [output.shape], versions)
                    self.calls.append(call) if self._note is None else self._note(call, [made])
                return None
            # Of several outputs one may stand in another's graph, as a last state does: each gets a node of its own.
            several = len(tree_flatten(output)[0]) > 1
            own: dict[int, Tensor] = {}

            def apart(t: Any) -> Any:
                if several and isinstance(t, Tensor) and t.requires_grad:
                    # A state that is returned twice is one, with one gradient.
                    own.setdefault(id(t), t.view_as(t))
                    return own[id(t)]
                return t

            output = tree_map(apart, output)
            edges, places, shapes, tensors, seen = [], [], [], [], set()
            for place, t in enumerate(tree_flatten(output)[0]):
                if isinstance(t, Tensor) and t.requires_grad and id(t) not in seen:
                    seen.add(id(t))
                    tensors.append(t if several else _whole(t))
                    edges.append(get_gradient_edge(tensors[-1]))
                    places.append(place)
                    shapes.append(t.shape)
            if edges:
                given = tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, (args, kwargs))
                versions = [(t, t._version) for t in tree_flatten(given)[0] if isinstance(t, Tensor) and not t.is_inference()]
                call = Call(unit, given, edges, places, shapes, versions)
                self.calls.append(call) if self._note is None else self._note(call, tensors)
            return output

        return hook


def _whole(t: Tensor) -> Tensor:
    """The tensor of which t is but another shape, where there is one: a change of t in place takes its own node out of the graph,
    but not that one's."""
    base = t._base
    same = base is not None and base.requires_grad and base.numel() == t.numel() and base.storage_offset() == t.storage_offset()
    return base if same and base.is_contiguous() and t.is_contiguous() else t  # type: ignore[union-attr, return-value]


def when_known(tensors: Sequence[Tensor], seen: Callable[[Sequence[Any]], None]) -> None:
    """Calls ``seen`` with the gradients of all the tensors, None of those that have none, in every backward pass."""
    if len(tensors) == 1:
        # Also where the backward pass begins at it, which the other does not see.
        tensors[0].register_hook(lambda g: seen((g,)))
    else:
        register_multi_grad_hook(tensors, seen)


def _axis(module: nn.Module, kind: str, batch_axis: int) -> int:
    """Where the samples lie: in a ``state``, a ``last`` output without time, or anything else."""
    if isinstance(module, nn.RNNBase):
        return 1 if kind == "state" else (0 if module.batch_first else 1)
    if isinstance(module, SequenceModule):
        return 0 if kind in ("state", "last") or module.batch_first else 1
    if isinstance(module, (*_OURS, nn.RNNCellBase)):
        return 0
    if isinstance(module, nn.MultiheadAttention):
        return 0 if module.batch_first else 1
    return batch_axis


def _part(t: Any, axis: int, samples: int, lo: int, hi: int) -> Any:
    """A range of samples of an argument; what has none of them stays."""
    if isinstance(t, Tensor) and t.dim() > axis and t.shape[axis] == samples:
        return t.narrow(axis, lo, hi - lo)
    return t


def _input(call: Call) -> Tensor:
    args, kwargs = call.args
    return args[0] if args else next(iter(kwargs.values()), None)  # type: ignore[no-any-return]


def batch_of(call: Call, batch_axis: int) -> int:
    """How many samples a call has; 0 of one without a batch, or with packed sequences."""
    x, module = _input(call), call.unit.module
    plain = isinstance(module, (*_CONVOLUTIONS, nn.GroupNorm))
    axis = 0 if plain else _axis(module, "data", batch_axis)
    least = len(module.kernel_size) + 2 if isinstance(module, _CONVOLUTIONS) else 2 if isinstance(module, nn.Linear) else 1
    if isinstance(module, (nn.RNNBase, SequenceModule, ct.TrueLiquidTimeConstant)):
        least = 3
    return x.shape[axis] if isinstance(x, Tensor) and x.dim() >= max(least, axis + 1) else 0


def positions_of(call: Call, use: Use) -> int:
    """How many positions a use has, of all samples."""
    if isinstance(use, Affine):
        return use.samples * use.sizes[1]
    x = _input(call)
    return x.numel() if isinstance(use, Lookup) else x.numel() // max(x.shape[-1], 1)


def _check_versions(call: Call) -> None:
    for t, version in call.versions:
        if t._version != version:
            raise ConfigError(
                f"{call.unit.name}: an input of shape {tuple(t.shape)} was changed in place behind the call; it is needed as it was"
            )


def _check_batch(call: Call, found: int, samples: int) -> None:
    if found != samples:
        x = _input(call)
        shape = tuple(x.shape) if isinstance(x, Tensor) else f"an input of type {type(x).__name__}"
        raise ShapeError(
            f"{call.unit.name}: a call of shape {shape} has {found} samples where the batch has {samples}; "
            "keep the samples on an axis of their own"
        )


def _samples(t: Any, axis: int) -> int:
    """How many samples lie on an axis, 0 of what has no such axis."""
    return int(t.shape[axis]) if isinstance(t, Tensor) and t.dim() > axis else 0


def replayed(call: Call, grads: Sequence[Any], samples: int, batch_axis: int, pause: Any) -> Replayed:
    """The use of a call that is run again. Of a module of unknown kind every tensor among the arguments whose ``batch_axis`` has as
    many elements as there are samples is taken apart."""
    module, (args, kwargs) = call.unit.module, call.args
    data, state = _axis(module, "data", batch_axis), _axis(module, "state", batch_axis)
    last = _axis(module, "last", batch_axis) if not getattr(module, "return_sequences", True) else data
    recurrent = isinstance(module, (nn.RNNBase, SequenceModule))
    _check_batch(call, _samples(_input(call), data), samples)
    axes = [(last if place == 0 else state) if recurrent else data for place in call.places]
    for axis, g in zip(axes, grads):
        if g is not None and _samples(g, axis) != samples:
            raise ShapeError(
                f"{call.unit.name}: an output of shape {tuple(g.shape)} does not have the batch's {samples} samples on its axis {axis}; "
                "a layer that has parameters must keep them apart, and the loss may take their mean"
            )

    def run(lo: int, hi: int, c: Any) -> Sequence[Any]:
        def part(name: Any, value: Any) -> Any:
            axis = state if recurrent and name in (1, "hx") else data
            if isinstance(module, nn.MultiheadAttention):
                # A mask over positions has no samples.
                if name not in (0, 1, 2, 3, "query", "key", "value", "key_padding_mask"):
                    return value
                axis = 0 if name in (3, "key_padding_mask") else data
            return tree_map(lambda t: _part(t, axis, samples, lo, hi), value)

        given = [part(k, v) for k, v in enumerate(args)]
        named = {k: part(k, v) for k, v in kwargs.items()}
        was, pause.paused = pause.paused, True
        try:
            with torch.enable_grad():
                made = tree_flatten(module.forward(*given, **named))[0]
        finally:
            pause.paused = was
        outputs, seeds = [], []
        for place, axis, g in zip(call.places, axes, grads):
            if g is None:
                continue
            g = _part(g, axis, samples, lo, hi)
            if made[place].shape != g.shape:
                raise ShapeError(
                    f"{call.unit.name}: of {hi - lo} of the batch's {samples} samples it gives an output of shape "
                    f"{tuple(made[place].shape)}, not {tuple(g.shape)}; a layer that has parameters must keep samples apart"
                )
            if c is not None:
                g = g * c[lo:hi].to(g.dtype).view([-1 if k == axis else 1 for k in range(g.dim())])
            outputs.append(made[place])
            seeds.append(g)
        if not outputs:
            return [None] * len(call.unit.parameters)
        return torch.autograd.grad(outputs, call.unit.parameters, seeds, allow_unused=True)

    return Replayed(call.unit.parameters, samples, run)


def uses_of(call: Call, grads: Sequence[Any], samples: int, batch_axis: int = 0, pause: Any = None) -> list[Use]:
    """The uses of parameters in a call, from the gradients of its outputs; ``grads`` may hold None."""
    unit, module = call.unit, call.unit.module
    if len(grads) == 1 and grads[0] is not None and unit.plain and isinstance(module, nn.Linear):
        # What most calls are.
        _check_versions(call)
        x, g = _input(call), grads[0]
        _check_batch(call, _samples(x, batch_axis), samples)
        if g.shape != call.shapes[0]:
            g = g.reshape(call.shapes[0])
        if batch_axis:
            x, g = x.movedim(batch_axis, 0), g.movedim(batch_axis, 0)
        weight, bias = module.weight, module.bias
        own = weight if weight.requires_grad else None, bias if bias is not None and bias.requires_grad else None
        return [Affine.of(*own, x, g)]
    if all(g is None for g in grads):
        return []
    grads = [g if g is None or g.shape == shape else g.reshape(shape) for g, shape in zip(grads, call.shapes)]
    _check_versions(call)
    if not unit.plain and isinstance(module, _TAPED) and not any(_is_parametrized(m) for m in module.modules()):
        axis = _axis(module, "data", batch_axis)
        x = _input(call)
        if not isinstance(x, Tensor) or x.dim() != (2 if isinstance(module, (nn.RNNCellBase, ct.CfCCell, ct.WiredCfCCell)) else 3):
            raise ShapeError(f"{unit.name}: a call without a batch, or with packed sequences, has no samples to tell apart")
        _check_batch(call, x.shape[axis], samples)
        seeds: list[Any] = [None] * (max(call.places) + 1)
        for place, g in zip(call.places, grads):
            seeds[place] = g
        tape = cfc_tape if isinstance(module, _CELLS) else rnn_tape
        was, pause.paused = pause.paused, True
        try:
            return tape(module, call.args, seeds, unit.parameters)
        finally:
            pause.paused = was
    if not unit.plain:
        return [replayed(call, grads, samples, batch_axis, pause)]
    x, g = _input(call), grads[0]
    if isinstance(module, (*_CONVOLUTIONS, nn.GroupNorm)):
        _check_batch(call, x.shape[0] if x.dim() == g.dim() and x.dim() > len(getattr(module, "kernel_size", ())) + 1 else 1, samples)
    else:
        _check_batch(call, _samples(x, batch_axis), samples)
        if batch_axis:
            x, g = x.movedim(batch_axis, 0), g.movedim(batch_axis, 0)
    if isinstance(module, nn.Embedding):
        return [Lookup(module.weight, x, g, module.padding_idx)]
    if isinstance(module, _CONVOLUTIONS):
        return [convolution(module, x, g)]
    return [normalisation(module, x, g)]


# Nodes between a layer's outputs and its native call.
_BETWEEN = 64


def natives_of(call: Call, tensors: Sequence[Tensor], samples: int) -> list[Any]:
    """The nodes of native calls behind the outputs of a layer, where they alone read its parameters, each once, and have
    ``samples``; else none."""
    if not isinstance(call.unit.module, _NATIVE):
        return []
    own, read = set(call.unit.parameters), Counter[Any]()
    found: list[Any] = []
    stack: list[Any] = [t.grad_fn for t in tensors]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if node is None or len(seen) > _BETWEEN:
            return []
        if is_native(node):
            found.append(node)
            read.update(p for p in variables(node) if p is not None and p in own)
            continue
        for after, _ in node.next_functions:
            if getattr(after, "variable", None) in own:
                return []
            if after is not None and after not in seen and getattr(after, "variable", None) is None:
                seen.add(after)
                stack.append(after)
    if not found or read != Counter(own):
        return []
    inputs = [node.saved_tensors[0] for node in found]
    return found if all(x.shape[0] == samples and x.numel() > 0 for x in inputs) else []


def when_reached(call: Call, tensors: Sequence[Tensor], samples: int, seen: Callable[[Native], None]) -> bool:
    """Calls ``seen`` with each native call behind the outputs of a layer, and the gradients of its outputs, in every backward pass; whether
    they alone read its parameters, so that they say all of it."""
    natives = natives_of(call, tensors, samples)

    def reached(node: Any, grads: Sequence[Any]) -> None:
        if any(g is not None for g in grads):
            use = Native(node)
            use.edges, use.grads_of_outputs = [], list(grads)
            seen(use)

    for node in natives:
        # A hook that held its own node would keep a loss that is dropped.
        node.register_prehook(lambda grads, node=weakref.ref(node): reached(node(), grads))
    return bool(natives)


class Graph:
    """What the graph of a loss uses.

    Attributes:
        counts: how often each parameter.
        natives: calls of native recurrences.
    """

    def __init__(self, loss: Tensor) -> None:
        self.counts: dict[Any, int] = {}
        self.natives: list[Any] = []
        stack: list[Any] = [loss.grad_fn]
        seen = set(stack)
        while stack:
            for node, _ in stack.pop().next_functions:
                if node is None:
                    continue
                variable = getattr(node, "variable", None)
                if variable is not None:
                    self.counts[variable] = self.counts.get(variable, 0) + 1
                elif node not in seen:
                    seen.add(node)
                    stack.append(node)
                    if is_native(node):
                        self.natives.append(node)

    def native(self, calls: Sequence[Call], samples: int) -> tuple[list[Native], list[Call]]:
        """What native recurrences use, where layers' parameters are read by nothing else, and the calls of other layers."""
        if not self.natives:
            return [], list(calls)
        of_nodes = [[p for p in variables(node) if p is not None] for node in self.natives]
        used = Counter(p for of in of_nodes for p in of)
        ours = {
            call.unit.module
            for call in calls
            if isinstance(call.unit.module, _NATIVE) and all(used[p] == self.counts.get(p, 0) for p in call.unit.parameters)
        }
        inside = [call for call in calls if call.unit.module in ours]
        rest = [call for call in calls if call.unit.module not in ours]
        mine = {p for call in inside for p in call.unit.parameters}
        taken = [(node, of) for node, of in zip(self.natives, of_nodes) if any(p in mine for p in of)]
        shared = any(p in mine for call in rest for p in call.unit.parameters)
        if not taken or shared or any(p not in mine for _, of in taken for p in of):
            return [], list(calls)
        for call in inside:
            _check_versions(call)
            _check_batch(call, _input(call).shape[_axis(call.unit.module, "data", 0)], samples)
        made = [Native(node) for node, _ in taken]
        if any(use.samples != samples or use.tensors[0].numel() == 0 for use in made):
            return [], list(calls)
        return made, rest


def check_uses(counts: dict[Any, int], calls: Sequence[Call], grads: Sequence[Sequence[Any]]) -> None:
    """Refuses a parameter that the loss also reaches by another way than the calls whose outputs have gradients.

    Raises:
        ConfigError: its name, and how often it is used.
    """
    known: dict[nn.Parameter, list[Any]] = {}
    for call, of in zip(calls, grads):
        live = any(g is not None for g in of)
        for p in call.unit.parameters:
            entry = known.setdefault(p, [call.unit.name, 0, True])
            entry[1] += live
            entry[2] &= call.unit.plain
    for p, (name, live, plain) in known.items():
        found = counts.get(p, 0)
        if found > live and (plain or live == 0):
            raise ConfigError(
                f"{name}: the loss uses its parameter of shape {tuple(p.shape)} {found} times, and {live} of them are calls whose "
                "outputs can be seen; another module uses it, or an output that is a view was changed in place"
            )
