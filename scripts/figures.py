#!/usr/bin/env python3
"""Fills the README's measured figures from bench-results/<date>-<device>/{bench,bench-*,compare}.json.

    python3 scripts/figures.py [--check]

Between the marks `<!-- figures -->` and `<!-- /figures -->` it writes a table for each run of each device, newest first,
without the cases that a newer run has: the median, what the peer took in the same run where there was one, and the fraction of the roofline. `--check` changes
nothing and fails if the README does not hold what the results say.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"


def runs():
    """(device folder's name, date, folder) of all runs: device by device, newest first."""
    found = []
    for folder in sorted((ROOT / "bench-results").glob("*"), reverse=True):
        if m := re.fullmatch(r"(\d{4}-\d\d-\d\d)-(.+)", folder.name):
            found.append((m[2], m[1], folder))
    return sorted(found, key=lambda run: run[0])


def read(path):
    return json.loads(path.read_text()) if path.exists() else []


def number(x):
    return f"{x:.3g}" if x < 1000 else f"{x:.0f}"


def commands(folder, names):
    """The commands of the run's README that wrote these files, each once; `bench-FAMILY.json` there stands for any family."""
    readme = folder / "README.md"
    lines = readme.read_text().replace("\\\n", " ") if readme.exists() else ""
    written = {}
    for line in re.findall(r"^(?: {4}|\$ )(\S.*)$", lines, re.M):
        if m := re.search(r"--json (\S+)", line):
            written[m[1]] = re.sub(r" +", " ", line)
    found = [written.get(n) or written.get(re.sub(r"-\w+\.json", "-FAMILY.json", n)) for n in names]
    return "".join(f", `{c}`" for c in dict.fromkeys(found) if c)


def section(name, date, folder, shown):
    """The lines of one run; `shown` has the cases of newer ones, and is told those of this."""
    key = lambda r: (r["family"], r["case"].split(",")[0], r["pass"], r["precision"])
    bench = [(path.name, r) for path in sorted(folder.glob("bench*.json")) for r in read(path)]
    compare = read(folder / "compare.json")
    compared = {}
    for r in compare:
        compared.setdefault((key(r), r["backend"]), []).append(r)
    # What was only compared with peers has the median of that run.
    benched = {(key(r), r["backend"]) for _, r in bench}
    bench += [("compare.json", group[0]) for at, group in compared.items() if at not in benched]
    # What a caller of Python waits for is longer than what a GPU computes, and takes no place of that.
    call = lambda r: "device_median_ms" in r and r["clock"] == "call" and r["backend"].startswith("cuda")
    case = lambda r: (name, r["family"], r["case"].split(",")[0], call(r))
    bench = [(path, r) for path, r in bench if case(r) not in shown]
    records = [r for _, r in bench]
    shown.update(map(case, records))
    if not records:
        return []
    device = records[0]["device"]
    lines = [f"**{device}**, {date}{commands(folder, [path for path, _ in bench])}:", ""]
    lines += ["| family | case | pass | precision | median ms | roofline | against a peer in the same run |"]
    lines += ["|---|---|---|---|---:|---:|---|"]
    for r in records:
        peers = "; ".join(
            f"{p['peer']} {number(p['peer_median_ms'])} ms: {number(p['ratio'])}x"
            for p in compared.get((key(r), r["backend"]), [])
        )
        what = f"{r['pass']}, a call" if call(r) else r["pass"]
        lines.append(
            f"| {r['family']} | {r['case']} | {what} | {r['precision']} | {number(r['median_ms'])} "
            f"| {100 * r['roofline_fraction']:.0f} % | {peers} |"
        )
    return [*lines, ""]


def main():
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        sys.exit(f"figures: README.md lacks {BEGIN} or {END}")
    shown = set()
    lines = [line for run in runs() for line in section(*run, shown)]
    if not lines:
        lines = ["Nothing is recorded yet: `bench-results/` is empty.", ""]
    new = before + BEGIN + "\n" + "\n".join(lines) + END + after
    if "--check" in sys.argv[1:]:
        if new != text:
            sys.exit("figures: the README's figures are not those of bench-results/; run `make figures`")
    elif new != text:
        readme.write_text(new)
        print("figures: README.md updated")


if __name__ == "__main__":
    main()
