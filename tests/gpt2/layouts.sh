#!/bin/bash
# layouts.sh DPRUN GPT2 [brief] - a model that is divided trains as one rank does. The checkpoint of every layout of
# stages, slices and copies has the same bytes as that of one stage with the same micro-batches, and with products
# in as many pieces as there are slices; it loads into any other layout. Losses are those of a plain run. A rank
# that dies is named; what cannot be combined is refused. "brief" tries a layout of each kind.
# shellcheck disable=SC2086 # flags is a list of words
set -eu

dprun=$1
gpt2=$2
brief=${3-}
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-pipeline-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export XDG_RUNTIME_DIR=$work TMPDIR=$work # for what dprun keeps of jobs that fail
export DP_FUSION_BYTES=1M # plenty for these models; a job need not fill 96 MiB when it starts

awk 'BEGIN { srand(7); split("and the lord said unto them", w, " ");
     for (i = 0; i < 4000; i++) printf "%s%s", w[int(rand() * 6) + 1], i % 12 == 11 ? "\n" : " " }' >text

fail() {
    echo "layouts.sh: $*" >&2
    exit 1
}

# train NAME RANKS FLAGS...: 8 steps of batch 7 in 3 micro-batches, which nothing divides; clipped in every step
train() {
    name=$1
    ranks=$2
    shift 2
    timeout -k 5 60 "$dprun" -np $ranks "$@" --out "$name" >"$name.out" 2>&1 || {
        cat "$name.out" >&2
        fail "$name failed"
    }
}
flags="$gpt2 --data text --layers 4 --heads 2 --width 48 --seq 32 --batch 7 --steps 8 --log-every 1 --accumulate 3
       --lr 2e-3 --warmup 2 --clip 0.5 --check 2 --wire none --eval-batches 3"

# same A B [STEP]: the state of two runs, byte by byte
same() {
    for file in weights.bin adam_m.bin adam_v.bin manifest.txt; do
        cmp "$1/checkpoint/${3-8}/$file" "$2/checkpoint/${3-8}/$file" || fail "$1 and $2 differ"
    done
}

train one 1 $flags --pp 1 --sample "and " --export one.bin
train two 2 $flags --pp 2 --sample "and " --export two.bin
same one two
cmp one.bin two.bin
grep -a "learned\|sample" one.out | sed 's/^\[0\] //' >one.end
grep -a "learned\|sample" two.out | sed 's/^\[0\] //' | cmp - one.end
grep -q "replicas bit-equal 4/4" two.out
grep -q "bubble  [0-9.]* % .*, 25.0 % by" two.out
train copies 2 $flags --dp 2 --pp 1
train box 4 $flags --pp 2
same copies box
train split 1 $flags --pp 1 --gemm split:2 --sample "and " --export split.bin
train tensor 2 $flags --tp 2 --gemm own --sample "and " --export tensor.bin
same split tensor
cmp split.bin tensor.bin
grep -a "learned\|sample" split.out | sed 's/^\[0\] //' >one.end
grep -a "learned\|sample" tensor.out | sed 's/^\[0\] //' | cmp - one.end
grep -q "replicas bit-equal 4/4" tensor.out
grep -q "tensor  [0-9.]* % .* --tp 2" tensor.out
train stages 4 $flags --tp 2 --pp 2 --gemm own
same split stages
if [ "$brief" = "" ]; then
    train splitcopies 2 $flags --dp 2 --pp 1 --gemm split:2
    train slicecopies 4 $flags --dp 2 --tp 2 --gemm own
    same splitcopies slicecopies
    train dps 4 $flags --tp 2 --pp 2 --schedule gpipe --strategy dps --gemm own
    train slicenodes 2 --pretend-nodes 2 $flags --tp 2 --gemm own
    same split dps
    same split slicenodes
    # 3 heads and 257 tokens, which neither 2 nor 3 ranks divide evenly.
    odd="$flags --heads 3 --vocab 257"
    train splitodd 1 $odd --pp 1 --gemm split:2 --threads 2
    train odd 2 $odd --tp 2 --gemm own --threads 2
    same splitodd odd
    train splitthree 1 $odd --pp 1 --gemm split:3
    train three 3 $odd --tp 3 --gemm own
    same splitthree three

    train gpipe 2 $flags --pp 2 --schedule gpipe
    train uneven 3 $flags --stages 1,2,1 --pp 3 --strategy dps
    train head 4 $flags --stages 2,1,1,0 --pp 4
    train threads 2 $flags --pp 2 --threads 2
    train plainthreads 1 $flags --pp 1 --threads 2
    train nodes 2 --pretend-nodes 2 $flags --pp 2
    for layout in gpipe uneven head nodes; do
        same one $layout
    done
    same plainthreads threads
    train boxgpipe 4 $flags --dp 2 --pp 2 --schedule gpipe --strategy dps
    same copies boxgpipe
    # One micro-batch, and more copies than sequences: passes without any.
    train single 1 $flags --pp 1 --accumulate 1
    train pair 2 $flags --pp 2 --accumulate 1
    same single pair
    train few 3 $flags --dp 3 --pp 1 --batch 2 --accumulate 1
    train fewer 6 $flags --dp 3 --pp 2 --batch 2 --accumulate 1
    same few fewer
