"""What modules and optimizers refuse when they are made, and scans of numbers of another precision: sentences with the values."""

import chronaxie
import pytest
import torch
from chronaxie import optim
from chronaxie.torch import (
    AUSSM, LRU, LTC, MLSTM, RGLRU, S4D, S5, CfC, CfCCell, LTCCell, Mamba, MinGRU, PolarSSM, TrueLiquidTimeConstant, WiredCfCCell,
    adaptive_scan, compat, linear_scan, mlstm, mlstm_step, selective_scan, selective_state_update, wirings,
)  # fmt: skip

NAN = float("nan")
WHOLE = "is not a whole number from 1 on"
MADE = [
    (lambda: LTC(0, 8), f"LTC: input_size = 0 {WHOLE}"),
    (lambda: LTC(-5, 8), f"LTC: input_size = -5 {WHOLE}"),
    (lambda: LTC(5.0, 8), f"LTC: input_size = 5.0 {WHOLE}"),
    (lambda: LTC(5, 0), f"LTC: units = 0 {WHOLE}"),
    (lambda: LTC(5, 8.0), "LTC: units = 8.0 is neither a whole number nor a wiring"),
    (lambda: LTC(5, 8, ode_unfolds=0), f"LTCCell: ode_unfolds = 0 {WHOLE}"),
    (lambda: LTC(5, 8, ode_unfolds=-1), f"LTCCell: ode_unfolds = -1 {WHOLE}"),
    (lambda: LTC(5, 8, ode_unfolds=2.5), f"LTCCell: ode_unfolds = 2.5 {WHOLE}"),
    (lambda: LTC(5, 8, ode_unfolds=2000), "unfolds = 2000 is not in 1 ..= 1024"),
    (lambda: LTC(5, 8, epsilon=-1.0), "LTCCell: epsilon = -1.0 is not a number from 0 on"),
    (lambda: LTC(5, 8, precision="half"), "precision `half` is not one of exact, fast"),
    (lambda: LTCCell(8, 3), "LTCCell: wiring = 8 is not a wiring"),
    (lambda: LTCCell(wirings.FullyConnected(8), -1), f"LTCCell: in_features = -1 {WHOLE}"),
    (lambda: wirings.Wiring(-3), f"wiring: units = -3 {WHOLE}"),
    (lambda: wirings.FullyConnected(8, output_dim=0), f"wiring: output_dim = 0 {WHOLE}"),
    (lambda: wirings.Random(8, output_dim=2.5), f"wiring: output_dim = 2.5 {WHOLE}"),
    (lambda: wirings.Bernoulli(8, 9), "output_dim"),
    (lambda: wirings.Wiring(8).set_output_dim(0), f"wiring: output_dim = 0 {WHOLE}"),
    (lambda: CfC(0, 8), f"CfC: input_size = 0 {WHOLE}"),
    (lambda: CfC(5, -8), f"CfC: units = -8 {WHOLE}"),
    (lambda: CfC(5, 8, backbone_dropout=2.0), "CfCCell: backbone_dropout = 2.0 is not within 0 .. 1"),
    (lambda: CfC(5, 8, backbone_dropout=-0.1), "CfCCell: backbone_dropout = -0.1 is not within 0 .. 1"),
    (lambda: CfC(5, 8, backbone_units=0), f"CfCCell: backbone_units = 0 {WHOLE}"),
    (lambda: CfC(5, 8, backbone_layers=-1), "CfCCell: backbone_layers = -1 is not a whole number from 0 on"),
    (lambda: CfC(5, 8, proj_size=-1), f"CfC: proj_size = -1 {WHOLE}"),
    (lambda: CfC(5, 8, precision="half"), "precision `half` is not one of exact, fast"),
    (lambda: CfCCell(5, 8, sparsity_mask=torch.ones(3, 3)), r"sparsity_mask.shape = \(3, 3\) does not match .* = \(128, 8\)"),
    (lambda: WiredCfCCell(0, wirings.AutoNCP(20, 4)), f"WiredCfCCell: input_size = 0 {WHOLE}"),
    (lambda: TrueLiquidTimeConstant(5, 2.5), f"ltc: hidden_dim = 2.5 {WHOLE}"),
    (lambda: TrueLiquidTimeConstant(5, 8, dt=0.0), "ltc: dt = 0.0 is not a number above 0"),
    (lambda: TrueLiquidTimeConstant(5, 8, ode_unfolds=2.5), "ltc: ode_unfolds = 2.5 is not a whole number"),
    (lambda: MLSTM(chunk_size=7), "chunk = 7 is not a multiple of 16"),
    (lambda: MLSTM(chunk_size=-16), f"MLSTM: chunk_size = -16 {WHOLE}"),
    (lambda: MLSTM(eps=NAN), "MLSTM: eps = nan is not a number from 0 on"),
    (lambda: S4D(4, 1000), "N = 1000 is not within 1 to 256"),
    (lambda: S4D(4, delta_min="a"), "delta_min = 'a' and delta_max = 0.1 are not the ends of a range"),
    (lambda: S5(4, "a"), "d_state = 'a' is not even and at least 2"),
    (lambda: LRU(4, 4, angle=-1.0), "LRU: angle = -1.0 is not a number above 0"),
    (lambda: RGLRU(4, "a"), "RGLRU: blocks = 'a' does not divide d_model = 4"),
    (lambda: Mamba(4, 300), "N = 300 is not within 1 to 256"),
    (lambda: Mamba(4, dt_init_floor=0.0), "Mamba: dt_init_floor = 0.0 is not a number above 0"),
    (lambda: AUSSM(4, 1000), "N = 1000 is not within 1 to 256"),
    (lambda: compat.Mamba(4, dt_scale=NAN), "Mamba: dt_scale = nan is not a number above 0"),
]


