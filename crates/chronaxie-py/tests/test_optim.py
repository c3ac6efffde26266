"""chronaxie.optim against independent float64 NumPy, and as optimizers are used."""

import copy
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

import chronaxie
from chronaxie import optim
from chronaxie.optim import _base

from conftest import goes_on_with_the_same_bits

MAKERS = [optim.Shampoo, optim.SOAP, optim.Muon]


def normal(*shape, seed=0, device="cpu"):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def gram(*batch, n, seed=0, device="cpu"):
    g = normal(*batch, n, 2 * n, seed=seed, device=device)
    return g @ g.mT / (2 * n)


@pytest.mark.parametrize("root", [1, 2, 4, Fraction(3, 2)])
@pytest.mark.parametrize("method", ["auto", "eigen"])
def test_roots_are_numpys(device, root, method):
    a = gram(2, 3, n=20, device=device)
    x, record = optim.inverse_root(a, root, method=method, record=True)
    values, vectors = np.linalg.eigh(a.cpu().double().numpy())
    eps = 1e-6 * np.linalg.norm(a.cpu().double().numpy(), axis=(-2, -1))[..., None]
    want = (vectors * (values + eps)[..., None, :] ** (-1 / float(root))) @ vectors.swapaxes(-1, -2)
    assert np.linalg.norm(x.cpu().numpy() - want) <= 1.5e-5 * np.linalg.norm(want)
    assert x.shape == a.shape and record.status.shape == (2, 3) and record.status.dtype == torch.int32
    assert set(record.status.unique().tolist()) <= {0, 1} and float(record.residual.max()) < 1e-3
    torch.testing.assert_close(record.damping.cpu().double(), torch.from_numpy(eps[..., 0]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("batch, n", [((), 1), ((3,), 7), ((2, 9), 33), ((2,), 130), ((0,), 4), ((3,), 0)])
def test_eigenvectors_are_numpys(device, batch, n):
    a = gram(*batch, n=n, device=device) if n else torch.zeros(*batch, 0, 0, device=device)
    values, vectors = optim.eigh(a)
    assert values.shape == a.shape[:-1] and vectors.shape == a.shape and values.dtype == vectors.dtype == a.dtype
    law = a.cpu().double().numpy()
    want = np.linalg.eigvalsh(law)
    v = vectors.cpu().double().numpy()
    assert np.linalg.norm(values.cpu().numpy() - want) <= 1e-6 * np.linalg.norm(want)
    assert np.abs(v.swapaxes(-1, -2) @ v - np.eye(n)).max(initial=0) < 5e-7
    assert np.linalg.norm(law @ v - v * values.cpu().double().numpy()[..., None, :]) <= 1e-6 * np.linalg.norm(law)
    half = optim.eigh(a.bfloat16(), check=False)
    assert half.values.dtype == half.vectors.dtype == torch.bfloat16


def test_bad_matrices_have_no_eigenvectors(device):
    b = gram(3, n=5, device=device)
    b[1, 2, 2] = float("inf")
    values, vectors = optim.eigh(b)
    assert values[1].isnan().all() and vectors[1].isnan().all()
    assert all(torch.equal(x[[0, 2]], y) for x, y in zip((values, vectors), optim.eigh(b[[0, 2]])))
    with pytest.raises(chronaxie.ShapeError, match=r"eigh: a.shape = \(2, 5\) is not a batch of square"):
        optim.eigh(b[0, :2])
    with pytest.raises(chronaxie.ShapeError, match="eigh: a is not symmetric: it differs from its transpose by up to 1"):
        optim.eigh(b[0] + torch.triu(torch.ones(5, 5, device=device), 1), check=True)
    with pytest.raises(chronaxie.DtypeError, match="eigh: a holds float64"):
        optim.eigh(b.double())
    with pytest.raises(chronaxie.ChronaxieError, match="eigh: there is no gradient; detach a"):
        optim.eigh(b.requires_grad_())


def test_bad_roots_are_told():
    a = gram(n=4)
    with pytest.raises(chronaxie.ShapeError, match=r"a.shape = \(3, 4\) is not a batch of square"):
        optim.inverse_root(a[:3])
    with pytest.raises(chronaxie.ShapeError, match="differs from its transpose by up to 1"):
        optim.inverse_root(a + torch.triu(torch.ones(4, 4), 1))
    with pytest.raises(chronaxie.DtypeError, match="a holds float64"):
        optim.inverse_root(a.double())
    with pytest.raises(chronaxie.ConfigError, match="root = 0 is not a positive"):
        optim.inverse_root(a, 0)
    with pytest.raises(chronaxie.ConfigError, match="method `lu` is not one of"):
        optim.inverse_root(a, method="lu")
    with pytest.raises(chronaxie.ChronaxieError, match="there is no gradient; detach a"):
        optim.inverse_root(a.requires_grad_())
    # One that has no root harms no other.
    b = gram(3, n=4, seed=1)
    b[1, 2, 2] = float("nan")
    x, record = optim.inverse_root(b, record=True)
    assert record.status.tolist()[1] == 3 and x[1].isnan().all() and not x[[0, 2]].isnan().any()
    assert torch.equal(x[[0, 2]], optim.inverse_root(b[[0, 2]]))
    assert optim.inverse_root(b[:0]).shape == (0, 4, 4)
    assert optim.inverse_root(torch.zeros(3, 0, 0)).shape == (3, 0, 0)


def test_products_of_kronecker():
    a, b, x = normal(2, 3, 4), normal(2, 5, 6, seed=1), normal(2, 4, 6, seed=2)
    whole = optim.kron(a, b)
    for i in range(2):
        torch.testing.assert_close(whole[i], torch.kron(a[i], b[i]))
    want = (whole @ x.flatten(1)[..., None]).view(2, 3, 5)
    torch.testing.assert_close(optim.kron_apply(a, b, x), want)
    torch.testing.assert_close(optim.batched_matmul(a, b[:, :4]), torch.bmm(a, b[:, :4]))
    with pytest.raises(chronaxie.ShapeError, match=r"x.shape = \(2, 6, 4\) does not match"):
        optim.kron_apply(a, b, x.mT)
    with pytest.raises(chronaxie.ShapeError, match="are not"):
        optim.batched_matmul(a, b)


@pytest.mark.parametrize("shape", [(8, 8), (5, 9), (3, 12, 4)])
def test_orthogonal_matrices_have_singular_values_near_one(shape):
    g = normal(*shape)
    s = torch.linalg.svdvals(optim.orthogonalize(g))
    # What is tiny stays below one.
    assert float(s.max()) < 1.3 and float(s[..., 0].min()) > 0.6
    u, _, v = torch.linalg.svd(g, full_matrices=False)
    alike = (optim.orthogonalize(g) * (u @ v)).flatten(-2).sum(-1) / (u @ v).flatten(-2).norm(dim=-1) ** 2
    assert float(alike.min()) > 0.6


class Reference:
    """Shampoo in float64, block by block and axis by axis."""

    def __init__(self, w, **o):
        self.w, self.o, self.t = w.astype(np.float64), o, 0
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.blocks = {}

    def regions(self):
        """Slices of the merged tensor, written as a plain loop over where blocks begin."""
        shape, most = [], self.o["most"]
        for n in self.w.shape:
            if n == 1:
                continue
            if shape and shape[-1] * n <= most and self.o.get("merge", True):
                shape[-1] *= n
            else:
                shape.append(n)
        places = [()]
        for n in shape:
            places = [(*p, slice(s, min(s + most, n))) for p in places for s in range(0, n, most)]
        return shape, places

    def step(self, grad):
        o, b1, b2 = self.o, *self.o["betas"]
        self.t += 1
        g = grad.astype(np.float64)
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g * g
        first = self.m / (1 - b1**self.t)
        graft = first / (np.sqrt(self.v / (1 - b2**self.t)) + 1e-8)
        shape, places = self.regions()
        update = np.empty(shape)
        for place in places:
            x, d = first.reshape(shape)[place], graft.reshape(shape)[place]
            gb = g.reshape(shape)[place]
            for k in range(x.ndim):
                unfolded = np.moveaxis(gb, k, 0).reshape(gb.shape[k], -1)
                key = (str(place), k)
                old = self.blocks.get(key, np.zeros((gb.shape[k],) * 2))
                self.blocks[key] = b2 * old + (1 - b2) * unfolded @ unfolded.T
                factor = self.blocks[key] / (1 - b2**self.t)
                values, vectors = np.linalg.eigh(factor)
                eps = max(o["absolute"], o["relative"] * np.linalg.norm(factor))
                root = (vectors * (values + eps) ** -o.get("powers", {}).get(x.ndim, 1 / (2 * x.ndim))) @ vectors.T
                x = np.moveaxis(np.tensordot(root, x, axes=(1, k)), 0, k)
            update[place] = x * np.linalg.norm(d) / (np.linalg.norm(x) + 1e-16)
        self.w = self.w - o["lr"] * (update.reshape(self.w.shape) + o["decay"] * self.w)

    def follows(self, shampoo, p):
        """Ten steps of both."""
        for k in range(10):
            g = normal(*p.shape, seed=k + 1)
            p.grad = g.to(p.device)
            shampoo.step()
            self.step(g.numpy())
            error = np.abs(p.detach().cpu().numpy() - self.w).max()
            assert error < 2e-4, (k, error)


@pytest.mark.parametrize("shape", [(5,), (7, 3), (4, 3, 2), (1, 6, 1), (9, 9), (4, 4, 4)])
def test_ten_steps_are_numpys(device, shape):
    options = dict(lr=0.05, betas=(0.9, 0.97), absolute=1e-12, relative=1e-3)
    w = normal(*shape, device=device)
    law = Reference(w.cpu().numpy(), most=4, decay=0.1, **options)
    p = torch.nn.Parameter(w.clone())
    shampoo = optim.Shampoo([p], weight_decay=0.1, max_preconditioner_dim=4, precondition_frequency=1, **options)
    law.follows(shampoo, p)


@pytest.mark.parametrize("shape", [(7, 3), (9, 9), (4, 4, 4)])
def test_ten_fast_steps_are_numpys_but_for_roundings(device, shape, monkeypatch):
    from chronaxie.optim import _rounded

    if device.type == "cpu":
        monkeypatch.setattr(_rounded, "rounds", lambda x: True)
    options = dict(lr=0.05, betas=(0.9, 0.97), absolute=1e-12, relative=1e-2)
    w = normal(*shape, device=device)
    law = Reference(w.cpu().numpy(), most=4, decay=0.0, **options)
    p, q = (torch.nn.Parameter(w.clone()) for _ in range(2))
    same = dict(max_preconditioner_dim=4, precondition_frequency=1, **options)
    fast, exact = optim.Shampoo([p], precision="fast", **same), optim.Shampoo([q], **same)
    # Of a step, which is as long as the grafting's, of elements of about one: a rounding to half precision of each root and of what
    # it is multiplied by, and the error of each root: 1/2o times the condition number, at most ||L|| / eps, times two roundings.
    order, half = len(shape), 2.0**-11
    bound = (2 * order + order / (2 * order) / options["relative"] * 2) * half
    for k in range(10):
        g = normal(*shape, seed=k + 1)
        p.grad, q.grad = g.to(device), g.to(device)
        fast.step(), exact.step()
        law.step(g.numpy())
        error = np.linalg.norm(p.detach().cpu().numpy() - law.w)
        assert error < (k + 1) * options["lr"] * bound * p.numel() ** 0.5, (k, error)
    assert not torch.equal(p, q)


def test_halves_have_eleven_bits_of_all_that_counts():
    from chronaxie.optim import _rounded

    x = normal(4, 30, 20)
    x[1] *= 1e-20
    x[2] *= 1e20
    x[3] = 0
    x[0, :15] *= 2.0**-20
    h, down = _rounded.halves(x)
    assert h.dtype == torch.float16 and h.isfinite().all() and not h[3].any()
    assert ((h.double() * down.double() - x).abs() <= 2.0**-11 * x.abs().double() + 2.0**-25 * down.double()).all()
    exact = x.double() @ x.double().mT
    y = x.mT.contiguous()
    # The CPU's is exact.
    assert torch.equal(_rounded.product(x, y, "fast"), torch.bmm(x, y))
    made = _rounded.multiply(h, h.mT).mul_(down).mul_(down)
    size = x.double().abs() @ x.double().abs().mT
    assert ((made - exact).abs()[:2] <= 2.1 * 2.0**-11 * size[:2] + 1e-37).all()
    x[1, 3, 4] = float("nan")
    assert _rounded.halves(x)[0][0].equal(h[0]) and _rounded.halves(x)[0][1].isnan().sum() == 1


def quadratic(make, steps, seed=3):
    """A badly conditioned quadratic of a matrix: the loss at the end over that at the start."""
    torch.manual_seed(seed)
    a = torch.diag(torch.logspace(0, 2.5, 12))
    q, _ = torch.linalg.qr(torch.randn(12, 12))
    a = q @ a @ q.T
    target = torch.randn(12, 8)
    w = torch.nn.Parameter(torch.zeros(12, 8))
    optimizer = make([w])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / steps)
    losses = []
    for _ in range(steps + 1):
        optimizer.zero_grad()
        loss = ((a @ (w - target)) ** 2).mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        schedule.step()
    return losses[-1] / losses[0]


def test_shampoo_helps_where_conditions_are_bad():
    every = dict(betas=(0.9, 0.95), precondition_frequency=1)
    ours = min(quadratic(lambda p: optim.Shampoo(p, lr=lr, **every), 60) for lr in (0.1, 0.3))
    adam = min(quadratic(lambda p: torch.optim.Adam(p, lr=lr), 60) for lr in (0.1, 0.3, 1.0, 3.0))
    assert ours < 0.5 * adam, (ours, adam)


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.Flatten(), torch.nn.Linear(48, 5))


