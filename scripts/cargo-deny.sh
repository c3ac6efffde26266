#!/bin/sh
# scripts/cargo-deny.sh ARGS: runs the pinned cargo-deny, which is built once, outside of the clone. A debug build: it
# takes half the time to make and checks this workspace in two seconds.
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
        CARGO_TARGET_DIR="$build" CARGO_PROFILE_DEV_DEBUG=0 cargo install cargo-deny --version "$version" --locked \
            --debug --no-default-features --no-track --quiet --root "$dir" >&2
        rm -rf "$build"
    fi
fi
"$dir/bin/cargo-deny" "$@"
