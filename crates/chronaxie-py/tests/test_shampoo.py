"""Shampoo's options of shapes: exponents by order, and axes that stay apart."""

import io
from fractions import Fraction

import numpy as np
import pytest
import torch

import chronaxie
from chronaxie import optim

from test_optim import Reference, normal

EXPONENTS = {2: Fraction(1, 3), 3: Fraction(2, 5)}


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("exponent", [None, EXPONENTS, [None, *EXPONENTS.values()]], ids=["none", "dict", "list"])
@pytest.mark.parametrize("shape", [(5,), (7, 3), (1, 6, 2), (3, 2, 2, 4), (2, 2, 2)])
def test_ten_steps_are_numpys(device, shape, exponent, merge):
    options = dict(lr=0.05, betas=(0.9, 0.97), absolute=1e-12, relative=1e-2)
    w = normal(*shape)
    powers = {} if exponent is None else {order: float(value) for order, value in EXPONENTS.items()}
    law = Reference(w.numpy(), most=4, decay=0.1, merge=merge, powers=powers, **options)
    p = torch.nn.Parameter(w.clone().to(device))
    shampoo = optim.Shampoo(
        [p], weight_decay=0.1, max_preconditioner_dim=4, precondition_frequency=1, merge_dims=merge, exponent=exponent, **options
    )
    law.follows(shampoo, p)
    merged, longer = law.regions()[0], [n for n in shape if n > 1]
    assert len(shampoo.state[p]["roots"][0]) == len(merged)
    assert merge or merged == longer


def test_a_small_convolution_keeps_its_axes_where_it_is_asked():
    p = torch.nn.Parameter(normal(8, 4, 3, 3))
    sizes = []
    for merge in (True, False):
        optimizer = optim.Shampoo([p], merge_dims=merge)
        p.grad = normal(8, 4, 3, 3, seed=1)
        optimizer.step()
        sizes.append([root.shape[-1] for root in optimizer.state[p]["roots"][0]])
    assert sizes == [[288], [8, 4, 3, 3]]


@pytest.mark.parametrize("capturable", [False, True])
def test_groups_have_their_own_and_a_saved_run_goes_on(capturable):
    def make(params, first):
        options = [dict(exponent=EXPONENTS, merge_dims=False), dict(exponent=Fraction(1, 2))] if first else [{}, {}]
        groups = [dict(params=[p], **o) for p, o in zip(params, options)]
        return optim.Shampoo(groups, max_preconditioner_dim=8, precondition_frequency=2, capturable=capturable)

    def run(params, optimizer, seed):
        for k in range(4):
            for i, p in enumerate(params):
                p.grad = normal(*p.shape, seed=seed + 10 * k + i)
            optimizer.step()

    params, copies = ([torch.nn.Parameter(normal(6, 2, 2, seed=k)) for k in range(2)] for _ in range(2))
    optimizer = make(params, True)
    run(params, optimizer, 0)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = make(copies, False)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert [g["merge_dims"] for g in other.param_groups] == [False, True]
    assert other.param_groups[0]["exponent"] == {2: (1, 3), 3: (2, 5)} and other.param_groups[1]["exponent"] == (1, 2)
    for p, q in zip(params, copies):
        q.data.copy_(p.detach())
    run(params, optimizer, 100)
    run(copies, other, 100)
    assert all(map(torch.equal, params, copies)) and not torch.equal(*params)
    # What add_param_group brings has its own, and the defaults where it says nothing.
    optimizer.add_param_group(dict(params=[torch.nn.Parameter(normal(3))], exponent=[Fraction(1, 5)]))
    assert optimizer.param_groups[2]["exponent"] == {1: (1, 5)} and optimizer.param_groups[2]["merge_dims"] is True


def test_a_state_of_before_there_were_such_options_goes_on():
    params = [torch.nn.Parameter(normal(6, 2, 2)) for _ in range(2)]
    optimizers = [optim.Shampoo([p], exponent=Fraction(1, 3)) for p in params]
    params[0].grad = normal(6, 2, 2, seed=1)
    optimizers[0].step()
    saved = optimizers[0].state_dict()
    del saved["param_groups"][0]["merge_dims"]
    optimizers[1].load_state_dict(saved)
    params[1].data.copy_(params[0].detach())
    for p, optimizer in zip(params, optimizers):
        p.grad = normal(6, 2, 2, seed=2)
        optimizer.step()
    assert torch.equal(*params)


def test_its_sentences():
    p = torch.nn.Parameter(torch.ones(3, 2))
    for options, want in [
        (dict(exponent=0.25), r"exponent = 0.25 is not a positive fractions.Fraction, such as Fraction\(1, 4\)"),
        (dict(exponent=Fraction(0)), r"exponent = Fraction\(0, 1\) is not a positive"),
        (dict(exponent={2: 4}), r"exponent\[2\] = 4 is not a positive"),
        (dict(exponent=[None, Fraction(-1, 4)]), r"exponent\[2\] = Fraction\(-1, 4\) is not a positive"),
        (dict(exponent={0: Fraction(1, 4)}), "exponent has a value of order 0, which is not a number of axes from 1 on"),
        (dict(exponent={"2": Fraction(1, 4)}), "exponent has a value of order '2'"),
        (dict(exponent=Fraction(1, 65)), "exponent = 1/65 is not a fraction of numbers from 1 to 64"),
        (dict(exponent=EXPONENTS, fused=True), "fused=True and exponents by order exclude each other"),
        (dict(merge_dims=False, fused=True), "fused=True and merge_dims=False exclude each other"),
    ]:
        with pytest.raises(chronaxie.ConfigError, match=want):
            optim.Shampoo([p], **options)
    optimizer = optim.Shampoo([p])
    with pytest.raises(chronaxie.ConfigError, match=r"exponent\[1\] = 'half'"):
        optimizer.add_param_group(dict(params=[torch.nn.Parameter(torch.ones(2))], exponent=["half"]))
    assert len(optimizer.param_groups) == 1
