"""Parameters of bfloat16 without float32 copies: rounded up or down at random, the same in every run."""

import copy
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import chronaxie
from chronaxie import optim
from chronaxie.optim import _stochastic
from chronaxie.optim._stochastic import draws, rounded

from conftest import goes_on_with_the_same_bits
from test_kfac import mlp
from test_optim import normal
from test_scaled import scaler_of

MAKERS = [optim.Shampoo, optim.SOAP, optim.Muon]
CURVED = [optim.KFAC, optim.NaturalGradient]
BF16 = torch.bfloat16


def neighbours(x):
    """What bfloat16 has below x in magnitude, and how far it is to the next."""
    below = x.view(torch.int32).bitwise_and(-(1 << 16)).view(torch.float32)
    return below, (x.view(torch.int32).bitwise_and(-(1 << 16)) + (1 << 16)).view(torch.float32) - below


def test_the_mean_is_the_number_and_each_draw_is_next_to_it(device):
    x = torch.cat([normal(61), normal(61, seed=1) * 1e-30, normal(61, seed=2) * 1e30, torch.tensor([1e-40, -3e-39, 0.0])]).to(device)
    below, gap = neighbours(x)
    count = 4096
    made = torch.stack([rounded(x, 5, 0, k) for k in range(count)]).double()
    assert ((made == below) | (made == below.double() + gap.double())).all()
    # Of a share f that goes up the mean has a deviation of sqrt(f (1 - f) / count) of the gap.
    share = ((x.double() - below.double()) / gap.double()).abs()
    deviation = (share * (1 - share) / count).sqrt() * gap.abs().double()
    assert ((made.mean(0) - x.double()).abs() <= 5 * deviation + 1e-300).all()
    nearest = (x.to(BF16).double() - x.double()).abs()
    assert float(((made.mean(0) - x.double()).abs() / gap.abs()).mean()) < 0.1 * float((nearest / gap.abs()).mean())


def test_what_bfloat16_holds_stays():
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0.0, -0.0, 1.0, -2.5, inf, -inf, nan, 3.3895313892515355e38])
    odd = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    for step in range(50):
        made = rounded(x, 0, 0, step)
        assert torch.equal(made.nan_to_num(7.0), x.to(BF16).nan_to_num(7.0)) and made[1].signbit() and made.dtype is BF16
        assert rounded(odd, 0, 0, step).isnan().all()
    # Whatever its strides are.
    x = normal(4, 3, 5, 2)
    assert torch.equal(rounded(x.to(memory_format=torch.channels_last), 1, 2, 3), rounded(x, 1, 2, 3))
    assert rounded(torch.zeros(0, 3), 0, 0, 0).shape == (0, 3) and rounded(torch.tensor(1.0), 0, 0, 0) == 1


def test_draws_are_uniform_and_know_nothing_of_each_other(device):
    like = torch.empty(1 << 16, device=device)
    of = {key: draws(like, *key).double().cpu() for key in ((0, 0, 1), (0, 0, 2), (0, 1, 1), (1, 0, 1), (1 << 40, 0, 1))}
    for key, u in of.items():
        assert u.min() >= 0 and u.max() < 1 << 16
        counts = torch.histc(u, 256, 0, 1 << 16)
        assert abs(float((counts - 256).square().sum() / 256) - 255) < 6 * math.sqrt(2 * 255), key
        z = (u - u.mean()) / u.std()
        for lag in (1, 2, 3, 64, 1024):
            assert abs(float((z[lag:] * z[:-lag]).mean())) < 5 / 256, (key, lag)
        for bit in range(16):
            assert abs(float((u.int() >> bit & 1).double().mean()) - 0.5) < 5 * 0.5 / 256, (key, bit)
        for other, v in of.items():
            if other != key:
                assert abs(float((z * (v - v.mean()) / v.std()).mean())) < 5 / 256, (key, other)
    # The device may count.
    for step in (0, 1, 77, 1 << 20):
        assert torch.equal(draws(like, 9, 3, step), draws(like, 9, 3, torch.tensor(float(step), dtype=torch.float64, device=device)))
    assert torch.equal(draws(like.cpu(), 9, 3, 4), draws(like, 9, 3, 4).cpu()), "the same on every device"


