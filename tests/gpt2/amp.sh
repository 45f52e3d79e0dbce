#!/bin/sh
# amp.sh DPRUN GPT2 AMP_BROKEN - mixed precision under the launcher: all strategies make the same
# decisions; too high a loss scale comes down; an Inf on one rank is skipped by all; a resumed run
# has the bits of one that was never stopped.
# shellcheck disable=SC2086 # flags is a list of words
set -eu

dprun=$1
gpt2=$2
broken=$3
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-amp-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export XDG_RUNTIME_DIR="$work" TMPDIR="$work" # for what dprun keeps of jobs that fail
export DP_FUSION_BYTES=1M # plenty for these models; a job need not fill 96 MiB when it starts

# A text with something to learn.
awk 'BEGIN { srand(7); split("and the lord said unto them", w, " ");
     for (i = 0; i < 4000; i++) printf "%s%s", w[int(rand() * 6) + 1], i % 12 == 11 ? "\n" : " " }' >text
small="--data text --device cpu --layers 2 --width 48 --heads 3 --context 32 --seq 32 --batch 6
       --steps 20 --log-every 1 --lr 2e-3 --warmup 2 --check 1 --eval-batches 1"

fail() {
    echo "amp.sh: $*" >&2
    exit 1
}

# train NAME RANKS FLAGS...
train() {
    name=$1
    ranks=$2
    shift 2
    "$dprun" -np "$ranks" "$gpt2" $small --out "$name" "$@" >"$name.out" 2>&1 || {
        cat "$name.out" >&2
        fail "$name failed"
    }
}

# column NAME TITLE: of its log
column() {
    awk -F, -v title="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == title) at = i; next }
                           { print $at }' "$1/log.csv"
}

# same A B: the same decisions, step by step
same() {
    for title in skipped scale; do
        column "$1" $title >a
        column "$2" $title >b
        cmp a b || fail "$title of $1 and $2 differ"
    done
}

# rule NAME HYSTERESIS: the scale went down and up as documented, from 2^24, doubled by 6 good steps
rule() {
    column "$1" scale >a
    column "$1" skipped >b
    paste a b | awk -v patience="$2" 'BEGIN { scale = 2 ^ 24; left = patience }
        $1 != scale { printf "amp.sh: step %d: scale %d, not %d\n", NR, $1, scale; bad = 1; exit 1 }
        $2 > skipped { skipped = $2; good = 0; if (left > 1) left--; else scale /= 2; next }
        { left = patience }
        ++good == 6 { scale *= 2; good = 0; grown = 1 }
        END { if (!bad && !grown) { print "amp.sh: the scale never grew"; exit 1 } }' ||
        fail "the loss scale of $1"
}

# near A B MOST: losses, step by step
near() {
    column "$1" loss >a
    column "$2" loss >b
    paste a b | awk -v most="$3" -v what="$1 $2" '
        { off = ($1 - $2) / $1; if (off < 0) off = -off; if (off > worst) worst = off }
        END { if (NR != 20 || worst > most) {
                  printf "amp.sh: %s: %d rows, losses differ by %g\n", what, NR, worst; exit 1 }
              printf "%s: losses differ by %.1e at most\n", what, worst }' || exit 1
}

high="--precision fp16 --loss-scale 16777216 --loss-scale-growth 6"
train fp32 2
train coordinator 2 $high
train dps 2 $high --strategy dps
train sps 2 $high --strategy sps
skips=$(column coordinator skipped | tail -1)
[ "$skips" -ge 2 ] || fail "a loss scale of 2^24 skipped $skips steps"
rule coordinator 1
grep -q "replicas bit-equal 20/20, overflows skipped $skips" coordinator.out
for other in dps sps; do
    same coordinator $other
    for file in weights adam_m adam_v; do
        cmp coordinator/checkpoint/20/$file.bin $other/checkpoint/20/$file.bin
    done
done

