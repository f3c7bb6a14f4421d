#!/bin/sh
# Runs each test program (cmocka), as many at once as there are processors; shows the output of those that fail, and ends
# with `N passed, N failed`.
passed=0 failed=0 broken=""
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
printf '%s\n' "$@" | xargs -P "$(nproc)" -I '{}' sh -c '"$1" >"$2/${1##*/}" 2>&1; echo $? >"$2/${1##*/}.status"' _ '{}' "$logs"
for program in "$@"; do
    log=$logs/${program##*/}
    status=$(cat "$log.status")
    ok=$(grep -c '^\[       OK \]' "$log")
    bad=$(grep '^\[  FAILED  \] [a-z_0-9]*$' "$log" | sort -u | wc -l)
    if [ "$status" != 0 ]; then
        cat "$log"
        [ "$bad" -gt 0 ] || bad=1
        broken="$broken ${program##*/}"
    fi
    passed=$((passed + ok)) failed=$((failed + bad))
done
[ -z "$broken" ] || echo "failing programs:$broken"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