def test_the_hash_is_that_of_python_integers():
    t = torch.tensor([0, 1, -1, 123456789, -(1 << 31)], dtype=torch.int32)
    want = [_stochastic._signed(_stochastic._mixed(v & 0xFFFFFFFF)) for v in t.tolist()]
    assert _stochastic._mix(t).tolist() == want and len(set(want)) == 5


def small_steps(make, stochastic, count=200, **options):
    """A parameter of ones, and steps of a hundredth of what lies between it and the next below."""
    p = nn.Parameter(torch.ones(64, 64, dtype=BF16))
    lr = 2.0**-8 / 100
    optimizer = make([p], lr=lr, stochastic_rounding=stochastic, **options)
    for k in range(count):
        # All of one sign, and of full rank.
        p.grad = (1 + 0.1 * normal(64, 64, seed=k)).abs().to(BF16)
        optimizer.step()
    return p.detach().float()


@pytest.mark.parametrize("make", [optim.Shampoo, optim.SOAP, partial(optim.Shampoo, precondition_vectors=False)])
def test_steps_too_small_for_the_nearest_add_up(make):
    still, moved = small_steps(make, False), small_steps(make, True)
    # What float32 has.
    p = nn.Parameter(torch.ones(64, 64))
    optimizer = make([p], lr=2.0**-8 / 100)
    for k in range(200):
        p.grad = (1 + 0.1 * normal(64, 64, seed=k)).abs().to(BF16).float()
        optimizer.step()
    # Of an element that moves by a share f of the gap draws make a deviation of sqrt(f (1 - f)) of it, at most.
    want = float((1 - p.detach()).mean())
    deviation = 2.0**-8 * (want * 2**8 / 64**2) ** 0.5
    assert float((1 - still).mean()) < 0.5 * want
    assert want > 10 * deviation and abs(float((1 - moved).mean()) - want) < 5 * deviation


def learned(make, dtype, stochastic):
    """How far off the weights of a map are behind some training, squared."""
    target = 3 + normal(8, 16, seed=9)
    model = nn.Linear(16, 8, bias=False)
    model.weight.data.copy_(target + 0.3 * normal(8, 16, seed=10))
    model.to(dtype)
    optimizer = make(model.parameters(), lr=4e-3, stochastic_rounding=stochastic)
    # Long enough that draws of any seed are well below a tenth of what the nearest stalls at; at 500 Shampoo is on its way.
    for k in range(700):
        x = normal(32, 16, seed=k)
        optimizer.zero_grad()
        F.mse_loss(model(x.to(dtype)).float(), x @ target.T).backward()
        optimizer.step()
    return float((model.weight.detach().float() - target).square().mean())


@pytest.mark.parametrize("make", [optim.Shampoo, optim.SOAP])
def test_a_training_that_stalls_goes_on(make):
    """Steps of 0.004 of weights of about 3, where bfloat16 has a number every 0.016."""
    exact, nearest, drawn = learned(make, torch.float32, False), learned(make, BF16, False), learned(make, BF16, True)
    assert nearest > 0.05 and exact < 0.01 and drawn < 0.1 * nearest, (exact, drawn, nearest)


def drawn_run(make, seed=0, capturable=None, steps=6, scaler=None, overflows=()):
    params = [nn.Parameter(normal(*s, seed=k).to(BF16)) for k, s in enumerate([(9, 5), (6, 6), (7,), (4, 3)])]
    groups = [dict(params=params[:3]), dict(params=params[3:], adamw=True)]
    options = {} if capturable is None else dict(capturable=capturable)
    optimizer = make(groups, lr=1e-2, stochastic_rounding=True, seed=seed, **options)
    for k in range(steps):
        for over in (True, False) if k in overflows else (False,):
            by = 1.0 if scaler is None else scaler.scale(torch.ones(())).item()
            for i, p in enumerate(params):
                p.grad = (normal(*p.shape, seed=10 * k + i) * (float("inf") if over else by)).to(BF16)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
    return params, optimizer


