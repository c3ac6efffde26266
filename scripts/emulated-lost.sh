#!/bin/bash
# scripts/emulated-lost.sh CHRONAXIE FOLDER CASE: a GPU of several is lost in mid-run, on the emulated GPU: the run ends with a
# sentence within 30 s, and its last checkpoint goes on, on the CPU, to the spikes and the state of a run that lost nothing. CASE is
# kernel=NAME,launch=N (the one at which it is lost),gpus=N or parts=N (processes with a GPU each),device=K,silent=0|1 (whether the driver says nothing),network=NAME,ms=N,
# every=MS (between checkpoints),KEY=VALUE,... with KEYs of [simulation]. The last line is: 1 passed, 0 failed, 0 skipped.
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
chronaxie="$1" folder="$2" case="$3"
kernel=spiking_steps launch=5 how_many=(--gpus 2) device=1 silent=0 network=space ms=20 every=2 set=(--set simulation.discard=0)
for s in ${case//,/ }; do
    case "$s" in
    parts=*) how_many=(--parts "${s#*=}") ;;
    gpus=*) how_many=(--gpus "${s#*=}") ;;
    kernel=* | launch=* | device=* | silent=* | network=* | ms=* | every=*) eval "${s%%=*}=\"${s#*=}\"" ;;
    *) set+=(--set "simulation.$s") ;;
    esac
done
failed() {
    echo "$1"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}
rm -rf "$folder"
mkdir -p "$folder"
run() { # NAME ARGUMENTS ...: the report to FOLDER/NAME.json
    local name="$1"
    shift
    timeout 60 "$@" simulate "$here/../examples/$network.toml" "${set[@]}" --record none --quiet --json "$folder/$name.json" "${how[@]}"
}
how=(--backend cpu --duration "$ms" --out "$folder/whole")
run whole "$chronaxie"
lost="$device:$kernel:$launch"
[ "$silent" = 0 ] || lost="$lost:silent"
how=(--backend cuda "${how_many[@]}" --duration "$ms" --checkpoint-every "$every" --out "$folder/lost")
began=$(date +%s) rc=0
run lost env CHRONAXIE_EMULATED_LOST="$lost" "$here/emulated.sh" "$chronaxie" 2>"$folder/said" || rc=$?
took=$(($(date +%s) - began))
echo "after $took s: $(cat "$folder/said")"
[ "$rc" -ne 0 ] || failed "the run did not end with an error"
[ "$rc" -ne 124 ] && [ "$took" -le 40 ] || failed "the run hung"
grep -qE "GPU.* (is lost|has not answered|heard nothing)" "$folder/said" || failed "the sentence does not say what was lost"
[ -e "$folder/lost/checkpoint/state.bin" ] || failed "there is no checkpoint: the GPU was lost before the first"
how=(--backend cpu --duration "$ms" --resume "$folder/lost")
run resumed "$chronaxie"
value() { sed -n -E "s/^ *\"$2\": \"?([^\"]*[^\",])\"?,?\$/\1/p" "$folder/$1.json" | head -n 1; }
[ "$(value whole spikes)" -gt 0 ] && [ "$(value whole spikes_sha256)" = "$(value resumed spikes_sha256)" ] || failed "the spikes differ"
cmp "$folder/whole/checkpoint/state.bin" "$folder/lost/checkpoint/state.bin" || failed "the last states differ"
echo "1 passed, 0 failed, 0 skipped"
