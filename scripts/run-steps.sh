#!/bin/sh
# scripts/run-steps.sh STEP ...: runs each make target in turn, and goes on after a failure. Prints the time of each, and
# last one line: N passed, N failed, N skipped. A step that runs tests counts them; any other counts as one.
set -u
cd "$(dirname "$0")/.."
. scripts/common.sh

logs="$target_dir/steps"
mkdir -p "$logs"
table="" passed=0 failed=0 skipped=0
# What a fresh machine must fetch, unpack and build for later steps takes one core and minutes: beside the first steps.
case " $* " in
*" python "*) scripts/venv.sh scripts/requirements-bench.txt >"$logs/fetch.log" 2>&1 & ;;
esac
case " $* " in
*" deny "*) nice scripts/cargo-deny.sh --version >"$logs/fetch-deny.log" 2>&1 & ;;
esac
for step in "$@"; do
    echo "== $step"
    began=$(date +%s)
    { "${MAKE:-make}" --no-print-directory "$step" 2>&1; echo $? >"$logs/$step.rc"; } | tee "$logs/$step.log"
    rc=$(cat "$logs/$step.rc")
    seconds=$(($(date +%s) - began))

    # cargo test: "test result: ok. 3 passed; 0 failed; 1 ignored; ..."; chronaxie check: "3 passed, 0 failed, 1 skipped".
    counts=$(sed -n -E \
        -e 's/^test result: [a-zA-Z]+\. ([0-9]+) passed; ([0-9]+) failed; ([0-9]+) ignored;.*/\1 \2 \3/p' \
        -e 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$logs/$step.log" |
        awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }')
    read -r p f s <<EOF
$counts
EOF
    [ "$rc" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    [ "$rc" -eq 0 ] && [ "$((p + f + s))" -eq 0 ] && p=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    result=passed
    [ "$rc" -ne 0 ] && result=FAILED
    line=$(printf '%-14s %-7s %5d s  %5d passed %3d failed %3d skipped' "$step" "$result" "$seconds" "$p" "$f" "$s")
    table="$table$line
"
    echo "-- $step: $result in $seconds s"
done
printf '\n%s' "$table"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