def train(net, optimizer, steps, seed=0):
    for k in range(steps):
        x = normal(4, 2, 6, 6, seed=seed + k)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("make", MAKERS)
def test_a_run_that_was_saved_goes_on_with_the_same_bits(make):
    def optimize(net, first):
        return make(net.parameters(), lr=0.01 if first else 0.5)

    goes_on_with_the_same_bits(model, optimize, lambda net, o, part: train(net, o, (7, 13)[part], seed=100 * part))


@pytest.mark.parametrize("make", MAKERS)
def test_state_is_float32_beside_other_parameters(make):
    p = torch.nn.Parameter(normal(6, 4).bfloat16())
    optimizer = make([p], lr=torch.tensor(0.01))
    p.grad = normal(6, 4, seed=1).bfloat16()
    optimizer.step()
    again = make([p])
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    def tensors(value):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for v in value:
                yield from tensors(v)

    kept = [t for v in again.state[p].values() for t in tensors(v)]
    assert kept and all(t.dtype is torch.float32 for t in kept)
    assert p.dtype is torch.bfloat16


@pytest.mark.parametrize("make", MAKERS)
def test_they_are_used_as_optimizers_are(make):
    w, v, none = (torch.nn.Parameter(normal(*s)) for s in ((3, 5), (5,), (2, 2)))
    optimizer = make([{"params": [w], "lr": 0.1}, {"params": [v, none]}], lr=0.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    before = v.detach().clone()

    def closure():
        optimizer.zero_grad()
        loss = (w @ v).square().sum()
        loss.backward()
        return loss

    first = optimizer.step(closure).item()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    if make is optim.Shampoo:
        assert torch.equal(v, before), "a learning rate of 0 changes nothing"
    assert none not in optimizer.state or not optimizer.state[none]
    assert optimizer.step(closure).item() < first
    assert copy.deepcopy(optimizer).state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    w.grad = torch.ones(3, 5).to_sparse()
    with pytest.raises(chronaxie.DtypeError, match="sparse gradient"):
        optimizer.step()
    with pytest.raises(chronaxie.ConfigError, match=r"lr = -1"):
        make([torch.nn.Parameter(torch.ones(1))], lr=-1)


@pytest.mark.parametrize("make", MAKERS)
def test_scaled_losses_and_batches_in_parts(make):
    """A scaled loss takes the same steps, one that overflows takes none, and two halves of a batch are the whole."""
    finals = []
    for how in ("whole", "scaled", "halves"):
        net = model()
        optimizer = make(net.parameters(), lr=torch.tensor(0.01))
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=how == "scaled")
        for k in range(3):
            x = normal(4, 2, 6, 6, seed=k)
            optimizer.zero_grad()
            if how == "scaled" and k == 1:
                scaler.scale(net(x).square().mean() * float("inf")).backward()
                scaler.step(optimizer)
                scaler.update(new_scale=64.0)
                optimizer.zero_grad()
            for part in x.split(2) if how == "halves" else (x,):
                scaler.scale(net(part).square().mean() * (len(part) / 4)).backward()
            scaler.step(optimizer)
            scaler.update()
        finals.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    # Powers of two scale without rounding.
    assert torch.equal(finals[0], finals[1])
    if make is optim.SOAP:
        # Of the directions that the first gradients have not, rounding chooses the basis, and the steps follow the basis.
        return
    # A sum of two halves is rounded otherwise, and roots of the first factors, of few ranks, make that 30 times as large.
    start = torch.cat([p.detach().flatten() for p in model().parameters()])
    assert float((finals[2] - finals[0]).norm()) < 1e-2 * float((finals[0] - start).norm())


