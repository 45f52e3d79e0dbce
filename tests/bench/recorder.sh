#!/usr/bin/env bash
# recorder.sh - what the always-on recorder costs a training step: GPT-2 on two ranks with the recorder
# on and off in turn, and the number of records per step times the measured cost of one.
#
#   tests/bench/recorder.sh [BUILD_DIR] [TEXT] [TURNS]        default: build run/kjv.txt 5
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build} text=${2:-run/kjv.txt} turns=${3:-5}
[ -x "$build/gpt2" ] || { echo "recorder.sh: $build/gpt2 is not built" >&2; exit 1; }
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
"$build/dprun" -np 2 --no-prefix --timeline "$work/t.pftrace:steps=100-199" "$build/gpt2" --preset quick \
    --data "$text" --steps 220 --eval-batches 1 >/dev/null 2>&1
records=$("$build/dptrace" info "$work/t.pftrace" | awk '/^[^ ]/ {for (i = 1; i < NF; i++) if ($(i + 1) ~ /^events/) print $i}')
awk -v off="$(median "$work/0")" -v on="$(median "$work/1")" -v records="$records" 'BEGIN {
    printf "step, median of turns: off %.2f ms, on %.2f ms: %+.2f %%\n", off, on, (on / off - 1) * 100
    printf "records: %.0f per rank and step; at 65 ns each (tests/trace/bench) %.4f %% of the step\n",
           records / 200, records / 200 * 65e-6 / on * 100
}'
