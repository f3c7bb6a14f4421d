#!/bin/sh
# An include may only point down this list (ARCHITECTURE.md). Fails with the lines that point up or sideways.
set -eu
cd "$(dirname "$0")/.."
rank() {
    case $1 in
    base) echo 0 ;; domain) echo 1 ;; policy) echo 2 ;; kernel) echo 3 ;; store) echo 4 ;; engine) echo 5 ;;
    http | dispatch | observe) echo 6 ;; api) echo 7 ;; cli) echo 8 ;; *) echo 99 ;;
    esac
}
bad=0
for f in src/*/*.c src/*/*.cc src/*/*.h; do
    [ -e "$f" ] || continue
    layer=$(basename "$(dirname "$f")")
    own=$(rank "$layer")
    for inc in $(sed -n 's/^#include "\([a-z]*\)\/.*/\1/p' "$f" | sort -u); do
        [ "$inc" = "$layer" ] && continue
        r=$(rank "$inc")
        if [ "$r" -ge "$own" ]; then
            echo "$f: layer $layer must not include $inc/" >&2
            bad=1
        fi
    done
    case $layer in
    base | domain | policy | kernel)
        if grep -nE '#include <(sqlite3|libpq-fe|curl/|pthread|sys/socket|sys/epoll)' "$f" | grep -v '^$' >&2; then
            # The cache of compiled bundles is asked by every thread that decides or compiles: its mutex is its own affair.
            [ "$layer" = base ] || [ "$f" = src/policy/cache.c ] || { echo "$f: $layer/ knows no SQL, sockets or threads" >&2; bad=1; }
        fi
        ;;
    esac
done
[ "$bad" -eq 0 ] && echo "layers are in order"
exit "$bad"
