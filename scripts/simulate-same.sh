#!/bin/bash
# scripts/simulate-same.sh CHRONAXIE FOLDER CASE [COMMAND ...]: the microcircuit on the CPU, and half on the CPU, the rest on a GPU
# from its checkpoint: the spikes and the last checkpoint must be the same. CASE is scale=F,ms=N,KEY=VALUE,... with KEYs of
# [simulation], or begins with network=NAME, another one of examples/; gpus=N and method=M share it among GPUs, parts=N, nodes=N and transport=WAY among processes with a GPU (or gpus=N) each, replicas=N is so many
# side by side; stored=cpu (or gpu) keeps the synapses of the first projection there, which the other draws at each spike; again=true goes on from the GPU's own checkpoint once more; analyze=true asks both for what the spikes and the network are like, which must be the same too. A COMMAND precedes
# what needs the GPU. The last line is:
# 1 passed, 0 failed, 0 skipped.
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
chronaxie="$1" folder="$2" case="$3"
shift 3
network=microcircuit scale=0.01 ms=10 set=(--set simulation.discard=0) gpus=() record=none
kept=(--set projection.0.synapses=stored) on_cpu=() on_gpu=() again=false
for s in ${case//,/ }; do
    case "$s" in
    network=*) network="${s#*=}" scale=1 ;;
    scale=*) scale="${s#*=}" ;;
    ms=*) ms="${s#*=}" ;;
    analyze=true) record=spikes ;;
    again=*) again="${s#*=}" ;;
    stored=cpu) on_cpu=("${kept[@]}") ;;
    stored=gpu) on_gpu=("${kept[@]}") ;;
    replicas=*) set+=(--replicas "${s#*=}") ;;
    gpus=* | method=* | parts=* | nodes=* | transport=*) gpus+=("--${s%%=*}" "${s#*=}") ;;
    *) set+=(--set "simulation.$s") ;;
    esac
done
file="$here/examples/$network.toml"
[ -e "$file" ] || file="$here/../examples/$network.toml"
rm -rf "$folder"
mkdir -p "$folder"
run() { # NAME ARGUMENTS ...: the report to FOLDER/NAME.json
    local name="$1"
    shift
    "$@" simulate "$file" --scale "$scale" "${set[@]}" --record "$record" --quiet --json "$folder/$name.json" "${how[@]}"
}
how=(--backend cpu --duration "$ms" --out "$folder/whole" "${on_cpu[@]}")
run whole "$chronaxie"
how=(--backend cpu --duration "$((ms / 2))" --out "$folder/parts" "${on_cpu[@]}")
run half "$chronaxie"
if $again; then
    how=(--backend cuda --duration "$((ms * 3 / 4))" --resume "$folder/parts" "${gpus[@]}" "${on_gpu[@]}" --checkpoint-every 2)
    run parts "$@" "$chronaxie"
fi
how=(--backend cuda --duration "$ms" --resume "$folder/parts" "${gpus[@]}" "${on_gpu[@]}")
run parts "$@" "$chronaxie"
value() { sed -n -E "s/^ *\"$2\": \"?([^\"]*[^\",])\"?,?\$/\1/p" "$folder/$1.json" | head -n 1; }
echo "$(value whole spikes) spikes; on the GPU: $(value parts engine), real-time factor $(value parts real_time_factor)"
# A GPU writes the synapses that change in an order of its own, which the CPU reads, and writes in its.
if ! cmp -s "$folder/whole/checkpoint/state.bin" "$folder/parts/checkpoint/state.bin"; then
    how=(--backend cpu --duration "$ms" --resume "$folder/parts" "${on_cpu[@]}")
    run back "$chronaxie"
fi
if ! cmp "$folder/whole/checkpoint/state.bin" "$folder/parts/checkpoint/state.bin"; then
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
if [ "$record" = spikes ]; then
    "$chronaxie" analyze "$folder/whole" --quiet --backend cpu --json "$folder/cpu.json"
    "$@" "$chronaxie" analyze "$folder/whole" --quiet --backend cuda --json "$folder/gpu.json"
    if ! grep -q '"clustering": 0\.' "$folder/gpu.json" || ! cmp "$folder/cpu.json" "$folder/gpu.json"; then
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
    fi
fi
if [ "$(value whole spikes)" -gt 0 ] && [ "$(value whole spikes_sha256)" = "$(value parts spikes_sha256)" ] &&
    [ "$(value parts backend)" = cuda:0 ]; then
    echo "1 passed, 0 failed, 0 skipped"
else
    echo "the spikes differ: $(value whole spikes_sha256) on the CPU, $(value parts spikes_sha256) on the GPU"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
