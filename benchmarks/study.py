#!/usr/bin/env python3
"""How fast each optimizer of `chronaxie train` learns, by steps and by wall time.

    benchmarks/study.py CHRONAXIE --out DIR [--config examples/japanese-vowels.toml ...] [--backend auto|cpu|cuda:N]
        [--optimizers adamw,shampoo,soap,muon,kfac] [--seeds 1,2,3] [--epochs N] [--tune 0.3,1,3] [--short]

Rates are tuned first, one seed each, among multiples (--tune) of the rate that the file gives AdamW or the optimizer's own
default, with a part of the training set held out (train.validation = 0.3): the lowest loss on it at the end is taken. Then every
optimizer learns the whole training set with every seed. For each optimizer DIR/study.json tells the median over seeds of the
first step at which the training loss (the mean of an epoch) is at most AdamW's last one, in parts of AdamW's steps, the same of
its seconds, and the accuracies on the test set; DIR/study.svg shows the curves, AdamW's last loss dashed. Times are those of
training steps alone, as `train` counts them. --short is the form that CI can run: two epochs, one seed, nothing tuned.

The standard library alone, so that it runs where the program does.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# What each optimizer is given beside its rate; a rate of None is the file's own.
OWN = {
    "adamw": (None, []),
    "shampoo": (None, ["train.shampoo.max_preconditioner_dim=64"]),
    "soap": (0.01, ["train.soap.max_preconditioner_dim=64"]),
    "muon": (0.02, []),
    "kfac": (
        0.03,
        ["train.kfac.damping=0.1", "train.kfac.kl_clip=1e-3", "train.kfac.sharing=reduce", "train.kfac.adamw_learning_rate=0.03"],
    ),
}
COLORS = {"adamw": "#444444", "shampoo": "#c0392b", "soap": "#2471a3", "muon": "#1e8449", "kfac": "#ca6f1e"}


def rate_of(chronaxie, config):
    """The learning rate that a file gives, as it is resolved."""
    text = subprocess.run([chronaxie, "train", config, "--print-config"], check=True, capture_output=True, text=True).stdout
    line = next(line for line in text.splitlines() if line.startswith("learning_rate"))
    return float(line.split("=")[1])


def train(chronaxie, config, optimizer, rate, seed, backend, sets):
    """The epochs of a run, and what it ended with; None where it diverged."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [chronaxie, "train", str(config), "--backend", backend, "--out", str(out), "--seed", str(seed), "--quiet"]
        command += ["--json", str(Path(folder) / "report.json")]
        for value in [f"train.optimizer={optimizer}", f"train.learning_rate={rate:.6g}", *OWN[optimizer][1], *sets]:
            command += ["--set", value]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 130:
            raise KeyboardInterrupt
        if done.returncode != 0:
            if "lower train.learning_rate" in done.stderr:
                return None
            sys.exit(f"study: {' '.join(command)} failed: {done.stderr.strip()}")
        epochs = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return epochs, json.loads((Path(folder) / "report.json").read_text())


def tuned(args, config, optimizer, base):
    """The multiple of `base` with the lowest loss on what was held out."""
    tried = {}
    for factor in args.tune:
        found = train(args.chronaxie, config, optimizer, base * factor, args.seeds[0], args.backend, ["train.validation=0.3", *args.sets])
        tried[base * factor] = float("inf") if found is None else found[1]["validation_loss"]
        print(f"{config.stem} {optimizer}: rate {base * factor:.4g}: held-out loss {tried[base * factor]:.4f}", flush=True)
    return min(tried, key=tried.get), tried


def reached(epochs, loss, steps):
    """Steps and seconds at the end of the first epoch whose loss is at most `loss`; None where there is none."""
    seconds = 0.0
    for nth, epoch in enumerate(epochs, 1):
        seconds += epoch["seconds"]
        if epoch["train_loss"] <= loss:
            return nth * steps, seconds
    return None


