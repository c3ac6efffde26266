"""The modules of the state-space models: what they compute, states between calls, learning."""

import re

import chronaxie
import pytest
import torch
import torch.nn.functional as F
from chronaxie.torch import AUSSM, LRU, RGLRU, S4D, S5, Mamba, MinGRU, PolarSSM
from chronaxie.torch._ssm import hippo
from conftest import assert_near
from test_scan import law_adaptive, law_linear, law_selective

MODELS = {
    "S4D": lambda: S4D(6, 5),
    "S4D inverse, bilinear": lambda: S4D(6, 5, frequencies="inverse", discretisation="bilinear"),
    "S5": lambda: S5(6, 8),
    "LRU": lambda: LRU(6, 7, least=0.4, most=0.95),
    "RGLRU": lambda: RGLRU(6, blocks=2),
    "MinGRU": lambda: MinGRU(6, 6),
    "Mamba": lambda: Mamba(6, 4),
    "AUSSM": lambda: AUSSM(6, 4),
    "AUSSM without convolution": lambda: AUSSM(6, 4, d_conv=0, double_bias=True),
    "PolarSSM": lambda: PolarSSM(6, 4),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_sequence_in_two_calls_is_the_sequence(device, name):
    model = MODELS[name]().to(device)
    x = torch.randn(3, 50, 6, device=device)
    whole, last = model(x)
    first, state = model(x[:, :21])
    second, end = model(x[:, 21:], state)
    assert whole.shape == (3, 50, 6)
    assert_near(name, torch.cat([first, second], 1), whole, 2e-5)
    for a, b in zip(*(s if isinstance(s, tuple) else (s,) for s in (end, last))):
        if b is not None:
            assert_near(f"{name}: state", *(torch.view_as_real(t) if t.is_complex() else t for t in (a, b)), 2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_learns(device, name):
    model = MODELS[name]().to(device)
    x = torch.randn(2, 40, 6, device=device)
    y, _ = model(x)
    (y * torch.randn_like(y)).sum().backward()
    for n, p in model.named_parameters():
        assert p.grad is not None and torch.isfinite(torch.view_as_real(p.grad) if p.is_complex() else p.grad).all(), n
        assert float(p.grad.abs().sum()) > 0, n
    assert model.state_dict().keys() == MODELS[name]().state_dict().keys()


def _double(model):
    return {k: v.detach().cpu().to(torch.complex128 if v.is_complex() else torch.float64) for k, v in model.state_dict().items()}


def test_s4d_is_its_recurrence():
    model, x = S4D(3, 4), torch.randn(2, 30, 3)
    p = _double(model)
    A = torch.complex(-p["log_rate"].exp(), p["frequency"])
    u = x.double().transpose(1, 2)
    delta = p["log_delta"].exp()[None, :, None].expand_as(u)
    y, _ = law_selective(u, delta, A, torch.ones_like(A), torch.view_as_complex(p["C"]), p["D"], rule="zoh")
    assert_near("S4D", model(x)[0], y.transpose(1, 2), 1e-5)


def test_lru_and_s5_are_their_recurrences():
    x = torch.randn(2, 30, 3)
    model = LRU(3, 5)
    p = _double(model)
    gate = torch.polar((-p["nu"].exp()).exp(), p["phi"].exp())
    drive = (1 - gate.abs() ** 2).sqrt() * (x.to(torch.complex128) @ torch.view_as_complex(p["B"]).t())
    h, _ = law_linear(gate[None, :, None].expand(2, 5, 30), drive.transpose(1, 2), None)
    y = (h.transpose(1, 2) @ torch.view_as_complex(p["C"]).t()).real + p["D"] * x
    assert_near("LRU", model(x)[0], y, 1e-5)
    model = S5(3, 8)
    p = _double(model)
    rate, delta = torch.view_as_complex(p["Lambda"]), p["log_delta"].exp()
    gate = (rate * delta).exp()
    drive = (gate - 1) / rate * (x.to(torch.complex128) @ torch.view_as_complex(p["B"]).t())
    h, _ = law_linear(gate[None, :, None].expand(2, 4, 30), drive.transpose(1, 2), None)
    y = 2 * (h.transpose(1, 2) @ torch.view_as_complex(p["C"]).t()).real + p["D"] * x
    assert_near("S5", model(x)[0], y, 1e-5)


def test_hippo_has_its_known_first_eigenvalues():
    values, vectors = hippo(4)
    p = (torch.arange(4, dtype=torch.float64) + 0.5).sqrt()
    normal = p[:, None] * p[None, :]
    matrix = normal.triu(1) - normal.tril(-1) - 0.5 * torch.eye(4, dtype=torch.float64)
    assert torch.allclose(matrix.to(vectors.dtype) @ vectors, vectors * values)
    assert (values.imag > 0).all()


def test_gated_recurrences_are_what_their_papers_say():
    x = torch.randn(2, 25, 4)
    model = RGLRU(4)
    p = _double(model)
    wide = x.double()
    gate = lambda n: torch.sigmoid(wide @ p[f"{n}.weight"][0] + p[f"{n}.bias"])  # noqa: E731
    a = torch.sigmoid(p["Lambda"]) ** (8 * gate("recurrence_gate"))
    h, _ = law_linear(a.transpose(1, 2), ((1 - a**2).sqrt() * gate("input_gate") * wide).transpose(1, 2), None)
    assert_near("RGLRU", model(x)[0], h.transpose(1, 2), 1e-5)
    opened = torch.sigmoid(p["Lambda"]) ** 8
    assert (opened > 0.899).all() and (opened < 0.9991).all()
    model = MinGRU(4, 3)
    p = _double(model)
    z = torch.sigmoid(wide @ p["gate.weight"].t() + p["gate.bias"])
    c = wide @ p["candidate.weight"].t() + p["candidate.bias"]
    h, _ = law_linear((1 - z).transpose(1, 2), (z * c).transpose(1, 2), None)
    assert_near("MinGRU", model(x)[0], h.transpose(1, 2), 1e-5)


def test_mamba_is_its_block():
    model, x = Mamba(4, 3), torch.randn(2, 20, 4)
    p = _double(model)
    inner, z = (x.double() @ p["in_proj.weight"].t()).transpose(1, 2).chunk(2, 1)
    u = F.silu(F.conv1d(F.pad(inner, (3, 0)), p["conv1d.weight"], p["conv1d.bias"], groups=8))
    delta, B, C = (u.transpose(1, 2) @ p["x_proj.weight"].t()).split([1, 3, 3], -1)
    delta = (delta @ p["dt_proj.weight"].t()).transpose(1, 2)
    A = -p["A_log"].exp()
    y, _ = law_selective(u, delta, A, B.transpose(1, 2), C.transpose(1, 2), p["D"], z, p["dt_proj.bias"], True)
    assert_near("Mamba", model(x)[0], y.transpose(1, 2) @ p["out_proj.weight"].t(), 1e-5)
    step = F.softplus(p["dt_proj.bias"])
    assert (step > 9e-5).all() and (step < 0.11).all()


@pytest.mark.parametrize("double_bias", [False, True])
def test_aussm_is_its_block(double_bias):
    model, x = AUSSM(4, 3, double_bias=double_bias), torch.randn(2, 20, 4)
    p = _double(model)
    u, z = (x.double() @ p["in_proj.weight"].t()).transpose(1, 2).chunk(2, 1)
    u = F.conv1d(F.pad(u, (3, 0)), p["conv1d.weight"], p["conv1d.bias"], groups=4)
    raw = u.transpose(1, 2) @ p["x_proj.weight"].t() @ p["dt_proj.weight"].t() + (1 + double_bias) * p["dt_proj.bias"]
    theta = (p["xA_proj.weight"] @ u + p["xA_proj.bias"][:, None]).view(2, 4, 3, 20)
    polar = lambda w: torch.polar(F.softplus(w.real), w.imag).expand(4, 3)  # noqa: E731
    y, _ = law_adaptive(u, F.softplus(raw).transpose(1, 2), polar(p["B"]), polar(p["C"]), theta, D=p["D"], z=z, silu=True)
    assert_near("AUSSM", model(x)[0], y.transpose(1, 2) @ p["out_proj.weight"].t(), 2e-5)


def test_states_of_polar_stay_bounded_and_unitary_ones_do_not_decay():
    torch.manual_seed(1)
    polar = PolarSSM(4, 3, d_conv=0)
    with torch.no_grad():
        _, (_, h) = polar(torch.randn(1, 2000, 4))
        radius = (-F.softplus(polar.radius)).exp()
    assert (radius > 0.89).all() and (radius < 0.9995).all() and float(h.abs().amax()) < 1e3
    unitary = AUSSM(4, 3, d_conv=0)
    h0 = torch.polar(torch.ones(1, 4, 3), torch.randn(1, 4, 3))
    with torch.no_grad():
        _, (_, h) = unitary(torch.zeros(1, 4096, 4), (None, h0))
    assert_near("|h|", h.abs(), torch.ones(1, 4, 3), 1e-6)


def test_bad_sizes_are_sentences():
    with pytest.raises(chronaxie.ShapeError, match=r"S4D: x.shape = \(2, 3\)"):
        S4D(3)(torch.zeros(2, 3))
    with pytest.raises(chronaxie.ConfigError, match="d_state = 5"):
        S5(3, 5)
    with pytest.raises(chronaxie.ConfigError, match="blocks = 4"):
        RGLRU(6, blocks=4)
    with pytest.raises(chronaxie.ConfigError, match="frequencies"):
        S4D(3, frequencies="random")


@pytest.mark.parametrize("block", [Mamba, AUSSM, PolarSSM])
def test_a_block_takes_no_steps_at_all_and_keeps_its_state(block):
    torch.manual_seed(0)
    m, x = block(8), torch.randn(2, 5, 8)
    _, state = m(x)
    y, same = m(x[:, :0], state)
    assert y.shape == (2, 0, 8)
    assert all(torch.equal(a, b) for a, b in zip(state, same))
    (m(x[:, :0])[0].sum() * 0.0).backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("block", [AUSSM, PolarSSM])
def test_complex_parameters_stay_complex_where_a_block_is_cast(block, dtype, recwarn):
    torch.manual_seed(0)
    m, x = block(8), torch.randn(2, 6, 8)
    with torch.no_grad():
        want = m(x)[0]
    before = m.B.detach().clone()
    m.to(dtype)
    assert m.B.dtype == torch.complex64 and torch.equal(m.B, before) and m.out_proj.weight.dtype == dtype
    assert not [w for w in recwarn if "imaginary" in str(w.message)]
    y = m(x.to(dtype))[0]
    assert_near("y", y.float(), want, 2e-2 if dtype == torch.bfloat16 else 2e-3)
    y.float().sum().backward()
    assert m.B.grad.dtype == torch.complex64


@pytest.mark.parametrize("module", [S4D, S5, LRU, RGLRU, Mamba])
def test_whole_numbers_are_refused_not_rounded_to(module):
    with pytest.raises(chronaxie.DtypeError, match=f"{module.__name__}: x holds int64"):
        module(8)(torch.ones(2, 3, 8, dtype=torch.int64))


def test_a_scan_reads_the_imaginary_part_of_a_conjugate_as_what_it_is():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, dtype=torch.complex64).conj().imag
    a = torch.rand(2, 3, 7)
    assert x.is_neg() and torch.equal(chronaxie.torch.linear_scan(a, x)[0], chronaxie.torch.linear_scan(a, x.resolve_neg())[0])


@pytest.mark.parametrize("module", [chronaxie.torch.LTC, chronaxie.torch.CfC, chronaxie.torch.TrueLiquidTimeConstant])
@pytest.mark.parametrize("learning", [False, True])
def test_a_recurrence_reads_the_imaginary_part_of_a_conjugate_as_what_it_is(module, learning):
    torch.manual_seed(0)
    m, x = module(8, 8), torch.randn(2, 5, 8, dtype=torch.complex64).conj().imag
    with torch.set_grad_enabled(learning):
        y, plain = m(x)[0], m(x.resolve_neg())[0]
    assert torch.equal(y, plain)
    if learning:
        parameters, g = [p for p in m.parameters() if p.requires_grad], torch.randn(2, 5, 8, dtype=torch.complex64).conj().imag
        got, want = (torch.autograd.grad(t, parameters, c, allow_unused=True) for t, c in ((y, g), (plain, g.resolve_neg())))
        assert all(a is b or torch.equal(a, b) for a, b in zip(got, want))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Mamba(8, dt_rank="foo"), "Mamba: dt_rank = 'foo' is neither"),
        (lambda: Mamba(0), "Mamba: d_model = 0 is not a whole number from 1 on"),
        (lambda: Mamba(8, d_conv=0), "Mamba: d_conv = 0"),
        (lambda: Mamba(8, d_state=1.5), "Mamba: d_state = 1.5"),
        (lambda: Mamba(8, dt_min=0.0), "Mamba: dt_min = 0.0 and dt_max = 0.1 are not the ends of a range of positive numbers"),
        (lambda: S4D(8, discretisation="x"), "S4D: discretisation `x` is not one of zoh, bilinear"),
        (lambda: S4D(8, 0), "S4D: d_state = 0"),
        (lambda: S4D(8, delta_min=-1.0), "S4D: delta_min = -1.0"),
        (lambda: S5(8, delta_min=0.2), "S5: delta_min = 0.2 and delta_max = 0.1"),
        (lambda: LRU(8, least=0.9, most=0.1), "LRU: least = 0.9 and most = 0.1 are not the ends of a range of positive numbers up to 1"),
        (lambda: LRU(8, most=1.5), "LRU: least = 0.0 and most = 1.5"),
        (lambda: RGLRU(0), "RGLRU: d_model = 0"),
        (lambda: MinGRU(4, 0), "MinGRU: hidden_size = 0"),
        (lambda: AUSSM(8, dt_rank=0), "AUSSM: dt_rank = 0"),
        (lambda: PolarSSM(8, d_conv=-1), "PolarSSM: d_conv = -1"),
        (lambda: PolarSSM(8, least=float("nan")), "PolarSSM: least = nan"),
    ],
)
def test_sizes_and_ranges_that_make_no_module_are_refused(make, says):
    with pytest.raises(chronaxie.ConfigError, match=re.escape(says)):
        make()


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_module_learns_alike(name):
    torch.manual_seed(3)
    model, x = MODELS[name](), torch.randn(2, 5, 6)
    compiled = torch.compile(model, backend="aot_eager")
    grads = [torch.autograd.grad(m(x)[0].square().sum(), list(model.parameters())) for m in (model, compiled)]
    for a, b in zip(*grads):
        assert_near(name, *(torch.view_as_real(t) if t.is_complex() else t for t in (b, a)), 2e-5)
