#!/bin/sh
# scripts/examples.sh DIR: runs the examples that were built into DIR/examples in their short form, and every command of
# the examples folder. Each must say what it did; a machine without a GPU is told so, which is no failure.
set -eu
cd "$(dirname "$0")/.."
dir="$1"

for source in crates/*/examples/*.rs; do
    name=$(basename "$source" .rs)
    echo "$ $name"
    said=$("$dir/examples/$name")
    [ -n "$said" ] || { echo "examples: $name says nothing" >&2; exit 1; }
    echo "$said"
done

# The training run of the README with two epochs instead of all of them, and a prediction with what it saved.
if [ -e examples/japanese-vowels.toml ]; then
    out="$(mktemp -d)"
    trap 'rm -rf "$out"' EXIT
    echo "$ chronaxie train"
    "$dir/chronaxie" train examples/japanese-vowels.toml --backend cpu --set train.epochs=2 --out "$out/run" --quiet
    "$dir/chronaxie" predict "$out/run" examples/data/japanese-vowels/JapaneseVowels_TEST.ts --quiet >"$out/csv"
    head -n 3 "$out/csv"
    lines=$(wc -l <"$out/csv")
    [ "$lines" -eq 371 ] || { echo "examples: $lines lines of predictions, not a heading and 370" >&2; exit 1; }
    # The other optimizers, two epochs each.
    echo "$ study"
    benchmarks/study.py "$dir/chronaxie" --config examples/japanese-vowels.toml --backend cpu --out "$out/study" --short \
        --optimizers adamw,shampoo,soap,muon,kfac
    [ -s "$out/study/study-japanese-vowels.svg" ] || { echo "examples: the study left no picture" >&2; exit 1; }
fi

# A twentieth of the microcircuit for a second, stopped by nobody: it must fire.
if [ -e examples/microcircuit.toml ]; then
    net="$(mktemp -d)"
    trap 'rm -rf "${out:-$net}" "$net"' EXIT
    echo "$ chronaxie simulate"
    "$dir/chronaxie" simulate examples/microcircuit.toml --backend cpu --scale 0.05 --duration 1000 --out "$net/run" --quiet \
        --json "$net/report"
    grep -E '"(spikes|spikes_sha256|real_time_factor)"' "$net/report"
    for left in spikes.npz spikes.parquet; do
        [ -s "$net/run/$left" ] || { echo "examples: simulate left no $left" >&2; exit 1; }
    done
    echo "$ chronaxie analyze"
    "$dir/chronaxie" analyze "$net/run/spikes.parquet" | head -n 3
    echo "$ chronaxie profile"
    "$dir/chronaxie" profile examples/microcircuit.toml --backend cpu --set simulation.scale=0.02
fi
