#!/bin/bash
# scripts/run-steps.sh STEP ...: runs each make target, and goes on after a failure. Prints of each its time, when it began and how long
# it kept a core at work, and last one line: N passed, N failed, N skipped. A step that runs tests counts them; any other counts as one.
# With `build` among them, the steps of $beside run next to those that follow it, since few keep two cores at work to their end;
# what a step then says is printed when it ends.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

beside=" kernels emulated examples add-a-family "
logs="$target_dir/steps"
mkdir -p "$logs"
# What a fresh machine must fetch, unpack and build for later steps takes one core and minutes: beside the first steps.
case " $* " in
*" python "*) scripts/venv.sh scripts/requirements-bench.txt >"$logs/fetch.log" 2>&1 & ;;
esac
case " $* " in
*" deny "*) nice scripts/cargo-deny.sh --version >"$logs/fetch-deny.log" 2>&1 & ;;
esac

start=$(date +%s)
TIMEFORMAT='%0U %0S'
step() { # NAME, and `quietly` where another one prints meanwhile
    local began line
    began=$(date +%s)
    rm -f "$logs/$1.rc"
    echo $((began - start)) >"$logs/$1.began"
    if [ "${2:-}" = quietly ]; then
        { time "${MAKE:-make}" --no-print-directory "$1" >"$logs/$1.log" 2>&1; } 2>"$logs/$1.cores"
        echo $? >"$logs/$1.rc"
    else
        echo "== $1"
        { time "${MAKE:-make}" --no-print-directory "$1" 2>&1; echo $? >"$logs/$1.rc"; } 2>"$logs/$1.cores" | tee "$logs/$1.log"
    fi
    echo $(($(date +%s) - began)) >"$logs/$1.seconds"
    line="$([ "$(cat "$logs/$1.rc")" = 0 ] && echo passed || echo FAILED) in $(cat "$logs/$1.seconds") s"
    if [ "${2:-}" = quietly ]; then
        { flock 7; echo "== $1"; cat "$logs/$1.log"; echo "-- $1: $line"; } 7>"$logs/print.lock"
    else
        echo "-- $1: $line"
    fi
}

first=() next=() other=() built=""
for s in "$@"; do
    case "$beside" in *" $s "*) [ -z "$built" ] || { other+=("$s"); continue; } ;; esac
    if [ -n "$built" ]; then next+=("$s"); else first+=("$s"); fi
    [ "$s" != build ] || built=yes
done
for s in "${first[@]}"; do step "$s"; done
if [ -n "$built" ]; then
    # What has been built need not be looked at again: cargo waits there for what it builds meanwhile.
    [ "$(cat "$logs/build.rc")" != 0 ] || export CHRONAXIE_BUILT=1
    # A group of its own, to be ended with this one.
    set -m
    (for s in "${other[@]}"; do step "$s" quietly; done) &
    group=$!
    set +m
    trap 'kill -- -$group; exit 130' INT TERM HUP
    for s in "${next[@]}"; do step "$s" quietly; done
    wait "$group"
    trap - INT TERM HUP
    unset CHRONAXIE_BUILT
fi

table="" passed=0 failed=0 skipped=0
for step in "$@"; do
    rc=$(cat "$logs/$step.rc") || rc=1
    # cargo test: "test result: ok. 3 passed; 0 failed; 1 ignored; ..."; chronaxie check: "3 passed, 0 failed, 1 skipped".
    read -r p f s < <(sed -n -E \
        -e 's/^test result: [a-zA-Z]+\. ([0-9]+) passed; ([0-9]+) failed; ([0-9]+) ignored;.*/\1 \2 \3/p' \
        -e 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$logs/$step.log" |
        awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }')
    [ "$rc" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    [ "$rc" -eq 0 ] && [ "$((p + f + s))" -eq 0 ] && p=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    result=passed
    [ "$rc" -ne 0 ] && result=FAILED
    read -r user system <"$logs/$step.cores" || user=0 system=0
    line=$(printf '%-14s %-7s %5d s from %4d s on, %5d s of cores  %5d passed %3d failed %3d skipped' "$step" "$result" \
        "$(cat "$logs/$step.seconds")" "$(cat "$logs/$step.began")" "$((user + system))" "$p" "$f" "$s")
    table="$table$line
"
done
printf '\n%s' "$table"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
