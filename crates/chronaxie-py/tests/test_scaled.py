"""Optimizers under torch.amp.GradScaler: scaled losses take the steps of others, one that overflows leaves all as it was, and nobody
waits for the device to say so."""

from functools import partial

import pytest
import torch
from torch import nn

import chronaxie
from chronaxie import optim
from chronaxie.optim import _base

from test_kfac import mlp
from test_optim import normal, same
from test_per_sample import mse

MAKERS = {
    "shampoo": partial(optim.Shampoo, max_preconditioner_dim=4, precondition_frequency=3),
    "shampoo_sums": partial(optim.Shampoo, betas=(0.9, 1.0), grafting="adagrad", precondition_frequency=2, start_preconditioning_step=3),
    "shampoo_l2": partial(optim.Shampoo, weight_decay_mode="l2", weight_decay=0.1, grafting="sgd", precondition_vectors=False),
    "soap": partial(optim.SOAP, max_preconditioner_dim=4, precondition_frequency=3),
    "soap_l2": partial(optim.SOAP, weight_decay_mode="l2", weight_decay=0.1, merge_dims=True, correct_bias=False),
    "muon": partial(optim.Muon),
    "muon_plain": partial(optim.Muon, nesterov=False, weight_decay_mode="independent"),
}
SHAPES = [(9, 5), (4, 3, 2), (7,), (5, 5), (3, 1)]


def parameters(device):
    return [nn.Parameter(normal(*s, seed=k, device=device)) for k, s in enumerate(SHAPES)]


def groups(params):
    return [dict(params=params[:-2]), dict(params=params[-2:], adamw=True, betas=(0.8, 0.9))]


def graded(params, k, by=1.0):
    """The gradients of step k, in one of which is an infinity, where there is no ``by``."""
    for i, p in enumerate(params):
        p.grad = normal(*p.shape, seed=10 * k + i, device=p.device) * (1.0 if by is None else by)
    if by is None:
        params[1].grad[0, 1, 1] = float("inf")


def scaler_of(device, **options):
    return torch.amp.GradScaler(torch.device(device).type, init_scale=2.0**10, growth_interval=2, **options)


def run(make, params, scaler, steps=8, overflows=(), lr=None, unscaled=False):
    """Steps 0 to ``steps``; where one ``overflows``, a step that does comes ahead of it, by another lr."""
    options = {} if lr is None else dict(lr=lr)
    optimizer = make(groups(params), capturable=True, **options)
    for k in range(steps):
        for over in (True, False) if k in overflows else (False,):
            if lr is not None:
                lr.fill_(5.0 if over else 0.01 * (k + 1))
            by = 1.0
            if scaler is not None:
                # What initialises it, and gives the scale.
                by = scaler.scale(torch.ones((), device=params[0].device)).item()
            graded(params, k, None if over else by)
            if scaler is None:
                optimizer.step()
                continue
            if unscaled:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    return optimizer


@pytest.mark.parametrize("unscaled", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_scaled_steps_have_the_bits_of_others_and_overflows_change_nothing(device, name, unscaled):
    """Also ahead of the first step, and where lr has its largest value in a step that is left out."""
    options = {} if "l2" in name else dict(weight_decay=0.1)
    options |= {} if "l2" in name or name == "muon_plain" else dict(weight_decay_mode="corrected")
    make, results = partial(MAKERS[name], **options), []
    for scaled in (False, True):
        params, lr = parameters(device), torch.tensor(0.01, device=device)
        scaler = scaler_of(device) if scaled else None
        optimizer = run(make, params, scaler, overflows=(0, 2, 3, 6) if scaled else (), lr=lr, unscaled=unscaled and scaled)
        results.append((params, optimizer))
        assert optimizer._step_supports_amp_scaling and not hasattr(optimizer, "found_inf")
    (plain, a), (scaled, b) = results
    assert all(map(torch.equal, plain, scaled))
    for p, q in zip(plain, scaled):
        assert same(a.state[p], b.state[q])
    assert same(a.param_groups[0].get("most_lr"), b.param_groups[0].get("most_lr"))


class Waited(Exception):
    pass


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_waits_behind_the_first_step(name, monkeypatch):
    """What a GPU would do, with its flags that stay where they are."""
    monkeypatch.setattr(_base, "_finite", lambda name, given: [g.isfinite().all() for _, g in given])
    params = parameters("cpu")
    scaler = scaler_of("cpu")
    optimizer = run(MAKERS[name], params, scaler, steps=2)
    before = [p.detach().clone() for p in params]

    def waits(*args, **kwargs):
        raise Waited

    for over in (True, False):
        graded(params, 7, None if over else scaler.get_scale())
        with monkeypatch.context() as patch:
            for asked in ("item", "tolist", "nonzero", "__bool__", "__float__", "__int__", "__index__"):
                patch.setattr(torch.Tensor, asked, waits)
            scaler.step(optimizer)
        scaler.update()
        assert all(torch.equal(p, q) == over for p, q in zip(params, before))
    # A step that is counted in Python is left out by the scaler, which waits.
    plain = MAKERS[name](parameters("cpu"))
    assert not plain._step_supports_amp_scaling
    graded(plain.param_groups[0]["params"], 0)
    scaler.scale(torch.ones(()))
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "item", waits)
        with pytest.raises(Waited):
            scaler.step(plain)


