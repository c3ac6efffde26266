#!/bin/sh
# scripts/python.sh [PYTEST-ARGUMENT ...]: builds the wheel in the profile of the other steps, installs it into a folder
# of its own (the virtual environment is shared by every clone), checks it as scripts/check-wheel.sh says, and runs the tests
# of crates/chronaxie-py and the example with it. scripts/python.sh --run SCRIPT [ARGUMENT ...] runs a script with it and nothing
# else; PROFILE=release is for what is timed.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

venv="$(scripts/venv.sh scripts/requirements-bench.txt)"
# Some tests start processes of their own: PyTorch imports in 5 s instead of 15 where its byte code is kept.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$cache_root/bytecode-$(basename "$venv")"
mkdir -p "$target_dir"
target="$(cd "$target_dir" && pwd)"
rm -rf "$target/wheels/python" "$target/python"
# scripts/add-a-family.py copies what was built while nobody builds there.
flock "$target/lend.lock" "$venv/bin/maturin" build --quiet --profile "${PROFILE:-conformance}" --interpreter "$venv/bin/python" --out "$target/wheels/python"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index \
    --target "$target/python" "$target"/wheels/python/*.whl

if [ "${1:-}" = --run ]; then
    shift
    PYTHONPATH="$target/python" exec "$venv/bin/python" "$@"
fi
scripts/check-wheel.sh "$target"/wheels/python/*.whl

# The script that the wheel installs, outside of the clone, where no other package of that name is.
export PYTHONPATH="$target/python"
(cd "$target" && "$venv/bin/python" "$target/python/bin/chronaxie" --version)
# Two processes, and PyTorch's threads would wait for each other: less than half the time with one in each.
OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" "$venv/bin/python" -m pytest -p no:cacheprovider -n 2 "$@"
if [ $# -eq 0 ]; then
    out="$(mktemp -d)"
    trap 'rm -rf "$out"' EXIT
    "$venv/bin/python" examples/train.py --model ltc,cfc --epochs 2 --out "$out"
    "$venv/bin/python" examples/xlstm.py --width 256 --heads 4
fi
