"""A use of parameters by one call of a layer, from which gradients of single samples follow, their norms, and weighted sums.

Axes: n samples, r positions that share the parameters (time steps, patches), d inputs and o outputs of a map.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._base import wide

# Elements of what is made for some samples at a time.
BUDGET = 1 << 22
Grads = dict[nn.Parameter, Tensor]


def spans(count: int, each: int) -> Iterator[tuple[int, int]]:
    """Ranges of samples, each of which makes ``each`` elements, that together stay within the budget."""
    step = max(1, BUDGET // max(each, 1))
    for lo in range(0, count, step):
        yield lo, min(count, lo + step)


class Use:
    """What one call knows of its parameters; ``samples`` is how many there are."""

    parameters: Sequence[nn.Parameter]
    samples: int

    def grads(self, lo: int, hi: int, wanted: Any = None) -> Grads:
        """For each parameter (of ``wanted``, where those are given) the gradients of samples ``lo .. hi``:
        ``[hi - lo, *p.shape]``."""
        raise NotImplementedError

    def weighted(self, c: Tensor) -> Grads:
        """For each parameter the sum of the gradients times ``c`` ``[n]``."""
        total: Grads = {}
        for lo, hi in spans(self.samples, sum(p.numel() for p in self.parameters)):
            for p, g in self.grads(lo, hi).items():
                part = torch.tensordot(c[lo:hi].to(g.dtype), g, 1)
                total[p] = total[p] + part if p in total else part
        return total

    def factors(self, p: nn.Parameter) -> Affine | None:
        """The map whose weight p is, where the gradient of a sample is a sum of outer products."""
        return None


class Affine(Use):
    """Maps ``y = x W^T + b`` at every position, groups of channels side by side.

    The gradient of sample n is ``sum_r g_nr x_nr^T``: ``x`` gives ``[n, groups, r, d]`` and ``g`` ``[n, groups, r, o]`` of a
    range of samples. ``mask`` ``[o, d]`` multiplies the weight.
    """

    def __init__(
        self,
        weight: nn.Parameter | None,
        bias: nn.Parameter | None,
        samples: int,
        sizes: tuple[int, int, int, int],
        x: Callable[[int, int], Tensor],
        g: Callable[[int, int], Tensor],
        mask: Tensor | None = None,
    ) -> None:
        self.weight, self.bias, self.samples, self.mask, self.x, self.g = weight, bias, samples, mask, x, g
        # groups, positions, inputs and outputs of a group.
        self.sizes = sizes
        # What x and g are parts of.
        self.whole: tuple[Tensor, Tensor] | None = None
        self.parameters = [p for p in (weight, bias) if p is not None]

    @classmethod
    def of(cls, weight: Any, bias: Any, x: Tensor, g: Tensor, mask: Tensor | None = None) -> Affine:
        """From ``x`` ``[n, ..., d]`` and ``g`` ``[n, ..., o]``."""
        n, d, o = x.shape[0], x.shape[-1], g.shape[-1]
        # Of a map without inputs its outputs tell.
        r = x.numel() // (n * d) if n and d else g.numel() // (n * o) if n and o else 1

        def part(t: Tensor, size: int) -> Callable[[int, int], Tensor]:
            return lambda lo, hi: wide(t if hi - lo == n else t[lo:hi]).reshape(hi - lo, 1, r, size)

        made = cls(weight, bias, n, (1, r, d, o), part(x, d), part(g, o), mask)
        made.whole = x, g
        return made

    def rows(self) -> tuple[Tensor, Tensor]:
        """Of one position a sample, ``[n, d]`` and ``[n, o]``."""
        _, _, d, o = self.sizes
        x, g = self.whole if self.whole is not None else (self.x(0, self.samples), self.g(0, self.samples))
        x, g = wide(x), wide(g)
        return x if x.dim() == 2 else x.reshape(self.samples, d), g if g.dim() == 2 else g.reshape(self.samples, o)

    def grads(self, lo: int, hi: int, wanted: Any = None) -> Grads:
        made: Grads = {}
        g = self.g(lo, hi)
        if self.weight is not None and (wanted is None or self.weight in wanted):
            whole = (g.mT @ self.x(lo, hi)).reshape(hi - lo, *self.weight.shape)
            made[self.weight] = whole if self.mask is None else whole * self.mask
        if self.bias is not None:
            made[self.bias] = g.sum(2).reshape(hi - lo, *self.bias.shape)
        return made

    def weighted(self, c: Tensor) -> Grads:
        groups, r, d, o = self.sizes
        total: Grads = {}
        for lo, hi in spans(self.samples, groups * r * (d + o)):
            g = self.g(lo, hi)
            g = g * c[lo:hi].to(g.dtype).view(-1, 1, 1, 1)
            parts: Grads = {}
            if self.weight is not None:
                x = self.x(lo, hi).transpose(0, 1).flatten(1, 2)
                whole = (g.transpose(0, 1).flatten(1, 2).mT @ x).reshape(self.weight.shape)
                parts[self.weight] = whole if self.mask is None else whole * self.mask
            if self.bias is not None:
                parts[self.bias] = g.sum((0, 2)).reshape(self.bias.shape)
            for p, part in parts.items():
                total[p] = total[p] + part if p in total else part
        return total

    def factors(self, p: nn.Parameter) -> Affine | None:
        return self if p is self.weight and self.mask is None else None


def rows_of(g: Tensor) -> Tensor:
    """Gradients ``[n, *p.shape]`` as ``[n, p.numel()]``; of a parameter without axes they have none behind the first."""
    return g.flatten(1) if g.dim() > 1 else g[:, None]


class Lookup(Use):
    """Rows of a table: ``ids`` ``[n, r]``, ``g`` ``[n, r, d]``."""

    def __init__(self, table: nn.Parameter, ids: Tensor, g: Tensor, padding: int | None) -> None:
        self.table, self.parameters, self.samples = table, [table], ids.shape[0]
        self.ids = ids.reshape(ids.shape[0], -1)
        self.g = wide(g).reshape(*self.ids.shape, table.shape[1])
        if padding is not None:
            self.g = self.g * (self.ids != padding)[..., None]

    def summed(self, g: Tensor, ids: Tensor, rows: int) -> Tensor:
        """``[rows, d]``: the sums of ``g`` ``[..., d]`` by ids; sorted, so that the order of addition is fixed on a GPU too."""
        return torch.ops.aten.embedding_dense_backward(g.contiguous(), ids.contiguous(), rows, -1, False)

    def grads(self, lo: int, hi: int, wanted: Any = None) -> Grads:
        rows = self.table.shape[0]
        ids = self.ids[lo:hi] + rows * torch.arange(hi - lo, device=self.ids.device)[:, None]
        return {self.table: self.summed(self.g[lo:hi], ids, rows * (hi - lo)).view(hi - lo, *self.table.shape)}

    def weighted(self, c: Tensor) -> Grads:
        return {self.table: self.summed(self.g * c.to(self.g.dtype)[:, None, None], self.ids, self.table.shape[0])}


class Scaled(Use):
    """A scale and a shift behind a normalisation: ``x`` is what the scale multiplies, ``[n, ..., *p.shape]`` after
    ``channel`` went last, ``g`` likewise."""

    def __init__(self, weight: Any, bias: Any, x: Tensor, g: Tensor) -> None:
        self.weight, self.bias, self.samples = weight, bias, x.shape[0]
        self.parameters = [p for p in (weight, bias) if p is not None]
        self.x, self.g = x, g

    def grads(self, lo: int, hi: int, wanted: Any = None) -> Grads:
        x, g = self.x[lo:hi], self.g[lo:hi]
        made = {}
        for p, t in ((self.weight, x * g), (self.bias, g)):
            if p is not None:
                made[p] = t.reshape(hi - lo, -1, *p.shape).sum(1)
        return made


class Direct(Use):
    """Gradients ``[n, *p.shape]`` that are there."""

    def __init__(self, p: nn.Parameter, g: Tensor) -> None:
        self.parameters, self.samples, self.g = [p], g.shape[0], wide(g)

    def grads(self, lo: int, hi: int, wanted: Any = None) -> Grads:
        return {self.parameters[0]: self.g[lo:hi].reshape(hi - lo, *self.parameters[0].shape)}


class Replayed(Use):
    """Any module whose samples do not mix: its call is run again, a sample at a time, or weighted and whole.

    ``run(lo, hi, c)`` gives the gradients of all parameters for samples lo to hi together, weighted by c.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], samples: int, run: Callable[[int, int, Any], Sequence[Any]]
    ) -> None:
        self.parameters, self.samples, self.run = parameters, samples, run

    def _all(self, lo: int, hi: int, c: Any) -> list[Tensor]:
        made = self.run(lo, hi, c)
        return [torch.zeros_like(wide(p)) if g is None else wide(g) for p, g in zip(self.parameters, made)]

    def grads(self, lo: int, hi: int, wanted: Any = None) -> Grads:
        each = [self._all(n, n + 1, None) for n in range(lo, hi)]
        return {p: torch.stack([row[k] for row in each]) for k, p in enumerate(self.parameters)}

    def weighted(self, c: Tensor) -> Grads:
        return dict(zip(self.parameters, self._all(0, self.samples, c)))


