#!/usr/bin/env python3
"""A step of chronaxie.optim.Shampoo, and of the same algorithm written plainly in PyTorch, block by block with roots in every step.

    PYTHONPATH=... python benchmarks/shampoo.py --device cuda --json FILE [--binary CHRONAXIE] [--rounds N] [--limit SECONDS]
        [--case lm350m ...] [--every N ...] [--precision exact ...] [--plain]

`lm350m` has the matrices of a language model of 24 layers of width 1024 and 50304 words; `L2_D256_V1000,block=128` is the general form.
A peer takes each block's roots by the coupled Newton iteration (Anil et al., "Scalable second order optimization for deep learning",
arXiv:2002.09018), looked at every fourth iteration, or (`peer_eigh`) by torch.linalg.eigh, all in float32 without TF32. First all
are held against the peer in float64, on two small matrices. With roots in every step contenders take turns on the same gradients, and
what they made of the parameters is compared once more; the first turn, which makes state and kernels, is not counted. Ours are steps with
fused=True, and with --plain without it, and of a CUDA graph of such a step too. --limit is the
time of a peer's turns together: one that takes longer is timed on the blocks of one layer, times the model's blocks over those, and
its record says `layer`. Elsewhere steps follow each other, whole periods of roots. Times are a caller's, awaited; `graph_*` are of a
CUDA graph of a step. `native_ms` is what `chronaxie bench shampoo` of --binary says, the fastest variant, by the device's clock.
"""

import argparse
import gc
import itertools
import json
import math
import statistics
import subprocess
import sys
import time

import torch

import chronaxie
from chronaxie import optim

RATE, BETAS, EPS, ABSOLUTE, RELATIVE = 1e-2, (0.9, 0.999), 1e-8, 1e-12, 1e-6
# Iterations between two looks at the residual of the peer's Newton, and the most there are.
LOOK, MOST = 4, 100
# The largest relative error that a contender may have on small matrices, and their shapes with the longest block.
BOUNDS = {"exact": 1e-3, "fast": 1e-2, "peer": 1e-3, "peer_eigh": 1e-3}
SMALL, SMALL_BLOCK, SMALL_STEPS, SMALL_DECAY = [(96, 64), (130, 70)], 64, 5, 0.1


