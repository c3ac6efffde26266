"""Scans and the mLSTM under torch.func, on the meta device, and of fake tensors."""

import chronaxie
import pytest
import torch
from chronaxie.torch import (
    AUSSM, LRU, LTC, RGLRU, S4D, S5, CfC, Mamba, MinGRU, PolarSSM, linear_scan, mlstm, mlstm_step, parallel,
    selective_state_update, wirings,
)  # fmt: skip
from conftest import distance
from test_passes import KINDS, flat, scans
from torch.func import functional_call, grad, jacrev, jvp, vmap

MODULES = {
    "S4D": lambda: S4D(6, 3),
    "S5": lambda: S5(6, 4),
    "LRU": lambda: LRU(6, 3),
    "RGLRU": lambda: RGLRU(6, 2),
    "MinGRU": lambda: MinGRU(6, 6),
    "Mamba": lambda: Mamba(6, 3),
    "AUSSM": lambda: AUSSM(6, 3),
    "PolarSSM": lambda: PolarSSM(6, 3),
}
NO_JVP = "there is no forward-mode differentiation"


def loss(made):
    return sum((t.abs().square() * (1 + k)).sum() for k, t in enumerate(flat(made)))


def real(t):
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def near(ours, law):
    ours, law = flat(ours), flat(law)
    assert len(ours) == len(law) and all(distance(real(a), real(b)) < 1e-5 for a, b in zip(ours, law))


@pytest.mark.parametrize("kind", KINDS)
def test_grad_is_autograds(device, kind):
    call, leaves = scans(device)[kind]
    law = torch.autograd.grad(loss(call(*leaves)), leaves)
    ours = grad(lambda *t: loss(call(*t)), tuple(range(len(leaves))))(*(t.detach() for t in leaves))
    assert all(map(torch.equal, ours, law)), "the same pass"
    with pytest.raises(chronaxie.ChronaxieError, match="there is no double backward"):
        grad(lambda t: grad(lambda t: loss(call(t, *leaves[1:])).real)(t).abs().sum())(leaves[0].detach())


@pytest.mark.parametrize("kind", KINDS)
def test_vmap_is_a_loop(device, kind):
    """Of what the batch has an axis in, which becomes part of it, and of what it has none."""
    call, leaves = scans(device)[kind]
    # Rates that are not negative would grow beyond all numbers.
    leaves = [-t.detach().abs() if kind == "selective" and k == 2 else t.detach() for k, t in enumerate(leaves)]
    for which in ([0], [1], list(range(len(leaves)))):
        stacked = [torch.stack([t, 0.5 * t, 2.0 * t], 1) if k in which else t for k, t in enumerate(leaves)]
        dims = tuple(1 if k in which else None for k in range(len(leaves)))
        rows = [[t.select(1, at) if k in which else t for k, t in enumerate(stacked)] for at in range(3)]
        law = [torch.stack(t) for t in zip(*(flat(call(*row)) for row in rows))]
        near(list(vmap(lambda *t: tuple(flat(call(*t))), dims)(*stacked)), law)
        # Gradients of each, and of the sum of all.
        every = tuple(range(len(leaves)))
        single = lambda *t: loss(call(*t))  # noqa: E731
        of_each = [torch.stack(t) for t in zip(*(grad(single, every)(*row) for row in rows))]
        near(list(vmap(grad(single, every), dims)(*stacked)), of_each)
        of_sum = grad(lambda *t: vmap(single, dims)(*t).sum(), every)(*stacked)
        near([t if k not in which else t.movedim(1, 0) for k, t in enumerate(of_sum)],
             [t if k in which else t.sum(0) for k, t in enumerate(of_each)])


@pytest.mark.parametrize("name", MODULES)
def test_the_gradients_of_single_samples_of_a_module(name):
    module, x = MODULES[name](), torch.randn(3, 5, 6)
    of = {n: p.detach() for n, p in module.named_parameters()}
    single = lambda p, x: functional_call(module, p, (x[None],))[0].square().sum()  # noqa: E731
    ours = vmap(grad(single), (None, 0))(of, x)
    for at in range(3):
        module.zero_grad()
        module(x[at : at + 1])[0].square().sum().backward()
        for n, p in module.named_parameters():
            assert distance(real(ours[n][at]), real(p.grad)) < 1e-5, n


