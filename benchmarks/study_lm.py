#!/usr/bin/env python3
"""How fast each optimizer teaches a small character language model, by steps and by wall time.

    python benchmarks/study_lm.py --out DIR [--device cpu|cuda] [--minutes M] [--eager] [--optimizers adamw,shampoo,soap,kfac]
        [--seeds 1,2,3] [--steps N] [--share 0.75] [--short]

The model: characters of examples/data/shakespeare, an embedding, xLSTM blocks (examples/xlstm.py, on chronaxie's mLSTM) and a
linear head, float32. Learning rates are tuned first on seed 0 with a third of the steps; while the best is at an end of its
list, the list grows there: AdamW's, the longest, by one, and the others up to the length that AdamW's has before, so that none
is tuned over more. Then every optimizer learns with every seed: the same windows of the text and the same first weights for
all. AdamW has --steps steps and the others --share of them; the rate of each warms up over a twentieth of its own steps and
falls as a cosine to a tenth, so that none is compared in the middle of its schedule.

DIR/study-lm.json, written after each run: settings, what was tried, and of every run the points (step, seconds, loss on the
held-out tenth of the text, mean training loss since the point before). The table and DIR/study-lm.svg tell when the mean over
seeds of each one's held-out loss is first seen at or below the last one of AdamW's mean, and that in parts of AdamW's own steps
and seconds to there.

Seconds are those of whole training steps: the device is awaited where the loss is looked at, and looking at it is not counted.
Every optimizer takes some steps first that nothing is kept of, so that compiling kernels and loading libraries is not counted,
but the first step of a run is. On a GPU steps are captured in a CUDA graph where the optimizer can be (all but KFAC) and where
that is the faster way, AdamW as the others; --eager captures none. Capturing is counted, and told apart (capture_seconds).
--minutes shortens all runs alike so that they fit (those of the seeds once more when the rates are known), and leaves out what
would end later. --short takes seconds: a tiny model, one seed, nothing tuned. Other optimizers: muon. Exit status 1 where a run
failed.
"""

import argparse
import gc
import json
import math
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import chronaxie
from chronaxie.optim import KFAC, SOAP, Muon, Shampoo

from study import picture

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
from xlstm import RMSNorm, XLSTMBlock  # noqa: E402

# The rates that are tried, and what is passed beside them; found on small models on a CPU, where a first moment that decays by
# 0.85 served AdamW, as it did Shampoo and SOAP, better than 0.9 and 0.95.
BETAS = (0.85, 0.95)
OWN = {
    "adamw": ([1e-3, 2e-3, 4e-3, 8e-3, 16e-3], dict(betas=BETAS)),
    "shampoo": ([2.5e-3, 5e-3, 1e-2], dict(betas=BETAS, precondition_vectors=False)),
    "soap": ([2.5e-3, 5e-3, 1e-2], dict(betas=BETAS)),
    "muon": ([2e-2, 4e-2, 8e-2], dict(adamw_lr=1e-2)),
    "kfac": ([0.5, 1.0, 2.0], dict(terms="positions", damping=0.1, damping_mode="factored", factor_frequency=5, adamw_lr=1e-2)),
}
# KFAC's kl_clip, at a rate of 1: it goes with the rate's square, or the rate would tell nothing where the bound binds.
KL_CLIP = 1e-2
# Which hyperparameters are scheduled, and by which power.
SCHEDULED = {"lr": 1, "adamw_lr": 1, "kl_clip": 2}
# What a study with a margin wants of a method: at most so much of AdamW's steps, and not more of its seconds.
WANTED = 0.75
HELD_OUT = 0.1
WINDOWS_AT_ONCE = 64
UNCOUNTED = 12
LOOKS = 40
SIZES = {
    "cpu": dict(width=64, heads=2, blocks=2, batch=16, length=64, windows=128, block=96, steps=300),
    "cuda": dict(width=384, heads=6, blocks=2, batch=96, length=256, windows=192, block=192, steps=600),
    # So small that the wheel of the tests, hardly optimised, takes seconds.
    "short": dict(width=32, heads=1, blocks=1, batch=8, length=32, windows=16, block=64, steps=40),
}


class Model(nn.Module):
    """Logits ``[B, T, symbols]`` of the characters that follow ``[B, T]``."""

    def __init__(self, symbols, width, heads, blocks):
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.blocks = nn.ModuleList(XLSTMBlock(width, heads) for _ in range(blocks))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x, _ = block(x)
        return self.head(self.norm(x))


