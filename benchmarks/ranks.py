#!/usr/bin/env python3
"""Sequences over ranks: chronaxie.torch.parallel on P ranks beside the same operation on one of them, in one run.

    PYTHONPATH=... python benchmarks/ranks.py --ranks 2,4 --json FILE [--cases linear_scan:B1_D64_T16777216:summary ...]

It starts its own processes: one for each GPU with NCCL, or with --device cpu some with Gloo. A case is ENTRY:SIZES:DESIGN, or
ENTRY:SIZES,parts=Q:wavefront. Without T its length is the largest power of two, at most 2^24, of which one rank holds all that a forward
and a backward pass take: inputs, output, their gradients. Where a given length does not fit, one rank is timed and compared at the longest
that does, and its time is scaled by the steps; `one_steps` says so.

Outputs and gradients of every rank are held against those of one rank before anything is timed. Times are by CUDA events on each rank (by
the host's clock on the CPU), behind a barrier before each call, and the largest over ranks counts; medians of several calls. `bytes` are
what the operation reads and writes at the least: inputs and output forward, and inputs, output's gradient, inputs' gradients backward (of
linear_scan states instead of x).
"""

import argparse
import datetime
import json
import math
import os
import re
import socket
import statistics
import sys
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import chronaxie
import chronaxie.torch as ct
from chronaxie.torch import parallel

CASES = {
    "cuda": [
        "linear_scan:B1_D64_T16777216:summary",
        "linear_scan:B1_D4096:wavefront",
        "selective_scan:B1_D1024_T262144_N16:summary",
        "selective_scan:B1_D1024_T262144_N16,parts=4:wavefront",
        "mlstm:B1_NH8_T131072_K256_V512:summary",
        "mlstm:B1_NH8_T131072_K256_V512,parts=8:wavefront",
    ],
    "cpu": [
        "linear_scan:B1_D8_T8192:summary",
        "linear_scan:B1_D256_T4096:wavefront",
        "selective_scan:B1_D64_T512_N4:summary",
        "mlstm:B1_NH4_T512_K16_V32:wavefront",
    ],
}
LONGEST = 1 << 24
# Relative to the norm: splits round elsewhere, and halves once more.
BOUND = {torch.float32: 5e-5, torch.bfloat16: 2e-2}
# What the output is like.
LIKE = {"linear_scan": "x", "selective_scan": "u", "mlstm": "v"}
WAIT = datetime.timedelta(seconds=60)


