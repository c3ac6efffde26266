"""Shampoo (Gupta, Koren and Singer, "Shampoo: preconditioned stochastic tensor optimization", ICML 2018), with blocks, grafting
and staggered roots."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Optional

import torch
from torch import Tensor

from .._errors import ConfigError
from ._base import Base, apply, check_common, one_of, shrink, within
from ._blocks import along, count, from_blocks, grid_of, to_blocks, unfolded
from ._matrix import FAILED, roots_of

_GRAFTING = ("adam", "rmsprop", "adagrad", "sgd", "none")


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
        weight_decay: how much parameters shrink.
        weight_decay_mode: ``decoupled`` (W shrinks by lr times it), ``l2`` (added to the gradient), ``corrected`` (decoupled,
            times lr over the largest lr there was) or ``independent`` (W shrinks by it times lr over the largest).
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
        DeviceError: parameters on several devices.

    :meth:`step` says what becomes of gradients that are not finite.
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
        weight_decay_mode: str = "decoupled",
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
            weight_decay_mode=weight_decay_mode,
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

    def _check(self, g: dict[str, Any]) -> None:
        check_common("Shampoo", g)
        within("Shampoo", "betas[0]", g["betas"][0], 0.0, 1.0, True)
        within("Shampoo", "betas[1]", g["betas"][1], 0.0, 1.0)
        for of in ("absolute", "relative", "grafting_eps"):
            within("Shampoo", of, g[of], 0.0, float("inf"), True)
        for of in ("max_preconditioner_dim", "precondition_frequency", "start_preconditioning_step"):
            within("Shampoo", of, g[of], 1, 1 << 15)
        one_of("Shampoo", "grafting", g["grafting"], _GRAFTING)
        if isinstance(g["exponent"], Fraction):
            # What torch.load takes back.
            g["exponent"] = g["exponent"].as_integer_ratio()
        if g["exponent"] is not None and not (isinstance(g["exponent"], tuple) and g["exponent"][0] > 0):
            raise ConfigError(f"Shampoo: exponent = {g['exponent']!r} is not a positive fractions.Fraction, such as 1/4")

    def _update(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        b1, b2 = group["betas"]
        most, vectors = int(group["max_preconditioner_dim"]), group["precondition_vectors"]
        # The turn of a block is its place in the group, whichever parameters have gradients now.
        turns, turn = [], 0
        for p in group["params"]:
            turns.append(turn)
            turn += len(grid_of(p, most, vectors)[1])
        work = []
        for at, p, g in given:
            g = g.to(torch.float32)
            state = self.state[p]
            shape, grid = grid_of(p, most, vectors)
            if not state:
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(g)
                if group["grafting"] in ("adam", "rmsprop", "adagrad"):
                    state["exp_avg_sq"] = torch.zeros_like(g)
                state["factors"] = [[g.new_zeros(count(c), n, n) for n in sizes] for _, c, sizes in grid]
                state["roots"] = [[torch.eye(n, device=g.device).repeat(count(c), 1, 1) for n in sizes] for _, c, sizes in grid]
            state["step"] += 1
            if group["weight_decay"] and group["weight_decay_mode"] == "l2":
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
            work.append((turns[at], p, state, shape, grid))
        self._make_roots(group, work)
        decay = shrink(group)
        for _, p, state, shape, grid in work:
            self._apply(group, p, state, shape, grid, decay)

    def _make_roots(self, group: dict[str, Any], work: list[Any]) -> None:
        """Roots of the blocks whose turn it is, those of one exponent and size together."""
        b2, every, start = group["betas"][1], int(group["precondition_frequency"]), int(group["start_preconditioning_step"])
        due: dict[Fraction, list[tuple[list[Tensor], int, Tensor]]] = {}
        for first, _, state, _, _ in work:
            step = state["step"]
            for turn, (factors, roots) in enumerate(zip(state["factors"], state["roots"]), first):
                if step < start or (step > start and (step + turn) % every):
                    continue
                power = Fraction(*(group["exponent"] or (1, 2 * len(factors))))
                scale = 1.0 if b2 == 1 else 1 / (1 - b2**step)
                for axis, factor in enumerate(factors):
                    due.setdefault(power, []).append((roots, axis, factor * scale))
        for power, items in due.items():
            made = roots_of([f for _, _, f in items], 1 / power, group["absolute"], group["relative"])
            for (roots, axis, _), (x, status) in zip(items, made):
                # What has no root keeps the one before.
                roots[axis] = torch.where((status != FAILED)[:, None, None], x, roots[axis])

    def _apply(
        self, group: dict[str, Any], p: Tensor, state: dict[str, Any], shape: list[int], grid: list[Any], decay: Any
    ) -> None:
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
        apply(p, update, group["lr"], decay)
