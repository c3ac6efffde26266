"""LTC and LTCCell against ncps itself: its weights, its float64 results, its autograd."""

import copy

import pytest
import torch
from conftest import OUTPUT, assert_near, distance, gradients

import chronaxie
import chronaxie.torch as ct
from chronaxie.torch import wirings

theirs = pytest.importorskip("ncps.torch")
their_wirings = pytest.importorskip("ncps.wirings")

B, T, D = 4, 6, 5
WIRINGS = {
    "units": (9,),
    "FullyConnected": (9, 4),
    "Random": (12, 3, 0.4),
    "NCP": (6, 5, 3, 4, 3, 4, 4),
    "AutoNCP": (16, 4),
}
OPTIONS = [
    {},
    {"mixed_memory": True},
    {"batch_first": False},
    {"return_sequences": False},
    {"input_mapping": "linear", "output_mapping": "linear"},
    {"input_mapping": "none", "output_mapping": "none"},
    {"ode_unfolds": 3, "epsilon": 1e-6},
    {"implicit_param_constraints": False},
    {"batch_first": False, "return_sequences": False, "mixed_memory": True},
]


def pair(name, device="cpu", **options):
    """Their network in float64 and ours in float32, with the same weights."""
    args = WIRINGS[name]

    def wiring(module):
        return args[0] if name == "units" else getattr(module, name)(*args)

    a, b = theirs.LTC(D, wiring(their_wirings), **options), ct.LTC(D, wiring(wirings), **options)
    b.load_state_dict(a.state_dict())
    with torch.no_grad():
        for p in b.parameters():
            if p.requires_grad:
                p.add_(0.05 * torch.randn_like(p))
    a.load_state_dict(b.state_dict())
    a = a.double()
    # ncps keeps a second table of its parameters, which a conversion leaves behind.
    a.rnn_cell._params = dict(a.rnn_cell.named_parameters())
    return a, b.to(device)


def zeros(net, x):
    """ncps makes its own in float32, whatever the input."""
    h = torch.zeros(x.shape[0 if net.batch_first else 1], net.state_size, dtype=x.dtype)[0 if x.dim() == 2 else slice(None)]
    return (h, h) if net.use_mixed else h


def compare(a, b, x, hx, device, **more):
    x64 = x.double().requires_grad_()
    x32 = x.to(device).requires_grad_()
    states = [] if hx is None else list(hx) if isinstance(hx, tuple) else [hx]
    wide = [s.double().requires_grad_() for s in states]
    ours = [s.to(device).requires_grad_() for s in states]
    form = (lambda s: None) if hx is None else tuple if isinstance(hx, tuple) else (lambda s: s[0])
    out64, h64 = a(x64, zeros(a, x64) if hx is None else form(wide), **{k: v.double() for k, v in more.items()})
    out, h = b(x32, form(ours), **{k: v.to(device) for k, v in more.items()})
    flat = lambda o, s: (o, *s) if isinstance(s, tuple) else (o, s)  # noqa: E731
    results64, results = flat(out64, h64), flat(out, h)
    for name, r, law in zip(("out", "h", "c"), results, results64):
        assert_near(name, r, law, OUTPUT)
    seeds = [torch.randn(r.shape) for r in results]
    extra = lambda x, s: {"x": x, **{f"state{i}": t for i, t in enumerate(s)}}  # noqa: E731
    want = gradients(a, extra(x64, wide), results64, [s.double() for s in seeds])
    got = gradients(b, extra(x32, ours), results, [s.to(device) for s in seeds])
    assert want.keys() == got.keys()
    scale = max(float(g.norm()) for g in want.values())
    for name, law in want.items():
        # Where a gradient vanishes beside the others, f32 cannot resolve it, whoever computes it: README, Limits.
        if float(law.norm()) > 1e-4 * scale:
            assert_near(name, got[name], law)
        else:
            assert float((got[name].double().cpu() - law).norm()) < 1e-6 * scale, name


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", WIRINGS)
def test_results_and_gradients_are_those_of_ncps(device, name, options):
    a, b = pair(name, device, **options)
    shape = (B, T, D) if options.get("batch_first", True) else (T, B, D)
    x = torch.randn(shape)
    compare(a, b, x, None, device)
    h = 0.5 * torch.randn(B, b.state_size)
    compare(a, b, x, (h, torch.randn_like(h)) if options.get("mixed_memory") else h, device)


