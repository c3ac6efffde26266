"""Natural gradient by single samples (Ren and Goldfarb, "Efficient subsampled Gauss-Newton and natural gradient methods",
arXiv:1906.02353): the Fisher matrix of a batch has its rank, so that a system of its size is solved."""

from __future__ import annotations

from typing import Any, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._errors import ConfigError
from ._alone import Native
from ._base import Base, check_axis, check_curved, check_model, no_copy, one_of, over_scale, whole_within, wide
from ._calls import Call, Hook, Recorder, units_of, uses_of, when_known, when_reached
from ._per_sample import samples_of
from ._uses import BUDGET, Affine, Use, rows_of


class _Batch:
    """One forward pass: its samples, and the uses that its backward pass found."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.uses: dict[nn.Parameter, list[Use]] = {}
        # [n, p.numel()] of what is no map's weight.
        self.rows: dict[nn.Parameter, Tensor] = {}

    def make_rows(self, parameters: set[nn.Parameter]) -> None:
        """The gradients of the samples of some parameters, each use asked once."""
        for use in {id(u): u for p in parameters for u in self.uses.get(p, ())}.values():
            for p, g in use.grads(0, self.samples, parameters).items():
                if p in parameters:
                    self.rows[p] = self.rows[p] + rows_of(g) if p in self.rows else rows_of(g)


def _cross(first: Sequence[Affine], second: Sequence[Affine]) -> Tensor:
    """``[n, m]`` products of the gradients of one weight, of n samples and m others, from what positions read and gave."""

    def whole(maps: Sequence[Affine], of: str, lo: int, hi: int) -> Tensor:
        parts = [getattr(m, of)(lo, hi) for m in maps]
        return (torch.cat(parts, 2) if len(parts) > 1 else parts[0]).transpose(0, 1)

    m = second[0].samples
    xb, gb = (whole(second, of, 0, m) for of in ("x", "g"))
    groups, _, r, _ = xb.shape
    xb, gb = (t.reshape(groups, m * r, -1).mT for t in (xb, gb))
    rows, n, s = [], first[0].samples, sum(a.sizes[1] for a in first)
    step = max(1, BUDGET // max(groups * s * m * r, 1))
    for lo in range(0, n, step):
        hi = min(n, lo + step)
        xa, ga = (whole(first, of, lo, hi).reshape(groups, (hi - lo) * s, -1) for of in ("x", "g"))
        rows.append(((xa @ xb) * (ga @ gb)).view(groups, hi - lo, s, m, r).sum((0, 2, 4)))
    return torch.cat(rows)


def _maps(users: Sequence[Use], p: nn.Parameter) -> list[Affine] | None:
    maps = [m for m in (u.factors(p) for u in users) if m is not None]
    return maps if len(maps) == len(users) else None


def products(batches: Sequence[_Batch], parameters: Sequence[nn.Parameter]) -> Tensor:
    """``J J^T`` over all samples; J's rows are the gradients of single samples. Weights of maps need no gradient of a sample;
    those of other parameters (vectors, tables, an LTC's synapses) are made and kept in ``rows``."""
    total = sum(b.samples for b in batches)
    ends = torch.tensor([b.samples for b in batches]).cumsum(0).tolist()
    maps = {p: [_maps(b.uses[p], p) for b in batches if p in b.uses] for p in parameters}
    whole = {p for p in parameters if any(m is None for m in maps[p])}
    for b in batches:
        b.make_rows(whole)
    k: Any = None
    for p in parameters:
        rows = [b.rows[p] for b in batches if p in b.uses] if p in whole else []
        places = [slice(end - b.samples, end) for b, end in zip(batches, ends) if p in b.uses]
        for i, at in enumerate(places):
            for j in range(i + 1):
                block = rows[i] @ rows[j].mT if p in whole else _cross(maps[p][i], maps[p][j])  # type: ignore[arg-type]
                k = block.new_zeros(total, total) if k is None else k
                k[at, places[j]] += block
                if i != j:
                    k[places[j], at] += block.mT
    return k  # type: ignore[no-any-return]


def along(batch: _Batch, vectors: dict[nn.Parameter, Tensor]) -> Tensor:
    """``J v`` ``[n]``: each sample's gradient times v; behind :func:`products`."""
    total: Any = 0.0
    for p, users in batch.uses.items():
        if p in batch.rows:
            total = total + batch.rows[p] @ vectors[p].flatten().to(batch.rows[p].dtype)
            continue
        for m in users:
            assert isinstance(m, Affine)
            groups, _, d, o = m.sizes
            x, g = m.x(0, batch.samples), m.g(0, batch.samples)
            total = total + ((g @ vectors[p].reshape(groups, o, d).to(g.dtype)) * x).sum((1, 2, 3))
    return total  # type: ignore[no-any-return]


class NaturalGradient(Base):
    """Steps along ``(F + l I)^-1 grad`` with the Fisher matrix ``F = J^T J / N`` of the batch's own samples, whose gradients are J's
    rows, over all parameters together.

    By Woodbury that is ``(grad - J^T (J J^T / N + l I)^-1 (J grad) / N) / l``: a system of N equations. The rows of J that belong to
    weights of maps are never there; their products come of what layers read and of the gradients of what they gave. The layers are those of
    :func:`per_sample_gradients`; parameters of others (BatchNorm) take AdamW's step. Batches that accumulate before a step count
    together.

    Args:
        model: whose layers are watched, in training mode; called once a batch.
        lr: the learning rate, a number or a tensor.
        params: tensors or groups; all of the model's by default. Damping is the first group's. A group with ``adamw=True`` takes AdamW's
            step, and is no part of the Fisher matrix.
        damping: l, positive.
        momentum: decay of the sum of steps.
        kl_clip: the most of ``lr^2 step grad`` over a group, or None.
        weight_decay, weight_decay_mode: as for :class:`Shampoo`.
        adamw_lr, adamw_betas, adamw_eps: of the other parameters. ``adamw_lr`` is their rate at the group's first lr (``first_lr``),
            and where that goes, as by a schedule, their rate follows by the same factor.
        maximize: climbs.
        capturable: counts AdamW's steps on the device, so that a forward pass, a backward pass and the step can be captured in one CUDA
            graph once a step was taken; batches have its size then, and lr, where it changes, must be a tensor.
        stochastic_rounding, seed: as for :class:`Shampoo`.
        reduction: what the loss is of the samples' losses, ``mean`` or ``sum``.
        accumulation: backward passes a step, whose losses were divided by it.
        grad_scaler: ``torch.amp.GradScaler``, whose scale the hooks' gradients have; it is taken from its device, and nothing waits.
        batch_axis: where samples lie, in all layers.

    Raises:
        ConfigError: an option out of range, or a layer whose call cannot be run again, with its value.
        DeviceError: parameters on several devices.

    :meth:`step` says what becomes of gradients that are not finite.
    """

    _double = True

    def __init__(
        self,
        model: nn.Module,
        lr: float | Tensor = 1e-1,
        *,
        params: Any = None,
        damping: float = 1e-2,
        momentum: float = 0.0,
        kl_clip: float | None = None,
        weight_decay: float = 0.0,
        weight_decay_mode: str = "decoupled",
        adamw_lr: float | Tensor = 1e-3,
        adamw_betas: tuple[float, float] = (0.9, 0.999),
        adamw_eps: float = 1e-8,
        maximize: bool = False,
        capturable: bool = False,
        stochastic_rounding: bool = False,
        seed: int = 0,
        reduction: str = "mean",
        accumulation: int = 1,
        grad_scaler: Any = None,
        batch_axis: int = 0,
    ) -> None:
        defaults = dict(
            lr=lr, damping=damping, momentum=momentum, kl_clip=kl_clip, weight_decay=weight_decay,
            weight_decay_mode=weight_decay_mode, adamw_lr=adamw_lr, adamw_betas=adamw_betas, adamw_eps=adamw_eps, maximize=maximize,
            capturable=capturable, stochastic_rounding=stochastic_rounding, seed=seed,
        )  # fmt: skip
        check_model("NaturalGradient", model)
        one_of("NaturalGradient", "reduction", reduction, ("mean", "sum"))
        check_axis("NaturalGradient", batch_axis)
        whole_within("NaturalGradient", "accumulation", accumulation, 1, 1 << 20)
        self.model, self.reduction, self.accumulation, self.batch_axis = model, reduction, accumulation, batch_axis
        self.grad_scaler = grad_scaler
        self._solved: dict[Tensor, Tensor] | None = None
        self._batches: list[_Batch] = []
        self._recorder = Recorder(units_of(model, mixing=True), self._note)
        super().__init__(list(model.parameters()) if params is None else params, defaults)
        self._recorder.attach()
        self._handle = model.register_forward_pre_hook(Hook(self._begin), with_kwargs=True)

    def close(self) -> None:
        """Takes the hooks off the model."""
        self._recorder.detach()
        self._handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        raise no_copy("NaturalGradient")

    def _check(self, g: dict[str, Any]) -> None:
        check_curved("NaturalGradient", g)

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.model.training and torch.is_grad_enabled() and not self._recorder.paused:
            self._batches.append(_Batch(samples_of("NaturalGradient", [*args, *kwargs.values()], self.batch_axis)))

    def _note(self, call: Call, tensors: list[Tensor]) -> None:
        if not self.model.training or not self._batches:
            return
        batch = self._batches[-1]
        scale = self.accumulation * batch.samples if self.reduction == "mean" else 1

        def reached(use: Native) -> None:
            by = scale if self.grad_scaler is None else scale * over_scale(self.grad_scaler)
            with torch.no_grad():
                use.grads_of_outputs = [None if g is None else g * by for g in use.grads_of_outputs]
            for p in use.parameters:
                batch.uses.setdefault(p, []).append(use)

        if batch.samples > 0 and when_reached(call, tensors, batch.samples, reached):
            return

        def seen(grads: Any) -> None:
            if batch.samples == 0:
                # They have no gradients of samples, and are no parameters of AdamW's.
                for p in call.unit.parameters:
                    batch.uses.setdefault(p, [])
                return
            by = scale if self.grad_scaler is None else scale * over_scale(self.grad_scaler)
            with torch.no_grad():
                # What is small without its scale is none in half precision.
                scaled = [None if g is None else (wide(g) if call.unit.plain else g) * by for g in grads]
                for use in uses_of(call, scaled, batch.samples, self.batch_axis, self._recorder):
                    for p in use.parameters:
                        batch.uses.setdefault(p, []).append(use)

        when_known(tensors, seen)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets gradients, and what backward passes left behind since the last step."""
        super().zero_grad(set_to_none)
        # A forward pass may have run already.
        self._batches = self._batches[-1:] if self._batches and not self._batches[-1].uses else []

    def step(self, closure: Any = None) -> Any:
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise ConfigError(
                f"NaturalGradient: {dist.get_world_size()} processes have {dist.get_world_size()} batches, and their samples' products "
                "with each other are not known; use KFAC"
            )
        try:
            loss = super().step(closure)
        finally:
            self._solved = None
        self._batches.clear()
        return loss

    step.__doc__ = Base.step.__doc__

    def _begun(self, group: dict[str, Any], p: Tensor) -> bool:
        if group["adamw"] or group["momentum"] or self._draws(group, p) or not any(p in b.uses for b in self._batches):
            return super()._begun(group, p)
        # A step that is solved for needs nothing of those before it.
        return True

    def _solve(self) -> dict[Tensor, Tensor]:
        """Natural gradients of all parameters that have uses, from their ``.grad``, over all groups."""
        every = [p for g in self.param_groups if not g["adamw"] for p in g["params"]]
        batches = [b for b in self._batches if b.uses]
        parameters = [p for p in every if p.grad is not None and any(p in b.uses for b in batches)]
        if not parameters:
            return {}
        grads: dict[Any, Tensor] = {}
        for group, given in zip(self.param_groups, self._given):
            l2 = group["weight_decay"] if group["weight_decay_mode"] == "l2" else 0.0
            grads |= {p: g + l2 * p.to(g.dtype) if l2 else g for _, p, g in given}
        damping = self.param_groups[0]["damping"]
        batches = [b for b in batches if b.samples]
        if not batches:
            # The Fisher matrix of no samples is 0.
            return {p: grads[p] / damping for p in parameters}
        inside = set(parameters)
        for b in batches:
            b.uses = {p: users for p, users in b.uses.items() if p in inside}
        count = sum(b.samples for b in batches) if self.reduction == "mean" else 1
        k = products(batches, parameters)
        right = torch.cat([along(b, grads) for b in batches]).to(k.dtype) / count
        k = k / count
        k.diagonal().add_(damping)
        low, info = torch.linalg.cholesky_ex(k)
        c = torch.cholesky_solve(right[:, None], low)[:, 0]
        # Without a factor (only where K is not finite) the step is the gradient's, of which nothing that is not finite is left.
        sound = (info == 0) & c.isfinite().all()
        c = torch.where(sound, c, torch.zeros_like(c))
        made, at = {p: grads[p].clone() for p in parameters}, 0
        for b in batches:
            part = c[at : at + b.samples]
            at += b.samples
            for use in {id(u): u for users in b.uses.values() for u in users}.values():
                for p, g in use.weighted(part).items():
                    if p in made:
                        made[p] -= g.to(made[p].dtype)
        return {p: torch.where(sound, u, grads[p]) / damping for p, u in made.items()}

    def _update(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        if self._solved is None:
            self._solved = self._solve()
        decay = self._shrink(group)
        mine = [(p, g, self._solved[p]) for _, p, g in given if p in self._solved]
        shorter: Any = 1.0
        if group["kl_clip"] is not None and mine:
            agreement = sum((u * g).sum() for _, g, u in mine)
            lr = group["lr"]
            shorter = (group["kl_clip"] / (lr * lr * agreement).clamp_min(1e-30)).sqrt().clamp_max(1.0)  # type: ignore[union-attr]
        for p, _, u in mine:
            u = u * shorter
            if group["momentum"]:
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(u)
                with self._kept(state["momentum"]):
                    u = state["momentum"].mul_(group["momentum"]).add_(u)
            self._move(group, p, u, group["lr"], decay)
        self._plain(group, [item for item in given if item[1] not in self._solved])
