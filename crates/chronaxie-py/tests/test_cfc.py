"""CfC, CfCCell and WiredCfCCell against ncps itself: its weights, its float64 results, its autograd."""

import copy

import pytest
import torch
from conftest import assert_near, distance, gradients

import chronaxie
import chronaxie.torch as ct
from chronaxie.torch import wirings

theirs = pytest.importorskip("ncps.torch")
their_wirings = pytest.importorskip("ncps.wirings")

B, T, D = 4, 6, 5
# As layers/cfc/spec.rs declares it for outputs, relative to the norm of the float64 result.
OUTPUT = 5e-6
KINDS = {
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
    {"batch_first": False, "return_sequences": False, "mixed_memory": True},
]
BACKBONES = [
    {"backbone_layers": 0},
    {"backbone_layers": 3, "backbone_units": 10, "activation": "gelu"},
    {"backbone_units": 17, "activation": "silu"},
    {"backbone_layers": 2, "backbone_units": 8, "activation": "relu"},
    {"activation": "tanh", "mixed_memory": True},
    {"proj_size": 2},
    {"proj_size": 3, "return_sequences": False, "mixed_memory": True},
]


def pair(name, device="cpu", **options):
    """Their network in float64 and ours in float32, with the same weights."""
    args = KINDS[name]

    def units(module):
        return args[0] if name == "units" else getattr(module, name)(*args)

    a, b = theirs.CfC(D, units(their_wirings), **options), ct.CfC(D, units(wirings), **options)
    with torch.no_grad():
        for p in a.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn_like(p))
    b.load_state_dict(a.state_dict())
    return a.double(), b.to(device)


def zeros(net, x):
    """ncps makes its own in float32, whatever the input."""
    h = torch.zeros(x.shape[0 if net.batch_first else 1], net.state_size, dtype=x.dtype)[0 if x.dim() == 2 else slice(None)]
    return (h, h) if net.use_mixed else h


def compare(a, b, x, hx, device, theirs_of=None, **more):
    x64, x32 = x.double().requires_grad_(), x.to(device).requires_grad_()
    states = [] if hx is None else list(hx) if isinstance(hx, tuple) else [hx]
    wide, ours = [s.double().requires_grad_() for s in states], [s.to(device).requires_grad_() for s in states]
    form = (lambda s: None) if hx is None else tuple if isinstance(hx, tuple) else (lambda s: s[0])
    out64, h64 = a(x64, zeros(a, x64) if hx is None else form(wide), **{k: v.double() for k, v in more.items()})
    out, h = b(x32, form(ours), **{k: v.to(device) for k, v in more.items()})
    flat = lambda o, s: (o, *s) if isinstance(s, tuple) else (o, s)  # noqa: E731
    results64, results = flat(out64, h64), flat(out, h)
    for name, r, law in zip(("out", "h", "c"), results, results64):
        assert r.dtype is torch.float32
        assert_near(name, r, law, OUTPUT)
    seeds = [torch.randn(r.shape) for r in results]
    extra = lambda x, s: {"x": x, **{f"state{i}": t for i, t in enumerate(s)}}  # noqa: E731
    want = gradients(a, extra(x64, wide), results64, [s.double() for s in seeds])
    got = gradients(b, extra(x32, ours), results, [s.to(device) for s in seeds])
    assert want.keys() == got.keys()
    for name, law in want.items():
        assert_near(name, got[name], law, 2e-5)


