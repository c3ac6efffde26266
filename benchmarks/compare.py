#!/usr/bin/env python3
"""LTC and CfC against every peer that can be imported, in one run on one device.

    PYTHONPATH=... "$(scripts/venv.sh scripts/requirements-bench.txt)/bin/python" benchmarks/compare.py --json FILE
        [--family ltc,cfc] [--case B24_T8_D128_H64 ...] [--backend cpu|cuda] [--precision exact|fast] [--rounds N]

The peers are ncps, the same equations as a plain PyTorch module (eager, by torch.compile, as TorchScript), and an nn.LSTM
of the same size, which computes something else and is there for scale. First each peer must agree with ncps in float64,
and our float32 results and gradients with ncps's float64 ones; `chronaxie.bench` checks ours against the float64 reference
besides. What does not agree is not timed.

Contenders take turns, round by round, so that what else the machine does hits all alike. The clock is "call": what a caller
of Python waits for, by device events on a GPU. Peak memory is what a call takes above what lay there before: PyTorch's
allocator's on a GPU, the process's resident memory on the CPU. Records have the fields of `bench --json` and the peer's:
peer, peer_version, peer_median_ms, peer_peak_bytes, ratio (peer / ours), and parity (the worst relative error of our
outputs and gradients).
"""

import argparse
import datetime
import json
import statistics
import sys
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import peers
import torch

import chronaxie
import chronaxie.torch as ct

UNFOLDS, DENSITY = 6, 0.5
# Relative to the norm of the float64 result. Gradients of cm and of elapsed times cancel: layers/ltc/spec.rs.
OUTPUT, GRADIENT, CANCELLING = 5e-6, 3e-5, 2e-4


def sizes(case):
    return [int(part[1:]) for part in case.split("_")]


def family(name, case, precision):
    """ncps's network, ours with its weights, and the options of the case."""
    import ncps.torch
    import ncps.wirings

    _, _, inputs, hidden = sizes(case)
    if name == "ltc":
        wiring = ncps.wirings.Random(hidden, hidden, sparsity_level=1 - DENSITY, random_seed=1)
        theirs = ncps.torch.LTC(inputs, wiring, ode_unfolds=UNFOLDS)
        ours = ct.LTC(inputs, wiring, ode_unfolds=UNFOLDS, precision=precision)
        options = f"density={DENSITY},unfolds={UNFOLDS}"
    else:
        theirs, ours = ncps.torch.CfC(inputs, hidden), ct.CfC(inputs, hidden, precision=precision)
        options = ""
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours, options


def widened(theirs):
    theirs = theirs.double()
    if hasattr(theirs.rnn_cell, "_params"):
        # ncps keeps a second table of its parameters, which a conversion leaves behind.
        theirs.rnn_cell._params = dict(theirs.rnn_cell.named_parameters())
    return theirs


def states_of(model, x, zeros=None):
    out = model(x) if zeros is None else model(x, zeros)
    return out[0] if isinstance(out, tuple) else out


def results(model, x, seed, zeros=None):
    """States, the gradient of x and those of the parameters by name."""
    x = x.detach().requires_grad_()
    states = states_of(model, x, zeros)
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(states, [x, *named.values()], seed.to(states.dtype), allow_unused=True)
    return {"states": states.detach(), "x": grads[0], **dict(zip(named, grads[1:]))}


def distance(a, law):
    return float((a.double() - law.double()).norm() / law.double().norm().clamp_min(1e-30))