@pytest.mark.parametrize("mixed", [False, True])
def test_without_a_batch(device, mixed):
    a, b = pair("AutoNCP", device, mixed_memory=mixed)
    h = torch.randn(16)
    compare(a, b, torch.randn(T, D), (h, torch.randn(16)) if mixed else h, device)
    compare(a, b, torch.randn(T, D), None, device, timespans=torch.rand(T) + 0.1)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("batch_first", [True, False])
def test_timespans_of_a_batch_are_those_of_its_rows(device, batch_first, mixed):
    # ncps itself cannot take a batch of them: https://github.com/mlech26l/ncps/issues/81
    a, b = pair("NCP", device, batch_first=batch_first, mixed_memory=mixed)
    x, spans = torch.randn(B, T, D), torch.rand(B, T) * 2 + 0.05
    lay = (lambda t: t) if batch_first else (lambda t: t.transpose(0, 1).contiguous())
    with torch.no_grad():
        rows = []
        for i in range(B):
            row = lay(x[i : i + 1].double())
            rows.append(a(row, zeros(a, row), lay(spans[i : i + 1].double()))[0])
        want = torch.cat(rows, 0 if batch_first else 1)
        for given in (spans, spans.unsqueeze(-1), spans.double()):
            out, _ = b(lay(x).to(device), timespans=lay(given).to(device))
            assert_near("out", out, want, OUTPUT)
    # And their gradient, against our float64 path.
    grads = []
    for net, dtype in ((copy.deepcopy(b).double(), torch.float64), (b, torch.float32)):
        t = lay(spans).to(device, dtype).requires_grad_()
        net(lay(x).to(device, dtype), timespans=t)[0].sum().backward()
        grads.append(t.grad)
    assert grads[0].abs().max() > 0
    assert_near("elapsed", grads[1], grads[0])


def test_one_seed_of_pytorch_gives_one_network():
    for name in WIRINGS:
        torch.manual_seed(3)
        a = theirs.LTC(D, WIRINGS[name][0] if name == "units" else getattr(their_wirings, name)(*WIRINGS[name]))
        torch.manual_seed(3)
        b = ct.LTC(D, WIRINGS[name][0] if name == "units" else getattr(wirings, name)(*WIRINGS[name]))
        assert list(a.state_dict()) == list(b.state_dict())
        assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


@pytest.mark.parametrize("mixed", [False, True])
def test_state_dicts_go_both_ways(mixed):
    a, b = theirs.LTC(D, their_wirings.AutoNCP(16, 4), mixed_memory=mixed), ct.LTC(D, wirings.AutoNCP(16, 4), mixed_memory=mixed)
    assert set(a.state_dict()) == set(b.state_dict())
    a.load_state_dict(b.state_dict())
    b.load_state_dict(a.state_dict())
    # Another wiring of the same sizes comes with its masks.
    c = theirs.LTC(D, their_wirings.AutoNCP(16, 4, seed=7), mixed_memory=mixed)
    b.load_state_dict(c.state_dict())
    assert b.synapse_count == c.synapse_count
    x = torch.randn(B, T, D)
    assert distance(b(x)[0], c(x)[0]) < 1e-5


def test_their_wirings_are_taken_as_they_are():
    wiring = their_wirings.NCP(6, 5, 3, 4, 3, 4, 4)
    a, b = theirs.LTC(D, wiring), ct.LTC(D, wiring)
    b.load_state_dict(a.state_dict())
    x = torch.randn(B, T, D)
    assert distance(b(x)[0], a(x)[0]) < 1e-5
    again = ct.LTC.from_config(b.get_config())
    again.load_state_dict(b.state_dict())
    assert torch.equal(again(x)[0], b(x)[0])


