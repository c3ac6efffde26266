"""Native steps of whole groups (``fused=True``) against the steps one by one, and the state that both have."""

import copy
from fractions import Fraction

import pytest
import torch

import chronaxie
from chronaxie import optim
from chronaxie.optim import _soap
from chronaxie.optim._blocks import grid_of
from chronaxie.optim._packed import by_regions, from_triangle

from conftest import distance, goes_on_with_the_same_bits
from test_optim import MAKERS, normal

SHAPES = [(20, 9), (5,), (2, 3, 7), (1,), (16, 16), (33, 4), ()]
# In whole squares of 8, as eigenvectors of a factor without its rank are anybody's.
SQUARES = [(16, 8), (5,), (8, 8, 1), (1,), (24, 16), (), (8, 8, 8)]
# Early second moments of SOAP are one square each: what is added to their roots bounds how far a rounding of it goes.
OPTIONS = {
    optim.Shampoo: dict(lr=1e-2, max_preconditioner_dim=8, precondition_frequency=3, relative=1e-2),
    optim.SOAP: dict(lr=1e-2, eps=0.1, max_preconditioner_dim=8, precondition_frequency=3),
    optim.Muon: dict(lr=1e-2),
}


def drawn(shapes, seed, device="cpu"):
    return [normal(*shape, 1, seed=seed + k, device=device)[..., 0] for k, shape in enumerate(shapes)]


def made(make, shapes, device="cpu", **options):
    """Parameters and their optimizer."""
    parameters = [p.requires_grad_() for p in drawn(shapes, 1, device)]
    return parameters, make(parameters, **{**OPTIONS[make], **options})


def stepped(optimizer, parameters, steps, first=0):
    for i in range(first, first + steps):
        for p, g in zip(parameters, drawn([p.shape for p in parameters], 100 * (i + 1), parameters[0].device)):
            p.grad = g
        optimizer.step()


def both(make, shapes, device, taken, **options):
    """Of plain and of fused steps parameters and optimizer."""
    found = []
    for fused in (False, True):
        parameters, optimizer = made(make, shapes, device, fused=fused, **options)
        stepped(optimizer, parameters, taken)
        found.append((parameters, optimizer))
    return found


@pytest.mark.parametrize("options", [
    dict(),
    dict(grafting="adagrad", betas=(0.9, 1.0), weight_decay=0.1, weight_decay_mode="corrected"),
    dict(grafting="sgd", precondition_vectors=False, weight_decay=0.1, weight_decay_mode="independent"),
    dict(grafting="none", exponent=Fraction(1, 3), weight_decay=0.1, weight_decay_mode="l2", maximize=True),
    dict(grafting="rmsprop", start_preconditioning_step=3, grafting_eps=1e-3, lr=torch.tensor(2e-2)),
])  # fmt: skip
def test_shampoos_fused_step_is_what_others_are(device, options):
    """One native step of all parameters against the steps one by one, states too, with roots in turns."""
    (plain, plains), (other, fused) = both(optim.Shampoo, SHAPES, device, 8, **options)
    for p, q in zip(plain, other):
        torch.testing.assert_close(q, p, rtol=2e-5, atol=2e-6)
        a, b = plains.state[p], fused.state[q]
        grid = grid_of(p, 8, options.get("precondition_vectors", True))[1]
        b["factors"] = by_regions(from_triangle, b.pop("triangles"), grid)
        assert a["step"] == b["step"] == 8 and set(a) == set(b)
        for name in set(a) - {"step"}:
            torch.testing.assert_close(b[name], a[name], rtol=2e-4, atol=1e-5)
    assert plains.param_groups[0].get("most_lr") == fused.param_groups[0].get("most_lr")


@pytest.mark.parametrize("options", [
    dict(),
    dict(nesterov=False, momentum=0.8, steps=3, weight_decay=0.1, adamw_lr=1e-2, adamw_betas=(0.8, 0.9), adamw_eps=1e-3),
    dict(momentum=0.0, weight_decay=0.1, weight_decay_mode="l2", maximize=True),
    dict(weight_decay=0.1, weight_decay_mode="corrected", lr=torch.tensor(2e-2)),
    dict(weight_decay=0.1, weight_decay_mode="independent"),
])  # fmt: skip
def test_muons_fused_step_is_what_others_are(device, options):
    """Matrices that are tall, wide, square and of more axes; the others take AdamW's step by its own rate, with the same bits."""
    (plain, plains), (other, fused) = both(optim.Muon, [*SHAPES, (0, 3), (3, 0, 2), (4, 70)], device, 8, **options)
    for p, q in zip(plain, other):
        a, b = plains.state[p], fused.state[q]
        assert set(a) == set(b)
        if p.dim() < 2:
            assert torch.equal(p, q) and a["step"] == b["step"] == 8 and torch.equal(a["exp_avg_sq"], b["exp_avg_sq"])
            continue
        torch.testing.assert_close(q, p, rtol=2e-5, atol=2e-6)
        if p.numel():
            torch.testing.assert_close(b["momentum"], a["momentum"], rtol=2e-5, atol=2e-6)
    assert plains.param_groups[0].get("most_lr") == fused.param_groups[0].get("most_lr")


