"""Gradients of single samples: whole, by their norms alone, and clipped.

The norm of a sample's gradient needs no gradient: of a map with inputs x and output gradients g at R positions it is
``sum_rs (x_r . x_s)(g_r . g_s)`` (Goodfellow, arXiv:1510.01799; Li et al., arXiv:2110.05679), and the clipped sum is one product
of the inputs with the weighted g (Bu et al., "Automatic clipping", and "book-keeping", arXiv:2210.00038).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch import Tensor, nn

from .._errors import ConfigError, ShapeError
from ..torch import _plan
from ..torch._passes import planned
from ._alone import Native
from ._base import one_of, wide, within
from ._calls import Graph, Recorder, check_uses, units_of, uses_of
from ._uses import Affine, Use, rows_of, spans


class Clipped(NamedTuple):
    """``norms`` ``[B]`` of the gradients of single samples before they were clipped, and the ``loss``."""

    norms: Tensor
    loss: Tensor


class _Seen(NamedTuple):
    """One pass through a model: its samples, the uses of parameters, the loss, and the factor from the gradient of the loss
    to that of a sample."""

    samples: int
    uses: list[Use]
    loss: Tensor
    scale: int


def samples_of(name: str, inputs: Any, batch_axis: int) -> int:
    """How many samples there are in a tensor, or in the first tensor of a tuple or a dict."""
    all_ = [inputs] if isinstance(inputs, Tensor) else list(inputs.values() if isinstance(inputs, dict) else inputs)
    for t in all_:
        if isinstance(t, Tensor) and t.dim() > batch_axis:
            return t.shape[batch_axis]
    raise ShapeError(f"{name}: no input has an axis {batch_axis}, on which the samples lie")


def _observe(
    name: str, model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Any, targets: Any, reduction: str, batch_axis: int
) -> _Seen:
    one_of(name, "reduction", reduction, ("mean", "sum"))
    samples = samples_of(name, inputs, batch_axis)
    recorder = Recorder(units_of(model))
    if samples == 0:
        # Nothing that a loss of no samples would say is anybody's; a mean's is NaN.
        first = next((p for p in model.parameters() if p.requires_grad), None)
        if first is None:
            raise ConfigError(f"{name}: the model has no layer with parameters that are trained")
        return _Seen(0, [], wide(first.detach()).new_zeros(()), 1)
    with torch.enable_grad(), recorder:
        if isinstance(inputs, dict):
            output = model(**inputs)
        else:
            output = model(*([inputs] if isinstance(inputs, Tensor) else inputs))
        loss = loss_fn(output) if targets is None else loss_fn(output, targets)
    if not isinstance(loss, Tensor) or tuple(loss.shape) not in ((), (1,), (samples,)):
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ShapeError(f"{name}: the loss is {shape}; it must be one number, or one for each of the {samples} samples")
    if not loss.requires_grad:
        raise ConfigError(f"{name}: the loss depends on no parameter that requires a gradient")
    scale = samples if reduction == "mean" and loss.numel() == 1 else 1
    if loss.dim() > 0 or loss.is_leaf:
        loss = loss.sum()
    if not recorder.calls:
        raise ConfigError(f"{name}: the model has no layer with parameters that are trained")
    graph = Graph(loss)
    natives, calls = graph.native(recorder.calls, samples)
    edges = [e for call in calls for e in call.edges] + [e for use in natives for e in use.edges]
    # The samples' own factor goes into the pass where the loss's type holds it.
    seeded = loss.dtype in (torch.float32, torch.float64)
    seed = torch.full_like(loss, scale) if seeded and scale != 1 else None
    # On a GPU another thread would make the gradients, and waking it takes longer than what it does for a small model.
    with torch.autograd.set_multithreading_enabled(False):
        found = iter(torch.autograd.grad(loss, edges, seed, allow_unused=True))
    by = 1 if seeded else scale
    grads = [[next(found) for _ in call.edges] for call in calls]
    check_uses(graph.counts, calls, grads)
    uses: list[Use] = []
    with torch.no_grad():
        for call, of in zip(calls, grads):
            uses += uses_of(call, of if by == 1 else [None if g is None else g * by for g in of], samples, batch_axis, recorder)
        for use in natives:
            of = [next(found) for _ in use.edges]
            if any(g is not None for g in of):
                use.grads_of_outputs = [g if g is None or by == 1 else g * by for g in of]
                uses.append(use)
    return _Seen(samples, uses, loss, scale)


def per_sample_gradients(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    inputs: Any,
    targets: Any = None,
    *,
    reduction: str = "mean",
    batch_axis: int = 0,
) -> dict[str, Tensor]:
    """The gradient of each sample's loss, for every parameter that is trained.

    Layers: Linear, Conv1d to Conv3d, Embedding, LayerNorm, GroupNorm and RMSNorm, LSTM, GRU and RNN and their cells, CfC and its
    cells, by what hooks see; LTC by one backward pass of its own, which leaves them; the scans' modules and any other module by
    running its call again, a sample at a time.
    They may be called several times, and share parameters. ``.grad`` is not touched. A batch of no samples is not run: there are no
    gradients, and the loss counts as 0.

    Args:
        model: a module; its samples must not mix (no BatchNorm in training), and nothing may drop at random in layers that
            are run again.
        loss_fn: ``loss_fn(output, targets)``, or ``loss_fn(output)`` without targets; gives one number, or ``[B]``.
        inputs: a tensor, a tuple of them or a dict of arguments; ``batch_axis`` is where the samples lie, in all layers.
        reduction: what the loss is of the samples' losses where it is one number, ``mean`` or ``sum``. The loss of a sample is
            its share, times B of a mean.

    Returns:
        By the names of ``model.named_parameters()``: ``[B, *p.shape]``, float32 (float64 of such parameters); zeros where the
        loss uses none.

    Raises:
        ShapeError, ConfigError: a sentence with the values.
    """
    seen = _observe("per_sample_gradients", model, loss_fn, inputs, targets, reduction, batch_axis)
    total: dict[nn.Parameter, Tensor] = {}
    with torch.no_grad():
        for use in seen.uses:
            for p, g in use.grads(0, seen.samples).items():
                total[p] = total[p] + g if p in total else g
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    return {n: total[p] if p in total else wide(p).new_zeros(seen.samples, *p.shape) for n, p in named.items()}


def _ghost(maps: Sequence[Affine], lo: int, hi: int) -> Tensor:
    """Squared norms ``[hi - lo]`` of the gradients of one weight, from the positions of all its calls."""
    x = torch.cat([m.x(lo, hi) for m in maps], 2) if len(maps) > 1 else maps[0].x(lo, hi)
    g = torch.cat([m.g(lo, hi) for m in maps], 2) if len(maps) > 1 else maps[0].g(lo, hi)
    if x.shape[2] == 1:
        return (x.square().sum(-1) * g.square().sum(-1)).sum((1, 2))
    return ((x @ x.mT) * (g @ g.mT)).sum((1, 2, 3)).clamp_min(0)


def _cheaper_by_ghost(maps: Sequence[Affine]) -> bool:
    _, _, d, o = maps[0].sizes
    r = sum(m.sizes[1] for m in maps)
    return r == 1 or r * (d + o) < d * o


# Numbers of a row beyond which float32 sums of a CPU's vector_norm, eight at a time, are not near enough.
_LONG = 1 << 16


def _lengths(t: Tensor) -> Tensor:
    """Norms ``[n]`` of the rows of ``[n, d]``."""
    return torch.linalg.vector_norm(t, dim=1) if t.shape[1] <= _LONG or not t.is_cpu else t.square().sum(1).sqrt()


def _squares(uses: Sequence[Use], samples: int) -> dict[nn.Parameter, Tensor]:
    """The squared norm of each sample's gradient, ``[n]`` for each parameter. What is made for it is some samples at a time,
    within a budget (or for one sample, where one has more)."""
    of: dict[nn.Parameter, list[Use]] = {}
    for use in uses:
        for p in use.parameters:
            of.setdefault(p, []).append(use)
    norms: dict[nn.Parameter, Tensor] = {}
    rest: dict[nn.Parameter, list[Use]] = {}
    for p, users in of.items():
        maps = [m for m in (u.factors(p) for u in users) if m is not None]
        if len(maps) < len(users) or not _cheaper_by_ghost(maps):
            rest[p] = users
            continue
        groups, _, d, o = maps[0].sizes
        r = sum(m.sizes[1] for m in maps)
        parts = [_ghost(maps, lo, hi) for lo, hi in spans(samples, groups * r * (d + o + 2 * r))]
        norms[p] = torch.cat(parts)
    # Parameters that share a use are made together, each with every use that it has.
    while rest:
        together, users = [next(iter(rest))], []
        for p in together:
            for use in rest[p]:
                if use not in users:
                    users.append(use)
                    known = set(together)
                    together += [q for q in use.parameters if q in rest and q not in known]
        each = sum(p.numel() for p in together)
        known = set(together)
        maps = [u for u in users if isinstance(u, Affine) and u.weight in known]
        each += max((u.sizes[0] * u.sizes[1] * u.sizes[2] for u in maps), default=0)
        parts_of: dict[nn.Parameter, list[Tensor]] = {p: [] for p in together}
        for lo, hi in spans(samples, each):
            total: dict[nn.Parameter, Tensor] = {}
            for use in users:
                for p, g in use.grads(lo, hi, parts_of).items():
                    if p in parts_of:
                        total[p] = total[p] + g if p in total else g
            for p, g in total.items():
                parts_of[p].append(rows_of(g).square().sum(1))
        for p, parts in parts_of.items():
            norms[p] = torch.cat(parts)
            del rest[p]
    return norms


class _Parts(NamedTuple):
    """Uses by what their norms come of: maps of one position a sample, and native calls, whose parameters nobody else uses; the rest."""

    maps: list[Affine]
    natives: list[Native]
    rest: list[Use]


def _parts(uses: Sequence[Use]) -> _Parts:
    seen: set[int] = set()
    shared: set[int] = set()
    for use in uses:
        for p in use.parameters:
            (shared if id(p) in seen else seen).add(id(p))
    parts = _Parts([], [], [])
    for use in uses:
        alone = not shared or not any(id(p) in shared for p in use.parameters)
        if alone and isinstance(use, Affine) and use.sizes[:2] == (1, 1) and use.mask is None:
            parts.maps.append(use)
        elif alone and isinstance(use, Native):
            parts.natives.append(use)
        else:
            parts.rest.append(use)
    return parts


@lru_cache(maxsize=256)
def _ghosts(case: str, device: str) -> tuple[Any, Tensor]:
    """A native plan for maps of one position, and how many each sample has."""
    plan = planned("ghost_norms", case, device)
    return plan, torch.ones(plan.signatures["step"][1][0][2], dtype=torch.int32, device=device)


def _of_maps(maps: Sequence[Affine], samples: int) -> list[Tensor]:
    """Norms whose squares add up: of g for a bias, and |x| |g| for a weight, or of all of them by one native call."""
    rows = [use.rows() for use in maps]
    if rows[0][1].is_cuda and (squares := _native_squares(maps, rows, samples)) is not None:
        return [squares.sqrt_()]
    found, of_x, of_g = [], [], []
    for use, (x, g) in zip(maps, rows):
        length = _lengths(g)
        if use.weight is not None:
            of_x.append(_lengths(x))
            of_g.append(length)
        if use.bias is not None:
            found.append(length)
    return found + list(torch._foreach_mul(of_x, of_g)) if of_x else found


def _native_squares(maps: Sequence[Affine], rows: Sequence[tuple[Tensor, Tensor]], samples: int) -> Tensor | None:
    """Squared norms of the gradients of all maps together, where there is a native call: of float32 numbers on one GPU, all with a
    bias that is trained or none."""
    index, biased, words = rows[0][0].get_device(), maps[0].bias is not None, []
    for use, pair in zip(maps, rows):
        _, _, d, o = use.sizes
        if use.weight is None or (use.bias is not None) is not biased or d * o == 0:
            return None
        for t in pair:
            if t.dtype is not torch.float32 or t.get_device() != index:
                return None
        words.append(f"{d}x{o}")
    if _plan.unavailable(index) is not None:
        return None
    plan, lengths = _ghosts(f"B{samples}_T1,maps={'+'.join(words)}{'' if biased else ',bias=false'}", f"cuda:{index}")
    tensors = [t.view(samples, 1, 1, -1) for pair in rows for t in pair]
    return plan.caller.run("step", (*tensors, lengths))[0]  # type: ignore[no-any-return]


def _norms(seen: _Seen) -> Tensor:
    """The norm of each sample's gradient over all parameters, ``[n]``, by few operations: they cost more than what they do."""
    maps, natives, rest = _parts(seen.uses)
    found = _of_maps(maps, seen.samples) if maps else []
    found += [torch.stack(list(use.squares().values())).sum(0).sqrt() for use in natives]
    of_rest = list(_squares(rest, seen.samples).values()) if rest else []
    if of_rest:
        found.append(sum(of_rest[1:], of_rest[0]).sqrt())
    if len(found) < 2:
        return found[0] if found else wide(seen.loss).new_zeros(seen.samples)
    if len({t.dtype for t in found}) > 1:
        found = [t.double() for t in found]
    made: Tensor = torch.linalg.vector_norm(torch.stack(found), dim=0)
    return made


