#!/bin/sh
# scripts/pack-gpu.sh [DIR]: builds everything that scripts/run-gpu.sh runs, stripped, into DIR (default .gpu), which
# can be carried to a machine that has an NVIDIA GPU and no Rust. 48 MiB at most.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

dir="${1:-.gpu}"
rm -rf "$dir"
mkdir -p "$dir/bin" "$dir/tests" "$dir/examples"

# The tests in the crates' own folders and the one of the library's units that have a GPU test.
cargo build --profile dist --quiet -p chronaxie-cli
cargo build --profile dist --quiet -p chronaxie --examples
cp "$target_dir/dist/chronaxie" "$dir/bin/"
{
    cargo test --profile dist --quiet --no-run --message-format=json-render-diagnostics -p chronaxie-runtime --test gpu
    cargo test --profile dist --quiet --no-run --message-format=json-render-diagnostics -p chronaxie --lib
} | python3 -c '
import json, shutil, sys
for line in sys.stdin:
    m = json.loads(line)
    if m.get("reason") == "compiler-artifact" and m.get("executable") and m["profile"]["test"]:
        name = m["target"]["name"] + ("-units" if "lib" in m["target"]["kind"] else "")
        shutil.copy(m["executable"], sys.argv[1] + "/tests/" + name)
' "$dir"
# A pipe ends with the status of its last command alone.
for test in gpu chronaxie-units; do
    [ -x "$dir/tests/$test" ] || { echo "pack-gpu: the tests $test were not built" >&2; exit 1; }
done
for source in crates/chronaxie/examples/*.rs; do
    [ -e "$source" ] && cp "$target_dir/dist/examples/$(basename "$source" .rs)" "$dir/examples/"
done
# The Python package as it is installed, without the 5 GB that building and trying a wheel takes.
cargo build --profile dist --quiet -p chronaxie-py
mkdir "$dir/python"
git ls-files crates/chronaxie-py/python crates/chronaxie-py/tests | tar -cf - -T - | tar -xf - -C "$dir/python" --strip-components 2
mv "$dir/python/python/chronaxie" "$dir/python/" && rmdir "$dir/python/python"
cp "$target_dir/dist/libchronaxie_py.so" "$dir/python/chronaxie/_native.abi3.so"
cp scripts/run-gpu.sh scripts/gpu-cases.txt scripts/simulate-same.sh "$dir/"
cp examples/microcircuit.toml examples/plasticity.toml examples/procedural.toml "$dir/examples/"
for file in examples/japanese-vowels.toml; do
    [ -e "$file" ] && cp "$file" "$dir/examples/" && cp -r examples/data "$dir/examples/"
done

kib=$(du -sk "$dir" | cut -f 1)
echo "pack-gpu: $dir, $((kib / 1024)) MiB"
[ "$kib" -le $((48 * 1024)) ] || { du -ak "$dir" | sort -n | tail -n 8 >&2; echo "pack-gpu: over 48 MiB" >&2; exit 1; }
