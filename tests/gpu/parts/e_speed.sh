# e_speed.sh - GPT-2 124M beside PyTorch. First each of torch.compile's modes once, then ours without the
# runtime, PyTorch in its best mode and ours with the runtime (a world of one), three times in turn, as
# a GPU's clock is not constant; clock and power stand beside each figure. Then PyTorch's attention
# kernels alone, llm.c where there is one, and GPT-2 1558M.

part_e() {
    part e speed 500 "Speed of GPT-2 124M, ours and PyTorch's in turn"
    torch_step mode-default 100 "PyTorch, compiled" torch_peer default
    torch_step mode-autotune 150 "PyTorch, compiled, all kernels timed" torch_peer max-autotune
    torch_step mode-graphs 90 "PyTorch, compiled, with CUDA graphs" torch_peer graphs
    local turn
    for turn in 1 2 3; do
        step ours-$turn 60 "ours, runtime off, turn $turn" --figures rate_figures -- clocked train_large single ours-$turn
        torch_step torch-$turn 60 "PyTorch in its best mode, turn $turn" torch_best
        step rank-$turn 45 "ours, one rank, turn $turn" --figures rate_figures -- clocked train_large coordinator rank-$turn
    done
    step choices 5 "cuBLASLt's choices" --figures choices_figures -- show_tuned
    step ratio 5 "ours beside PyTorch's" --figures ratio_figures -- compare_rates
    step sdpa 60 "PyTorch's attention kernels alone" --needs python3 --optional --figures sdpa_figures -- clocked torch_attention
    [ -z "${LLMC:-}" ] || step llmc 60 "llm.c" --optional --figures llmc_figures -- clocked llmc_peer
    step xl 40 "GPT-2 1558M, one rank" --figures rate_figures -- clocked train_xl
}

torch_step() { # NAME SECONDS TITLE COMMAND...
    step "$1" "$2" "$3" --needs python3 --optional --figures torch_figures -- clocked "${@:4}"
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

# In a world of one nothing is communicated: what the trainer calls exposed is the norm of the gradients.
rate_figures() {
    local exposed=exposed
    case $id in e.*) exposed="norm of gradients" ;; esac
    sed -n 's/^rate \([0-9.]*\) tok\/s, step \([0-9.]*\) ms, transfer \([0-9.]*\) ms, exposed \([0-9.]*\) ms.*/tokens\t\1\ttok\/s\nstep\t\2\tms\n'"$exposed"'\t\4\tms/p;'"$clock_figures"
}

torch_python() { # ARGUMENT...
    export TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton
    python3 "$here/peers/gpt2_torch.py" "$@"
}

torch_peer() { # MODE
    torch_python --preset 124M --batch "$(size speed_batch)" --steps "$(size torch_steps)" --mode "$1"
}

# The mode that was the quickest.
torch_best() {
    local best
    best=$(kept_figures tokens | awk -F '\t' 'sub(/^e\.mode-/, "", $1) && $2 > most { most = $2; best = $1 } END { print best }')
    [ -n "$best" ] || { echo "skipped: no mode of PyTorch's has run"; return 77; }
    [ "$best" != autotune ] || best=max-autotune
    torch_peer "$best"
}

torch_figures() {
    sed -n 's/^torch .*: \([0-9]*\) tok\/s, step \([0-9.]*\) ms.*, \([0-9]*\) MiB$/tokens\t\1\ttok\/s\nstep\t\2\tms\nmemory\t\3\tMiB/p;'"$clock_figures"
}

torch_attention() { torch_python --attention; }

sdpa_figures() {
    sed -n 's/^torch attention \(.*\) \([0-9.]*\) TFLOP\/s$/\1\t\2\tTFLOP\/s/p;'"$clock_figures"
}

# The same step by llm.c, where the environment names its folder: LLMC.
llmc_peer() {
    type -P nvcc >/dev/null || { echo "skipped: no nvcc"; return 77; }
    [ -s "$work/tokens.bin" ] || make_tokens
    make -C "$LLMC" train_gpt2cu || { echo "skipped: llm.c does not build here"; return 77; }
    "$LLMC/train_gpt2cu" -i "$work/tokens.bin" -j "$work/tokens.bin" -e d12 -b "$(size speed_batch)" -t 1024 \
        -d $(($(size speed_batch) * 1024)) -x "$(size torch_steps)" -v 0 -s 0
}

llmc_figures() {
    sed -n 's/.*| \([0-9.]*\) ms | .* | \([0-9]*\) tok\/s$/\2\ttok\/s\t\1/p' | tail -n 1 |
        awk '{ printf "tokens\t%s\ttok/s\nstep\t%s\tms\n", $1, $3 }'
}

show_tuned() {
    cat "$work"/tuned/* || return
    echo "products kept: $(cat "$work"/tuned/* | grep -c '^[0-9]')"
}

choices_figures() { sed -n 's/^products kept: \([0-9]*\)$/products kept\t\1\t/p'; }

# A figure of all passed steps of the results: this command's, and those of earlier ones.
kept_figures() { # NAME
    "$python" "$parts/record.py" figures "$results/results.json" "$1"
}

# Means over the turns.
compare_rates() {
    kept_figures tokens | awk -F '\t' '$1 ~ /^e\./ { name = $1; sub(/^e\./, "", name); if (!sub(/-[123]$/, "", name)) next; sum[name] += $2; n[name]++ }
        END { for (name in sum) { rate[name] = sum[name] / n[name]; printf "%s: %.0f tok/s, the mean of %d\n", name, rate[name], n[name] }
              if (!n["ours"]) { print "no speed of ours to compare"; exit 1 }
              if (n["rank"]) printf "the runtime: %.4f of the speed without\n", rate["rank"] / rate["ours"]
              if (n["torch"]) printf "ours beside PyTorch: %.4f\n", rate["ours"] / rate["torch"]
              if (n["torch"] && n["rank"]) printf "ours with the runtime beside PyTorch: %.4f\n", rate["rank"] / rate["torch"] }'
}

ratio_figures() {
    sed -n 's/^\(the runtime\): \([0-9.]*\) of the speed without$/\1, of the speed without\t\2\t/p; s/^\(ours.* beside PyTorch\): \([0-9.]*\)$/\1\t\2\t/p'
}
