"""Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._base import Base, adamw, apply, check_common, shrink, within
from ._matrix import orthogonalize


class Muon(Base):
    """Steps of matrices are their momentum, made orthogonal; parameters of fewer than two axes take AdamW's step.

    Axes beyond the first are one: a convolution ``[out, in, k, k]`` is a matrix ``[out, in k k]``. Its step is
    ``lr sqrt(max(1, rows / columns))`` times the orthogonal matrix.

    Args:
        params: tensors or groups; every option can be set by group.
        lr: of matrices.
        momentum: decay of the sum of gradients.
        nesterov: whether the gradient is counted once more.
        steps: of Newton-Schulz.
        weight_decay, weight_decay_mode: as for :class:`Shampoo`; the other parameters' is decoupled, by ``adamw_lr``.
        adamw_lr, adamw_betas, adamw_eps: of the other parameters.
        maximize: climbs.

    Raises:
        ConfigError: an option out of range, with its value.
        DeviceError: parameters on several devices.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 2e-2,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        steps: int = 5,
        weight_decay: float = 0.0,
        weight_decay_mode: str = "decoupled",
        adamw_lr: float | Tensor = 3e-4,
        adamw_betas: tuple[float, float] = (0.9, 0.95),
        adamw_eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        defaults = dict(
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            steps=steps,
            weight_decay=weight_decay,
            weight_decay_mode=weight_decay_mode,
            adamw_lr=adamw_lr,
            adamw_betas=adamw_betas,
            adamw_eps=adamw_eps,
            maximize=maximize,
        )
        super().__init__(params, defaults)

    def _check(self, g: dict[str, Any]) -> None:
        check_common("Muon", g)
        inf = float("inf")
        if not isinstance(g["adamw_lr"], Tensor):
            within("Muon", "adamw_lr", g["adamw_lr"], 0.0, inf)
        within("Muon", "momentum", g["momentum"], 0.0, 1.0, True)
        within("Muon", "steps", g["steps"], 1, 100)
        within("Muon", "adamw_eps", g["adamw_eps"], 0.0, inf, True)
        for k in range(2):
            within("Muon", f"adamw_betas[{k}]", g["adamw_betas"][k], 0.0, 1.0, True)

    def _update(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        by_shape: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        lr, decay = group["lr"], shrink(group)
        for _, p, g in given:
            g = g.to(torch.float32)
            if p.numel() == 0:
                continue
            state = self.state[p]
            if p.dim() < 2:
                rate = group["adamw_lr"]
                betas, eps = group["adamw_betas"], group["adamw_eps"]
                adamw(p, g, state, lr=rate, betas=betas, eps=eps, decay=rate * group["weight_decay"])
                continue
            if group["weight_decay"] and group["weight_decay_mode"] == "l2":
                g = g + group["weight_decay"] * p.to(torch.float32)
            if not state:
                state["momentum"] = torch.zeros_like(g)
            m = state["momentum"].mul_(group["momentum"]).add_(g)
            along = g + group["momentum"] * m if group["nesterov"] else m
            matrix = along.reshape(p.shape[0], -1)
            by_shape.setdefault(matrix.shape, []).append((p, matrix))
        # Matrices of one shape are made orthogonal together.
        for shape, items in by_shape.items():
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for (p, _), x in zip(items, orthogonalize(torch.stack([m for _, m in items]), int(group["steps"]))):
                apply(p, x, lr * scale, decay)
