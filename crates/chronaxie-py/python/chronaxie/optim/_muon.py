"""Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._errors import ConfigError
from ._base import check_adamw, check_common, one_of, whole_within, within
from ._flat import case_of
from ._fused import Fused
from ._matrix import orthogonalize
from ._owners import Ranks
from ._rounded import PRECISIONS


class Muon(Fused):
    """Steps of matrices are their momentum, made orthogonal; parameters of fewer than two axes take AdamW's step.

    Axes beyond the first are one: a convolution ``[out, in, k, k]`` is a matrix ``[out, in k k]``. Its step is
    ``lr sqrt(max(1, rows / columns))`` times the orthogonal matrix.

    Args:
        params: tensors or groups; every option can be set by group. A group with ``adamw=True`` (embeddings, a head of words) takes
            AdamW's step, of any shape, as the other parameters do, by ``adamw_lr`` and what follows it.
        lr: of matrices.
        momentum: decay of the sum of gradients.
        nesterov: whether the gradient is counted once more.
        steps: of Newton-Schulz.
        precision: ``exact``, or ``fast``: on a GPU Newton-Schulz is in bfloat16, as is usual (with ``fused=True`` in float16 under powers
            of two, of matrices with sides of 128 and more, on compute capability 9.0; elsewhere in float32): it leaves singular values within 0.7 .. 1.2
            of one anyway.
        weight_decay, weight_decay_mode: as for :class:`Shampoo`; the other parameters' is decoupled, by ``adamw_lr``.
        adamw_lr, adamw_betas, adamw_eps: of the other parameters. ``adamw_lr`` is their rate at the group's first lr (``first_lr``),
            and where that goes, as by a schedule, their rate follows by the same factor.
        maximize: climbs.
        capturable: counts AdamW's steps on the device, so that a step can be captured in a CUDA graph once one was taken; lr, where
            it changes, must be a tensor. ``torch.amp.GradScaler`` does not wait then.
        fused: one native step for all matrices of a group, float32 tensors that have gradients in every step. Gradients and
            matrices are copied to vectors that it works in, and back, so it takes three times their memory more. Either kind goes on
            with what the other saved; the other parameters' steps are the same. Not with ``capturable`` or a
            ``process_group``. The matrices of 12 layers of width 1024 take an H200 19.6 ms a step, and 12.2 with ``precision="fast"``; plain
            steps 84.9 and 17.2. It has tensor cores of compute capability 9.0 alone: elsewhere it multiplies by float32 units, by
            which an H100 took 131, and plain steps 97.
        stochastic_rounding, seed: as for :class:`Shampoo`.
        process_group: spreads the matrices over the processes of that group of torch.distributed (True: of all), each of which makes
            its own orthogonal and gets the others' by one all-gather a step; momentum is everywhere. All must have the same
            parameters and gradients, as under DistributedDataParallel.

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
        precision: str = "exact",
        weight_decay: float = 0.0,
        weight_decay_mode: str = "decoupled",
        adamw_lr: float | Tensor = 3e-4,
        adamw_betas: tuple[float, float] = (0.9, 0.95),
        adamw_eps: float = 1e-8,
        maximize: bool = False,
        capturable: bool = False,
        fused: bool = False,
        stochastic_rounding: bool = False,
        seed: int = 0,
        process_group: Any = None,
    ) -> None:
        defaults = dict(
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            steps=steps,
            precision=precision,
            weight_decay=weight_decay,
            weight_decay_mode=weight_decay_mode,
            adamw_lr=adamw_lr,
            adamw_betas=adamw_betas,
            adamw_eps=adamw_eps,
            maximize=maximize,
            capturable=capturable,
            fused=fused,
            stochastic_rounding=stochastic_rounding,
            seed=seed,
        )
        self._ranks = Ranks("Muon", process_group)
        super().__init__(params, defaults)

    _ranks = Ranks("Muon", None)
    _entry = "muon"
    _steps = _shares = "matrices"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ranks": self._ranks}

    def _check(self, g: dict[str, Any]) -> None:
        check_common("Muon", g)
        check_adamw("Muon", g)
        within("Muon", "momentum", g["momentum"], 0.0, 1.0, True)
        whole_within("Muon", "steps", g["steps"], 1, 100)
        if "use_muon" in g:
            raise ConfigError(
                f"Muon: use_muon = {g['use_muon']!r} is adamw = {not g['use_muon']} here, and AdamW's options are a group's adamw_lr, "
                "adamw_betas and adamw_eps"
            )
        # A state that was saved before there was one has none.
        one_of("Muon", "precision", g.setdefault("precision", "exact"), PRECISIONS)
        self._check_fused(g)

    def _fusible(self, group: dict[str, Any]) -> list[Tensor]:
        return [p for p in group["params"] if p.dim() > 1 and p.numel()]

    def _case(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]], done: int) -> str:
        options = dict(
            momentum=group["momentum"],
            nesterov=bool(group["nesterov"]),
            steps=int(group["steps"]),
            precision=group["precision"],
            decay=group["weight_decay"],
            mode=group["weight_decay_mode"],
        )
        return case_of(given, options)

    def _named(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> dict[str, tuple[str, list[Any]]]:
        return {"first": ("momentum", [p.shape for _, p, _ in given])}

    def _accepts(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        super()._accepts(group, given)
        for _, p, _ in given:
            if p.dim() > 1 and self.state.get(p) and "momentum" not in self.state[p]:
                raise ConfigError(
                    f"Muon: a parameter of shape {tuple(p.shape)} has state of AdamW's steps; adamw is for parameters from their first step on"
                )

    def _update(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        matrices: list[tuple[Tensor, Tensor]] = []
        self._plain(group, [item for item in given if item[1].dim() < 2 and item[1].numel()])
        given = [item for item in given if item[1].dim() > 1 and item[1].numel()]
        if group.get("fused"):
            self._fused(group, given)
            return
        lr, decay = group["lr"], self._shrink(group)
        for _, p, g in given:
            g = g.to(torch.float32)
            state = self.state[p]
            if group["weight_decay"] and group["weight_decay_mode"] == "l2":
                g = g + group["weight_decay"] * p.to(torch.float32)
            if not state:
                state["momentum"] = torch.zeros_like(g)
            with self._kept(state["momentum"]):
                m = state["momentum"].mul_(group["momentum"]).add_(g)
                along = g + group["momentum"] * m if group["nesterov"] else m
            matrices.append((p, along.reshape(p.shape[0], -1)))
        if not matrices:
            return
        # Products of Newton-Schulz: of the smaller side's squares with the whole.
        owners = self._ranks.shares([m.numel() * min(m.shape) for _, m in matrices])
        by_shape: dict[Any, list[int]] = {}
        for i, ((_, m), owner) in enumerate(zip(matrices, owners)):
            if owner == self._ranks.own:
                by_shape.setdefault(m.shape, []).append(i)
        made: list[Any] = [None] * len(matrices)
        # Matrices of one shape are made orthogonal together.
        fast = group.get("precision", "exact") == "fast" and matrices[0][1].is_cuda
        for at in by_shape.values():
            same = torch.stack([matrices[i][1] for i in at])
            turned = orthogonalize(same.to(torch.bfloat16) if fast else same, int(group["steps"])).to(torch.float32)
            for i, x in zip(at, turned):
                made[i] = x
        made = self._ranks.exchange(made, [m.shape for _, m in matrices], owners, matrices[0][1])
        for (p, m), x in zip(matrices, made):
            self._move(group, p, x, lr * max(1.0, m.shape[0] / m.shape[1]) ** 0.5, decay)
