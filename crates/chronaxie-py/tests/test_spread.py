"""Packed factors, steps that a device counts, and blocks that are spread over processes."""

import os
import socket
import subprocess
import sys

import pytest
import torch

import chronaxie
from chronaxie import optim
from chronaxie.optim._owners import Ranks
from chronaxie.optim._packed import add_gram, pack, packed_size, unpack

from test_optim import gram, model, normal

BLOCKED = [optim.Shampoo, optim.SOAP]
MAKERS = [*BLOCKED, optim.Muon]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 33])
def test_half_a_matrix_is_the_whole(device, n):
    a = gram(3, n=n, device=device)
    t = pack(a)
    assert t.shape == (3, n * (n + 1) // 2) == (3, packed_size(n))
    whole = unpack(t, n)
    assert torch.equal(whole, whole.mT) and torch.equal(whole.tril(), (a.tril() + a.triu(1)).tril().where(whole.tril() != 0, whole.tril()))
    torch.testing.assert_close(whole, a, rtol=1e-6, atol=1e-6)
    x = normal(3, n, 5, seed=1, device=device)
    add_gram(t, x, 0.75, 0.25)
    torch.testing.assert_close(unpack(t, n), 0.75 * a + 0.25 * x @ x.mT)
    assert torch.equal(unpack(t, n), unpack(t, n).mT)


def state_bytes(optimizer, name):
    return sum(4 * t.numel() for s in optimizer.state.values() for some in s[name] for t in some)


@pytest.mark.parametrize("make", BLOCKED)
def test_factors_take_half_their_memory_and_old_ones_load(make):
    p, q = (torch.nn.Parameter(normal(40, 30)) for _ in range(2))
    optimizer, other = make([p], max_preconditioner_dim=32), make([q], max_preconditioner_dim=32)
    for k in range(3):
        p.grad = q.grad = normal(40, 30, seed=k)
        optimizer.step()
        other.step()
    # Blocks of 32 and 8 rows, each with 30 columns.
    assert state_bytes(optimizer, "factors") == 4 * (32 * 33 + 8 * 9 + 2 * 30 * 31) // 2
    saved = optimizer.state_dict()
    saved["state"][0] = dict(saved["state"][0])
    saved["state"][0]["factors"] = [[unpack(f, n) for f, n in zip(some, (rows, 30))] for some, rows in zip(saved["state"][0]["factors"], (32, 8))]
    other.load_state_dict(saved)
    for k in range(3, 6):
        p.grad = q.grad = normal(40, 30, seed=k)
        optimizer.step()
        other.step()
    assert torch.equal(p, q)
    with pytest.raises(chronaxie.CheckpointError, match="max_preconditioner_dim = 32 makes 2"):
        make([p]).load_state_dict({**saved, "state": {0: {**saved["state"][0], "factors": saved["state"][0]["factors"][:1]}}})


def steps(make, device, count, **options):
    """Parameters of all kinds behind some steps."""
    params = [torch.nn.Parameter(normal(*s, seed=k, device=device)) for k, s in enumerate([(9, 5), (4, 3, 2), (7,), (5, 5), (3, 1)])]
    options |= {} if make is optim.Muon else dict(max_preconditioner_dim=4)
    optimizer = make(params, lr=torch.tensor(0.02, device=device), **options)
    for k in range(count):
        for i, p in enumerate(params):
            p.grad = normal(*p.shape, seed=10 * k + i, device=device)
        optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("make", MAKERS)
def test_the_device_may_count(device, make):
    """The same steps, where turns are of every step."""
    options = {} if make is optim.Muon else dict(precondition_frequency=1)
    plain, _ = steps(make, device, 6, weight_decay=0.1, weight_decay_mode="corrected", **options)
    counted, optimizer = steps(make, device, 6, weight_decay=0.1, weight_decay_mode="corrected", capturable=True, **options)
    for a, b in zip(plain, counted):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)
    counts = [s["step"] for s in optimizer.state.values() if "step" in s]
    assert counts and all(isinstance(c, torch.Tensor) and c.device == device and float(c) == 6 for c in counts)


@pytest.mark.parametrize("make", BLOCKED)
def test_counted_turns_come_round(make):
    params = [torch.nn.Parameter(normal(6, 4, seed=k)) for k in range(5)]
    optimizer, made = make(params, precondition_frequency=5, capturable=True), []
    name = "roots" if make is optim.Shampoo else "bases"
    for step in range(16):
        for k, p in enumerate(params):
            p.grad = normal(6, 4, seed=10 * step + k)
        before = [optimizer.state[p][name][0][0].clone() if optimizer.state[p] else None for p in params]
        optimizer.step()
        made.append([b is None or not torch.equal(b, optimizer.state[p][name][0][0]) for b, p in zip(before, params)])
    assert all(made[0]) and all(sum(row) == 1 for row in made[1:])
    for k in range(5):
        at = [s for s in range(1, 16) if made[s][k]]
        assert len(at) == 3 and all(b - a == 5 for a, b in zip(at, at[1:])), at