@pytest.mark.parametrize("options", [
    dict(),
    dict(shampoo_beta=0.8, eps=0.05, correct_bias=False, weight_decay=0.1, weight_decay_mode="l2", maximize=True),
    dict(merge_dims=True, precondition_vectors=True, weight_decay=0.1, weight_decay_mode="corrected", lr=torch.tensor(2e-2)),
    dict(betas=(0.9, 0.99), eps=0.5, weight_decay=0.1, weight_decay_mode="independent", precondition_frequency=1),
])  # fmt: skip
def test_soaps_fused_step_is_what_others_are(device, options):
    """States too; of bases, whose columns have anybody's signs, what they make of a matrix that they turn."""
    shapes = [(16, 8), (4, 2, 8), (8, 8)] if options.get("precondition_vectors") else SQUARES
    (plain, plains), (other, fused) = both(optim.SOAP, shapes, device, 8, **options)
    for at, (p, q) in enumerate(zip(plain, other)):
        torch.testing.assert_close(q, p, rtol=2e-5, atol=5e-6)
        a, b = plains.state[p], fused.state[q]
        assert a["step"] == b["step"] == 8 and set(a) == {"factors" if name == "triangles" else name for name in b}
        assert a["exp_avg_sq"].shape == b["exp_avg_sq"].shape
        torch.testing.assert_close(b["exp_avg"], a["exp_avg"], rtol=2e-5, atol=2e-6)
        assert distance(b["exp_avg_sq"], a["exp_avg_sq"]) < 1e-3
        if "factors" not in a:
            continue
        grid = fused._spread(fused.param_groups[0]).grids[at][1]
        torch.testing.assert_close(by_regions(from_triangle, b["triangles"], grid), a["factors"], rtol=2e-4, atol=1e-5)
        for some, others in zip(a["bases"], b["bases"]):
            for x, y in zip(some, others):
                assert float((x * y).sum(-2).abs().min()) > 0.999
    assert plains.param_groups[0].get("most_lr") == fused.param_groups[0].get("most_lr")


@pytest.mark.parametrize("side", [256, 300])
def test_soaps_large_first_bases_on_a_gpu_are_pytorchs(device, monkeypatch, side):
    """The first step alone, and of blocks that are longer than native ones may be."""
    monkeypatch.setattr(_soap, "_NATIVE_EIGENVECTORS", 256)
    asked = []

    class Asked(optim.SOAP):
        def _opens_plainly(self, group, given):
            asked.append(super()._opens_plainly(group, given))
            return asked[-1]

    parameters = [torch.nn.Parameter(normal(side, 3).to(device)), torch.nn.Parameter(normal(5).to(device))]
    stepped(Asked(parameters, fused=True, max_preconditioner_dim=1024), parameters, 2)
    assert asked == [device.type == "cuda" and side > 256, False]


