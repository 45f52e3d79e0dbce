#!/usr/bin/env bash
# hold.sh - what DP_TUNE=on gains over the default DP_FUSION_HOLD, and what the best hold set by hand
# gains: three ways in turn, medians of the turns, on EMULATED wires (a clock, no network), so that
# the machine's load matters little. The last case is a control: its one tensor can wait for no other.
#
#   tests/bench/hold.sh [BUILD_DIR] [TURNS]        default: build 3; some 5 minutes
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build} turns=${2:-3}
program=$build/tests/hold
[ -x "$program" ] || { echo "hold.sh: $program is not built" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

median() { sort -n "$1" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

# NAME RANKS LATENCY BANDWIDTH BEST_HOLD ARGUMENTS...
measure() {
    local name=$1 best=$5 way off on hand
    local wire=(DP_LOG=error DP_EMULATE_RANKS="$2" DP_EMULATE_LATENCY="$3" DP_EMULATE_BANDWIDTH="$4")
    shift 5
    rm -f "$folder"/*
    for ((turn = 0; turn < turns; turn++)); do
        env "${wire[@]}" "$program" "$@" steps=120 >>"$folder/off"
        env "${wire[@]}" DP_TUNE=on "$program" "$@" steps=900 >>"$folder/on"
        env "${wire[@]}" DP_FUSION_HOLD="$best" "$program" "$@" steps=120 >>"$folder/hand"
    done
    for way in off on hand; do printf -v "$way" %s "$(median "$folder/$way")"; done
    awk -v n="$name" -v a="$off" -v b="$on" -v c="$hand" -v h="$best" 'BEGIN {
        printf "%-42s %9.2f %9.2f %6.2f    %6s %9.2f %6.2f\n", n, a, b, b / a, h, c, c / a }'
}

echo "# EMULATED wires; milliseconds of a step, and its ratio to the default's"
printf '%-42s %9s %9s %6s    %6s %9s %6s\n' case "200us" tuned ratio "hand" "" ratio
measure "64 ranks, 20 us, 600 x 16 KiB over 4 ms" 64 20us 12500M 3200us
measure "16 ranks, 50 us, 600 x 16 KiB over 4 ms" 16 50us 1250M 3200us
measure "8 ranks, 5 us, 600 x 16 KiB over 4 ms" 8 5us 12500M 800us
measure "control: 64 ranks, one tensor of 8 MiB" 64 20us 12500M 3200us tensors=1 bytes=8388608
