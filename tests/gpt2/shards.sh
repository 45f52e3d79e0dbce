#!/bin/bash
# shards.sh DPRUN GPT2 [brief | RANKS] - ranks that share the state out train as ranks that each have all of it: for
# one to four ranks, every stage and both orders, the checkpoint has the same bytes as
# that of --strategy dps. So it has after a stop and a resume by another stage, and what is exported
# is the same file: where ranks read each other's weights in place, where they copy them on one node
# (DP_SHARED_WEIGHTS=0), and between nodes. A rank that dies in a gather is told to the others; what cannot work is refused.
# "brief" tries each claim once, on three ranks, instead of with every stage and number of ranks; RANKS
# is the first claim alone, on so many and with 20 steps instead of 8.
# shellcheck disable=SC2086 # flags is a list of words
set -eu

dprun=$1
gpt2=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-shards-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export XDG_RUNTIME_DIR=$work TMPDIR=$work # for what dprun keeps of jobs that fail
export DP_FUSION_BYTES=1M # plenty for these models; a job need not fill 96 MiB when it starts

only=${3-} # a number of ranks
brief=no
[ "$only" != brief ] || { brief=yes only=''; }
# all_or_one ALL FEW: what a loop goes through, in whole or brief
all_or_one() {
    if [ $brief = yes ]; then echo "$2"; else echo "$1"; fi
}
stages=$(all_or_one "optimizer gradients weights" weights)

awk 'BEGIN { srand(7); split("and the lord said unto them", w, " ");
     for (i = 0; i < 4000; i++) printf "%s%s", w[int(rand() * 6) + 1], i % 12 == 11 ? "\n" : " " }' >text

# train NAME RANKS FLAGS...: with batch 7, which no number of ranks but one divides
train() {
    name=$1
    ranks=$2
    shift 2
    "$dprun" -np "$ranks" "$@" >"$name.out" 2>&1 || {
        cat "$name.out" >&2
        echo "shards.sh: $name failed" >&2
        exit 1
    }
}
steps=8
[ -z "$only" ] || steps=20
flags="--data text --layers 4 --heads 2 --width 48 --seq 32 --batch 7 --steps $steps --log-every $steps
       --lr 2e-3 --warmup 2 --clip 0.5 --check 2 --wire none --eval-batches 3"

# same A B: the state of two runs, byte by byte
same() {
    for file in weights adam_m adam_v; do
        cmp "$1/checkpoint/$steps/$file.bin" "$2/checkpoint/$steps/$file.bin"
    done
    cmp "$1/checkpoint/$steps/manifest.txt" "$2/checkpoint/$steps/manifest.txt"
}

# Three passes a step: a rank of four has passes without sequences. With dps ranks read weights where
# they lie, with coordinator they copy them.
for ranks in ${only:-$(all_or_one "1 2 3 4" 3)}; do
    train "plain$ranks" $ranks "$gpt2" $flags --strategy dps --accumulate 3 --out "plain$ranks"
    for stage in optimizer gradients weights; do
        for strategy in dps coordinator; do
            name=$stage$ranks$strategy
            [ $strategy = dps ] && DP_SHARED_WEIGHTS=1 || DP_SHARED_WEIGHTS=0
            export DP_SHARED_WEIGHTS
            train "$name" $ranks "$gpt2" $flags --strategy $strategy --accumulate 3 --shard $stage \
                --out "$name"
            same "plain$ranks" "$name"
        done
    done
done
unset DP_SHARED_WEIGHTS
compared=$((steps / 2)) # --check 2
if [ "$only" != 1 ]; then
    grep -q "replicas bit-equal $compared/$compared" "weights${only:-3}dps.out"
    grep -q "rows read where they lie" "weights${only:-3}dps.out"
    if grep -q "rows read where they lie" "weights${only:-3}coordinator.out"; then
        echo "shards.sh: weights are shared though DP_SHARED_WEIGHTS=0" >&2
        exit 1
    fi
fi
# With RANKS, so many are all that is tried.
[ -z "$only" ] || { echo "shards.sh: $only ranks as expected"; exit 0; }

