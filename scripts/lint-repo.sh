#!/bin/sh
# What no compiler looks for, over the tracked files. Prints each finding; exits 1 if there was one.
set -u
cd "$(dirname "$0")/.."
found=0
say() { echo "lint: $*"; found=1; }
# refuse WHY PATTERN [PATHSPEC ...]: no text file may hold a match. Patterns are written so as not to match themselves.
refuse() {
    why="$1" pattern="$2"; shift 2
    hits=$(git grep -nIE -e "$pattern" -- "$@") && { echo "$hits"; say "$why"; }
}

refuse "registries are chosen by the environment: name no host of one" \
    '(crates[.]io|pypi[.]org|pythonhosted[.]org|(deb|security)[.]debian[.]org|npmjs[.](org|com)|download[.]pytorch[.]org)' \
    ':!Cargo.lock' ':!fuzz/Cargo.lock'
refuse "a path of one machine" '(^|[^a-zA-Z0-9_.~/-])/(home/[a-z]|root/|work/|tmp/|Users/[A-Za-z])' ':!fuzz/corpus'
refuse "left-overs" '(^|[^a-z_"`])(todo|unimplemented|dbg)[!]|(^|[^A-Za-z])(TOD[O]|FIXM[E]|XX[X])([^A-Za-z]|$)' '*.rs' '*.cu' '*.cuh' '*.py' '*.sh'
refuse "a merge's marks" '^(<<<<<<<|>>>>>>>) '

git ls-files '*.rs' '*.cu' '*.cuh' '*.py' '*.sh' | while read -r f; do
    lines=$(wc -l <"$f")
    [ "$lines" -le 600 ] || echo "$f has $lines lines; 600 is the most"
done | { ! grep . ; } || say "too long"

# Text files end with a newline. -I leaves out what git takes for binary; an empty file has no line to end.
git grep -lI '' -- ':!fuzz/corpus' | while read -r f; do
    [ -z "$(tail -c 1 "$f")" ] || echo "$f"
done | { ! grep . ; } || say "no newline at the end"

# Every `make` target and script that a document names exists.
docs=$(git ls-files '*.md')
for t in $(grep -ohE '(^|`)make [a-z][a-z-]*' $docs | sed 's/.*make //' | sort -u); do
    grep -qE "^(\.PHONY:.* )?$t( |:|$)|^STEPS = .*\b$t\b" Makefile || say "a document names 'make $t', which is no target"
done
for s in $(grep -ohE '\b(scripts|benchmarks|fuzz)/[A-Za-z0-9_.-]+\.(sh|py|txt)' $docs Makefile | sort -u); do
    [ -e "$s" ] || say "a document or the Makefile names $s, which does not exist"
done
# Every path that a document links to exists.
for d in $docs; do
    grep -oE '\]\([^)#: ]+[^): ]*\)' "$d" | sed -E 's/^\]\(//; s/(#.*)?\)$//' | while read -r link; do
        [ -e "$(dirname "$d")/$link" ] || echo "$d links to $link, which does not exist"
    done
done | { ! grep . ; } || say "broken links"

# Every .cu file is embedded by some Rust file, so `chronaxie compile` sees it.
git ls-files 'crates/*.cu' | while read -r f; do
    git grep -qF "$(basename "$f")\"" -- '*.rs' || echo "$f is launched by nobody"
done | { ! grep . ; } || say "kernels without a launcher"

# Scripts parse, and are executable.
for s in $(git ls-files '*.sh' .ci/run); do
    if head -n 1 "$s" | grep -q bash; then bash -n "$s"; else sh -n "$s"; fi || say "$s does not parse"
    head -c 2 "$s" | grep -q '#!' && [ ! -x "$s" ] && say "$s is not executable"
done
[ "$found" -eq 0 ] && echo "lint: nothing found in $(git ls-files | wc -l) files"
exit "$found"
