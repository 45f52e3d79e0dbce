#!/bin/sh
# ranks.sh DPRUN GPT2 - the trainer with --device cuda under the launcher, libdp on the same doubles:
# one and two ranks train alike, by the coordinator and by a parameter server; a head whose gradient
# goes ahead changes nothing, nor does fp16 but for its rounding; a resumed run has the same bits; and
# where there is no GPU, or libdp is told to stay off it, the reason is given.
# shellcheck disable=SC2086 # flags is a list of words
set -eu

dprun=$1
gpt2=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-cuda-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export XDG_RUNTIME_DIR="$work" TMPDIR="$work" # for what dprun keeps of jobs that fail
export DP_FUSION_BYTES=1M # a job need not fill 96 MiB when it starts

awk 'BEGIN { srand(7); split("and the lord said unto them", w, " ");
     for (i = 0; i < 400; i++) printf "%s%s", w[int(rand() * 6) + 1], i % 12 == 11 ? "\n" : " " }' >text

dprun_options=
# train NAME RANKS FLAGS...
train() {
    name=$1
    ranks=$2
    shift 2
    "$dprun" -np "$ranks" $dprun_options "$gpt2" $flags "$@" --out "$name" >"$name.out" 2>&1 || {
        cat "$name.out" >&2
        echo "ranks.sh: $name failed" >&2
        exit 1
    }
}
flags="--device cuda --precision fp32 --data text --vocab 128 --layers 1 --heads 1 --width 16 --seq 8
       --context 8 --batch 3 --steps 6 --log-every 1 --lr 1e-2 --warmup 2 --check 2 --eval-batches 1"

# alike A B TOLERANCE: compares losses, line by line
alike() {
    paste -d, "$1/log.csv" "$2/log.csv" | awk -F, -v tolerance="$3" -v what="$1 $2" '
        NR > 1 { off = ($2 - $(NF / 2 + 2)) / $2; if (off < 0) off = -off; if (off > worst) worst = off; rows++ }
        END { if (rows != 6 || worst > tolerance) {
                  printf "ranks.sh: %s: %d rows, losses differ by %g\n", what, rows, worst; exit 1 }
              printf "%s: losses differ by %.1e at most\n", what, worst }' || exit 1
}

train one 1
train two 2
grep -q "replicas bit-equal 3/3" two.out
grep -q "memory .* MiB on the GPU" two.out
train server 2 --strategy sps
alike one two 1e-5
alike one server 1e-5

# On a timeline each part of a pass is a span of the device, and the report takes its time from those.
dprun_options="--timeline $work/t.pftrace:steps=2-4"
train timeline 2
dprun_options=
dptrace=$(dirname "$dprun")/dptrace
"$dptrace" info t.pftrace >t.info
awk '$1 == "compute" && $2 >= 2 * 3 * 5 { found = 1 } END { exit !found }' t.info || {
    echo "ranks.sh: fewer spans of the device than forward, head, backward, its layer and the optimizer make:"
    cat t.info
    exit 1
}
"$dptrace" report t.pftrace --json >t.json
sed -n 's/^"parts_ms":{"compute":\([0-9.]*\),.*/\1/p' t.json | awk '$1 > 0 { found = 1 } END { exit !found }' &&
    grep -q '"compute_from":"device"' t.json || { echo "ranks.sh: the report is not of the device"; cat t.json; exit 1; }

