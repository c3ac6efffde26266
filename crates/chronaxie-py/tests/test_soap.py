"""SOAP against an independent float64 NumPy, and batched QR."""

import numpy as np
import pytest
import torch

import chronaxie
from chronaxie import optim
from chronaxie.optim._qr import cholesky_qr
from chronaxie.optim._soap import next_basis

from test_optim import Reference, normal, quadratic


def conditioned(kappa, *batch, m, n, seed=0, device="cpu"):
    u = np.linalg.qr(np.random.default_rng(seed).standard_normal((*batch, m, n)))[0]
    v = np.linalg.qr(np.random.default_rng(seed + 1).standard_normal((*batch, n, n)))[0]
    return torch.from_numpy(u * np.logspace(0, -np.log10(kappa), n) @ v).float().to(device)


@pytest.mark.parametrize("method", ["householder", "cholesky", "auto"])
@pytest.mark.parametrize("m, n", [(1, 1), (7, 3), (33, 33), (64, 20), (130, 129)])
def test_qr_is_orthogonal_and_gives_a_back(device, method, m, n):
    for kappa in (1.0, 1e4, 1e7):
        a = conditioned(kappa, 2, 3, m=m, n=n, device=device)
        q, r = optim.batched_qr(a, method=method)
        x, y, z = (t.double().cpu().numpy() for t in (a, q, r))
        assert np.abs(y.swapaxes(-1, -2) @ y - np.eye(n)).max() < 3e-6
        assert np.abs(y @ z - x).max() <= 3e-6 * max(np.abs(x).max(), 1e-30)
        assert np.abs(np.tril(z, -1)).max() <= 1e-6 and (np.diagonal(z, axis1=-2, axis2=-1) >= 0).all()
        want = np.linalg.qr(x)[0]
        want *= np.sign((want * y).sum(-2, keepdims=True))
        if kappa == 1.0:
            assert np.abs(y - want).max() < 1e-5