def _norms_of_each(uses: Sequence[Use], samples: int) -> dict[nn.Parameter, Tensor]:
    """The same for each parameter."""
    maps, natives, rest = _parts(uses)
    norms = {p: squares.sqrt() for p, squares in _squares(rest, samples).items()}
    for use in maps:
        x, g = use.rows()
        length = _lengths(g)
        if use.weight is not None:
            norms[use.weight] = _lengths(x) * length
        if use.bias is not None:
            norms[use.bias] = length
    for native in natives:
        norms.update((p, squares.sqrt()) for p, squares in native.squares().items())
    return norms


def per_sample_norms(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    inputs: Any,
    targets: Any = None,
    *,
    reduction: str = "mean",
    batch_axis: int = 0,
    by_parameter: bool = False,
) -> Any:
    """The norm of each sample's gradient over all parameters, ``[B]``; no sample's gradient is kept.

    Beside the activations, which any backward pass keeps, memory is bounded by a budget (16 MiB of float32), or by the
    gradient of one sample of one layer where that is more: whatever B is.

    Args:
        by_parameter: whether a dict of norms by the names of the parameters comes instead.

    The other arguments and the errors are those of :func:`per_sample_gradients`.
    """
    seen = _observe("per_sample_norms", model, loss_fn, inputs, targets, reduction, batch_axis)
    with torch.no_grad():
        if by_parameter:
            norms = _norms_of_each(seen.uses, seen.samples)
            named = {n: p for n, p in model.named_parameters() if p.requires_grad}
            return {n: norms[p] if p in norms else wide(p).new_zeros(seen.samples) for n, p in named.items()}
        return _norms(seen)


