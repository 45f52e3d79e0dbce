#!/bin/sh
# hybrid.sh DPRUN GPT2 - --shard hybrid with --device cuda, all on doubles: two nodes of two ranks, each
# node with a copy of the state that its ranks share out, end with the bytes of ranks that each have
# all of it, under both orders, with 16-bit weights and with LAMB; what was saved so goes on without
# nodes by another stage; nodes of unequal numbers of ranks are refused.
#
# A batch has three sequences, so the fourth rank adds zeros: NCCL adds up rank by rank, hybrid node
# by node, and of four terms (a + b) + (c + d) is not ((a + b) + c) + d. With four, results are close.
# shellcheck disable=SC2086 # flags and nodes are lists of words
set -eu

dprun=$1
gpt2=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-cuda-hybrid-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export TMPDIR="$work" # for what dprun keeps of jobs that fail

awk 'BEGIN { srand(7); split("and the lord said unto them", w, " ");
     for (i = 0; i < 400; i++) printf "%s%s", w[int(rand() * 6) + 1], i % 12 == 11 ? "\n" : " " }' >text
flags="--device cuda --data text --vocab 128 --layers 2 --heads 1 --width 16 --seq 8 --context 8 --batch 3
       --steps 2 --log-every 2 --lr 1e-2 --warmup 1 --clip 0.5 --check 2 --eval-batches 1 --wire none --tuned tuned"
# Ranks of one number have one GPU here, for which NCCL must take each of them for a host: --share-gpu.
nodes="-np 4 --pretend-nodes 2 --share-gpu"

# train NAME FLAGS...
train() {
    name=$1
    shift
    "$dprun" $nodes "$gpt2" $flags "$@" --out "$name" >"$name.out" 2>&1 || {
        cat "$name.out" >&2
        echo "hybrid.sh: $name failed" >&2
        exit 1
    }
}

# same A B: the state of two runs after step 2, byte by byte
same() {
    for file in weights.bin adam_m.bin adam_v.bin manifest.txt; do
        cmp "$1/checkpoint/2/$file" "$2/checkpoint/2/$file"
    done
}

train plain --precision fp32 --strategy dps --head-early no
for strategy in dps coordinator; do
    train $strategy --precision fp32 --strategy $strategy --shard hybrid
    same plain $strategy
    grep -q "replicas bit-equal 1/1" $strategy.out
done
train low --amp O2 --optimizer lamb --accumulate 2 --strategy dps
train lowhybrid --amp O2 --optimizer lamb --accumulate 2 --shard hybrid
same low lowhybrid

train four --precision fp32 --batch 4 --strategy dps --head-early no
train fourhybrid --precision fp32 --batch 4 --shard hybrid
for side in four fourhybrid; do od -An -v -tf4 -w4 "$side/checkpoint/2/weights.bin" >"$side.weights"; done
paste four.weights fourhybrid.weights | awk '
    { off += ($1 - $2) ^ 2; all += $1 ^ 2 }
    END { off = sqrt(off / all); printf "four: weights are off by %.1e\n", off; exit !(NR > 4000 && off < 1e-4) }' || {
    echo "hybrid.sh: the average of four ranks is not that of plain ranks" >&2
    exit 1
}

nodes="-np 2"
train dps --precision fp32 --shard gradients --steps 4 --resume dps/checkpoint/2
grep -q "step 2$" dps.out

if "$dprun" -np 3 --pretend-nodes 2 --share-gpu "$gpt2" $flags --shard hybrid >refused.out 2>&1; then
    echo "hybrid.sh: unequal nodes were accepted" >&2
    exit 1
fi
grep -q "nodes have unequal numbers of ranks" refused.out || {
    cat refused.out >&2
    exit 1
}
echo "hybrid.sh: all as expected"