def unfolded(module: Any, x: Tensor) -> Tensor:
    """The patches ``[n, groups, r, d]`` that a convolution of 1 to 3 dimensions reads of ``x`` ``[n, C, ...]``."""
    k, stride, dilation = module.kernel_size, module.stride, module.dilation
    if module.padding_mode != "zeros":
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
    elif isinstance(module.padding, str):
        x = F.pad(x, module._reversed_padding_repeated_twice)
    else:
        x = F.pad(x, [p for pad in reversed(module.padding) for p in (pad, pad)])
    for axis in range(len(k)):
        x = x.unfold(2 + axis, (k[axis] - 1) * dilation[axis] + 1, stride[axis])[..., :: dilation[axis]]
    # [n, C, *out, *k]
    dims, groups = len(k), module.groups
    x = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    order = (0, 1, *range(3, 3 + dims), 2, *range(3 + dims, 3 + 2 * dims))
    x = x.permute(order)
    r = 1
    for n in x.shape[2 : 2 + dims]:
        r *= n
    return x.reshape(x.shape[0], groups, r, -1)


def convolution(module: Any, x: Tensor, g: Tensor) -> Affine:
    """The use of a convolution: ``x`` ``[n, C, ...]``, ``g`` ``[n, O, ...]``."""
    n, groups = x.shape[0], module.groups
    o, d = module.out_channels // groups, module.weight[0].numel()
    flat = wide(g).reshape(n, groups, o, -1).mT
    weight, bias = (p if p is not None and p.requires_grad else None for p in (module.weight, module.bias))
    return Affine(
        weight, bias, n, (groups, flat.shape[2], d, o), lambda lo, hi: unfolded(module, wide(x[lo:hi])), lambda lo, hi: flat[lo:hi]
    )


def normalisation(module: Any, x: Tensor, g: Tensor) -> Scaled:
    """The use of a LayerNorm, GroupNorm, InstanceNorm or RMSNorm, whose normalised input is made again."""
    x, g = wide(x), wide(g)
    if isinstance(module, nn.LayerNorm):
        x = F.layer_norm(x, module.normalized_shape, None, None, module.eps)
    elif isinstance(module, nn.GroupNorm):
        x = F.group_norm(x, module.num_groups, None, None, module.eps)
    else:
        eps = torch.finfo(x.dtype).eps if module.eps is None else module.eps
        axes = tuple(range(-len(module.normalized_shape), 0))
        x = x * torch.rsqrt(x.square().mean(axes, keepdim=True) + eps)
    if isinstance(module, nn.GroupNorm):
        x, g = x.movedim(1, -1), g.movedim(1, -1)
    weight, bias = (p if p is not None and p.requires_grad else None for p in (module.weight, getattr(module, "bias", None)))
    return Scaled(weight, bias, x, g)
