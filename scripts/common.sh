# What the scripts share; sourced, with the repository's root as the working folder.
# shellcheck shell=sh

cache_root="${CHRONAXIE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/chronaxie}"
target_dir="${CARGO_TARGET_DIR:-target}"

# One process at a time holds the lock of a name; others wait for it. Released when the script ends.
lock() {
    mkdir -p "$cache_root"
    exec 9>"$cache_root/$1.lock"
    flock 9
}

# The folder of the venv that a pinned list makes: its name holds a hash of the list and of the Python that runs it.
venv_dir() {
    python="$(python3 -c 'import sys; print(sys.version_info[:2], sys.base_prefix)')"
    printf '%s/venv-%s\n' "$cache_root" "$( (cat "$1"; echo "$python") | sha256sum | cut -c 1-16)"
}
