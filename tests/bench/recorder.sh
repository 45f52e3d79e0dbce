#!/usr/bin/env bash
# recorder.sh - what the always-on recorder costs a training step: GPT-2 on two ranks with the recorder
# on and off in turn, and the number of records per step times the measured cost of one.
#
#   tests/bench/recorder.sh [BUILD_DIR] [TEXT] [TURNS] [BENCH]
#                                    default: build run/kjv.txt 5 build-dev/tests/dp_trace_bench
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build} text=${2:-run/kjv.txt} turns=${3:-5} bench=${4:-build-dev/tests/dp_trace_bench}
[ -x "$build/gpt2" ] || { echo "recorder.sh: $build/gpt2 is not built" >&2; exit 1; }
[ -x "$bench" ] || { echo "recorder.sh: $bench is not built (a build with DP_TESTS=ON has it)" >&2; exit 1; }
[ -r "$text" ] || { echo "recorder.sh: cannot read $text; examples/gpt2/data/kjv.sh FILE makes one" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# the mean step of a run, ms
run() {
    "$build/dprun" -np 2 --no-prefix --trace="$1" "$build/gpt2" --preset quick --data "$text" \
        --steps 400 --eval-batches 1 | awk '/^step +[0-9.]+ ms:/ {print $2}'
}
for turn in $(seq "$turns"); do
    for trace in 0 1; do
        ms=$(run $trace)
        printf 'turn %s  recorder %s  step %s ms\n' "$turn" "$trace" "$ms"
        echo "$ms" >>"$work/$trace"
    done
done
median() { sort -n "$1" | sed -n "$((turns / 2 + 1))p"; }
# Records per rank and step, as written: with little room, what two runs have overwritten differs by the
# records of the steps they differ by. (A merged file holds fewer: it groups some.)
overwritten() {
    "$build/dprun" -np 2 --no-prefix --trace-bytes 1M --timeline "$work/t.pftrace" "$build/gpt2" \
        --preset quick --data "$text" --steps "$1" --eval-batches 1 >/dev/null 2>&1
    "$build/dptrace" info "$work/t.pftrace" |
        awk '/ rank / {for (i = 1; i < NF; i++) if ($i == "dropped") sum += $(i + 1)} END {print sum}'
}
few=$(overwritten 400)
many=$(overwritten 800)
# The dearest kind of record, measured now.
cost=$("$bench" | awk '/^begin and end/ {for (i = 1; i < NF; i++) if ($i == "median") print $(i + 1)}')
awk -v off="$(median "$work/0")" -v on="$(median "$work/1")" -v few="$few" -v many="$many" -v cost="$cost" 'BEGIN {
    records = (many - few) / 400 / 2
    printf "step, median of turns: off %.2f ms, on %.2f ms: %+.2f %%\n", off, on, (on / off - 1) * 100
    printf "records: %.0f per rank and step; at %.1f ns, the dearest kind, %.3f %% of the step\n",
           records, cost, records * cost * 1e-6 / on * 100
}'