@pytest.mark.parametrize("make", MAKERS)
def test_runs_give_the_same_bits_and_seeds_others(make):
    (one, optimizer), (two, _), (other, _) = drawn_run(make), drawn_run(make), drawn_run(make, seed=1)
    assert all(map(torch.equal, one, two)) and not any(map(torch.equal, one, other))
    assert all(p.dtype is BF16 and optimizer.state[p]["rounded"] == 6 for p in one)
    # Parameters of the same numbers and gradients are rounded by draws of their own.
    alike = [nn.Parameter(torch.ones(8, 8, dtype=BF16)) for _ in range(2)]
    optimizer = make(alike, lr=1e-4, stochastic_rounding=True)
    for k in range(20):
        for p in alike:
            p.grad = normal(8, 8, seed=k).to(BF16)
        optimizer.step()
    assert not torch.equal(*alike)


@pytest.mark.parametrize("make", MAKERS)
def test_a_step_that_is_left_out_draws_nothing(make):
    plain, _ = drawn_run(make, capturable=True)
    scaled, optimizer = drawn_run(make, capturable=True, scaler=scaler_of("cpu"), overflows=(0, 2, 3))
    assert all(map(torch.equal, plain, scaled))
    assert all(float(optimizer.state[p]["rounded"]) == 6 for p in scaled)


@pytest.mark.parametrize("make", [*MAKERS, *CURVED])
def test_a_run_that_was_saved_goes_on_with_the_same_bits(make):
    def optimize(net, first):
        options = dict(stochastic_rounding=True, seed=11) if first else {}
        return make(net, **options) if make in CURVED else make(net.parameters(), lr=0.01, **options)

    def run(net, optimizer, part):
        for k in range((7, 5)[part]):
            x, y = normal(8, 4, seed=100 * part + k).to(BF16), normal(8, 3, seed=k + 50).to(BF16)
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()

    goes_on_with_the_same_bits(lambda seed: mlp(seed).to(BF16), optimize, run)


@pytest.mark.parametrize("make", MAKERS)
def test_other_types_are_rounded_as_they_were(make):
    results = []
    for stochastic in (False, True):
        params = [nn.Parameter(normal(5, 4, seed=k)) for k in range(2)]
        optimizer = make(params, stochastic_rounding=stochastic)
        for k in range(3):
            for i, p in enumerate(params):
                p.grad = normal(5, 4, seed=10 * k + i)
            optimizer.step()
        results.append(params)
        assert not any("rounded" in state for state in optimizer.state.values())
    assert all(map(torch.equal, *results))
    # A state of before there was such an option.
    saved = copy.deepcopy(optimizer.state_dict())
    for group in saved["param_groups"]:
        del group["stochastic_rounding"], group["seed"]
    optimizer.load_state_dict(saved)
    optimizer.step()


@pytest.mark.parametrize("make", [*MAKERS, *CURVED])
def test_its_sentences(make):
    model = mlp()
    for options, want in [
        (dict(stochastic_rounding="yes"), "stochastic_rounding = 'yes' is not True or False"),
        (dict(stochastic_rounding=True, seed=-1), r"seed = -1 is not a whole number of 0 .. 2\^63 - 1"),
        (dict(stochastic_rounding=True, seed=0.5), "seed = 0.5 is not a whole number"),
    ]:
        with pytest.raises(chronaxie.ConfigError, match=want):
            make(model if make in CURVED else model.parameters(), **options)
    model.half()
    with pytest.raises(chronaxie.DtypeError, match=r"for parameters of bfloat16, and one of shape \(5, 4\) holds float16"):
        make(model if make in CURVED else model.parameters(), stochastic_rounding=True)


@pytest.mark.gpu
@pytest.mark.parametrize("make", MAKERS)
def test_a_captured_step_draws_anew(cuda, make):
    """Run again, a graph has the bits of steps that are not captured."""

    def start():
        p = nn.Parameter(normal(16, 8, device=cuda).to(BF16))
        optimizer = make([p], lr=1e-4, stochastic_rounding=True, capturable=True)
        p.grad = normal(16, 8, seed=1, device=cuda).to(BF16)
        optimizer.step()
        return p, optimizer

    (p, optimizer), (q, captured) = start(), start()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    for k in range(6):
        p.grad.copy_(normal(16, 8, seed=k + 2, device=cuda))
        q.grad.copy_(p.grad)
        optimizer.step()
        graph.replay()
    assert torch.equal(p, q)
