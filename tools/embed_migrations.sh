#!/bin/sh
# Writes a C table of the SQL files under $1/<dialect>/NNNN_name.sql: {dialect, number, name, text}.
set -eu
for f in "$1"/*/*.sql; do
    [ -e "$f" ] || continue
    dialect=$(basename "$(dirname "$f")")
    name=$(basename "$f" .sql)
    number=$(printf '%s' "$name" | sed 's/_.*//; s/^0*//')
    printf '{"%s", %s, "%s",\n' "$dialect" "$number" "$name"
    sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/    "/' -e 's/$/\\n"/' "$f"
    printf '},\n'
done
