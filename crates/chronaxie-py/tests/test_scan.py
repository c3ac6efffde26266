"""The functional forms of the scans against loops of PyTorch in float64."""

import chronaxie
import pytest
import torch
import torch.nn.functional as F
from chronaxie.torch import adaptive_scan, compat, linear_scan, selective_scan, selective_state_update
from conftest import assert_near


def law_linear(a, x, h0, reverse=False, reset=None):
    h = x.new_zeros(x.shape[:2]) if h0 is None else h0
    states = []
    for t in range(x.shape[2])[:: -1 if reverse else 1]:
        keep = 1.0 if reset is None else (reset[:, t, None] == 0).to(x.dtype)
        h = a[:, :, t] * (keep * h) + x[:, :, t]
        states.append(h)
    states = states[::-1] if reverse else states
    return (torch.stack(states, 2) if states else torch.zeros_like(x)), h


def law_selective(u, delta, A, B, C, D=None, z=None, bias=None, softplus=False, h0=None, rule="exp"):
    """Mamba's published reference semantics, written anew: weights ``[D, N]``, ``[B, N, T]`` or ``[B, G, N, T]``."""
    b, d, t = u.shape
    n = A.shape[1]

    def at(w, k):
        if w.dim() == 2:
            return w[None].expand(b, d, n)
        w = w[:, None] if w.dim() == 3 else w
        return w[..., k].repeat_interleave(d // w.shape[1], dim=1)

    delta = delta if bias is None else delta + bias[None, :, None]
    delta = F.softplus(delta, threshold=1e9) if softplus else delta
    h = torch.zeros(b, d, n, dtype=A.dtype) if h0 is None else h0
    out = []
    for k in range(t):
        w = delta[:, :, k, None] * A
        if rule == "exp":
            a, e = w.exp(), delta[:, :, k, None]
        elif rule == "zoh":
            a, e = w.exp(), (w.exp() - 1) / A
        else:
            a, e = (1 + w / 2) / (1 - w / 2), delta[:, :, k, None] / (1 - w / 2)
        h = a * h + e * at(B, k) * u[:, :, k, None]
        y = (h * at(C, k)).sum(-1)
        out.append(2 * y.real if A.is_complex() else y)
    y = torch.stack(out, 2)
    y = y if D is None else y + D[None, :, None] * u
    return (y if z is None else y * F.silu(z)), h


def law_adaptive(u, delta, B, C, theta, rho=None, D=None, z=None, silu=False, h0=None):
    v = F.silu(u) if silu else u
    b, d, n, t = theta.shape
    h = torch.zeros(b, d, n, dtype=torch.complex128) if h0 is None else h0
    out = []
    for k in range(t):
        radius = torch.ones_like(theta[..., k]) if rho is None else rho[..., k].exp()
        h = torch.polar(radius, theta[..., k]) * h + (delta[:, :, k] * v[:, :, k])[..., None] * B
        out.append((h * C).sum(-1).real)
    y = torch.stack(out, 2)
    y = y if D is None else y + D[None, :, None] * v
    return (y if z is None else y * F.silu(z)), h


WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def compare(ours, law, tensors, bound=2e-5):
    """Outputs and gradients of ``ours`` and of ``law`` over the same named tensors, the law's in float64."""
    exact = {k: None if t is None else t.detach().cpu().to(WIDE[t.dtype]).requires_grad_() for k, t in tensors.items()}
    made, wanted = ours(**tensors), law(**exact)
    seeds = [torch.randn_like(w) for w in wanted]
    for i, (m, w) in enumerate(zip(made, wanted)):
        assert_near(f"output {i}", torch.view_as_real(m) if m.is_complex() else m, torch.view_as_real(w) if w.is_complex() else w, bound)
    names = [k for k, t in tensors.items() if t is not None]
    got = torch.autograd.grad(made, [tensors[k] for k in names], [s.to(m) for s, m in zip(seeds, made)])
    law_got = torch.autograd.grad(wanted, [exact[k] for k in names], seeds)
    for k, g, w in zip(names, got, law_got):
        g, w = (torch.view_as_real(x) if x.is_complex() else x for x in (g.resolve_conj(), w.resolve_conj()))
        assert_near(f"grad {k}", g, w, bound)


def leaf(t, device):
    return t.to(device).requires_grad_()


@pytest.mark.parametrize("steps", [1, 16, 129, 300])
@pytest.mark.parametrize("kind", ["real", "complex", "reverse"])
def test_linear_scan_keeps_to_the_law(device, steps, kind):
    dtype = torch.complex64 if kind == "complex" else torch.float32
    a, x, h0 = torch.randn(2, 5, steps, dtype=dtype), torch.randn(2, 5, steps, dtype=dtype), torch.randn(2, 5, dtype=dtype)
    a = a / (1.05 * a.abs().max())
    reverse = kind == "reverse"
    tensors = {"a": leaf(a, device), "x": leaf(x, device), "h0": leaf(h0, device)}
    compare(
        lambda a, x, h0: linear_scan(a, x, h0, reverse=reverse), lambda a, x, h0: law_linear(a, x, h0, reverse), tensors, 1e-5
    )


def test_linear_scan_is_cut_anywhere_forgets_and_takes_packed_sequences(device):
    a, x = torch.rand(1, 7, 90, device=device), torch.randn(1, 7, 90, device=device)
    whole, last = linear_scan(a, x)
    first, carry = linear_scan(a[:, :, :37], x[:, :, :37])
    second, end = linear_scan(a[:, :, 37:], x[:, :, 37:], carry)
    assert_near("split", torch.cat([first, second], 2), whole, 1e-6)
    assert_near("last", end, last, 1e-6)
    cu = torch.tensor([0, 20, 20, 55, 90], dtype=torch.int32, device=device)
    packed, lasts = linear_scan(a, x, cu_seqlens=cu)
    for s, (i, j) in enumerate([(0, 20), (20, 20), (20, 55), (55, 90)]):
        h, h_last = linear_scan(a[:, :, i:j], x[:, :, i:j])
        assert_near(f"sequence {s}", packed[:, :, i:j], h, 1e-6)
        assert_near(f"state {s}", lasts[s], h_last[0], 1e-6)
    reset = torch.zeros(1, 90, dtype=torch.uint8, device=device)
    reset[0, [0, 30, 31]] = 1
    exact = law_linear(a.cpu().double(), x.cpu().double(), None, reset=reset.cpu())
    assert_near("reset", linear_scan(a, x, reset=reset)[0], exact[0], 1e-5)


@pytest.mark.parametrize("steps", [1, 33, 264])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 1.5e-2), (torch.float16, 2e-3)], ids=str)
def test_linear_scan_takes_halves_as_they_are(device, dtype, bound, reverse, steps):
    a, x, h0 = torch.rand(2, 5, steps), torch.randn(2, 5, steps), torch.randn(2, 5)
    for lay in (lambda t: t, lambda t: t.mT.contiguous().mT):
        tensors = {"a": lay(a.to(dtype)), "x": lay(x.to(dtype)), "h0": h0}
        leaves = {k: leaf(t, device) for k, t in tensors.items()}
        h, last = linear_scan(**leaves, reverse=reverse)
        assert h.dtype is dtype and last.dtype is torch.float32
        exact = {k: t.double().requires_grad_() for k, t in tensors.items()}
        law, law_last = law_linear(**exact, reverse=reverse)
        assert_near("h", h, law, bound)
        assert_near("h_last", last, law_last, 1e-5)
        seeds = torch.randn(h.shape).to(dtype), torch.randn(last.shape)
        got = torch.autograd.grad((h, last), list(leaves.values()), [s.to(device) for s in seeds])
        want = torch.autograd.grad((law, law_last), list(exact.values()), [s.double() for s in seeds])
        for k, g, w in zip(leaves, got, want):
            assert g.dtype is leaves[k].dtype
            assert_near(f"grad {k}", g, w, 1e-5 if k == "h0" else 2 * bound)
        if device.type == "cpu":
            wide, same = linear_scan(*(t.detach().float() for t in leaves.values()), reverse=reverse)
            assert torch.equal(h, wide.to(dtype)) and torch.equal(last, same), "float32's, rounded once"
    with pytest.raises(chronaxie.ChronaxieError, match="x holds f32, .* is needed"):
        linear_scan(a.to(device, dtype), x.to(device))


