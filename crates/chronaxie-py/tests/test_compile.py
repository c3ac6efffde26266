"""The operators of torch.library: compiled and exported graphs."""

import subprocess
import sys

import pytest
import torch
from conftest import distance

import chronaxie.torch as ct
from chronaxie.torch import wirings


def make(kind, device):
    if kind == "true":
        return ct.TrueLiquidTimeConstant(6, 16).to(device)
    return ct.LTC(6, wirings.AutoNCP(16, 4), mixed_memory=kind == "mixed").to(device)


def state_of(hx):
    return hx[0] if isinstance(hx, tuple) else hx


@pytest.mark.parametrize("kind", ["true", "ltc", "mixed"])
def test_compiled_whole_it_gives_the_same_bits(device, kind):
    net, x = make(kind, device), torch.randn(3, 5, 6, device=device, requires_grad=True)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    leaves = [x, *(p for p in net.parameters() if p.requires_grad)]
    results = []
    for f in (net, compiled):
        out, hx = f(x)
        grads = torch.autograd.grad(out.square().sum() + state_of(hx).sum(), leaves)
        results.append([out, state_of(hx), *grads])
    assert all(torch.equal(a, b) for a, b in zip(*results))
    with torch.no_grad():
        assert torch.equal(compiled(x)[0], results[0][0])


def test_inductor_and_other_lengths(device):
    net, x = make("ltc", device), torch.randn(3, 5, 6, device=device)
    compiled = torch.compile(lambda x, spans: net(x * 2, timespans=spans)[0].tanh(), fullgraph=True, dynamic=True)
    for batch, steps in ((3, 5), (4, 9), (2, 3)):
        x, spans = torch.randn(batch, steps, 6, device=device), torch.rand(batch, steps, device=device) + 0.1
        want = net(x * 2, timespans=spans)[0].tanh()
        assert distance(compiled(x, spans), want) < 1e-6


def test_a_training_step_compiles(device):
    nets = []
    for compiled in (False, True):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(6, 6), make("true", device)).to(device)
        layer = net[1]
        step = torch.compile(net, fullgraph=True, backend="aot_eager") if compiled else net
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        x = torch.randn(3, 5, 6, device=device)
        for _ in range(3):
            optimizer.zero_grad()
            step(x)[0].square().sum().backward()
            optimizer.step()
        nets.append(layer.w.detach().clone())
    assert torch.equal(*nets)


def arguments(device, requires_grad):
    net = make("ltc", device)
    cell = net.rnn_cell
    tensors = [torch.randn(3, 5, 6), torch.randn(3, 16), torch.rand(3, 5) + 0.1]
    data = [t.to(device).requires_grad_(requires_grad) for t in tensors]
    params = [p.detach().clone().requires_grad_(requires_grad) for p in cell._sources()]
    x, h0, elapsed = data
    return net, (x, h0, None, elapsed, params, cell._synapse_lists, cell._options.text, cell._key, requires_grad)


def test_opcheck(device):
    _net, args = arguments(device, True)
    torch.library.opcheck(torch.ops.chronaxie.ltc, args)
    torch.library.opcheck(torch.ops.chronaxie.ltc, (args[0], None, None, None, *args[4:]))
    plain = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
    plain[4] = [p.detach() for p in args[4]]
    out, final, *saved = torch.ops.chronaxie.ltc(*plain)
    rest = (*plain[:6], saved, *plain[6:8])
    wants = [True, False, False, True, True]
    torch.library.opcheck(torch.ops.chronaxie.ltc_backward, ([torch.randn_like(out), None], *rest, wants))
    wants = [True, True, False, True, True]
    torch.library.opcheck(torch.ops.chronaxie.ltc_backward, ([None, torch.randn_like(final)], *rest, wants))


def test_an_operator_refuses_lists_of_other_synapses(device):
    _net, args = arguments(device, False)
    args = list(args)
    args[7] += 1
    with pytest.raises(ValueError, match="are not those that its key names"):
        torch.ops.chronaxie.ltc(*args)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["true", "ltc"])
def test_export(device, kind, strict):
    net, x = make(kind, device), torch.randn(3, 5, 6, device=device)
    dims = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("steps", min=2, max=512)}
    name = "x" if kind == "true" else "input"
    program = torch.export.export(net, (x,), dynamic_shapes={name: dims}, strict=strict)
    assert any(n.target is torch.ops.chronaxie.ltc.default for n in program.graph.nodes)
    for batch, steps in ((3, 5), (7, 11)):
        x = torch.randn(batch, steps, 6, device=device)
        assert torch.equal(program.module()(x)[0], net(x)[0])


ELSEWHERE = """
import sys, torch, chronaxie.torch
x, want = torch.load(sys.argv[2])
out = torch.export.load(sys.argv[1]).module()(x)[0]
print(torch.equal(out, want))
"""


def test_an_exported_program_runs_in_another_process(device, tmp_path):
    net, x = make("ltc", device), torch.randn(3, 5, 6, device=device)
    program = torch.export.export(net, (x,))
    torch.export.save(program, tmp_path / "net.pt2")
    torch.save((x, net(x)[0].detach()), tmp_path / "io.pt")
    files = [str(tmp_path / "net.pt2"), str(tmp_path / "io.pt")]
    ran = subprocess.run([sys.executable, "-c", ELSEWHERE, *files], capture_output=True, text=True, timeout=120)
    assert ran.stdout == "True\n", ran.stderr


def test_fake_and_meta_tensors_have_shapes():
    net = make("true", "cpu")
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        out, (h, _) = net(torch.randn(3, 5, 6))
        assert out.shape == (3, 5, 16) and h.shape == (3, 16)
    out, _ = net.to("meta")(torch.randn(3, 5, 6, device="meta"))
    assert out.shape == (3, 5, 16) and out.is_meta
