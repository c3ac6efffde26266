"""What PyTorch's own layers do: profiler ranges, one allocation of gradients, data parallelism, compiled steps, copies."""

import collections
import copy
import io
import os
import pickle
import socket
import subprocess
import sys

import pytest
import torch
import torch._dynamo.testing
from torch.utils.checkpoint import checkpoint

import chronaxie
import chronaxie.torch as ct
from chronaxie.torch import _framework, _op, _plan, wirings

B, T, D = 3, 5, 6
KINDS = {
    "true": lambda: ct.TrueLiquidTimeConstant(D, 16),
    "ltc": lambda: ct.LTC(D, wirings.AutoNCP(16, 4)),
    "cfc": lambda: ct.CfC(D, 16),
    "wired": lambda: ct.CfC(D, wirings.AutoNCP(16, 4), mixed_memory=True),
    "mixed": lambda: ct.LTC(D, wirings.AutoNCP(16, 4), mixed_memory=True),
}


@pytest.fixture(params=KINDS)
def net(request, device):
    return KINDS[request.param]().to(device)


def first(state):
    return state[0] if isinstance(state, tuple) else state


def step(net, x):
    """Outputs, and the gradient of everything."""
    net.zero_grad()
    x = x.detach().requires_grad_()
    out, state = net(x)
    (out.square().sum() + first(state).sum()).backward()
    return [out.detach(), x.grad, *(p.grad for p in net.parameters() if p.requires_grad)]


def test_copies_and_pickles_give_the_same_bits(net, device):
    x = torch.randn(B, T, D, device=device)
    want = step(net, x)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)):
        assert all(torch.equal(a, b) for a, b in zip(step(other, x), want))


def test_checkpointing_gives_the_same_bits(net, device):
    x = torch.randn(B, T, D, device=device, requires_grad=True)
    leaves = [x, *(p for p in net.parameters() if p.requires_grad)]
    outputs = lambda x: net(x)[0]  # noqa: E731
    results = []
    for run in (outputs, lambda x: checkpoint(outputs, x, use_reentrant=False), lambda x: checkpoint(outputs, x, use_reentrant=True)):
        net.zero_grad()
        x.grad = None
        out = run(x)
        out.square().sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(other, results[0]))


def test_gradients_accumulate_and_deterministic_mode_changes_nothing(net, device):
    x = torch.randn(B, T, D, device=device)
    want = [t.clone() for t in step(net, x)]
    torch.use_deterministic_algorithms(True)
    try:
        assert all(torch.equal(a, b) for a, b in zip(step(net, x), want))
    finally:
        torch.use_deterministic_algorithms(False)
    out, state = net(x)
    (out.square().sum() + first(state).sum()).backward()
    twice = [p.grad for p in net.parameters() if p.requires_grad]
    assert all(torch.equal(a, 2 * b) for a, b in zip(twice, want[2:]))


