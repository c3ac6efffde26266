"""K-FAC: exact where theory says so, against float64, and as optimizers are used."""

import copy
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import chronaxie
from chronaxie import optim
from chronaxie.optim import _kfac, _natural
from chronaxie.torch import LTC, CfC, Mamba, TrueLiquidTimeConstant, wirings

from conftest import distance, goes_on_with_the_same_bits
from test_per_sample import Words, mse, normal

D = torch.float64


def double(*shape, seed=0):
    return normal(*shape, seed=seed, dtype=D)


def joined(layer, t):
    """The gradient or Jacobian of [W | b], flattened, from those of the layer's parameters."""
    return torch.cat([t[0].flatten(-2).unflatten(-1, layer.weight.shape), t[1][..., None]], -1).flatten(-2)


def curvature(model, layer, x, classes, terms, loss="mse"):
    """The Gauss-Newton matrix of one layer's [W | b], by Jacobians: the mean over terms of J^T H J."""
    params = {n: p.detach() for n, p in model.named_parameters()}
    name = next(n for n, m in model.named_modules() if m is layer)
    own = [f"{name}.weight", f"{name}.bias"]

    def out(some):
        return torch.func.functional_call(model, {**params, **some}, (x,))

    jac = torch.func.jacrev(out)({n: params[n] for n in own})
    o = out({})
    rows = [jac[n].reshape(o.numel(), -1) for n in own]
    whole = torch.cat([rows[0].view(o.numel(), *layer.weight.shape), rows[1][..., None]], -1).flatten(1)
    if loss == "mse":
        hessian = torch.eye(o.numel(), dtype=D) * 2 / classes
    else:
        p = o.softmax(-1).reshape(-1, classes)
        hessian = torch.block_diag(*(torch.diag(q) - torch.outer(q, q) for q in p))
    return whole.mT @ hessian @ whole / terms


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(self.a(x).mean(1))