class Model:
    """The shapes of a case, those of one layer first, and what `chronaxie bench` calls the case."""

    def __init__(self, case):
        sizes, *options = ("L24_D1024_V50304" if case == "lm350m" else case).split(",")
        given = {part[0]: int(part[1:]) for part in sizes.split("_")}
        self.block = int(dict(o.split("=") for o in options).get("block", 1024))
        self.layers, d, words = given["L"], given["D"], given["V"]
        self.layer = [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)]
        self.shapes = self.layer * self.layers + [(words, d)]
        if any(1 in shape or math.prod(shape) <= self.block for shape in self.shapes):
            raise SystemExit(f"{case}: blocks of {self.block} make a vector of one of {self.shapes}")
        self.native = case if case == "lm350m" else f"L{self.layers}_M{d}_N{d},words={words},block={self.block}"

    def blocks(self, shapes):
        return sum(math.prod(-(-n // self.block) for n in shape) for shape in shapes)


def newton(a):
    """a^(-1/4), and how many iterations it took."""
    eye = torch.eye(len(a), dtype=a.dtype, device=a.device)
    z = 5 / (2 * torch.linalg.matrix_norm(a))
    x, m, last = eye * z**0.25, a * z, math.inf
    for done in range(LOOK, MOST + 1, LOOK):
        for _ in range(LOOK):
            t = 1.25 * eye - 0.25 * m
            x, square = x @ t, t @ t
            m = (square @ square) @ m
        # Of the whole matrix: an eigenvalue that is still small hardly shows in the largest number. Roundings leave something,
        # which falls no further.
        left = float(torch.linalg.matrix_norm(m - eye))
        if left < 2 * len(a) * torch.finfo(a.dtype).eps or left < 1e-2 and left > 0.5 * last:
            break
        last = left
    return x, done


def eigen(a):
    values, vectors = torch.linalg.eigh(a)
    # Damping is part of a, so that what is below it is rounding.
    least = RELATIVE / 2 * torch.linalg.vector_norm(values)
    return (vectors * torch.maximum(values, least) ** -0.25) @ vectors.mT, 0


class Peer:
    """The algorithm of chronaxie.optim.Shampoo with its defaults and roots in every step, of matrices, block by block."""

    def __init__(self, parameters, block, root, decay=0.0):
        self.root, self.decay, self.steps, self.iterations, self.work = root, decay, 0, [], []
        for at, p in enumerate(parameters):
            first, second = torch.zeros_like(p), torch.zeros_like(p)
            for i, j in itertools.product(*(range(0, n, block) for n in p.shape)):
                where = slice(i, i + block), slice(j, j + block)
                w = p[where]
                left, right = w.new_zeros(w.shape[0], w.shape[0]), w.new_zeros(w.shape[1], w.shape[1])
                self.work.append((at, where, w, first[where], second[where], left, right))

    def inverse(self, factor, correction):
        a = factor / correction
        a.diagonal().add_((RELATIVE * torch.linalg.matrix_norm(a)).clamp_min(ABSOLUTE))
        x, iterations = self.root(a)
        self.iterations.append(iterations)
        return x

    def step(self, grads):
        self.steps += 1
        self.iterations = []
        (b1, b2), (c1, c2) = BETAS, (1 - b**self.steps for b in BETAS)
        for at, where, w, first, second, left, right in self.work:
            g = grads[at][where]
            first.mul_(b1).add_(g, alpha=1 - b1)
            second.mul_(b2).addcmul_(g, g, value=1 - b2)
            left.mul_(b2).addmm_(g, g.mT, alpha=1 - b2)
            right.mul_(b2).addmm_(g.mT, g, alpha=1 - b2)
            m = first / c1
            update = self.inverse(left, c2) @ m @ self.inverse(right, c2)
            adam = m / ((second / c2).sqrt() + EPS)
            update *= torch.linalg.matrix_norm(adam) / (torch.linalg.matrix_norm(update) + 1e-16)
            w.sub_(RATE * (update + self.decay * w))


class Ours:
    """chronaxie.optim.Shampoo on parameters of its own."""

    # Whether one native step takes all parameters.
    fused = True

    def __init__(self, parameters, block, precision, every=1, decay=0.0, capturable=False):
        self.parameters = parameters
        self.optimizer = optim.Shampoo(
            parameters, RATE, BETAS, absolute=ABSOLUTE, relative=RELATIVE, grafting_eps=EPS, weight_decay=decay, precision=precision,
            max_preconditioner_dim=block, precondition_frequency=every, capturable=capturable,
            fused=self.fused and not capturable,
        )  # fmt: skip

    def step(self, grads):
        for p, g in zip(self.parameters, grads):
            p.grad = g
        self.optimizer.step()


ROOTS = {"peer": newton, "peer_eigh": eigen}


def apart(made, law):
    """The largest relative error of a matrix."""
    norm = torch.linalg.matrix_norm
    return max(float(norm(a.double() - b.double()) / norm(b.double())) for a, b in zip(made, law))


def parity(device, precisions):
    """Of each contender the largest relative error of what some steps change, of the peer in float64."""
    generator = torch.Generator().manual_seed(1)
    drawn = lambda scale: [(scale * torch.randn(shape, generator=generator)).to(device) for shape in SMALL]
    start, grads = drawn(1.0), [drawn(1e-2) for _ in range(SMALL_STEPS)]
    law = [p.double() for p in start]
    other = Peer(law, SMALL_BLOCK, eigen, SMALL_DECAY)
    for some in grads:
        other.step([g.double() for g in some])
    errors = {}
    for name in [*precisions, *ROOTS]:
        made = [p.clone() for p in start]
        one = Peer(made, SMALL_BLOCK, ROOTS[name], SMALL_DECAY) if name in ROOTS else Ours(made, SMALL_BLOCK, name, decay=SMALL_DECAY)
        for some in grads:
            one.step(some)
        changes = lambda some: [a.double() - b.double() for a, b in zip(some, start)]
        errors[name] = apart(changes(made), changes(law))
    return errors


class Bench:
    def __init__(self, args, model):
        self.args, self.model, self.device = args, model, torch.device(args.device)
        self.on_gpu = self.device.type == "cuda"
        self.wait = torch.cuda.synchronize if self.on_gpu else lambda: None
        self.generator = torch.Generator(self.device).manual_seed(2)
        self.grads = self.zeros(model.shapes)

    def zeros(self, shapes):
        return [torch.zeros(shape, device=self.device) for shape in shapes]

    def draw(self):
        for g in self.grads:
            g.normal_(0.0, 1e-2, generator=self.generator)

    def timed(self, call, *inputs):
        self.wait()
        began = time.perf_counter()
        call(*inputs)
        self.wait()
        return 1e3 * (time.perf_counter() - began)

    def free(self):
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def peer(self, root):
        """A peer with its parameters, in how many of the rounds it can take part, and what its times are to be multiplied by; None where
        even a layer takes too long. The least of one block's first steps says how long it takes."""
        m, one = self.model, min(self.model.block, *self.model.layer[1])
        trial = Peer(self.zeros([(one, one)]), one, root)
        g = [torch.randn(one, one, generator=self.generator, device=self.device)]
        took = min(self.timed(trial.step, g) for _ in range(3)) / 1e3
        for shapes in (m.shapes, m.layer):
            turns = min(1 + self.args.peer_rounds, self.args.rounds, int(self.args.limit / (took * m.blocks(shapes))))
            if turns > 1:
                parameters = self.zeros(shapes)
                return Peer(parameters, m.block, root), parameters, turns, m.blocks(m.shapes) / m.blocks(shapes)
        print(f"one block of {one} takes {1e3 * took:.1f} ms: a layer twice is beyond --limit {self.args.limit}", file=sys.stderr)
        return None

    def turns(self, precisions):
        """With roots in every step: records by precision."""
        ours = {p: Ours(self.zeros(self.model.shapes), self.model.block, p) for p in precisions}
        peers = {name: made for name, root in ROOTS.items() if name in self.args.peer and (made := self.peer(root))}
        times = {name: [] for name in [*ours, *peers]}
        compared = {}
        for turn in range(self.args.rounds):
            self.draw()
            for name, contender in ours.items():
                times[name].append(self.timed(contender.step, self.grads))
            for name, (contender, parameters, most, by) in peers.items():
                if turn >= most:
                    continue
                times[name].append(by * self.timed(contender.step, self.grads))
                if turn + 1 == most:
                    # All parameters were zeros: what they are is what steps made.
                    compared.update({(p, name): apart(ours[p].parameters[: len(parameters)], parameters) for p in ours})
        records = {}
        for p in ours:
            record = records[p] = summary(times[p][1:])
            for name, (contender, _, most, by) in peers.items():
                pairs = list(zip(times[p], times[name]))[1:]
                record.update({
                    f"{name}_ms": statistics.median(times[name][1:]), f"{name}_steps": most - 1,
                    f"{name}_of": "model" if by == 1 else f"layer, times {by:.4g}",
                    f"{name}_ratio": statistics.median(b / a for a, b in pairs), f"{name}_apart": compared[p, name],
                })  # fmt: skip
                if any(contender.iterations):
                    record[f"{name}_iterations"] = statistics.mean(contender.iterations)
        return records

    def row(self, precision, every):
        """Steps behind each other, behind the first, which makes all roots, and two more."""
        one = Ours(self.zeros(self.model.shapes), self.model.block, precision, every)
        return summary(self.steps(lambda: one.step(self.grads), every, 3))

    def graph(self, precision, every):
        one = Ours(self.zeros(self.model.shapes), self.model.block, precision, every, capturable=True)
        for _ in range(2):
            self.draw()
            one.step(self.grads)
        self.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            one.step(self.grads)
        return {f"graph_{name}": value for name, value in summary(self.steps(graph.replay, every, 3)).items()}

    def steps(self, call, every, first):
        times = []
        for _ in range(first + -(-self.args.rounds // every) * every):
            self.draw()
            times.append(self.timed(call))
        return times[first:]

    def native(self, precision, every):
        """The fastest variant's record."""
        case = f"{self.model.native},every={every}" + (",precision=fast" if precision == "fast" else "")
        command = [self.args.binary, "bench", "shampoo", "--quiet", "--backend", self.device.type, "--seconds", "0.15"]
        done = subprocess.run([*command, "--case", case, "--json", "-"], stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout) if done.returncode == 0 else []
        # Where there are no products of halves, a record says so.
        found = [r for r in found if r["precision"] == precision]
        if not found:
            print(f"{' '.join(command)} --case {case}: exit {done.returncode}, no record of precision {precision}", file=sys.stderr)
            return {}
        best = min(found, key=lambda r: r["median_ms"])
        return dict(native_ms=best["median_ms"], native_max_ms=best["max_ms"], native_case=best["case"], native_variant=best["variant"])


def summary(times):
    return dict(median_ms=statistics.median(times), mean_ms=statistics.mean(times), max_ms=max(times), steps=len(times))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--case", action="append")
    parser.add_argument("--every", action="append", type=int, help="steps between two roots; 1, 20 and 100")
    parser.add_argument("--precision", action="append", choices=["exact", "fast"], help="both, on a GPU")
    parser.add_argument("--peer", action="append", choices=list(ROOTS), help="both")
    parser.add_argument("--plain", action="store_true", help="without fused=True, and in a CUDA graph too")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peer-rounds", type=int, default=2, help="of the rounds those that a peer is timed in")
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--binary")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds: the first is not counted, so that there must be two")
    args.peer = args.peer or list(ROOTS)
    Ours.fused = not args.plain
    on_gpu = torch.device(args.device).type == "cuda"
    precisions = args.precision or (["exact", "fast"] if on_gpu else ["exact"])
    torch.set_float32_matmul_precision("highest")
    errors = parity(args.device, precisions)
    print("parity: " + ", ".join(f"{name} off by {error:.1e}" for name, error in errors.items()), flush=True)
    for name, error in errors.items():
        if not error < BOUNDS[name]:
            raise SystemExit(f"{name} is off by {error:.2e}: nothing is timed")
    records = []
    for case in args.case or ["lm350m"]:
        model = Model(case)
        for every in args.every or [1, 20, 100]:
            bench = Bench(args, model)
            # While PyTorch holds little memory.
            native = {p: bench.native(p, every) if args.binary else {} for p in precisions}
            turns = bench.turns(precisions) if every == 1 else {}
            for p in precisions:
                bench.free()
                times = turns.get(p) or bench.row(p, every)
                bench.free()
                graph = bench.graph(p, every) if on_gpu and args.plain else {}
                records.append(dict(
                    family="shampoo", case=case, every=every, precision=p, fused=Ours.fused, block=model.block,
                    device=torch.cuda.get_device_name() if on_gpu else "cpu", version=chronaxie.__version__,
                    torch_version=torch.__version__, parity=errors[p], peer_parity={n: errors[n] for n in ROOTS},
                    **times, **graph, **native[p],
                ))  # fmt: skip
                says = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in {**times, **graph, **native[p]}.items()}
                print(f"{case}, every {every}, {p}: " + ", ".join(f"{k} {v}" for k, v in says.items()), flush=True)
                if args.json:
                    with open(args.json, "w") as f:
                        json.dump(records, f, indent=2)
            bench.free()


if __name__ == "__main__":
    main()