@pytest.mark.parametrize("make, says", MADE, ids=[says[:40] for _, says in MADE])
def test_modules_are_refused_when_they_are_made(make, says):
    with pytest.raises(ValueError, match=says):
        make()


OPTIONS = {
    optim.Shampoo: [dict(lr=-1.0), dict(lr="a"), dict(lr=float("inf")), dict(betas=("a", 0.9)), dict(precondition_frequency=2.5)],
    optim.SOAP: [dict(lr=None), dict(eps="a"), dict(shampoo_beta="a"), dict(max_preconditioner_dim=2.5)],
    optim.Muon: [dict(lr=torch.tensor(-1.0)), dict(momentum="a"), dict(steps=2.5), dict(adamw_lr="a"), dict(adamw_betas=(2, 2))],
    optim.KFAC: [dict(damping="a"), dict(damping=-1.0), dict(factor_frequency=1.5), dict(accumulation=1.5), dict(batch_axis="a")],
    optim.NaturalGradient: [dict(damping=None), dict(damping=-1.0), dict(accumulation="a"), dict(batch_axis=1.5), dict(weight_decay="a")],
}


@pytest.mark.parametrize("make", OPTIONS)
def test_optimizers_are_refused_when_they_are_made(make):
    layer = torch.nn.Linear(3, 2)
    for options in OPTIONS[make]:
        (name,) = options
        with pytest.raises(chronaxie.ConfigError, match=rf"^{make.__name__}: {name}"):
            make(layer if make in (optim.KFAC, optim.NaturalGradient) else layer.parameters(), **options)


@pytest.mark.parametrize("make", OPTIONS)
def test_optimizers_take_flags_for_flags_alone(make):
    layer = torch.nn.Linear(3, 2)
    by_layer = make in (optim.KFAC, optim.NaturalGradient)
    for option in ("maximize", "capturable") if by_layer else ("maximize", "capturable", "fused"):
        for value in (3, 1, None, "yes", torch.tensor(True)):
            with pytest.raises(chronaxie.ConfigError, match=rf"^{make.__name__}: {option} = .* is not True or False"):
                make(layer if by_layer else layer.parameters(), **{option: value})


def test_ends_of_sequences_are_whole_numbers():
    a, w = torch.rand(1, 4, 5), torch.rand(4, 3)
    angle = torch.rand(1, 4, 3, 5)
    q, gate = torch.rand(1, 1, 5, 16), torch.rand(1, 1, 5)
    calls = {
        "linear_scan": lambda cuts: linear_scan(a, a, cu_seqlens=cuts),
        "selective_scan": lambda cuts: selective_scan(a, a, -w, w, w, cu_seqlens=cuts),
        "adaptive_.*": lambda cuts: adaptive_scan(a, a, w, w, theta=angle, cu_seqlens=cuts),
        "mlstm_exp": lambda cuts: mlstm(q, q, q, gate, gate, cu_seqlens=cuts),
        "mlstm_sig": lambda cuts: mlstm(q, q, q, gate, gate, gate="sig", cu_seqlens=cuts),
    }
    for name, call in calls.items():
        for cuts, holds in ((torch.tensor([0.0, 2.5, 5.0]), "float32"), (torch.tensor([False, True, True]), "bool")):
            with pytest.raises(chronaxie.DtypeError, match=f"^{name}: cu_seqlens holds {holds}; ends of sequences are whole numbers"):
                call(cuts)
        with pytest.raises(TypeError, match=f"^{name}: cu_seqlens is of type list; a tensor of whole numbers is needed"):
            call([0, 5])
        call(torch.tensor([0, 2, 5]))