@pytest.mark.parametrize("make", [optim.Shampoo, optim.SOAP, optim.Muon])
def test_one_group_that_is_counted_in_python_makes_the_scaler_wait(make):
    p, q = (nn.Parameter(normal(4, 3, seed=k)) for k in range(2))
    optimizer = make([dict(params=[p], capturable=True), dict(params=[q])])
    assert not optimizer._step_supports_amp_scaling
    # Whoever leaves them there by hand is heard.
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(1.0)
    p.grad = q.grad = torch.ones(4, 3)
    before = p.detach().clone()
    optimizer.step()
    assert torch.equal(p, before) and not optimizer.state[p]
    optimizer.found_inf.zero_()
    optimizer.step()
    assert not torch.equal(p, before)
    with pytest.raises(chronaxie.ConfigError, match="a closure's gradients are not those that the GradScaler looked at"):
        optimizer.step(lambda: None)


def test_a_clipped_step_is_that_of_clipped_gradients():
    results = []
    for scaled in (False, True):
        params, scaler = parameters("cpu"), scaler_of("cpu", enabled=scaled)
        optimizer = optim.Shampoo(params, capturable=True)
        for k in range(3):
            by = scaler.scale(torch.ones(())).item()
            graded(params, k, by)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(params, 1.0)
            scaler.step(optimizer)
            scaler.update()
        results.append(params)
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("make", [optim.KFAC, optim.NaturalGradient])
def test_hooks_take_the_scale_from_where_it_lies(make, monkeypatch):
    """A scaler that is asked for its scale would wait; one that is switched off, or that has not scaled anything, may be asked."""
    finals = []
    for kind in ("none", "scaled", "off"):
        model = mlp()
        scaler = scaler_of("cpu", enabled=kind == "scaled")
        optimizer = make(model, grad_scaler=None if kind == "none" else scaler)
        for k in range(3):
            optimizer.zero_grad()
            loss = scaler.scale(mse(model(normal(8, 4, seed=k))))
            with monkeypatch.context() as patch:
                if kind == "scaled":
                    patch.setattr(torch.amp.GradScaler, "get_scale", lambda self: pytest.fail("it was asked for its scale"))
                loss.backward()
            scaler.step(optimizer)
            scaler.update()
        finals.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, finals[0], finals[1])) and all(map(torch.equal, finals[0], finals[2]))


def test_what_is_small_without_its_scale_is_not_lost_in_half_precision():
    """float16 has nothing below 6e-8; the scale is there for that."""
    made = []
    for scaled in (False, True):
        layer = nn.Linear(4, 3).to(torch.float16 if scaled else torch.float32)
        nn.init.constant_(layer.weight, 0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, enabled=scaled)
        kfac = optim.KFAC(layer, lr=0.0, reduction="sum", grad_scaler=scaler)
        out = layer(normal(8, 4).to(layer.weight.dtype))
        # Gradients of 2e-9.
        (scaler.scale(out.float() * 2e-9).sum()).backward()
        a, count, g, _ = kfac._sums[layer.weight]
        made.append(g[0])
    assert made[0].any() and made[1].dtype is torch.float32
    torch.testing.assert_close(made[1], made[0], rtol=1e-2, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MAKERS)
def test_on_a_gpu_nothing_waits_and_a_graph_has_the_scaler_inside(cuda, name):
    """Captured once, with the scaler's own update; the bits of steps that are not, overflows among them."""

    def start():
        params, scaler = parameters(cuda), scaler_of(cuda)
        return params, scaler, run(MAKERS[name], params, scaler, steps=2)

    params, scaler, optimizer = start()
    copies, again, captured = start()
    grads = [p.grad for p in copies]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again.step(captured)
        again.update()
    for k in range(2, 8):
        for over in (True, False) if k in (3, 4) else (False,):
            graded(params, k, None if over else scaler.get_scale())
            for g, p in zip(grads, params):
                g.copy_(p.grad)
            torch.cuda.set_sync_debug_mode("error")
            try:
                scaler.step(optimizer)
                scaler.update()
                graph.replay()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert all(map(torch.equal, params, copies)) and scaler.get_scale() == again.get_scale()
