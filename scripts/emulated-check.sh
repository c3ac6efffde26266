#!/bin/bash
# scripts/emulated-check.sh FOLDER: the cases of scripts/emulated-cases.txt on the emulated GPU, by FOLDER/chronaxie, two at
# once; that every instruction of inline PTX has a body there; and that bench refuses it. A case that skips anything has
# failed. The last line is: N passed, N failed, N skipped.
set -u
cd "$(dirname "$0")/.." || exit 1
chronaxie="$1/chronaxie"
stand_ins="$(scripts/emulated.sh)" || exit 1
logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT

# shellcheck disable=SC2046
"$stand_ins/emulated-ptx" $(git ls-files 'crates/*.cu' 'crates/*.cuh') >"$logs/ptx.cpp" || exit 1
cxx="$(scripts/emulated.sh sh -c 'echo "$CHRONAXIE_EMULATED_CXX"')"
$cxx -x c++ -std=c++17 -fsyntax-only -nostdinc -include "$stand_ins/device/cuda.h" "$logs/ptx.cpp" ||
    { echo "an instruction of inline PTX has no body in tests/emulated-gpu/device/ptx.h"; exit 1; }

# Nobody is to take its times for a GPU's.
if timeout 60 scripts/emulated.sh "$chronaxie" bench adamw --backend cuda:0 --case N2048 >"$logs/bench" 2>&1 || ! grep -q 'nothing is timed on it' "$logs/bench"; then
    echo "bench does not refuse the emulated device:"
    cat "$logs/bench"
    exit 1
fi

# Settings such as sms=4,seed=2 as the variables of scripts/emulated.sh.
run() {
    local log="$1" family="$2" settings="$3" case="$4" s began
    began=$(date +%s)
    local -a environment=(CHRONAXIE_REQUIRE_GPU=1 "CHRONAXIE_EMULATED_KERNELS=$logs/kernels")
    for s in ${settings//,/ }; do
        case "$s" in
        -) ;;
        sms=*) environment+=("CHRONAXIE_EMULATED_SMS=${s#*=}") ;;
        arch=*) environment+=("CHRONAXIE_EMULATED_ARCH=${s#*=}") ;;
        streams=*) environment+=("CHRONAXIE_EMULATED_STREAMS=${s#*=}") ;;
        seed=*) environment+=("CHRONAXIE_EMULATED_SEED=${s#*=}") ;;
        cusolver=*) environment+=("CHRONAXIE_EMULATED_CUSOLVER=${s#*=}") ;;
        devices=*) environment+=("CHRONAXIE_EMULATED_DEVICES=${s#*=}") ;;
        *) echo "no setting $s" >"$log"; return ;;
        esac
    done
    local -a emulated=(env "${environment[@]}" timeout 120 scripts/emulated.sh)
    if [ "$family" = simulate ]; then
        scripts/simulate-same.sh "$chronaxie" "$log.run" "$case" "${emulated[@]}" </dev/null >"$log" 2>&1
    elif [ "$family" = lost ]; then
        env "${environment[@]}" scripts/emulated-lost.sh "$chronaxie" "$log.run" "$case" </dev/null >"$log" 2>&1
    else
        "${emulated[@]}" "$chronaxie" check "$family" --backend cuda --case "$case" </dev/null >"$log" 2>&1
    fi
    echo "$? $(($(date +%s) - began)) $family $settings $case" >"$log.rc"
}

# Every family that runs on a GPU has a case here; simulate's are networks, and lost's those that lose a GPU.
for family in $(grep -v '^#' scripts/gpu-cases.txt | cut -d ' ' -f 1 | sort -u); do
    grep -qE "^$family " scripts/emulated-cases.txt || { echo "scripts/emulated-cases.txt has no case for $family"; exit 1; }
done

n=0
while read -r family settings case; do
    case "$family" in '#'* | '') continue ;; esac
    n=$((n + 1))
    run "$logs/$(printf '%03d' $n)" "$family" "$settings" "$case" &
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
done <scripts/emulated-cases.txt
wait

passed=0 failed=0
for i in $(seq -f %03g 1 $n); do
    read -r rc seconds what <"$logs/$i.rc" || { rc=1 seconds=0 what="case $i"; }
    count=$(sed -n -E 's/^([0-9]+) passed, 0 failed, 0 skipped$/\1/p' "$logs/$i")
    if [ "$rc" -eq 0 ] && [ "${count:-0}" -gt 0 ]; then
        passed=$((passed + count))
        printf '%-8s %4s s  %s\n' "$count" "$seconds" "$what"
    else
        failed=$((failed + 1))
        echo "FAILED   $what"
        sed 's/^/    /' "$logs/$i" | tail -n 30
    fi
done
# Every kernel ran, but for spiking_keep: a cell has to fire 128 times first, which takes minutes here; on a GPU
# on_a_gpu_weights_are_the_cpus gets there; and spiking_pack, whose lists NCCL carries: a test runs it without.
for kernel in $(git ls-files 'crates/chronaxie/src/*.cu' | xargs cat | tr '\n' ' ' |
    grep -oE '__global__ void (__launch_bounds__\([^()]*(\([^()]*\))?[^()]*\))? *[a-zA-Z0-9_]+\(' | grep -oE '[a-zA-Z0-9_]+\($' | tr -d '(' | grep -vxE 'spiking_(keep|pack)'); do
    grep -qx "$kernel" "$logs/kernels" || { failed=$((failed + 1)); echo "FAILED   no case of scripts/emulated-cases.txt runs $kernel"; }
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
