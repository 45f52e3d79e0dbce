#!/bin/sh
# amp_curve.sh GPT2 [brief] - mixed precision learns what fp32 learns: in 200 steps of the preset tiny the
# mean loss of the last 30 is within 2 % of fp32's, for every type and level; "brief": for each once.
set -eu

gpt2=$1
brief=${2-}
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-amp-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

awk 'BEGIN { srand(7)
     n = split("and the lord said unto them in beginning god created heaven earth without form void", w, " ")
     for (i = 0; i < 20000; i++)
         printf "%s%s", w[int(rand() * rand() * n) + 1], rand() < 0.1 ? "\n" : " " }' >text
# curve NAME FLAGS...
curve() {
    name=$1
    shift
    "$gpt2" --strategy single --data text --preset tiny --steps 200 --device cpu --log-every 1 \
        --out "$name" "$@" >"$name.out" 2>&1 || {
        cat "$name.out" >&2
        echo "amp_curve.sh: $name failed" >&2
        exit 1
    }
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "loss") at = i; next }
             { loss[NR] = $at }
             END { for (i = NR - 29; i <= NR; i++) sum += loss[i]; print sum / 30 }' "$name/log.csv" >"$name.mean"
    echo "$(cat fp32.mean) $(cat "$name.mean") $name" | awk '
        { off = $2 / $1 - 1; printf "%s: %.4f, fp32 %.4f\n", $3, $2, $1 } { exit off > 0.02 || off < -0.02 }' || {
        echo "amp_curve.sh: $name is not within 2 %" >&2
        exit 1
    }
}
curve fp32 --precision fp32
curve bf16 --precision bf16
if [ "$brief" = "" ]; then
    curve bf16_o2 --precision bf16 --amp O2
    curve fp16 --precision fp16
fi
curve fp16_o2 --precision fp16 --amp O2
echo "amp_curve.sh: all as expected"