class Text:
    """The characters as numbers on the device, those to learn from apart from those that are held out."""

    def __init__(self, device):
        text = (ROOT / "examples/data/shakespeare/plays.txt").read_text(encoding="ascii")
        symbols = {c: number for number, c in enumerate(sorted(set(text)))}
        numbers = torch.tensor([symbols[c] for c in text], device=device)
        cut = int(len(text) * (1 - HELD_OUT))
        self.symbols, self.learnt, self.tested = len(symbols), numbers[:cut], numbers[cut:]


def made(name, args, model, rate, capturable):
    """An optimizer; where a step is captured its rates are tensors."""
    there = next(model.parameters()).device
    options = dict(OWN[name][1])
    if capturable:
        rate = torch.tensor(rate, device=there)
        options |= {"adamw_lr": torch.tensor(options["adamw_lr"], device=there)} if "adamw_lr" in options else {}
    if name == "adamw":
        return torch.optim.AdamW(
            model.parameters(), lr=rate, weight_decay=0.0, capturable=capturable, fused=there.type == "cuda", **options
        )
    if name == "kfac":
        return KFAC(model, lr=rate, inverse_frequency=args.every, kl_clip=KL_CLIP * rate**2, **options)
    if name == "muon":
        return Muon(model.parameters(), lr=rate, capturable=capturable, **options)
    kind = {"shampoo": Shampoo, "soap": SOAP}[name]
    options |= dict(precondition_frequency=args.every, max_preconditioner_dim=args.block)
    return kind(model.parameters(), lr=rate, capturable=capturable, **options)