def test_gradients_of_parameters_are_one_allocation(net, device):
    if not _framework.FRAMEWORK.exchanges:
        pytest.skip("PyTorch before 2.10 has no table of functions for other libraries")
    *_, = grads = step(net, torch.randn(B, T, D, device=device))[2:]
    grads = [g for g in grads if g.numel()]
    spans = sorted((g.data_ptr(), g.data_ptr() + 4 * g.numel()) for g in grads)
    room = sum((4 * g.numel() + 127) // 128 * 128 for g in grads)
    gaps = [b[0] - a[1] for a, b in zip(spans, spans[1:])]
    # w_tau and A are views of what the native call sees, which autograd gives gradients of their own.
    assert all(0 <= gap < 128 for gap in gaps) and spans[-1][1] - spans[0][0] <= room
    # They outlive each other, and are plain tensors.
    kept = grads[0].clone()
    alone = grads[0]
    net.zero_grad()
    del grads
    assert torch.equal(alone, kept) and not alone._is_view() and alone.is_contiguous()
    alone.mul_(2)
    copy.deepcopy(alone)


def test_without_the_table_of_functions_the_bits_are_the_same(net, device, monkeypatch):
    x = torch.randn(B, T, D, device=device)
    want = step(net, x)
    monkeypatch.setattr(_plan, "FRAMEWORK", _framework.framework(exchange=False))
    other = copy.deepcopy(net)
    for module in other.modules():
        for name, value in vars(module).items():
            if isinstance(value, _plan.Layer):
                setattr(module, name, _plan.Layer(value.entry, value.text, value.native))
    _op.plain_layer.cache_clear()
    try:
        assert all(torch.equal(a, b) for a, b in zip(step(other, x), want))
    finally:
        _op.plain_layer.cache_clear()


def test_a_profiler_shows_our_names(net, device):
    x = torch.randn(B, T, D, device=device)
    entry = "cfc" if isinstance(net, ct.CfC) else "ltc"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step(net, x)
        with torch.no_grad():
            net(x)
    seen = collections.Counter()
    for event in profile.key_averages():
        seen[event.key] += event.count
    # With gradients and without.
    assert seen[f"chronaxie::{entry}"] == 2 and seen[f"chronaxie::{entry}Backward"] == 1, seen


def test_vmap_over_a_module_works_or_says_so(net, device):
    x = torch.randn(2, B, T, D, device=device)
    want = torch.stack([net(row)[0] for row in x])
    got = torch.vmap(lambda row: net(row)[0])(x)
    assert float((got - want).norm() / want.norm()) < 1e-5


def test_a_training_step_does_not_compile_again(net, device):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(net, fullgraph=True, backend=counter)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(5):
        optimizer.zero_grad()
        compiled(torch.randn(B, T, D, device=device))[0].square().sum().backward()
        optimizer.step()
    assert counter.frame_count == 1
    net.load_state_dict(net.state_dict())
    compiled(torch.randn(B, T, D, device=device))
    assert counter.frame_count == 1
    # Sizes that change make one graph more, which serves all.
    for steps in (6, 7, 8, 9):
        compiled(torch.randn(B, steps, D, device=device))
    assert counter.frame_count == 2


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_step_in_a_cuda_graph_has_the_same_bits(cuda, kind):
    net = KINDS[kind]().to(cuda)
    first_x, x = (torch.randn(B, T, D, device=cuda, requires_grad=True) for _ in range(2))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(net, first_x)
    torch.cuda.current_stream().wait_stream(side)
    net.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, state = net(x)
        (out.square().sum() + first(state).sum()).backward()
    held = [out, x.grad, *(p.grad for p in net.parameters() if p.requires_grad)]
    for seed in (1, 2):
        torch.manual_seed(seed)
        x.data.copy_(torch.randn(B, T, D))
        graph.replay()
        got = [t.detach().clone() for t in held]
        other = copy.deepcopy(net)
        for a, b in zip(got, step(other, x)):
            assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_step_on_a_side_stream_has_the_same_bits(cuda, kind):
    net, x = KINDS[kind]().to(cuda), torch.randn(B, T, D, device=cuda)
    want = [t.clone() for t in step(net, x)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # What waits is the stream, and not the caller; what is freed meanwhile is not another's at once.
        torch.cuda._sleep(300_000_000)
        for _ in range(2):
            got = step(net, x * 1)
        assert not side.query()
    side.synchronize()
    for a, b in zip(got, want):
        assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy", "jax"])
def test_arrays_on_a_gpu_go_forward(cuda, library):
    x, a = (torch.rand(2, 3, 5) for _ in range(2))
    (want,) = (chronaxie.forward("linear_scan", "B2_D3_T5", {"x": x.numpy(), "a": a.numpy()})["h"],)
    if library == "torch":
        put, back = lambda t: t.to(cuda), torch.from_dlpack
    elif library == "cupy":
        cupy = pytest.importorskip("cupy")
        put, back = lambda t: cupy.asarray(t.numpy()), lambda t: torch.from_numpy(cupy.asnumpy(cupy.from_dlpack(t)))
    else:
        jax = pytest.importorskip("jax")
        if not any(d.platform == "gpu" for d in jax.devices()):
            pytest.skip("JAX sees no CUDA device")
        put, back = lambda t: jax.numpy.asarray(t.numpy()), lambda t: torch.tensor(jax.device_get(jax.dlpack.from_dlpack(t)))
    got = chronaxie.forward("linear_scan", "B2_D3_T5", {"x": put(x), "a": put(a)})
    torch.testing.assert_close(back(got["h"]).cpu(), torch.from_dlpack(want), rtol=1e-6, atol=1e-6)


RANK = """
import sys, torch, torch.distributed as dist
import chronaxie.torch as ct
from chronaxie.torch import wirings
rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
torch.manual_seed(0)
nets = [ct.TrueLiquidTimeConstant(6, 16), ct.LTC(6, wirings.AutoNCP(16, 4)), ct.CfC(6, 9)]
x = torch.randn(4, 5, 6)
worst = 0.0
for net in nets:
    net(x)[0].square().mean().backward()
    want = [p.grad.clone() for p in net.parameters() if p.requires_grad]
    net.zero_grad()
    parallel = torch.nn.parallel.DistributedDataParallel(net)
    for _ in range(2):
        net.zero_grad()
        parallel(x[2 * rank : 2 * rank + 2])[0].square().mean().backward()
    got = [p.grad for p in net.parameters() if p.requires_grad]
    worst = max([worst, *(float((a - b).norm() / b.norm().clamp_min(1e-12)) for a, b in zip(got, want) if b.norm() > 1e-7)])
dist.destroy_process_group()
print(worst)
"""


def test_two_ranks_share_gradients():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(r), port], stdout=subprocess.PIPE, text=True, env=environment)
        for r in range(2)
    ]
    said = [r.communicate(timeout=180)[0] for r in ranks]
    assert all(float(s) < 1e-3 for s in said), said


