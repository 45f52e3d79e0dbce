#!/bin/sh
# compress_curve.sh DPRUN GPT2 - what compression costs in loss: after 300 steps on two ranks the
# validation loss is within 2 % of a plain run's, with 99 % dropped after 100 plain steps, and with
# factors of four columns from the first step on.
# shellcheck disable=SC2086 # flags is a list of words
set -eu

dprun=$1
gpt2=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-curve-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

awk 'BEGIN { srand(7); split("and the lord said unto them", w, " ");
     for (i = 0; i < 4000; i++) printf "%s%s", w[int(rand() * 6) + 1], i % 12 == 11 ? "\n" : " " }' >text
flags="--data text --batch 8 --steps 300 --log-every 300 --lr 3e-3"

# loss NAME FLAGS...: prints the validation loss
loss() {
    name=$1
    shift
    "$dprun" -np 2 "$gpt2" $flags "$@" >"$name.out" 2>&1 || {
        cat "$name.out" >&2
        exit 1
    }
    sed -n 's/.*learned val loss \([0-9.]*\).*/\1/p' "$name.out"
}

plain=$(loss plain)
topk=$(loss topk --compress topk --compress-start 100)
powersgd=$(loss powersgd --compress powersgd)

echo "plain $plain, topk $topk, powersgd $powersgd"
awk -v plain="$plain" -v topk="$topk" -v powersgd="$powersgd" 'BEGIN {
    exit plain > 0 && topk > 0 && powersgd > 0 && topk < 1.02 * plain && powersgd < 1.02 * plain ? 0 : 1 }'