@pytest.mark.parametrize("make", BLOCKED)
def test_a_counted_run_that_was_saved_goes_on(make):
    """Also as one that counts in Python."""
    for counted in (True, False):
        params, optimizer = steps(make, "cpu", 4, capturable=True, precondition_frequency=1)
        saved = optimizer.state_dict()
        copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
        other = make(copies)
        for group in saved["param_groups"]:
            group["capturable"] = counted
        other.load_state_dict(saved)
        for k in range(3):
            for p, q in zip(params, copies):
                p.grad = q.grad = normal(*p.shape, seed=100 + k)
            optimizer.step()
            other.step()
        for p, q in zip(params, copies):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=0 if counted else 2e-6)
            assert not counted or torch.equal(p, q)
        assert isinstance(other.state[copies[0]]["step"], torch.Tensor if counted else int)


def test_shampoo_waits_for_its_start_where_the_device_counts():
    shown = []
    for options in (dict(capturable=True), dict(capturable=False)):
        params, _ = steps(optim.Shampoo, "cpu", 3, start_preconditioning_step=4, precondition_frequency=1, **options)
        shown.append([p.detach().clone() for p in params])
    for a, b in zip(*shown):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("make", MAKERS)
def test_a_step_in_a_graph_is_the_step(cuda, make):
    """Captured once, run again with new gradients: the bits of steps that are not captured."""
    options = dict(capturable=True, weight_decay=0.1, weight_decay_mode="corrected")
    options |= {} if make is optim.Muon else dict(precondition_frequency=3)
    eager, _ = steps(make, cuda, 8, **options)
    params, optimizer = steps(make, cuda, 1, **options)
    grads = [p.grad for p in params]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for k in range(1, 8):
        for i, (p, g) in enumerate(zip(params, grads)):
            g.copy_(normal(*p.shape, seed=10 * k + i, device=cuda))
        graph.replay()
    for a, b in zip(eager, params):
        assert torch.equal(a, b)


@pytest.mark.gpu
def test_what_a_graph_refuses(cuda):
    p = torch.nn.Parameter(normal(4, 3, device=cuda))
    p.grad = torch.ones_like(p)
    layer = torch.nn.Linear(3, 2).to(cuda)
    layer(torch.ones(2, 3, device=cuda)).sum().backward()
    for optimizer, want in [
        (optim.Shampoo([p]), "Shampoo: a step in a CUDA graph needs capturable=True"),
        (optim.Shampoo([p], capturable=True), r"Shampoo: a parameter of shape \(4, 3\) has no state; take a step before the graph"),
        (optim.KFAC(layer), "KFAC: a step in a CUDA graph needs capturable=True"),
    ]:
        with pytest.raises(chronaxie.ConfigError, match=want):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                optimizer.step()


