#!/usr/bin/env python3
"""LTC, CfC, the mLSTM and scans against every peer that can be imported, in one run on one device.

    PYTHONPATH=... "$(scripts/venv.sh scripts/requirements-bench.txt)/bin/python" benchmarks/compare.py --json FILE
        [--family ltc,cfc,mlstm_exp,mlstm_sig,linear_scan,selective_scan] [--case B24_T8_D128_H64 ...] [--backend cpu|cuda]
        [--precision exact|fast] [--dtype f32|bf16] [--rounds N]

The peers of mLSTM and scans are in sequences.py. Those of LTC and CfC are ncps, the same equations as a plain PyTorch module (eager, by torch.compile, as TorchScript), and an nn.LSTM
of the same size, which computes something else and is there for scale. First each peer must agree with ncps in float64,
and our float32 results and every gradient with ncps's float64 ones, within the bounds that the family declares;
`chronaxie.bench` checks ours against the float64 reference besides. What does not agree is not timed. An LTC step of the
cases is 1/30 long, of which ncps knows nothing: there cm are 30 times as large, which is the same.

Contenders take turns, round by round, so that what else the machine does hits all alike. The clock is "call": what a caller
of Python waits for, by device events on a GPU. A ratio is the median over the rounds of the ratio of the two medians in a
round; beside it stands the ratio of the two least times, which other work on the machine touches least. Where it is much,
`--threads 1 --clock thread` counts what the calling thread itself computes: threads that wait for each other, as the
peers' do, lose more to other work than ours. Peak memory is what
a call takes above what lay there before: PyTorch's allocator's on a GPU, the process's resident memory on the CPU. Records
have the fields of `bench --json` and the peer's: peer, peer_version, peer_median_ms, peer_min_ms, peer_peak_bytes, ratio
(peer / ours), ratio_of_least, parity (the worst relative error of our outputs and gradients), and load (the machine's, over
a minute, when the case began and ended).
"""

import argparse
import ctypes
import datetime
import json
import os
import re
import statistics
import sys
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import peers
import sequences
import torch

import chronaxie
import chronaxie.torch as ct
from chronaxie import _native

UNFOLDS, DENSITY, STEPS_A_SECOND = 6, 0.5, 30


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
        cm = dict(theirs.rnn_cell.named_parameters())["cm"]
        with torch.no_grad():
            capacity = STEPS_A_SECOND * torch.nn.functional.softplus(cm)
            # The inverse of softplus, where it differs from the identity by less than a rounding or two.
            cm.copy_(capacity + torch.log(-torch.expm1(-capacity)))
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


def distance(a, law, metric="relative_frobenius"):
    off = a.double() - law.double()
    if metric == "max_absolute":
        return float(off.abs().max())
    return float(off.norm() / law.double().norm().clamp_min(1e-30))


def declared(name, case, ours):
    """Of a tensor by the name that ncps gives it: the metric and the bound that the family declares for it or its gradient."""
    batch, steps, _, _ = sizes(case)
    if name == "ltc":
        problem = _native.problem(name, f"B{batch}_T{steps}{ours.rnn_cell._options.text}", ours.rnn_cell._synapses.native)
    else:
        problem = _native.problem(name, f"B{batch}_T{steps}{ours._options.text}")

    def of(what):
        if what == "states":
            return problem.tolerance("forward", "out")[:2]
        # ncps counts the activations of a backbone, too.
        ours = re.sub(r"backbone\.(\d+)", lambda m: f"backbone_{int(m[1]) // 2}", what.removeprefix("rnn_cell."))
        return problem.tolerance("backward", "grad_" + ours.replace(".", "_"))[:2]

    return of