fi

# A plain run adds lookups and heads up in turn, so its bits are others, and its losses the same.
train plain 1 $flags
for name in two tensor; do
    paste -d, plain/log.csv $name/log.csv | awk -F, '
        NR > 1 { off = ($2 - $(NF / 2 + 2)) / $2; if (off < 0) off = -off; if (off > 1e-6) bad = 1; rows++ }
        END { exit rows != 8 || bad }' || fail "losses of plain and $name differ"
done

# Without its last checkpoint a run is resumed from step 5 in another layout: two stages, then one.
for first in "2 --pp 2" "1 --pp 1"; do
    [ "$first" = "2 --pp 2" ] && then="1 --pp 1" || then="3 --pp 3"
    train resumed ${first%% *} $flags ${first#* } --checkpoint-every 5
    rm -rf resumed/checkpoint/8
    train resumed ${then%% *} $flags ${then#* } --resume auto
    grep -q "step 5$" resumed.out
    same one resumed
    rm -rf resumed
done
train resumed 2 $flags --tp 2 --gemm own --checkpoint-every 5
rm -rf resumed/checkpoint/8
train resumed 1 $flags --pp 1 --gemm split:2 --resume auto
same split resumed
# And into other layouts, in either direction.
train on 2 $flags --pp 2 --resume plain/checkpoint/8 --steps 10
train back 1 $flags --resume two/checkpoint/8 --steps 10
train sliced 2 $flags --tp 2 --resume two/checkpoint/8 --steps 10
train staged 2 $flags --pp 2 --resume tensor/checkpoint/8 --steps 10

# refused RANKS FLAGS TEXT: the run ends with these words
refused() {
    if timeout -k 5 60 "$dprun" -np $1 $flags $2 >refused.out 2>&1; then
        fail "$2 was accepted"
    fi
    grep -q -e "$3" refused.out || {
        cat refused.out >&2
        fail "$2: no \"$3\""
    }
}
refused 3 "--dp 2 --pp 2" "--dp 2 x --pp 2 = 4 ranks, but there are 3"
refused 2 "--pp 2 --shard weights" "--pp does not go with --shard yet"
refused 2 "--pp 2 --strategy sps" "--pp needs --strategy coordinator or dps"
refused 2 "--pp 2 --optimizer lamb" "--optimizer lamb yet"
refused 2 "--pp 2 --stages 3,2" "5 blocks, but the model has 4"
refused 2 "--stages 3,1" "--stages 3,1 needs --pp"
refused 3 "--tp 2" "--tp 2 does not divide the 3 ranks"
refused 3 "--tp 3" "every part needs a head, but the model has 2"
refused 2 "--tp 2 --shard weights" "--tp does not go with --shard yet"
refused 2 "--tp 2 --gemm split:2" "split:2 takes the place of --tp"
refused 2 "--gemm split:1" "split:1: not a number of pieces"

# The plan has a line for each stage of a pipeline, and the schedule; without stages neither.
"$gpt2" --plan --plan-ranks 4 --pp 2 --accumulate 4 >plan.out
[ "$(grep -c "^stage  *[01]:" plan.out)" = 2 ] && [ "$(grep -c "^stage [01]   [ fb]" plan.out)" = 2 ] || fail "the plan has no stages"
"$gpt2" --plan --plan-ranks 4 --tp 2 >plan.out
grep -q "along the tensor axis [0-9.]*[1-9]" plan.out || fail "the plan has no sums along the tensor axis"
"$gpt2" --plan --plan-ranks 4 --dp 4 >plan.out
! grep -q "^stage" plan.out || fail "the plan has stages without a pipeline"

# A rank that dies is named on the others: a stage, and one that has slices.
for layout in "--pp 3" "--tp 3 --heads 3"; do
    if DP_INJECT=kill:1@5 timeout -k 5 60 "$dprun" -np 3 $flags $layout >killed.out 2>&1; then
        fail "a job of $layout without rank 1 went on"
    fi
    for rank in 0 2; do
        grep -q "rank $rank of 3: .*DP_ERR_PEER_LOST: rank 1" killed.out || {
            cat killed.out >&2
            exit 1
        }
    done
done
echo "layouts.sh: all as expected"
