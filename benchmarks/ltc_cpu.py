#!/usr/bin/env python3
"""LTC on the CPU: `chronaxie bench` against two eager PyTorch implementations, in one run on the same cores.

    "$(scripts/venv.sh scripts/requirements-bench.txt)/bin/python" benchmarks/ltc_cpu.py --json FILE

The peers are ncps's LTC and a plain cell of peers.py, which states the same equations in as few tensor operations as
eager PyTorch allows. Before anything is timed, the plain cell must agree with ncps on ncps's own weights in float64.
Contenders take turns, round by round, so that whatever else the machine does hits all alike; the figure is the median
over all rounds. Records have the fields of `bench --json` and the peer's: peer, peer_version, peer_median_ms, ratio
(peer / ours), parity (our largest error against the float64 reference; no ratio is printed if the check is red).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import ncps.torch
import ncps.wirings
import torch
from peers import PlainLtc, plain_ltc

ROOT = Path(__file__).resolve().parent.parent
B, T, D, H = 24, 8, 128, 64
UNFOLDS, DENSITY, DT = 6, 0.5, 1 / 30
CASE = f"B{B}_T{T}_D{D}_H{H}"


def random_mask(rows, columns):
    mask = (torch.rand(rows, columns) < DENSITY).float()
    mask[torch.randint(rows, (columns,)), torch.arange(columns)] = 1.0
    return mask


def ncps_layer():
    wiring = ncps.wirings.Random(H, H, sparsity_level=1 - DENSITY, random_seed=1)
    return ncps.torch.LTC(D, wiring, return_sequences=True, batch_first=True, ode_unfolds=UNFOLDS)


def agreement():
    """The largest relative difference of states and gradients between the plain cell and ncps, in float64."""
    theirs = ncps_layer().double()
    ours = plain_ltc(theirs).double()
    x = torch.randn(B, T, D, dtype=torch.float64)
    weights = torch.randn(B, T, H, dtype=torch.float64)
    out = {}
    for name, model in (("ncps", theirs), ("plain", ours)):
        inputs = x.clone().requires_grad_()
        states = model(inputs)
        states = states[0] if isinstance(states, tuple) else states
        (states * weights).sum().backward()
        out[name] = (states.detach(), inputs.grad)
    return max(((a - b).norm() / a.norm()).item() for a, b in zip(out["ncps"], out["plain"]))


def sample(model, backward, runs):
    """Wall-clock milliseconds of `runs` calls, after two to warm up."""
    x, weights = torch.randn(B, T, D), torch.randn(B, T, H)
    times = []
    for i in range(runs + 2):
        inputs = x.clone().requires_grad_(backward)
        began = time.perf_counter()
        with torch.set_grad_enabled(backward):
            states = model(inputs)
            states = states[0] if isinstance(states, tuple) else states
            if backward:
                states.backward(weights)
        if i >= 2:
            times.append(1e3 * (time.perf_counter() - began))
    return times


def chronaxie(binary, threads, precision):
    """The records of one `bench`, by pass."""
    case = f"{CASE},density={DENSITY},unfolds={UNFOLDS}"
    command = [binary, "bench", "ltc", "--case", case, "--backend", "cpu", "--precision", precision]
    command += ["--threads", str(threads), "--seconds", "0.5", "--quiet", "--json", "-"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"ltc_cpu: `{' '.join(command)}` failed with {done.returncode}: no ratio without a green check")
    return {r["pass"]: r for r in json.loads(done.stdout)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    parser.add_argument("--binary", default=target / "release/chronaxie", type=Path, help="the chronaxie to time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=["exact", "fast"], default="exact")
    parser.add_argument("--json", type=Path, help="write the records to this file")
    args = parser.parse_args()
    if not args.binary.is_file():
        sys.exit(f"ltc_cpu: {args.binary} does not exist; build it with cargo build --release")
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)

    worst = agreement()
    print(f"the plain cell and ncps agree to {worst:.1e} (float64, states and gradients)")
    if not worst < 1e-10:
        sys.exit("ltc_cpu: the peers do not compute the same; nothing is timed")

    peers = {
        "ncps": (ncps_layer(), f"{version('ncps')}, torch {torch.__version__}"),
        "eager": (PlainLtc(random_mask(H, H), random_mask(D, H), dt=DT, unfolds=UNFOLDS), f"torch {torch.__version__}"),
    }
    passes = {"forward": False, "forward_backward": True}
    times = {(peer, name): [] for peer in peers for name in passes}
    ours = {name: [] for name in passes}
    for _ in range(args.rounds):
        for name, record in chronaxie(args.binary, args.threads, args.precision).items():
            if name in ours:
                ours[name].append(record)
        for peer, (model, _) in peers.items():
            for name, backward in passes.items():
                times[peer, name] += sample(model, backward, 10)

    records = []
    for name in passes:
        median = statistics.median(r["median_ms"] for r in ours[name])
        for peer, (_, peer_version) in peers.items():
            theirs = statistics.median(times[peer, name])
            record = {**ours[name][-1], "median_ms": median, "threads": args.threads, "peer": peer}
            record["min_ms"] = min(r["min_ms"] for r in ours[name])
            record["max_ms"] = max(r["max_ms"] for r in ours[name])
            record["runs"] = sum(r["runs"] for r in ours[name])
            record |= {"peer_version": peer_version, "peer_median_ms": theirs, "ratio": theirs / median}
            record["parity"] = record["max_error"]
            records.append(record)
            print(f"ltc {CASE} {name:<17} chronaxie {median:7.3f} ms  {peer:<6}{theirs:8.2f} ms  {theirs / median:5.1f}x")
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