@pytest.mark.parametrize("make", MAKERS)
def test_the_layout_of_memory_changes_nothing(make):
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        p = torch.nn.Parameter(normal(5, 4, 3, 2).to(memory_format=layout))
        optimizer = make([p], lr=0.1)
        for k in range(3):
            p.grad = normal(5, 4, 3, 2, seed=k + 1).to(memory_format=layout)
            optimizer.step()
        results.append(p.detach().contiguous())
    # Of steps of 0.1; products of other strides are rounded otherwise.
    torch.testing.assert_close(*results, rtol=0, atol=1e-4)


def test_shampoos_own_mistakes():
    for make in (optim.Shampoo, optim.Muon):
        with pytest.raises(chronaxie.ConfigError, match="precision = 'half' is not one of exact, fast"):
            make([torch.nn.Parameter(torch.ones(2, 2))], precision="half")
    p = torch.nn.Parameter(torch.ones(3, 2))
    for options, want in [
        (dict(betas=(1.0, 0.9)), r"betas\[0\] = 1.0"),
        (dict(grafting="lamb"), "grafting = 'lamb' is not one of adam"),
        (dict(precondition_frequency=0), "precondition_frequency = 0"),
        (dict(exponent=0.25), "exponent = 0.25 is not a positive fractions.Fraction"),
    ]:
        with pytest.raises(chronaxie.ConfigError, match=want):
            optim.Shampoo([p], **options)


