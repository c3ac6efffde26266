"""Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024)."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from ._base import Base, gradient, within
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
        weight_decay: decoupled.
        adamw_lr, adamw_betas, adamw_eps: of the other parameters.
        maximize: climbs.

    Raises:
        ConfigError: an option out of range, with its value.
        DtypeError: sparse and complex gradients.
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
        adamw_lr: float | Tensor = 3e-4,
        adamw_betas: tuple[float, float] = (0.9, 0.95),
        adamw_eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        inf = float("inf")
        for of, value in (("lr", lr), ("adamw_lr", adamw_lr)):
            if not isinstance(value, Tensor):
                within("Muon", of, value, 0.0, inf)
        within("Muon", "momentum", momentum, 0.0, 1.0, True)
        within("Muon", "steps", steps, 1, 100)
        for of, value in (("weight_decay", weight_decay), ("adamw_eps", adamw_eps)):
            within("Muon", of, value, 0.0, inf, True)
        for k in range(2):
            within("Muon", f"adamw_betas[{k}]", adamw_betas[k], 0.0, 1.0, True)
        defaults = dict(
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            steps=steps,
            weight_decay=weight_decay,
            adamw_lr=adamw_lr,
            adamw_betas=adamw_betas,
            adamw_eps=adamw_eps,
            maximize=maximize,
        )
        super().__init__(params, defaults)

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
        by_shape: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        for p in group["params"]:
            g = gradient("Muon", p, group["maximize"])
            if g is None or p.numel() == 0:
                continue
            state = self.state[p]
            if p.dim() < 2:
                self._adamw(group, p, g, state)
                continue
            if not state:
                state["momentum"] = torch.zeros_like(g)
            m = state["momentum"].mul_(group["momentum"]).add_(g)
            along = g + group["momentum"] * m if group["nesterov"] else m
            matrix = along.reshape(p.shape[0], -1)
            by_shape.setdefault((matrix.shape, p.device), []).append((p, matrix))
        lr = group["lr"]
        # Matrices of one shape are made orthogonal together.
        for (shape, _), items in by_shape.items():
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for (p, _), x in zip(items, orthogonalize(torch.stack([m for _, m in items]), int(group["steps"]))):
                w = p.to(torch.float32)
                p.copy_(w * (1 - lr * group["weight_decay"]) - lr * scale * x.reshape(p.shape))

    def _adamw(self, group: dict[str, Any], p: Tensor, g: Tensor, state: dict[str, Any]) -> None:
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(g), torch.zeros_like(g)
        b1, b2 = group["adamw_betas"]
        state["step"] += 1
        m = state["exp_avg"].lerp_(g, 1 - b1) / (1 - b1 ** state["step"])
        v = state["exp_avg_sq"].mul_(b2).addcmul_(g, g, value=1 - b2) / (1 - b2 ** state["step"])
        lr = group["adamw_lr"]
        w = p.to(torch.float32)
        p.copy_(w * (1 - lr * group["weight_decay"]) - lr * m / (v.sqrt() + group["adamw_eps"]))
