#!/bin/sh
# Coverage-guided fuzzing of every reader, on stable Rust: fuzz/run.sh [SECONDS each, default 60] [TARGET ...]
# What is found new goes to fuzz/found/TARGET, what fails to fuzz/artifacts/TARGET; both are outside of git.
set -eu
cd "$(dirname "$0")"
seconds="${1:-60}"
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- uea csv config parquet npz checkpoint

coverage="--cfg fuzzing -Cpasses=sancov-module"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    coverage="$coverage -Cllvm-args=-sanitizer-coverage-$option"
done
# A target triple keeps the flags away from build scripts.
host="$(rustc -vV | sed -n 's/^host: //p')"
out="${CARGO_TARGET_DIR:-target}"
RUSTFLAGS="${RUSTFLAGS:-} $coverage" cargo build --release --locked --target "$host" --target-dir "$out"

failed=0
for target in "$@"; do
    mkdir -p "found/$target" "artifacts/$target"
    dictionary=""
    [ -f "$target.dict" ] && dictionary="-dict=$target.dict"
    echo "fuzz: $target for $seconds s"
    log="artifacts/$target/log"
    if "$out/$host/release/$target" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="artifacts/$target/" $dictionary \
        "found/$target" "corpus/$target" >"$log" 2>&1; then
        grep -E 'number_of_executed_units|new_units_added' "$log"
        grep -E 'cov: ' "$log" | tail -n 1
    else
        tail -n 40 "$log" >&2
        echo "fuzz: $target FAILED; its input is in fuzz/artifacts/$target" >&2
        failed=1
    fi
done
exit $failed
