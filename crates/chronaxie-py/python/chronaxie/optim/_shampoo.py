"""Shampoo (Gupta, Koren and Singer, "Shampoo: preconditioned stochastic tensor optimization", ICML 2018), with blocks, grafting
and staggered roots."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Callable, Iterable, Optional

import torch
from torch import Tensor

from .._errors import ConfigError, DataError
from ._base import Base, gradient, within
from ._matrix import FAILED, roots_of

_GRAFTING = ("adam", "rmsprop", "adagrad", "sgd", "none")


def merged_shape(shape: Iterable[int], most: int) -> list[int]:
    """Sizes without ones, neighbours merged while their product is at most ``most``."""
    out: list[int] = []
    for n in shape:
        if n == 1:
            continue
        if out and out[-1] * n <= most:
            out[-1] *= n
        else:
            out.append(n)
    return out


def blocks_of(shape: list[int], most: int) -> list[tuple[tuple[slice, ...], list[int], list[int]]]:
    """Regions of a tensor, each a grid of blocks of one shape: slices, how many blocks there are along each axis, and how
    long they are."""
    regions: list[tuple[tuple[slice, ...], list[int], list[int]]] = [((), [], [])]
    for n in shape:
        whole = n // most * most
        pieces = [(slice(0, whole), whole // most, most)] if whole else []
        if n > whole:
            pieces.append((slice(whole, n), 1, n - whole))
        regions = [((*s, a), [*c, k], [*b, m]) for s, c, b in regions for a, k, m in pieces]
    return regions


def to_blocks(x: Tensor, counts: list[int], sizes: list[int]) -> Tensor:
    """``[blocks, *sizes]`` of a region."""
    o = len(sizes)
    x = x.reshape([n for pair in zip(counts, sizes) for n in pair])
    return x.permute(*range(0, 2 * o, 2), *range(1, 2 * o, 2)).reshape(-1, *sizes)


def from_blocks(x: Tensor, counts: list[int], sizes: list[int]) -> Tensor:
    """The region of ``[blocks, *sizes]``."""
    o = len(sizes)
    x = x.reshape(*counts, *sizes).permute([i for k in range(o) for i in (k, o + k)])
    return x.reshape([c * s for c, s in zip(counts, sizes)])


def unfolded(x: Tensor, axis: int) -> Tensor:
    """``[blocks, n_axis, the rest]``."""
    return x.movedim(axis + 1, 1).reshape(x.shape[0], x.shape[axis + 1], -1)


def along(x: Tensor, m: Tensor, axis: int) -> Tensor:
    """Every block times its symmetric matrix along an axis."""
    y = torch.bmm(m, unfolded(x, axis))
    moved = x.movedim(axis + 1, 1).shape
    return y.reshape(moved).movedim(1, axis + 1)


class Shampoo(Base):
    """Every axis of every block of a parameter has a matrix that whitens gradients along it.

    For a block G of order o, with the moments at step t, ``L_k <- b2 L_k + (1 - b2) G_(k) G_(k)^T`` and
    ``R_k = (L_k / (1 - b2^t) + eps I)^(-1/2o)``; the step is the first moment times every R_k, scaled to the norm of the step
    that ``grafting`` would take. Roots of one size are one call for the whole model, and each block's turn to be made
    anew comes every ``precondition_frequency`` steps, another share of them at each step.

    Args:
        params: tensors or groups; every option can be set by group.
        lr: the learning rate, a number or a tensor.
        betas: decay of the first moment, and of the factors and the grafting's second moment; 1 sums the factors.
        absolute, relative: damping, ``max(absolute, relative ||L||_F)``.
        weight_decay: decoupled (W shrinks by lr times it) or, with ``decoupled_weight_decay=False``, added to the gradient.
        max_preconditioner_dim: blocks are at most so long; neighbouring axes that fit it are merged.
        precondition_frequency: steps between two roots of a block.
        start_preconditioning_step: earlier steps are the grafting's own.
        grafting: ``adam``, ``rmsprop``, ``adagrad``, ``sgd`` or ``none``.
        grafting_eps: added to the root of the grafting's second moment.
        precondition_vectors: whether parameters of one axis have a matrix too; otherwise they take the grafting's step.
        exponent: instead of 1/2o, for every order.
        maximize: climbs.

    Raises:
        ConfigError: an option out of range, with its value.
        DtypeError: sparse and complex gradients.
        DataError: a gradient with a NaN or an infinity, where roots are made of it on the CPU.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        *,
        absolute: float = 1e-12,
        relative: float = 1e-6,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = True,
        max_preconditioner_dim: int = 1024,
        precondition_frequency: int = 10,
        start_preconditioning_step: int = 1,
        grafting: str = "adam",
        grafting_eps: float = 1e-8,
        precondition_vectors: bool = True,
        exponent: Optional[Fraction] = None,
        maximize: bool = False,
    ) -> None:
        defaults = dict(
            lr=lr,
            betas=betas,
            absolute=absolute,
            relative=relative,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            max_preconditioner_dim=max_preconditioner_dim,
            precondition_frequency=precondition_frequency,
            start_preconditioning_step=start_preconditioning_step,
            grafting=grafting,
            grafting_eps=grafting_eps,
            precondition_vectors=precondition_vectors,
            exponent=exponent,
            maximize=maximize,
        )
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, whose options are checked."""
        super().add_param_group(param_group)
        g = self.param_groups[-1]
        inf = float("inf")
        try:
            if not isinstance(g["lr"], Tensor):
                within("Shampoo", "lr", g["lr"], 0.0, inf)
            within("Shampoo", "betas[0]", g["betas"][0], 0.0, 1.0, True)
            within("Shampoo", "betas[1]", g["betas"][1], 0.0, 1.0)
            for of in ("absolute", "relative", "weight_decay", "grafting_eps"):
                within("Shampoo", of, g[of], 0.0, inf, True)
            for of in ("max_preconditioner_dim", "precondition_frequency", "start_preconditioning_step"):
                within("Shampoo", of, g[of], 1, 1 << 15)
            if g["grafting"] not in _GRAFTING:
                raise ConfigError(f"Shampoo: grafting = {g['grafting']!r} is not one of {', '.join(_GRAFTING)}")
            if g["exponent"] is not None and not (isinstance(g["exponent"], Fraction) and g["exponent"] > 0):
                raise ConfigError(f"Shampoo: exponent = {g['exponent']!r} is not a positive fractions.Fraction, such as 1/4")
        except ConfigError:
            self.param_groups.pop()
            raise

    def _grid(self, p: Tensor, group: dict[str, Any]) -> tuple[list[int], list[Any]]:
        most = int(group["max_preconditioner_dim"])
        shape = merged_shape(p.shape, most)
        plain = p.numel() == 0 or not shape or (len(shape) == 1 and not group["precondition_vectors"])
        return shape, [] if plain else blocks_of(shape, most)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """One step; with a closure, that computes the loss anew, whose value it returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step(group)
        return loss

    def _step(self, group: dict[str, Any]) -> None:
        b1, b2 = group["betas"]
        work = []
        for p in group["params"]:
            g = gradient("Shampoo", p, group["maximize"])
            if g is None:
                continue
            state = self.state[p]
            shape, grid = self._grid(p, group)
            if not state:
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(g)
                if group["grafting"] in ("adam", "rmsprop", "adagrad"):
                    state["exp_avg_sq"] = torch.zeros_like(g)
                state["factors"] = [
                    [g.new_zeros(_count(c), n, n) for n in sizes] for _, c, sizes in grid
                ]
                state["roots"] = [[torch.eye(n, device=g.device).repeat(_count(c), 1, 1) for n in sizes] for _, c, sizes in grid]
            state["step"] += 1
            if group["weight_decay"] and not group["decoupled_weight_decay"]:
                g = g + group["weight_decay"] * p.to(torch.float32)
            state["exp_avg"].lerp_(g, 1 - b1)
            if "exp_avg_sq" in state:
                if group["grafting"] == "adagrad" or b2 == 1:
                    state["exp_avg_sq"].addcmul_(g, g)
                else:
                    state["exp_avg_sq"].mul_(b2).addcmul_(g, g, value=1 - b2)
            blocks = g.reshape(shape)
            for (where, counts, sizes), factors in zip(grid, state["factors"]):
                x = to_blocks(blocks[where], counts, sizes)
                for axis, factor in enumerate(factors):
                    m = unfolded(x, axis)
                    factor.baddbmm_(m, m.mT, beta=b2, alpha=1.0 if b2 == 1 else 1 - b2)
            work.append((p, state, shape, grid))
        self._make_roots(group, work)
        for p, state, shape, grid in work:
            self._apply(group, p, state, shape, grid)

    def _make_roots(self, group: dict[str, Any], work: list[Any]) -> None:
        """Roots of the blocks whose turn it is, those of one exponent and size together."""
        b2, every, start = group["betas"][1], int(group["precondition_frequency"]), int(group["start_preconditioning_step"])
        due: dict[Fraction, list[tuple[list[Tensor], int, Tensor]]] = {}
        turn = 0
        for p, state, shape, grid in work:
            step = state["step"]
            for factors, roots in zip(state["factors"], state["roots"]):
                turn += 1
                if step < start or (step > start and (step + turn) % every):
                    continue
                power = group["exponent"] or Fraction(1, 2 * len(factors))
                scale = 1.0 if b2 == 1 else 1 / (1 - b2**step)
                for axis, factor in enumerate(factors):
                    due.setdefault(power, []).append((roots, axis, factor * scale))
        for power, items in due.items():
            made = roots_of([f for _, _, f in items], 1 / power, group["absolute"], group["relative"])
            for (roots, axis, factor), (x, status) in zip(items, made):
                if factor.is_cpu and bool((status == FAILED).any()) and not bool(factor.isfinite().all()):
                    raise DataError("Shampoo: a gradient had a NaN or an infinity: its sums of squares are not finite")
                # What has no root keeps the one before.
                roots[axis] = torch.where((status != FAILED)[:, None, None], x, roots[axis])

    def _apply(self, group: dict[str, Any], p: Tensor, state: dict[str, Any], shape: list[int], grid: list[Any]) -> None:
        b1, b2 = group["betas"]
        step, name = state["step"], group["grafting"]
        first = state["exp_avg"] / (1 - b1**step)
        graft = first
        if "exp_avg_sq" in state:
            second = state["exp_avg_sq"]
            if name == "adam" and b2 < 1:
                second = second / (1 - b2**step)
            graft = first / (second.sqrt() + group["grafting_eps"])
        update = graft
        if grid and step >= group["start_preconditioning_step"]:
            update = torch.empty_like(first).reshape(shape)
            first, graft = first.reshape(shape), graft.reshape(shape)
            for (where, counts, sizes), roots in zip(grid, state["roots"]):
                x = to_blocks(first[where], counts, sizes)
                for axis, root in enumerate(roots):
                    x = along(x, root, axis)
                if name != "none":
                    want = to_blocks(graft[where], counts, sizes).flatten(1).norm(dim=1)
                    have = x.flatten(1).norm(dim=1)
                    x = x * (want / (have + 1e-16)).view(-1, *[1] * len(sizes))
                update[where] = from_blocks(x, counts, sizes)
        lr = group["lr"]
        change = update.reshape(p.shape) * lr
        if group["weight_decay"] and group["decoupled_weight_decay"]:
            change = change + p.to(torch.float32) * (lr * group["weight_decay"])
        p.copy_(p.to(torch.float32) - change)


def _count(counts: list[int]) -> int:
    n = 1
    for c in counts:
        n *= c
    return n