@pytest.mark.parametrize("constraints", [False, True])
def test_cells(device, constraints):
    a = theirs.LTCCell(their_wirings.AutoNCP(16, 4), D, implicit_param_constraints=constraints)
    b = ct.LTCCell(wirings.AutoNCP(16, 4), D, implicit_param_constraints=constraints)
    assert list(a.state_dict()) == list(b.state_dict())
    b.load_state_dict(a.state_dict())
    a = a.double()
    a._params = dict(a.named_parameters())
    b.to(device)
    x, h = torch.randn(B, D), torch.randn(B, 16)
    for elapsed in (1.0, 0.3, torch.tensor(0.7), torch.rand(B, 1) + 0.1):
        wide = elapsed.double() if isinstance(elapsed, torch.Tensor) else elapsed
        want = a(x.double(), h.double(), wide)
        given = elapsed.to(device) if isinstance(elapsed, torch.Tensor) else elapsed
        got = b(x.to(device), h.to(device), given)
        assert_near("out", got[0], want[0], OUTPUT)
        assert_near("state", got[1], want[1], OUTPUT)
    flat = torch.rand(B) + 0.1
    rows = b(x.to(device), h.to(device), flat.to(device))[0]
    assert torch.equal(rows, b(x.to(device), h.to(device), flat.view(B, 1).to(device))[0])
    with pytest.raises(chronaxie.ShapeError, match=r"elapsed_time of shape \(3,\)"):
        b(x.to(device), h.to(device), torch.ones(3))
    assert (b.state_size, b.sensory_size, b.motor_size, b.output_size) == (16, D, 4, 4)
    assert b.sensory_synapse_count == int(b.sensory_sparsity_mask.sum())


def test_weight_constraints_clip_what_they_should():
    cell = ct.LTCCell(wirings.FullyConnected(4), 3)
    with torch.no_grad():
        for p in cell.parameters():
            p.sub_(9)
    cell.apply_weight_constraints()
    for name, p in cell.named_parameters():
        clipped = name in ("w", "sensory_w", "cm", "gleak")
        assert bool((p >= 0).all()) == clipped, name
    free = ct.LTCCell(wirings.FullyConnected(4), 3, implicit_param_constraints=True)
    with torch.no_grad():
        free.w.sub_(2)
    free.apply_weight_constraints()
    assert (free.w < 0).any()


def test_sentences():
    net = ct.LTC(D, wirings.AutoNCP(16, 4))
    x = torch.randn(B, T, D)
    for call, kind, message in [
        (lambda: net(torch.randn(B, T, 7)), chronaxie.ShapeError, r"input.shape = \(4, 6, 7\) does not match .* with D = 5"),
        (lambda: net(x, torch.zeros(B, 9)), chronaxie.ShapeError, r"shape \(4, 9\), which does not match \[B, H\] = \(4, 16\)"),
        (lambda: net(x[0], torch.zeros(1, 16)), chronaxie.ShapeError, r"does not match \[H\] = \(16,\)"),
        (lambda: net(x, timespans=torch.ones(B, T + 1)), chronaxie.ShapeError, r"timespans.shape = \(4, 7\) does not fit"),
        (lambda: ct.LTC(D, 9, mixed_memory=True)(x, torch.zeros(B, 9)), chronaxie.ConfigError, r"pair \(h, c\)"),
        (lambda: ct.LTC(D, 9, ode_unfolds=0)(x), chronaxie.ConfigError, "unfolds = 0"),
        (lambda: ct.LTC(D, 9, input_mapping="affin"), chronaxie.ConfigError, "mapping `affin`|affin"),
        (lambda: ct.LTCCell(wirings.FullyConnected(4)), chronaxie.ConfigError, "give in_features"),
        (lambda: ct.LTC(D, 9, return_sequences=False)(x[:, :0]), chronaxie.ShapeError, "no last output"),
    ]:
        with pytest.raises(kind, match=message):
            call()


def test_a_wiring_serves_layers_of_other_inputs():
    wiring = wirings.AutoNCP(16, 4)
    first, second = ct.LTC(D, wiring), ct.LTC(4, wiring)
    assert second(first(torch.randn(B, T, D))[0])[0].shape == (B, T, 4)
    assert (first.sensory_size, second.sensory_size) == (D, 4)