@pytest.mark.parametrize("kind", ["plain", "expand", "reduce"])
def test_exact_on_deep_linear_networks(kind):
    """Eschenhagen et al., arXiv:2311.00636: of linear networks the factors give the Gauss-Newton matrix itself."""
    model = (Pooled() if kind == "reduce" else nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 2))).double()
    x = double(*((6, 3) if kind == "plain" else (6, 5, 3)))
    # A step of length 0 leaves the parameters that the factors are of.
    kfac = optim.KFAC(model, sharing="reduce" if kind == "reduce" else "expand", fisher="exact", lr=0.0)
    output = model(x)
    kfac.observe(output, "mse")
    F.mse_loss(output, torch.zeros_like(output)).backward()
    kfac.step()
    for layer in (m for m in model.modules() if isinstance(m, nn.Linear)):
        a, g = kfac.factors(layer.weight)
        law = curvature(model, layer, x, 2, output.numel() // 2)
        assert distance(torch.kron(g[0], a[0]), law) < 1e-12


def test_cross_entropy_of_one_sample_is_exact_and_draws_come_to_it():
    model, x = nn.Sequential(nn.Linear(3, 4)).double(), double(1, 3)
    law = curvature(model, model[0], x, 4, 1, "cross_entropy")
    kfac = optim.KFAC(model, lr=0.0, fisher="exact")
    kfac.observe(model(x), "cross_entropy")
    model(x).sum().backward()
    kfac.step()
    a, g = kfac.factors(model[0].weight)
    assert distance(torch.kron(g[0], a[0]), law) < 1e-12
    drawn = optim.KFAC(model, lr=0.0, fisher="sampled", decay=0.0)
    wide = x.expand(20000, 3)
    drawn.observe(model(wide), "cross_entropy")
    drawn.step()
    assert distance(drawn.factors(model[0].weight)[1], g) < 0.05


class Law:
    """K-FAC of a network of two layers with tanh between them and a squared loss, in NumPy: its own forward and backward pass."""

    def __init__(self, weights, **o):
        self.w, self.o, self.t = [w.copy() for w in weights], o, 0
        self.f, self.m = {}, [np.zeros_like(w) for w in weights]

    def step(self, x, y):
        o, n = self.o, len(x)
        one = np.ones((n, 1))
        a0 = np.hstack([x, one])
        h = np.tanh(a0 @ self.w[0].T)
        a1 = np.hstack([h, one])
        g1 = 2 * (a1 @ self.w[1].T - y) / y.size
        g0 = (g1 @ self.w[1][:, :-1]) * (1 - h * h)
        keep = min(o["decay"], self.t / (self.t + 1))
        self.t += 1
        for k, (a, g) in enumerate(((a0, g0), (a1, g1))):
            for name, value in (("a", a.T @ a / n), ("g", n * g.T @ g)):
                self.f[name, k] = keep * self.f.get((name, k), 0) + (1 - keep) * value
            grad, fa, fg = g.T @ a, self.f["a", k], self.f["g", k]
            if o["mode"] == "exact":
                whole = np.kron(fg, fa) + o["damping"] * np.eye(grad.size)
                u = np.linalg.solve(whole, grad.ravel()).reshape(grad.shape)
            else:
                pi = np.sqrt((np.trace(fa) / len(fa)) / (np.trace(fg) / len(fg)))
                l = np.sqrt(o["damping"])
                u = np.linalg.inv(fg + l / pi * np.eye(len(fg))) @ grad @ np.linalg.inv(fa + pi * l * np.eye(len(fa)))
            self.m[k] = o["momentum"] * self.m[k] + u
            self.w[k] = self.w[k] - o["lr"] * (self.m[k] + o["weight"] * self.w[k])


def mlp(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.parametrize("mode", ["exact", "factored"])
def test_ten_steps_are_numpys(device, mode):
    model = mlp().to(device)
    layers = [model[0], model[2]]
    options = dict(lr=0.05, damping=1e-2, momentum=0.8, decay=0.9)
    law = Law(
        [torch.cat([l.weight, l.bias[:, None]], 1).detach().double().cpu().numpy() for l in layers], mode=mode, weight=0.1, **options
    )
    kfac = optim.KFAC(model, damping_mode=mode, inverse_frequency=1, weight_decay=0.1, kl_clip=None, **options)
    for k in range(10):
        x, y = normal(8, 4, seed=k), normal(8, 3, seed=k + 50)
        kfac.zero_grad()
        F.mse_loss(model(x.to(device)), y.to(device)).backward()
        kfac.step()
        law.step(x.double().numpy(), y.double().numpy())
        for layer, w in zip(layers, law.w):
            ours = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().cpu().numpy()
            assert np.abs(ours - w).max() < 1e-4, k


CASES = {
    "conv": (lambda: nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, groups=2), (5, 4, 7, 6)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, bias=False), (5, 3, 8)),
    "lstm": (lambda: nn.LSTM(4, 3, batch_first=True), (5, 6, 4)),
    "lstm_deep": (lambda: nn.LSTM(4, 3, 2, bidirectional=True, proj_size=2, batch_first=True), (5, 6, 4)),
    "gru": (lambda: nn.GRU(4, 3, batch_first=True), (5, 6, 4)),
    "rnn": (lambda: nn.RNN(4, 3, batch_first=True), (5, 6, 4)),
    "cfc": (lambda: CfC(4, 5, backbone_units=6, proj_size=3), (5, 6, 4)),
    "cfc_wired": (lambda: CfC(4, wirings.AutoNCP(9, 2, seed=3)), (5, 6, 4)),
    "cfc_mixed": (lambda: CfC(4, 5, mixed_memory=True, mode="pure"), (5, 6, 4)),
    "ltc": (lambda: LTC(4, wirings.AutoNCP(9, 2, seed=3), ode_unfolds=2), (4, 3, 4)),
    "true_ltc": (lambda: TrueLiquidTimeConstant(4, 5, ode_unfolds=2), (4, 3, 4)),
    "mamba": (lambda: Mamba(4, 3), (5, 6, 4)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("name", CASES)
def test_steps_solve_with_the_factors(name, sharing):
    """Of every block: (G kron A + l I) U = grad; and both factors come of the samples."""
    make, shape = CASES[name]
    # The scans of Mamba have no float64.
    dtype, bound = (torch.float32, 2e-4) if name == "mamba" else (D, 1e-9)
    model = make().to(dtype)
    kfac = optim.KFAC(model, lr=1.0, momentum=0.0, damping=1e-2, sharing=sharing, kl_clip=None)
    x = normal(*shape, dtype=dtype)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    mse(model(x)).backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    kfac.step()
    named = dict(model.named_parameters())
    solved = [n for n in named if "a" in kfac.state.get(named[n], {})]
    assert solved, "some layer has factors"
    if name in ("lstm", "gru", "rnn", "ltc", "true_ltc", "conv", "conv1d"):
        others = {n for n in grads if n not in solved}
        assert all("bias" in n for n in others), others
    for n in solved:
        p = named[n]
        a, g = kfac.factors(p)
        bias = kfac._biases.get(p)
        gr, u = grads[n], before[n] - p.detach()
        blocks = g.shape[0]
        rows = p.shape[0] if p.dim() > 1 else 1
        gr, u = (t.reshape(blocks, rows // blocks, -1) for t in (gr, u))
        if bias is not None:
            key = next(k for k, q in named.items() if q is bias)
            gr = torch.cat([gr, grads[key].view(blocks, -1, 1)], -1)
            u = torch.cat([u, (before[key] - bias.detach()).view(blocks, -1, 1)], -1)
        for k in range(blocks):
            whole = torch.kron(g[k].double(), a[k % a.shape[0]].double())
            whole.diagonal().add_(1e-2)
            want = torch.linalg.solve(whole, gr[k].double().flatten()).view(gr[k].shape)
            mask = kfac._masks[p]() if p in kfac._masks else 1.0
            if bias is not None and p in kfac._masks:
                mask = torch.cat([mask, torch.ones(rows, 1)], 1)
            assert distance(u[k], want * mask) < bound, n


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("options", [dict(damping_mode="factored"), dict(ekfac=True)], ids=["factored", "ekfac"])
@pytest.mark.parametrize("name", CASES)
def test_every_layer_goes_downhill(name, options):
    make, shape = CASES[name]
    model, x, losses = make(), normal(*shape), []
    kfac = optim.KFAC(model, lr=0.02, damping=1e-2, inverse_frequency=2, **options)
    for _ in range(6):
        kfac.zero_grad()
        out = model(x)
        loss = ((out[0] if isinstance(out, tuple) else out) - 1).square().mean()
        loss.backward()
        kfac.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and sum("a" in s for s in kfac.state.values()) >= 1


def test_factors_are_what_layers_read_and_get():
    conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
    kfac = optim.KFAC(conv, lr=0.0)
    x = normal(5, 3, 6, 6)
    out = conv(x)
    seed = normal(*out.shape, seed=1)
    out.backward(seed)
    kfac.step()
    a, g = kfac.factors(conv.weight)
    patches = F.unfold(x, 3, padding=1).mT.reshape(-1, 27).double()
    assert distance(a[0], patches.mT @ patches / len(patches)) < 1e-5
    flat = seed.movedim(1, -1).reshape(-1, 4).double()
    assert distance(g[0], 5 * flat.mT @ flat) < 1e-5
    for layer in (nn.LSTM(4, 3, batch_first=True), nn.GRU(4, 3, batch_first=True)):
        kfac = optim.KFAC(layer, lr=0.0)
        x = normal(5, 6, 4)
        out, _ = layer(x)
        out.square().sum().backward()
        kfac.step()
        h = torch.cat([torch.zeros(5, 1, 3), out.detach()[:, :-1]], 1)
        for p, read in ((layer.weight_ih_l0, x), (layer.weight_hh_l0, h)):
            read = torch.cat([read.reshape(30, -1), torch.ones(30, 1)], 1).double()
            assert distance(kfac.factors(p)[0][0], read.mT @ read / 30) < 1e-5
            assert kfac.factors(p)[1].shape == (len(p) // 3, 3, 3)


@pytest.mark.parametrize("options, factor", [(dict(terms="batch"), 5), (dict(terms="positions"), 30), (dict(terms=7), 7),
                                             (dict(reduction="sum"), 1), (dict(accumulation=3), 15)])  # fmt: skip
def test_a_mean_is_over_so_many_terms(options, factor):
    layer, x = nn.Linear(4, 3), normal(5, 6, 4)
    kfac = optim.KFAC(layer, lr=0.0, **options)
    seed = normal(5, 6, 3, seed=1)
    layer(x).backward(seed)
    kfac.step()
    a, g = kfac.factors(layer.weight)
    flat, read = seed.reshape(30, 3).double(), torch.cat([x.reshape(30, 4), torch.ones(30, 1)], 1).double()
    assert distance(g[0], factor * flat.mT @ flat) < 1e-6 and distance(a[0], read.mT @ read / 30) < 1e-6


@pytest.mark.parametrize("make, observed", [(optim.KFAC, False), (optim.KFAC, True), (optim.NaturalGradient, False)])
def test_gradients_may_be_cleared_on_either_side_of_the_forward_pass(make, observed):
    finals = []
    for early in (True, False):
        model, x, y = mlp(), normal(8, 4), normal(8, 3, seed=1)
        optimizer = make(model, fisher="exact") if observed else make(model)
        for _ in range(2):
            if early:
                optimizer.zero_grad()
            out = model(x)
            if observed:
                optimizer.observe(out, "mse")
            loss = F.mse_loss(out, y)
            if not early:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        finals.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *finals))
    if make is optim.KFAC:
        assert optimizer.factors(model[0].weight)[0].shape == (1, 5, 5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_change_nothing(reentrant):
    results = []
    for checked in (False, True):
        torch.manual_seed(0)
        first, inner = nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
        model = nn.Sequential(first, inner)
        kfac = optim.KFAC(model)
        for k in range(2):
            kfac.zero_grad()
            h = first(normal(8, 4, seed=k))
            out = checkpoint(inner, h, use_reentrant=reentrant) if checked else inner(h)
            F.mse_loss(out, normal(8, 3, seed=k + 9)).backward()
            kfac.step()
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *results))


def test_words_are_preconditioned_by_how_often_they_come():
    torch.manual_seed(0)
    model = Words(False)
    kfac = optim.KFAC(model, lr=1.0, momentum=0.0, damping=1e-2, terms="positions", kl_clip=None)
    ids = torch.randint(0, 11, (6, 8), generator=torch.Generator().manual_seed(0))
    before = model.table.weight.detach().clone()
    F.cross_entropy(model(ids), ids.roll(1, 1)).backward()
    kfac.step()
    a, g = kfac.factors(model.table.weight)
    assert distance(a[0], torch.bincount(ids.flatten(), minlength=11) / 48) < 1e-6
    u, grad = before - model.table.weight.detach(), model.table.weight.grad
    for row in range(11):
        want = torch.linalg.solve(g[0].double() * a[0, row].double() + 1e-2 * torch.eye(5), grad[row].double())
        assert float((u[row] - want).norm()) < 1e-4 * max(float(want.norm()), 1e-3), row


def test_ekfac_keeps_second_moments_in_the_eigenbases():
    model = mlp()
    kfac = optim.KFAC(model, lr=1e-3, ekfac=True, decay=0.0, inverse_frequency=1000)
    for k in range(2):
        x, y = normal(8, 4, seed=k), normal(8, 3, seed=k + 9)
        given = optim.per_sample_gradients(copy.deepcopy(model), F.mse_loss, x, y)
        kfac.zero_grad()
        F.mse_loss(model(x), y).backward()
        kfac.step()
    for at in (0, 2):
        whole = torch.cat([given[f"{at}.weight"], given[f"{at}.bias"][..., None]], -1).double()
        state = kfac.state[model[at].weight]
        turned = state["basis_g"][0].double().mT @ whole @ state["basis_a"][0].double()
        assert distance(state["squares"][0], turned.square().mean(0)) < 1e-4


def test_kfac_helps_where_conditions_are_bad():
    x = normal(64, 10) * torch.logspace(0, -2, 10)
    target = x @ normal(10, 6, seed=1)

    def final(make, steps=60):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 6))
        optimizer = make(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / steps)
        for _ in range(steps):
            optimizer.zero_grad()
            output = model(x)
            if getattr(optimizer, "fisher", "") == "exact":
                optimizer.observe(output, "mse")
            loss = F.mse_loss(output, target)
            loss.backward()
            optimizer.step()
            schedule.step()
        return loss.item()

    ours = final(lambda m: optim.KFAC(m, lr=0.3, momentum=0.0, damping=1e-4, inverse_frequency=1, fisher="exact", kl_clip=None))
    adam = min(final(lambda m: torch.optim.Adam(m.parameters(), lr=lr)) for lr in (0.03, 0.1, 0.3))
    assert ours < 0.05 * adam, (ours, adam)