def test_linear_scan_of_halves_forgets_and_takes_packed_sequences(device):
    a, x = torch.rand(1, 7, 90, device=device).half(), torch.randn(1, 7, 90, device=device).half()
    cu = torch.tensor([0, 20, 20, 55, 90], dtype=torch.int32, device=device)
    packed, lasts = linear_scan(a, x, cu_seqlens=cu)
    assert packed.dtype is torch.float16 and lasts.dtype is torch.float32
    for s, (i, j) in enumerate([(0, 20), (20, 20), (20, 55), (55, 90)]):
        h, h_last = law_linear(a[:, :, i:j].cpu().double(), x[:, :, i:j].cpu().double(), None)
        assert_near(f"sequence {s}", packed[:, :, i:j], h, 2e-3)
        assert_near(f"state {s}", lasts[s], h_last[0], 1e-5)
    reset = torch.zeros(1, 90, dtype=torch.uint8, device=device)
    reset[0, [0, 30, 31]] = 1
    exact = law_linear(a.cpu().double(), x.cpu().double(), None, reset=reset.cpu())
    assert_near("reset", linear_scan(a, x, reset=reset)[0], exact[0], 2e-3)


@pytest.mark.parametrize("rule", ["exp", "zoh", "bilinear"])
@pytest.mark.parametrize("kind", ["mamba", "complex", "constant", "groups", "bare"])
def test_selective_scan_keeps_to_the_law(device, kind, rule):
    b, d, n, t = 2, 6, 4, 70
    wide = torch.complex64 if kind == "complex" else torch.float32
    A = -torch.rand(d, n) - 0.1
    A = torch.complex(A, 3 * torch.randn(d, n)) if kind == "complex" else A
    shape = {"constant": (d, n), "groups": (b, 3, n, t)}.get(kind, (b, n, t))
    tensors = {
        "u": torch.randn(b, d, t),
        "delta": torch.rand(b, d, t),
        "A": A,
        "B": torch.randn(shape, dtype=wide),
        "C": torch.randn(shape, dtype=wide),
        "h0": torch.randn(b, d, n, dtype=wide),
    }
    softplus = kind != "bare"
    if kind != "bare":
        tensors |= {"D": torch.randn(d), "z": torch.randn(b, d, t), "bias": torch.randn(d)}
    tensors = {k: leaf(v, device) for k, v in tensors.items()}

    def ours(u, delta, A, B, C, h0, D=None, z=None, bias=None):
        return selective_scan(u, delta, A, B, C, D, z, bias, softplus, True, h0=h0, discretisation=rule)

    compare(ours, lambda **t: law_selective(**t, softplus=softplus, rule=rule), tensors, 3e-5)


