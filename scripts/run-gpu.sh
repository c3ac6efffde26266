#!/bin/bash
# run-gpu.sh [STEP ...]: everything that needs an NVIDIA GPU, on a machine that has one; no Rust is needed beside this
# folder, as scripts/pack-gpu.sh makes it. Without a STEP all of them:
#   devices    what the driver says of the GPU
#   check      every implementation against its float64 reference
#   tests      the runtime's and the kernels' own tests
#   repeats    50 runs with equal bits, scratch and outputs poisoned, more blocks than fit at once
#   memcheck racecheck initcheck synccheck    compute-sanitizer on a small case of every kernel, and two small networks
#   simulate   the microcircuit: the CPU's spikes from a GPU and from a run that changes to it, and the full one timed
#   examples   the programs under examples, a short training run and the profile of its step
#   python     the Python package's tests, where python3 has PyTorch with CUDA, and pytest
#   bench      every compared case, timed
# Logs and JSON go to $OUT (default gpu-results). The last lines are a table and N passed, N failed, N skipped.
set -u
here="$(cd "$(dirname "$0")" && pwd)"
out="${OUT:-gpu-results}"
mkdir -p "$out"
out="$(cd "$out" && pwd)"
cd "$here" || exit 1
chronaxie="$here/bin/chronaxie"
# A missing GPU is a failure here, never a skip.
export CHRONAXIE_REQUIRE_GPU=1 CHRONAXIE_BACKEND="${CHRONAXIE_BACKEND:-cuda}"
unset CHRONAXIE_SYNC

all="devices check tests repeats memcheck racecheck initcheck synccheck simulate examples python bench"
[ $# -gt 0 ] || set -- $all
table="$out/table.txt"
: >"$table"

# row NAME STATUS SECONDS NOTE
row() { printf '%-34s %-7s %5s s  %s\n' "$1" "$2" "$3" "$4" >>"$table"; }

# step NAME SECONDS COMMAND ...: runs with a limit; the log's last line is the note.
step() {
    local name="$1" limit="$2" began rc note
    shift 2
    began=$(date +%s)
    timeout -k 5 "$limit" "$@" </dev/null >"$out/$name.log" 2>&1
    rc=$?
    note=$(grep -v '^\s*$' "$out/$name.log" | tail -n 1 | tr -d '\r' | cut -c 1-90)
    [ $rc -eq 124 ] && note="stopped after $limit s"
    # A test program that ran nothing has shown nothing.
    [ $rc -eq 0 ] && grep -q '^running 0 tests' "$out/$name.log" && { rc=1; note="no test ran"; }
    # Examples that find no GPU say so and end well.
    [ $rc -eq 0 ] && grep -q '^nothing to show here' "$out/$name.log" && rc=1
    if [ $rc -eq 0 ]; then row "$name" passed "$(($(date +%s) - began))" "$note"
    else
        row "$name" FAILED "$(($(date +%s) - began))" "$note"
        echo "-- $name failed; the end of $out/$name.log:"
        tail -n 25 "$out/$name.log"
    fi
}
skip() { row "$1" skipped 0 "$2"; }

cases() { awk -v use="$1" '!/^#/ && $2 == use { print $1, $3 }' gpu-cases.txt; }

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null | head -n 1)
jobs=$(($(nproc) / 2)); [ "$jobs" -ge 1 ] || jobs=1; [ "$jobs" -le 8 ] || jobs=8

