#!/usr/bin/env bash
# cases.sh - cases of tests/ranks as two processes, one after the other: on the device that
# DP_DEVICE says.
#
#   tests/gpu/cases.sh DPRUN PROGRAM CASE...
set -u
dprun=$1 program=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
for what in "$@"; do
    if timeout -k 5 100 "$dprun" -np 2 "$program" "$what" >"$log" 2>&1; then
        echo "$what: ok"
    else
        echo "$what: exit code $?"
        cat "$log"
        failed=1
    fi
    rm -rf $(sed -n 's/.*run directory \(\/[^ ]*\) .*/\1/p' "$log")
done
exit $failed
