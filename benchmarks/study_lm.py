#!/usr/bin/env python3
"""How fast each optimizer teaches a small character language model, by steps and by wall time.

    python benchmarks/study_lm.py --out DIR [--device cpu|cuda] [--minutes M] [--graphs] [--optimizers adamw,shampoo,soap,kfac]
        [--seeds 1,2,3] [--steps N] [--share 0.75] [--short]

The model: characters of examples/data/shakespeare, an embedding, xLSTM blocks (examples/xlstm.py, on chronaxie's mLSTM) and a linear
head, float32. Learning rates are tuned first on seed 0 with a third of the steps; while the best is at an end of its list, the list grows
there, twice at most. Then every optimizer learns with every seed: the same windows of the text and the same first weights for all.
AdamW has --steps steps and the others --share of them; the rate of each warms up over a twentieth of its own steps and falls as a
cosine to a tenth, so that none is compared in the middle of its schedule.

DIR/study-lm.json, written after each run: settings, what was tried, and of every run the points (step, seconds, loss on the
held-out tenth of the text, mean training loss since the point before). The table and DIR/study-lm.svg tell when each reaches the last
held-out loss that AdamW has with the same seed, in parts of AdamW's steps and seconds (medians over seeds).

Seconds are those of whole training steps: the device is awaited where the loss is looked at, and looking at it is not counted. Every
optimizer takes some steps first that nothing is kept of, so that compiling kernels and loading libraries is not counted, but the
first step of a run is. --graphs, on a GPU, captures the step of those that can (all but KFAC) in a CUDA graph, which is counted.
--minutes shortens all runs alike so that they fit, and leaves out what would end later. --short takes seconds: a tiny model, one seed,
nothing tuned.
"""

import argparse
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
from chronaxie.optim import KFAC, SOAP, Shampoo

from study import picture

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
from xlstm import RMSNorm, XLSTMBlock  # noqa: E402

# The rates that are tried, and what is passed beside them; found on small models on a CPU.
OWN = {
    "adamw": ([1e-3, 3e-3, 1e-2], dict(betas=(0.9, 0.95))),
    "shampoo": ([1e-3, 3e-3, 1e-2], dict(betas=(0.9, 0.95))),
    "soap": ([1e-3, 3e-3, 1e-2], dict(betas=(0.95, 0.95))),
    "kfac": ([0.03, 0.1, 0.3], dict(terms="positions")),
}
EVERY = 10  # Steps between two roots, bases or inverses.
HELD_OUT = 0.1
WINDOWS_AT_ONCE = 64
UNCOUNTED = 12


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
        symbols = sorted(set(text))
        numbers = torch.tensor([symbols.index(c) for c in text], device=device)
        cut = int(len(text) * (1 - HELD_OUT))
        self.symbols, self.learnt, self.tested = len(symbols), numbers[:cut], numbers[cut:]


def made(name, model, rate, on_gpu, capturable):
    """An optimizer; where a step is captured its rate is a tensor."""
    lr = torch.tensor(rate, device="cuda") if capturable else rate
    options = dict(OWN[name][1])
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0, capturable=capturable, fused=on_gpu, **options)
    if name == "kfac":
        return KFAC(model, lr=rate, inverse_frequency=EVERY, **options)
    kind = {"shampoo": Shampoo, "soap": SOAP}[name]
    return kind(model.parameters(), lr=lr, precondition_frequency=EVERY, capturable=capturable, **options)