# Ranks that share the state out decide from the same figures; a run that changes to the next stage on
# its way goes on with the scale it had.
for stage in optimizer gradients weights; do
    train $stage 2 $high --strategy dps --shard $stage --checkpoint-every 10
    same coordinator $stage
    rm -rf $stage/checkpoint/20
done
mv optimizer/checkpoint/10 ten
for stage in optimizer gradients weights; do
    train $stage 2 $high --shard $stage --resume ten --overwrite
    for file in weights adam_m adam_v; do
        cmp coordinator/checkpoint/20/$file.bin $stage/checkpoint/20/$file.bin
    done
done

# Alone, by the rule of the trainer and by that of libdp.
train single 1 $high --strategy single
train alone 1 $high
same single alone
near single alone 1e-6

# The first overflow is forgiven, those behind it are not.
train patient 2 $high --loss-scale-hysteresis 2 --strategy dps
rule patient 2
train patient_single 1 $high --loss-scale-hysteresis 2 --strategy single
rule patient_single 2

# Every type and level learns what fp32 learns; O2 sends 16 bits between nodes.
train fp16 2 --precision fp16
train bf16 2 --precision bf16
train fp16_o2 2 --precision fp16 --amp O2
train bf16_o2 2 --amp O2
near fp32 fp16 5e-3
near fp32 bf16 2e-2
near fp32 fp16_o2 5e-3
near fp32 bf16_o2 2e-2
grep -q "fp16 emulated, weights and gradients too" fp16_o2.out
small="$small --strategy dps"
"$dprun" -np 2 --pretend-nodes 2 "$gpt2" $small --out nodes --precision fp16 --amp O2 >nodes.out 2>&1 ||
    { cat nodes.out >&2; fail "nodes failed"; }
near fp16_o2 nodes 5e-3
small=${small% --strategy dps}

# Without its last checkpoint the run goes on from step 8, with scale and counters of then.
train stopped 2 $high --checkpoint-every 8 --amp O2
rm -rf whole
cp -r stopped whole
rm -rf stopped/checkpoint/20 stopped/checkpoint/16
train stopped 2 $high --checkpoint-every 8 --amp O2 --resume auto
for file in weights adam_m adam_v; do
    cmp whole/checkpoint/20/$file.bin stopped/checkpoint/20/$file.bin
done

for strategy in coordinator dps sps; do
    "$dprun" -np 3 "$broken" $strategy $small --precision fp16 --loss-scale 4096 >broken.out 2>&1 || {
        cat broken.out >&2
        fail "an Inf on one rank under $strategy"
    }
done

# refused WORDS FLAGS...
refused() {
    words=$1
    shift
    if "$dprun" -np 2 "$gpt2" $small "$@" >refused.out 2>&1; then fail "$* was accepted"; fi
    grep -q -e "$words" refused.out || { cat refused.out >&2; fail "no \"$words\""; }
}
refused "--amp O2 computes in 16 bits, but --precision is fp32" --precision fp32 --amp O2
refused "--loss-scale 3: neither auto, none nor a power of two" --precision fp16 --loss-scale 3
refused "--gemm dnnl-bf16 multiplies bf16, but --precision is fp16" --precision fp16 --gemm dnnl-bf16

# What O2 takes on CPUs: masters beside the weights that passes read, and half the wire.
plan() {
    "$gpt2" $small --plan --plan-ranks 4 "$@" | sed -n 's/.*weights \([0-9.]*\), gradients .*/\1/p; s/.*of one rank: gradients \([0-9.]*\),.*/\1/p' |
        tr '\n' ' '
}
echo "$(plan --amp O1) $(plan --amp O2)" | awk '
    { exit !(NF == 4 && $3 > 1.9 * $1 && $3 < 2.1 * $1 && $4 > 0.49 * $2 && $4 < 0.51 * $2) }' ||
    fail "the plan of O2: $(plan --amp O1) $(plan --amp O2)"
echo "amp.sh: all as expected"
