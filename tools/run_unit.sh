#!/bin/sh
# Runs each test program (cmocka), shows the output of those that fail, and ends with `N passed, N failed`.
passed=0 failed=0 broken=""
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for program in "$@"; do
    "$program" >"$log" 2>&1
    status=$?
    ok=$(grep -c '^\[       OK \]' "$log")
    bad=$(grep '^\[  FAILED  \] [a-z_0-9]*$' "$log" | sort -u | wc -l)
    if [ "$status" -ne 0 ]; then
        cat "$log"
        [ "$bad" -gt 0 ] || bad=1
        broken="$broken ${program##*/}"
    fi
    passed=$((passed + ok)) failed=$((failed + bad))
done
[ -z "$broken" ] || echo "failing programs:$broken"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
