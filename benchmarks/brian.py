#!/usr/bin/env python3
"""CUBA and COBA on the CPU: `chronaxie simulate` against Brian2's C++ standalone mode, in one run on the same cores.

    python benchmarks/brian.py --json FILE        # any Python with brian2 (2.9, numpy<2 or newer), and a C++ compiler

The networks are examples/cuba.toml and examples/coba.toml; Brian2 is given the same equations, step, delays and initial
distributions, in its own words. The mean rates of populations over several seeds of each must agree within 5 %. Of CUBA both are
timed, turn by turn so that whatever else the machine does hits both alike: ours is the wall time of the steps that
`chronaxie simulate --record none` reports, Brian2's that of its generated main loop, without building, with one thread and
with as many as `--threads` says, whichever is faster. With `--clock processor` it is the processor seconds of either process, the
making of the network included, for machines that do other work. Records have the fields of `compare.py`: peer, peer_version, peer_median_ms,
ratio (peer / ours), ratio_of_least (of the least times), parity (the largest difference of a rate, as a share); times are of a
model second.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import brian2 as b2
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
WITHIN = 0.05
E, I = 3200, 800

CUBA = """
dv/dt = (ge + gi - (v + 49*mV)) / (20*ms) : volt (unless refractory)
dge/dt = -ge / (5*ms) : volt
dgi/dt = -gi / (10*ms) : volt
"""
COBA = """
dv/dt = (10*nS*(-60*mV - v) + ge*(0*mV - v) + gi*(-80*mV - v)) / (200*pF) : volt (unless refractory)
dge/dt = -ge / (5*ms) : siemens
dgi/dt = -gi / (10*ms) : siemens
"""


def processor():
    """Processor seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def brian(case, seconds, discard, seed, threads, record):
    """Rates of E and I after `discard`, and seconds of the main loop and of the processor."""
    folder = tempfile.mkdtemp(prefix="brian")
    b2.device.reinit()
    b2.device.activate()
    b2.set_device("cpp_standalone", directory=folder, build_on_run=False)
    b2.prefs.devices.cpp_standalone.openmp_threads = threads
    b2.prefs.codegen.cpp.extra_compile_args_gcc = ["-O3", "-march=native", "-ffast-math", "-std=c++17"]
    b2.defaultclock.dt = 0.1 * b2.ms
    b2.seed(seed)
    rng = np.random.default_rng(seed)
    # Exact where the equations are linear; order 2 where they are not, as lif_cond.
    model, method = (CUBA, "exact") if case == "cuba" else (COBA, "rk2")
    cells = b2.NeuronGroup(
        E + I, model, threshold="v >= -50*mV", reset="v = -60*mV", refractory=5 * b2.ms, method=method
    )
    cells.v = rng.uniform(-60, -50, E + I) * b2.mV
    weights = ("ge += 1.62*mV", "gi -= 9*mV") if case == "cuba" else ("ge += 6*nS", "gi += 67*nS")
    objects = [cells]
    if case == "coba":
        objects.append(b2.PoissonInput(cells, "ge", 1, 200 * b2.Hz, "6*nS*int(t < 50*ms)"))
    for part, on_pre in zip((cells[:E], cells[E:]), weights):
        synapses = b2.Synapses(part, cells, on_pre=on_pre, delay=0.1 * b2.ms)
        synapses.connect(p=0.02)
        objects.append(synapses)
    if record:
        monitors = [b2.SpikeMonitor(cells[:E]), b2.SpikeMonitor(cells[E:])]
        objects += monitors
    b2.Network(objects).run(seconds * b2.second)
    b2.device.build(directory=folder, compile=True, run=False)
    before = processor()
    b2.device.run(directory=folder, with_output=False, run_args=[])
    took = b2.device._last_run_time, processor() - before
    rates = None
    if record:
        rates = [np.sum(m.t / b2.second >= discard) / n / (seconds - discard) for m, n in zip(monitors, (E, I))]
    shutil.rmtree(folder, ignore_errors=True)
    return rates, took


