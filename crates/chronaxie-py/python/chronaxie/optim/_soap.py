"""SOAP (Vyas et al., "SOAP: improving and stabilizing Shampoo using Adam", arXiv:2409.11321)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._base import Base, adamw, apply, check_common, shrink, within
from ._blocks import along, count, from_blocks, grid_of, to_blocks, together, unfolded
from ._qr import batched_qr, cholesky_qr


def first_basis(factors: Tensor) -> Tensor:
    """Eigenvectors ``[blocks, n, n]``, those of the largest eigenvalues first; I where a factor is not finite."""
    eye = torch.eye(factors.shape[-1], dtype=factors.dtype, device=factors.device)
    good = factors.isfinite().all(-1).all(-1)[:, None, None]
    return torch.linalg.eigh(torch.where(good, factors, eye))[1].flip(-1)


def next_basis(factors: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """One step of orthogonal iteration from ``basis``, and the order ``[blocks, n]`` in which its columns were taken: by falling
    estimates of their eigenvalues. Where it fails, the basis stays."""
    stretched = factors @ basis
    values = (basis * stretched).sum(-2)
    order = values.argsort(dim=-1, descending=True, stable=True)
    picked = order[:, None, :].expand_as(basis)
    stretched, kept = stretched.gather(-1, picked), basis.gather(-1, picked)
    if factors.is_cuda:
        # Nothing waits: what products and triangular solves cannot do keeps its basis until its next turn.
        made, _, fine = cholesky_qr(stretched)
    else:
        made, _ = batched_qr(stretched, method="householder")
        fine = made.isfinite().all(-1).all(-1)
    return torch.where(fine[:, None, None], made, kept), order


# Second moments that are smaller than the largest of a block by this, squared, are rounding, where gradients have no such direction.
_NOISE = 2.0**-20


class SOAP(Base):
    """Adam in the eigenbases of Shampoo's factors.

    For a block G with factors ``L_k <- s L_k + (1 - s) G_(k) G_(k)^T`` and bases Q_k of their eigenvectors, the second moment is
    kept of ``G' = G x_k Q_k^T``, the first one of G itself; the step is Adam's in the basis, turned back. The basis comes from
    the first gradient's eigenvectors, and then from one step of orthogonal iteration every ``precondition_frequency`` steps,
    each block at its own turn, the factors of one size at once. The first step is Adam's own: its gradient has nothing to say of
    most directions of a basis that it made itself.

    Args:
        params: tensors or groups; every option can be set by group.
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
        )
        super().__init__(params, defaults)

    def _check(self, g: dict[str, Any]) -> None:
        check_common("SOAP", g)
        for k in range(2):
            within("SOAP", f"betas[{k}]", g["betas"][k], 0.0, 1.0, True)
        if g["shampoo_beta"] is not None:
            within("SOAP", "shampoo_beta", g["shampoo_beta"], 0.0, 1.0, True)
        within("SOAP", "eps", g["eps"], 0.0, float("inf"), True)
        for of in ("max_preconditioner_dim", "precondition_frequency"):
            within("SOAP", of, g[of], 1, 1 << 15)

    def _update(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        how = int(group["max_preconditioner_dim"]), group["precondition_vectors"], group["merge_dims"]
        every = int(group["precondition_frequency"])
        (b1, b2), decay = group["betas"], shrink(group)
        keep = b2 if group["shampoo_beta"] is None else group["shampoo_beta"]
        turns, turn = [], 0
        for p in group["params"]:
            turns.append(turn)
            turn += len(grid_of(p, *how)[1])
        work, first, due = [], [], []
        for at, p, g in given:
            g = g.to(torch.float32)
            if group["weight_decay"] and group["weight_decay_mode"] == "l2":
                g = g + group["weight_decay"] * p.to(torch.float32)
            state = self.state[p]
            shape, grid = grid_of(p, *how)
            if not grid:
                adamw(p, g, state, lr=group["lr"], betas=(b1, b2), eps=group["eps"], decay=decay)
                continue
            if not state:
                state["step"] = 0
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(g), torch.zeros(shape, device=g.device)
                state["factors"] = [[g.new_zeros(count(c), n, n) for n in sizes] for _, c, sizes in grid]
                state["bases"] = [[g.new_zeros(count(c), n, n) for n in sizes] for _, c, sizes in grid]
            state["step"] += 1
            state["exp_avg"].lerp_(g, 1 - b1)
            regions = []
            for k, (where, counts, sizes) in enumerate(grid):
                x = to_blocks(g.reshape(shape)[where], counts, sizes)
                regions.append(x)
                for axis, factor in enumerate(state["factors"][k]):
                    m = unfolded(x, axis)
                    factor.baddbmm_(m, m.mT, beta=keep, alpha=1 - keep)
                    if state["step"] == 1:
                        first.append((state["bases"][k], axis, factor))
                if state["step"] > 1 and (state["step"] + turns[at] + k) % every == 0:
                    due.append((state, k, grid[k]))
            work.append((p, state, shape, grid, regions))
        for (bases, axis, _), made in zip(first, together(first_basis, [(f,) for _, _, f in first])):
            bases[axis] = made
        for p, state, shape, grid, regions in work:
            self._apply(group, p, state, shape, grid, regions, decay)
        self._turn(due)

    def _apply(
        self, group: dict[str, Any], p: Tensor, state: dict[str, Any], shape: list[int], grid: list[Any], regions: Any, decay: Any
    ) -> None:
        b1, b2 = group["betas"]
        step, eps = state["step"], group["eps"]
        # Second moments begin at the second step.
        c1, c2 = (1 - b1**step, 1 - b2 ** max(step - 1, 1)) if group["correct_bias"] else (1.0, 1.0)
        mean, second = state["exp_avg"].reshape(shape), state["exp_avg_sq"]
        update = torch.empty(shape, device=mean.device)
        for (where, counts, sizes), x, bases in zip(grid, regions, state["bases"]):
            m = to_blocks(mean[where], counts, sizes) / c1
            if step == 1:
                update[where] = from_blocks(m / (x.abs() * (1.0 if group["correct_bias"] else (1 - b2) ** 0.5) + eps), counts, sizes)
                continue
            for axis, q in enumerate(bases):
                x, m = along(x, q.mT, axis), along(m, q.mT, axis)
            v = to_blocks(second[where], counts, sizes)
            v = v.mul(b2).addcmul_(x, x, value=1 - b2)
            second[where] = from_blocks(v, counts, sizes)
            root = (v / c2).sqrt()
            m = m / (root + (eps + _NOISE * root.flatten(1).amax(1)).view(-1, *[1] * len(sizes)))
            for axis, q in enumerate(bases):
                m = along(m, q, axis)
            update[where] = from_blocks(m, counts, sizes)
        apply(p, update, group["lr"], decay)

    def _turn(self, due: list[Any]) -> None:
        """New bases for the blocks whose turn it is, behind the step; second moments follow the order of the columns."""
        pairs = [(state["factors"][k][axis], q) for state, k, _ in due for axis, q in enumerate(state["bases"][k])]
        made = iter(together(next_basis, pairs))
        for state, k, (where, counts, sizes) in due:
            v = to_blocks(state["exp_avg_sq"][where], counts, sizes)
            for axis in range(len(sizes)):
                state["bases"][k][axis], order = next(made)
                index = order.view(order.shape[0], *[-1 if a == axis else 1 for a in range(len(sizes))]).expand_as(v)
                v = v.gather(axis + 1, index)
            state["exp_avg_sq"][where] = from_blocks(v, counts, sizes)