def test_selective_scan_takes_mambas_arguments_and_types(device):
    b, d, n, t = 2, 8, 16, 40
    u, delta, z = (torch.randn(b, d, t, device=device) for _ in range(3))
    A, (B, C) = -torch.rand(d, n, device=device), (torch.randn(b, 1, n, t, device=device) for _ in range(2))
    D, bias = torch.randn(d, device=device), torch.randn(d, device=device)
    plain = selective_scan(u, delta, A, B, C, D, z, bias, True)
    assert plain.shape == u.shape and plain.dtype is torch.float32
    out, last = selective_scan(u, delta, A, B, C, D, z, bias, True, True)
    assert torch.equal(out, plain) and last.shape == (b, d, n)
    for dtype, bound in ((torch.bfloat16, 1.5e-2), (torch.float16, 2e-3)):
        half = [x.to(dtype) for x in (u, delta, z, B, C)]
        low = selective_scan(half[0], half[1], A, half[3], half[4], D, half[2], bias, True)
        assert low.dtype is dtype
        exact = [x.double() for x in half]
        law = selective_scan(*(x.float() for x in exact[:2]), A, exact[3].float(), exact[4].float(), D, exact[2].float(), bias, True)
        assert_near(str(dtype), low, law, bound)
    # Complex weights come as pairs of reals too.
    a = torch.complex(A, torch.randn_like(A))
    wide = torch.randn(b, 1, n, t, dtype=torch.complex64, device=device)
    pairs = torch.view_as_real(wide).flatten(-2)
    assert torch.equal(selective_scan(u, delta.abs(), a, pairs, pairs), selective_scan(u, delta.abs(), a, wide, wide))