@pytest.mark.parametrize("make", [optim.KFAC, optim.NaturalGradient])
def test_a_step_of_two_halves_is_a_step_of_the_whole(make):
    x, y = normal(8, 4), normal(8, 3, seed=1)
    models = [mlp(), mlp()]
    whole, halves = make(models[0], damping=1e-2), make(models[1], damping=1e-2, accumulation=2)
    for _ in range(3):
        for optimizer in (whole, halves):
            optimizer.zero_grad()
        F.mse_loss(models[0](x), y).backward()
        for k in range(2):
            (F.mse_loss(models[1](x[k::2]), y[k::2]) / 2).backward()
        whole.step()
        halves.step()
    for a, b in zip(*(m.parameters() for m in models)):
        assert distance(b, a) < 1e-5


def run(model, optimizer, steps, seed=0):
    for k in range(steps):
        x, y = normal(8, 4, seed=seed + k), normal(8, 3, seed=seed + k + 50)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("options", [{}, dict(ekfac=True), dict(damping_mode="factored")], ids=["exact", "ekfac", "factored"])
def test_a_run_that_was_saved_goes_on_with_the_same_bits(options):
    def optimize(model, first):
        return optim.KFAC(model, **(dict(inverse_frequency=3, factor_frequency=2) if first else dict(lr=0.5)), **options)

    goes_on_with_the_same_bits(mlp, optimize, lambda model, kfac, part: run(model, kfac, (5, 7)[part], seed=100 * part))


