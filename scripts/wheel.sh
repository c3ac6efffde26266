#!/bin/sh
# scripts/wheel.sh: builds the optimised wheel for any x86-64 Linux with glibc 2.28 or newer and any Python from 3.9 on, into
# TARGET/wheels, and checks it. zig is the linker: it knows the symbols of old glibcs, and maturin refuses the wheel if
# one of a newer glibc is among them.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

venv="$(scripts/venv.sh scripts/requirements-wheel.txt)"
mkdir -p "$target_dir"
out="$(cd "$target_dir" && pwd)/wheels"
rm -f "$out"/*.whl
# maturin asks the first python3 for zig.
PATH="$venv/bin:$PATH" maturin build --profile "${PROFILE:-dist}" --zig --compatibility manylinux_2_28 --out "$out"
scripts/check-wheel.sh "$out"/*.whl
