#!/usr/bin/env python3
"""Inverse roots by chronaxie.optim.inverse_root, by eigenvalues and by a plain coupled Newton iteration in PyTorch, in one run.

    PYTHONPATH=... python benchmarks/inverse_root.py --device cuda --json FILE [--rounds N] [--limit SECONDS] [--case 64x128 ...]

A case is that of `chronaxie bench inverse_root`: so many matrices x their order, and p, kappa, absolute and relative behind commas. Without
kappa a matrix is A A^T / 2n with A n x 2n normal, which has a condition number of about 34; with it, log-spaced eigenvalues 1 to 1/kappa.
All get the same float32 matrices, damp them alike and have float32 results, without TF32: `eigh` is torch.linalg.eigh, `newton` the
iteration of Anil et al. ("Scalable second order optimization for deep learning", arXiv:2002.09018) on the whole batch, looked at in every
iteration, `newton_blind` as many iterations without a look; on the CPU `numpy` is numpy.linalg.eigh, which computes in float64 whatever
it is given, and `scipy` scipy.linalg.eigh, which does not, matrix by matrix.

An error is relative, in the Frobenius norm, to the root by eigenvalues in float64: `error` the largest of the batch, `mean_error` their
mean. First all are held to it; what is off is not timed. Contenders take turns; times are a caller's, awaited: `median_ms`, and `row_ms`
of calls behind each other, whose caches and threads are their own, on a GPU by its events. --limit is the time of all turns of a
contender: a slow one has fewer, and its `runs` say how many. `target_ms`, of an H200 and of calls behind each other, and `target_error`,
of the largest error, are the project's own.
"""

import argparse
import importlib.util
import json
import math
import os
import statistics
import time

import numpy as np
import torch

import chronaxie
from chronaxie import optim

LADDER = "1x256,kappa={},absolute=0,relative=0"
# ms and the error of the case, where there are such.
TARGETS = {
    "64x128": (0.25, 8.5e-7),
    "16x512": (1.2, 8.8e-7),
    "4x1024": (2.2, 4.2e-6),
    "1x2048": (3.5, 1.1e-5),
    "1x4096": (25.0, 2.0e-5),
    LADDER.format("1e2"): (None, 5e-6),
    LADDER.format("1e4"): (None, 2e-5),
    LADDER.format("1e6"): (None, 1e-3),
}
CASES = {"cuda": list(TARGETS), "cpu": ["64x128", "4x1024", *(LADDER.format(k) for k in ("1e2", "1e4", "1e6"))]}
OPTIONS = {"p": 4, "kappa": 0.0, "absolute": 1e-12, "relative": 1e-6}
# The most iterations of Newton.
MOST = 100
# A peer that is further off is not timed.
WRONG = 0.1
# Calls between two events.
ROW = 5