@pytest.mark.parametrize("mode", ["default", "pure", "no_gate"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_results_and_gradients_are_those_of_ncps(device, name, options, mode):
    a, b = pair(name, device, mode=mode, **options)
    x = torch.randn((B, T, D) if options.get("batch_first", True) else (T, B, D))
    compare(a, b, x, None, device)
    h = 0.5 * torch.randn(B, b.state_size)
    compare(a, b, x, (h, torch.randn_like(h)) if options.get("mixed_memory") else h, device)


@pytest.mark.parametrize("mode", ["default", "pure", "no_gate"])
@pytest.mark.parametrize("options", BACKBONES, ids=str)
def test_backbones_and_projections(device, options, mode):
    a, b = pair("units", device, mode=mode, **options)
    compare(a, b, torch.randn(B, T, D), None, device)


def test_a_projection_of_a_wiring(device):
    a, b = pair("AutoNCP", device, proj_size=3)
    compare(a, b, torch.randn(B, T, D), None, device)


@pytest.mark.parametrize("name", ["units", "NCP"])
@pytest.mark.parametrize("mixed", [False, True])
def test_without_a_batch(device, mixed, name):
    a, b = pair(name, device, mixed_memory=mixed)
    h = torch.randn(b.state_size)
    compare(a, b, torch.randn(T, D), (h, torch.randn_like(h)) if mixed else h, device)
    compare(a, b, torch.randn(T, D), None, device, timespans=torch.rand(T) + 0.1)


@pytest.mark.parametrize("mode", ["default", "pure", "no_gate"])
@pytest.mark.parametrize("name", ["units", "NCP"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_timespans_of_a_batch_are_those_of_its_rows(device, batch_first, name, mode):
    # ncps itself cannot take a batch of them: https://github.com/mlech26l/ncps/issues/81
    a, b = pair(name, device, batch_first=batch_first, mode=mode)
    x, spans = torch.randn(B, T, D), torch.rand(B, T) * 2 + 0.05
    lay = (lambda t: t) if batch_first else (lambda t: t.transpose(0, 1).contiguous())
    with torch.no_grad():
        rows = []
        for i in range(B):
            row = lay(x[i : i + 1].double())
            rows.append(a(row, zeros(a, row), lay(spans[i : i + 1].double()))[0])
        want = torch.cat(rows, 0 if batch_first else 1)
        for given in (spans, spans.unsqueeze(-1), spans.double()):
            assert_near("out", b(lay(x).to(device), timespans=lay(given).to(device))[0], want, OUTPUT)
    # And their gradient, against our float64 path.
    grads = []
    for net, dtype in ((copy.deepcopy(b).double(), torch.float64), (b, torch.float32)):
        t = lay(spans).to(device, dtype).requires_grad_()
        net(lay(x).to(device, dtype), timespans=t)[0].sum().backward()
        grads.append(t.grad)
    assert grads[0].abs().max() > 0
    assert_near("elapsed", grads[1], grads[0])


@pytest.mark.parametrize("mode", ["default", "pure", "no_gate"])
@pytest.mark.parametrize("name", KINDS)
def test_one_seed_of_pytorch_gives_one_network_and_state_dicts_go_both_ways(name, mode):
    nets = []
    for module, wiring in ((theirs, their_wirings), (ct, wirings)):
        torch.manual_seed(3)
        units = KINDS[name][0] if name == "units" else getattr(wiring, name)(*KINDS[name])
        nets.append(module.CfC(D, units, mode=mode, mixed_memory=True, proj_size=None))
    a, b = nets
    assert list(a.state_dict()) == list(b.state_dict())
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    a.load_state_dict(b.state_dict())
    b.load_state_dict(a.state_dict())


@pytest.mark.parametrize("mode", ["default", "pure", "no_gate"])
def test_cells(device, mode):
    a = theirs.CfCCell(D, 7, mode=mode)
    b = ct.CfCCell(D, 7, mode=mode)
    w, v = theirs.WiredCfCCell(D, their_wirings.AutoNCP(16, 4), mode), ct.WiredCfCCell(D, wirings.AutoNCP(16, 4), mode)
    for law, ours, hidden in ((a, b, 7), (w, v, 16)):
        assert list(law.state_dict()) == list(ours.state_dict())
        ours.load_state_dict(law.state_dict())
        law.double()
        ours.to(device)
        x, h = torch.randn(B, D), torch.randn(B, hidden)
        for elapsed in (1.0, 0.3, torch.tensor(0.7), torch.rand(B, 1) + 0.1):
            wide = elapsed.double() if isinstance(elapsed, torch.Tensor) else elapsed
            want = law(x.double(), h.double(), wide)
            got = ours(x.to(device), h.to(device), elapsed.to(device) if isinstance(elapsed, torch.Tensor) else elapsed)
            assert_near("out", got[0], want[0], OUTPUT)
            assert_near("state", got[1], want[1], OUTPUT)
        rows = torch.rand(B) + 0.1
        one = ours(x.to(device), h.to(device), rows.to(device))[0]
        assert torch.equal(one, ours(x.to(device), h.to(device), rows.view(B, 1).to(device))[0])
    assert (v.state_size, v.sensory_size, v.motor_size, v.output_size, v.layer_sizes) == (16, D, 4, 4, w.layer_sizes)


def test_a_mask_of_ones_own(device):
    mask = (torch.rand(D + 7, 7) < 0.5).float() * -2
    a = theirs.CfCCell(D, 7, backbone_layers=0, sparsity_mask=mask.numpy())
    b = ct.CfCCell(D, 7, backbone_layers=0, sparsity_mask=mask)
    b.load_state_dict(a.state_dict())
    x, h = torch.randn(B, D), torch.randn(B, 7)
    assert_near("out", b.to(device)(x.to(device), h.to(device))[0], a.double()(x.double(), h.double(), 1.0)[0], OUTPUT)


def test_dropout_takes_part_in_training_only():
    net = ct.CfC(D, 7, backbone_layers=2, backbone_units=40, backbone_dropout=0.5)
    x = torch.randn(B, T, D)
    assert not torch.equal(net(x)[0], net(x)[0])
    net.eval()
    assert torch.equal(net(x)[0], net(x)[0])
    a = theirs.CfC(D, 7, backbone_layers=2, backbone_units=40, backbone_dropout=0.5)
    net.load_state_dict(a.state_dict())
    assert distance(net(x)[0], a.eval()(x)[0]) < 1e-5


def test_dtypes_copies_and_configs(device):
    for units in (9, wirings.NCP(6, 5, 3, 4, 3, 4, 4)):
        net = ct.CfC(D, units, mixed_memory=True).to(device)
        x = torch.randn(B, T, D, device=device)
        want = net(x)[0]
        assert torch.equal(copy.deepcopy(net)(x)[0], want)
        again = ct.CfC.from_config(net.get_config()).to(device)
        again.load_state_dict(net.state_dict())
        assert torch.equal(again(x)[0], want)
        half = copy.deepcopy(net).to(torch.bfloat16)
        out, (h, c) = half(x.bfloat16())
        assert out.dtype is torch.bfloat16 and h.dtype is c.dtype is torch.float32
        assert distance(out, want) < 5e-2
        with torch.autocast(device.type, dtype=torch.bfloat16):
            out, (h, _) = net(x @ torch.eye(D, device=device))
        assert out.dtype is h.dtype is torch.float32


def test_compiled_and_exported_it_gives_the_same_bits(device):
    for options in ({}, {"mixed_memory": True}):
        for units in (9, wirings.AutoNCP(16, 4)):
            net, x = ct.CfC(D, units, **options).to(device), torch.randn(B, T, D, device=device, requires_grad=True)
            leaves = [x, *(p for p in net.parameters() if p.requires_grad)]
            results = []
            for f in (net, torch.compile(net, fullgraph=True, backend="aot_eager")):
                out, hx = f(x)
                state = hx[0] if isinstance(hx, tuple) else hx
                results.append([out, state, *torch.autograd.grad(out.square().sum() + state.sum(), leaves)])
            assert all(torch.equal(a, b) for a, b in zip(*results))
    program = torch.export.export(net, (x.detach(),))
    assert any(n.target is torch.ops.chronaxie.cfc.default for n in program.graph.nodes)
    assert torch.equal(program.module()(x)[0], results[0][0])


@pytest.mark.parametrize("mode", ["default", "pure", "no_gate"])
def test_the_functional_form_is_the_module(device, mode):
    for units in (9, wirings.AutoNCP(16, 4)):
        net = ct.CfC(D, units, mode=mode, mixed_memory=True).to(device)
        cells = []
        cell = net.rnn_cell
        for c in [cell] if isinstance(units, int) else [getattr(cell, f"layer_{l}") for l in range(cell.num_layers)]:
            heads = ("ff1",) if mode == "pure" else ("ff1", "ff2", "time_a", "time_b")
            made = {h: (getattr(c, h).weight, getattr(c, h).bias) for h in heads}
            if c.backbone is not None:
                made["backbone"] = [(m.weight, m.bias) for m in c.backbone if isinstance(m, torch.nn.Linear)]
            if mode == "pure":
                made |= {"w_tau": c.w_tau[0], "A": c.A[0]}
            cells.append(made if c.sparsity_mask is None else {**made, "mask": c.sparsity_mask})
        lstm = net.lstm.input_map.weight, net.lstm.input_map.bias, net.lstm.recurrent_map.weight
        x = torch.randn(B, T, D, device=device)
        out, h, c = ct.cfc(x, cells, lstm=lstm, mode=mode)
        want, (wh, wc) = net(x)
        assert torch.equal(out, want) and torch.equal(h, wh) and torch.equal(c, wc)
    with pytest.raises(chronaxie.ConfigError, match="cell 0 holds ff1; "):
        ct.cfc(x, [{"ff1": cells[0]["ff1"]}], mode="no_gate")
    with pytest.raises(chronaxie.ConfigError, match="c0 is given without an LSTM"):
        ct.cfc(x, cells, c0=h, mode=mode)


def test_sentences():
    net, x = ct.CfC(D, 9), torch.randn(B, T, D)
    for call, kind, message in [
        (lambda: net(torch.randn(B, T, 7)), chronaxie.ShapeError, r"CfC: input.shape = \(4, 6, 7\) does not match .* D = 5"),
        (lambda: net(x, torch.zeros(B, 8)), chronaxie.ShapeError, r"shape \(4, 8\), which does not match \[B, H\] = \(4, 9\)"),
        (lambda: net(x, timespans=torch.ones(B, T + 1)), chronaxie.ShapeError, r"timespans.shape = \(4, 7\) does not fit"),
        (lambda: ct.CfC(D, 9, mixed_memory=True)(x, torch.zeros(B, 9)), chronaxie.ConfigError, r"pair \(h, c\)"),
        (lambda: ct.CfC(D, 9, mode="gated"), chronaxie.ConfigError, "mode `gated` is not one of default, pure, no_gate"),
        (lambda: ct.CfC(D, 9, activation="elu"), chronaxie.ConfigError, "activation `elu` is not one of lecun_tanh"),
        (lambda: ct.CfC(D, wirings.AutoNCP(16, 4), backbone_units=3), chronaxie.ConfigError, "backbone_units cannot be used"),
        (lambda: ct.CfC(D, 9, return_sequences=False)(x[:, :0]), chronaxie.ShapeError, "no last output"),
    ]:
        with pytest.raises(kind, match=message):
            call()
