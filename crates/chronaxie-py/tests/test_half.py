"""LTC with x and outputs in float16 and bfloat16: widened exactly, rounded once, everything between in float32."""

import copy

import pytest
import torch
from conftest import GRADIENT, OUTPUT, assert_near, distance
from test_ltc import CASES, D, H, B, T, inputs, law

import chronaxie
import chronaxie.torch as ct
from chronaxie.torch import wirings

# Half a unit in the last place.
ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
HALVES = pytest.mark.parametrize("dtype", ROUNDING, ids=str)


def halved(device, dtype, **case):
    """Tensors with x in ``dtype``, and the same with x in float32."""
    tensors, options = inputs(device, **case)
    x = tensors["x"].detach().to(dtype)
    return dict(tensors, x=x.clone().requires_grad_()), dict(tensors, x=x.float().requires_grad_()), options


@HALVES
@pytest.mark.parametrize("case", CASES)
def test_they_are_the_results_of_float32_rounded_once(device, dtype, case):
    half, single, options = halved(device, dtype, **CASES[case])
    (out, state), (want, want_state) = ct.ltc(**half, **options), ct.ltc(**single, **options)
    assert out.dtype is dtype and state.dtype is torch.float32
    assert torch.equal(out, want.to(dtype)) and torch.equal(state, want_state)
    seeds = torch.randn_like(out), torch.randn_like(state)
    got = torch.autograd.grad((out, state), list(half.values()), seeds)
    same = torch.autograd.grad((want, want_state), list(single.values()), [s.float() for s in seeds])
    for name, g, w in zip(half, got, same):
        assert g.dtype is half[name].dtype and torch.equal(g, w.to(g.dtype)), name
    with torch.no_grad():
        assert torch.equal(ct.ltc(**half, **options)[0], out)


@HALVES
def test_they_follow_the_law(device, dtype):
    half, _, options = halved(device, dtype, **CASES["elapsed"])
    out, state = ct.ltc(**half, **options)
    wide, out64, state64 = law(half, options)
    assert_near("out", out, out64, OUTPUT + ROUNDING[dtype])
    assert_near("state", state, state64, OUTPUT)
    seed = torch.randn_like(out)
    got = torch.autograd.grad(out, list(half.values()), seed)
    want = torch.autograd.grad(out64, list(wide.values()), seed.cpu().double())
    for name, g, w in zip(half, got, want):
        assert_near(name, g, w, GRADIENT + ROUNDING[dtype] if name == "x" else None)


@HALVES
def test_strides_and_gradients_that_are_not_there(device, dtype):
    half, _, options = halved(device, dtype, h0=True)
    out, state = ct.ltc(**half, **options)
    turned = half["x"].detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    strided = ct.ltc(**dict(half, x=turned), **options)
    assert torch.equal(strided[0], out)
    seed = torch.randn_like(out)
    (want,) = torch.autograd.grad(out, half["x"], seed, retain_graph=True)
    wide = torch.stack([seed, seed], -1)[..., 0]
    assert torch.equal(torch.autograd.grad(strided[0], turned, wide)[0], want)
    # Of the final state alone, so that the gradient of out is a zero.
    last = torch.autograd.grad(state.sum(), [half["x"], half["h0"], half["w"]])
    assert [g.dtype for g in last] == [dtype, torch.float32, torch.float32] and all(g.any() for g in last)


@HALVES
def test_parameters_states_and_times_may_be_half_too(device, dtype):
    tensors, options = inputs(device, h0=True, elapsed=True)
    half = {n: t.detach().to(dtype).requires_grad_() for n, t in tensors.items()}
    single = {n: t.detach().float() for n, t in half.items()}
    out, final = ct.ltc(**half, **options)
    assert out.dtype is dtype and final.dtype is torch.float32
    assert torch.equal(out, ct.ltc(**single, **options)[0].to(dtype))
    out.sum().backward()
    assert all(t.grad.dtype is dtype and t.grad.isfinite().all() for t in half.values())
    mixed = ct.ltc(**dict(half, x=single["x"]), **options)
    assert mixed[0].dtype is torch.float32 and torch.equal(mixed[0].to(dtype), out)


