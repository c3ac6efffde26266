"""SOAP (Vyas et al., "SOAP: improving and stabilizing Shampoo using Adam", arXiv:2409.11321)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._base import check_common, check_pair, counter, whole_within, within
from ._blocked import Blocked, Spread
from ._blocks import along, from_blocks, to_blocks, together, unfolded
from ._flat import case_of
from ._fused import Fused
from ._owners import Ranks
from ._packed import add_gram, packed_size, unpack
from ._qr import batched_qr, cholesky_qr


# The longest side of factors whose first bases a GPU's native step makes.
_NATIVE_EIGENVECTORS = 1024


def first_basis(factors: Tensor) -> Tensor:
    """Eigenvectors ``[blocks, n, n]``, those of the largest eigenvalues first; I where a factor is not finite."""
    eye = torch.eye(factors.shape[-1], dtype=factors.dtype, device=factors.device)
    good = factors.isfinite().all(-1).all(-1)[:, None, None]
    # In one order in memory, whichever way it came here: products round by it.
    return torch.linalg.eigh(torch.where(good, factors, eye))[1].flip(-1).contiguous()


def next_basis(factors: Tensor, basis: Tensor) -> Tensor:
    """One step of orthogonal iteration from ``basis``, whose columns are taken by falling estimates of their eigenvalues and stay in
    their places. Where it fails, the basis stays."""
    stretched = factors @ basis
    values = (basis * stretched).sum(-2)
    order = values.argsort(dim=-1, descending=True, stable=True)
    picked = order[:, None, :].expand_as(basis)
    stretched = stretched.gather(-1, picked)
    if factors.is_cuda:
        # Nothing waits: what products and triangular solves cannot do keeps its basis until its next turn.
        made, _, fine = cholesky_qr(stretched)
    else:
        made, _ = batched_qr(stretched, method="householder")
        fine = made.isfinite().all(-1).all(-1)
    made = torch.empty_like(basis).scatter_(-1, picked, made)
    return torch.where(fine[:, None, None], made, basis)


# Second moments that are smaller than the largest of a block by this, squared, are rounding, where gradients have no such direction.
_NOISE = 2.0**-20


class SOAP(Fused, Blocked):
    """Adam in the eigenbases of Shampoo's factors.

    For a block G with factors ``L_k <- s L_k + (1 - s) G_(k) G_(k)^T`` and bases Q_k of their eigenvectors, the second moment is
    kept of ``G' = G x_k Q_k^T``, the first one of G itself; the step is Adam's in the basis, turned back. The basis comes from
    the first gradient's eigenvectors, and then from one step of orthogonal iteration every ``precondition_frequency`` steps,
    each block at its own turn, the factors of one size at once. The first step is Adam's own: its gradient has nothing to say of
    most directions of a basis that it made itself.

    Args:
        params: tensors or groups; every option can be set by group. A group with ``adamw=True`` (embeddings, a head of words) takes
            AdamW's step, of any shape, by its lr, ``betas``, ``eps`` and weight decay.
        lr: the learning rate, a number or a tensor.
        betas: decay of the first and second moments.
        shampoo_beta: decay s of the factors; the second of ``betas`` by default.
        eps: added to the root of the second moment.
        weight_decay, weight_decay_mode: as for :class:`Shampoo`.
        max_preconditioner_dim: blocks are at most so long.
        merge_dims: whether neighbouring axes that fit it together are one; a small matrix is then a vector.
        precondition_frequency: steps between two bases of a block.
        precondition_vectors: whether parameters of one axis have a basis too; otherwise they take Adam's step.
        correct_bias: divides the moments by what they lack at first.
        maximize: climbs.
        fused: one native step for all parameters of a group, float32 tensors that have gradients in every step. Gradients and parameters
            are copied to vectors that it works in, and back, so it takes three times the parameters' memory more. Either kind goes on
            with what the other saved; columns of bases that both make may differ in sign. Not with ``capturable`` or a
            ``process_group``. On a GPU nothing is awaited but a first step with blocks longer than 1024, which is a plain one, since
            PyTorch's eigenvectors come sooner. A first step of 24 layers of width 1024 takes an H200 0.42 s, a later one 14 ms. On the
            CPU it is for small blocks: a step takes half as long where they are of 64, and twice as long where they are of 256.
        capturable, stochastic_rounding, seed, process_group: as for :class:`Shampoo`; on a GPU a basis's first step waits, and cannot be in
            the graph.

    Raises:
        ConfigError: an option out of range, with its value.
        DeviceError: parameters on several devices.

    :meth:`step` says what becomes of gradients that are not finite. At a basis's first step a GPU's answer is awaited, later not.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        *,
        shampoo_beta: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        weight_decay_mode: str = "decoupled",
        max_preconditioner_dim: int = 1024,
        merge_dims: bool = False,
        precondition_frequency: int = 10,
        precondition_vectors: bool = False,
        correct_bias: bool = True,
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
            shampoo_beta=shampoo_beta,
            eps=eps,
            weight_decay=weight_decay,
            weight_decay_mode=weight_decay_mode,
            max_preconditioner_dim=max_preconditioner_dim,
            merge_dims=merge_dims,
            precondition_frequency=precondition_frequency,
            precondition_vectors=precondition_vectors,
            correct_bias=correct_bias,
            maximize=maximize,
            capturable=capturable,
            fused=fused,
            stochastic_rounding=stochastic_rounding,
            seed=seed,
        )
        self._ranks = Ranks("SOAP", process_group)
        super().__init__(params, defaults)

    _entry = "soap"
    _made = "bases"
    _adamw = "lr", "betas", "eps"
    # Three passes of Cholesky's QR, and two products.
    _work = 12

    def _check(self, g: dict[str, Any]) -> None:
        check_common("SOAP", g)
        check_pair("SOAP", "betas", g["betas"])
        if g["shampoo_beta"] is not None:
            within("SOAP", "shampoo_beta", g["shampoo_beta"], 0.0, 1.0, True)
        within("SOAP", "eps", g["eps"], 0.0, float("inf"), True)
        for of in ("max_preconditioner_dim", "precondition_frequency"):
            whole_within("SOAP", of, g[of], 1, 1 << 15)
        self._check_fused(g)

    def _how(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return int(group["max_preconditioner_dim"]), bool(group["precondition_vectors"]), bool(group["merge_dims"])

    def _update(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        if group.get("fused") and not self._opens_plainly(group, given):
            self._fused(group, given)
            return
        (b1, b2), decay, spread = group["betas"], self._shrink(group), self._spread(group)
        keep = b2 if group["shampoo_beta"] is None else group["shampoo_beta"]
        work: list[Any] = []
        fresh: set[Tensor] = set()
        blocks: dict[Tensor, list[Any]] = {}
        self._plain(group, [item for item in given if not spread.grids[item[0]][1]], decay)
        for at, p, g in given:
            state, (shape, grid) = self.state[p], spread.grids[at]
            if not grid:
                continue
            g = g.to(torch.float32)
            if group["weight_decay"] and group["weight_decay_mode"] == "l2":
                g = g + group["weight_decay"] * p.to(torch.float32)
            if not state:
                self._begin(group, p, g, spread, at)
                fresh.add(p)
            self._packed_again(state, grid)
            self._counted(state)
            blocks[p] = []
            with self._kept(state["exp_avg"], *(factor for factors in state["factors"] for factor in factors)):
                state["exp_avg"].lerp_(g, 1 - b1)
                for (where, counts, sizes), mine, factors in zip(grid, spread.own[at], state["factors"]):
                    x = to_blocks(g.reshape(shape)[where], counts, sizes)[mine] if factors else None
                    blocks[p].append(x)
                    for axis, factor in enumerate(factors):
                        add_gram(factor, unfolded(x, axis), keep, 1 - keep)  # type: ignore[arg-type]
            work.append((at, p, state))
        self._first(work, fresh)
        # One parameter after the other, where none waits for what another process made.
        for some in [work] if self._ranks.count > 1 else [[item] for item in work]:
            own = [self._directions(group, item, blocks[item[1]], item[1] in fresh) for item in some]
            like = some[0][2]["exp_avg"] if some else None
            for (at, p, _), made in zip(some, self._exchanged(group, some, own, like)):  # type: ignore[arg-type]
                shape, grid = spread.grids[at]
                update = torch.empty(shape, device=p.device)
                for (where, counts, sizes), x in zip(grid, made):
                    update[where] = from_blocks(x, counts, sizes)
                self._move(group, p, update, group["lr"], decay)
        if group["capturable"]:
            for _, pool in self._pooled(group, work, bool(fresh), lambda order: None):
                due, _, counts = pool.due()
                bases = pool.made.index_select(0, due)
                made = next_basis(unpack(pool.factors.index_select(0, due), bases.shape[-1]), bases)
                # Behind the first step no basis turns; what it calls is then loaded, which a graph could not do.
                if not fresh:
                    pool.take(due, made, counts if self._skip is None else counts & ~self._skip)
        else:
            self._turn(group, [item for item in work if item[1] not in fresh])

    def _opens_plainly(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> bool:
        """Whether a fused group's first step is a plain one: on a GPU PyTorch's eigenvectors of large factors come sooner."""
        if not given or not given[0][1].is_cuda or any(self.state.get(p) for _, p, _ in given):
            return False
        grids = self._spread(group).grids
        sides = [n for at, _, _ in given for _, _, sizes in grids[at][1] or () for n in sizes]
        return max(sides, default=0) > _NATIVE_EIGENVECTORS

    def _case(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]], done: int) -> str:
        options = dict(
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            shampoo_beta=group["shampoo_beta"],
            eps=group["eps"],
            decay=group["weight_decay"],
            mode=group["weight_decay_mode"],
            block=int(group["max_preconditioner_dim"]),
            every=int(group["precondition_frequency"]),
            merge=bool(group["merge_dims"]),
            vectors=bool(group["precondition_vectors"]),
            bias=bool(group["correct_bias"]),
            opens=done == 0 or None,
        )
        return case_of(given, options)

    def _named(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> dict[str, tuple[str, list[Any]]]:
        whole, grids = [p.shape for _, p, _ in given], self._spread(group).grids
        merged = [grids[at][0] if grids[at][1] else p.shape for at, p, _ in given]
        return {"first": ("exp_avg", whole), "second": ("exp_avg_sq", merged)}

    def _grids(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> list[Any]:
        grids = self._spread(group).grids
        # What takes Adam's step has no place for factors.
        return [grids[at][1] or None for at, _, _ in given]

    def _begin(self, group: dict[str, Any], p: Tensor, g: Tensor, spread: Spread, at: int) -> None:
        state, shape = self.state[p], spread.grids[at][0]
        state["step"] = counter(group, p)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(g), torch.zeros(shape, device=g.device)
        state["factors"], state["bases"] = [], []
        self._note_blocks(state, spread, at)
        for own, blocks in self._blocks_of(spread, at):
            state["factors"].append([g.new_zeros(blocks, packed_size(n)) for n in own])
            state["bases"].append([g.new_zeros(blocks, n, n) for n in own])

    def _first(self, work: list[Any], fresh: set[Tensor]) -> None:
        """The bases of parameters that had none."""
        items = [
            (state["bases"][k], axis, unpack(factor, state["bases"][k][axis].shape[-1]))
            for _, p, state in work
            if p in fresh
            for k, factors in enumerate(state["factors"])
            for axis, factor in enumerate(factors)
        ]
        for (bases, axis, _), made in zip(items, together(first_basis, [(f,) for _, _, f in items])):
            # In memory of its own: a part of many would keep them all.
            bases[axis] = made.clone()

    def _directions(self, group: dict[str, Any], item: Any, blocks: list[Any], begins: bool) -> list[Any]:
        """The steps of the blocks that this process owns, region by region, and None of others."""
        at, _, state = item
        b1, b2 = group["betas"]
        step, eps = state["step"], group["eps"]
        spread = self._spread(group)
        shape, grid = spread.grids[at]
        c1 = c2 = one = 1.0
        if group["correct_bias"]:
            # Second moments begin at the second step.
            after = (step - 1).clamp_min(1) if isinstance(step, Tensor) else max(step - 1, 1)
            c1, c2 = 1 - b1**step, 1 - b2**after
        else:
            one = (1 - b2) ** 0.5
        mean, second = state["exp_avg"].reshape(shape), state["exp_avg_sq"]
        made: list[Any] = []
        for (where, counts, sizes), mine, x, bases in zip(grid, spread.own[at], blocks, state["bases"]):
            if not bases:
                made.append(None)
                continue
            m = to_blocks(mean[where], counts, sizes)[mine] / c1
            if begins:
                made.append(m / (x.abs() * one + eps))
                continue
            for axis, q in enumerate(bases):
                x, m = along(x, q.mT, axis), along(m, q.mT, axis)
            known = to_blocks(second[where], counts, sizes)
            v = known[mine].mul(b2).addcmul_(x, x, value=1 - b2)
            if len(v) < len(known):
                # Those of other processes stay as they are.
                known = torch.cat([known[: mine.start], v, known[mine.stop :]])
            with self._kept(second[where]):
                second[where] = from_blocks(v if len(v) == len(known) else known, counts, sizes)
            root = (v / c2).sqrt()
            m = m / (root + (eps + _NOISE * root.flatten(1).amax(1)).view(-1, *[1] * len(sizes)))
            for axis, q in enumerate(bases):
                m = along(m, q, axis)
            made.append(m)
        return made

    def _turn(self, group: dict[str, Any], work: list[Any]) -> None:
        """New bases for the blocks whose turn it is, behind the step."""
        every, spread = int(group["precondition_frequency"]), self._spread(group)
        pairs, places = [], []
        for at, _, state in work:
            for first, factors, bases in zip(spread.turns[at], state["factors"], state["bases"]):
                mine = slice(-(state["step"] + first) % every, None, every)
                for factor, basis in zip(factors, bases):
                    if len(basis[mine]):
                        places.append(basis[mine])
                        pairs.append((unpack(factor[mine], basis.shape[-1]), basis[mine]))
        for basis, made in zip(places, together(next_basis, pairs)):
            basis.copy_(made)