def parity(name, case, device, precision):
    """The worst relative error of ours; raises where ours or a plain module does not compute what ncps does."""
    theirs, ours, _ = family(name, case, precision)
    batch, steps, inputs, hidden = sizes(case)
    ours, law = ours.to(device), widened(theirs).to(device)
    # What float32 holds, so that both compute from the same numbers.
    random = lambda *shape: torch.randn(*shape, device=device).double()
    x, seed = random(batch, steps, inputs), random(batch, steps, hidden)
    zeros = torch.zeros(batch, hidden, dtype=torch.float64, device=device)
    want = results(law, x, seed, zeros)
    plain = (peers.plain_ltc if name == "ltc" else peers.plain_cfc)(law).double().to(device)
    same = results(plain, x, seed)
    for what in ("states", "x"):
        if not distance(same[what], want[what]) < 1e-10:
            raise ArithmeticError(f"the plain module and ncps differ in {what} by {distance(same[what], want[what]):.1e}")
    bound_of = declared(name, case, ours)
    worst = 0.0
    for what, value in results(ours, x.float(), seed).items():
        metric, bound = bound_of(what)
        error = distance(value, want[what], metric)
        worst = max(worst, distance(value, want[what]))
        if not error <= bound:
            raise ArithmeticError(f"our {what} and ncps's differ by {error:.1e} ({metric}), at most {bound:.0e}")
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
    """Calls of one contender, timed; what `clear` does between them is not."""

    def __init__(self, call, clear, device, clock):
        self.call, self.clear, self.device, self.clock = call, clear, device, clock
        self.times = []
        self.rounds = []

    def run(self, seconds):
        """Milliseconds of calls, for about so long and at least three."""
        ends = time.perf_counter() + seconds
        count, first = 0, len(self.times)
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
                began = self.clock()
                self.call()
                self.times.append(1e3 * (self.clock() - began))
            self.clear()
        self.rounds.append(statistics.median(self.times[first:]))

    def peak(self):
        """Bytes that a call takes above what is there already; None where the system does not say."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.call()
            torch.cuda.synchronize()
            self.clear()
            return torch.cuda.max_memory_allocated() - before
        read = lambda key: next(
            int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)
        )
        # What earlier calls freed, and the allocator kept, would hide what this one takes.
        ctypes.CDLL(None).malloc_trim(0)
        before = read("VmRSS:")
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return None
        self.call()
        self.clear()
        return max(0, read("VmHWM:") - before)


def forget(leaves):
    for leaf in leaves:
        leaf.grad = None


def of_module(model, case, device, backward):
    """A call of a layer, with gradients or without, and what takes its gradients away again."""
    batch, steps, inputs, hidden = sizes(case)
    x = torch.randn(batch, steps, inputs, device=device, requires_grad=backward)
    seed = torch.randn(batch, steps, hidden, device=device)

    def call():
        with torch.set_grad_enabled(backward):
            states = states_of(model, x)
            if backward:
                states.backward(seed)

    leaves = [x, *model.parameters()]
    return call, lambda: forget(leaves)


def of_function(function, tensors, backward):
    """A call of a function of tensors by name, with gradients or without, and what takes those away again."""
    leaves = {name: t.detach().requires_grad_(backward) for name, t in tensors.items()}
    with torch.no_grad():
        seed = torch.randn_like(function(**leaves))

    def call():
        with torch.set_grad_enabled(backward):
            out = function(**leaves)
            if backward:
                out.backward(seed)

    return call, lambda: forget(leaves.values())


def base_record(name, case, options, backend, precision, backward):
    """The fields of `bench --json`, by the library's own run on its own clock, which also checks it."""
    spelt = f"{case},{options}" if options else case
    records = chronaxie.bench(name, cases=spelt, backend=backend, precision=precision, seconds=0.05)
    wanted = "forward_backward" if backward else "forward"
    return next(r for r in records if r["pass"] == wanted)


def timed(title, base, made, errors, args):
    """Lets the contenders take turns; their records. `made` has a call and a version by name, `errors` what more to say of it."""
    load = [os.getloadavg()[0]]
    device = torch.device("cuda", 0) if args.backend == "cuda" else torch.device("cpu")
    clock = time.perf_counter if args.clock == "call" else time.thread_time
    timers = {who: Timer(call, clear, device, clock) for who, ((call, clear), _) in made.items()}
    for timer in timers.values():
        for _ in range(3):
            timer.call()
            timer.clear()
    for _ in range(args.rounds):
        for timer in timers.values():
            timer.run(args.seconds)
    median = {who: statistics.median(t.times) for who, t in timers.items()}
    least = {who: min(t.times) for who, t in timers.items()}
    peak = {who: t.peak() for who, t in timers.items()}
    ours = timers["chronaxie"].times
    load.append(os.getloadavg()[0])
    base |= {
        "clock": args.clock, "device_median_ms": base["median_ms"], "median_ms": median["chronaxie"], "min_ms": min(ours),
        "max_ms": max(ours), "runs": len(ours), "peak_bytes": peak["chronaxie"], "threads": torch.get_num_threads(),
        "rounds": args.rounds, "load": load,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    }  # fmt: skip
    # What the other clock said of these holds for this one in proportion.
    share = base["device_median_ms"] / base["median_ms"]
    for field in ("gb_per_s", "tflop_per_s", "special_per_s", "roofline_fraction"):
        if base.get(field) is not None:
            base[field] *= share
    mib = lambda n: "      -" if n is None else f"{n / 2**20:7.1f}"
    print(f"  {title:<17}{'median ms':>11}{'least':>9}{'peak MiB':>10}{'ratio':>9}{'of least':>10}")
    print(f"    {'chronaxie':<15}{median['chronaxie']:11.3f}{least['chronaxie']:9.3f}{mib(peak['chronaxie']):>10}")
    records = []
    for who, (_, made_of) in made.items():
        if who == "chronaxie":
            continue
        rounds = zip(timers[who].rounds, timers["chronaxie"].rounds)
        ratio = statistics.median(theirs / own for theirs, own in rounds)
        of_least = least[who] / least["chronaxie"]
        records.append({
            **base, "peer": who, "peer_version": made_of, "peer_median_ms": median[who], "peer_min_ms": least[who],
            "peer_peak_bytes": peak[who], "ratio": ratio, "ratio_of_least": of_least, **errors(who),
        })  # fmt: skip
        print(f"    {who:<15}{median[who]:11.3f}{least[who]:9.3f}{mib(peak[who]):>10}{ratio:8.1f}x{of_least:9.1f}x")
    return records