@HALVES
def test_autocast_stores_x_in_its_type_and_computes_in_float32(device, dtype):
    half, single, options = halved(device, dtype, h0=True)
    x = single["x"].detach() * 1.001
    want, state = ct.ltc(**dict(half, x=x.to(dtype)), **options)
    leaf = x.clone().requires_grad_()
    with torch.autocast(device.type, dtype=dtype):
        out, final = ct.ltc(**dict(half, x=leaf), **options)
        assert ct.ltc(**dict(half, x=leaf @ torch.eye(D, device=device)), **options)[0].dtype is dtype
        other = torch.float16 if dtype is torch.bfloat16 else torch.bfloat16
        assert ct.ltc(**dict(half, x=x.to(other)), **options)[0].dtype is dtype
        double = {n: t.detach().double() for n, t in single.items()}
        assert ct.ltc(**double, **options)[0].dtype is torch.float64
    assert out.dtype is dtype and final.dtype is torch.float32
    assert torch.equal(out, want) and torch.equal(final, state)
    out.sum().backward()
    assert leaf.grad.dtype is torch.float32 and leaf.grad.any()
    if device.type == "cuda":
        # That of another device is none of its business.
        with torch.autocast("cpu", dtype=dtype):
            assert ct.ltc(**dict(half, x=x), **options)[0].dtype is torch.float32


def networks(device):
    return {
        "ltc": ct.LTC(D, wirings.AutoNCP(16, 4)).to(device),
        "mixed": ct.LTC(D, wirings.AutoNCP(16, 4), mixed_memory=True).to(device),
        "true": ct.TrueLiquidTimeConstant(D, 16).to(device),
    }


def first(hx):
    return hx[0] if isinstance(hx, tuple) else hx


@HALVES
@pytest.mark.parametrize("kind", ["ltc", "mixed", "true"])
def test_modules_take_and_give_them(device, dtype, kind):
    net = networks(device)[kind]
    x = torch.randn(B, T, D, device=device).to(dtype)
    want, want_hx = net(x.float())
    out, hx = net(x)
    assert out.dtype is dtype and first(hx).dtype is torch.float32
    assert torch.equal(out, want.to(dtype)) and torch.equal(first(hx), first(want_hx))
    # A state goes in as it came out, and nothing of it is lost on the way.
    start, hx = net(x[:, :3])
    rest, last = net(x[:, 3:], hx)
    assert torch.equal(torch.cat([start, rest], 1), out) and torch.equal(first(last), first(want_hx))
    with torch.autocast(device.type, dtype=dtype):
        cast, hx = net(x.float())
    assert torch.equal(cast, out) and first(hx).dtype is torch.float32
    whole = copy.deepcopy(net).to(dtype)
    out, hx = whole(x)
    assert out.dtype is dtype and first(hx).dtype is torch.float32
    assert distance(out, want) < 5e-2
    out.sum().backward()
    assert all(p.grad is None or p.grad.dtype is dtype for p in whole.parameters())


@HALVES
def test_the_mixed_memory_is_pytorchs_cell_ahead_of_each_step(device, dtype):
    net = networks(device)["mixed"]
    x = torch.randn(B, T, D, device=device).to(dtype)
    out, (h, c) = net(x)
    assert out.dtype is dtype and h.dtype is c.dtype is torch.float32
    state = cell = torch.zeros(B, 16, device=device)
    for t in range(T):
        state, cell = net.lstm(net.lstm.input_map(x[:, t].float()), (state, cell))
        want, state = net.rnn_cell(x[:, t], state)
        assert distance(out[:, t], want) < 2 * ROUNDING[dtype]
    assert distance(h, state) < 1e-5 and distance(c, cell) < 1e-5


@HALVES
def test_a_cell_keeps_its_state_in_float32(device, dtype):
    net = networks(device)["ltc"]
    x = torch.randn(B, T, D, device=device).to(dtype)
    want, last = net(x)
    h = torch.zeros(B, 16, device=device)
    for t in range(T):
        out, h = net.rnn_cell(x[:, t], h)
        assert h.dtype is torch.float32 and torch.equal(out, want[:, t])
    assert torch.equal(h, last)


@HALVES
@pytest.mark.parametrize("kind", ["ltc", "mixed", "true"])
def test_compiled_whole_they_give_the_same_bits(device, dtype, kind):
    net = networks(device)[kind]
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for autocast in (False, True):
        x = torch.randn(3, 5, D, device=device).to(torch.float32 if autocast else dtype).requires_grad_()
        leaves = [x, *(p for p in net.parameters() if p.requires_grad)]
        results = []
        for f in (net, compiled):
            with torch.autocast(device.type, dtype=dtype, enabled=autocast):
                out, hx = f(x)
            assert out.dtype is dtype
            grads = torch.autograd.grad(out.float().square().sum() + first(hx).sum(), leaves)
            results.append([out, first(hx), *grads])
        assert all(torch.equal(a, b) for a, b in zip(*results))