def test_packed_sequences_resets_and_nested_maps(device):
    a, x = (torch.rand(2, 4, 1, 3, 8, device=device) for _ in range(2))
    ends = torch.tensor([0, 3, 8], device=device)
    ours = vmap(vmap(lambda a, x: linear_scan(a, x, cu_seqlens=ends)[0]))(a, x)
    assert torch.equal(ours[1, 2], linear_scan(a[1, 2], x[1, 2], cu_seqlens=ends)[0])
    reset = torch.rand(2, 4, 1, 8, device=device) < 0.3
    ours = vmap(vmap(lambda a, x, r: linear_scan(a, x, reset=r)[0]))(a, x, reset)
    assert torch.equal(ours[1, 2], linear_scan(a[1, 2], x[1, 2], reset=reset[1, 2])[0])
    made = jacrev(lambda x: linear_scan(a[0, 0], x)[1])(x[0, 0])
    assert made.shape == (1, 3, 1, 3, 8)
    with pytest.raises(chronaxie.ShapeError, match="an axis of 0 elements"):
        vmap(lambda t: linear_scan(t[None], t[None], cu_seqlens=ends)[0])(torch.rand(0, 3, 8, device=device))


@pytest.mark.parametrize("kind", KINDS)
def test_forward_mode_is_refused_in_a_sentence(kind):
    call, leaves = scans("cpu")[kind]
    rest, x = leaves[1:], leaves[0].detach()
    with pytest.raises(chronaxie.ChronaxieError, match=NO_JVP):
        jvp(lambda t: call(t, *rest), (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(chronaxie.ChronaxieError, match=NO_JVP):
            call(dual, *rest)
        with torch.no_grad(), pytest.raises(chronaxie.ChronaxieError, match=NO_JVP):
            call(dual, *(t.detach() for t in rest))


@pytest.mark.parametrize("net", [LTC(4, 5), CfC(4, 5)], ids=["LTC", "CfC"])
def test_dual_tensors_go_by_pytorchs_operations(net):
    x, v = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    law = jvp(lambda x: net(x)[0], (x,), (v,))[1]
    with torch.autograd.forward_ad.dual_level():
        out = net(torch.autograd.forward_ad.make_dual(x, v))[0]
        assert distance(torch.autograd.forward_ad.unpack_dual(out).tangent, law) < 1e-6


def test_steps_are_no_operations_of_a_transform():
    q, k, v = torch.randn(3, 2, 1, 16), torch.randn(3, 2, 1, 16), torch.randn(3, 2, 1, 16)
    gate, c, n, m = torch.randn(3, 2, 1), torch.zeros(2, 1, 16, 16), torch.zeros(2, 1, 16), torch.zeros(2, 1)
    with pytest.raises(chronaxie.ChronaxieError, match="mlstm_step: a step changes states in place"):
        vmap(lambda q, k, v, i: mlstm_step(q, k, v, i, i, c, n, m))(q, k, v, gate)


def test_ranks_are_out_of_reach():
    class Ranks:
        name, count = "parallel.linear_scan", 2

    a = torch.rand(1, 3, 8)
    call = ("linear_scan", {"B": 1, "D": 3, "T": 8}, {}, [a, a])
    with pytest.raises(chronaxie.ChronaxieError, match="parallel.linear_scan: torch.func and torch.vmap do not reach other ranks"):
        grad(lambda _: parallel._agreed(None, Ranks, call, True, "auto", None))(a)


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_shapes_without_memory(name):
    x = torch.randn(2, 5, 6)
    law, state = MODULES[name]()(x)
    with torch.device("meta"):
        inside = MODULES[name]()
    for module in (inside, MODULES[name]().to("meta")):
        out, last = module(x.to("meta"))
        assert out.is_meta and out.shape == law.shape and out.dtype == law.dtype
        assert [t.shape for t in flat(last)] == [t.shape for t in flat(state)]
        out.sum().backward()
        assert all(p.grad is not None and p.grad.shape == p.shape for p in module.parameters())
        with torch.no_grad():
            assert module(x.to("meta"), last)[0].shape == law.shape
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out, last = MODULES[name]()(mode.from_tensor(x))
        assert out.shape == law.shape and [t.dtype for t in flat(last)] == [t.dtype for t in flat(state)]


def test_calls_have_shapes_without_memory():
    with torch._subclasses.FakeTensorMode():
        q, gate = torch.randn(2, 3, 9, 16), torch.randn(2, 3, 9)
        assert mlstm(q, q, q, gate, gate).shape == q.shape
        a, ends = torch.rand(1, 3, 9), torch.zeros(3, dtype=torch.int64)
        assert linear_scan(a, a, cu_seqlens=ends)[1].shape == (2, 3)
    u, w = torch.rand(2, 4, device="meta"), torch.rand(2, 3, device="meta")
    state, A = torch.rand(2, 4, 3, device="meta"), torch.rand(4, 3, device="meta")
    assert selective_state_update(state, u, u, A, w, w).shape == (2, 4)
    with torch.device("meta"):
        assert CfC(5, wirings.AutoNCP(10, 4))(torch.rand(2, 3, 5))[0].shape == (2, 3, 4)


def test_a_mode_that_only_looks_on_changes_no_bit():
    module, x = Mamba(6, 3), torch.randn(2, 5, 6)
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        seen = module(x)[0]
    assert torch.equal(seen, module(x)[0])