def same(a, b):
    """Whether two states are the same bits, NaN like NaN."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a.nan_to_num(nan=7.25), b.nan_to_num(nan=7.25))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("make", MAKERS)
def test_a_gradient_that_is_not_finite_changes_nothing(make):
    good, bad = torch.nn.Parameter(normal(3, 2)), torch.nn.Parameter(normal(4, 2, seed=1))
    optimizer = make([good, bad])
    for p in (good, bad):
        p.grad = torch.ones_like(p)
    optimizer.step()
    for value, want in ((float("nan"), "1 of 8 elements are NaN or infinite"), (1e25, "sum of squares is infinite")):
        before = copy.deepcopy(optimizer.state_dict()), good.detach().clone()
        bad.grad = torch.ones(4, 2)
        bad.grad[1, 1] = value
        with pytest.raises(chronaxie.DataError, match=rf"shape \(4, 2\) is not finite: .*{want}"):
            optimizer.step()
        assert same(before[0]["state"], optimizer.state_dict()["state"]) and torch.equal(before[1], good)


@pytest.mark.parametrize("make", [*MAKERS, *(partial(make, fused=True) for make in MAKERS)])
def test_a_flag_that_stays_on_the_device_makes_zeros_of_a_gradient(make, monkeypatch):
    """What happens on a GPU, with the CPU's flags."""
    monkeypatch.setattr(_base, "_finite", lambda name, given: [g.isfinite().all() for _, g in given])
    runs = []
    for value in (0.0, float("nan")):
        p, q = (torch.nn.Parameter(normal(4, 2, seed=k)) for k in range(2))
        optimizer = make([p, q], lr=0.1)
        for k in range(3):
            p.grad, q.grad = normal(4, 2, seed=k), normal(4, 2, seed=k + 5)
            if k == 1:
                p.grad = torch.zeros(4, 2)
                p.grad[2, 1] = value
            optimizer.step()
        runs.append(torch.cat([p.detach(), q.detach()]))
    assert torch.equal(*runs) and runs[0].isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("make", MAKERS)