def shape_of(steps):
    """What of the whole rate each step has: a warm-up over a twentieth of them, then a cosine to a tenth."""
    warm = max(1, steps // 20)
    falling = [0.55 + 0.45 * math.cos(math.pi * (s - warm) / max(1, steps - warm)) for s in range(warm, steps)]
    return [(s + 1) / (warm + 1) for s in range(warm)] + falling


class Run:
    """One training run; nothing in a step waits for the device."""

    def __init__(self, args, text, name, rate, seed, steps, captured=False):
        self.args, self.text, self.name, self.steps, self.captured = args, text, name, steps, captured
        self.on_gpu = args.device.startswith("cuda")
        torch.manual_seed(seed)
        self.model = Model(text.symbols, args.width, args.heads, args.blocks).to(args.device)
        self.optimizer = made(name, args, self.model, rate, captured)
        self.group = self.optimizer.param_groups[0]
        # KFAC has a bound on the square of its steps, which would undo the schedule where it is what binds.
        self.rates = {key: (float(self.group[key]), power) for key, power in SCHEDULED.items() if self.group.get(key) is not None}
        self.shape = shape_of(steps)
        starts = torch.Generator().manual_seed(seed + 1000)
        places = torch.randint(len(text.learnt) - args.length, (steps, args.batch), generator=starts)
        self.places, self.shapes = places.to(args.device), torch.tensor(self.shape, device=args.device)
        self.offsets = torch.arange(args.length + 1, device=args.device)
        self.at = torch.zeros(1, dtype=torch.int64, device=args.device)
        self.sum = torch.zeros((), device=args.device)
        self.graph, self.done, self.capture_seconds = None, 0, 0.0

    def body(self):
        """One step, whose number the device counts."""
        window = self.text.learnt[self.places.index_select(0, self.at)[0][:, None] + self.offsets]
        if self.captured:
            for key, (rate, power) in self.rates.items():
                self.group[key].copy_(self.shapes.index_select(0, self.at)[0] ** power * rate)
        logits = self.model(window[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.sum += loss.detach()
        self.at += 1

    def step(self):
        if self.graph is not None:
            self.graph.replay()
        elif self.captured and self.done == 3:
            # Three steps have loaded and compiled what one calls.
            began = self.wait()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.body()
            self.capture_seconds = self.wait() - began
            self.graph.replay()
        elif self.captured:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.body()
            torch.cuda.current_stream().wait_stream(side)
        else:
            for key, (rate, power) in self.rates.items():
                self.group[key] = rate * self.shape[self.done] ** power
            self.body()
        self.done += 1

    def wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    @torch.no_grad()
    def held_out(self):
        """The mean loss of the held-out text in windows side by side, and all of them."""
        length, tested = self.args.length, self.text.tested
        count = min((len(tested) - 1) // length, self.args.windows)
        ends = count * length
        inputs, wanted = tested[:ends].view(count, length), tested[1 : ends + 1].view(count, length)
        self.model.eval()
        total = 0.0
        for x, y in zip(inputs.split(WINDOWS_AT_ONCE), wanted.split(WINDOWS_AT_ONCE)):
            total += cross_entropy(self.model(x).flatten(0, 1), y.flatten(), reduction="sum").item()
        self.model.train()
        return total / ends

    def train(self, look):
        """The points of the run, up to where its loss is no number any more."""
        points, seconds, before = [[0, 0.0, self.held_out(), None]], 0.0, 0
        began = self.wait()
        try:
            for step in range(1, self.steps + 1):
                self.step()
                if step % look and step != self.steps:
                    continue
                now = self.wait()
                seconds += now - began
                points.append([step, seconds, self.held_out(), self.sum.item() / (step - before)])
                if not math.isfinite(points[-1][2]):
                    break
                self.sum.zero_()
                before, began = step, self.wait()
        except chronaxie.DataError as error:
            # On the CPU gradients that are not finite are refused.
            points.append([self.done, seconds, math.inf, math.inf])
            print(f"lm {self.name}: {error}", flush=True)
        if isinstance(self.optimizer, KFAC):
            self.optimizer.close()
        return points

    def brief(self):
        """Takes steps that nothing is kept of: the seconds of one, by the last half of them, of a look at the loss, and what else
        the run took."""
        start, half = self.wait(), self.steps // 2
        for step in range(self.steps):
            if step == half:
                began = self.wait()
            self.step()
        ended = self.wait()
        a_step = (ended - began) / (self.steps - half)
        self.held_out()
        looked = self.wait() - ended
        if isinstance(self.optimizer, KFAC):
            self.optimizer.close()
        return a_step, looked, max(0.0, began - start - half * a_step)


def reached(points, goal):
    """Steps and seconds where a loss is first at most `goal`; None where there is no such point."""
    return next(((step, seconds) for step, seconds, loss in points if loss <= goal), None)


def mean_curve(runs):
    """The mean over runs of step, seconds and held-out loss, point by point."""
    return [[statistics.fmean(p[k] for p in points) for k in range(3)] for points in zip(*(run["points"] for run in runs))]


def table_of(runs, names):
    """When the mean of each of `names` over its runs reaches what the first one's ends with, also in parts of the first one's
    steps and seconds to there."""
    own = {name: [run for run in runs if run["optimizer"] == name and not run["diverged"]] for name in names}
    curves = {name: mean_curve(some) for name, some in own.items() if some}
    if names[0] not in curves:
        return []
    goal = curves[names[0]][-1][2]
    base, table = reached(curves[names[0]], goal), []
    for name, curve in curves.items():
        hit, last = reached(curve, goal), [run["points"][-1] for run in own[name]]
        row = {
            "optimizer": name,
            "rate": own[name][0]["rate"],
            "runs": len(own[name]),
            "diverged": sum(run["optimizer"] == name and run["diverged"] for run in runs),
            "captured": own[name][0]["captured"],
            "steps": own[name][0]["steps"],
            "last_loss": curve[-1][2],
            "lowest_loss": min(p[2] for p in curve),
            "last_losses": [p[2] for p in last],
            "last_training_loss": statistics.fmean(p[3] for p in last),
            "ms_a_step": statistics.fmean(1e3 * p[1] / p[0] for p in last),
            "reached_at_step": hit and hit[0],
            "reached_at_seconds": hit and hit[1],
            "steps_ratio": hit and hit[0] / base[0],
            "seconds_ratio": hit and hit[1] / base[1],
        }
        row["as_wanted"] = hit is not None and row["steps_ratio"] <= WANTED and row["seconds_ratio"] <= 1.0
        table.append(row)
    return table


class Study:
    """The runs, within the time that there is, and what is written of them."""

    def __init__(self, args):
        self.began = time.perf_counter()
        self.args, self.text = args, Text(args.device)
        self.deadline = math.inf if args.minutes is None else self.began + 60 * args.minutes
        self.costs, self.captured, self.slower, self.failed, self.asked = {}, {}, {}, False, args.steps
        parameters = sum(p.numel() for p in Model(self.text.symbols, args.width, args.heads, args.blocks).parameters())
        settings = {key: value for key, value in vars(args).items() if key != "out"}
        device = torch.cuda.get_device_name() if args.device.startswith("cuda") else f"cpu, {torch.get_num_threads()} threads"
        settings |= {"parameters": parameters, "symbols": self.text.symbols, "device_name": device, "torch": torch.__version__}
        settings |= {"options": {name: OWN[name][1] for name in args.optimizers}, "kl_clip": KL_CLIP}
        settings["clock"] = "whole training steps; compiling and evaluation are not counted, the first step and capturing are"
        self.record = {"settings": settings, "tuning": [], "runs": [], "table": [], "left_out": []}

    def steps_of(self, name):
        return self.args.steps if name == "adamw" else max(2, round(self.args.steps * self.args.share))

    def write(self):
        (self.args.out / "study-lm.json").write_text(json.dumps(self.record, indent=1) + "\n")

    def cost(self, name, steps, looks):
        """Seconds that a run will take, with all that is not counted, by those that were."""
        a_step, looked, rest = self.costs[name]
        return self.slower.get(name, 1.0) * (steps * a_step + (looks + 1) * looked + rest)

    def one(self, name, rate, seed, steps, where):
        """A run that is recorded under `where`, and its last loss; None where there is no time for it or it failed."""
        looks = LOOKS if where == "runs" else 2
        run = {"optimizer": name, "rate": rate, "seed": seed, "steps": steps, "captured": self.captured[name]}
        took, why = self.cost(name, steps, looks), None
        # What the run before held, its graph's memory too.
        gc.collect()
        began = time.perf_counter()
        if began + took > self.deadline:
            why = f"no time for {took:.1f} s"
        else:
            try:
                it = Run(self.args, self.text, name, rate, seed, steps, self.captured[name])
                points = it.train(max(1, steps // looks))
            except (RuntimeError, chronaxie.ChronaxieError) as error:
                # So that a GPU's time is not lost to one method's fault.
                why, self.failed = f"{type(error).__name__}: {error}", True
        if why is not None:
            self.record["left_out"].append(run | {"why": why})
            print(f"lm {name}: rate {rate:.4g}, seed {seed} is left out: {why}", flush=True)
            self.write()
            return None
        # By the last one that went to its end.
        if where == "tuning" and points[-1][0] == steps:
            self.slower[name] = self.slower.get(name, 1.0) * (time.perf_counter() - began) / max(took, 1e-9)
        # JSON has no infinity.
        run |= {"capture_seconds": it.capture_seconds, "diverged": not math.isfinite(points[-1][2]), "points": points}
        if run["diverged"]:
            points.pop()
        self.record[where].append(run)
        last = "diverged" if run["diverged"] else f"held-out loss {points[-1][2]:.4f}, training {points[-1][3]:.4f}"
        print(f"lm {name}: rate {rate:.4g}, seed {seed}, {steps} steps, {points[-1][1]:.2f} s: {last}", flush=True)
        self.write()
        return math.inf if run["diverged"] else points[-1][2]

    def brief(self, name, captured):
        """What a run of few steps costs; where that decides something, with its kernels compiled by one before it."""
        for _ in range(1 if self.args.minutes is None and not self.args.graphs else 2):
            gc.collect()
            costs = Run(self.args, self.text, name, OWN[name][0][0], 0, UNCOUNTED, captured).brief()
        return costs

    def fit(self):
        """Times a step of each, captured and not, and takes the faster way."""
        tried = {}
        for name in self.args.optimizers:
            ways = {"eager": self.brief(name, False)}
            if self.args.graphs and name != "kfac":
                try:
                    ways["captured"] = self.brief(name, True)
                except (RuntimeError, chronaxie.ChronaxieError) as error:
                    self.failed = True
                    print(f"lm {name}: cannot be captured: {error}", flush=True)
            way = min(ways, key=lambda way: ways[way][0])
            self.costs[name], self.captured[name], tried[name] = ways[way], way == "captured", {w: c[0] for w, c in ways.items()}
            print(f"lm {name}: {', '.join(f'{1e3 * c[0]:.2f} ms a step {w}' for w, c in ways.items())}", flush=True)
        self.record["settings"] |= {"seconds_a_step": tried}

    def shorten(self, tuned):
        """Gives all runs that are left as many steps as there is time for, at most those that are asked for."""
        if self.args.minutes is not None:
            self.args.steps, fixed, of_1000 = 1000, 0.0, 0.0
            for name in self.args.optimizers:
                # Lists that grow do so by one or two; a list of AdamW's length is the most.
                rates = 0 if self.args.short or tuned else min(len(OWN["adamw"][0]), len(OWN[name][0]) + 1)
                steps = self.steps_of(name)
                for count, steps, looks in [(len(self.args.seeds), steps, LOOKS), (rates, steps // 3, 2)]:
                    fixed += count * self.cost(name, 0, looks)
                    of_1000 += count * (self.cost(name, steps, looks) - self.cost(name, 0, looks))
            room = 0.92 * (self.deadline - time.perf_counter()) - fixed
            self.args.steps = max(20, min(self.asked, int(1000 * room / of_1000)))
        self.record["settings"]["steps"] = self.args.steps
        print(f"lm: {self.args.steps} steps of {self.args.optimizers[0]}", flush=True)

    def tune(self, name):
        """The rate with the lowest held-out loss at the end of a third of the steps."""
        rates = list(OWN[name][0])
        if self.args.short:
            # The smaller a model, the higher.
            return rates[-1]
        steps, tried = max(2, self.steps_of(name) // 3), {}
        most, ratio = len(OWN["adamw"][0]) + (1 if name == "adamw" else 0), rates[1] / rates[0]
        while left := [r for r in rates if r not in tried]:
            found = self.one(name, left[0], 0, steps, "tuning")
            tried[left[0]] = math.inf if found is None else found
            best = min(tried, key=tried.get)
            if len(left) == 1 and len(rates) < most and found is not None and best in (rates[0], rates[-1]):
                rates = [rates[0] / ratio, *rates] if best == rates[0] else [*rates, rates[-1] * ratio]
        best = min(tried, key=tried.get)
        return best if math.isfinite(tried[best]) else rates[len(rates) // 2]

    def report(self):
        """The table and the picture."""
        table, first = self.record["table"], self.args.optimizers[0]
        if not table:
            print(f"lm: no run of {first} to compare with", flush=True)
            return
        goal = table[0]["last_loss"]
        print(
            f"optimizer  rate     seeds  steps  held-out  training  ms a step  "
            f"to {goal:.4f}: step  seconds  of {first}'s: steps  seconds"
        )
        for r in table:
            shown = lambda key, digits=2: "never" if r[key] is None else f"{r[key]:.{digits}f}"
            print(
                f"{r['optimizer']:<9}  {r['rate']:<7.2g}  {r['runs']:<5}  {r['steps']:<5}  {r['last_loss']:<8.4f}  "
                f"{r['last_training_loss']:<8.4f}  {r['ms_a_step']:<9.2f}  {shown('reached_at_step', 0):>15}  "
                f"{shown('reached_at_seconds'):<7}  {'':<{len(first) + 5}}  {shown('steps_ratio'):<5}  {shown('seconds_ratio')}"
            )
        wanted = [r["optimizer"] for r in table if r["as_wanted"]]
        print(f"within {WANTED} of {first}'s steps and not more of its seconds: {', '.join(wanted) or 'none'}")
        if table[0]["lowest_loss"] < goal:
            print(f"{first}'s loss was lower before its end: {table[0]['lowest_loss']:.4f}")
        print(f"lm: {time.perf_counter() - self.began:.0f} s in all", flush=True)
        # What is known without learning would take most of the picture.
        curves = {}
        for run in self.record["runs"]:
            curves.setdefault(run["optimizer"], []).append([p[:3] for p in run["points"] if p[0] > 0])
        seeds = len({run["seed"] for run in self.record["runs"]})
        title = f"characters, {self.record['settings']['parameters'] / 1e6:.2f} M parameters: held-out loss, {seeds} seeds"
        picture(self.args.out / "study-lm.svg", {name: some for name, some in curves.items() if all(some)}, goal, title)

    def run(self):
        self.fit()
        self.shorten(False)
        rates = {name: self.tune(name) for name in self.args.optimizers}
        self.shorten(True)
        # Seed by seed, so that a study that is cut short has all optimizers.
        for seed in self.args.seeds:
            for name in self.args.optimizers:
                self.one(name, rates[name], seed, self.steps_of(name), "runs")
                self.record["table"] = table_of(self.record["runs"], self.args.optimizers)
                self.write()
        self.report()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--optimizers", default="adamw,shampoo,soap,kfac")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--share", type=float, default=0.75)
    for of in SIZES["cpu"]:
        parser.add_argument(f"--{of}", type=int, help=", ".join(f"{sizes[of]} for {what}" for what, sizes in SIZES.items()))
    parser.add_argument("--every", type=int, default=10, help="steps between two roots, bases or inverses of a block")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    args.optimizers = args.optimizers.split(",")
    args.seeds = [int(s) for s in args.seeds.split(",")]
    on_gpu = args.device.startswith("cuda")
    args.graphs = on_gpu and not args.eager
    if args.short:
        args.seeds = args.seeds[:1]
    for of, value in SIZES["short" if args.short else "cuda" if on_gpu else "cpu"].items():
        if getattr(args, of) is None:
            setattr(args, of, value)
    if unknown := [o for o in args.optimizers if o not in OWN]:
        parser.error(f"optimizer {unknown[0]!r} is not one of {', '.join(OWN)}")
    args.out.mkdir(parents=True, exist_ok=True)
    study = Study(args)
    study.run()
    sys.exit(int(study.failed))


if __name__ == "__main__":
    main()
