# e_speed.sh - GPT-2 124M beside PyTorch with torch.compile, in turn, as a GPU's clock is not
# constant; without the runtime (one process alone) and with it (a world of one). Then GPT-2 1558M.

part_e() {
    part e speed 220 "Speed of GPT-2 124M, ours and PyTorch's in turn"
    step ours-1 60 "ours, runtime off; times products" --figures rate_figures -- train_large single ours-1
    step torch-1 110 "PyTorch, compiled" --needs python3 --optional --figures torch_figures -- torch_peer
    step rank-1 45 "ours, one rank" --figures rate_figures -- train_large coordinator rank-1
    step ours-2 45 "ours, runtime off, again" --figures rate_figures -- train_large single ours-2
    step torch-2 60 "PyTorch, compiled, again" --needs python3 --optional --figures torch_figures -- torch_peer
    step rank-2 45 "ours, one rank, again" --figures rate_figures -- train_large coordinator rank-2
    step choices 5 "cuBLASLt's choices" --figures choices_figures -- show_tuned
    step ratio 5 "ours beside PyTorch's" --figures ratio_figures -- compare_rates
    step xl 40 "GPT-2 1558M, one rank" --figures rate_figures -- train_xl
    step eager 40 "PyTorch, not compiled" --needs python3 --optional --figures torch_figures -- torch_peer --no-compile
}

# llm.c's token file: 256 words of header, then 16 bits per token.
make_tokens() {
    LC_ALL=C awk -v count="$(size tokens)" -v vocabulary="$(size vocabulary)" '
        function word(n) { printf "%c%c%c%c", n % 256, int(n / 256) % 256, int(n / 65536) % 256, int(n / 16777216) }
        BEGIN { srand(1); word(20240520); word(1); word(count); for (i = 3; i < 256; i++) word(0)
                for (i = 0; i < count; i++) { n = int(rand() * vocabulary); printf "%c%c", n % 256, int(n / 256) } }' >"$work/tokens.bin"
}

# A run whose last line has the rate of its last steps: the first ones warm up.
train_large() { # STRATEGY CSV [DPRUN-OPTION...]
    local strategy=$1 csv=$work/$2.csv launcher=()
    shift 2
    [ -s "$work/tokens.bin" ] || make_tokens
    [ "$strategy" = single ] || launcher=("$root/dprun" -np 1 "$@")
    rm -f "$csv"
    by_tool "${launcher[@]}" "$root/gpt2" ${model:-$(size speed_model)} --data "$work/tokens.bin" --device cuda --strategy "$strategy" \
        --batch "${batch:-$(size speed_batch)}" --steps "${steps:-$(size speed_steps)}" --log-every "${log_every:-$(size speed_log)}" \
        --eval-batches 1 --check 0 --tuned "$work/tuned" --csv "$csv" || return
    awk -F, '!/^#/ && $1 ~ /^[0-9]+$/ { rate = $7; ms = $8; comm = $9; exposed = $10; loss = $2 }
        END { if (rate == "") exit 1
              printf "rate %.0f tok/s, step %.3f ms, transfer %.3f ms, exposed %.3f ms, loss %.4f\n", rate, ms, comm, exposed, loss }' "$csv"
}

# The largest preset; 12 sequences leave a card of 80 GB some room.
train_xl() {
    model=$(size xl_model) batch=$(size xl_batch) steps=$(size xl_steps) log_every=$(($(size xl_steps) / 2)) \
        train_large coordinator xl
}

rate_figures() {
    sed -n 's/^rate \([0-9.]*\) tok\/s, step \([0-9.]*\) ms, transfer \([0-9.]*\) ms, exposed \([0-9.]*\) ms.*/tokens\t\1\ttok\/s\nstep\t\2\tms\nexposed\t\4\tms/p'
}

torch_peer() { # FLAG...
    export TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton
    python3 "$here/peers/gpt2_torch.py" --preset 124M --batch "$(size speed_batch)" --steps "$(size torch_steps)" "$@"
}

torch_figures() {
    sed -n 's/^torch .*: \([0-9]*\) tok\/s, step \([0-9.]*\) ms.*, \([0-9]*\) MiB$/tokens\t\1\ttok\/s\nstep\t\2\tms\nmemory\t\3\tMiB/p'
}

show_tuned() {
    cat "$work"/tuned/* || return
    echo "products kept: $(cat "$work"/tuned/* | grep -c '^[0-9]')"
}

choices_figures() { sed -n 's/^products kept: \([0-9]*\)$/products kept\t\1\t/p'; }

# A figure of all passed steps of the results: this command's, and those of earlier ones.
kept_figures() { # NAME
    local file
    for file in "$work"/steps/*; do
        sed -n 's/.*"figures":\[.*{"name":"'"$1"'","value":\([^,]*\),.*\],"tail":".*/\1/p' "$file" | sed "s/^/${file##*/}\t/"
    done
}

# Means over the turns.
compare_rates() {
    kept_figures tokens | awk -F '\t' '$1 ~ /^e\./ { name = $1; sub(/^e\./, "", name); sub(/-[12]$/, "", name); sum[name] += $2; n[name]++ }
        END { for (name in sum) { rate[name] = sum[name] / n[name]; printf "%s: %.0f tok/s, the mean of %d\n", name, rate[name], n[name] }
              if (!n["ours"]) { print "no speed of ours to compare"; exit 1 }
              if (n["rank"]) printf "the runtime: %.4f of the speed without\n", rate["rank"] / rate["ours"]
              if (n["torch"]) printf "ours beside PyTorch: %.4f\n", rate["ours"] / rate["torch"]
              if (n["torch"] && n["rank"]) printf "ours with the runtime beside PyTorch: %.4f\n", rate["rank"] / rate["torch"] }'
}

ratio_figures() {
    sed -n 's/^\(the runtime\): \([0-9.]*\) of the speed without$/\1, of the speed without\t\2\t/p; s/^\(ours.* beside PyTorch\): \([0-9.]*\)$/\1\t\2\t/p'
}
