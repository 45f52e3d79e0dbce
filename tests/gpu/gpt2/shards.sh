#!/bin/sh
# shards.sh DPRUN GPT2 [brief] - --shard and --amp O2 with --device cuda under the launcher, all on doubles:
# ranks that share the state out end with the bytes of ranks that each have all of it, in fp32, in 16
# bits and with 16-bit weights, with empty passes too; after a stop another stage goes on; what is
# exported is the same file; LAMB is LAMB; and what cannot work is refused.
# "brief" tries each precision with one stage and each stage with one precision, and empty passes with one,
# in two steps, of which the second goes on from the first one's moments.
# shellcheck disable=SC2086 # flags is a list of words
set -eu

dprun=$1
gpt2=$2
brief=${3-}
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-cuda-shards-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export TMPDIR="$work" # for what dprun keeps of jobs that fail
export DP_FUSION_BYTES=1M # a job need not fill 96 MiB when it starts

awk 'BEGIN { srand(7); split("and the lord said unto them", w, " ");
     for (i = 0; i < 400; i++) printf "%s%s", w[int(rand() * 6) + 1], i % 12 == 11 ? "\n" : " " }' >text

# train NAME RANKS FLAGS...
train() {
    name=$1
    ranks=$2
    shift 2
    "$dprun" -np "$ranks" "$gpt2" $flags "$@" --out "$name" >"$name.out" 2>&1 || {
        cat "$name.out" >&2
        echo "shards.sh: $name failed" >&2
        exit 1
    }
}
steps=4 layers=3
[ "$brief" != brief ] || { steps=2 layers=2; }
flags="--device cuda --data text --vocab 128 --layers $layers --heads 1 --width 16 --seq 8 --context 8 --batch 3
       --steps $steps --log-every $steps --lr 1e-2 --warmup 1 --clip 0.5 --check 2 --eval-batches 1 --wire none --tuned tuned"

# same A B: the state of two runs after the last step, byte by byte
same() {
    for file in weights.bin adam_m.bin adam_v.bin manifest.txt; do
        cmp "$1/checkpoint/$steps/$file" "$2/checkpoint/$steps/$file"
    done
}
# learned A B: the same validation losses
learned() {
    for side in "$1" "$2"; do grep -a "learned\|sample" "$side.out" >"$side.end"; done
    cmp "$1.end" "$2.end"
}

# With two passes a step, the second rank's second pass has no sequence.
for how in "--precision fp32" "--precision bf16" "--amp O2" "--precision fp16 --amp O2"; do
    run=plain$(echo "$how" | tr -d ' -')
    train $run 2 $how --strategy dps --head-early no
    stages="optimizer gradients weights"
    case $brief$how in
    brief*bf16) stages=gradients ;;
    brief*fp16*) stages=optimizer ;;
    brief*) stages=weights ;;
    esac
    for stage in $stages; do
        train $run$stage 2 $how --strategy dps --shard $stage
        same $run $run$stage
        learned $run $run$stage
    done
    case $brief$how in "brief--amp O2") ;; brief*) continue ;; *) ;; esac
    train ${run}twice 2 $how --strategy dps --head-early no --accumulate 2
    train ${run}rows 2 $how --shard weights --accumulate 2
    same ${run}twice ${run}rows
done
grep -q "replicas bit-equal $((steps / 2))/$((steps / 2))" plainampO2weights.out
grep -q "memory .* MiB on the GPU" plainampO2weights.out

# Three ranks and two sequences: the last rank has none. An export, a sample; a resume.
train three 3 --strategy dps --head-early no --batch 2 --export three.bin --sample "and "
train threes 3 --shard weights --shard-prefetch 1 --batch 2 --export threes.bin --sample "and "
same three threes
cmp three.bin threes.bin
learned three threes
train stopped 3 --shard gradients --batch 2 --checkpoint-every $((steps / 2))
rm -rf stopped/checkpoint/$steps
train stopped 3 --shard weights --batch 2 --resume auto
same three stopped
if [ "$brief" != brief ]; then # on CPUs it does
    train init 2 --strategy dps --head-early no --init three.bin
    train inits 2 --shard weights --init three.bin
    same init inits
fi

# Blocks and the token embedding of one size take turns in the same memory.
train wide 2 --strategy dps --head-early no --vocab 3072
train wides 2 --shard weights --vocab 3072
same wide wides

# A loss scale that overflows skips on all ranks alike.
high="--precision fp16 --loss-scale 16777216"
steps=4
flags="$flags --steps $steps"
train high 2 $high --strategy dps
train highs 2 $high --shard weights
same high highs
grep -q "overflows skipped [1-9]" highs.out

# LAMB's norms are of whole tensors, of which each rank has parts.
train lambs2 2 --optimizer lamb --strategy dps --head-early no
for stage in $([ "$brief" = brief ] || echo optimizer) weights; do
    train lamb$stage 2 --optimizer lamb --shard $stage
    same lambs2 lamb$stage
done
train lamblow 2 --optimizer lamb --strategy dps --amp O2
train lamblows 2 --optimizer lamb --shard weights --amp O2
same lamblow lamblows
# The plug-in's LAMB is the program's: what it learns is what a CPU learns.
train lamb 1 --optimizer lamb --precision fp32 --lr 1e-1
(
    flags=$(echo "$flags" | sed 's/--device cuda/--device cpu/')
    export DP_DEVICE=host
    train lambcpu 1 --optimizer lamb --precision fp32 --lr 1e-1
)
for side in lamb lambcpu; do od -An -v -tf4 -w4 "$side/checkpoint/4/weights.bin" >"$side.weights"; done
paste lamb.weights lambcpu.weights | awk '
    { off += ($1 - $2) ^ 2; all += $1 ^ 2 }
    END { off = sqrt(off / all); printf "lamb: weights are off by %.1e\n", off; exit !(NR > 4000 && off < 1e-2) }' || {
    echo "shards.sh: the LAMB of a GPU is not the LAMB of a CPU" >&2
    exit 1
}

# refused FLAGS TEXT
refused() {
    if "$dprun" -np 2 "$gpt2" $flags $1 >refused.out 2>&1; then
        echo "shards.sh: $1 was accepted" >&2
        exit 1
    fi
    grep -q -e "$2" refused.out || {
        cat refused.out >&2
        echo "shards.sh: $1: no \"$2\"" >&2
        exit 1
    }
}
refused "--shard weights --head-early yes" "--head-early yes: --shard, --amp O2 and --compress need"
echo "shards.sh: all as expected"