def parity(name, case, device, precision):
    """The worst relative error of ours; raises where ours or a plain module does not compute what ncps does."""
    theirs, ours, _ = family(name, case, precision)
    batch, steps, inputs, hidden = sizes(case)
    ours, law = ours.to(device), widened(theirs).to(device)
    x = torch.randn(batch, steps, inputs, dtype=torch.float64, device=device)
    seed = torch.randn(batch, steps, hidden, dtype=torch.float64, device=device)
    zeros = torch.zeros(batch, hidden, dtype=torch.float64, device=device)
    want = results(law, x, seed, zeros)
    plain = (peers.plain_ltc if name == "ltc" else peers.plain_cfc)(law).double().to(device)
    same = results(plain, x, seed)
    for what in ("states", "x"):
        if not distance(same[what], want[what]) < 1e-10:
            raise ArithmeticError(f"the plain module and ncps differ in {what} by {distance(same[what], want[what]):.1e}")
    got = results(ours, x.float(), seed)
    scale = max(float(g.norm()) for n, g in want.items() if g is not None and n != "states")
    worst = 0.0
    loose = 100.0 if precision == "fast" else 1.0
    for what, value in want.items():
        if value is None or float(value.norm()) < 1e-4 * scale:
            continue
        bound = OUTPUT if what == "states" else CANCELLING if what.endswith("cm") else GRADIENT
        error = distance(got[what], value)
        worst = max(worst, error)
        if not error < loose * bound:
            raise ArithmeticError(f"our {what} and ncps's differ by {error:.1e}, at most {loose * bound:.0e}")
    return worst


def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def contenders(name, case, device, precision, wanted):
    """Modules by name, and what each is made of."""
    theirs, ours, _ = family(name, case, precision)
    _, _, inputs, hidden = sizes(case)
    torch_version = f"torch {torch.__version__}"
    plain = lambda: (peers.plain_ltc if name == "ltc" else peers.plain_cfc)(theirs)
    makers = {
        "ncps": (lambda: theirs, f"{installed('ncps')}, {torch_version}"),
        "eager": (plain, torch_version),
        "compiled": (lambda: peers.compiled(plain()), torch_version),
        "torchscript": (lambda: torch.jit.script(plain()), torch_version),
        "lstm": (lambda: torch.nn.LSTM(inputs, hidden, batch_first=True), torch_version),
    }
    made = {"chronaxie": (ours.to(device), chronaxie.__version__)}
    for peer in wanted or makers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made[peer] = (makers[peer][0]().to(device), makers[peer][1])
    return made


class Timer:
    """Calls of one module, timed."""

    def __init__(self, model, case, device, backward):
        batch, steps, inputs, hidden = sizes(case)
        self.model, self.device, self.backward = model, device, backward
        self.x = torch.randn(batch, steps, inputs, device=device, requires_grad=backward)
        self.seed = torch.randn(batch, steps, hidden, device=device)
        self.times = []

    def call(self):
        with torch.set_grad_enabled(self.backward):
            states = states_of(self.model, self.x)
            if self.backward:
                states.backward(self.seed)
        self.x.grad = None
        for p in self.model.parameters():
            p.grad = None

    def run(self, seconds):
        """Milliseconds of calls, for about so long and at least three."""
        ends = time.perf_counter() + seconds
        count = 0
        while count < 3 or (time.perf_counter() < ends and count < 200):
            count += 1
            if self.device.type == "cuda":
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda.synchronize()
                begin.record()
                self.call()
                end.record()
                torch.cuda.synchronize()
                self.times.append(begin.elapsed_time(end))
            else:
                began = time.perf_counter()
                self.call()
                self.times.append(1e3 * (time.perf_counter() - began))

    def peak(self):
        """Bytes that a call takes above what is there already; None where the system does not say."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.call()
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - before
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return None
        read = lambda key: next(
            int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)
        )
        before = read("VmRSS:")
        self.call()
        return max(0, read("VmHWM:") - before)


def base_record(name, case, options, backend, precision, backward):
    """The fields of `bench --json`, by the library's own run on its own clock, which also checks it."""
    spelt = f"{case},{options}" if options else case
    records = chronaxie.bench(name, cases=spelt, backend=backend, precision=precision, seconds=0.05)
    wanted = "forward_backward" if backward else "forward"
    return next(r for r in records if r["pass"] == wanted)