def test_what_else_it_meets():
    """Batch norms, frozen and half-precision parameters, schedules, groups, closures, scaled losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 5))
    model[4].bias.requires_grad_(False)
    groups = [{"params": model[0].parameters(), "lr": 0.02}, {"params": [*model[1].parameters(), model[4].weight]}]
    kfac = optim.KFAC(model, params=groups, lr=0.01, kl_clip=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(kfac, 1, 0.5)
    x = normal(6, 2, 6, 6)

    def closure():
        kfac.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    first = kfac.step(closure).item()
    schedule.step()
    assert kfac.param_groups[0]["lr"] == 0.01 and "exp_avg" in kfac.state[model[1].weight]
    for _ in range(5):
        last = kfac.step(closure).item()
    assert last < first
    kfac.close()
    assert not any(m._forward_hooks for m in model.modules())

    half = mlp().bfloat16()
    kfac = optim.KFAC(half)
    F.mse_loss(half(normal(8, 4).bfloat16()), normal(8, 3).bfloat16()).backward()
    kfac.step()
    assert half[0].weight.dtype is torch.bfloat16 and kfac.factors(half[0].weight)[0].dtype is torch.float32

    finals = []
    for scaled in (False, True):
        model = mlp()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        kfac = optim.KFAC(model, grad_scaler=scaler if scaled else None)
        for k in range(3):
            kfac.zero_grad()
            loss = F.mse_loss(model(normal(8, 4, seed=k)), normal(8, 3, seed=k + 9))
            if scaled and k == 1:
                # This one overflows: neither parameters nor factors see it.
                scaler.scale(loss * float("inf")).backward()
                scaler.step(kfac)
                scaler.update(new_scale=512.0)
                kfac.zero_grad()
                loss = F.mse_loss(model(normal(8, 4, seed=k)), normal(8, 3, seed=k + 9))
            scaler.scale(loss).backward()
            scaler.step(kfac)
            scaler.update()
        finals.append(model[0].weight.detach().clone())
    assert distance(finals[1], finals[0]) < 1e-5


def test_a_first_update_that_is_not_finite_does_not_count():
    """The next one is then the first: whole, and not averaged with nothing."""
    model, x, y = mlp(), normal(8, 4), normal(8, 3, seed=1)
    kfac = optim.KFAC(model)
    F.mse_loss(model(x), y).backward()
    a, count, g, _ = kfac._sums[model[0].weight]
    want = [a.clone() / count, g.clone()]
    kfac._sums[model[0].weight][2] = g * float("inf")
    kfac.step()
    assert int(kfac.state[model[0].weight]["averaged"]) == 0
    assert not any(f.any() for f in kfac.factors(model[0].weight)) and model[0].weight.isfinite().all()
    kfac._sums[model[0].weight] = [a, count, g, None]
    kfac.step()
    for made, right in zip(kfac.factors(model[0].weight), want):
        assert distance(made[0], right[0]) < 1e-6
    assert int(kfac.state[model[0].weight]["averaged"]) == 1


def test_kfacs_own_mistakes():
    model = mlp()
    for options, want in [
        (dict(damping=0.0), "damping = 0.0 is not positive"),
        (dict(sharing="both"), "sharing = 'both' is not one of expand, reduce"),
        (dict(fisher="true"), "fisher = 'true' is not one of empirical"),
        (dict(terms="all"), "terms = 'all' is not one of batch, positions"),
        (dict(ekfac=True, damping_mode="factored"), "ekfac = True needs damping_mode = 'exact'"),
        (dict(inverse_frequency=0), "inverse_frequency = 0"),
        (dict(decay=1.0), "decay = 1.0"),
    ]:
        with pytest.raises(chronaxie.ConfigError, match=want):
            optim.KFAC(model, **options)
        assert not any(m._forward_hooks for m in model.modules())
    with pytest.raises(chronaxie.ConfigError, match="Tanh has no layer that it knows"):
        optim.KFAC(nn.Tanh())
    kfac = optim.KFAC(model)
    with pytest.raises(chronaxie.ConfigError, match="fisher = 'empirical' takes the loss's own gradients"):
        kfac.observe(model(normal(2, 4)), "mse")
    with pytest.raises(chronaxie.ConfigError, match=r"a parameter of shape \(5, 4\) has no factors"):
        kfac.factors(model[0].weight)
    exact = optim.KFAC(model, fisher="exact")
    with pytest.raises(chronaxie.ConfigError, match="no call of a layer was recorded"):
        exact.observe(torch.ones(2, 3), "mse")
    F.mse_loss(model(normal(8, 4)), normal(8, 3)).backward()
    model[0].weight.grad[0, 0] = float("nan")
    before = model[2].weight.detach().clone()
    with pytest.raises(chronaxie.DataError, match=r"shape \(5, 4\) is not finite"):
        kfac.step()
    assert torch.equal(before, model[2].weight)


@pytest.mark.parametrize("make", [optim.KFAC, optim.NaturalGradient])
def test_what_both_refuse(make):
    for options, want in [
        (dict(lr=-1.0), "lr = -1.0"),
        (dict(lr=torch.ones(2)), r"lr.shape = \(2,\) is not one number"),
        (dict(damping=-1), "damping = -1 is not positive"),
        (dict(momentum=1.0), "momentum = 1.0"),
        (dict(kl_clip=-1e-3), "kl_clip = -0.001"),
        (dict(weight_decay=-0.1), "weight_decay = -0.1"),
        (dict(adamw_lr=-2.0), "adamw_lr = -2.0"),
        (dict(adamw_betas=(0.9, 1.0)), r"adamw_betas\[1\] = 1.0"),
        (dict(adamw_betas=0.9), "adamw_betas = 0.9 is not a pair"),
        (dict(adamw_eps=-1e-8), "adamw_eps = -1e-08"),
    ]:
        model = mlp()
        with pytest.raises(chronaxie.ConfigError, match=want):
            make(model, **options)
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["conv", "lstm", "gru", "cfc", "cfc_wired", "ltc", "mamba"])
@pytest.mark.parametrize("options", [{}, dict(damping_mode="factored"), dict(ekfac=True)], ids=["exact", "factored", "ekfac"])
def test_kfac_on_a_gpu_is_kfac_on_the_cpu(cuda, name, options):
    make, shape = CASES[name]
    torch.manual_seed(0)
    models = [make()]
    models.append(copy.deepcopy(models[0]).to(cuda))
    for model, device in zip(models, ("cpu", cuda)):
        kfac = optim.KFAC(model, lr=0.01, damping=1e-1, inverse_frequency=2, **options)
        for k in range(4):
            kfac.zero_grad()
            mse(model(normal(*shape, seed=k).to(device))).backward()
            kfac.step()
    for (n, a), b in zip(models[0].named_parameters(), models[1].parameters()):
        assert distance(b, a) < 1e-4, n


class Group:
    """torch.distributed for two threads: what both give is summed."""

    def __init__(self):
        self.barrier, self.slots, self.ranks = threading.Barrier(2, timeout=60), [None, None], threading.local()

    def is_available(self):
        return True

    is_initialized = is_available

    def get_world_size(self):
        return 2

    def all_reduce(self, t):
        self.slots[self.ranks.rank] = t.clone()
        self.barrier.wait()
        total = self.slots[0] + self.slots[1]
        self.barrier.wait()
        t.copy_(total)


def test_two_processes_take_the_steps_of_one(monkeypatch):
    group, states = Group(), [None, None]
    models = [mlp().double() for _ in range(3)]
    optimizers = [optim.KFAC(m, inverse_frequency=2) for m in models]

    def rank(at):
        group.ranks.rank = at
        model, kfac = models[at], optimizers[at]
        for k in range(3):
            x, y = double(8, 4, seed=k)[at::2], double(8, 3, seed=k + 50)[at::2]
            kfac.zero_grad()
            F.mse_loss(model(x), y).backward()
            for p in model.parameters():
                group.all_reduce(p.grad)
                p.grad /= 2
            kfac.step()
        states[at] = model.state_dict()

    with monkeypatch.context() as patch:
        patch.setattr(_kfac, "dist", group)
        patch.setattr(_natural, "dist", group)
        threads = [threading.Thread(target=rank, args=(at,)) for at in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        with pytest.raises(chronaxie.ConfigError, match="2 processes have 2 batches"):
            optim.NaturalGradient(mlp()).step()
    for k in range(3):
        optimizers[2].zero_grad()
        F.mse_loss(models[2](double(8, 4, seed=k)), double(8, 3, seed=k + 50)).backward()
        optimizers[2].step()
    for name, value in models[2].state_dict().items():
        assert torch.equal(states[0][name], states[1][name]), "both have the same bits"
        assert distance(states[0][name], value) < 1e-10, name