class Case:
    """Matrices, their damping and their roots in float64."""

    def __init__(self, text, device):
        try:
            sizes, *options = text.split(",")
            self.count, self.n = map(int, sizes.split("x"))
            given = {name: float(value) for name, value in (o.split("=") for o in options)}
        except ValueError:
            raise SystemExit(f"inverse_root: case `{text}` is not COUNTxORDER[,OPTION=NUMBER ...] such as {LADDER.format('1e4')}") from None
        if given.keys() - OPTIONS.keys():
            raise SystemExit(f"inverse_root: case `{text}`: options are {', '.join(OPTIONS)}")
        self.text, options = text, {**OPTIONS, **given}
        self.p, self.kappa, self.absolute, self.relative = int(options["p"]), *(options[o] for o in ("kappa", "absolute", "relative"))
        self.a = self.drawn(torch.Generator(device).manual_seed(1), device)
        exact = self.a.double()
        values, vectors = torch.linalg.eigh(exact)
        damped = values + self.damping(exact)[..., 0]
        if not bool((damped > 0).all()):
            raise SystemExit(f"{text}: an eigenvalue of the float32 matrix is {float(damped.min()):.1e}: it has no root")
        self.law = (vectors * (damped ** (-1 / self.p))[..., None, :]) @ vectors.mT

    def drawn(self, random, device):
        normal = lambda *shape: torch.randn(self.count, *shape, dtype=torch.float64, device=device, generator=random)
        if self.kappa == 0:
            factor = normal(self.n, 2 * self.n)
            a = factor @ factor.mT / (2 * self.n)
        else:
            values = torch.logspace(0, -math.log10(self.kappa), self.n, dtype=torch.float64, device=device)
            turn = torch.linalg.qr(normal(self.n, self.n))[0]
            a = (turn * values) @ turn.mT
        return ((a + a.mT) / 2).float()

    def damping(self, a):
        return (self.relative * torch.linalg.matrix_norm(a, keepdim=True)).clamp_min(self.absolute)

    def errors(self, root):
        norm = torch.linalg.matrix_norm
        return norm(root.double() - self.law) / norm(self.law)

    def bound(self):
        """What is above is wrong, and not rounding."""
        return 1e-4 + 5e-9 * self.kappa

    def ours(self):
        return optim.inverse_root(self.a, self.p, absolute=self.absolute, relative=self.relative)

    def eigh(self):
        values, vectors = torch.linalg.eigh(self.a)
        scale = (values.clamp_min(0) + self.damping(self.a)[..., 0]) ** (-1 / self.p)
        return (vectors * scale[..., None, :]) @ vectors.mT

    def newton(self, blind=None):
        """The root and its iterations, which are `blind` where that is given."""
        p, a, eye = self.p, self.a, torch.eye(self.n, device=self.a.device)
        a = a + self.damping(a) * eye
        z = (p + 1) / (2 * torch.linalg.matrix_norm(a, keepdim=True))
        x, m, last = z ** (1 / p) * eye, z * a, None
        for done in range(1, 1 + (blind or MOST)):
            t = (1 + 1 / p) * eye - m / p
            x, m = x @ t, torch.linalg.matrix_power(t, p) @ m
            if blind is None:
                # Of a whole matrix: an eigenvalue that is still small hardly shows in the largest number. Roundings leave something,
                # which falls no further.
                left = torch.linalg.matrix_norm(m - eye)
                ends = left < 2 * self.n * torch.finfo(a.dtype).eps
                if last is not None:
                    ends |= (left < 1e-2) & (left > 0.5 * last)
                if bool(ends.all()):
                    break
                last = left
        return x, done

    def numpy(self):
        a = self.a.numpy()
        return self.scaled(a, *np.linalg.eigh(a))

    def scipy(self):
        import scipy.linalg

        a = self.a.numpy()
        pairs = [scipy.linalg.eigh(one, driver="evd", check_finite=False) for one in a]
        return self.scaled(a, *(np.stack(some) for some in zip(*pairs)))

    def scaled(self, a, values, vectors):
        eps = np.maximum(np.float32(self.relative) * np.linalg.norm(a, axis=(-2, -1))[:, None], np.float32(self.absolute))
        scale = (np.maximum(values, 0) + eps) ** np.float32(-1 / self.p)
        return torch.from_numpy((vectors * scale[:, None, :]) @ vectors.swapaxes(-2, -1))