def compare_layers(name, case, args, device):
    worst = parity(name, case, device, args.precision)
    print(f"{name} {case}: ours and ncps's float64 agree to {worst:.1e}, the plain module and ncps to 1e-10")
    records = []
    for backward in (False, True):
        made = {
            who: (of_module(model, case, device, backward), made_of)
            for who, (model, made_of) in contenders(name, case, device, args.precision, args.peers).items()
        }
        base = base_record(name, case, family(name, case, args.precision)[2], args.backend, args.precision, backward)
        errors = lambda who: {"parity": None if who == "lstm" else worst}
        records += timed("forward_backward" if backward else "forward", base, made, errors, args)
    return records


def compare_sequences(name, case, args, device):
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.dtype or ("bf16" if args.backend == "cuda" else "f32")]
    made = sequences.contenders(name, device, args.peers)
    off = sequences.parity(name, case, dtype, device, made)
    print(f"{name} {case}, {dtype}: relative errors against float64, and of what:")
    print("  " + ", ".join(f"{who} {error:.1e} ({what})" for who, (error, what) in off.items()))
    records = []
    for backward in (False, True):
        tensors = sequences.inputs(name, case, dtype, device)
        calls = {who: (of_function(call, tensors, backward), made_of) for who, (call, made_of) in made.items()}
        spelt = sequences.spelt(name, case, dtype).removeprefix(case).removeprefix(",")
        base = base_record(name, case, spelt, args.backend, None, backward)
        errors = lambda who: {"parity": off["chronaxie"][0], "peer_error": off[who][0], "peer_worst": off[who][1]}
        records += timed("forward_backward" if backward else "forward", base, calls, errors, args)
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="ltc,cfc", help="separated by commas")
    parser.add_argument("--case", nargs="+", help="such as B24_T8_D128_H64; by default what suits the backend")
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["exact", "fast"], default="exact")
    parser.add_argument("--dtype", choices=["f32", "bf16"], help="of mLSTM and scans; bf16 on a GPU and f32 on the CPU by default")
    parser.add_argument("--peers", help="names separated by commas; all by default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3, help="a contender's share of a round")
    parser.add_argument("--clock", choices=["call", "thread"], default="call", help="thread: the calling thread's own time, "
                        "for one thread on a machine that others use")  # fmt: skip
    parser.add_argument("--threads", type=int, help="of PyTorch and of ours on the CPU")
    parser.add_argument("--json", type=Path, help="write the records to this file")
    args = parser.parse_args()
    args.peers = args.peers.split(",") if args.peers else None
    layers = {"ltc", "cfc"}
    wrong = [name for name in args.family.split(",") if name not in layers | set(sequences.PEERS)]
    if wrong:
        sys.exit(f"compare: {wrong[0]} is none of {', '.join([*sorted(layers), *sequences.PEERS])}")
    if installed("ncps") is None and layers & set(args.family.split(",")):
        sys.exit("compare: ncps is not installed, and there is no ratio without its parity")
    if args.backend == "cuda" and not torch.cuda.is_available():
        sys.exit("compare: PyTorch sees no CUDA device")
    if args.clock == "thread" and (args.backend != "cpu" or args.threads != 1):
        sys.exit("compare: the clock `thread` sees one thread: take --backend cpu --threads 1")
    if args.threads:
        torch.set_num_threads(args.threads)
    chronaxie.set_num_threads(torch.get_num_threads())
    torch.manual_seed(1)
    device = torch.device("cuda", 0) if args.backend == "cuda" else torch.device("cpu")
    own = {"cpu": ["B24_T8_D128_H64"], "cuda": ["B24_T8_D128_H64", "B32_T64_D128_H128"]}
    records, red = [], 0
    for name in args.family.split(","):
        by_itself = own[args.backend] if name in layers else sequences.CASES[args.backend][name]
        for case in args.case or by_itself:
            try:
                records += (compare_layers if name in layers else compare_sequences)(name, case, args, device)
            except (ArithmeticError, chronaxie.ChronaxieError) as error:
                red += 1
                print(f"{name} {case}: not timed: {error}")
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")
    sys.exit(1 if red else 0)


if __name__ == "__main__":
    main()