def test_soaps_first_bases_may_be_pytorchs(device, monkeypatch):
    """As of large blocks on a GPU: a plain first step, and native ones from its state on."""
    fresh = lambda self, group, given: not any(self.state.get(p) for _, p, _ in given)
    monkeypatch.setattr(optim.SOAP, "_opens_plainly", fresh)
    (plain, plains), (other, fused) = both(optim.SOAP, SQUARES, device, 8)
    for p, q in zip(plain, other):
        torch.testing.assert_close(q, p, rtol=2e-5, atol=5e-6)
        assert plains.state[p]["step"] == fused.state[q]["step"] == 8
        torch.testing.assert_close(fused.state[q]["exp_avg"], plains.state[p]["exp_avg"], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("make", MAKERS)
def test_fused_and_other_steps_take_each_others_states(device, make):
    """Behind load_state_dict, from either to either, and where the option changes, steps go on; a fused one with the same bits."""
    shapes = SQUARES if make is optim.SOAP else SHAPES

    def run(kinds):
        parameters, optimizer = made(make, shapes, device, fused=kinds[0])
        other = make(parameters, **OPTIONS[make], fused=kinds[0])
        stepped(optimizer, parameters, 3)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        other.param_groups[0]["fused"] = kinds[1]
        stepped(other, parameters, 3, 3)
        other.param_groups[0]["fused"] = kinds[0]
        stepped(other, parameters, 2, 6)
        return [p.detach() for p in parameters]

    parameters, whole = made(make, shapes, device, fused=True)
    stepped(whole, parameters, 8)
    assert all(torch.equal(p, q) for p, q in zip(parameters, run((True, True))))
    for kinds in ((False, True), (True, False)):
        for p, q in zip(parameters, run(kinds)):
            torch.testing.assert_close(q, p.detach(), rtol=2e-5, atol=5e-6)


def test_soap_goes_on_from_bases_that_there_are(device):
    """Of any shapes: behind some plain steps, which choose what is free of the first bases, fused ones are plain ones."""
    runs = []
    for fused in (False, True):
        parameters, optimizer = made(optim.SOAP, SHAPES, device, precondition_frequency=20, weight_decay=0.1)
        stepped(optimizer, parameters, 2)
        optimizer.param_groups[0]["fused"] = fused
        stepped(optimizer, parameters, 4, 2)
        runs.append(parameters)
    for p, q in zip(*runs):
        torch.testing.assert_close(q, p, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("make", MAKERS)
def test_a_saved_fused_run_goes_on(make):
    """Through a file, with options that loading replaces."""

    def model(seed):
        return torch.nn.ParameterList(drawn(SHAPES, seed))

    def optimize(net, first):
        return make(net.parameters(), **{**OPTIONS[make], **({} if first else dict(lr=0.5))}, fused=first)

    def run(net, optimizer, part):
        stepped(optimizer, list(net.parameters()), (4, 5)[part], 4 * part)

    goes_on_with_the_same_bits(model, optimize, run)


@pytest.mark.parametrize("make", MAKERS)
def test_groups_have_their_own(device, make):
    """Fused groups, with options of their own, beside plain and AdamW's."""
    shapes = [(8, 8), (16, 8), (8,)]
    runs = []
    for fused in (False, True):
        some = [[torch.nn.Parameter(t) for t in drawn(shapes, 10 * k, device)] for k in range(4)]
        own = [dict(fused=fused), dict(fused=fused, lr=3e-2, weight_decay=0.1), dict(fused=False), dict(fused=fused, adamw=True)]
        optimizer = make([dict(params=p, **o) for p, o in zip(some, own)], **OPTIONS[make])
        parameters = [p for group in some for p in group]
        stepped(optimizer, parameters, 5)
        # A group that has no gradients waits.
        before = [p.detach().clone() for p in some[1]]
        for p in some[1]:
            p.grad = None
        optimizer.step()
        assert all(torch.equal(p, q) for p, q in zip(some[1], before))
        stepped(optimizer, parameters, 2, 6)
        runs.append(some)
    for group, others in zip(*runs):
        for p, q in zip(group, others):
            torch.testing.assert_close(q, p, rtol=2e-5, atol=5e-6)
    assert all(torch.equal(p, q) for k in (2, 3) for p, q in zip(runs[0][k], runs[1][k]))


@pytest.mark.parametrize("make", MAKERS)
def test_what_no_fused_step_can_do(make):
    name, what = make.__name__, "matrices" if make is optim.Muon else "parameters"
    p, q = (torch.nn.Parameter(normal(4, 3, seed=k)) for k in range(2))
    with pytest.raises(chronaxie.ConfigError, match=f"{name}: fused=True and capturable=True exclude each other"):
        make([p], fused=True, capturable=True)
    optimizer = make([p, q], fused=True)
    p.grad = torch.ones_like(p)
    before = p.detach().clone()
    with pytest.raises(chronaxie.ConfigError, match=rf"one step of all {what} of a group, and one of shape \(4, 3\) has no gradient"):
        optimizer.step()
    # Nor has another group then taken its step.
    other = torch.nn.Parameter(normal(4, 3, seed=2))
    other.grad, before_it = torch.ones_like(other), other.detach().clone()
    with pytest.raises(chronaxie.ConfigError, match="has no gradient"):
        make([dict(params=[other]), dict(params=[p, q])], fused=True).step()
    assert torch.equal(other, before_it) and torch.equal(before, p) and not optimizer.state[p]
    half = torch.nn.Parameter(normal(4, 2).half())
    half.grad = torch.ones_like(half)
    with pytest.raises(chronaxie.DtypeError, match=rf"is for {what} of float32, and one of shape \(4, 2\) holds torch.float16"):
        make([half], fused=True).step()
    # Where the option comes later.
    optimizer = make([p], capturable=True)
    optimizer.param_groups[0]["fused"] = True
    with pytest.raises(chronaxie.ConfigError, match="fused=True and capturable=True exclude each other"):
        optimizer.step()
    empty = torch.nn.Parameter(torch.zeros(0, 3))
    p.grad, empty.grad = torch.ones_like(p), torch.zeros_like(empty)
    make([p, empty], fused=True).step()
    assert not torch.equal(before, p)


@pytest.mark.parametrize("make", [optim.Shampoo, optim.SOAP])
def test_parameters_have_taken_as_many_steps(make):
    p, q = (torch.nn.Parameter(normal(4, 3, seed=k)) for k in range(2))
    optimizer = make([p, q])
    p.grad = torch.ones_like(p)
    optimizer.step()
    q.grad = torch.ones_like(q)
    optimizer.param_groups[0]["fused"] = True
    with pytest.raises(chronaxie.ConfigError, match="is for parameters that have taken as many steps, not 0 to 1"):
        optimizer.step()


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_muons_fused_steps_of_large_matrices_are_as_exact_as_they_say(device, precision):
    """Tall, wide and square ones, beside one that is too small for tensor cores, against Newton-Schulz in float64."""
    shapes = [(200, 130), (150, 400), (256, 256), (40, 300)]
    params = [torch.nn.Parameter(torch.zeros(s, device=device)) for s in shapes]
    grads = [normal(*s, seed=k).to(device) for k, s in enumerate(shapes)]
    for p, g in zip(params, grads):
        p.grad = g.clone()
    optim.Muon(params, lr=1.0, weight_decay=0.0, fused=True, precision=precision).step()
    for p, g in zip(params, grads):
        x = g.double() * 1.95
        x = x / x.norm()
        for _ in range(5):
            t = x @ x.mT
            x = 3.4445 * x + (-4.775 * t + 2.0315 * t @ t) @ x
        x = x * max(1.0, p.shape[0] / p.shape[1]) ** 0.5
        off = float((p.detach().double() + x).norm() / x.norm())
        half = precision == "fast" and device.type == "cuda" and min(p.shape) >= 128
        least, most = (1e-4, 4e-3) if half and torch.cuda.get_device_capability(device)[0] == 9 else (0.0, 2e-5)
        assert least <= off < most, (tuple(p.shape), off)


def test_muons_fused_steps_and_what_is_no_matrix():
    """What is no matrix may be of any type, and be left out of a step."""
    p = torch.nn.Parameter(normal(4, 3))
    halves, none = torch.nn.Parameter(normal(5).bfloat16()), torch.nn.Parameter(normal(5))
    optimizer = optim.Muon([halves, p, none], fused=True, adamw_lr=0.1)
    p.grad, halves.grad = torch.ones_like(p), torch.ones_like(halves)
    before = halves.detach().clone()
    optimizer.step()
    assert not torch.equal(before, halves) and not optimizer.state[none]
    # Matrices have no count of steps: one may have momentum where another one has none yet.
    runs = []
    for fused in (False, True):
        some = [torch.nn.Parameter(normal(4, 3, seed=k)) for k in range(2)]
        optimizer = optim.Muon(some)
        stepped(optimizer, some[:1], 1)
        optimizer.param_groups[0]["fused"] = fused
        stepped(optimizer, some, 2, 1)
        runs.append(some)
    for q, r in zip(*runs):
        torch.testing.assert_close(q, r, rtol=2e-5, atol=2e-6)
    # Without a matrix that is trained there is no native step.
    none.grad, p.grad, before = torch.ones_like(none), None, none.detach().clone()
    optim.Muon([none, p], fused=True).step()
    assert not torch.equal(before, none)


@pytest.mark.parametrize("make", MAKERS)
def test_processes_that_share_exclude_it(make, monkeypatch):
    p = torch.nn.Parameter(normal(4, 3))
    optimizer = make([p], fused=True)
    monkeypatch.setattr(optimizer._ranks, "count", 2)
    what = "matrices" if make is optim.Muon else "blocks"
    with pytest.raises(chronaxie.ConfigError, match=f"fused=True and {what} spread over 2 processes exclude each other"):
        optimizer._check(optimizer.param_groups[0])
