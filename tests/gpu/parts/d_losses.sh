# d_losses.sh - GPT-2's losses on the GPU beside the same steps on the processor, and what two ranks
# that share the state out learn beside two that do not.

part_d() {
    part d losses 140 "GPT-2: losses as on the processor"
    step cpu 40 "20 steps on the processor" --figures last_loss -- train_tiny cpu fp32
    step fp32 35 "the same on the GPU, fp32" --figures losses_figures -- compare_tiny fp32 0.001
    step bf16 35 "the same on the GPU, bf16" --figures losses_figures -- compare_tiny bf16 0.02
    step o2 35 "the same on the GPU, O2 in bf16" --figures losses_figures -- compare_tiny O2 0.02
    step shards 90 "two ranks share weights out: equal bytes" --says '^same bytes: 2 of 2' -- compare_shards
    step powersgd 40 "two ranks send thin factors" --figures last_loss -- train_thin
}

# Words in any order: there is something to learn, and nothing to download.
make_text() {
    awk 'BEGIN { srand(7); split("and the lord said unto them", w, " ")
         for (i = 0; i < 20000; i++) printf "%s%s", w[int(rand() * 6) + 1], i % 12 == 11 ? "\n" : " " }' >"$work/text"
}

train_tiny() { # DEVICE PRECISION
    [ -s "$work/text" ] || make_text
    local flags=(--data "$work/text" --vocab "$(size parity_vocab)" --batch "$(size parity_batch)" --steps 20
        --strategy single --seed 1 --log-every 1 --eval-batches 1 --check 0 --device "$1" --csv "$work/$1-$2.csv")
    case $1-$2 in
    cpu-*) ;;
    *-O2) flags+=(--amp O2 --tuned "$work/tuned") ;;
    *) flags+=(--precision "$2" --tuned "$work/tuned") ;;
    esac
    ours env -u DP_DEVICE "$root/gpt2" $(size parity_model) "${flags[@]}"
}

# Two ranks add two numbers, in either order with the same result: so what is learned has equal bits
# whoever keeps it, if both runs find the choices of products that the first has made.
train_two() { # NAME STEPS FLAG...
    local name=$1 steps=$2
    shift 2
    [ -s "$work/text" ] || make_text
    sharing "$root/dprun" -np 2 --share-gpu "$root/gpt2" $(size parity_model) --data "$work/text" --device cuda \
        --vocab "$(size parity_vocab)" --batch "$(size parity_batch)" --steps "$steps" --log-every "$steps" --seed 1 --eval-batches 1 --check 3 \
        --wire none --tuned "$work/tuned" --csv "$work/$name.csv" --export "$work/$name.bin" "$@"
}

compare_shards() {
    local level same=0
    for level in O1 O2; do
        train_two all 6 --amp "$level" --strategy dps --head-early no || return
        train_two rows 6 --amp "$level" --strategy dps --shard weights || return
        ! cmp "$work/all.bin" "$work/rows.bin" || same=$((same + 1))
    done
    echo "same bytes: $same of 2"
}

# --check ends a run whose replicas differ.
train_thin() {
    train_two thin 20 --compress powersgd --compress-rank 2 || return
    sed -n 's/^20,\([0-9.]*\),.*/step  20\/20  loss \1/p' "$work/thin.csv"
}

compare_tiny() { # PRECISION TOLERANCE
    [ -s "$work/cpu-fp32.csv" ] || train_tiny cpu fp32 || return
    train_tiny cuda "$1" || return
    paste -d, <(grep -v '^#' "$work/cpu-fp32.csv" | cut -d, -f1,2) <(grep -v '^#' "$work/cuda-$1.csv" | cut -d, -f1,2) |
        awk -F, -v most="$2" 'NR > 1 { if ($1 != $3) exit 1; off = $2 > $4 ? $2 - $4 : $4 - $2; if (off > worst) worst = off; n++ }
            END { printf "%d losses, off by %g at most, %g allowed\n", n, worst, most; exit !(n == 20 && worst <= most) }'
}

last_loss() { sed -n 's/^step  *20\/20  *loss \([0-9.]*\).*/last loss\t\1\t/p'; }

losses_figures() {
    sed -n 's/^\([0-9]*\) losses, off by \([^ ]*\) at most, \([^ ]*\) allowed$/losses\t\1\t\nworst difference\t\2\t\nallowed\t\3\t/p'
}