@HALVES
def test_opcheck_export_and_shapes_without_values(device, dtype):
    net = networks(device)["ltc"]
    cell = net.rnn_cell
    x, h0, elapsed = torch.randn(3, 5, D).to(dtype), torch.randn(3, 16), torch.rand(3, 5) + 0.1
    x, h0, elapsed = (t.to(device).requires_grad_() for t in (x, h0, elapsed))
    params = [p.detach().clone().requires_grad_() for p in cell._sources()]
    rest = params, cell._synapse_lists, cell._options.text, cell._key
    torch.library.opcheck(torch.ops.chronaxie.ltc, (x, h0, None, elapsed, *rest, True))
    plain = [t.detach() for t in params]
    data = x.detach(), h0.detach(), None, elapsed.detach(), plain, cell._synapse_lists
    out, final, *saved = torch.ops.chronaxie.ltc(*data, *rest[2:], True)
    assert [t.dtype for t in (out, final, *saved)] == [dtype, *[torch.float32] * (1 + len(saved))] and saved
    wants = [True, True, False, True, True]
    for grads in ([torch.randn_like(out), None], [None, torch.randn_like(final)]):
        torch.library.opcheck(torch.ops.chronaxie.ltc_backward, (grads, *data, saved, *rest[2:], wants))
    program = torch.export.export(net, (x.detach(),))
    assert torch.equal(program.module()(x.detach())[0], net(x)[0])
    meta, hx = copy.deepcopy(net).to("meta")(torch.randn(3, 5, D, device="meta", dtype=dtype))
    assert meta.dtype is dtype and hx.dtype is torch.float32 and meta.shape == (3, 5, 4)


@HALVES
def test_eager_paths_round_as_the_native_one(device, dtype):
    half, single, options = halved(device, dtype)
    x = half["x"].detach()
    fixed = {n: t.detach() for n, t in half.items() if n != "x"}

    def loss(x):
        return ct.ltc(x, **fixed, **options)[0].float().square().sum()

    got = torch.func.grad(loss)(x)
    (want,) = torch.autograd.grad(ct.ltc(**half, **options)[0].float().square().sum(), [half["x"]])
    # Both seeds are twice a rounded output.
    assert got.dtype is dtype and distance(got, want) < 4 * ROUNDING[dtype]
    net = networks(device)["true"]
    out = net(x)[0]
    net._force_torchscript = True
    eager = net(x)[0]
    assert eager.dtype is dtype and distance(eager, out) < 2 * ROUNDING[dtype]
    with torch.autocast(device.type, dtype=dtype):
        assert torch.equal(net(x.float())[0], eager)


@HALVES
@pytest.mark.parametrize("sizes", [(0, 3), (2, 0), (1, 1)])
def test_empty_batches_and_sequences(device, dtype, sizes):
    tensors, options = inputs(device)
    tensors["x"] = torch.randn(*sizes, D, device=device).to(dtype).requires_grad_()
    out, state = ct.ltc(**tensors, **options)
    assert out.shape == (*sizes, H) and out.dtype is dtype
    (out.sum() + state.sum()).backward()
    assert tensors["x"].grad.dtype is dtype and all(t.grad.isfinite().all() for t in tensors.values())


def test_sentences(device):
    half, _, options = halved(device, torch.bfloat16)

    def refuse(kind, message, **changes):
        with pytest.raises(kind, match=message):
            ct.ltc(**{**half, **changes}, **options)

    refuse(chronaxie.ShapeError, r"x.shape = \(5, 7, 9\) does not match \[B, T, D\] = \(5, 7, 6\)", x=half["x"].new_zeros(B, T, 9))
    refuse(chronaxie.DtypeError, "x holds int32 and the parameters float32: x must be", x=half["x"].int())
    cell = networks(device)["ltc"].rnn_cell
    x, params = half["x"].detach(), [p.detach() for p in cell._sources()]
    params[1] = params[1].half()
    with pytest.raises(chronaxie.DtypeError, match="mu holds f16, f32 is needed"):
        torch.ops.chronaxie.ltc(x, None, None, None, params, cell._synapse_lists, cell._options.text, cell._key, False)
