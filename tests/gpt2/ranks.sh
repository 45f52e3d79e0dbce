#!/bin/sh
# ranks.sh DPRUN GPT2 [brief] - the trainer under the launcher: one, two and three ranks train alike, with
# fp32 on the wire to 1e-6 and with fp16 to 1e-3 over 20 steps; a run resumed from step 16 ends with
# the same bits, and so does one with a parameter server; a rank that cannot start ends the job with
# its reason. "brief" leaves out what differs from the rest in numbers alone: three ranks, accumulation, LAMB,
# a server between nodes.
# shellcheck disable=SC2086 # flags is a list of words
set -eu

dprun=$1
gpt2=$2
brief=${3-}
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-ranks-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export XDG_RUNTIME_DIR="$work" TMPDIR="$work" # for what dprun keeps of jobs that fail
export DP_FUSION_BYTES=1M # plenty for these models; a job need not fill 96 MiB when it starts

# A text with something to learn.
awk 'BEGIN { srand(7); split("and the lord said unto them", w, " ");
     for (i = 0; i < 4000; i++) printf "%s%s", w[int(rand() * 6) + 1], i % 12 == 11 ? "\n" : " " }' >text

# train NAME RANKS FLAGS...: 20 steps of batch 7, which no number of ranks divides
train() {
    name=$1
    ranks=$2
    shift 2
    "$dprun" -np "$ranks" "$@" >"$name.out" 2>&1 || {
        cat "$name.out" >&2
        echo "ranks.sh: $name failed" >&2
        exit 1
    }
}
flags="--data text --batch 7 --steps 20 --log-every 1 --lr 2e-3 --warmup 2 --check 1"

# alike A B TOLERANCE: compares losses, line by line
alike() {
    paste -d, "$1" "$2" | awk -F, -v tolerance="$3" -v what="$1 $2" '
        NR > 1 { off = ($2 - $(NF / 2 + 2)) / $2; if (off < 0) off = -off; if (off > worst) worst = off; rows++ }
        END { if (rows != 20 || worst > tolerance) {
                  printf "ranks.sh: %s: %d rows, losses differ by %g\n", what, rows, worst; exit 1 }
              printf "%s: losses differ by %.1e at most\n", what, worst }' || exit 1
}

train one 1 "$gpt2" $flags --out one
train two 2 "$gpt2" $flags --out two
train half 2 --pretend-nodes 2 "$gpt2" $flags --out half --wire fp16
alike one/log.csv two/log.csv 1e-6
alike one/log.csv half/log.csv 1e-3
grep -q "replicas bit-equal 20/20" two.out
if [ "$brief" = "" ]; then
    train three 3 "$gpt2" $flags --out three
    train hosts 2 --pretend-nodes 2 "$gpt2" $flags --out hosts --wire none
    train micro 2 "$gpt2" $flags --out micro --accumulate 2
    alike one/log.csv three/log.csv 1e-6
    alike one/log.csv hosts/log.csv 1e-6
    alike one/log.csv micro/log.csv 1e-6
    grep -q "replicas bit-equal 20/20" three.out
fi

# Without its last checkpoint the run is resumed from step 16. Equal ranks: the same bits.
train stopped 2 "$gpt2" $flags --out resumed --checkpoint-every 8
rm -rf resumed/checkpoint/20
train resumed 2 "$gpt2" $flags --out resumed --resume auto
cmp two/checkpoint/20/weights.bin resumed/checkpoint/20/weights.bin
cmp two/checkpoint/20/adam_v.bin resumed/checkpoint/20/adam_v.bin

# Its shape wins over a preset's, which is said; over a flag of its own it does not, which is refused.
grep -q "resumed resumed/checkpoint/16: step 16$" resumed.out
train shape 2 "$gpt2" $flags --preset quick --steps 21 --resume two/checkpoint/20
grep -q "step 20, in its shape, not that of --preset quick" shape.out
if "$dprun" -np 2 "$gpt2" $flags --width 128 --resume two/checkpoint/20 >width.out 2>&1; then
    echo "ranks.sh: a checkpoint of another width was accepted" >&2
    exit 1
fi
grep -q -e "--width 128, but two/checkpoint/20 has 64" width.out
if grep -q "^.*step  *[0-9]*/" width.out; then
    echo "ranks.sh: it trained before it looked at the checkpoint's width" >&2
    exit 1
fi

# In program order, without agreement: the same sums, so the same bits; and the same text in pieces.
mkdir pieces
split -b 3001 --additional-suffix=.txt text pieces/
train dps 2 "$gpt2" $flags --data pieces/*.txt --out dps --strategy dps
grep -q "data    [0-9]* files from pieces/aa.txt on" dps.out
cmp two/checkpoint/20/weights.bin dps/checkpoint/20/weights.bin
cmp two/checkpoint/20/adam_v.bin dps/checkpoint/20/adam_v.bin
grep -q "replicas bit-equal 20/20" dps.out

# With a parameter server rank 0 sees the same average and makes the same update.
train sps 2 "$gpt2" $flags --data pieces --out sps --strategy sps
cmp two/checkpoint/20/weights.bin sps/checkpoint/20/weights.bin
cmp two/checkpoint/20/adam_v.bin sps/checkpoint/20/adam_v.bin
grep -q "replicas bit-equal 20/20" sps.out

if [ "$brief" = "" ]; then
    train sps3 3 --pretend-nodes 2 "$gpt2" $flags --out sps3 --strategy sps --accumulate 2
    train three2 3 --pretend-nodes 2 "$gpt2" $flags --out three2 --accumulate 2
    cmp three2/checkpoint/20/weights.bin sps3/checkpoint/20/weights.bin
    # LAMB's norms do not depend on the strategy either, and it does learn something else.
    train lamb 2 "$gpt2" $flags --out lamb --optimizer lamb
    train lambdps 2 "$gpt2" $flags --out lambdps --optimizer lamb --strategy dps
    train lambsps 2 "$gpt2" $flags --out lambsps --optimizer lamb --strategy sps
    cmp lamb/checkpoint/20/weights.bin lambdps/checkpoint/20/weights.bin
    cmp lamb/checkpoint/20/weights.bin lambsps/checkpoint/20/weights.bin
    cmp lamb/checkpoint/20/adam_v.bin lambsps/checkpoint/20/adam_v.bin
    grep -q "replicas bit-equal 20/20" lamb.out
    if cmp -s lamb/checkpoint/20/weights.bin two/checkpoint/20/weights.bin; then
        echo "ranks.sh: --optimizer lamb trained as adamw does" >&2
        exit 1
    fi
fi

# Bad input ends the whole job, with the reason.
if "$dprun" -np 2 "$gpt2" --data missing >missing.out 2>&1; then
    echo "ranks.sh: a missing file was accepted" >&2
    exit 1
fi
grep -q "missing: No such file" missing.out
echo "ranks.sh: all as expected"
