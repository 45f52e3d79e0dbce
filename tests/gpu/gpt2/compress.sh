#!/bin/sh
# compress.sh DPRUN GPT2 - --compress with --device cuda under the launcher, all on doubles: two ranks
# learn what they learn on CPUs, a resumed run has the bits of one that was not stopped, an overflow
# skips on all ranks alike, and topk that drops nothing has the bits of a plain run.
# shellcheck disable=SC2086 # flags is a list of words
set -eu

dprun=$1
gpt2=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-cuda-compress-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export TMPDIR="$work" # for what dprun keeps of jobs that fail
export DP_FUSION_BYTES=1M # a job need not fill 96 MiB when it starts

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
flags="--data text --vocab 128 --layers 2 --heads 1 --width 16 --seq 8 --context 8 --batch 3 --steps 4
       --log-every 1 --lr 1e-2 --warmup 2 --clip 0.5 --check 2 --eval-batches 1"

# alike A B TOLERANCE: losses and norms, line by line
alike() {
    paste -d, "$1/log.csv" "$2/log.csv" | awk -F, -v tolerance="$3" -v what="$1 $2" '
        function off(a, b) { return (a > b ? a - b : b - a) / a }
        NR > 1 { half = NF / 2; x = off($2, $(half + 2)); y = off($5, $(half + 5)); rows++
                 if (x > worst) worst = x; if (y > worst) worst = y }
        END { printf "%s: losses and norms differ by %.1e at most\n", what, worst; exit !(rows == 4 && worst <= tolerance) }' ||
        fail "$1 and $2 differ"
}

for method in "powersgd --compress-rank 2" "topk --compress-rate 0.9 --compress-momentum yes --beta1 0.5"; do
    gpu="--device cuda --precision fp32 --compress $method"
    rm -rf cpu gpu dps stopped high
    (
        export DP_DEVICE=host
        train cpu --device cpu --compress $method
    )
    train gpu $gpu
    grep -q "gradients by ${method%% *}" gpu.out || fail "it does not say what it sends"
    grep -q "replicas bit-equal 2/2" gpu.out || fail "the replicas differ"
    alike cpu gpu 1e-3
    train dps $gpu --strategy dps --accumulate 2 --compress-start 1
    train stopped $gpu --checkpoint-every 2
    rm -rf stopped/checkpoint/4
    train stopped $gpu --resume auto
    for file in gpu/checkpoint/4/*.bin; do
        cmp "$file" "stopped/checkpoint/4/${file##*/}"
    done
    train high --device cuda --precision fp16 --loss-scale 1048576 --compress $method
    grep -q "overflows skipped [1-3]" high.out || fail "not some steps of the four were skipped"
    grep -q "replicas bit-equal 2/2" high.out || fail "the replicas differ behind an overflow"
done
test -e gpu/checkpoint/4/momentum.1.bin || fail "momentum is not in the checkpoint"

# Nothing dropped: the bits of a plain run.
train plain --device cuda --precision fp32 --head-early no --clip 0
train all --device cuda --precision fp32 --clip 0 --compress topk --compress-rate 0
cmp plain/checkpoint/4/weights.bin all/checkpoint/4/weights.bin
cmp plain/checkpoint/4/adam_v.bin all/checkpoint/4/adam_v.bin
echo "compress.sh: all as expected"