def test_the_mlstm_takes_a_number_for_eps():
    q, gate = torch.rand(1, 1, 5, 16), torch.rand(1, 1, 5)
    token, pre, c = q[:, :, 0], gate[..., 0], torch.zeros(1, 1, 16, 16)
    for eps in ("a", None, -1.0, NAN, float("inf"), True):
        with pytest.raises(chronaxie.ConfigError, match=f"^mlstm_exp: eps = {eps!r} is not a number from 0 on"):
            mlstm(q, q, q, gate, gate, eps=eps)
        with pytest.raises(chronaxie.ConfigError, match=f"^mlstm_step: eps = {eps!r} is not a number from 0 on"):
            mlstm_step(token, token, token, pre, pre, c, c[..., 0], c[..., 0, 0], eps)


def test_any_number_but_0_resets_a_scan():
    a = torch.rand(1, 4, 5)
    want = linear_scan(a, a, reset=torch.tensor([[0, 0, 1, 0, 0]]))[0]
    for mark in (0.5, 256, True):
        assert torch.equal(linear_scan(a, a, reset=torch.tensor([[0, 0, mark, 0, 0]]))[0], want), mark


BLOCKS = {
    "S4D": lambda: S4D(4, 2),
    "S5": lambda: S5(4, 2),
    "LRU": lambda: LRU(4, 2),
    "RGLRU": lambda: RGLRU(4),
    "MinGRU": lambda: MinGRU(4, 4),
    "Mamba": lambda: Mamba(4, 2),
    "AUSSM": lambda: AUSSM(4, 2),
    "PolarSSM": lambda: PolarSSM(4, 2),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_scans_compute_no_float64_in_float32(name):
    block, x = BLOCKS[name](), torch.randn(2, 3, 4)
    with pytest.raises(chronaxie.DtypeError, match=f"{name}: x holds float64; all is computed in float32, .*float32, bfloat16 or float16"):
        block(x.double())
    with pytest.raises(chronaxie.DtypeError, match=f"{name}: the parameters hold float64; .*float32, bfloat16 or float16"):
        block.double()(x)


def test_calls_compute_no_float64_in_float32():
    a, w, state = torch.rand(2, 4, 5), torch.rand(4, 3), torch.rand(2, 4, 3)
    q, gate = torch.rand(2, 1, 5, 16), torch.rand(2, 1, 5)
    angle = torch.rand(2, 4, 3, 5)
    token, pre, c = q[:, :, 0], gate[..., 0], torch.zeros(2, 1, 16, 16)
    for name, call in {
        "x": lambda: linear_scan(a, a.double()),
        "h0": lambda: linear_scan(a, a, a[..., 0].double()),
        "a": lambda: linear_scan(a.to(torch.complex128), a),
        "delta": lambda: selective_scan(a, a.double(), -w, w, w),
        "A": lambda: selective_scan(a, a, -w.double(), w, w),
        "theta": lambda: adaptive_scan(a, a, w, w, theta=angle.double()),
        "dt": lambda: selective_state_update(state, a[..., 0], a[..., 0].double(), -w, w[:2], w[:2]),
        "i": lambda: mlstm(q, q, q, gate.double(), gate),
        "f": lambda: mlstm_step(token, token, token, pre, pre.double(), c, c[..., 0], c[..., 0, 0]),
    }.items():
        with pytest.raises(chronaxie.DtypeError, match=rf": {name} holds (float64|complex128); all is computed in float32"):
            call()


def test_a_network_of_float64_takes_float32():
    net = TrueLiquidTimeConstant(4, 5).double()
    x = torch.randn(2, 3, 4)
    assert torch.equal(net(x)[0], net(x.double())[0])
