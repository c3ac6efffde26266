"""Groups that take AdamW's step beside others that have matrices: embeddings and heads."""

import copy
import io
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import chronaxie
from chronaxie import optim

from test_fused import drawn
from test_per_sample import normal

BLOCKED = [optim.Shampoo, optim.SOAP]
STEPS = [*BLOCKED, optim.Muon]
CURVED = [optim.KFAC, optim.NaturalGradient]
# What AdamW of PyTorch is to take, and the same as the optimizer's options.
LR, BETAS, EPS, DECAY = 3e-2, (0.8, 0.97), 1e-6, 0.1


def own(make):
    """The options of a group of AdamW's."""
    names = {optim.Shampoo: ("lr", "betas", "grafting_eps"), optim.SOAP: ("lr", "betas", "eps")}
    options = dict(zip(names.get(make, ("adamw_lr", "adamw_betas", "adamw_eps")), (LR, BETAS, EPS)))
    return {**options, "weight_decay": DECAY, "adamw": True}


def language(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 7))


def groups(model, make, first=True):
    """The table and the head apart, one group after the others' or ahead of it."""
    apart = {"params": [model[0].weight, *model[3].parameters()], **(own(make) if first else {})}
    return [apart, {"params": list(model[1].parameters())}]


def optimizer_of(make, model, parts, **options):
    return make(model, params=parts, **options) if make in CURVED else make(parts, **options)


def run(model, optimizers, steps, seed=0):
    for k in range(steps):
        ids = torch.randint(0, 7, (5, 9), generator=torch.Generator().manual_seed(seed + k))
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(model(ids)[:, 1:].flatten(0, 1), ids[:, :-1].flatten()).backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("make", [*STEPS, *CURVED])
@pytest.mark.parametrize("behind", [False, True])
def test_such_a_group_is_adamw_and_the_others_are_as_without_it(make, behind):
    """Against PyTorch's AdamW of the group and an optimizer that has the rest alone."""
    models = [language(), language()]
    parts = groups(models[0], make)
    ours = optimizer_of(make, models[0], parts[::-1] if behind else parts)
    rest = optimizer_of(make, models[1], [groups(models[1], make)[1]])
    adamw = torch.optim.AdamW([models[1][0].weight, *models[1][3].parameters()], LR, BETAS, EPS, DECAY)
    run(models[0], [ours], 6)
    run(models[1], [rest, adamw], 6)
    for (name, p), q in zip(models[0].named_parameters(), models[1].parameters()):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5, msg=name)
    assert set(ours.state[models[0][0].weight]) == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("make", STEPS)
@pytest.mark.parametrize("capturable", [False, True])
def test_any_shape_and_both_counts(device, make, capturable):
    """Convolutions, vectors and numbers, with decay, climbing, beside a group of matrices."""
    shapes = [(4, 3, 2, 2), (5, 4), (6,), (), (0, 3)]
    ours, others = ([torch.nn.Parameter(t) for t in drawn(shapes, 1, device)] for _ in range(2))
    matrix = torch.nn.Parameter(normal(4, 4).to(device))
    optimizer = make([dict(params=[matrix]), dict(params=ours, **own(make))], maximize=True, capturable=capturable)
    adamw = torch.optim.AdamW(others, LR, BETAS, EPS, DECAY, maximize=True)
    for k in range(5):
        matrix.grad = normal(4, 4, seed=k).to(device)
        for p, q, g in zip(ours, others, drawn(shapes, 10 * k, device)):
            p.grad = q.grad = g
        optimizer.step()
        adamw.step()
    for p, q in zip(ours, others):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    assert isinstance(optimizer.state[ours[0]]["step"], torch.Tensor) == capturable
    assert optimizer.state[matrix].keys() != optimizer.state[ours[0]].keys()


@pytest.mark.parametrize("make", [*STEPS, *CURVED])
def test_a_mixed_run_that_was_saved_goes_on_with_the_same_bits(make):
    model = language(1)
    optimizer = optimizer_of(make, model, groups(model, make))
    run(model, [optimizer], 4)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    run(model, [optimizer], 3, 50)
    file.seek(0)
    saved, other = torch.load(file, weights_only=True), language(2)
    other.load_state_dict(saved["model"])
    again = optimizer_of(make, other, groups(other, make, False))
    again.load_state_dict(saved["optimizer"])
    assert [g["adamw"] for g in again.param_groups] == [True, False]
    run(other, [again], 3, 50)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    # A state of before there was such an option has no group of it.
    old = copy.deepcopy(saved["optimizer"])
    for group in old["param_groups"]:
        del group["adamw"]
    again.load_state_dict(old)
    assert not any(g["adamw"] for g in again.param_groups)