RANK = """
import sys
import torch
import torch.distributed as dist
sys.path.insert(0, sys.argv[3])
from chronaxie import optim
from test_optim import normal

rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

def model():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(2, 3, 3), torch.nn.Flatten(), *(torch.nn.Linear(n, m) for n, m in ((48, 24), (24, 24), (24, 9)))]
    return torch.nn.Sequential(*layers)

def run(net, optimizer, first, count):
    for k in range(first, first + count):
        x = normal(4, 2, 6, 6, seed=k)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        for i, p in enumerate(net.parameters()):
            # Of directions without any gradient rounding chooses SOAP's basis.
            p.grad += 0.1 * normal(*p.shape, seed=100 * k + i)
        optimizer.step()

for make in (optim.Shampoo, optim.SOAP, optim.Muon):
    for capturable in (False, True):
        options = dict(lr=0.01, capturable=capturable)
        options |= {} if make is optim.Muon else dict(max_preconditioner_dim=16, precondition_frequency=2)
        alone, net = model(), model()
        one, two = make(alone.parameters(), **options), make(net.parameters(), process_group=True, **options)
        run(alone, one, 0, 5)
        run(net, two, 0, 5)
        theirs = [None, None]
        dist.all_gather_object(theirs, [p.detach() for p in net.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*theirs)), "both have the same bits"
        for a, b in zip(alone.parameters(), net.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m: f"{make.__name__} {capturable}: {m}")
        if make is optim.Muon:
            continue
        held = [sum(t.numel() for s in o.state.values() for some in s.get("factors", []) for t in some) for o in (one, two)]
        both = [None, None]
        dist.all_gather_object(both, held[1])
        assert sum(both) == held[0] and max(both) < 0.8 * held[0], (both, held)
        whole = two.consolidated_state_dict()
        assert sum(t.numel() for s in whole["state"].values() for some in s.get("factors", []) for t in some) == held[0]
        # It goes on alone as it does together, and together as it does alone.
        single, pair = model(), model()
        for other in (single, pair):
            other.load_state_dict(net.state_dict())
        third, fourth = make(single.parameters(), lr=0.5), make(pair.parameters(), lr=0.5, process_group=True)
        third.load_state_dict(whole)
        fourth.load_state_dict(whole)
        for n, o in ((net, two), (single, third), (pair, fourth)):
            run(n, o, 5, 4)
        for a, b, c in zip(net.parameters(), single.parameters(), pair.parameters()):
            # Where a state lies in memory may change how a product is rounded.
            torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        try:
            make(model().parameters(), **options).load_state_dict(two.state_dict())
            raise SystemExit("half a state was taken for a whole one")
        except Exception as error:
            assert "save what consolidated_state_dict() gives" in str(error), error

def stepped(p, optimizer, first, count):
    for k in range(first, first + count):
        p.grad = normal(48, 40, seed=k)
        optimizer.step()

# One matrix of nine blocks, six of which have one shape: five blocks and four.
for make in (optim.Shampoo, optim.SOAP):
    options = dict(max_preconditioner_dim=16, precondition_frequency=2, lr=0.01)
    alone, p, q = (torch.nn.Parameter(normal(48, 40, seed=9)) for _ in range(3))
    one, two, other = make([alone], **options), make([p], process_group=True, **options), make([q], process_group=True, **options)
    stepped(alone, one, 0, 5)
    stepped(p, two, 0, 5)
    torch.testing.assert_close(alone, p, rtol=1e-4, atol=1e-5)
    held = [sum(t.numel() for some in o.state[w]["factors"] for t in some) for o, w in ((one, alone), (two, p))]
    both = [None, None]
    dist.all_gather_object(both, held[1])
    assert sum(both) == held[0] and max(both) < 0.6 * held[0], (both, held)
    # A process takes back its own part of a state, and not another's.
    saved = [None, None]
    dist.all_gather_object(saved, two.state_dict())
    q.data.copy_(p.detach())
    other.load_state_dict(saved[rank])
    assert all("blocks" in s["state"][0] for s in saved) and "blocks" not in two.consolidated_state_dict()["state"][0]
    stepped(p, two, 5, 3)
    stepped(q, other, 5, 3)
    assert torch.equal(p, q)
    try:
        other.load_state_dict(saved[1 - rank])
        raise SystemExit("another's part was taken for one's own")
    except Exception as error:
        assert "which were another process's" in str(error), error
dist.destroy_process_group()
print("done")
"""


def test_two_processes_own_half_each_and_take_the_steps_of_one():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    here = os.path.dirname(__file__)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(r), port, here], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        for r in range(2)
    ]
    said = [r.communicate(timeout=240)[0] for r in ranks]
    assert all(s.splitlines()[-1:] == ["done"] for s in said), said


@pytest.mark.parametrize("count", [2, 3, 7, 64])
def test_nobody_has_much_more_than_others(count):
    """Of a few large matrices, each of which is one region of equal blocks, and many small ones."""
    ranks = Ranks("test", None)
    ranks.count = count
    regions = [(256, 3.0), (64, 5.0), (16, 1.0), *[(1, 0.5)] * 100]
    spans = ranks.spans(regions)
    loads = [0.0] * count
    for (blocks, each), some in zip(regions, spans):
        assert some[0][1] == 0 and some[-1][2] == blocks and all(a[2] == b[1] for a, b in zip(some, some[1:]))
        assert len({rank for rank, _, _ in some}) == len(some) and all(lo < hi for _, lo, hi in some)
        for rank, lo, hi in some:
            loads[rank] += (hi - lo) * each
    whole = sum(blocks * each for blocks, each in regions)
    # An eighth of a share, or a block.
    assert sum(loads) == whole and max(loads) <= whole / count + max(whole / count / 8, 5.0)
    assert sum(map(len, spans)) <= len(regions) + 8 * count
    ranks.count = 1
    assert ranks.spans(regions) == [[(0, 0, blocks)] for blocks, _ in regions] and ranks.spans([]) == []


def test_the_longest_goes_to_whom_has_least():
    ranks = Ranks("test", None)
    assert (ranks.count, ranks.own) == (1, 0) and ranks.shares([3.0, 1.0]) == [0, 0]
    ranks.count = 3
    assert ranks.shares([5.0, 4.0, 3.0, 3.0, 3.0]) == [0, 1, 2, 2, 1]
    assert ranks.shares([]) == []
    with pytest.raises(chronaxie.ConfigError, match="process_group = True needs torch.distributed.init_process_group"):
        optim.Shampoo(model().parameters(), process_group=True)