def chronaxie(binary, case, seconds, discard, seed, threads, record):
    with tempfile.TemporaryDirectory() as folder:
        config = str(ROOT / "examples" / f"{case}.toml")
        argv = [binary, "simulate", config, "--backend", "cpu", "--duration", f"{seconds}s", "--seed", str(seed)]
        argv += ["--set", f'simulation.discard="{discard}s"', "--record", "spikes" if record else "none", "--quiet"]
        argv += ["--threads", str(threads), "--out", f"{folder}/run"]
        before = processor()
        report = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
        used = processor() - before
    return [report["rates_hz"]["E"], report["rates_hz"]["I"]], (report["wall_ms"] / 1e3, used)


def agreement(binary, case, seeds, seconds, discard, threads):
    """The largest difference of the mean rates over `seeds`, as a share."""
    ours = np.array([chronaxie(binary, case, seconds, discard, s, threads, True)[0] for s in seeds])
    peer = np.array([brian(case, seconds, discard, s, 0, True)[0] for s in seeds])
    for name, a, b in zip("EI", ours.T, peer.T):
        print(f"{case} {name}: {a.mean():.3f} Hz ({a.min():.3f} to {a.max():.3f}), Brian2 {b.mean():.3f} ({b.min():.3f} to {b.max():.3f})")
    parity = float(np.max(np.abs(ours.mean(0) / peer.mean(0) - 1)))
    verdict = "agree" if parity <= WITHIN else "DO NOT AGREE"
    print(f"{case}: rates {verdict}, {100 * parity:.2f} % apart")
    return parity


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chronaxie", default=str(ROOT / "target/release/chronaxie"), help="the binary")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="model time of the timed runs")
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    seeds = range(1, args.seeds + 1)
    lengths = {"cuba": (2.0, 0.5), "coba": (1.0, 0.2)}
    parity = {case: agreement(args.chronaxie, case, seeds, *ms, args.threads) for case, ms in lengths.items()}
    # 0 is a build without OpenMP.
    choices = [0] if args.threads == 1 else [0, args.threads]
    clock = ["wall", "processor"].index(args.clock)
    ours, peer = [], {threads: [] for threads in choices}
    for turn in range(args.rounds):
        ours.append(chronaxie(args.chronaxie, "cuba", args.seconds, 0.5, 1, args.threads, False)[1][clock])
        for threads in choices:
            peer[threads].append(brian("cuba", args.seconds, 0.5, 1, threads, False)[1][clock])
    per_second = lambda times: 1e3 * statistics.median(times) / args.seconds
    best = min(choices, key=lambda threads: per_second(peer[threads]))
    a, b = per_second(ours), per_second(peer[best])
    least = min(peer[best]) / min(ours)
    print(f"cuba: {a:.1f} ms a model second, Brian2 {b:.1f} with {best or 1} threads: {b / a:.2f}x, of least times {least:.2f}x")
    records = [
        {
            "family": "network",
            "case": "cuba",
            "pass": "simulate",
            "backend": "cpu",
            "median_ms": a,
            "min_ms": 1e3 * min(ours) / args.seconds,
            "max_ms": 1e3 * max(ours) / args.seconds,
            "runs": args.rounds,
            "clock": args.clock,
            "threads": args.threads,
            "peer": f"Brian2 C++ standalone, {best or 1} threads",
            "peer_version": version("brian2"),
            "peer_median_ms": b,
            "ratio": b / a,
            "ratio_of_least": least,
            "parity": parity["cuba"],
        },
        {"family": "network", "case": "coba", "pass": "simulate", "backend": "cpu", "peer": "Brian2", "parity": parity["coba"]},
    ]
    if args.json:
        Path(args.json).write_text(json.dumps(records, indent=1) + "\n")
    sys.exit(any(p > WITHIN for p in parity.values()))


if __name__ == "__main__":
    main()