def shape_of(steps):
    """What of the whole rate each step has: a warm-up over a twentieth of them, then a cosine to a tenth."""
    warm = max(1, steps // 20)
    falling = [0.55 + 0.45 * math.cos(math.pi * (s - warm) / max(1, steps - warm)) for s in range(warm, steps)]
    return [(s + 1) / (warm + 1) for s in range(warm)] + falling


class Run:
    """One training run; nothing in a step waits for the device."""

    def __init__(self, args, text, name, rate, seed, steps):
        self.args, self.text, self.name, self.steps = args, text, name, steps
        self.on_gpu = args.device.startswith("cuda")
        self.captured = args.graphs and name != "kfac"
        torch.manual_seed(seed)
        self.model = Model(text.symbols, args.width, args.heads, args.blocks).to(args.device)
        self.optimizer = made(name, self.model, rate, self.on_gpu, self.captured)
        self.group = self.optimizer.param_groups[0]
        # What is scheduled; KFAC has a second rate, for the parameters that it has no factors of.
        self.rates = {key: float(self.group[key]) for key in ("lr", "adamw_lr") if key in self.group}
        self.shape = shape_of(steps)
        starts = torch.Generator().manual_seed(seed + 1000)
        places = torch.randint(len(text.learnt) - args.length, (steps, args.batch), generator=starts)
        self.places, self.shapes = places.to(args.device), torch.tensor(self.shape, device=args.device)
        self.offsets = torch.arange(args.length + 1, device=args.device)
        self.at = torch.zeros(1, dtype=torch.int64, device=args.device)
        self.sum = torch.zeros((), device=args.device)
        self.graph, self.done = None, 0

    def body(self):
        """One step, whose number the device counts."""
        window = self.text.learnt[self.places.index_select(0, self.at)[0][:, None] + self.offsets]
        if self.captured:
            self.group["lr"].copy_(self.shapes.index_select(0, self.at)[0] * self.rates["lr"])
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
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.body()
            self.graph.replay()
        elif self.captured:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.body()
            torch.cuda.current_stream().wait_stream(side)
        else:
            for key, rate in self.rates.items():
                self.group[key] = rate * self.shape[self.done]
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

    def train(self):
        """The points of the run, up to where its loss is no number any more."""
        points, seconds, before = [[0, 0.0, self.held_out(), None]], 0.0, 0
        began = self.wait()
        try:
            for step in range(1, self.steps + 1):
                self.step()
                if step % self.args.look and step != self.steps:
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

    def brief(self, steps):
        """Takes steps that nothing is kept of; the seconds of one by the last half of them."""
        half = steps // 2
        for step in range(steps):
            if step == half:
                began = self.wait()
            self.step()
        seconds = (self.wait() - began) / (steps - half)
        self.held_out()
        if isinstance(self.optimizer, KFAC):
            self.optimizer.close()
        return seconds


class Study:
    """The runs, within the time that there is, and what is written of them."""

    def __init__(self, args):
        self.args, self.text = args, Text(args.device)
        self.deadline = math.inf if args.minutes is None else time.perf_counter() + 60 * args.minutes
        self.seconds_a_step, self.rates = {}, {}
        parameters = sum(p.numel() for p in Model(self.text.symbols, args.width, args.heads, args.blocks).parameters())
        settings = {key: value for key, value in vars(args).items() if key != "out"}
        device = torch.cuda.get_device_name() if args.device.startswith("cuda") else f"cpu, {torch.get_num_threads()} threads"
        settings |= {"parameters": parameters, "symbols": self.text.symbols, "device_name": device, "torch": torch.__version__}
        settings |= {"options": {name: OWN[name][1] for name in args.optimizers}, "precondition_every": EVERY}
        settings["clock"] = "whole training steps; compiling and evaluation are not counted, the first step is"
        self.record = {"settings": settings, "tuning": [], "runs": [], "table": [], "left_out": []}

    def steps_of(self, name):
        return self.args.steps if name == "adamw" else max(2, round(self.args.steps * self.args.share))

    def write(self):
        (self.args.out / "study-lm.json").write_text(json.dumps(self.record, indent=1) + "\n")

    def one(self, name, rate, seed, steps, where):
        """A run that is recorded under `where`; None where there is no time for it."""
        took = self.seconds_a_step.get(name, 0.0) * steps
        if time.perf_counter() + took > self.deadline:
            self.record["left_out"].append({"optimizer": name, "rate": rate, "seed": seed, "steps": steps})
            print(f"lm {name}: rate {rate:.4g}, seed {seed} is left out: no time for {took:.0f} s", flush=True)
            self.write()
            return None
        points = Run(self.args, self.text, name, rate, seed, steps).train()
        run = {"optimizer": name, "rate": rate, "seed": seed, "steps": steps, "points": points}
        # JSON has no infinity.
        run["diverged"] = not math.isfinite(points[-1][2])
        if run["diverged"]:
            points.pop()
        self.record[where].append(run)
        last = "diverged" if run["diverged"] else f"held-out loss {points[-1][2]:.4f}, training {points[-1][3]:.4f}"
        print(f"lm {name}: rate {rate:.4g}, seed {seed}, {steps} steps, {points[-1][1]:.2f} s: {last}", flush=True)
        self.write()
        return math.inf if run["diverged"] else points[-1][2]

    def fit(self):
        """Times a step of each, and shortens all runs to what --minutes has room for."""
        for name in self.args.optimizers:
            run = Run(self.args, self.text, name, OWN[name][0][0], 0, UNCOUNTED)
            self.seconds_a_step[name] = run.brief(UNCOUNTED)
            print(f"lm {name}: {1e3 * self.seconds_a_step[name]:.2f} ms a step", flush=True)
        if self.args.minutes is not None:
            rates = 0 if self.args.short else 4
            shares = {name: self.steps_of(name) / self.args.steps for name in self.args.optimizers}
            a_step = sum(s * shares[name] * (len(self.args.seeds) + rates / 3) for name, s in self.seconds_a_step.items())
            # A fifth is for looking at the loss, and for the lists that grow twice.
            self.args.steps = max(20, min(self.args.steps, int(0.8 * (self.deadline - time.perf_counter()) / a_step)))
        self.args.look = max(1, self.args.steps // 60)
        self.record["settings"] |= {"steps": self.args.steps, "look": self.args.look, "seconds_a_step": self.seconds_a_step}

    def tune(self, name):
        """The rate with the lowest held-out loss at the end of a third of the steps."""
        rates = list(OWN[name][0])
        if self.args.short:
            return rates[1]
        steps, tried = max(2, self.steps_of(name) // 3), {}
        ratio = rates[1] / rates[0]
        for _ in range(len(rates) + 2):
            left = [r for r in rates if r not in tried]
            if not left:
                best = min(tried, key=tried.get)
                if best not in (rates[0], rates[-1]):
                    break
                rates = [rates[0] / ratio, *rates] if best == rates[0] else [*rates, rates[-1] * ratio]
                left = [r for r in rates if r not in tried]
            found = self.one(name, left[0], 0, steps, "tuning")
            tried[left[0]] = math.inf if found is None else found
        return min(tried, key=tried.get)

    def table(self):
        """When each reached what AdamW with the same seed ends with, in parts of AdamW's steps and seconds."""
        runs = [run for run in self.record["runs"] if not run["diverged"]]
        goals = {run["seed"]: run["points"][-1] for run in runs if run["optimizer"] == self.args.optimizers[0]}
        self.record["table"] = []
        for name in self.args.optimizers:
            own = [run for run in runs if run["optimizer"] == name]
            if not own:
                continue
            hits = []
            for run in own:
                goal = goals.get(run["seed"])
                hit = goal and next((p for p in run["points"] if p[2] <= goal[2]), None)
                hits.append(hit and (hit[0] / goal[0], hit[1] / goal[1]))
            last = [run["points"][-1] for run in own]
            whole = all(hits)
            self.record["table"].append(
                {
                    "optimizer": name,
                    "rate": own[0]["rate"],
                    "runs": len(own),
                    "steps": own[0]["steps"],
                    "last_loss": statistics.median(p[2] for p in last),
                    "last_training_loss": statistics.median(p[3] for p in last),
                    "ms_a_step": statistics.median(1e3 * p[1] / p[0] for p in last),
                    "steps_ratio": statistics.median(h[0] for h in hits) if whole else None,
                    "seconds_ratio": statistics.median(h[1] for h in hits) if whole else None,
                }
            )

    def report(self):
        """The table and the picture."""
        first = self.args.optimizers[0]
        print(f"optimizer  rate     steps  held-out  training  ms a step  to {first}'s last loss: steps  seconds")
        for r in self.record["table"]:
            ratio = lambda key: "never" if r[key] is None else f"{r[key]:.2f}"
            print(
                f"{r['optimizer']:<9}  {r['rate']:<7.2g}  {r['steps']:>5}  {r['last_loss']:<8.4f}  {r['last_training_loss']:<8.4f}  "
                f"{r['ms_a_step']:<9.2f}  {'':<{len(first) + 17}}  {ratio('steps_ratio'):<5}  {ratio('seconds_ratio')}"
            )
        curves = {}
        for run in self.record["runs"]:
            curves.setdefault(run["optimizer"], []).append([p[:3] for p in run["points"]])
        if self.record["table"]:
            seeds = len({run["seed"] for run in self.record["runs"]})
            title = f"characters, {self.record['settings']['parameters'] / 1e6:.2f} M parameters: held-out loss, {seeds} seeds"
            picture(self.args.out / "study-lm.svg", curves, self.record["table"][0]["last_loss"], title)

    def run(self):
        self.fit()
        self.rates = {name: self.tune(name) for name in self.args.optimizers}
        # Seed by seed, so that a study that is cut short has all optimizers.
        for seed in self.args.seeds:
            for name in self.args.optimizers:
                self.one(name, self.rates[name], seed, self.steps_of(name), "runs")
                self.table()
                self.write()
        self.report()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--optimizers", default="adamw,shampoo,soap,kfac")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--share", type=float, default=0.75)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--windows", type=int, default=1 << 20, help="of the held-out text that are looked at, at most")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    args.optimizers = args.optimizers.split(",")
    args.seeds = [int(s) for s in args.seeds.split(",")]
    if args.short:
        args.seeds, args.steps, args.batch, args.length = args.seeds[:1], 60, 8, 64
        args.width, args.heads, args.blocks, args.windows = 64, 2, 1, 64
    if unknown := [o for o in args.optimizers if o not in OWN]:
        parser.error(f"optimizer {unknown[0]!r} is not one of {', '.join(OWN)}")
    if args.graphs and not args.device.startswith("cuda"):
        parser.error(f"--graphs is for a GPU, and --device is {args.device}")
    args.out.mkdir(parents=True, exist_ok=True)
    Study(args).run()


if __name__ == "__main__":
    main()