# One pass a step, where gradients leave at once; and the ranks' validation losses are the same.
train plain 3 "$gpt2" $flags --strategy dps --out plain --export plain.bin --sample "and "
for stage in $stages; do
    train $stage 3 "$gpt2" $flags --shard $stage --out $stage --export $stage.bin --sample "and " \
        --shard-prefetch 1
    same plain $stage
    cmp plain.bin $stage.bin
    grep -a "learned\|sample" plain.out >plain.end
    grep -a "learned\|sample" $stage.out | cmp - plain.end
done

# LAMB's norms are of whole tensors, of which each rank has parts.
train lamb 3 "$gpt2" $flags --strategy dps --optimizer lamb --out lamb
for stage in $stages; do
    train lamb$stage 3 "$gpt2" $flags --optimizer lamb --shard $stage --out lamb$stage
    same lamb lamb$stage
done
train lambnodes 4 --pretend-nodes 2 "$gpt2" $flags --optimizer lamb --out lambnodes
train lambhybrid 4 --pretend-nodes 2 "$gpt2" $flags --optimizer lamb --shard hybrid --out lambhybrid
same lambnodes lambhybrid

# Level 2 of mixed precision: 16-bit weights are gathered, every rank has masters of its rows.
for precision in bf16 fp16; do
    low="--precision $precision --amp O2"
    train low$precision 3 "$gpt2" $flags $low --strategy dps --accumulate 3 --out low$precision
    for stage in $(all_or_one "optimizer gradients weights" $([ $precision = fp16 ] && echo gradients || echo weights)); do
        train low 3 "$gpt2" $flags $low --shard $stage --accumulate 3 --out low
        same low$precision low
        grep -a "learned" low.out >low.end
        grep -a "learned" low$precision.out | cmp - low.end
        rm -rf low
    done
done
if [ $brief = no ]; then
    train lowlamb 2 "$gpt2" $flags --amp O2 --optimizer lamb --strategy dps --out lowlamb
    train lowlambs 2 "$gpt2" $flags --amp O2 --optimizer lamb --shard weights --out lowlambs
    same lowlamb lowlambs
fi
train lownodes 4 --pretend-nodes 2 "$gpt2" $flags --amp O2 --strategy dps --out lownodes
train lowhybrid 4 --pretend-nodes 2 "$gpt2" $flags --amp O2 --shard hybrid --out lowhybrid
same lownodes lowhybrid
# What is stopped at level 2 goes on there, by another stage; and gathers have half the bytes.
train lowstopped 3 "$gpt2" $flags --amp O2 --strategy dps --out lowstopped
train lowresumed 3 "$gpt2" $flags --amp O2 --shard gradients --out lowresumed --checkpoint-every 5
rm -rf lowresumed/checkpoint/8
train lowresumed 3 "$gpt2" $flags --amp O2 --shard weights --out lowresumed --resume auto
same lowstopped lowresumed
taken() {
    sed -nE 's/.*here weights ([0-9.]*) MiB.*/\1/p' "$1.out"
}
train wide 3 "$gpt2" $flags --shard optimizer --out wide
train half 3 "$gpt2" $flags --amp O2 --shard optimizer --out half
echo "$(taken wide) $(taken half)" | awk '{ exit !($2 > 0.49 * $1 && $2 < 0.51 * $1) }' || {
    echo "shards.sh: weights take $(taken half) MiB in 16 bits, $(taken wide) in 32" >&2
    exit 1
}

# Nodes that each hold the whole state.
train nodes 4 --pretend-nodes 2 "$gpt2" $flags --strategy dps --out nodes
for strategy in $(all_or_one "dps coordinator" coordinator); do
    train hybrid$strategy 4 --pretend-nodes 2 "$gpt2" $flags --strategy $strategy --shard hybrid \
        --out hybrid$strategy
    same nodes hybrid$strategy
done
train weightsnodes 4 --pretend-nodes 2 "$gpt2" $flags --shard weights --out weightsnodes
same nodes weightsnodes