def compare(name, case, args, device):
    worst = parity(name, case, device, args.precision)
    print(f"{name} {case}: ours and ncps's float64 agree to {worst:.1e}, the plain module and ncps to 1e-10")
    records = []
    for backward in (False, True):
        title = "forward_backward" if backward else "forward"
        made = contenders(name, case, device, args.precision, args.peers)
        timers = {who: Timer(model, case, device, backward) for who, (model, _) in made.items()}
        for timer in timers.values():
            for _ in range(3):
                timer.call()
        for _ in range(args.rounds):
            for timer in timers.values():
                timer.run(args.seconds)
        median = {who: statistics.median(t.times) for who, t in timers.items()}
        peak = {who: t.peak() for who, t in timers.items()}
        options = family(name, case, args.precision)[2]
        base = base_record(name, case, options, args.backend, args.precision, backward)
        ours = timers["chronaxie"].times
        base |= {
            "clock": "call", "device_median_ms": base["median_ms"], "median_ms": median["chronaxie"], "min_ms": min(ours),
            "max_ms": max(ours), "runs": len(ours), "peak_bytes": peak["chronaxie"], "threads": torch.get_num_threads(),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        }  # fmt: skip
        # What the other clock said of these holds for this one in proportion.
        share = base["device_median_ms"] / base["median_ms"]
        for field in ("gb_per_s", "tflop_per_s", "special_per_s", "roofline_fraction"):
            if base.get(field) is not None:
                base[field] *= share
        mib = lambda n: "      -" if n is None else f"{n / 2**20:7.1f}"
        print(f"  {title:<17}{'median ms':>11}{'peak MiB':>10}{'ratio':>9}")
        print(f"    {'chronaxie':<15}{median['chronaxie']:11.3f}{mib(peak['chronaxie']):>10}")
        for who, (_, made_of) in made.items():
            if who == "chronaxie":
                continue
            ratio = median[who] / median["chronaxie"]
            records.append({
                **base, "peer": who, "peer_version": made_of, "peer_median_ms": median[who], "peer_peak_bytes": peak[who],
                "ratio": ratio, "parity": None if who == "lstm" else worst,
            })  # fmt: skip
            print(f"    {who:<15}{median[who]:11.3f}{mib(peak[who]):>10}{ratio:8.1f}x")
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="ltc,cfc", help="separated by commas")
    parser.add_argument("--case", nargs="+", help="such as B24_T8_D128_H64; by default what suits the backend")
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["exact", "fast"], default="exact")
    parser.add_argument("--peers", help="names separated by commas; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="a contender's share of a round")
    parser.add_argument("--threads", type=int, help="of PyTorch and of ours on the CPU")
    parser.add_argument("--json", type=Path, help="write the records to this file")
    args = parser.parse_args()
    args.peers = args.peers.split(",") if args.peers else None
    if installed("ncps") is None:
        sys.exit("compare: ncps is not installed, and there is no ratio without its parity")
    if args.backend == "cuda" and not torch.cuda.is_available():
        sys.exit("compare: PyTorch sees no CUDA device")
    if args.threads:
        torch.set_num_threads(args.threads)
    chronaxie.set_num_threads(torch.get_num_threads())
    torch.manual_seed(1)
    device = torch.device("cuda", 0) if args.backend == "cuda" else torch.device("cpu")
    cases = args.case or (["B24_T8_D128_H64"] if args.backend == "cpu" else ["B24_T8_D128_H64", "B32_T64_D128_H128"])
    records, red = [], 0
    for name in args.family.split(","):
        for case in cases:
            try:
                records += compare(name, case, args, device)
            except (ArithmeticError, chronaxie.ChronaxieError) as error:
                red += 1
                print(f"{name} {case}: not timed: {error}")
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")
    sys.exit(1 if red else 0)


if __name__ == "__main__":
    main()