def test_a_step_is_a_scan_of_one_step(device):
    b, d, n = 3, 6, 5
    A, D, bias = -torch.rand(d, n, device=device), torch.randn(d, device=device), torch.randn(d, device=device)
    x, dt, z = (torch.randn(b, d, device=device) for _ in range(3))
    B, C, state = torch.randn(b, n, device=device), torch.randn(b, n, device=device), torch.randn(b, d, n, device=device)
    out, last = selective_scan(
        x[:, :, None], dt[:, :, None], A, B[:, :, None], C[:, :, None], D, z[:, :, None], bias, True, True, h0=state
    )
    held = state.clone()
    assert_near("out", selective_state_update(held, x, dt, A, B, C, D, z, bias, True), out[:, :, 0], 1e-6)
    assert_near("state", held, last, 1e-6)
    pool = torch.randn(7, d, n, device=device)
    table = torch.tensor([4, -1, 0], dtype=torch.int32, device=device)
    before = pool.clone()
    got = selective_state_update(pool, x, dt, A, B, C, D, z, bias, True, table)
    assert torch.equal(got[1], torch.zeros_like(got[1]))
    assert torch.equal(pool[[1, 2, 3, 5, 6]], before[[1, 2, 3, 5, 6]]) and not torch.equal(pool[4], before[4])


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("steps", [14, 300])
def test_adaptive_scan_keeps_to_the_law(device, steps, decay):
    b, d, n = 2, 4, 3
    tensors = {
        "u": torch.randn(b, d, steps),
        "delta": torch.rand(b, d, steps),
        "B": torch.randn(d, n, dtype=torch.complex64),
        "C": torch.randn(d, n, dtype=torch.complex64),
        "theta": torch.randn(b, d, n, steps),
        "D": torch.randn(d),
        "z": torch.randn(b, d, steps),
        "h0": torch.randn(b, d, n, dtype=torch.complex64),
    }
    if decay:
        tensors["rho"] = -torch.rand(b, d, n, steps)
    tensors = {k: leaf(v, device) for k, v in tensors.items()}
    compare(
        lambda u, delta, B, C, **o: adaptive_scan(u, delta, B, C, silu=True, **o),
        lambda u, delta, B, C, **o: law_adaptive(u, delta, B, C, silu=True, **o),
        tensors,
        1e-5,
    )


@pytest.mark.parametrize("biased", [False, True])
def test_adaptive_scan_makes_its_angles(device, biased):
    b, d, n, steps = 2, 4, 3, 300
    tensors = {
        "u": torch.randn(b, steps, d).transpose(1, 2),
        "delta": torch.rand(b, d, steps),
        "B": torch.randn(d, n, dtype=torch.complex64),
        "C": torch.randn(n, dtype=torch.complex64),
        "W": torch.randn(d, n, d) / d**0.5,
        "D": torch.randn(d),
        "h0": torch.randn(b, d, n, dtype=torch.complex64),
    }
    if biased:
        tensors["bias"] = torch.randn(d, n)

    def law(u, delta, B, C, W, bias=None, **o):
        theta = torch.einsum("dnr,brt->bdnt", W, u)
        theta = theta if bias is None else theta + bias[None, :, :, None]
        return law_adaptive(u, delta, B, C.expand(d, n), theta=theta, silu=True, **o)

    tensors = {k: leaf(v, device) for k, v in tensors.items()}
    compare(lambda u, delta, B, C, **o: adaptive_scan(u, delta, B, C, silu=True, **o), law, tensors, 2e-5)