def test_on_a_gpu_such_a_gradient_counts_as_zeros_and_nothing_waits(cuda, make):
    runs = []
    for value in (0.0, float("nan")):
        p = torch.nn.Parameter(normal(4, 2, device=cuda))
        optimizer = make([p], lr=0.1)
        for k in range(3):
            p.grad = normal(4, 2, seed=k, device=cuda)
            if k == 1:
                p.grad = p.grad * 0 + value
            optimizer.step()
        runs.append(p.detach().clone())
    assert torch.equal(*runs) and runs[0].isfinite().all()


@pytest.mark.parametrize("make", MAKERS)
def test_parameters_are_on_one_device(make):
    a, b = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2, 2, device="meta"))
    with pytest.raises(chronaxie.DeviceError, match="parameters are on cpu and meta; make an optimizer for each"):
        make([a, b])
    optimizer = make([a])
    with pytest.raises(chronaxie.DeviceError, match="cpu and meta"):
        optimizer.add_param_group({"params": [b]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("make", MAKERS)
def test_modes_of_weight_decay(make):
    """Without gradients in the way: shrinks by what each mode says, also behind a schedule."""
    for mode, first, second in (("decoupled", 0.9, 0.95), ("corrected", 0.9, 0.975), ("independent", 0.5, 0.75), ("l2", None, None)):
        p = torch.nn.Parameter(torch.ones(2, 2))
        optimizer = make([p], lr=0.2, weight_decay=0.5, weight_decay_mode=mode)
        p.grad = torch.zeros(2, 2)
        optimizer.step()
        one = p.detach().clone()
        optimizer.param_groups[0]["lr"] = 0.1
        if first is None:
            assert float(one.max()) < 1.0, "the decay is a gradient"
            continue
        optimizer.step()
        torch.testing.assert_close(one, torch.full((2, 2), first))
        torch.testing.assert_close(p.detach(), torch.full((2, 2), first * second))
    with pytest.raises(chronaxie.ConfigError, match="weight_decay_mode = 'l1' is not one of decoupled, l2"):
        make([p], weight_decay_mode="l1")


def test_the_turn_is_the_place_whoever_has_gradients():
    """A parameter without gradients moves no other's turn."""
    at = []
    for absent in (False, True):
        params = [torch.nn.Parameter(normal(6, 4, seed=k)) for k in range(3)]
        shampoo = optim.Shampoo(params, precondition_frequency=4)
        made = []
        for step in range(10):
            for k, p in enumerate(params):
                p.grad = None if absent and k == 0 else normal(6, 4, seed=10 * step + k)
            before = [shampoo.state[p]["roots"][0][0].clone() if shampoo.state[p] else None for p in params[1:]]
            shampoo.step()
            made.append([b is None or not torch.equal(b, shampoo.state[p]["roots"][0][0]) for b, p in zip(before, params[1:])])
        at.append(made)
    assert at[0] == at[1] and any(any(row) for row in at[0][1:])


def test_roots_come_in_turns():
    """Between two roots of a block lie as many steps as asked, and different blocks have theirs at different steps."""
    params = [torch.nn.Parameter(normal(6, 4, seed=k)) for k in range(5)]
    shampoo = optim.Shampoo(params, precondition_frequency=5)
    made = []
    for step in range(16):
        for k, p in enumerate(params):
            p.grad = normal(6, 4, seed=10 * step + k)
        before = [shampoo.state[p]["roots"][0][0].clone() if shampoo.state[p] else None for p in params]
        shampoo.step()
        made.append([b is None or not torch.equal(b, shampoo.state[p]["roots"][0][0]) for b, p in zip(before, params)])
    assert all(made[0])
    for k in range(5):
        at = [s for s in range(1, 16) if made[s][k]]
        assert len(at) == 3 and all(b - a == 5 for a, b in zip(at, at[1:])), at
    assert all(sum(row) == 1 for row in made[1:])