# One tool over all small cases, several processes at a time: they take the GPU in turn, and most of their time is ours.
sanitize() {
    local tool="$1" n=0 options=""
    # The runtime counts a kernel's parameters by asking until the driver says that there are no more; memcheck would
    # report that answer. Every other refusal of the driver is an error of ours already.
    [ "$tool" = memcheck ] && options="--report-api-errors no"
    if [ -z "$sanitizer" ]; then skip "$tool" "compute-sanitizer is not installed"; return; fi
    while read -r family case; do
        n=$((n + 1))
        step "$tool-$family-$n" 90 "$sanitizer" --tool "$tool" $options --error-exitcode 9 --print-limit 5 \
            "$chronaxie" check "$family" --case "$case" --repeats 2 --quiet &
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    done < <(cases small)
    # Spiking networks: what is under way in shared memory, and, with ten times as many steps of delay, in a calendar.
    for dt in 0.1 0.01; do
        rm -rf "$out/$tool-simulate-$dt"
        step "$tool-simulate-$dt" 90 "$sanitizer" --tool "$tool" $options --error-exitcode 9 --print-limit 5 \
            "$chronaxie" simulate examples/microcircuit.toml --scale 0.01 --duration 2 --set simulation.discard=0 \
            --set "simulation.dt=$dt" --record none --quiet --backend cuda --out "$out/$tool-simulate-$dt" &
    done
    wait
}

for name in "$@"; do
    echo "== $name"
    case "$name" in
    devices)
        step devices 30 "$chronaxie" devices
        grep -q '^cuda:' "$out/devices.log" || row gpu FAILED 0 "there is none: $out/devices.log says why"
        ;;
    check) step check 150 "$chronaxie" check --quiet --json "$out/check.json" ;;
    tests)
        step runtime-tests 90 tests/gpu --test-threads 4
        step kernel-tests 120 tests/chronaxie-units on_a_gpu
        ;;
    repeats)
        while read -r family case; do
            step "repeats-$family" 90 "$chronaxie" check "$family" --case "$case" --repeats 50 --quiet
        done < <(cases wave)
        ;;
    memcheck | racecheck | initcheck | synccheck) sanitize "$name" ;;
    simulate)
        step simulate-same 200 ./simulate-same.sh "$chronaxie" "$out/simulate-same" scale=0.1,ms=1000
        # Longer delays than shared memory holds: the calendar.
        step simulate-same-calendar 200 ./simulate-same.sh "$chronaxie" "$out/simulate-same" scale=0.1,ms=200,dt=0.02
        step simulate-learning 200 ./simulate-same.sh "$chronaxie" "$out/simulate-learning" scale=0.1,ms=1000,plasticity=true
        step simulate-plasticity 200 ./simulate-same.sh "$chronaxie" "$out/simulate-plasticity" network=plasticity,ms=2000
        step simulate-replicas 200 ./simulate-same.sh "$chronaxie" "$out/simulate-replicas" network=cuba,ms=500,replicas=16
        rm -rf "$out/simulate-full"
        step simulate-full 120 "$chronaxie" simulate examples/microcircuit.toml --duration 10500 --record none \
            --backend cuda --json "$out/simulate-full.json" --out "$out/simulate-full"
        ;;
    examples)
        for example in examples/*; do
            [ -f "$example" ] && [ -x "$example" ] && step "example-$(basename "$example")" 60 "$example" cuda
        done
        if [ -e examples/japanese-vowels.toml ]; then
            rm -rf "$out/train"
            step train 90 "$chronaxie" train examples/japanese-vowels.toml --set train.epochs=2 --out "$out/train"
            step profile 60 "$chronaxie" profile examples/japanese-vowels.toml --json "$out/profile.json"
        fi
        ;;
    python)
        if ! python3 -c 'import pytest, torch; assert torch.cuda.is_available(), "PyTorch sees no CUDA device"' 2>"$out/python.log" >&2; then
            skip python "$(tail -n 1 "$out/python.log" | cut -c 1-90)"
        else
            export PYTHONPATH="$here/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
            step python 400 python3 -m pytest -q -p no:cacheprovider -m gpu python/tests
        fi
        ;;
    bench) step bench 300 "$chronaxie" bench --json "$out/bench.json" --seconds 0.3 --quiet ;;
    *)
        echo "run-gpu: no step '$name'; there are: $all" >&2
        exit 2
        ;;
    esac
done

echo
cat "$table"
count() { awk -v s="$1" '{ for (i = 2; i <= 3; i++) if ($i == s) n++ } END { print n + 0 }' "$table"; }
failed=$(count FAILED)
echo "$(count passed) passed, $failed failed, $(count skipped) skipped"
[ "$failed" -eq 0 ]