class Bench:
    def __init__(self, args):
        self.args, self.device = args, torch.device(args.device)
        self.on_gpu = self.device.type == "cuda"
        self.wait = torch.cuda.synchronize if self.on_gpu else lambda: None

    def timed(self, call):
        self.wait()
        began = time.perf_counter()
        call()
        self.wait()
        return 1e3 * (time.perf_counter() - began)

    def row(self, call, turns):
        """Of one of so many calls behind each other, on a GPU by events, some calls apart."""
        if not self.on_gpu:
            return statistics.median([self.timed(call) for _ in range(1 + turns)][1:])
        found, calls = [], min(ROW, turns)
        for _ in range(turns // calls):
            self.wait()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(calls):
                call()
            end.record()
            self.wait()
            found.append(begin.elapsed_time(end) / calls)
        return statistics.median(found)

    def turns(self, call, first):
        """In how many rounds what took so many ms at first can take part; a call that takes no more than that makes it warm."""
        limit = 1e3 * self.args.limit
        took = first if first > limit else self.timed(call)
        return max(1, min(self.args.rounds, int(limit / took)))

    def case(self, text):
        case = Case(text, self.device)
        root, record = optim.inverse_root(case.a, case.p, absolute=case.absolute, relative=case.relative, record=True)
        iterations = case.newton()[1]
        blind = lambda: case.newton(iterations)[0]
        calls = {"ours": case.ours, "eigh": case.eigh, "newton": lambda: case.newton()[0], "newton_blind": blind}
        if not self.on_gpu:
            calls["numpy"] = case.numpy
            if importlib.util.find_spec("scipy"):
                calls["scipy"] = case.scipy
        errors, means, turns = {}, {}, {}
        for name, call in calls.items():
            kept = []
            first = self.timed(lambda: kept.append(call()))
            off = case.errors(kept.pop())
            errors[name], means[name] = float(off.max()), float(off.mean())
            if errors[name] < (case.bound() if name == "ours" else WRONG):
                turns[name] = self.turns(call, first)
            elif name == "ours":
                raise SystemExit(f"{text}: our roots are off by {errors[name]:.2e}: nothing is timed")
            else:
                print(f"{text}: {name} is off by {errors[name]:.2e}: it is not timed", flush=True)
        times = {name: [] for name in turns}
        for turn in range(self.args.rounds):
            for name, most in turns.items():
                if turn < most:
                    times[name].append(self.timed(calls[name]))
        rows = {name: self.row(calls[name], most) for name, most in turns.items()}
        target, most = TARGETS.get(text, (None, None))
        target = target if self.on_gpu else None
        ours = statistics.median(times["ours"])
        found = dict(
            family="inverse_root", case=text, device=torch.cuda.get_device_name() if self.on_gpu else "cpu",
            threads=None if self.on_gpu else chronaxie.get_num_threads(), version=chronaxie.__version__, torch_version=torch.__version__,
            numpy_version=None if self.on_gpu else np.__version__, median_ms=ours, min_ms=min(times["ours"]), row_ms=rows["ours"],
            runs=turns["ours"], error=errors["ours"], mean_error=means["ours"], iterations=int(record.iterations.max()),
            statuses=sorted(set(record.status.tolist())),
            target_ms=target, target_met=None if target is None else rows["ours"] <= target,
            target_error=most, target_error_met=None if most is None else errors["ours"] <= most, newton_iterations=iterations,
        )  # fmt: skip
        for name in list(calls)[1:]:
            found.update({f"{name}_error": errors[name], f"{name}_mean_error": means[name]})
            if name in turns:
                ratio = statistics.median(b / a for a, b in zip(times["ours"], times[name]))
                found.update({
                    f"{name}_ms": statistics.median(times[name]), f"{name}_ratio": ratio, f"{name}_runs": turns[name],
                    f"{name}_row_ms": rows[name], f"{name}_row_ratio": rows[name] / rows["ours"],
                })  # fmt: skip
        return found, [name for name in turns if name != "ours"]


def show(r, peers):
    against = lambda value, met: "" if met is None else f" (at most {value:g}: {'met' if met else 'MISSED'})"
    time_, error = against(r["target_ms"], r["target_met"]), against(r["target_error"], r["target_error_met"])
    print(f"{r['case']}: {r['median_ms']:.3f} ms, in a row {r['row_ms']:.3f}{time_}, off by {r['error']:.1e}{error}")
    for name in peers:
        turns, row = (f"{r[f'{name}_{kind}ms']:.3f} ms, {r[f'{name}_{kind}ratio']:.2f}x" for kind in ("", "row_"))
        print(f"    {name} {turns}, in a row {row}, off by {r[f'{name}_error']:.1e}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--case", action="append")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=6.0, help="seconds of all turns of a contender")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds: there must be one")
    if "CHRONAXIE_NUM_THREADS" not in os.environ:
        chronaxie.set_num_threads(torch.get_num_threads())
    torch.set_float32_matmul_precision("highest")
    bench, records = Bench(args), []
    for text in args.case or CASES[bench.device.type]:
        record, peers = bench.case(text)
        records.append(record)
        show(record, peers)
        if args.json:
            with open(args.json, "w") as f:
                json.dump(records, f, indent=2)


if __name__ == "__main__":
    main()
