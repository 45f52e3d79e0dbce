# d_losses.sh - GPT-2's losses on the GPU beside the same steps on the processor.

part_d() {
    part d losses 90 "GPT-2: losses as on the processor"
    step cpu 40 "20 steps on the processor" --figures last_loss -- train_tiny cpu fp32
    step fp32 35 "the same on the GPU, fp32" --figures losses_figures -- compare_tiny fp32 0.001
    step bf16 35 "the same on the GPU, bf16" --figures losses_figures -- compare_tiny bf16 0.02
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
    [ "$1" = cpu ] || flags+=(--precision "$2" --tuned "$work/tuned")
    ours env -u DP_DEVICE "$root/gpt2" $(size parity_model) "${flags[@]}"
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