def test_arrays_of_other_libraries_go_forward():
    numpy = pytest.importorskip("numpy")
    net = ct.LTC(D, wirings.AutoNCP(16, 4), output_mapping="none", input_mapping="none")
    cell = net.rnn_cell
    x = torch.randn(B, T, D)
    names = cell._names
    arrays = {n: p.detach().numpy() for n, p in zip(names, cell._sources())}
    masks = [m.detach().numpy() for m in cell._masks()]
    out = chronaxie.forward(
        "ltc", f"B{B}_T{T},unfolds=6,dt=1.0,input=none,outputs=4", {"x": x.numpy(), **arrays}, masks=masks
    )
    want, state = net(x)
    assert numpy.array_equal(numpy.from_dlpack(out["out"]), want.detach().numpy())
    assert torch.equal(torch.from_dlpack(out["final_state"]), state)
    assert set(out) == {"out", "final_state"}
    strided = numpy.asfortranarray(x.numpy())
    again = chronaxie.forward(
        "ltc", f"B{B}_T{T},unfolds=6,dt=1.0,input=none,outputs=4", {"x": strided, **arrays}, masks=masks
    )
    assert numpy.array_equal(numpy.from_dlpack(again["out"]), want.detach().numpy())
    h = chronaxie.forward("linear_scan", "B1_D1_T3", {n: numpy.full((1, 1, 3), 0.5, "f4") for n in ("a", "x")})
    assert numpy.from_dlpack(h["h"]).ravel().tolist() == [0.5, 0.75, 0.875]
    kept = numpy.from_dlpack(h["h"])
    del h
    assert kept.ravel().tolist() == [0.5, 0.75, 0.875]
    good = {n: numpy.full((1, 1, 3), 0.5, "f4") for n in ("a", "x")}
    for changes, kind, message in [
        ({"x": numpy.zeros((1, 1, 4), "f4")}, chronaxie.ShapeError, r"x.shape = \(1, 1, 4\) does not match \[B, D, T\]"),
        ({"x": numpy.zeros((1, 1, 3))}, chronaxie.DtypeError, "x holds f64, f32 is needed"),
        ({"y": numpy.zeros(1, "f4")}, chronaxie.ConfigError, "y is no input; there are a, x"),
        ({"x": None}, chronaxie.ConfigError, "x .* is not among the inputs"),
    ]:
        given = {n: v for n, v in {**good, **changes}.items() if v is not None}
        with pytest.raises(kind, match=message):
            chronaxie.forward("linear_scan", "B1_D1_T3", given)
