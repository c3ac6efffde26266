#!/bin/sh
# scripts/check-wheel.sh WHEEL: whether the wheel keeps to the stable ABI that its name promises (abi3audit), imports and
# runs under every Python from 3.9 on that this machine has, and whether its stubs say what the module holds (stubtest).
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

wheel="$1"
venv="$(scripts/venv.sh scripts/requirements-wheel.txt)"
"$venv/bin/abi3audit" --strict --summary "$wheel"

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"$venv/bin/python" -m zipfile -e "$wheel" "$folder"
[ -e "$folder/chronaxie/py.typed" ] || { echo "check-wheel: $wheel has no py.typed" >&2; exit 1; }

# Names on the path, and what pyenv keeps beside it; each Python once.
for name in python3 python3.9 python3.10 python3.11 python3.12 python3.13 python3.14 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
    "$name" -c 'import sys; sys.version_info >= (3, 9) and print(sys.version.split()[0], sys.executable)' 2>/dev/null || true
done | sort -u -k 1,1 >"$folder/pythons"
[ -s "$folder/pythons" ] || { echo "check-wheel: there is no Python from 3.9 on" >&2; exit 1; }
while read -r version python; do
    (cd "$folder" && PYTHONPATH="$folder" "$python" -c '
import chronaxie, chronaxie.cuda
records = chronaxie.check("ltc", cases="B2_T3_D4_H5", backend="cpu", repeats=2)
assert records and all(r["status"] == "passed" for r in records), records
')
    echo "imports and runs under Python $version"
done <"$folder/pythons"

# pyright and mypy read the stubs of what is not Python; --ignore-missing-stub leaves what is.
(cd "$folder" && MYPYPATH="$folder" PYTHONPATH="$folder" "$venv/bin/python" -m mypy.stubtest chronaxie._native)
