#!/usr/bin/env python3
"""Trains an LTC, a CfC, an xLSTM block and a Mamba block in PyTorch to tell nine speakers by how they say /ae/, and plots
the learning curves.

    python examples/train.py [--model ltc,cfc,xlstm,mamba] [--epochs 50] [--device cuda] [--out DIR]

The recordings are those of japanese-vowels.toml beside this file, which trains the same LTC without PyTorch: 270 to learn
from, 370 to be tested on, 12 channels, 7 to 29 steps each. The test set is looked at once, after the last epoch.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from xlstm import XLSTMBlock

from chronaxie.torch import LTC, CfC, Mamba, wirings

DATA = Path(__file__).resolve().parent / "data" / "japanese-vowels"
CLASSES, BATCH, NOISE = 9, 16, 0.3
RATES = {"ltc": 0.05, "cfc": 0.005, "xlstm": 0.003, "mamba": 0.005}


def read(path):
    """Recordings [T, D] and their classes: a line is channels apart by colons, and the class, from 1."""
    series, labels = [], []
    for line in path.read_text().splitlines():
        if line and line[0] not in "#@":
            *channels, label = line.split(":")
            series.append(torch.tensor([[float(v) for v in c.split(",")] for c in channels]).t())
            labels.append(int(label) - 1)
    return series, torch.tensor(labels)


def padded(series):
    """Recordings of different lengths side by side, [B, T, D], and which steps there are, [B, T]."""
    lengths = torch.tensor([len(s) for s in series])
    return torch.nn.utils.rnn.pad_sequence(series, batch_first=True), torch.arange(int(lengths.max())) < lengths[:, None]


class Classifier(torch.nn.Module):
    """A recurrent layer, of which every step is asked for the speaker; the answer is the mean over the steps there are."""

    def __init__(self, kind, channels):
        super().__init__()
        self.embed = torch.nn.Identity()
        if kind == "ltc":
            # Few synapses between neurons, all from the inputs, as in japanese-vowels.toml.
            wiring = wirings.Bernoulli(64, density=0.1, sensory_density=1.0, seed=1)
            self.layer = LTC(channels, wiring, output_mapping="none", ode_unfolds=3)
        elif kind == "cfc":
            self.layer = CfC(channels, 64)
        else:
            # A block adds to what it reads, so the channels are first mapped to its width.
            self.embed, channels = torch.nn.Linear(channels, 64), 64
            self.layer = XLSTMBlock(channels, heads=2) if kind == "xlstm" else Mamba(channels)
        self.head = torch.nn.Linear(64, CLASSES)

    def forward(self, x):
        states, _ = self.layer(self.embed(x))
        return self.head(states)


def mean(values, there):
    """Over the steps there are, of [B, T] or [B, T, classes]."""
    there = there.view(*there.shape, *[1] * (values.dim() - 2))
    return (values * there).sum(1) / there.sum(1)


def correct(answers, there, labels):
    return mean(answers.detach(), there).argmax(1) == labels


def accuracy(model, x, there, labels):
    with torch.no_grad():
        return float(correct(model(x), there, labels).float().mean())


def train(kind, rate, args, data, test):
    torch.manual_seed(args.seed)
    series, labels = data
    model = Classifier(kind, series[0].shape[1]).to(args.device)
    # As in the library's trainer: matrices decay; the rate warms up and then falls along a cosine.
    decays = lambda p: p.dim() > 1 and p.requires_grad
    groups = [
        {"params": [p for p in model.parameters() if decays(p)], "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.requires_grad and not decays(p)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate)
    steps = args.epochs * -(-len(series) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.05, cycle_momentum=False)
    began, curve = time.perf_counter(), []
    for epoch in range(args.epochs):
        total, right = 0.0, 0
        for batch in torch.randperm(len(series)).split(BATCH):
            x, there = padded([series[i] + NOISE * torch.randn_like(series[i]) for i in batch])
            x, there, wanted = x.to(args.device), there.to(args.device), labels[batch].to(args.device)
            answers = model(x)
            # As every step is asked, each has its own loss.
            losses = cross_entropy(answers.transpose(1, 2), wanted[:, None].expand(there.shape), reduction="none")
            loss = mean(losses, there).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
            right += int(correct(answers, there, wanted).sum())
        curve.append(total / len(series))
        if (epoch + 1) % 10 == 0 or epoch + 1 == args.epochs:
            print(f"{kind}: epoch {epoch + 1:3}, loss {curve[-1]:.4f}, {100 * right / len(series):.1f} % of the training set")
    seconds = time.perf_counter() - began
    x, there, wanted = (t.to(args.device) for t in test)
    return curve, {
        "model": kind, "test_accuracy": accuracy(model.eval(), x, there, wanted), "train_seconds": round(seconds, 2),
        "epochs": args.epochs, "seed": args.seed,
    }  # fmt: skip


def plot(curves, path):
    """The losses over epochs as an SVG, on a logarithmic scale."""
    width, height, colours = 640, 360, {"ltc": "#1f77b4", "cfc": "#d62728", "xlstm": "#2ca02c", "mamba": "#9467bd"}
    logs = {kind: torch.tensor(c).clamp_min(1e-6).log10() for kind, c in curves.items()}
    low, high = min(float(v.min()) for v in logs.values()), max(float(v.max()) for v in logs.values())
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">']
    lines.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for at, (kind, values) in enumerate(logs.items()):
        points = " ".join(
            f"{60 + (width - 80) * i / max(1, len(values) - 1):.1f},"
            f"{20 + (height - 60) * (high - float(v)) / max(1e-9, high - low):.1f}"
            for i, v in enumerate(values)
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colours[kind]}" stroke-width="2"/>')
        lines.append(f'<text x="{width - 70}" y="{35 + 18 * at}" fill="{colours[kind]}">{kind}</text>')
    for value in (low, high):
        y = 20 + (height - 60) * (high - value) / max(1e-9, high - low)
        lines.append(f'<text x="55" y="{y + 4:.0f}" text-anchor="end">{10**value:.3g}</text>')
    epochs = max(len(c) for c in curves.values())
    lines.append(f'<text x="{width // 2}" y="{height - 12}" text-anchor="middle">loss over {epochs} epochs</text></svg>')
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=",".join(RATES), help="separated by commas")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/train-py"))
    args = parser.parse_args()
    models = args.model.split(",")
    if unknown := [m for m in models if m not in RATES]:
        parser.error(f"there is no model {', '.join(unknown)}; there are {', '.join(RATES)}")
    series, labels = read(DATA / "JapaneseVowels_TRAIN.ts")
    tested, wanted = read(DATA / "JapaneseVowels_TEST.ts")
    everything = torch.cat(series)
    centre, deviation = everything.mean(0), everything.std(0)
    series, tested = ([(s - centre) / deviation for s in part] for part in (series, tested))
    args.out.mkdir(parents=True, exist_ok=True)
    curves, results = {}, []
    for kind, rate in RATES.items():
        if kind in models:
            curves[kind], result = train(kind, rate, args, (series, labels), (*padded(tested), wanted))
            results.append(result)
            print(json.dumps(result))
    plot(curves, args.out / "curve.svg")
    (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"curve: {args.out / 'curve.svg'}")


if __name__ == "__main__":
    main()