class Case:
    """ENTRY:SIZES:DESIGN, and its tensors: shapes with T where time is, and how each is made of normal numbers."""

    def __init__(self, text, device):
        try:
            self.entry, sizes, self.design = text.split(":")
            sizes, *options = sizes.split(",")
            self.parts = next((int(o.removeprefix("parts=")) for o in options), None)
            self.sizes = {m[1]: int(m[2]) for m in re.finditer(r"([A-Z]+)(\d+)", sizes)}
            self.tensors = getattr(self, f"_{self.entry}")
        except (ValueError, AttributeError):
            raise SystemExit(f"ranks: case `{text}` is not ENTRY:SIZES:DESIGN such as {CASES['cuda'][0]}") from None
        half = device.type == "cuda" and self.entry != "linear_scan"
        self.dtype = torch.bfloat16 if half else torch.float32
        self.steps = self.sizes.pop("T", None)

    def name(self, steps):
        order = "B NH D T N K V".split()
        sizes = {**self.sizes, "T": steps}
        parts = "" if self.parts is None else f",parts={self.parts}"
        return "_".join(f"{k}{sizes[k]}" for k in order if k in sizes) + parts

    def _linear_scan(self, s):
        # Channels forget within one to some thousand steps.
        rate = lambda n: torch.logspace(0, -math.log10(n) / 2, s["D"])[:, None]
        shape = (s["B"], s["D"], "T")
        return {"a": (shape, lambda x, n: 1 - x.abs().clamp(max=1.0) * rate(n).to(x)), "x": (shape, None)}, {}

    def _selective_scan(self, s):
        time_, weight = (s["B"], s["D"], "T"), (s["B"], s["N"], "T")
        fixed = {"A": -torch.arange(1.0, s["N"] + 1).repeat(s["D"], 1), "D": torch.ones(s["D"]), "delta_bias": torch.full((s["D"],), -4.0)}
        return {**{n: (time_, None) for n in ("u", "delta", "z")}, "B": (weight, None), "C": (weight, None)}, fixed

    def _mlstm(self, s):
        heads = (s["B"], s["NH"])
        key, value, gate = (*heads, "T", s["K"]), (*heads, "T", s["V"]), (*heads, "T")
        return {"q": (key, None), "k": (key, None), "v": (value, None), "i": (gate, None), "f": (gate, lambda x, n: x + 3)}, {}

    def elements(self):
        """Of a step: inputs, and output."""
        of = lambda shape: math.prod(n for n in shape if n != "T")
        shapes = {n: of(shape) for n, (shape, _) in self.tensors(self.sizes)[0].items()}
        return sum(shapes.values()), shapes[LIKE[self.entry]]

    def bytes(self, steps, backward):
        inputs, output = self.elements()
        return steps * self.dtype.itemsize * (inputs + output + backward * (2 * inputs + output))

    def fits(self, device, longest):
        """The largest power of two whose inputs, output and gradients one rank holds, with a tenth to spare."""
        inputs, output = self.elements()
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 30
        steps = int(0.9 * free) // (self.dtype.itemsize * 2 * (inputs + output))
        return min(longest, 1 << (max(steps, 1).bit_length() - 1))

    def inputs(self, device, steps, chunks, own):
        """Leaves, and the gradient of the output, of those chunks of the sequence that are ``own``; the same on every rank."""
        tensors, fixed = self.tensors(self.sizes)
        seed = {"seed": tensors[LIKE[self.entry]]}
        each, made = steps // chunks, {}
        for nth, (name, (shape, way)) in enumerate({**tensors, **seed}.items()):
            at = shape.index("T")
            fill = lambda n: [n if k == "T" else k for k in shape]
            whole = made[name] = torch.empty(fill(each * len(own)), dtype=self.dtype, device=device)
            for k, chunk in enumerate(own):
                random = torch.Generator(device).manual_seed(1000 * nth + chunk)
                x = torch.randn(fill(each), generator=random, device=device)
                whole.narrow(at, k * each, each).copy_(x if way is None or name == "seed" else way(x, steps))
        seed = made.pop("seed")
        return {n: t.requires_grad_() for n, t in {**made, **{n: t.to(device) for n, t in fixed.items()}}.items()}, seed

    def call(self, t, group=None):
        """The output of one rank's operation, or of that over the ranks of a group."""
        of, over = (ct, {}) if group is None else (parallel, {"group": group, "design": self.design, "parts": self.parts})
        if self.entry == "linear_scan":
            return of.linear_scan(t["a"], t["x"], **over)[0]
        if self.entry == "selective_scan":
            return of.selective_scan(*(t[n] for n in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")), True, **over)
        return of.mlstm(*(t[n] for n in "qkvif"), **over)


class Rank:
    """One of the processes; ``group`` is those that take part in what is timed now."""

    def __init__(self, rank, args):
        self.rank, self.args = rank, args
        self.device = torch.device("cuda", rank) if args.device == "cuda" else torch.device("cpu")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.backends.cuda.matmul.allow_tf32 = False

    def barrier(self, group):
        if group is not None:
            dist.barrier(group, **({"device_ids": [self.rank]} if self.device.type == "cuda" else {}))

    def times(self, call, group=None):
        """Milliseconds of calls, the largest over the ranks of a group."""
        found = []
        for nth in range(2 + self.args.repeats):
            self.barrier(group)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                call()
                end.record()
                torch.cuda.synchronize()
                took = begin.elapsed_time(end)
            else:
                began = time.perf_counter()
                call()
                took = 1e3 * (time.perf_counter() - began)
            if nth >= 2:
                found.append(took)
        if group is not None:
            all_ = torch.tensor(found, device=self.device)
            dist.all_reduce(all_, dist.ReduceOp.MAX, group=group)
            found = all_.tolist()
        return found

    def both(self, case, t, seed, group=None):
        """Times of a forward pass and of a forward and a backward pass."""
        leaves = list(t.values())

        def backward():
            torch.autograd.grad(case.call(t, group), leaves, seed)

        with torch.no_grad():
            forward = self.times(lambda: case.call(t, group), group)
        return {"forward": forward, "forward_backward": self.times(backward, group)}

    def made(self, case, t, seed, group=None):
        """Output and gradients of what has time, by name."""
        out = case.call(t, group)
        names = list(case.tensors(case.sizes)[0])
        grads = torch.autograd.grad(out, [t[n] for n in names], seed)
        return {"out": out.detach(), **{f"grad_{n}": g for n, g in zip(names, grads)}}

    def errors(self, case, ours, law, count, group):
        """The relative error of each tensor over all ranks, which get their piece of the law from rank 0."""
        found = {}
        for name in ours:
            at = case.tensors(case.sizes)[0][name.removeprefix("grad_") if name != "out" else LIKE[case.entry]][0].index("T")
            each = ours[name].shape[at]
            piece = None
            for rank in range(count):
                if self.rank == 0:
                    part = law[name].narrow(at, rank * each, each).contiguous()
                    piece = part if rank == 0 else piece
                    if rank:
                        dist.send(part, rank, group=group)
                elif self.rank == rank:
                    piece = torch.empty_like(ours[name], memory_format=torch.contiguous_format)
                    dist.recv(piece, 0, group=group)
            # Some channels after the others, since float64 of all would take four times the memory.
            pairs = zip(ours[name].flatten(0, 1).split(16), piece.flatten(0, 1).split(16))
            sums = sum(torch.stack([(a.double() - b.double()).square().sum(), b.double().square().sum()]) for a, b in pairs)
            dist.all_reduce(sums, group=group)
            found[name] = float((sums[0] / sums[1]).sqrt())
        return found

    def case(self, text, count, group, chunks):
        """The records of a case on so many ranks."""
        case = Case(text, self.device)
        longest = LONGEST if self.device.type == "cuda" else 1 << 12
        fits = torch.tensor(case.fits(self.device, self.args.length or case.steps or longest), device=self.device)
        dist.all_reduce(fits, dist.ReduceOp.MIN, group=group)
        one_steps = int(fits)
        steps = self.args.length or case.steps or one_steps
        if one_steps % chunks or steps % chunks:
            raise SystemExit(f"ranks: {text}: a length of {steps if steps % chunks else one_steps} is not a multiple of {chunks} chunks")
        one = law = None
        if self.rank == 0:
            t, seed = case.inputs(self.device, one_steps, chunks, range(chunks))
            one, law = self.both(case, t, seed), self.made(case, t, seed)
            del t, seed
        mine = range(self.rank * chunks // count, (self.rank + 1) * chunks // count)
        t, seed = case.inputs(self.device, one_steps, chunks, mine)
        errors = self.errors(case, self.made(case, t, seed, group), law, count, group)
        law = None
        worst = max(errors, key=lambda n: errors[n] if errors[n] == errors[n] else math.inf)
        if not errors[worst] < BOUND[case.dtype]:
            off = f"{worst} is off by {errors[worst]:.1e}, at most {BOUND[case.dtype]:.0e}"
            raise ArithmeticError(f"{text} on {count} ranks: {off}; it is not timed")
        if steps != one_steps:
            del t, seed
            t, seed = case.inputs(self.device, steps, chunks, mine)
        many = self.both(case, t, seed, group)
        if self.device.type == "cuda":
            del t, seed
            torch.cuda.empty_cache()
        return [] if self.rank else [self.record(case, p, steps, one_steps, count, one[p], many[p], errors) for p in many]

    def record(self, case, pass_, steps, one_steps, count, one, many, errors):
        cuda = self.device.type == "cuda"
        channels = case.sizes.get("D", case.sizes.get("NH"))
        entry = "mlstm_exp" if case.entry == "mlstm" else case.entry
        choice = parallel.choose(
            entry, batch=case.sizes["B"], channels=channels, ranks=count, device=self.device.type, design=case.design, parts=case.parts
        )
        bytes_ = case.bytes(steps, pass_ != "forward")
        one_ms, ms = statistics.median(one) * steps / one_steps, statistics.median(many)
        return {
            "family": case.entry, "case": case.name(steps), "pass": pass_, "design": choice.design, "parts": choice.parts, "ranks": count,
            "dtype": {torch.float32: "f32", torch.bfloat16: "bf16"}[case.dtype], "backend": self.device.type,
            "device": torch.cuda.get_device_name(self.device) if cuda else "cpu", "clock": "device" if cuda else "call",
            "one_median_ms": one_ms, "one_min_ms": min(one) * steps / one_steps, "one_steps": one_steps,
            "median_ms": ms, "min_ms": min(many), "max_ms": max(many), "runs": len(many), "speedup": one_ms / ms, "bytes": bytes_,
            "gb_per_s": bytes_ / ms / 1e6, "one_gb_per_s": bytes_ / one_ms / 1e6, "errors": errors, "max_error": max(errors.values()),
            "version": chronaxie.__version__, "torch": torch.__version__,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        }  # fmt: skip


def show(r):
    longer = "" if r["one_steps"] == int(re.search(r"_T(\d+)", r["case"])[1]) else f" (one rank scaled from T = {r['one_steps']})"
    by = r["design"] + (f" of {r['parts']}" if r["design"] == "wavefront" else "")
    print(
        f"{r['family']} {r['case']} {r['dtype']} {r['pass']}, {r['ranks']} ranks by {by}: {r['median_ms']:.3f} ms, one rank "
        f"{r['one_median_ms']:.3f}: {r['speedup']:.2f}x; {r['gb_per_s']:.0f} and {r['one_gb_per_s']:.0f} GB/s, "
        f"off by {r['max_error']:.1e}{longer}",
        flush=True,
    )


def work(rank, args, port):
    # A rank's output and its failure are the parent's business; PyTorch says what is wrong by the exception of the first one.
    try:
        process(Rank(rank, args), args, port)
    except SystemExit as error:
        raise RuntimeError(str(error)) from None


def process(own, args, port):
    backend = "nccl" if args.device == "cuda" else "gloo"
    at = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(backend, init_method=at, rank=own.rank, world_size=max(args.ranks), timeout=WAIT)
    groups = {count: dist.new_group(list(range(count)), timeout=WAIT) for count in args.ranks}
    records, wrong = [], 0
    for text in args.cases:
        for count, group in groups.items():
            try:
                made = own.case(text, count, group, math.lcm(*args.ranks)) if own.rank < count else []
                for record in made:
                    records.append(record)
                    show(record)
            except ArithmeticError as error:
                # Every rank of the group has it.
                wrong += 1
                if own.rank == 0:
                    print(error, flush=True)
            own.barrier(dist.group.WORLD)
        if own.rank == 0 and args.json:
            with open(args.json, "w") as file:
                json.dump(records, file, indent=1)
                file.write("\n")
    dist.destroy_process_group()
    if wrong:
        raise ArithmeticError(f"{wrong} were not timed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ranks", type=lambda s: [int(n) for n in s.split(",")], help="such as 2,4; as many as GPUs by default")
    parser.add_argument("--cases", nargs="+", help="ENTRY:SIZES:DESIGN")
    parser.add_argument("--length", type=int, help="T of all cases")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="write the records to this file")
    args = parser.parse_args()
    args.cases = args.cases or CASES[args.device]
    there = torch.cuda.device_count()
    args.ranks = args.ranks or (sorted({n for n in (2, 4, 8) if n <= there}) if args.device == "cuda" else [2])
    if not args.ranks or min(args.ranks) < 2:
        sys.exit(f"ranks: --ranks {args.ranks} must be two and more, of {there} CUDA devices")
    if args.device == "cuda" and there < max(args.ranks):
        sys.exit(f"ranks: {max(args.ranks)} ranks need as many CUDA devices, and PyTorch sees {there}")
    for text in args.cases:
        Case(text, torch.device(args.device))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    # Without a GPU nothing was started that a copy of this process would miss, and PyTorch takes seconds to import.
    way = "spawn" if args.device == "cuda" else "fork"
    context = mp.start_processes(work, (args, port), nprocs=max(args.ranks), join=False, start_method=way)
    try:
        while not context.join():
            pass
    except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        said = str(error).strip().splitlines()[-1]
        sys.exit(f"ranks: rank {error.error_index}: {said}")


if __name__ == "__main__":
    main()
