"""Shampoo (Gupta, Koren and Singer, "Shampoo: preconditioned stochastic tensor optimization", ICML 2018), with blocks, grafting
and staggered roots."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Mapping, Optional, Sequence

import torch
from torch import Tensor

from .._errors import ConfigError
from ._base import check_common, check_pair, counter, one_of, whole_within, within
from ._blocked import Blocked, Spread
from ._blocks import along, from_blocks, to_blocks, unfolded
from ._flat import case_of
from ._fused import Fused
from ._matrix import FAILED, inverse_root, roots_of
from ._owners import Ranks
from ._packed import add_gram, packed_size, unpack
from ._rounded import PRECISIONS

_GRAFTING = ("adam", "rmsprop", "adagrad", "sgd", "none")
# Numerators and denominators of exponents, as inverse_root takes them.
_MOST = 64


def _exponents(given: Any) -> Any:
    """The option ``exponent`` as ``torch.load`` takes it back: numerator and denominator, or those by order."""

    def pair(of: str, value: Any) -> tuple[int, int]:
        numbers = value.as_integer_ratio() if isinstance(value, Fraction) else value
        if not (isinstance(numbers, tuple) and len(numbers) == 2 and all(type(n) is int and n > 0 for n in numbers)):
            raise ConfigError(f"Shampoo: {of} = {value!r} is not a positive fractions.Fraction, such as Fraction(1, 4)")
        if max(numbers) > _MOST:
            raise ConfigError(f"Shampoo: {of} = {numbers[0]}/{numbers[1]} is not a fraction of numbers from 1 to {_MOST}")
        return numbers

    whole = isinstance(given, tuple) and len(given) == 2 and all(type(n) is int for n in given)
    if given is None or whole or not isinstance(given, (Mapping, list, tuple)):
        return given if given is None else pair("exponent", given)
    by_order = given if isinstance(given, Mapping) else {k + 1: value for k, value in enumerate(given)}
    for order in by_order:
        if type(order) is not int or order < 1:
            raise ConfigError(f"Shampoo: exponent has a value of order {order!r}, which is not a number of axes from 1 on")
    return {order: pair(f"exponent[{order}]", value) for order, value in by_order.items() if value is not None}


class Shampoo(Fused, Blocked):
    """Every axis of every block of a parameter has a matrix that whitens gradients along it.

    For a block G of order o, with the moments at step t, ``L_k <- b2 L_k + (1 - b2) G_(k) G_(k)^T`` and
    ``R_k = (L_k / (1 - b2^t) + eps I)^(-1/2o)``; the step is the first moment times every R_k, scaled to the norm of the step
    that ``grafting`` would take. Roots of one size are one call for the whole model, and each block's turn to be made
    anew comes every ``precondition_frequency`` steps, another share of them at each step.

    Args:
        params: tensors or groups; every option can be set by group. A group with ``adamw=True`` (embeddings, a head of words) takes
            AdamW's step, of any shape, by its lr, ``betas``, ``grafting_eps`` and weight decay.
        lr: the learning rate, a number or a tensor.
        betas: decay of the first moment, and of the factors and the grafting's second moment; 1 sums the factors.
        absolute, relative: damping, ``max(absolute, relative ||L||_F)``.
        weight_decay: how much parameters shrink.
        weight_decay_mode: ``decoupled`` (W shrinks by lr times it), ``l2`` (added to the gradient), ``corrected`` (decoupled,
            times lr over the largest lr there was) or ``independent`` (W shrinks by it times lr over the largest).
        max_preconditioner_dim: blocks are at most so long.
        merge_dims: whether neighbouring axes that fit it together are one, so that a small convolution is a matrix or a vector;
            otherwise every axis longer than one has its own matrix.
        precondition_frequency: steps between two roots of a block.
        start_preconditioning_step: earlier steps are the grafting's own.
        grafting: ``adam``, ``rmsprop``, ``adagrad``, ``sgd`` or ``none``.
        grafting_eps: added to the root of the grafting's second moment.
        precondition_vectors: whether parameters of one axis have a matrix too; otherwise they take the grafting's step.
        exponent: instead of 1/2o: a ``fractions.Fraction`` for every order, or some by the order o of a block (how many axes it has
            behind merging), as a dict ``{2: Fraction(1, 3)}`` or as a list that begins with order 1; an order that it has not, or
            whose value is None, has 1/2o.
        precision: ``exact``, or ``fast``: factors and products with the roots are of numbers rounded to half precision, under a power
            of two a block so that 11 bits are left, with sums in float32; roots are made exactly. On a GPU with PyTorch 2.8 or later;
            elsewhere it is ``exact``. A factor is that of a gradient perturbed by 2^-11, positive semidefinite whatever it is.
        maximize: climbs.
        capturable: counts steps on the device, so that a step can be captured in a CUDA graph once one was taken. Then there are
            roots of each block from the first step on, at its turns also before ``start_preconditioning_step``, and every step makes
            as many; lr, where it changes, must be a tensor. ``torch.amp.GradScaler`` does not wait then.
        fused: one native step for all parameters of a group, float32 tensors that have gradients in every step. On a GPU it is several
            times faster (from compute capability 9.0 on with ``precision="fast"`` on tensor cores). Gradients and parameters are
            copied to vectors that it works in, and back, so it takes three times the parameters' memory more. Either kind goes on
            with what the other saved. Not with ``capturable`` or a ``process_group``, ``merge_dims=False`` or exponents by order.
        stochastic_rounding: bfloat16 parameters are rounded up or down at random, in proportion to what lies between, so that steps of less
            than half a unit in their last place add up without a float32 copy of them; others are rounded to the nearest. The draws
            are a hash of ``seed``, the parameter's place and how often it was drawn for: a run's bits are the next one's.
        seed: of those draws, 0 .. 2^63 - 1.
        process_group: spreads blocks over the processes of that group of torch.distributed (True: of all). Each keeps factors and
            roots of its own blocks alone, and gets the steps of the others' by one all-gather a step. All must have the same
            parameters and gradients, as under DistributedDataParallel. :meth:`consolidated_state_dict` is what to save.

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
        merge_dims: bool = True,
        precondition_frequency: int = 10,
        start_preconditioning_step: int = 1,
        grafting: str = "adam",
        grafting_eps: float = 1e-8,
        precondition_vectors: bool = True,
        exponent: Fraction | Mapping[int, Optional[Fraction]] | Sequence[Optional[Fraction]] | None = None,
        precision: str = "exact",
        maximize: bool = False,
        capturable: bool = False,
        fused: bool = False,
        stochastic_rounding: bool = False,
        seed: int = 0,
        process_group: Any = None,
    ) -> None:
        defaults = dict(
            lr=lr,
            betas=betas,
            absolute=absolute,
            relative=relative,
            weight_decay=weight_decay,
            weight_decay_mode=weight_decay_mode,
            max_preconditioner_dim=max_preconditioner_dim,
            merge_dims=merge_dims,
            precondition_frequency=precondition_frequency,
            start_preconditioning_step=start_preconditioning_step,
            grafting=grafting,
            grafting_eps=grafting_eps,
            precondition_vectors=precondition_vectors,
            exponent=exponent,
            precision=precision,
            maximize=maximize,
            capturable=capturable,
            fused=fused,
            stochastic_rounding=stochastic_rounding,
            seed=seed,
        )
        self._ranks = Ranks("Shampoo", process_group)
        super().__init__(params, defaults)

    _entry = "shampoo"
    _made = "roots"
    _adamw = "lr", "betas", "grafting_eps"
    # Twenty iterations of Newton.
    _work = 80

    def _check(self, g: dict[str, Any]) -> None:
        check_common("Shampoo", g)
        check_pair("Shampoo", "betas", g["betas"], False)
        for of in ("absolute", "relative", "grafting_eps"):
            within("Shampoo", of, g[of], 0.0, float("inf"), True)
        for of in ("max_preconditioner_dim", "precondition_frequency", "start_preconditioning_step"):
            whole_within("Shampoo", of, g[of], 1, 1 << 15)
        one_of("Shampoo", "grafting", g["grafting"], _GRAFTING)
        # A state that was saved before there was one has none.
        one_of("Shampoo", "precision", g.setdefault("precision", "exact"), PRECISIONS)
        g["exponent"] = _exponents(g["exponent"])
        self._check_fused(g)

    def _check_fused(self, g: dict[str, Any]) -> None:
        super()._check_fused(g)
        if g["fused"] and isinstance(g["exponent"], dict):
            raise ConfigError("Shampoo: fused=True and exponents by order exclude each other; it takes one for every order")
        if not g.setdefault("merge_dims", True) and g["fused"]:
            raise ConfigError("Shampoo: fused=True and merge_dims=False exclude each other")

    def _how(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (*super()._how(group), bool(group.get("merge_dims", True)))

    def _update(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        if group.get("fused"):
            self._fused(group, given)
            return
        b1, b2 = group["betas"]
        new, precision = 1.0 if b2 == 1 else 1 - b2, group.get("precision", "exact")
        spread, work, fresh = self._spread(group), [], False
        for at, p, g in given:
            g = g.to(torch.float32)
            state, (shape, grid) = self.state[p], spread.grids[at]
            if not state:
                self._begin(group, p, g, spread, at)
                fresh = True
            self._packed_again(state, grid)
            self._counted(state)
            if group["weight_decay"] and group["weight_decay_mode"] == "l2":
                g = g + group["weight_decay"] * p.to(torch.float32)
            moments = [state[name] for name in ("exp_avg", "exp_avg_sq") if name in state]
            with self._kept(*moments, *(factor for factors in state["factors"] for factor in factors)):
                moments[0].lerp_(g, 1 - b1)
                if len(moments) > 1:
                    if group["grafting"] == "adagrad" or b2 == 1:
                        moments[1].addcmul_(g, g)
                    else:
                        moments[1].mul_(b2).addcmul_(g, g, value=1 - b2)
                blocks = g.reshape(shape)
                for (where, counts, sizes), mine, factors in zip(grid, spread.own[at], state["factors"]):
                    x = to_blocks(blocks[where], counts, sizes)[mine] if factors else None
                    for axis, factor in enumerate(factors):
                        add_gram(factor, unfolded(x, axis), b2, new, precision)  # type: ignore[arg-type]
            work.append((at, p, state))
        if group["capturable"]:
            self._take_turns(group, work, fresh)
        else:
            self._make_roots(group, work)
        self._apply(group, work)

    def _case(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]], done: int) -> str:
        start, (b1, b2), exponent = int(group["start_preconditioning_step"]), group["betas"], group["exponent"]
        options = dict(
            absolute=group["absolute"],
            relative=group["relative"],
            decay=group["weight_decay"],
            mode=group["weight_decay_mode"],
            block=int(group["max_preconditioner_dim"]),
            every=int(group["precondition_frequency"]),
            start=start,
            grafting=group["grafting"],
            eps=group["grafting_eps"],
            precision=group["precision"],
            beta1=b1,
            beta2=b2,
            vectors=bool(group["precondition_vectors"]),
            exponent=None if exponent is None else f"{exponent[0]}/{exponent[1]}",
            all=done + 1 == start or None,
        )
        return case_of(given, options)

    def _named(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> dict[str, tuple[str, list[Any]]]:
        shapes = [p.shape for _, p, _ in given]
        return {"first": ("exp_avg", shapes), "second": ("exp_avg_sq", shapes)}

    def _grids(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> list[Any]:
        grids = self._spread(group).grids
        return [grids[at][1] for at, _, _ in given]

    def _begin(self, group: dict[str, Any], p: Tensor, g: Tensor, spread: Spread, at: int) -> None:
        state = self.state[p]
        state["step"] = counter(group, p)
        state["exp_avg"] = torch.zeros_like(g)
        if group["grafting"] in ("adam", "rmsprop", "adagrad"):
            state["exp_avg_sq"] = torch.zeros_like(g)
        state["factors"], state["roots"] = [], []
        self._note_blocks(state, spread, at)
        for own, blocks in self._blocks_of(spread, at):
            state["factors"].append([g.new_zeros(blocks, packed_size(n)) for n in own])
            state["roots"].append([torch.eye(n, device=g.device).repeat(blocks, 1, 1) for n in own])

    def _power(self, group: dict[str, Any], order: int) -> Fraction:
        found = group["exponent"]
        if isinstance(found, dict):
            found = found.get(order)
        return Fraction(*(found or (1, 2 * order)))

    def _make_roots(self, group: dict[str, Any], work: list[Any]) -> None:
        """Roots of the blocks whose turn it is, those of one exponent and size together."""
        b2, every, start = group["betas"][1], int(group["precondition_frequency"]), int(group["start_preconditioning_step"])
        due: dict[Fraction, list[tuple[Tensor, Tensor]]] = {}
        spread = self._spread(group)
        for at, _, state in work:
            step = state["step"]
            if step < start:
                continue
            scale = 1.0 if b2 == 1 else 1 / (1 - b2**step)
            for first, (_, _, sizes), factors, roots in zip(spread.turns[at], spread.grids[at][1], state["factors"], state["roots"]):
                mine = slice(None) if step == start else slice(-(step + first) % every, None, every)
                for n, factor, root in zip(sizes, factors, roots):
                    if len(root[mine]):
                        due.setdefault(self._power(group, len(sizes)), []).append((root[mine], unpack(factor[mine], n) * scale))
        for power, items in due.items():
            made = roots_of([f for _, f in items], 1 / power, group["absolute"], group["relative"])
            for (root, _), (x, status) in zip(items, made):
                # What has no root keeps the one before.
                root.copy_(torch.where((status != FAILED)[:, None, None], x, root))

    def _take_turns(self, group: dict[str, Any], work: list[Any], fresh: bool) -> None:
        """The same where the device counts; new parameters have roots at once."""
        b2 = group["betas"][1]
        options = dict(absolute=group["absolute"], relative=group["relative"], record=True, check=False)
        for (power, n), pool in self._pooled(group, work, fresh, lambda order: self._power(group, order)):
            for every in (True, False) if fresh else (False,):
                at, steps, counts = pool.due(every)
                factors = unpack(pool.factors.index_select(0, at), n)
                if b2 != 1:
                    factors = factors * (1 / (1 - b2**steps)).to(factors.dtype)[:, None, None]
                made, record = inverse_root(factors, 1 / power, **options)  # type: ignore[arg-type]
                good = (record.status != FAILED)[:, None, None] & counts  # type: ignore[attr-defined]
                pool.take(at, made, good if self._skip is None else good & ~self._skip)  # type: ignore[arg-type]

    def _moments(self, group: dict[str, Any], state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The first moment, and the grafting's step."""
        b1, b2 = group["betas"]
        first = state["exp_avg"] / (1 - b1 ** state["step"])
        if "exp_avg_sq" not in state:
            return first, first
        second = state["exp_avg_sq"]
        if group["grafting"] == "adam" and b2 < 1:
            second = second / (1 - b2 ** state["step"])
        return first, first / (second.sqrt() + group["grafting_eps"])

    def _directions(self, group: dict[str, Any], item: Any, first: Tensor, graft: Tensor) -> list[Any]:
        """The steps of the blocks that this process owns, region by region, and None of others."""
        at, _, state = item
        spread = self._spread(group)
        shape, grid = spread.grids[at]
        made: list[Any] = []
        for (where, counts, sizes), mine, roots in zip(grid, spread.own[at], state["roots"]):
            if not roots:
                made.append(None)
                continue
            x = to_blocks(first.reshape(shape)[where], counts, sizes)[mine]
            for axis, root in enumerate(roots):
                x = along(x, root, axis, group.get("precision", "exact"))
            if group["grafting"] != "none":
                want = to_blocks(graft.reshape(shape)[where], counts, sizes)[mine].flatten(1).norm(dim=1)
                have = x.flatten(1).norm(dim=1)
                x = x * (want / (have + 1e-16)).view(-1, *[1] * len(sizes))
            made.append(x)
        return made

    def _apply(self, group: dict[str, Any], work: list[Any]) -> None:
        start, decay, counted = group["start_preconditioning_step"], self._shrink(group), group["capturable"]
        spread = self._spread(group)
        # Before the first root, and without blocks, a step is the grafting's.
        plain = [item for item in work if not item[2]["factors"] or not (counted or item[2]["step"] >= start)]
        for _, p, state in plain:
            self._move(group, p, self._moments(group, state)[1], group["lr"], decay)
        known = {id(item[2]) for item in plain}
        blocked = [item for item in work if id(item[2]) not in known]
        # One parameter after the other, where none waits for what another process made.
        for some in [blocked] if self._ranks.count > 1 else [[item] for item in blocked]:
            moments = [self._moments(group, state) for _, _, state in some]
            own = [self._directions(group, item, *m) for item, m in zip(some, moments)]
            if not some:
                continue
            for (at, p, state), (_, graft), made in zip(some, moments, self._exchanged(group, some, own, moments[0][1])):
                shape, grid = spread.grids[at]
                update = torch.empty_like(graft).reshape(shape)
                for (where, counts, sizes), x in zip(grid, made):
                    update[where] = from_blocks(x, counts, sizes)
                if counted and start > 1:
                    update = torch.where(state["step"] >= start, update, graft.reshape(shape))
                self._move(group, p, update, group["lr"], decay)
