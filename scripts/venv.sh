#!/bin/sh
# scripts/venv.sh [LIST]: prints the folder of the virtual environment that holds the pinned packages of LIST (default
# scripts/requirements.txt), and makes it first if it is not there. It lies outside of the clone, so every clone and
# every branch with the same list shares one. Two processes at once are fine.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

list="${1:-scripts/requirements.txt}"
dir="$(venv_dir "$list")"
if [ ! -e "$dir/.complete" ]; then
    lock "$(basename "$dir")"
    if [ ! -e "$dir/.complete" ]; then
        rm -rf "$dir"
        python3 -m venv "$dir" >&2 || {
            echo "venv: python3 cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2
            exit 1
        }
        "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile -r "$list" >&2
        touch "$dir/.complete"
    fi
fi
echo "$dir"