def test_one_bad_matrix_harms_no_other():
    a = normal(4, 6, 5)
    a[1, 2, 2] = float("nan")
    a[2] = 0.0
    for method in ("householder", "cholesky"):
        q, r = optim.batched_qr(a, method=method)
        assert q[1].isnan().all() and not q[[0, 2, 3]].isnan().any(), method
        torch.testing.assert_close(q[[0, 3]] @ r[[0, 3]], a[[0, 3]], rtol=0, atol=3e-6)
    *_, fine = cholesky_qr(a)
    assert fine.tolist() == [True, False, False, True]
    assert optim.batched_qr(a[:0])[0].shape == (0, 6, 5)
    for bad, want in ((a.mT, r"a.shape = \(4, 5, 6\) is not a batch of matrices \[..., m, n\] with m >= n"), (a[0, 0], "not a batch")):
        with pytest.raises(chronaxie.ShapeError, match=want):
            optim.batched_qr(bad)
    with pytest.raises(chronaxie.DtypeError, match="a holds int64"):
        optim.batched_qr(torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(chronaxie.ConfigError, match="method = 'lu' is not one of auto"):
        optim.batched_qr(a, method="lu")


def test_bases_come_to_eigenvectors():
    g = normal(3, 12, 40)
    g = g * torch.logspace(0, 2, 12)[:, None]
    a = g @ g.mT
    basis = torch.linalg.qr(normal(3, 12, 12, seed=1))[0]
    for _ in range(60):
        before, basis = basis, next_basis(a, basis)
    assert float((before * basis).sum(-2).abs().min()) > 1 - 1e-5, "columns stay in their places"
    inside = basis.mT @ a @ basis
    off = inside - torch.diag_embed(inside.diagonal(dim1=-2, dim2=-1))
    assert float(off.norm() / inside.norm()) < 1e-4


class Law:
    """SOAP in float64, block by block and axis by axis, with NumPy's own QR and eigenvectors."""

    def regions(self):
        if self.o["merge"]:
            return Reference.regions(self)
        places = [()]
        for n in self.w.shape:
            places = [(*p, slice(s, min(s + 4, n))) for p in places for s in range(0, n, 4)]
        return list(self.w.shape), places

    def __init__(self, w, **o):
        self.w, self.o, self.t = w.astype(np.float64), o, 0
        self.m, self.v, self.l, self.q = np.zeros_like(self.w), {}, {}, {}

    def step(self, grad):
        o, (b1, b2) = self.o, self.o["betas"]
        self.t += 1
        g = grad.astype(np.float64)
        self.m = b1 * self.m + (1 - b1) * g
        shape, places = self.regions()
        update = np.empty(shape)
        for turn, place in enumerate(places):
            at = str(place)
            x, m = g.reshape(shape)[place], self.m.reshape(shape)[place]
            axes = range(x.ndim)
            for k in axes:
                flat = np.moveaxis(x, k, 0).reshape(x.shape[k], -1)
                self.l[at, k] = b2 * self.l.get((at, k), 0) + (1 - b2) * flat @ flat.T
                if self.t == 1:
                    self.q[at, k] = np.linalg.eigh(self.l[at, k])[1][:, ::-1]
            if self.t == 1:
                update[place] = m / (1 - b1) / (np.abs(x) + o["eps"])
                continue
            turned = [x, m]
            for k in axes:
                turned = [np.moveaxis(np.tensordot(self.q[at, k].T, y, (1, k)), 0, k) for y in turned]
            self.v[at] = b2 * self.v.get(at, 0) + (1 - b2) * turned[0] ** 2
            root = np.sqrt(self.v[at] / (1 - b2 ** (self.t - 1)))
            step = turned[1] / (1 - b1**self.t) / (root + o["eps"] + 2.0**-20 * root.max())
            for k in axes:
                step = np.moveaxis(np.tensordot(self.q[at, k], step, (1, k)), 0, k)
            update[place] = step
            if self.t > 1 and (self.t + turn) % o["every"] == 0:
                for k in axes:
                    s = self.l[at, k] @ self.q[at, k]
                    order = np.argsort(-(self.q[at, k] * s).sum(0), kind="stable")
                    self.q[at, k] = np.linalg.qr(s[:, order])[0]
                    self.v[at] = np.take(self.v[at], order, k)
        self.w = self.w - o["lr"] * (update.reshape(self.w.shape) + o["decay"] * self.w)


@pytest.mark.parametrize("shape, every, merge", [
    ((4, 4), 1, False), ((7, 3), 1, False), ((4, 3, 2), 2, False), ((8, 8), 3, False), ((4, 4, 4), 1, True), ((2, 2, 4), 2, True),
])  # fmt: skip
def test_ten_steps_are_numpys(device, shape, every, merge):
    """Blocks whose factors have at most one eigenvalue of 0 at first: of equal ones the eigenvectors are anyone's choice."""
    options = dict(lr=0.05, betas=(0.9, 0.95), eps=1e-2)
    w = normal(*shape)
    law = Law(w.numpy(), most=4, every=every, decay=0.1, merge=merge, **options)
    p = torch.nn.Parameter(w.clone().to(device))
    soap = optim.SOAP(
        [p], weight_decay=0.1, max_preconditioner_dim=4, precondition_frequency=every, merge_dims=merge, **options
    )
    for k in range(10):
        g = normal(*shape, seed=k + 1)
        p.grad = g.to(device)
        soap.step()
        law.step(g.numpy())
        error = np.abs(p.detach().cpu().numpy() - law.w).max()
        assert error < 5e-4, (k, error)


def test_bases_come_in_turns():
    params = [torch.nn.Parameter(normal(6, 4, seed=k)) for k in range(4)]
    soap = optim.SOAP(params, precondition_frequency=4)
    made = []
    for step in range(13):
        for k, p in enumerate(params):
            p.grad = normal(6, 4, seed=10 * step + k)
        before = [soap.state[p]["bases"][0][0].clone() if soap.state[p] else None for p in params]
        soap.step()
        made.append([b is None or not torch.equal(b, soap.state[p]["bases"][0][0]) for b, p in zip(before, params)])
    assert all(made[0]) and all(sum(row) == 1 for row in made[1:])
    for k in range(4):
        at = [s for s in range(1, 13) if made[s][k]]
        assert len(at) == 3 and all(b - a == 4 for a, b in zip(at, at[1:]))


def test_soap_helps_where_conditions_are_bad():
    rates = (0.3, 1.0, 3.0)
    ours = min(quadratic(lambda p: optim.SOAP(p, lr=lr, betas=(0.8, 0.9), precondition_frequency=1), 60) for lr in rates)
    adam = min(quadratic(lambda p: torch.optim.Adam(p, lr=lr, betas=b), 60) for lr in rates for b in ((0.8, 0.9), (0.9, 0.999)))
    assert ours < 0.1 * adam, (ours, adam)


def test_vectors_take_adams_step():
    ours, theirs = (torch.nn.Parameter(normal(9)) for _ in range(2))
    soap = optim.SOAP([ours], lr=0.1, betas=(0.9, 0.99), weight_decay=0.1)
    adam = torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.99), weight_decay=0.1)
    for k in range(4):
        ours.grad = theirs.grad = normal(9, seed=k)
        soap.step()
        adam.step()
    torch.testing.assert_close(ours, theirs)


def test_soaps_own_mistakes():
    p = torch.nn.Parameter(torch.ones(3, 2))
    for options, want in [
        (dict(betas=(0.9, 1.0)), r"betas\[1\] = 1.0"),
        (dict(shampoo_beta=1.5), "shampoo_beta = 1.5"),
        (dict(max_preconditioner_dim=0), "max_preconditioner_dim = 0"),
        (dict(eps=-1.0), "eps = -1.0"),
    ]:
        with pytest.raises(chronaxie.ConfigError, match=want):
            optim.SOAP([p], **options)


def test_a_learning_rate_of_zero_changes_nothing():
    for mode in ("decoupled", "corrected", "independent"):
        p = torch.nn.Parameter(torch.ones(3, 2))
        p.grad = torch.ones(3, 2)
        optim.SOAP([p], lr=torch.tensor(0.0), weight_decay=0.1, weight_decay_mode=mode).step()
        assert torch.equal(p.detach(), torch.ones(3, 2)), mode
