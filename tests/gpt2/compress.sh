#!/bin/sh
# compress.sh DPRUN GPT2 COMPRESS_RANKS - gradients that travel compressed, between ranks: the same
# bits on all of them for 1 to 4 ranks under both orders, nothing lost, an Inf or NaN of one rank
# skips on all; the trainer with them: with nothing dropped it has the checkpoint of a plain run, a
# resumed run has the bits of one that was not, and what cannot work is refused.
# shellcheck disable=SC2086 # flags is a list of words
set -eu

dprun=$1
gpt2=$2
compress_ranks=$3
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-compress-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export XDG_RUNTIME_DIR="$work" TMPDIR="$work" # where dprun keeps what failed jobs leave
export DP_FUSION_BYTES=1M # plenty for these models; a job need not fill 96 MiB when it starts

# job NAME DPRUN'S ARGUMENTS...
job() {
    name=$1
    shift
    "$dprun" "$@" >"$name.out" 2>&1 || {
        cat "$name.out" >&2
        echo "compress.sh: $name failed" >&2
        exit 1
    }
}

for what in topk powersgd; do
    for ranks in 1 2 3 4; do
        job "$what$ranks" -np $ranks "$compress_ranks" $what coordinator
    done
    job "${what}_dps" -np 3 "$compress_ranks" $what dps
    job "${what}_nodes" -np 4 --pretend-nodes 2 "$compress_ranks" $what coordinator
done
for what in momentum warmup scale all start; do
    job $what -np 3 "$compress_ranks" $what coordinator
done

awk 'BEGIN { srand(7); split("and the lord said unto them", w, " ");
     for (i = 0; i < 4000; i++) printf "%s%s", w[int(rand() * 6) + 1], i % 12 == 11 ? "\n" : " " }' >text
flags="--data text --batch 7 --steps 12 --log-every 4 --lr 2e-3 --warmup 2 --check 1"

# Nothing dropped: the bits of a plain run.
job plain -np 3 "$gpt2" $flags --out plain
job all -np 3 "$gpt2" $flags --out all --compress topk --compress-rate 0
cmp plain/checkpoint/12/weights.bin all/checkpoint/12/weights.bin
cmp plain/checkpoint/12/adam_v.bin all/checkpoint/12/adam_v.bin

# Between nodes it may win, and does not say that it cannot; but for so many ranks that everybody's
# messages outweigh an all-reduce.
job between -np 2 --pretend-nodes 2 "$gpt2" $flags --steps 0 --compress topk
grep -q "MB sent per rank and step, [0-9.]* MB without$" between.out
job many -np 3 --pretend-nodes 3 "$gpt2" $flags --steps 0 --compress topk --compress-rate 0.1
grep -q "it cannot win on so many ranks" many.out

# In fp16, where the first loss scale is too large: all ranks skip alike, and go on.
job fp16 -np 2 "$gpt2" $flags --compress powersgd --precision fp16 --loss-scale 16777216
grep -q "replicas bit-equal 12/12, overflows skipped [1-9]" fp16.out

# Resumed from step 8: residuals, momentum and factors are in the checkpoint.
for method in "topk --compress-momentum yes" powersgd; do
    rm -rf whole resumed
    job whole -np 2 "$gpt2" $flags --out whole --compress $method
    grep -q "replicas bit-equal 12/12" whole.out
    grep -q "MB sent per rank and step.*; all ranks are on one node" whole.out
    job stopped -np 2 "$gpt2" $flags --out resumed --compress $method --checkpoint-every 4
    rm -rf resumed/checkpoint/12
    job resumed -np 2 "$gpt2" $flags --out resumed --compress $method --resume auto
    cmp whole/checkpoint/12/weights.bin resumed/checkpoint/12/weights.bin
    cmp whole/checkpoint/12/residual.1.bin resumed/checkpoint/12/residual.1.bin
    if cmp -s plain/checkpoint/12/weights.bin whole/checkpoint/12/weights.bin; then
        echo "compress.sh: --compress $method trained as a plain run does" >&2
        exit 1
    fi
done

# Without compression a run goes on from any of them, and back.
job back -np 3 "$gpt2" $flags --steps 16 --out back --resume whole/checkpoint/12
job forth -np 2 "$gpt2" $flags --steps 20 --out forth --resume back/checkpoint/16 --compress topk

# refused TEXT DPRUN'S ARGUMENTS...
refused() {
    text=$1
    shift
    if "$dprun" "$@" >refused.out 2>&1; then
        echo "compress.sh: accepted: $*" >&2
        exit 1
    fi
    grep -q -e "$text" refused.out || {
        cat refused.out >&2
        echo "compress.sh: expected \"$text\"" >&2
        exit 1
    }
}
refused "needs --strategy coordinator or dps, this is sps" -np 2 "$gpt2" $flags --compress topk --strategy sps
refused "needs --strategy coordinator or dps, this is single" -np 1 "$gpt2" $flags --compress topk --strategy single
refused "needs all gradients and weights on every rank" -np 2 "$gpt2" $flags --compress topk --shard optimizer
refused "did you mean topk" -np 1 "$gpt2" $flags --compress topp
refused "--compress-momentum yes needs --compress topk" -np 1 "$gpt2" $flags --compress powersgd --compress-momentum yes
refused "residual of 2 ranks, this run has 3" -np 3 "$gpt2" $flags --compress powersgd --resume whole/checkpoint/12
echo "compress.sh: all as expected"