def picture(path, curves, goal, title):
    """Curves of the median loss by step and by seconds, side by side."""
    import math

    width, height, margin = 420, 300, 50
    every = [max(x, 1e-6) for runs in curves.values() for run in runs for _, _, x in run]
    low, high = math.log10(min([*every, goal])), math.log10(max(every))
    high = max(high, low + 0.1)
    y = lambda loss: margin + (high - math.log10(max(loss, 1e-6))) / (high - low) * (height - 2 * margin)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * width}" height="{height}" font-family="sans-serif" font-size="11">']
    parts.append(f'<rect width="100%" height="100%" fill="white"/><text x="{margin}" y="20">{title}</text>')
    for side, what in enumerate(["steps", "seconds of training"]):
        left = side * width + margin
        most = max(run[-1][side] for runs in curves.values() for run in runs)
        x = lambda v: left + v / most * (width - 2 * margin)
        parts.append(f'<path d="M{left} {margin}V{height - margin}H{left + width - 2 * margin}" fill="none" stroke="black"/>')
        parts.append(f'<text x="{left}" y="{height - margin + 30}">{what}: 0 to {most:.4g}</text>')
        parts.append(f'<text x="{left}" y="{margin - 8}">loss, {10**low:.3g} to {10**high:.3g}, logarithmic</text>')
        parts.append(f'<path d="M{left} {y(goal):.1f}h{width - 2 * margin}" stroke="#444" stroke-dasharray="4 3"/>')
        for nth, (name, runs) in enumerate(curves.items()):
            for run in runs:
                line = "L".join(f"{x(point[side]):.1f} {y(point[2]):.1f}" for point in run)
                parts.append(f'<path d="M{line}" fill="none" stroke="{COLORS[name]}" stroke-width="1.3" opacity="0.7"/>')
            parts.append(f'<text x="{left + width - 2 * margin - 60}" y="{margin + 14 * nth}" fill="{COLORS[name]}">{name}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]))


def study(args, config):
    """All runs of one configuration."""
    base = rate_of(args.chronaxie, str(config))
    curves, records, goal = {}, [], None
    for optimizer in args.optimizers:
        start = base if OWN[optimizer][0] is None else OWN[optimizer][0]
        rate, tried = tuned(args, config, optimizer, start) if len(args.tune) > 1 else (start, {})
        runs = [train(args.chronaxie, config, optimizer, rate, seed, args.backend, args.sets) for seed in args.seeds]
        if any(run is None for run in runs):
            sys.exit(f"study: {optimizer} diverged at its tuned rate {rate}")
        points = []
        for epochs, report in runs:
            seconds, line = 0.0, []
            # Steps of an epoch do not depend on the optimizer: epochs are steps in other units.
            for nth, epoch in enumerate(epochs, 1):
                seconds += epoch["seconds"]
                line.append((nth, seconds, epoch["train_loss"]))
            points.append(line)
        curves[optimizer] = points
        last = statistics.median(epochs[-1]["train_loss"] for epochs, _ in runs)
        if goal is None:
            goal, own = last, statistics.median(line[-1][1] for line in points)
        hits = [reached(epochs, goal, 1) for epochs, _ in runs]
        whole = all(hits)
        record = {
            "config": config.name,
            "optimizer": optimizer,
            "learning_rate": rate,
            "tried": {f"{r:.6g}": v for r, v in tried.items()},
            "seeds": args.seeds,
            "last_loss": last,
            "test_accuracy": statistics.median(report.get("test_accuracy", 0.0) for _, report in runs),
            "seconds": statistics.median(line[-1][1] for line in points),
            "backend": runs[0][1]["backend"],
            "steps_ratio": statistics.median(hit[0] for hit in hits) / len(runs[0][0]) if whole else None,
            "seconds_ratio": statistics.median(hit[1] for hit in hits) / own if whole else None,
        }
        records.append(record)
        ratio = lambda key: "never" if record[key] is None else f"{record[key]:.2f}"
        print(
            f"{config.stem} {optimizer}: rate {rate:.4g}, last loss {last:.4f}, accuracy {100 * record['test_accuracy']:.2f} %; to "
            f"{args.optimizers[0]}'s last loss {ratio('steps_ratio')} of the steps, {ratio('seconds_ratio')} of the seconds",
            flush=True,
        )
    picture(args.out / f"study-{config.stem}.svg", curves, goal, f"{config.stem}: training loss, {len(args.seeds)} seeds")
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chronaxie")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, nargs="+", default=[Path("examples/japanese-vowels.toml")])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--optimizers", default="adamw,shampoo,soap,muon,kfac")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--tune", default="0.3,1,3")
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    args.optimizers = args.optimizers.split(",")
    args.seeds = [int(s) for s in args.seeds.split(",")]
    args.tune = [float(f) for f in args.tune.split(",")]
    if args.short:
        args.seeds, args.tune, args.epochs = args.seeds[:1], [1.0], 2
    unknown = [o for o in args.optimizers if o not in OWN]
    if unknown:
        sys.exit(f"study: optimizer {unknown[0]!r} is not one of {', '.join(OWN)}")
    args.sets = [] if args.epochs is None else [f"train.epochs={args.epochs}"]
    args.out.mkdir(parents=True, exist_ok=True)
    records = [record for config in args.config for record in study(args, config)]
    (args.out / "study.json").write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