# With two ranks the head's gradient goes ahead, and rows of lookups behind, unless told not to; norms
# above 1 are clipped.
# Weights count but for the biases of the keys, whose gradients are rounding noise.
# near A B MOST LEAST: weights are off by no more and no less; losses by no more.
near() {
    for side in "$1" "$2"; do
        od -An -v -tf4 -w4 "$side/checkpoint/6/weights.bin" >"$side.weights"
    done
    paste "$1.weights" "$2.weights" | awk -v what="$1 $2" -v most="$3" -v least="$4" '
        NR > 3248 && NR <= 3264 { next }
        { off += ($1 - $2) ^ 2; all += $1 ^ 2 }
        END { off = sqrt(off / all)
              if (NR < 4000 || off > most || off < least) {
                  printf "ranks.sh: %s: %d weights, off by %g\n", what, NR, off; exit 1 }
              printf "%s: weights are off by %.1e\n", what, off }' || exit 1
    awk -F, 'NR > 1 { rows++; clipped += $5 > 1 } END { exit rows != 6 || clipped < 3 }' \
        "$1/log.csv" || { echo "ranks.sh: $1 has nothing to clip" >&2; exit 1; }
    alike "$1" "$2" "$3"
}
grep -q "rows apart" two.out
train late 2 --head-early no
if grep -q "rows apart" late.out; then exit 1; fi
near two late 1e-6 0
train early 2 --strategy dps --accumulate 2 --recompute gelu+norm
train whole 2 --strategy dps --accumulate 2 --recompute gelu+norm --head-early no
near early whole 1e-6 0
# As fp16 gradients and rows are off by their rounding, whoever sends them and when. In program order
# a scale follows from the step before, so a run that looks only at its end has the same bits.
train half 2 --wire fp16
train half_late 2 --wire fp16 --head-early no
train half_dps 2 --wire fp16 --strategy dps
train half_ahead 2 --wire fp16 --strategy dps --log-every 6
near half two 1e-3 1e-6
near half half_late 1e-3 1e-6
near half_dps half 1e-3 0
cmp half_dps/checkpoint/6/weights.bin half_ahead/checkpoint/6/weights.bin
# A loss scale that is too high comes down by what libdp found on the device, and a resumed run goes on
# with it. Rows of lookups do not go apart then.
high="--precision fp16 --loss-scale 4194304 --loss-scale-growth 2 --tuned tuned"
train high 2 $high
if grep -q "rows apart" high.out; then exit 1; fi
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    NR == 2 { scale = 2 ^ 22 }
    $at["scale"] != scale { printf "ranks.sh: step %s: scale %s, not %d\n", $1, $at["scale"], scale; bad = 1; exit }
    $at["skipped"] > skipped { skipped = $at["skipped"]; scale /= 2; good = 0; next }
    ++good == 2 { scale *= 2; good = 0 }
    END { exit bad || NR != 7 || skipped < 1 || skipped > 5 }' high/log.csv ||
    { cat high/log.csv; exit 1; }
train high_dps 2 $high --strategy dps --log-every 6
cmp high/checkpoint/6/weights.bin high_dps/checkpoint/6/weights.bin
train high_stopped 2 $high --checkpoint-every 3
rm -rf high_stopped/checkpoint/6
train high_stopped 2 $high --resume auto
cmp high/checkpoint/6/weights.bin high_stopped/checkpoint/6/weights.bin
cmp high/checkpoint/6/adam_v.bin high_stopped/checkpoint/6/adam_v.bin
(
    export DP_TIMELINE=line.json
    train seen 2
)
sed -n 's/^{"name":"\([^"]*\)","cat":"submit","pid":0,.*/\1/p' line.json >submitted
# A step: the tied embedding before the 15 other gradients of the layout, rows of lookups at its end.
awk '/^wte.weight$/ { heads++; at = NR }
     /^ln_f.weight$/ { firsts += NR == at + 1 }
     /^wte.rows$/ { lasts += NR == at + 16 }
     END { if (heads != 6 || firsts != 6 || lasts != 6) {
               printf "ranks.sh: %d heads, %d before all, %d rows behind\n", heads, firsts, lasts
               exit 1 } }' submitted || exit 1

train stopped 2 --checkpoint-every 3
rm -rf stopped/checkpoint/6
train stopped 2 --resume auto
cmp two/checkpoint/6/weights.bin stopped/checkpoint/6/weights.bin
cmp two/checkpoint/6/adam_v.bin stopped/checkpoint/6/adam_v.bin

more=
# says WORDS ENVIRONMENT...: a run of one rank that must fail with these words; more=its flags
says() {
    words=$1
    shift
    if "$@" "$dprun" -np 1 "$gpt2" $flags $more >refused.out 2>&1; then
        echo "ranks.sh: $* was accepted" >&2
        exit 1
    fi
    sed -n 's/.*run directory \(\/[^ ]*\) .*/\1/p' refused.out | xargs -r rm -rf
    grep -q -e "$words" refused.out || {
        cat refused.out >&2
        echo "ranks.sh: no \"$words\"" >&2
        exit 1
    }
}
says "--device cuda: the CUDA driver shows no GPU" env DP_TEST_GPUS=0
more="--strategy sps --head-early yes"
says "--strategy sps sends every gradient as a whole" env
more=
says "DP_DEVICE is host, but --device is cuda" env DP_DEVICE=host

# What there is decides where nothing was asked for.
train auto 1 --device auto
grep -q "memory .* MiB on the GPU" auto.out
(
    export DP_TEST_GPUS=0
    train host 1 --device auto
)
grep -q "products by" host.out
echo "ranks.sh: all as expected"
