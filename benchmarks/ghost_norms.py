#!/usr/bin/env python3
"""Norms of single samples' gradients, by chronaxie.optim.per_sample_norms and by torch.func.vmap(grad), in one run.

    PYTHONPATH=... python benchmarks/ghost_norms.py --device cuda --json FILE [--rounds N] [--case mlp:B512_D784_H512 ...]

`mlp` is two Linear layers with a ReLU between them, the same module for both. `ltc` is a TrueLiquidTimeConstant beside the same
equations as a plain PyTorch module (peers.py) with weights of its own, since what is native has no rule for vmap. First our norms are
held against gradients of single samples, one after the other. Contenders take turns; times are a caller's, awaited: `median_ms` where each
call comes behind one of the other's, which leaves the host's caches its own, and `row_ms` of calls behind each other, where an ordinary pass,
which makes the gradients of the batch, is timed, too (`pass_row_ms`); `captured_ms` of calls that a CUDA graph replays, so that what
either asks of the host does not count (none where one of them can not be captured). Memory is what a call
takes above what lay there before (PyTorch's allocator), and again with half the batch; so of an ordinary pass, which makes all gradients of the batch: what a call takes
above that is the norms' own.
"""

import argparse
import json
import statistics
import time

import peers
import torch
from torch.func import functional_call, grad, vmap

import chronaxie
import chronaxie.torch as ct
from chronaxie import optim

# Calls in a row for one in turn.
ROW = 3
CASES = ["mlp:B512_D784_H512", "ltc:B24_T8_D128_H64", "ltc:B32_T64_D128_H128"]


def sizes(case):
    return {part[0]: int(part[1:]) for part in case.split("_")}


def contenders(kind, case, device):
    """Our model and the peer's, inputs and targets, and the loss of a batch."""
    s = sizes(case)
    torch.manual_seed(1)
    if kind == "mlp":
        ours = torch.nn.Sequential(torch.nn.Linear(s["D"], s["H"]), torch.nn.ReLU(), torch.nn.Linear(s["H"], 10)).to(device)
        x, y = torch.randn(s["B"], s["D"]), torch.randint(10, (s["B"],))
        return ours, ours, x.to(device), y.to(device), torch.nn.functional.cross_entropy
    ours = ct.TrueLiquidTimeConstant(s["D"], s["H"]).to(device)
    mask = lambda n: (torch.rand(n, s["H"]) < 0.5).float()
    plain = peers.PlainLtc(mask(s["H"]), mask(s["D"]), dt=1 / 30).to(device)
    x, y = torch.randn(s["B"], s["T"], s["D"]), torch.randn(s["B"], s["T"], s["H"])
    first = lambda out: out[0] if isinstance(out, tuple) else out
    loss = lambda out, want: ((first(out) - want) ** 2).flatten(1).mean(1).mean()
    return ours, plain, x.to(device), y.to(device), loss


def ours_of(model, loss, x, y):
    return lambda: optim.per_sample_norms(model, loss, x, y)


def pass_of(model, loss, x, y):
    first = lambda out: out[0] if isinstance(out, tuple) else out
    return lambda: torch.autograd.grad(loss(first(model(x)), y), [p for p in model.parameters() if p.requires_grad])


def peers_of(model, loss, x, y):
    weights = {name: p.detach() for name, p in model.named_parameters()}
    one = lambda w, x, y: loss(functional_call(model, w, (x[None],)), y[None])

    def norms():
        made = vmap(grad(one), in_dims=(None, 0, 0))(weights, x, y)
        return sum(g.flatten(1).square().sum(1) for g in made.values()).sqrt()

    return norms


def parity(model, loss, x, y, norms):
    """The largest relative error of some of our norms, of a loop over samples."""
    worst = 0.0
    for i in range(0, len(x), max(1, len(x) // 4)):
        grads = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]), [p for p in model.parameters() if p.requires_grad])
        law = sum(g.double().square().sum() for g in grads).sqrt()
        worst = max(worst, float((norms[i].double() - law).abs() / law))
    return worst


def timed(call, wait):
    wait()
    began = time.perf_counter()
    call()
    wait()
    return 1e3 * (time.perf_counter() - began)


def captured(call, device):
    """The call as a graph's replay; None where it can not be captured."""
    if device.type != "cuda":
        return None
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    try:
        with torch.cuda.graph(graph, stream=stream):
            call()
    except RuntimeError as error:
        print(f"not captured: {error}")
        return None
    return graph.replay


def extra(call, device):
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--case", action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    args = parser.parse_args()
    device = torch.device(args.device)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    records = []
    for name in args.case or CASES:
        kind, case = name.split(":")
        ours, plain, x, y, loss = contenders(kind, case, device)
        mine, other = ours_of(ours, loss, x, y), peers_of(plain, loss, x, y)
        error = parity(ours, loss, x, y, mine())
        if not error < 1e-4:
            raise SystemExit(f"{name}: our norms are off by {error:.2e}: nothing is timed")
        other()
        times = [(timed(mine, wait), timed(other, wait)) for _ in range(args.rounds)]
        of_pass = pass_of(ours, loss, x, y)
        rows = [statistics.median(timed(call, wait) for _ in range(ROW * args.rounds)) for call in (mine, other, of_pass)]
        half = len(x) // 2
        calls = [mine, ours_of(ours, loss, x[:half], y[:half]), other, of_pass, pass_of(ours, loss, x[:half], y[:half])]
        memory = [extra(call, device) for call in calls]
        replays = [captured(call, device) for call in (mine, other)]
        graphs = [r and statistics.median(timed(r, wait) for _ in range(ROW * args.rounds)) for r in replays]
        a, b = (statistics.median(t) for t in zip(*times))
        records.append(
            dict(family="per_sample_norms", case=name, device=str(torch.cuda.get_device_name() if device.type == "cuda" else "cpu"),
                 peer="torch.func.vmap(grad)", peer_version=torch.__version__, version=chronaxie.__version__, median_ms=a,
                 peer_median_ms=b, row_ms=rows[0], peer_row_ms=rows[1], row_ratio=rows[1] / rows[0], pass_row_ms=rows[2], captured_ms=graphs[0], peer_captured_ms=graphs[1], ratio=statistics.median(q / p for p, q in times), parity=error, peak_bytes=memory[0],
                 peak_bytes_of_half=memory[1], peer_peak_bytes=memory[2], pass_peak_bytes=memory[3], pass_peak_bytes_of_half=memory[4])
        )  # fmt: skip
        print(f"{name}: {a:.3f} ms, vmap(grad) {b:.3f} ms, {records[-1]['ratio']:.2f}x, in a row {rows[0]:.3f} and {rows[1]:.3f} (an ordinary pass {rows[2]:.3f}), captured {graphs}, off by {error:.1e}, bytes {memory}")
    if args.json:
        with open(args.json, "w") as f:
            json.dump(records, f, indent=2)


if __name__ == "__main__":
    main()