@pytest.mark.parametrize("steps", [14, 2047, 2048, 2049, 5000])
def test_the_originals_operator_has_no_longest_length(device, steps):
    """b16 d16 n16, u in {0, 1}; from the same angles, relative to the running maximum of |h| times N."""
    b = d = n = 16 if steps == 14 else 4
    u = torch.randint(0, 2, (b, d, steps)).float()
    dt, z = torch.rand(b, d, steps), torch.randn(b, d, steps)
    W, bias, D = torch.randn(d, n, d) / d**0.5, torch.randn(d, n), torch.randn(d)
    B, C = torch.randn(n, dtype=torch.complex64), torch.randn(n, dtype=torch.complex64)
    y = compat.ssm_adaptive_interface(*(t.to(device) for t in (u, dt, W, bias, B, C, D, z)), unitary=True).cpu()
    # The angles in the float32 that the operator has them in: their rounding is not what is tested.
    theta = (torch.matmul(W.view(d * n, d), u).view(b, d, n, steps) + bias[None, :, :, None]).double()
    beta = torch.polar(F.softplus(B.real.double()), B.imag.double()).expand(d, n)
    gamma = torch.polar(F.softplus(C.real.double()), C.imag.double()).expand(d, n)
    law, _ = law_adaptive(u.double(), dt.double(), beta, gamma, theta, D=D.double(), z=z.double(), silu=True)
    if steps == 14:
        torch.testing.assert_close(y.double(), law, atol=7e-5, rtol=5e-5)
        return
    scale = (dt * F.silu(u)).double().cumsum(2).amax() * beta.abs().amax() * gamma.abs().amax() * n
    assert float((y.double() - law).abs().amax() / scale) < 3e-6
    assert float(y[:, :, -1].abs().amax()) > 0


def test_bad_input_is_a_sentence(device):
    u, A = torch.randn(2, 3, 5, device=device), torch.randn(3, 2, device=device)
    B = torch.randn(2, 2, 5, device=device)
    with pytest.raises(chronaxie.ShapeError, match=r"h0.shape = \(2, 4\) does not match"):
        linear_scan(u, u, torch.zeros(2, 4, device=device))
    with pytest.raises(chronaxie.ShapeError, match="x.shape"):
        linear_scan(u, u[:, :, :4])
    with pytest.raises(chronaxie.ConfigError, match="never decrease"):
        linear_scan(u[:1], u[:1], cu_seqlens=torch.tensor([0, 4, 3, 5], dtype=torch.int32))
    with pytest.raises(chronaxie.ShapeError, match="N = 300"):
        selective_scan(u, u, torch.randn(3, 300, device=device), torch.randn(2, 300, 5, device=device), B)
    with pytest.raises(chronaxie.ShapeError, match="groups"):
        selective_scan(u, u, A, torch.randn(2, 2, 2, 5, device=device), B)
    with pytest.raises(chronaxie.ConfigError, match="discretisation"):
        selective_scan(u, u, A, B, B, discretisation="euler")
    with pytest.raises(chronaxie.ConfigError, match="either theta or W"):
        adaptive_scan(u, u, A, A)
    with pytest.raises(chronaxie.ConfigError, match="chunk_length"):
        compat.ssm_adaptive_interface(u, u, torch.zeros(3, 2, 3), A, A, A, A, u, chunk_length=5)
    with pytest.raises(chronaxie.DtypeError, match="B holds float32, not complex64"):
        compat.ssm_adaptive_interface(u, u, torch.zeros(3, 2, 3), A, A[0], A[0], A[:, 0], u)


def test_double_backward_is_refused():
    a = torch.rand(1, 2, 3, requires_grad=True)
    h, _ = linear_scan(a, torch.ones(1, 2, 3))
    with pytest.raises(chronaxie.ChronaxieError, match="no double backward"):
        torch.autograd.grad(h.sum(), a, create_graph=True)


def test_compiled_graphs_hold_the_operator(device):
    u, delta, A = torch.randn(2, 3, 20, device=device), torch.rand(2, 3, 20, device=device), -torch.rand(3, 4, device=device)
    B = torch.randn(2, 4, 20, device=device)
    u.requires_grad_()

    def f(u):
        return selective_scan(u, delta, A, B, B).square().sum()

    whole = torch.compile(f, fullgraph=True, backend="aot_eager")
    (eager,) = torch.autograd.grad(f(u), u)
    (made,) = torch.autograd.grad(whole(u), u)
    assert torch.equal(eager, made)