@pytest.mark.parametrize("make", [*STEPS, *CURVED])
def test_a_group_may_come_later(make):
    model = language()
    optimizer = optimizer_of(make, model, [groups(model, make)[1]])
    run(model, [optimizer], 2)
    before = model[3].weight.detach().clone()
    optimizer.add_param_group(groups(model, make)[0])
    run(model, [optimizer], 2)
    assert optimizer.state[model[3].weight]["step"] == 2 and not torch.equal(before, model[3].weight)
    optimizer.param_groups[1].update({own_name: 0.0 for own_name in own(make) if own_name.endswith("lr")})
    before = model[3].weight.detach().clone()
    run(model, [optimizer], 1)
    assert torch.equal(before, model[3].weight), "without a learning rate nothing moves"


def test_kfac_makes_no_factors_of_them():
    model = language()
    kfac = optim.KFAC(model, params=groups(model, optim.KFAC))
    run(model, [kfac], 2)
    assert "a" in kfac.state[model[1].weight]
    for p in (model[0].weight, model[3].weight):
        with pytest.raises(chronaxie.ConfigError, match="has no factors"):
            kfac.factors(p)
    # Nor did it add up any: it is the first group, and its count of steps says what is due.
    assert kfac.param_groups[0]["steps"] == kfac.param_groups[1]["steps"] == 2
    model(torch.zeros(2, 3, dtype=torch.long)).sum().backward()
    assert set(kfac._sums) == {model[1].weight}


def test_a_fused_group_may_have_one_beside_it():
    results = []
    for fused in (False, True):
        params = [torch.nn.Parameter(normal(6, 5, seed=k)) for k in range(3)]
        apart = dict(params=params[2:], **own(optim.Shampoo))
        optimizer = optim.Shampoo([dict(params=params[:2]), apart], lr=1e-2, relative=1e-2, fused=fused)
        for k in range(4):
            for i, p in enumerate(params):
                p.grad = normal(6, 5, seed=10 * k + i) if i < 2 or k else None
            optimizer.step()
        results.append(params)
    for p, q in zip(*results):
        torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-6)
    assert torch.equal(results[0][2], results[1][2])


@pytest.mark.parametrize("make", STEPS)
def test_what_is_refused(make):
    p, q = (torch.nn.Parameter(normal(4, 3, seed=k)) for k in range(2))
    with pytest.raises(chronaxie.ConfigError, match="adamw = 'yes' is not True or False"):
        make([dict(params=[p], adamw="yes")])
    for before in (False, True):
        optimizer = make([dict(params=[p], adamw=before), dict(params=[q])])
        p.grad = q.grad = torch.ones(4, 3)
        optimizer.step()
        optimizer.param_groups[0]["adamw"] = not before
        values = p.detach().clone(), q.detach().clone()
        with pytest.raises(chronaxie.ConfigError, match=r"shape \(4, 3\) has state of .*AdamW.* first step on"):
            optimizer.step()
        assert torch.equal(p, values[0]) and torch.equal(q, values[1]), "no group has taken its step"
    if make is optim.Muon:
        with pytest.raises(chronaxie.ConfigError, match="use_muon = False is adamw = True here"):
            make([dict(params=[p], use_muon=False)])
    if make is optim.Shampoo:
        with pytest.raises(chronaxie.ConfigError, match=r"betas\[1\] = 1.0 is not within"):
            make([dict(params=[p], adamw=True, betas=(0.9, 1.0), exponent=Fraction(1, 4))])


@pytest.mark.parametrize("make", [optim.Muon, *CURVED])
def test_a_schedule_moves_the_rate_of_adamw_by_the_same_factor(make):
    """As if both had been set by hand; a state of before there was a factor goes on by that of the new optimizer."""
    models = [language(), language()]
    optimizers = [optimizer_of(make, m, groups(m, make)) for m in models]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizers[0], lambda k: 1.0 / (1 + k))
    rates = [(g["lr"], g["adamw_lr"]) for g in optimizers[1].param_groups]
    for k in range(3):
        run(models[0], [optimizers[0]], 1, k)
        schedule.step()
        for group, (lr, adamw_lr) in zip(optimizers[1].param_groups, rates):
            # What follows is turned off: the lr that the group began with is as it is.
            group.update(lr=lr / (1 + k), adamw_lr=adamw_lr / (1 + k), first_lr=lr / (1 + k))
        run(models[1], [optimizers[1]], 1, k)
    for p, q in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-8)
    saved = copy.deepcopy(optimizers[0].state_dict())
    assert all(g["adamw_lr"] == rate for g, (_, rate) in zip(saved["param_groups"], rates)), "it is the rate at the first lr"
    for group in saved["param_groups"]:
        del group["first_lr"]
    again = optimizer_of(make, models[0], groups(models[0], make))
    again.load_state_dict(saved)
    assert [g["first_lr"] for g in again.param_groups] == [lr for lr, _ in rates]