# Without its last checkpoint a run is resumed from step 5, by another stage each time.
for stage in $(all_or_one "none optimizer weights" weights); do
    train stopped 3 "$gpt2" $flags --shard gradients --out resumed --checkpoint-every 5
    rm -rf resumed/checkpoint/8
    train resumed 3 "$gpt2" $flags --shard $stage --out resumed --resume auto
    grep -q "step 5$" resumed.out
    same plain resumed
    rm -rf resumed
done
# And by other numbers of ranks: as a plain run of as many goes on from the same checkpoint.
train on 2 "$gpt2" $flags --strategy dps --steps 10 --resume plain/checkpoint/8 --out on
train ons 2 "$gpt2" $flags --shard weights --steps 10 --resume plain/checkpoint/8 --out ons
cmp on/checkpoint/10/weights.bin ons/checkpoint/10/weights.bin
cmp on/checkpoint/10/adam_v.bin ons/checkpoint/10/adam_v.bin

# LAMB adds squares up over whole tensors; a loss scale that overflows skips on all ranks.
for more in $([ $brief = yes ] || echo --optimizer=lamb) "--precision fp16 --loss-scale 16777216"; do
    train all 3 "$gpt2" $flags $more --strategy dps --out all
    train rows 3 "$gpt2" $flags $more --strategy dps --shard weights --out rows
    same all rows
    cmp <(cat all/checkpoint/8/*.bin) <(cat rows/checkpoint/8/*.bin)
    rm -rf all rows
done
grep -q "overflows skipped [1-9]" rows.out

# Models of others.
train init 2 "$gpt2" $flags --init plain.bin --strategy dps --out init
train inits 2 "$gpt2" $flags --init plain.bin --shard weights --out inits
same init inits

# What libdp takes is what --plan says, to the last digit printed.
sizes="--preset small --data text --seq 16 --batch 3 --eval-batches 1 --steps 0"
for stage in $(all_or_one "optimizer:yes gradients:yes weights:yes optimizer:no weights:no" "gradients:yes weights:no"); do
    where=(-np 3 --shared-weights="${stage#*:}")
    stage=${stage%:*}
    "$dprun" "${where[@]}" "$gpt2" $sizes --shard $stage >taken.out
    "$dprun" "${where[@]}" "$gpt2" $sizes --shard $stage --plan >plan.out
    taken=$(sed -nE 's/.*here (weights .*) MiB, (gradients .*) MiB.*/\1, \2,/p' taken.out)
    grep -q "rank: $taken" plan.out || {
        grep -h "memory\|here" plan.out taken.out >&2
        echo "shards.sh: $stage: the plan is wrong" >&2
        exit 1
    }
done

# refused FLAGS TEXT: the run ends with these words
refused() {
    if "$dprun" -np 2 "$gpt2" $flags $1 >refused.out 2>&1; then
        echo "shards.sh: $1 was accepted" >&2
        exit 1
    fi
    grep -q "$2" refused.out || {
        cat refused.out >&2
        echo "shards.sh: $1: no \"$2\"" >&2
        exit 1
    }
}
refused "--shard weight" "did you mean weights"
refused "--shard optimizer --strategy sps" "sps cannot share the state out"
refused "--shard weights --compress topk" "compress topk"
refused "--shard optimizer --strategy single" "single cannot share the state out"

# A rank that dies while others wait for its rows: each of them says of which group, or
# where nothing has to come, at which operation it missed the rank.
for shared in $(all_or_one "no yes" no); do
    [ $shared = no ] && what="the [a-z]* of .*" || what=".*"
    if DP_INJECT=kill:1@5 timeout 60 "$dprun" -np 3 --shared-weights=$shared "$gpt2" $flags \
        --shard weights >killed.$shared.out 2>&1; then
        echo "shards.sh: a job without rank 1 went on" >&2
        exit 1
    fi
    for rank in 0 2; do
        grep -q "rank $rank of 3: $what: DP_ERR_PEER_LOST: rank 1" killed.$shared.out || {
            cat killed.$shared.out >&2
            exit 1
        }
    done
done
echo "shards.sh: all as expected"
