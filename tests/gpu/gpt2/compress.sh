#!/bin/sh
# compress.sh DPRUN GPT2 - --compress powersgd with --device cuda under the launcher, all on doubles:
# two ranks learn what they learn on CPUs, a resumed run has the bits of one that was not stopped, an
# overflow skips on all ranks alike, and topk is refused.
# shellcheck disable=SC2086 # flags is a list of words
set -eu

dprun=$1
gpt2=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-cuda-compress-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export TMPDIR="$work" # for what dprun keeps of jobs that fail

awk 'BEGIN { srand(7); split("and the lord said unto them", w, " ");
     for (i = 0; i < 400; i++) printf "%s%s", w[int(rand() * 6) + 1], i % 12 == 11 ? "\n" : " " }' >text

fail() {
    echo "compress.sh: $*" >&2
    exit 1
}

# train NAME FLAGS...
train() {
    name=$1
    shift
    "$dprun" -np 2 "$gpt2" $flags "$@" --out "$name" >"$name.out" 2>&1 || {
        cat "$name.out" >&2
        fail "$name failed"
    }
}
flags="--data text --vocab 128 --layers 2 --heads 1 --width 16 --seq 8 --context 8 --batch 3 --steps 8
       --log-every 1 --lr 1e-2 --warmup 2 --clip 0.5 --check 2 --eval-batches 1 --compress powersgd
       --compress-rank 2"

# alike A B TOLERANCE: losses and norms, line by line
alike() {
    paste -d, "$1/log.csv" "$2/log.csv" | awk -F, -v tolerance="$3" -v what="$1 $2" '
        function off(a, b) { return (a > b ? a - b : b - a) / a }
        NR > 1 { half = NF / 2; x = off($2, $(half + 2)); y = off($5, $(half + 5)); rows++
                 if (x > worst) worst = x; if (y > worst) worst = y }
        END { printf "%s: losses and norms differ by %.1e at most\n", what, worst; exit !(rows == 8 && worst <= tolerance) }' ||
        fail "$1 and $2 differ"
}

(
    export DP_DEVICE=host
    train cpu --device cpu
)
train gpu --device cuda --precision fp32
grep -q "gradients by powersgd" gpu.out || fail "it does not say what it sends"
grep -q "replicas bit-equal 4/4" gpu.out || fail "the replicas differ"
alike cpu gpu 1e-3
train dps --device cuda --precision fp32 --strategy dps --accumulate 2 --compress-start 2
train stopped --device cuda --precision fp32 --checkpoint-every 4
rm -rf stopped/checkpoint/8
train stopped --device cuda --precision fp32 --resume auto
cmp gpu/checkpoint/8/weights.bin stopped/checkpoint/8/weights.bin
cmp gpu/checkpoint/8/adam_v.bin stopped/checkpoint/8/adam_v.bin
for rank in 0 1; do
    cmp "gpu/checkpoint/8/residual.$rank.bin" "stopped/checkpoint/8/residual.$rank.bin"
done
train high --device cuda --precision fp16 --loss-scale 16777216
grep -q "overflows skipped [1-9]" high.out || fail "nothing was skipped"
grep -q "replicas bit-equal 4/4" high.out || fail "the replicas differ behind an overflow"
if "$dprun" -np 2 "$gpt2" $flags --device cuda --compress topk >refused.out 2>&1; then
    fail "topk was accepted"
fi
grep -q "compress topk needs --device cpu" refused.out || { cat refused.out >&2; fail "no reason"; }
echo "compress.sh: all as expected"
