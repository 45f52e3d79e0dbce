#!/usr/bin/env bash
# shard.sh - what sharding costs and saves on one node: GPT-2 124M on two CPU ranks of one thread,
# stages in turns, each ratio taken within a turn; and each stage's memory, by PSS, beside its plan.
#
#   tests/bench/shard.sh [BUILD_DIR] [TURNS] [STAGE...]     default: build 3, all; some 5 minutes
#
# A stage is none, optimizer, gradients or weights; weights+copied has --shared-weights=no.
# STEPS=6, SEQ=64, BATCH=4 and PRESET=124M in the environment change what is run.
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build} turns=${2:-3}
shift $(($# < 2 ? $# : 2))
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(none optimizer gradients weights)
preset=${PRESET:-124M} steps=${STEPS:-6} length=${SEQ:-64} batch=${BATCH:-4}
[ -x "$build/gpt2" ] || { echo "shard.sh: $build/gpt2 is not built" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
vocabulary=50257
PYTHONPATH=tests/bench:python python3 -c 'import sys; from comparing.steps import write_tokens
write_tokens(sys.argv[1], int(sys.argv[2]))' "$folder/tokens.bin" $vocabulary

median() { sort -n | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }

# field NAME FILE: the figure behind "NAME": in a summary
field() { sed -nE "s/.*\"$1\": \[?([0-9.e+]+).*/\1/p" "$2" | head -1; }

# largest NAME FILE: of the ranks
largest() { sed -nE "s/.*\"$1\": \[([^]]*)\].*/\1/p" "$2" | head -1 | tr ',' '\n' | sort -g | tail -1; }

# run STAGE TURN: leaves STAGE.TURN.json
run() {
    local shared=yes
    [ "$1" = "${1%+copied}" ] || shared=no
    "$build/dprun" --no-prefix -np 2 --shared-weights=$shared "$build/gpt2" --preset "$preset" \
        --vocab $vocabulary --data "$folder/tokens.bin" --seq "$length" --batch "$batch" --threads 1 \
        --steps $((steps + 2)) --eval-batches 1 --check 0 --log-every 100 --wire none \
        --strategy dps --shard "${1%+copied}" --summary "$folder/$1.$2.json" >"$folder/out" 2>&1 || {
        cat "$folder/out" >&2
        exit 1
    }
}

for ((turn = 0; turn < turns; turn++)); do
    for ((i = 0; i < ${#stages[@]}; i++)); do
        # Every second turn backwards, so that drift evens out.
        run "${stages[$((turn % 2 == 0 ? i : ${#stages[@]} - 1 - i))]}" $turn
    done
done

echo "# $preset, 2 ranks of 1 thread, $((batch / 2)) sequences of $length each, $turns turns of $steps steps"
printf '%-18s %9s %7s %9s %9s %9s %8s %8s  %8s %8s %6s\n' stage "ms/step" "/${stages[0]}" forward \
    backward optimizer exposed skew "MiB" plan ratio
for stage in "${stages[@]}"; do
    for ((turn = 0; turn < turns; turn++)); do
        own=$(field median "$folder/$stage.$turn.json")
        first=$(field median "$folder/${stages[0]}.$turn.json")
        echo "$own" >>"$folder/$stage.ms"
        awk -v a="$own" -v b="$first" 'BEGIN { print a / b }' >>"$folder/$stage.ratio"
        for part in forward backward optimizer exposed skew; do
            sed -nE "s/^\"${part}_ms\": \[([^]]*)\].*/\1/p" "$folder/$stage.$turn.json" | tr ',' '\n' |
                tail -n +3 >>"$folder/$stage.$part"
        done
    done
    json=$folder/$stage.0.json
    used=$(awk -v a="$(largest memory_pss "$json")" -v b="$(largest memory_before "$json")" \
        'BEGIN { print (a - b) / 1048576 }')
    # libdp's fused buffers are there before the model is, so they are in neither figure.
    plan=$(awk -v t="$(field total "$json")" -v l="$(field library "$json")" 'BEGIN { print (t - l) / 1048576 }')
    parts=()
    for part in forward backward optimizer exposed skew; do parts+=("$(median <"$folder/$stage.$part")"); done
    printf '%-18s %9.1f %7.3f %9.1f %9.1f %9.1f %8.1f %8.1f  %8.1f %8.1f %6.3f\n' "$stage" \
        "$(median <"$folder/$stage.ms")" "$(median <"$folder/$stage.ratio")" "${parts[@]}" "$used" "$plan" \
        "$(awk -v a="$used" -v b="$plan" 'BEGIN { print a / b }')"
done
