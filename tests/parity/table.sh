#!/bin/sh
# table.sh PARITY_PROCESS TABLE - every case has its row in the table, and every row its case.
set -eu

work=$(mktemp -d "${TMPDIR:-/tmp}/parity-XXXXXX")
trap 'rm -rf "$work"' EXIT
"$1" --list | sort >"$work/cases"
# Ours are the names in the second column: | theirs | `ours`, `ours` | ...
awk -F'|' 'NF >= 4 { print $3 }' "$2" | grep -o '`[a-z0-9_]*`' | tr -d '`' | sort -u >"$work/rows"
if ! diff "$work/cases" "$work/rows" >"$work/diff"; then
    echo "table.sh: cases (<) and rows of $2 (>) differ:" >&2
    cat "$work/diff" >&2
    exit 1
fi
echo "table.sh: $(wc -l <"$work/cases") cases, each in the table"