def clip_per_sample(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    inputs: Any,
    targets: Any = None,
    *,
    max_norm: float,
    reduction: str = "mean",
    batch_axis: int = 0,
) -> Clipped:
    """Adds to ``.grad`` the mean (or sum, with that reduction) of the samples' gradients, each shortened to ``max_norm``.

    There is one backward pass, through layers' outputs only; weights get their gradients from weighted products, and what must
    be run again is run again weighted.

    Args:
        max_norm: the longest that a sample's gradient over all parameters may be.

    Returns:
        The norms before, and the loss. The other arguments and the errors are those of :func:`per_sample_gradients`.
    """
    within("clip_per_sample", "max_norm", max_norm, 0.0, float("inf"))
    seen = _observe("clip_per_sample", model, loss_fn, inputs, targets, reduction, batch_axis)
    with torch.no_grad():
        norms = _norms(seen)
        c = (max_norm / norms.clamp_min(1e-38)).clamp_max(1.0)
        c = c / max(seen.samples, 1) if reduction == "mean" else c
        if seen.samples == 0:
            for p in model.parameters():
                if p.requires_grad and p.grad is None:
                    p.grad = torch.zeros_like(p)
        for use in seen.uses:
            for p, g in use.weighted(c).items():
                g = g.to(p.dtype)
                p.grad = g if p.grad is None else p.grad + g
    return Clipped(norms, seen.loss.detach())
