#!/usr/bin/env bash
# table.sh - results.json as a table for a terminal.
#
#   table.sh RESULTS.JSON
grep -q '"rehearsal": true' "$1" && echo "REHEARSAL: doubles on a CPU; no figure means anything."
sed -n 's/^    "\([a-z_]*\)": "\(.*\)",\{0,1\}$/\1\t\2/p' "$1" | awk -F '\t' '{ printf "%-18s %s\n", $1, $2 }'
echo
sed -n 's/^    {"step":"\([^"]*\)",.*,"verdict":"\([a-z]*\)","seconds":\([0-9.]*\),.*,"note":"\(.*\)","figures":.*/\1\t\2\t\3\t\4/p' "$1" |
    awk -F '\t' '{ gsub(/\\"/, "\"", $4); gsub(/\\\\/, "\\", $4); printf "%-18s %-8s %7.1f s  %s\n", $1, $2, $3, $4 }'
